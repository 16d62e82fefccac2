"""Scopes of a syntax tree: the module, class or function that binds each name."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BUILTINS = frozenset(dir(builtins)) | {"__file__", "__name__", "__doc__", "__class__"}


class Scope:
    """A module, class, function or comprehension, and the names that it binds.

    Attributes:
        path: dotted path of the definition, such as `protocols.ring.products.Made.two`.
        bound: how each name is bound: "parameter", "variable", "definition" or "import".
    """

    def __init__(self, node: ast.AST, parent: Scope | None, path: tuple[str, ...]) -> None:
        self.node, self.parent, self.path = node, parent, path
        self.bound: dict[str, set[str]] = {}
        self.outer: dict[str, Scope] = {}  # names that global and nonlocal statements move

    @property
    def is_class(self) -> bool:
        """Whether functions inside cannot see the names."""
        return isinstance(self.node, ast.ClassDef)

    @property
    def is_function(self) -> bool:
        """Whether names are local variables."""
        return isinstance(self.node, FUNCTIONS + COMPREHENSIONS)

    def bind(self, name: str, how: str) -> None:
        """Record that a statement binds a name here."""
        if name in self.outer:
            self.outer[name].bind(name, how)
        else:
            self.bound.setdefault(name, set()).add(how)

    def resolve(self, name: str) -> Scope | str:
        """Return the scope that binds a name used here, or "builtin" or "unbound"."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.outer:
                return scope.outer[name]
            if name in scope.bound and (scope is self or not scope.is_class):
                return scope
            scope = scope.parent
        return "builtin" if name in _BUILTINS else "unbound"

    def enclosing(self) -> Iterator[Scope]:
        """Yield the scopes around this one, from the inside."""
        scope = self.parent
        while scope is not None:
            yield scope
            scope = scope.parent


def _walk_here(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope's own statements, without those of inner scopes."""
    pending: list[ast.AST] = [node]
    while pending:
        current = pending.pop()
        yield current
        if isinstance(current, ast.ClassDef):
            pending += [*current.decorator_list, *current.bases, *current.keywords]
        elif isinstance(current, FUNCTIONS):
            pending += outer_parts(current)
        elif isinstance(current, COMPREHENSIONS):
            pending.append(current.generators[0].iter)
        else:
            pending += ast.iter_child_nodes(current)


def outer_parts(node: Any) -> list[ast.AST]:
    """Return the parts of a function that its outer scope evaluates: decorators, defaults,
    annotations.
    """
    parts = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
    parts += [a.annotation for a in list_arguments(node.args) if a.annotation is not None]
    if not isinstance(node, ast.Lambda):
        parts += node.decorator_list
        parts += [node.returns] if node.returns is not None else []
    return parts


def list_arguments(arguments: ast.arguments) -> list[ast.arg]:
    """Return all parameters of a function in order."""
    variadic = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *variadic]


def _inner_parts(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Lambda):
        return [node.body]
    if isinstance(node, COMPREHENSIONS):
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        targets: list[ast.AST] = []
        for i, part in enumerate(node.generators):
            targets += [part.target, *part.ifs] + ([part.iter] if i else [])
        return [*elements, *targets]
    return list(node.body)  # type: ignore[attr-defined]


def bound_name(alias: ast.alias, is_from: bool) -> str:
    """Return the name that an import binds."""
    return alias.asname or (alias.name if is_from else alias.name.partition(".")[0])


def _bind_node(node: ast.AST, scope: Scope) -> None:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        scope.bind(node.id, "variable")
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scope.bind(node.name, "definition")
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            scope.bind(bound_name(alias, isinstance(node, ast.ImportFrom)), "import")
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        scope.bind(node.name, "variable")
    elif isinstance(node, ast.MatchMapping) and node.rest:
        scope.bind(node.rest, "variable")


def build_scopes(tree: ast.Module, module: str) -> dict[ast.AST, Scope]:
    """Return the scope of each module, class, function and comprehension of a tree."""
    scopes: dict[ast.AST, Scope] = {}

    def build(node: ast.AST, parent: Scope | None, path: tuple[str, ...]) -> None:
        scope = scopes[node] = Scope(node, parent, path)
        inner = _inner_parts(node)
        nodes = [n for part in inner for n in _walk_here(part)]
        around = list(scope.enclosing())
        for n in nodes:
            if isinstance(n, ast.Global):
                scope.outer.update(dict.fromkeys(n.names, around[-1] if around else scope))
            elif isinstance(n, ast.Nonlocal):
                for name in n.names:
                    holders = [s for s in around if name in s.bound and not s.is_class]
                    scope.outer.update({name: holders[0]} if holders else {})
        if isinstance(node, FUNCTIONS):
            for argument in list_arguments(node.args):
                scope.bind(argument.arg, "parameter")
        walrus = {id(n.target) for n in nodes if isinstance(n, ast.NamedExpr)}
        home = scope  # assignment expressions of comprehensions bind in the function around
        while isinstance(home.node, COMPREHENSIONS) and home.parent is not None:
            home = home.parent
        for n in nodes:
            _bind_node(n, home if id(n) in walrus else scope)
        for n in nodes:
            if isinstance(n, (*FUNCTIONS, *COMPREHENSIONS, ast.ClassDef)) and n not in scopes:
                defined: str | None = getattr(n, "name", None)
                build(n, scope, (*path, defined) if defined else path)

    build(tree, None, tuple(module.split(".")))
    return scopes

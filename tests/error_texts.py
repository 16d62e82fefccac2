"""Texts of errors, help and logs, which a comparison of two versions ignores."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

FIELDS = frozenset({"code", "operation", "received", "expected", "party"})
_HELP = frozenset({"help", "description", "epilog", "metavar", "title"})
_LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_PURE = frozenset(
    (
        *("join", "len", "repr", "str", "sorted", "list", "tuple", "set", "format", "type", "min"),
        *("max", "sum", "int", "float", "round", "isinstance", "items", "keys", "values", "title"),
        *("did_you_mean", "place", "abs", "bool", "strip", "removeprefix", "removesuffix", "hex"),
        *("replace", "lower", "upper", "split", "partition", "getattr", "enumerate", "range"),
        *("zip", "any", "all", "next", "map"),
    )
)


def callee_name(node: ast.Call) -> str:
    """Return the last name of the called function."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def is_text(node: ast.AST) -> bool:
    """Return whether an expression builds a text from constants and formatted values."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.BinOp(op=ast.Add()):
            return is_text(node.left) or is_text(node.right)
        case ast.BinOp(op=ast.Mod()):
            return is_text(node.left)
        case ast.IfExp():
            return is_text(node.body) or is_text(node.orelse)
        case ast.Call(func=ast.Attribute(value=value, attr="format" | "join" | "replace")):
            return is_text(value)
        case _:
            return False


def has_effects(node: ast.AST) -> bool:
    """Return whether a text assigns, awaits or yields."""
    effects = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
    return any(isinstance(n, effects) for n in ast.walk(node))


def called_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the functions that texts call, except Python's functions that only format."""
    calls = (n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Call))
    return {callee_name(call) for call in calls} - _PURE


def is_help(call: ast.Call, keyword: str | None) -> bool:
    """Return whether a keyword argument is a text of argparse."""
    return keyword in _HELP and (keyword != "title" or "add_" in callee_name(call))


def is_log(call: ast.Call) -> bool:
    """Return whether the first argument is a log line, a warning or the title of a help group."""
    if callee_name(call) in ("warn", "add_argument_group"):
        return True
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _LOG_METHODS:
        return False
    return "log" in ast.unparse(call.func.value).lower()


@dataclass
class ErrorFacts:
    """Exceptions of a version of the code, and functions with parameters for error texts only.

    Attributes:
        classes: names of exceptions.
        helpers: by function the positions and keywords of parameters that only errors show.
    """

    classes: set[str] = field(default_factory=set)
    helpers: dict[str, set[int | str]] = field(default_factory=dict)

    @classmethod
    def collect(cls, trees: Iterable[ast.Module], helpers: ast.Module | None = None) -> ErrorFacts:
        """Read the exceptions and helpers of all files.

        Args:
            helpers: a module whose helpers count even where others have functions of their names.
        """
        facts = cls()
        classes: list[ast.ClassDef] = []
        functions: list[_Function] = []
        for tree in trees:
            methods: set[int] = set()
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    classes.append(node)
                    methods |= {id(f) for f in node.body}
                elif isinstance(node, ast.FunctionDef):
                    functions.append(_Function(node, id(node) in methods))
        facts._collect_classes(classes)
        trusted = [
            _Function(f, False)
            for f in (helpers.body if helpers else [])
            if isinstance(f, ast.FunctionDef)
        ]
        for _ in range(2):  # helpers may call helpers
            facts._collect_helpers(functions)
            sure = ErrorFacts(facts.classes)
            sure._collect_helpers(trusted)
            facts.helpers.update(sure.helpers)
        return facts

    def _collect_classes(self, classes: list[ast.ClassDef]) -> None:
        size = -1
        while size != len(self.classes):
            size = len(self.classes)
            for node in classes:
                names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                if any(self.is_error_name(name) for name in names):
                    self.classes.add(node.name)

    def is_error_name(self, name: str) -> bool:
        """Return whether a class of this name is an exception."""
        return name.endswith(("Error", "Exception")) or name in self.classes

    def is_error(self, call: ast.Call) -> bool:
        """Return whether a call constructs an exception, by its class or in a subclass."""
        if callee_name(call) == "__init__" and isinstance(call.func, ast.Attribute):
            return "super()" in ast.unparse(call.func.value) and any(map(is_text, call.args))
        return self.is_error_name(callee_name(call))

    def text_parts(self, call: ast.Call) -> Iterator[ast.AST]:
        """Return the arguments of a call that only an error shows."""
        if self.is_error(call):
            yield from call.args
            yield from (k.value for k in call.keywords if k.arg in FIELDS)
        places = self.helpers.get(callee_name(call), ())
        yield from (a for i, a in enumerate(call.args) if i in places)
        yield from (k.value for k in call.keywords if k.arg in places)

    def text_names(self, function: ast.AST) -> set[str]:
        """Return the parameters and variables of a function that only error texts use."""
        return self._text_names(_Function(function, False))

    def _text_names(self, function: _Function) -> set[str]:
        shown = {
            id(n)
            for call in function.calls
            for part in self.text_parts(call)
            for n in ast.walk(part)
        }
        return {name for name, uses in function.uses.items() if uses <= shown}

    def _collect_helpers(self, functions: list[_Function]) -> None:
        places_by_name: dict[str, list[set[int | str]]] = defaultdict(list)
        for function in functions:
            names = self._text_names(function) if function.has_errors(self) else set()
            node = function.node
            static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
            arguments = [*node.args.posonlyargs, *node.args.args]
            arguments = arguments[1:] if function.is_method and not static else arguments
            places: set[int | str] = {i for i, a in enumerate(arguments) if a.arg in names}
            places |= {a.arg for a in [*arguments, *node.args.kwonlyargs] if a.arg in names}
            places_by_name[node.name].append(places)
        self.helpers = {
            name: common
            for name, places in places_by_name.items()
            if (common := set.intersection(*places))
        }


class _Function:
    """A function with its calls and the uses of its names."""

    def __init__(self, node: Any, is_method: bool) -> None:
        self.node, self.is_method = node, is_method
        self.calls: list[ast.Call] = []
        self.uses: dict[str, set[int]] = defaultdict(set)
        for n in ast.walk(node):
            if isinstance(n, ast.Call):
                self.calls.append(n)
            elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
                self.uses[n.id].add(id(n))
        self.called = {callee_name(call) for call in self.calls}

    def has_errors(self, facts: ErrorFacts) -> bool:
        """Return whether it constructs an error or calls a helper that does."""
        return any(
            facts.is_error_name(name) or name in facts.helpers or name == "__init__"
            for name in self.called
        )

"""Comparison of two syntax trees up to allowed renames, docstrings and error texts.

Both trees are walked at once. A plain name may change only together with all uses of its binding:
for each scope, old and new names are in a one-to-one relation, and a use resolves to the same scope
in both trees. So a renamed variable cannot capture another one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from tests.compare_context import CompareContext, Difference
from tests.error_texts import (
    FIELDS,
    called_names,
    callee_name,
    has_effects,
    is_help,
    is_log,
    is_text,
)
from tests.import_names import ImportedName, binds_same_name, flatten_imports, leading_imports
from tests.scopes import Scope, build_scopes, list_arguments, outer_parts

_DOTTED = re.compile(r"\w+(\.\w+)*(:\w+)?")
_BY_TEXT = frozenset(
    (
        *("getattr", "setattr", "hasattr", "delattr", "object", "patch", "attrgetter"),
        *("methodcaller", "delitem", "usefixtures", "getfixturevalue"),
    )
)
_SORTED_LISTS = frozenset({"__all__", "__slots__"})  # a linter may sort these


def _shorten(node: object) -> str:
    if isinstance(node, list):
        return "; ".join(_shorten(n) for n in node[:3]) or "(nothing)"
    text = ast.unparse(node) if isinstance(node, ast.AST) else str(node)
    text = " ".join(text.split())
    return text if len(text) <= 160 else text[:157] + "..."


def _statements(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a body without docstrings and `pass`."""
    return [
        s
        for s in body
        if not isinstance(s, ast.Pass)
        and not (isinstance(s, ast.Expr) and _is_constant_text(s.value))
    ]


def _is_constant_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and (isinstance(node.value, str) or node.value is ...)


class TreeComparison:
    """Compares two versions of one file."""

    def __init__(
        self, old: ast.Module, new: ast.Module, modules: tuple[str, str], context: CompareContext
    ) -> None:
        self.context = context
        self.renames, self.facts = context.renames, context.facts
        self.scopes = (build_scopes(old, modules[0]), build_scopes(new, modules[1]))
        self.partner: dict[Scope, Scope] = {}
        self.pairs: dict[Scope, dict[str, dict[str, int]]] = {}
        self.line = 0
        self.differences: list[Difference] = []
        self.renamed = 0
        self._pair_scopes(old, new)
        self._body(old.body, new.body, self.scopes[0][old], self.scopes[1][new])
        self._check_pairs()

    def _report(self, what: str, old: object, new: object, line: int | None = None) -> None:
        where = self.line if line is None else line
        self.differences.append(Difference(where, what, _shorten(old), _shorten(new)))

    def _pair_scopes(self, old: ast.AST, new: ast.AST) -> tuple[Scope, Scope]:
        before, after = self.scopes[0][old], self.scopes[1][new]
        self.partner[before] = after
        return before, after

    # names

    def _name(self, old: str, new: str, s: Scope, t: Scope) -> None:
        """Record that a name became another, at a use or a binding in the scopes s and t."""
        home, other = s.resolve(old), t.resolve(new)
        if isinstance(home, str) or isinstance(other, str):
            if home != other or (old != new and not self.renames.is_reference(old, new)):
                self._report("a name is bound elsewhere", old, new)
        elif self.partner.get(home) is not other:
            self._report("a name is bound in another scope", old, new)
        else:
            self.pairs.setdefault(home, {}).setdefault(old, {}).setdefault(new, self.line)

    def _check_pairs(self) -> None:
        for scope, names in self.pairs.items():
            matched: dict[str, str] = {}
            for old, news in names.items():
                for new, line in news.items():
                    if len(news) > 1:
                        self._report("one name became several", old, ", ".join(news), line)
                    if matched.setdefault(new, old) != old:
                        self._report(
                            "several names became one", f"{matched[new]}, {old}", new, line
                        )
                    if old != new and not self._is_allowed(scope, old, new):
                        self._report("no map has this rename", old, new, line)
                    self.renamed += old != new

    def _is_allowed(self, scope: Scope, old: str, new: str) -> bool:
        renames, kinds = self.renames, scope.bound.get(old, set())
        if "import" in kinds and renames.is_reference(old, new):
            return True
        path = (*scope.path, old)
        if renames.is_definition(path, new):
            return True
        if scope.is_class:  # an override gets the name of the overridden method
            return renames.is_reference(old, new)
        if not scope.is_function:
            return False
        is_fixture = "parameter" in kinds and scope.path[0] == "tests"
        if is_fixture and renames.is_reference(old, new):
            return True
        return renames.is_local(scope.path, old, new)

    def _attribute(self, old: str, new: str) -> None:
        if old != new:
            self.renamed += 1
            if not self.renames.is_reference(old, new):
                self._report("no map has this attribute's rename", old, new)

    def _keyword(self, old: str | None, new: str | None) -> None:
        if old != new:
            self.renamed += 1
            if old is None or new is None or not self.renames.is_keyword(old, new):
                self._report("no map has this keyword's rename", old, new)

    # statements

    def _body(self, old: list[ast.stmt], new: list[ast.stmt], s: Scope, t: Scope) -> None:
        before, after = _statements(old), _statements(new)
        while before and after:
            imports = leading_imports(before), leading_imports(after)
            if any(imports):
                self._imports(*imports, s, t)
                before, after = before[len(imports[0]) :], after[len(imports[1]) :]
                continue
            count = len(self.differences)
            self._node(before.pop(0), after.pop(0), s, t)
            if len(self.differences) > count + 3 and len(before) != len(after):
                break
        if len(before) != len(after):
            rest = before or after
            line = after[0].lineno if after else rest[0].lineno
            self._report("statements were added or dropped", before, after, line)

    def _imports(self, old: list[Any], new: list[Any], s: Scope, t: Scope) -> None:
        before, after = flatten_imports(old), flatten_imports(new)
        self.line = new[0].lineno if new else old[0].lineno
        for is_exact in (True, False):
            for item in list(before):
                match = next((x for x in after if self._is_import(item, x, is_exact)), None)
                if match is not None:
                    before.remove(item)
                    after.remove(match)
                    self.renamed += item.name != match.name
                    self._name(item.bound, match.bound, s, t)
        if self.context.is_tests:
            before = [x for x in before if x.bound not in ("pytest", "re", "raises")]
            after = [x for x in after if x.module != "tests.refusals"]
        for x in before:
            self._report("an import was dropped", x, "")
        for x in after:
            self._report("an import was added", "", x)

    def _is_import(self, old: ImportedName, new: ImportedName, is_exact: bool) -> bool:
        renames = self.renames
        if (old.is_from, old.level) != (new.is_from, new.level):
            return False
        if not old.is_from:
            return new.name in (old.name, renames.map_module(old.name)) and binds_same_name(
                old, new, renames
            )
        names = old.name == new.name or renames.is_reference(old.name, new.name)
        module = new.module in (old.module, renames.map_module(old.module))
        if is_exact:
            path = (*old.module.removeprefix("tfe_bench.").split("."), old.name)
            full = renames.map_module(f"{old.module}.{old.name}").rpartition(".")[2]
            names = full == new.name if full != old.name else renames.is_definition(path, new.name)
            names = names or (old.name == new.name and not self._is_renamed(path))
        return module and names and binds_same_name(old, new, renames)

    def _is_renamed(self, path: tuple[str, ...]) -> bool:
        keys = [new for old, new in self.renames.definitions if old == path[-1]]
        return any(self.renames.is_definition(path, new) for new in keys)

    def _node(self, old: Any, new: Any, s: Scope, t: Scope) -> None:
        """Compare two nodes of any kind in the scopes s and t."""
        self.line = getattr(new, "lineno", self.line)
        if type(old) is not type(new):
            if not self._is_refusal(old, new, s, t):
                self._report("another kind of code", old, new)
            return
        match old:
            case ast.Name():
                self._name(old.id, new.id, s, t)
            case ast.Attribute():
                self._node(old.value, new.value, s, t)
                self._attribute(old.attr, new.attr)
            case ast.Constant():
                self._constant(old, new, s, t)
            case ast.Call():
                self._call(old, new, s, t)
            case ast.Global() | ast.Nonlocal():
                self._each(old.names, new.names, s, t, self._name)
            case ast.ClassDef():
                self._name(old.name, new.name, s, t)
                for part in ("decorator_list", "bases", "keywords"):
                    self._children(getattr(old, part), getattr(new, part), s, t)
                self._body(old.body, new.body, *self._pair_scopes(old, new))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._function(old, new, s, t)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(old, new, s, t)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assignment(old, new, s, t)
            case ast.Assert():
                self._node(old.test, new.test, s, t)
                if not (old.msg and new.msg and is_text(old.msg) and is_text(new.msg)):
                    self._children([old.msg], [new.msg], s, t)
            case ast.JoinedStr():
                self._joined(old, new, s, t)
            case _:
                self._fields(old, new, s, t)

    def _fields(self, old: ast.AST, new: ast.AST, s: Scope, t: Scope) -> None:
        for key, value in ast.iter_fields(old):
            other = getattr(new, key)
            if key in ("body", "orelse", "finalbody") and isinstance(value, list):
                self._body(value, other, s, t)
            elif key == "name" and isinstance(value, str) and isinstance(other, str):
                self._name(value, other, s, t)  # except ... as, match ... as
            elif key == "rest" and isinstance(value, str) and isinstance(other, str):
                self._name(value, other, s, t)
            elif key == "kwd_attrs":
                self._each(value, other, s, t, lambda a, b, _s, _t: self._attribute(a, b))
            elif key == "arg" and isinstance(old, ast.keyword):
                self._keyword(value, other)
            elif isinstance(value, list):
                self._children(value, other, s, t)
            elif isinstance(value, ast.AST) and isinstance(other, ast.AST):
                self._node(value, other, s, t)
            elif value != other and key not in ("type_comment", "kind"):
                self._report(f"another {key}", _parent_text(old, value), _parent_text(new, other))

    def _children(self, old: list[Any], new: list[Any], s: Scope, t: Scope) -> None:
        def compare(a: Any, b: Any, s: Scope, t: Scope) -> None:
            if a is None or b is None:
                if a is not b:
                    self._report("a part was added or dropped", a, b)
            else:
                self._node(a, b, s, t)

        self._each(old, new, s, t, compare)

    def _each(self, old: list[Any], new: list[Any], s: Scope, t: Scope, compare: Any) -> None:
        if len(old) != len(new):
            self._report("parts were added or dropped", old, new)
        for a, b in zip(old, new, strict=False):
            compare(a, b, s, t)

    def _function(self, old: Any, new: Any, s: Scope, t: Scope) -> None:
        if hasattr(old, "name"):
            self._name(old.name, new.name, s, t)
        inner = self._pair_scopes(old, new)
        a, b = old.args, new.args
        shape = [(len(x.posonlyargs), len(x.args), len(x.kwonlyargs)) for x in (a, b)]
        marks = [(x.vararg is None, x.kwarg is None) for x in (a, b)]
        optional = [[d is None for d in x.kw_defaults] for x in (a, b)]
        if shape[0] != shape[1] or marks[0] != marks[1] or optional[0] != optional[1]:
            self._report("other parameters", ast.unparse(a), ast.unparse(b))
        for x, y in zip(list_arguments(a), list_arguments(b), strict=False):
            self._name(x.arg, y.arg, *inner)
            if (x.annotation is None) != (y.annotation is None):
                self._report("an annotation was added or dropped", x.arg, y.arg)
        self._annotated(outer_parts(old), outer_parts(new), s, t)
        if isinstance(old, ast.Lambda):
            self._node(old.body, new.body, *inner)
        else:
            self._body(old.body, new.body, *inner)

    def _annotated(self, old: list[Any], new: list[Any], s: Scope, t: Scope) -> None:
        if len(old) != len(new):
            self._report("parts were added or dropped", old, new)
        for a, b in zip(old, new, strict=False):
            if _is_constant_text(a) and _is_constant_text(b) and a.value != b.value:
                self._code(a.value, b.value, s, t, "eval")
            else:
                self._node(a, b, s, t)

    def _comprehension(self, old: Any, new: Any, s: Scope, t: Scope) -> None:
        inner = self._pair_scopes(old, new)
        if len(old.generators) != len(new.generators):
            self._report("another comprehension", old, new)
            return
        for i, (a, b) in enumerate(zip(old.generators, new.generators, strict=True)):
            self._node(a.iter, b.iter, *(inner if i else (s, t)))
            self._node(a.target, b.target, *inner)
            self._children(a.ifs, b.ifs, *inner)
            if a.is_async != b.is_async:
                self._report("another comprehension", old, new)
        for key in ("key", "value", "elt"):
            if hasattr(old, key):
                self._node(getattr(old, key), getattr(new, key), *inner)

    def _assignment(self, old: Any, new: Any, s: Scope, t: Scope) -> None:
        targets = old.targets if isinstance(old, ast.Assign) else [old.target]
        name = targets[0].id if isinstance(targets[0], ast.Name) else ""
        if name in _SORTED_LISTS and isinstance(getattr(old, "value", None), (ast.List, ast.Tuple)):
            self._sorted_names(old, new)
            return
        if isinstance(old, ast.AnnAssign):
            self._annotated([old.annotation], [new.annotation], s, t)
            old, new = _without_annotation(old), _without_annotation(new)
        if name and s.is_function and old.value is not None and is_text(old.value):
            texts = self.context.text_names(self.facts, s.node)
            if name in texts and new.value is not None and is_text(new.value):
                self._texts([old.value], [new.value])
                old, new = _without_value(old), _without_value(new)
        self._fields(old, new, s, t)

    def _sorted_names(self, old: Any, new: Any) -> None:
        names = [[getattr(e, "value", None) for e in x.value.elts] for x in (old, new)]
        rest = sorted(map(str, names[1]))
        for name in sorted(map(str, names[0])):
            match = [x for x in rest if x == name]
            match = match or [x for x in rest if self.renames.is_reference(name, x)]
            if not match:
                self._report("a listed name was dropped", name, "")
            else:
                rest.remove(match[0])
        if rest:
            self._report("listed names were added", "", ", ".join(rest))

    # calls and texts

    def _call(self, old: ast.Call, new: ast.Call, s: Scope, t: Scope) -> None:
        if self._is_refusal(old, new, s, t):
            return
        self._node(old.func, new.func, s, t)
        is_error = self.facts.is_error(old)
        places = self.facts.helpers.get(callee_name(old), set())
        is_helper = bool(places)
        texts: tuple[list[ast.AST], list[ast.AST]] = ([], [])
        rest: list[list[Any]] = [[], []]
        for side, call in enumerate((old, new)):
            for i, argument in enumerate(call.args):
                left_out = is_error or i in places or (i == 0 and is_log(call))
                is_left_out = left_out and is_text(argument)
                (texts[side] if is_left_out else rest[side]).append(argument)
        keywords = [list(old.keywords), list(new.keywords)]
        known = {k.arg for k in old.keywords}
        for side, call in enumerate((old, new)):
            for k in call.keywords:
                is_field = k.arg in FIELDS and (is_error or is_helper)
                is_new = k.arg not in known or (is_error and k.arg != "party")
                is_shown = (k.arg in places or is_help(call, k.arg)) and is_text(k.value)
                if (is_field and is_new) or is_shown:
                    texts[side].append(k.value)
                    keywords[side].remove(k)
        if [len(x) for x in rest] == [0, 1] and is_error and not texts[0]:
            self._report("an error got another argument", old, new)
        else:
            self._arguments(callee_name(old), rest[0], rest[1], s, t)
        self._children(keywords[0], keywords[1], s, t)
        self._texts(*texts)

    def _texts(self, old: list[ast.AST], new: list[ast.AST]) -> None:
        """Check that texts which may differ do no more than format values."""
        for node in new:
            if has_effects(node) and not any(map(has_effects, old)):
                self._report("a text has effects", old, node)
        before = called_names(old)
        for name in called_names(new) - before:
            if not any(self.renames.is_reference(x, name) for x in before):
                self._report("a text calls another function", ", ".join(before), name)

    def _arguments(self, name: str, old: list[Any], new: list[Any], s: Scope, t: Scope) -> None:
        if name in _BY_TEXT or name == "parametrize":
            self._each(old, new, s, t, self._named_by_text)
        elif name in ("cast", "TypeVar"):
            self._annotated(old, new, s, t)
        else:
            self._children(old, new, s, t)

    def _named_by_text(self, old: Any, new: Any, s: Scope, t: Scope) -> None:
        """Compare an argument that may name an attribute, a parameter or a fixture."""
        if isinstance(old, ast.Tuple) and isinstance(new, ast.Tuple) and len(old.elts) < 20:
            self._each(old.elts, new.elts, s, t, self._named_by_text)
            return
        if not (_is_constant_text(old) and _is_constant_text(new)) or old.value == new.value:
            self._node(old, new, s, t)
            return
        a, b = (re.split(r"\s*,\s*", str(x.value)) for x in (old, new))
        if len(a) != len(b) or not all(
            x == y or self.renames.is_keyword(x, y) for x, y in zip(a, b, strict=True)
        ):
            self._constant(old, new, s, t)
        self.renamed += 1

    def _is_refusal(self, old: Any, new: Any, s: Scope, t: Scope) -> bool:
        """Return whether `pytest.raises(X, match=...)` became `raises(X, code, ...)` of
        tests.refusals.
        """
        if not (self.context.is_tests and isinstance(old, ast.Call) and isinstance(new, ast.Call)):
            return False
        if (callee_name(old), callee_name(new)) != ("raises", "raises") or not (
            old.args and new.args
        ):
            return False
        if not isinstance(old.func, ast.Attribute) or not isinstance(new.func, ast.Name):
            return False
        if {k.arg for k in old.keywords} - {"match"} or len(old.args) != 1:
            return False
        self._node(old.args[0], new.args[0], s, t)
        return True

    def _constant(self, old: ast.Constant, new: ast.Constant, s: Scope, t: Scope) -> None:
        a, b = old.value, new.value
        if type(a) is type(b) and (a == b or repr(a) == repr(b)):
            return
        if isinstance(a, str) and isinstance(b, str):
            if _DOTTED.fullmatch(a) and _DOTTED.fullmatch(b) and ("." in a or ":" in a):
                if self.renames.is_dotted(a, b):
                    self.renamed += 1
                    return
            elif "import " in a and "import " in b and self._code(a, b, s, t, "exec"):
                return
        self._report("another constant", repr(a), repr(b))

    def _code(self, old: str, new: str, s: Scope, t: Scope, mode: str) -> bool:
        """Compare two texts that contain code: annotations, or programs of another process."""
        try:
            a, b = ast.parse(old, mode=mode), ast.parse(new, mode=mode)
        except SyntaxError:
            if mode == "eval":
                self._report("another annotation", old, new)
            return False
        if isinstance(a, ast.Expression) and isinstance(b, ast.Expression):
            self._node(a.body, b.body, s, t)
            return True
        assert isinstance(a, ast.Module) and isinstance(b, ast.Module)
        path = ".".join(s.path)
        inner = TreeComparison(a, b, (path, path), self.context)
        for d in inner.differences:
            self._report(f"in a text, {d.what}", d.old, d.new)
        self.renamed += inner.renamed
        return True

    def _joined(self, old: ast.JoinedStr, new: ast.JoinedStr, s: Scope, t: Scope) -> None:
        if len(old.values) != len(new.values):
            self._report("another text", old, new)
            return
        texts = ["".join(_piece(i, v) for i, v in enumerate(x.values)) for x in (old, new)]
        if (
            "import " in texts[0]
            and texts[0] != texts[1]
            and self._code(texts[0], texts[1], s, t, "exec")
        ):
            values = [[v for v in x.values if not _is_constant_text(v)] for x in (old, new)]
            self._children(values[0], values[1], s, t)
            return
        for a, b in zip(old.values, new.values, strict=True):
            same = type(a) is type(b) and isinstance(a, ast.Constant)
            if same and self.renames.map_module(a.value.strip(".")) == b.value.strip("."):  # type: ignore[attr-defined]
                continue
            self._node(a, b, s, t)


def _piece(index: int, value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else f"_value_{index}"


def _parent_text(node: ast.AST, value: object) -> object:
    return node if isinstance(node, ast.expr) else value


def _without_annotation(node: ast.AnnAssign) -> ast.AnnAssign:
    nothing = ast.Constant(value=None)
    return ast.AnnAssign(
        target=node.target, annotation=nothing, value=node.value, simple=node.simple
    )


def _without_value(node: Any) -> Any:
    nothing = ast.Constant(value=None)
    if isinstance(node, ast.Assign):
        return ast.Assign(targets=node.targets, value=nothing)
    if isinstance(node, ast.AnnAssign):
        return ast.AnnAssign(
            target=node.target, annotation=node.annotation, value=nothing, simple=node.simple
        )
    return ast.AugAssign(target=node.target, op=node.op, value=nothing)

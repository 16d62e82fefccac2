"""The comparison of two versions finds every change except allowed renames and texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rename_map import RenameMap
from tests.same_code import compare_versions

PATH = "protocols/ring/sample.py"
USER = "tests/protocols/test_sample.py"

_CODE = '''
"""Of things."""
import math
from tfe_bench.errors import UsageError, check_range
from tfe_bench.protocols.ring import other
from tfe_bench.protocols.session.local import found

__all__ = ["Made", "moved"]
LIMIT = 3

class Made:
    """What is made."""
    two: int = 2

    def under(self, x: "Made", *, scale=1) -> "list[Made]":
        """Of both."""
        said = f"It is {x.two} of."
        if not x.two < self.two:
            raise UsageError(said)
        if x.two != scale:
            raise UsageError(f"A {x} stumbles over {scale}.", position=x.two)
        check_range("A scale", scale, 0, 10)
        return [x, self]

@math.cache
def moved(x, ring, times=2):
    """x + c, moved."""
    # a comment that nobody knows
    own = x + ring
    other.write("sort", own, ring)
    given = [found(own - i) for i in range(times)]
    assert given, "There is none."
    return given and Made().under(own, scale=ring).two
'''
_ERRORS = """
class UsageError(Exception):
    pass

def check_range(what, value, low, high):
    if not low <= value <= high:
        raise UsageError(f"{what} is {low} to {high}.")
"""
_USER = '''
"""Tests."""
import pytest
from tfe_bench.protocols.ring import sample
from tfe_bench.protocols.ring.sample import Made, moved

CODE = "from tfe_bench.protocols.ring.sample import moved\\nprint(moved(1, ring=2))"
NAME = "tfe_bench.protocols.session.local:found"

@pytest.mark.parametrize("x", [1, 2])
def test_one(x, monkeypatch):
    monkeypatch.setattr(sample, "moved", None)
    assert sample.moved(x, ring=1) == 2
    with pytest.raises(ValueError, match="a text"):
        Made().under(x)

def test_two():
    assert moved(1, ring=2)
'''
_MAP = """
# renames
protocols.ring.sample.Made -> LocalProduct
protocols.ring.sample.Made.two -> bilinear
protocols.ring.sample.*.under -> from_masked
protocols.ring.sample.Made.under(said) -> message
protocols.ring.sample.moved -> add_constant      # function
protocols.ring.sample.moved(ring) -> constant
protocols.ring.sample.moved(own) -> total
protocols.session.local.found -> find_rows
module protocols.session.local -> protocols.session.tensor_ops
"""
_RENAMES = (
    ("Made", "LocalProduct"),
    (".two", ".bilinear"),
    ("    two:", "    bilinear:"),
    ("under", "from_masked"),
    ("said", "message"),
    ("moved", "add_constant"),
    ("ring, times", "constant, times"),
    ("x + ring", "x + constant"),
    ("own, ring", "own, constant"),
    ("scale=ring", "scale=constant"),
    ("ring=", "constant="),
    ("own", "total"),
    ("session.local", "session.tensor_ops"),
    ("found", "find_rows"),
)


def _renamed(text: str) -> str:
    for old, new in _RENAMES:
        text = text.replace(old, new)
    return text


def _read_map(folder: Path, text: str = _MAP) -> RenameMap:
    path = folder / "map.txt"
    path.write_text(text)
    return RenameMap.read([path])


def _differences(
    old: dict[str, str], new: dict[str, str], renames: RenameMap, is_tests: bool = False
) -> list[str]:
    base, head = ({**x, "tfe_bench/errors.py": _ERRORS} for x in (old, new))
    differences, _ = compare_versions(base, head, renames, is_tests)
    return [str(d) for entries in differences.values() for d in entries]


def test_renames_of_the_map_are_equal(tmp_path: Path) -> None:
    old = {PATH: _CODE, USER: _USER, "protocols/session/local.py": "def found(): pass"}
    new = {
        PATH: _renamed(_CODE),
        USER: _renamed(_USER),
        "protocols/session/tensor_ops.py": "def find_rows(): pass",
    }
    assert "two" not in new[PATH] and "find_rows" in new[USER]
    assert _differences(old, new, _read_map(tmp_path)) == []


def test_each_rename_needs_its_line_of_the_map(tmp_path: Path) -> None:
    old = {PATH: _CODE, USER: _USER, "protocols/session/local.py": "def found(): pass"}
    new = {
        PATH: _renamed(_CODE),
        USER: _renamed(_USER),
        "protocols/session/tensor_ops.py": "def find_rows(): pass",
    }
    lines = [line for line in _MAP.splitlines() if "->" in line]
    for line in lines:
        renames = _read_map(tmp_path, "\n".join(x for x in lines if x != line))
        assert _differences(old, new, renames), line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Of things.", "A noun phrase."),
        ("    # a comment that nobody knows\n", ""),
        ("stumbles over {scale}", "does not fit"),
        ('f"A {x} stumbles over {scale}."', "\"Expected a scale.\", code='x', received=scale"),
        ('f"It is {x.two} of."', 'f"Received: {x.two!r}." + " Use fewer."'),
        ("There is none.", "Expected a value."),
        ('"A scale"', '"The scale"'),
        (
            "import math\nfrom tfe_bench.errors import UsageError, check_range\n",
            "from tfe_bench.errors import check_range, UsageError\nimport math\n",
        ),
        ('["Made", "moved"]', '["moved", "Made"]'),
        ('        """Of both."""\n', ""),
    ],
)
def test_texts_comments_and_the_order_of_imports_may_change(old: str, new: str) -> None:
    assert old in _CODE
    assert _differences({PATH: _CODE}, {PATH: _CODE.replace(old, new)}, RenameMap()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("own, ring)\n    given", "ring, own)\n    given"),
        ("x + ring", "ring + x"),
        ('    other.write("sort", own, ring)\n', ""),
        ('"sort"', '"order"'),
        ("x + ring", "x - ring"),
        ("x.two < self", "x.two <= self"),
        ("if not x.two", "if x.two"),
        ("times=2", "times=3"),
        ("times=2", "times"),
        ("scale=1", "scale=None"),
        ("*, scale", "scale"),
        ("@math.cache\n", ""),
        ("math.cache", "math.other"),
        ("two: int", "two: float"),
        ('"list[Made]"', '"set[Made]"'),
        ("    two: int = 2\n", ""),
        ("self.two", "x.two"),
        (" for i in range", " for j in range"),
        ("import math\n", "import math\nimport sys\n"),
        ("import other", "import others as other"),
        ("position=x.two", "position=self.two"),
        ("raise UsageError(said)", "raise ValueError(said)"),
        ("raise UsageError(said)", "raise UsageError(said) from None"),
        ("stumbles over {scale}", "stumbles over {open(scale)}"),
        ("stumbles over {scale}", "stumbles over {(own := scale)}"),
        ('check_range("A scale", scale, 0, 10)', 'check_range("A scale", scale, 0, 11)'),
        ("given and Made", "given or Made"),
        ("return [x, self]", "return (x, self)"),
        ("own", "total"),
        ("moved", "shifted"),
        (".two", ".three"),
        ("given", "ring"),
        ('["Made", "moved"]', '["Made"]'),
        ("found(own - i)", "found(own)"),
        ("LIMIT = 3", "LIMIT = True"),
        ("LIMIT = 3", "LIMIT = 3.0"),
        ("class Made:", "class Made(dict):"),
    ],
)
def test_every_other_change_is_found(old: str, new: str) -> None:
    changed = _CODE.replace(old, new)
    assert changed != _CODE
    assert _differences({PATH: _CODE}, {PATH: changed}, RenameMap())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('match="a text"', 'match="another"'),
        ("== 2", "== 3"),
        ("\n\ndef test_two():\n    assert moved(1, ring=2)\n", "\n"),
        ('print(moved(1, ring=2))"', 'print(moved(2, ring=2))"'),
        ("local:found", "local:lost"),
        ('"moved", None', '"removed", None'),
        ('"x", [1, 2]', '"x", [1]'),
        ("pytest.raises(ValueError", "pytest.raises(KeyError"),
    ],
)
def test_changes_of_tests_are_found(old: str, new: str) -> None:
    changed = _USER.replace(old, new)
    assert changed != _USER
    assert _differences({USER: _USER}, {USER: changed}, RenameMap())


@pytest.mark.parametrize("name", ["ring", "x", "given", "other", "found"])
def test_a_renamed_local_captures_no_other_name(name: str, tmp_path: Path) -> None:
    renames = _read_map(tmp_path, f"protocols.ring.sample.moved(own) -> {name}")
    changed = _CODE.replace("own", name)
    assert _differences({PATH: _CODE}, {PATH: changed}, renames)


def test_a_local_of_one_function_is_not_renamed_in_another(tmp_path: Path) -> None:
    old = "def f(x):\n    return x\n\ndef g(x):\n    return x\n"
    new = old.replace("x", "value")
    both = _read_map(tmp_path, "protocols.ring.sample.*(x) -> value")
    assert _differences({PATH: old}, {PATH: new}, both) == []
    one = _read_map(tmp_path, "protocols.ring.sample.f(x) -> value")
    assert len(_differences({PATH: old}, {PATH: new}, one)) == 1


def test_a_use_is_not_renamed_alone(tmp_path: Path) -> None:
    old = "def f(x, y):\n    z = x + y\n    return z\n"
    renames = _read_map(tmp_path, "protocols.ring.sample.f(x) -> y\n*.f(z) -> w")
    assert _differences({PATH: old}, {PATH: old.replace("x + y", "y + y")}, renames)
    assert _differences({PATH: old}, {PATH: old.replace("return z", "return w")}, renames)


def test_a_comprehension_keeps_its_scope() -> None:
    old = "def f(rows):\n    row = 1\n    return [row for row in rows], row\n"
    assert _differences({PATH: old}, {PATH: old.replace("[row for", "[rows for")}, RenameMap())


def test_refusals_by_code_are_equal_only_in_tests() -> None:
    new = _USER.replace('pytest.raises(ValueError, match="a text")', 'raises(ValueError, "code")')
    new = new.replace("import pytest\n", "import pytest\nfrom tests.refusals import raises\n")
    assert _differences({USER: _USER}, {USER: new}, RenameMap(), is_tests=True) == []
    assert _differences({USER: _USER}, {USER: new}, RenameMap())
    other = new.replace("raises(ValueError", "raises(KeyError")
    assert _differences({USER: _USER}, {USER: other}, RenameMap(), is_tests=True)


def test_new_and_missing_files_are_found() -> None:
    assert _differences({PATH: _CODE}, {}, RenameMap())
    assert _differences({}, {PATH: _CODE}, RenameMap())


def test_lines_that_are_no_renames_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a rename"):
        _read_map(tmp_path, "protocols.ring.sample.Made LocalProduct")


def test_a_module_may_still_have_its_old_name(tmp_path: Path) -> None:
    old = {PATH: _CODE, "protocols/session/local.py": "def found(): pass"}
    new = {**old, PATH: _CODE.replace("found", "find_rows")}
    new["protocols/session/local.py"] = "def find_rows(): pass"
    assert _differences(old, new, _read_map(tmp_path)) == []
    assert _differences(old, {**new, "protocols/session/local.py": "pass"}, _read_map(tmp_path))

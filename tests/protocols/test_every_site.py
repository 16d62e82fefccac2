"""Every protocol that sends has a joint view test."""

from __future__ import annotations

import ast
from pathlib import Path

import tfe_bench
from tests.protocols.catalogue import JOINT

# These programs measure links: their messages are public.
MEASURING = {"channel.py", "links.py"}
Function = ast.FunctionDef


def sites_of_the_package() -> set[str]:
    """Return the names passed to `Party.site`, also by way of parameters."""
    root = Path(tfe_bench.__file__).parent
    calls: dict[str, list[tuple[Function | None, ast.Call]]] = {}

    def walk(node: ast.AST, inside: Function | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                name = getattr(child.func, "attr", getattr(child.func, "id", ""))
                calls.setdefault(name, []).append((inside, child))
            walk(child, child if isinstance(child, Function) else inside)

    for folder in ("protocols", "models", "benchmarks", "cluster", "tfe_bench"):
        for path in (root / folder).rglob("*.py"):
            if path.name not in MEASURING:
                walk(ast.parse(path.read_text()), None)
    sites: set[str] = set()
    searched: set[tuple[str, int]] = set()

    def ask(name: str, position: int) -> None:
        """Add the strings that calls of a function have at a position."""
        if (name, position) in searched:
            return
        searched.add((name, position))
        for inside, call in calls.get(name, []):
            argument = call.args[position] if position < len(call.args) else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                sites.add(argument.value)
            elif isinstance(argument, ast.Name) and inside is not None:
                bound = int(inside.args.args[0].arg in ("self", "cls")) if inside.args.args else 0
                for at, parameter in enumerate(inside.args.args):
                    kind = parameter.annotation and ast.unparse(parameter.annotation)
                    if parameter.arg == argument.id and "str" in (kind or "str"):
                        ask(inside.name, at - bound)
                for node in ast.walk(inside):
                    targets = node.targets if isinstance(node, ast.Assign) else []
                    if any(isinstance(n, ast.Name) and n.id == argument.id for n in targets):
                        strings = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
                        sites.update(s for s in strings if isinstance(s, str))

    ask("site", 0)
    ask("Slope", 0)  # which stores the name of its site
    return sites


def test_every_site_has_a_joint_view_test() -> None:
    """Require an entry of the catalogue that names the sites of each new protocol."""
    sites = sites_of_the_package()
    assert {"mul", "conv2d", "logistic", "squares", "mantissa"} <= sites  # they are parameters
    assert sites == {site for entry in JOINT.values() for site in entry.sites}
    assert sites == {site for entry in JOINT.values() if not entry.slow for site in entry.sites}

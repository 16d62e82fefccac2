"""Entry points: objects that packages register by name, such as programs and commands.

tfe_bench registers its own in pyproject.toml, in the groups that other packages use, too.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TypeVar

import tfe_bench
from tfe_bench.errors import ConfigError

T = TypeVar("T")


def is_own(point: EntryPoint) -> bool:
    """Return True if tfe_bench itself registers an entry point."""
    return point.value.startswith(f"{tfe_bench.__name__}.")


def list_packages_entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points in the metadata of installed packages; a name may be there twice."""
    return list(_read_metadata(group, tuple(sys.path)))


@functools.lru_cache(maxsize=32)
def _read_metadata(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of packages on a path; cached, as every job needs them."""
    return tuple(dict.fromkeys(importlib.metadata.entry_points(group=group)))


@functools.cache
def list_checkout_entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points in this checkout's pyproject.toml; empty outside of one."""
    try:
        text = (Path(tfe_bench.__file__).resolve().parents[1] / "pyproject.toml").read_text()
        project = tomllib.loads(text)["project"]
        if project["name"] != "tfe-bench":  # another project that contains a copy
            return ()
        listed = project["entry-points"][group]
    except (OSError, ValueError, KeyError):
        return ()
    return tuple(EntryPoint(name, value, group) for name, value in listed.items())


def list_entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; those of tfe_bench precede others."""
    packages = sorted(list_packages_entry_points(group), key=is_own)
    points = {point.name: point for point in packages}
    # (the metadata of an installation can be older than its checkout)
    return points | {point.name: point for point in list_checkout_entry_points(group)}


def load_entry_point(point: EntryPoint, kind: type[T]) -> T:
    """Import the object of an entry point, which has a class.

    Raises:
        ConfigError: its package is broken, or the object has another class.
    """
    subject = f"{point.value!r}, the entry point {point.name!r} of {point.group}"
    try:
        loaded = point.load()
    except Exception as error:  # another package may raise anything during its import
        raise ConfigError(
            f"Cannot load {subject}: {type(error).__name__}: {error}. Repair or uninstall the "
            "package.",
            code="extension-not-loadable",
            operation=point.name,
        ) from error
    if not isinstance(loaded, kind):
        raise ConfigError(
            f"Expected a {kind.__name__} as {subject}. Received: {type(loaded).__name__}.",
            code="extension-not-loadable",
            operation=point.name,
            received=type(loaded).__name__,
        )
    return loaded

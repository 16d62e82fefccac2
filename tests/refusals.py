"""Expect an error by its class, code and fields instead of its prose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from tfe_bench.errors import TfeBenchError

E = TypeVar("E", bound=TfeBenchError)


@contextlib.contextmanager
def raises(kind: type[E], *codes: str, **fields: Any) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect one error of a class.

    Args:
        kind: the class of the error, or a base class.
        codes: the accepted codes, at least one.
        fields: the expected values of `operation`, `received`, `expected` or `party`.
    """
    assert codes, "name the code that is expected"
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert error.code in codes, f"expected {codes}, received {error.code!r}: {error}"
    actual = {name: getattr(error, name) for name in fields}
    assert actual == fields, f"{actual}: {error}"

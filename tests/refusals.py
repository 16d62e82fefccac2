"""Expect an error by its class, code and fields instead of its prose."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pytest

from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.errors import PolicyError, TfeBenchError

E = TypeVar("E", bound=TfeBenchError)


class Matching:
    """Equal to each value whose text contains a match of a pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def __eq__(self, other: object) -> bool:
        return self._pattern.search(str(other)) is not None

    def __repr__(self) -> str:
        return f"Matching({self._pattern.pattern!r})"


def refuses(kind: type[Exception], words: str) -> contextlib.AbstractContextManager[Any]:
    """Expect an error of this project by its code, another exception by its text."""
    if issubclass(kind, TfeBenchError):
        return raises(kind, words)
    return pytest.raises(kind, match=words)


@contextlib.contextmanager
def raises(
    kind: type[E] | tuple[type[E], ...], *codes: str, names: Sequence[str] = (), **fields: Any
) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect one error of a class.

    Args:
        kind: the class of the error, a base class, or several classes.
        codes: the accepted codes, at least one.
        names: facts that the text contains, such as a file, a line or an option.
        fields: the expected values of `operation`, `received`, `expected` or `party`.
    """
    assert codes, "name the code that is expected"
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert error.code in codes, f"expected {codes}, received {error.code!r}: {error}"
    assert all(name in str(error) for name in names), f"{error} names not all of {names}"
    actual = {name: getattr(error, name) for name in fields}
    assert actual == fields, f"{actual}: {error}"


def assert_memory_edges(needed: int) -> None:
    """Check that a job of some memory fits exactly that memory, and that one byte less is refused.

    Args:
        needed: bytes that the job's program declares.
    """
    policy = WorkerPolicy(0, max_memory_per_job=needed)
    policy.permit_memory(needed, available=3 * needed, sharing=3)
    with raises(PolicyError, "memory-not-available", names=("3 workers",)):
        policy.permit_memory(needed, available=3 * needed - 1, sharing=3)
    lower = WorkerPolicy(0, max_memory_per_job=needed - 1)
    with raises(PolicyError, "too-large", operation="a job of this memory"):
        lower.permit_memory(needed, available=1 << 60, sharing=1)

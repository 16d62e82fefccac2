"""The compiled library is refused where its products are wrong."""

from __future__ import annotations

import pytest

from tests.refusals import raises
from tfe_bench.errors import OpsMissing
from tfe_bench.protocols.session import ops


def test_the_library_multiplies_rightly_here() -> None:
    assert ops.native().wrong_isa() is None


@pytest.mark.parametrize(("isa", "remedy"), [("amx", "TFE_BENCH_ISA=ifma"), ("avx2", "host")])
def test_a_processor_that_multiplies_wrongly_is_refused(
    isa: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WrongNative(ops.Native):
        def __init__(self, path: object) -> None:
            super().__init__(ops.compiled_ops_library_path())
            self.wrong_isa = isa.encode

    monkeypatch.setattr(ops, "Native", WrongNative)
    with raises(OpsMissing, "processor-not-supported") as caught:
        ops.module.__wrapped__()
    assert isa in str(caught.value) and remedy in str(caught.value)

"""Compile and run the core's own tests, without TensorFlow or Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import compiled
from tests.paths import ROOT

CORE = ROOT / "protocols" / "kernels" / "core"
TESTS = sorted(Path(__file__).parent.glob("*_test.cc"))
PRODUCTS = ("conv_test", "gemm_test")
AVX2 = ["-mavx2", "-mbmi2", "-mfma", "-maes"]
FLAGS = {
    "_aesni": ["-maes", "-mssse3", "-msse4.1"],
    "_avx2": AVX2,
    "_avx512": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mvaes"],
    "_ifma": [*AVX2, "-mavx512f", "-mavx512vl", "-mavx512ifma", "-mavx512vnni"],
    "_amx": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vbmi"],
}


@pytest.fixture(scope="module")
def core() -> list[Path]:
    return compiled.compile_sources("core", sorted(CORE.glob("*.cc")), _list_flags)


def _list_flags(source: Path) -> list[str]:
    flags = next((f for suffix, f in FLAGS.items() if source.stem.endswith(suffix)), [])
    return ["-O2", "-std=c++17", "-Wall", "-Wno-psabi", f"-I{ROOT}", *flags]


@pytest.fixture(scope="module")
def programs(core: list[Path]) -> dict[Path, Path]:
    """Return the program of each test."""
    objects = compiled.compile_sources("core", TESTS, _list_flags)
    return {
        test: compiled.link_objects(test.stem, [own, *core], ["-pthread"])
        for test, own in zip(TESTS, objects, strict=True)
    }


# Only products distinguish the instructions between.
RUNS = [(test, isa) for test in TESTS for isa in ("native", "avx2")] + [
    (test, isa) for test in TESTS if test.stem in PRODUCTS for isa in ("avx512", "ifma")
]


@pytest.mark.parametrize(("test", "isa"), RUNS, ids=[f"{t.stem}-{isa}" for t, isa in RUNS])
def test_core(test: Path, isa: str, programs: dict[Path, Path]) -> None:
    environment = dict(os.environ)
    if isa != "native":
        environment["TFE_BENCH_ISA"] = isa
    done = subprocess.run(
        [programs[test]], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout


def test_core_includes_no_tensorflow() -> None:
    for path in CORE.iterdir():
        assert "tensorflow" not in path.read_text().replace("TensorFlow", "").replace(
            "tensorflow::", "?"
        ), path


def test_files_for_one_instruction_set_include_no_templates() -> None:
    allowed = {"<immintrin.h>", "<cstdint>", "<cstddef>", "<cstring>"}
    for path in CORE.glob("*_av*.cc"):
        for line in path.read_text().splitlines():
            if line.startswith("#include <"):
                assert line.split()[1] in allowed, (path.name, line)

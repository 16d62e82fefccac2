"""Compile and run the core's own tests, without TensorFlow or Python."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "protocols" / "kernels" / "core"
TESTS = sorted(Path(__file__).parent.glob("*_test.cc"))
AVX2 = ["-mavx2", "-mbmi2", "-mfma", "-maes"]
FLAGS = {
    "_aesni": ["-maes", "-mssse3", "-msse4.1"],
    "_avx2": AVX2,
    "_avx512": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mvaes"],
}


def _compile_test(source: Path, target: Path) -> Path:
    flags = next((f for suffix, f in FLAGS.items() if source.stem.endswith(suffix)), [])
    command = ["g++", "-O2", "-std=c++17", "-Wall", "-Wno-psabi", f"-I{ROOT}", *flags]
    subprocess.run([*command, "-c", str(source), "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("core")
    sources = sorted(CORE.glob("*.cc"))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = pool.map(lambda s: _compile_test(s, folder / f"{s.stem}.o"), sources)
    return [str(o) for o in objects]


@pytest.mark.parametrize("isa", ["native", "avx2"])
@pytest.mark.parametrize("test", TESTS, ids=lambda p: p.stem)
def test_core(test: Path, isa: str, core: list[str], tmp_path: Path) -> None:
    program = core[0].rsplit("/", 1)[0] + f"/{test.stem}"
    if not Path(program).exists():
        compiled = _compile_test(test, tmp_path / "test.o")
        subprocess.run(["g++", "-o", program, str(compiled), *core, "-pthread"], check=True)
    environment = dict(os.environ)
    if isa != "native":
        environment["TFE_BENCH_ISA"] = isa
    done = subprocess.run(
        [program], env=environment, capture_output=True, text=True, timeout=300, check=False
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

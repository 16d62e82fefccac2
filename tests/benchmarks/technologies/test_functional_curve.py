"""The compiled group against RFC 8032, RFC 9496, libsodium and plain Python, and its edges."""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import compiled
from tests.benchmarks.technologies import ristretto
from tests.paths import ROOT
from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.benchmarks.technologies.functional import curve, curve_build, curve_library
from tfe_bench.benchmarks.technologies.functional.curve import ORDER, Bytes, Rows, Table
from tfe_bench.errors import DataError, OpsMissing, RangeError, TfeBenchError, UsageError

KERNELS = ROOT / "benchmarks" / "technologies" / "functional" / "kernels"
IFMA = ["-mavx2", "-mavx512f", "-mavx512vl", "-mavx512ifma"]
EDGES = (0, 1, 2, ORDER - 1, ORDER, ORDER + 1, 2 * ORDER, 2**252, 2**253 - 1, 2**255, 2**256 - 1)


def _split_lines(text: str) -> list[str]:
    return text.split()


# RFC 9496, appendix A.1: encodings of 0 to 15 times the base point.
MULTIPLES = _split_lines(
    """
0000000000000000000000000000000000000000000000000000000000000000
e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76
6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919
94741f5d5d52755ece4f23f044ee27d5d1ea1e2bd196b462166b16152a9d0259
da80862773358b466ffadfe0b3293ab3d9fd53c5ea6c955358f568322daf6a57
e882b131016b52c1d3337080187cf768423efccbb517bb495ab812c4160ff44e
f64746d3c92b13050ed8d80236a7f0007c3b3f962f5ba793d19a601ebb1df403
44f53520926ec81fbd5a387845beb7df85a96a24ece18738bdcfa6a7822a176d
903293d8f2287ebe10e2374dc1a53e0bc887e592699f02d077d5263cdd55601c
02622ace8f7303a31cafc63f8fc48fdc16e1c8c8d234b2f0d6685282a9076031
20706fd788b2720a1ed2a5dad4952b01f413bcf0e7564de8cdc816689e2db95f
bce83f8ba5dd2fa572864c24ba1810f9522bc6004afe95877ac73241cafdab42
e4549ee16b9aa03099ca208c67adafcafa4c3f3e4e5303de6026e3ca8ff84460
aa52e000df2e16f55fb1032fc33bc42742dad6bd5a8fc0be0167436c5948501f
46376b80f409b29dc2b5f6f0c52591990896e5716f41477cd30085ab7f10301e
e0c418f7c8d9c4cdd7395b93ea124f3ad99021bb681dfc3302a9d99a2e53e64e
"""
)

# RFC 9496, appendix A.2: not canonical, negative, not on the curve, of a low order, or s = -1.
MALFORMED = _split_lines(
    """
00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff
ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f
f3ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f
edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f
0100000000000000000000000000000000000000000000000000000000000000
01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f
ed57ffd8c914fb201471d1c3d245ce3c746fcbe63a3679d51b6a516ebebe0e20
c34c4e1826e5d403b78e246e88aa051c36ccf0aafebffe137d148a2bf9104562
c940e5a4404157cfb1628b108db051a8d439e1a421394ec4ebccb9ec92a8ac78
47cfc5497c53dc8e61c91d17fd626ffb1c49e2bca94eed052281b510b1117a24
f1c6165d33367351b0da8f6e4511010c68174a03b6581212c71c0e1d026c3c72
87260f7a2f12495118360f02c26a470f450dadf34a413d21042b43b9d93e1309
26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371
4eac077a713c57b4f4397629a4145982c661f48044dd3f96427d40b147d9742f
de6a7b00deadc788eb6b6c8d20c0ae96c2f2019078fa604fee5b87d6e989ad87
bcab477be20861e01e4a0e295284146a510150d9817763caf1a6f4b422d67042
2a292df7e32cababbd9de088d1d1abec9fc0440f637ed2fba145094dc14bea08
f4a9e534fc0d216c44b218fa0c42d99635a0127ee2e53c712f70609649fdff22
8268436f8c4126196cf64b3c7ddbda90746a378625f9813dd9b8457077256731
2810e5cbc2cc4d4eece54f61c6f69758e289aa7ab440b3cbeaa21995c2f4232b
3eb858e78f5a7254d8c9731174a94f76755fd3941c0ac93735c07ba14579630e
a45fdc55c76448c049a1ab33f17023edfb2be3581e9c7aade8a6125215e04220
d483fe813c6ba647ebbfd3ec41adca1c6130c2beeee9d9bf065c8d151c5f396e
8a2e1d30050198c65a54483123960ccc38aef6848e1ec8f5f780e8523769ba32
32888462f8b486c68ad7dd9610be5192bbeaf3b443951ac1a8118419d9fa097b
227142501b9d4355ccba290404bde41575b037693cef1f438c47f8fbf35d1165
5c37cc491da847cfeb9281d407efc41e15144c876e0170b499a96a22ed31e01e
445425117cb8c90edcbc7c1cc0e74f747f2c1efa5630a967c64f287792a48a4b
ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f
"""
)

# RFC 8032, section 7.1, tests 1 to 3: secret and public key.
SIGNING = (
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
    ),
)


def encode_scalars(values: Any) -> Bytes:
    return np.stack([np.frombuffer(v.to_bytes(32, "little"), np.uint8) for v in values])


def decode_numbers(encoded: Bytes) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in encoded]


def points_of(logarithms: Any) -> curve.Words:
    """Return points in the form of `evaluate`: sums of one column that holds the base point."""
    rows = Rows.from_dense(np.array(logarithms, np.int64)[:, None])
    one = curve.decode_curve_elements(curve.multiply_base(encode_scalars([1])))
    return curve.evaluate_key_rows(one, np.empty((0, len(rows), 32), np.uint8), rows)


def test_multiples_of_the_base_point_are_those_of_rfc_9496() -> None:
    result = curve.multiply_base(encode_scalars(range(16)))
    assert [row.tobytes().hex() for row in result] == MULTIPLES
    assert (curve.encode_curve_elements(points_of(range(16))) == result).all()


@pytest.mark.parametrize(("secret", "public"), SIGNING)
def test_public_keys_are_those_of_rfc_8032(secret: str, public: str) -> None:
    import hashlib

    k = bytearray(hashlib.sha512(bytes.fromhex(secret)).digest()[:32])
    k[0] &= 248
    k[31] = k[31] & 127 | 64
    assert curve.encode_edwards(np.frombuffer(bytes(k), np.uint8)).hex() == public


@pytest.mark.parametrize("encoded", MALFORMED)
def test_what_encodes_no_element_is_refused_by_its_place(encoded: str) -> None:
    encodings = curve.multiply_base(encode_scalars([5, 6, 7]))
    encodings[1] = np.frombuffer(bytes.fromhex(encoded), np.uint8)
    for read in (curve.decode_curve_elements, curve.build_combs):
        with raises(DataError, "invalid-group-element", operation="A thing", received="element 1"):
            read(encodings, "A thing")


def test_edge_numbers_multiply_as_in_plain_python_and_libsodium(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    values = [*EDGES, *(int.from_bytes(drawn.bytes(32), "little") for _ in range(20))]
    result = curve.multiply_base(encode_scalars(values))
    for value, row in zip(values, result, strict=True):
        assert row.tobytes() == ristretto.multiply_point(value % ORDER).encoded(), value
        assert ristretto.decode_element(row.tobytes()).encoded() == row.tobytes()
    rbcl = pytest.importorskip("rbcl")
    for value, row in zip(values, result, strict=True):
        due = rbcl.crypto_scalarmult_ristretto255_base_allow_scalar_zero(
            (value % ORDER).to_bytes(32, "little")
        )
        assert row.tobytes() == due


def test_arithmetic_modulo_the_order(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    wide = [0, 1, ORDER, ORDER**2, 2**512 - 1, 2**512 - ORDER, 2**256, 2**504]
    wide += [int.from_bytes(drawn.bytes(64), "little") for _ in range(200)]
    encoded = np.stack([np.frombuffer(w.to_bytes(64, "little"), np.uint8) for w in wide])
    assert decode_numbers(curve.reduce_scalars(encoded)) == [w % ORDER for w in wide]
    for a in EDGES:
        for b in EDGES:
            result = curve.multiply_add(
                encode_scalars([a]), encode_scalars([b]), encode_scalars([a])
            )
            assert decode_numbers(result) == [(a * b + a) % ORDER], (a, b)
    assert curve.are_reduced(encode_scalars([0, ORDER - 1]))
    for beyond in (ORDER, 2**256 - 1):
        assert not curve.are_reduced(encode_scalars([beyond]))


@pytest.mark.parametrize("length", [1, 2, 1023, 1024])
def test_inner_products_with_secret_numbers(length: int, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    secret = curve.random_scalars(length)
    secret[0] = encode_scalars([ORDER - 1])[0]
    weights = drawn.integers(-(2**31) + 1, 2**31, (3, length))
    weights[1], weights[2] = 0, -(2**31) + 1
    result = decode_numbers(curve.scalar_inner_products(secret, Rows.from_dense(weights)))
    values = decode_numbers(secret)
    due = [sum(int(w) * s for w, s in zip(row, values, strict=True)) % ORDER for row in weights]
    assert result == due
    with raises(UsageError, "scalar-not-reduced"):
        curve.scalar_inner_products(np.full((length, 32), 255, np.uint8), Rows.from_dense(weights))


@pytest.mark.parametrize("bits", [1, 3, 4, 7, 8, 15, 31])
def test_encryption_is_twice_the_number_times_the_point_and_the_message(bits: int) -> None:
    most = 2**bits - 1
    m = np.array([[0, 1, -1, most, -most, most // 2, -(most // 2)]])
    elements = curve.multiply_base(encode_scalars([3, 0, 1, ORDER - 1, 7, 11, 13]))
    for half in (0, 1, ORDER - 1, 12345):
        result = curve.encrypt_messages(
            curve.build_combs(elements), encode_scalars([half]), m, bits
        )[0]
        due = [
            (2 * half * k + int(x)) % ORDER
            for k, x in zip((3, 0, 1, ORDER - 1, 7, 11, 13), m[0], strict=True)
        ]
        assert (result == curve.multiply_base(encode_scalars(due))).all()
    for beyond in (most + 1, -most - 1):
        with raises(RangeError, "number-out-of-range", expected=f"below 2^{bits}"):
            curve.encrypt_messages(
                curve.build_combs(elements), encode_scalars([1]), np.full((1, 7), beyond), bits
            )


@pytest.mark.parametrize("log2", [4, 9, 10, 13])
def test_logarithms_are_found_up_to_both_ends_of_the_bound_and_not_beyond(log2: int) -> None:
    table = Table(log2)
    assert table.nbytes == 16 << log2
    steps = 1 << log2
    for bound in (0, 1, steps - 1, steps, steps + 1, 3 * steps + 1, 3 * steps + 2, 2500 * steps):
        inside = [0, bound, -bound, bound // 2, -(bound // 3)]
        for near in (steps, 2 * steps + 1, 513 * (2 * steps + 1)):
            inside += [x for x in (near - 1, -near, near + 1) if abs(x) <= bound]
        assert table.find_logarithms(points_of(inside), bound).tolist() == inside
        for beyond in (bound + 1, -bound - 1):
            with raises(
                RangeError,
                "logarithm-not-found",
                received="output 1",
                expected=f"{-bound} to {bound}",
            ) as caught:
                table.find_logarithms(points_of([0, beyond]), bound)
            assert "fits 1 of 2 outputs" in str(caught.value)


def test_every_step_of_a_table_is_there() -> None:
    table = Table(12)
    every = np.arange(-(1 << 12), (1 << 12) + 1)
    assert (table.find_logarithms(points_of(every), 1 << 12) == every).all()
    assert (table.find_logarithms(points_of(every), 1 << 12, threads=3) == every).all()


def test_many_and_single_targets_search_alike(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    table, bound = Table(8), 1 << 20
    due = drawn.integers(-bound, bound + 1, 700)
    assert (table.find_logarithms(points_of(due), bound) == due).all()
    for one in due[:3]:
        assert table.find_logarithms(points_of([one]), bound).tolist() == [one]


def test_an_element_of_another_logarithm_gives_an_error_and_no_value() -> None:
    encodings = curve.decode_curve_elements(curve.multiply_base(curve.random_scalars(1)))
    rows = Rows.from_dense(np.array([[1]]))
    point = curve.evaluate_key_rows(encodings, np.empty((0, 1, 32), np.uint8), rows)
    with raises(RangeError, "logarithm-not-found", expected="-1000000 to 1000000"):
        Table(10).find_logarithms(point, 1_000_000)
    with raises(RangeError, "logarithm-not-found", operation="walk"):
        curve.walk_logarithm(point[0], 1000)


def test_a_walk_finds_the_same() -> None:
    for m in (0, 5, -5, 300):
        assert curve.walk_logarithm(points_of([m])[0], 300) == m


@pytest.mark.parametrize("length", [1, 2, 25, 300])
@pytest.mark.parametrize("most", [1, 2, 3, 5, 127, 128, 255, 256, 70000, 2**31 - 1])
def test_products_of_public_numbers(length: int, most: int, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    weights = drawn.integers(-most, most + 1, (4, length))
    weights[0], weights[1], weights[2] = 0, most, -most
    k = [int(v) for v in drawn.integers(1, 2**40, length)]
    points = curve.decode_curve_elements(curve.multiply_base(encode_scalars(k)))
    result = curve.encode_curve_elements(
        curve.evaluate_key_rows(points, np.empty((0, 4, 32), np.uint8), Rows.from_dense(weights))
    )
    due = [sum(int(w) * v for w, v in zip(row, k, strict=True)) % ORDER for row in weights]
    assert (result == curve.multiply_base(encode_scalars(due))).all()


def test_products_of_many_sparse_rows_share_multiples(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    weights = drawn.integers(-128, 129, (400, 40)) * (drawn.random((400, 40)) < 0.3)
    k = [int(v) for v in drawn.integers(1, 2**40, 41)]
    points = curve.decode_curve_elements(curve.multiply_base(encode_scalars(k)))
    keys = curve.random_scalars(400)
    keys[:2] = encode_scalars([0, ORDER - 1])
    for threads in (1, 3):
        result = curve.encode_curve_elements(
            curve.evaluate_key_rows(points, keys[None], Rows.from_dense(weights), threads)
        )
        due = [
            (sum(int(w) * v for w, v in zip(row, k[1:], strict=True)) - key * k[0]) % ORDER
            for row, key in zip(weights, decode_numbers(keys), strict=True)
        ]
        assert (result == curve.multiply_base(encode_scalars(due))).all()


@pytest.mark.parametrize(
    ("call", "code", "fields"),
    [
        (
            lambda: curve.multiply_base(np.zeros((2, 31), np.uint8)),
            "invalid-array",
            {"received": "uint8 [2, 31]"},
        ),
        (
            lambda: curve.multiply_base(np.zeros((2, 32), np.int64)),
            "invalid-array",
            {"received": "int64 [2, 32]"},
        ),
        (
            lambda: curve.multiply_base(np.zeros((4, 64), np.uint8)[:, ::2]),
            "invalid-array",
            {"received": "uint8 [4, 32]"},
        ),
        (
            lambda: curve.encode_curve_elements(np.zeros((1, 15), np.uint64)),
            "invalid-array",
            {"received": "uint64 [1, 15]"},
        ),
        (lambda: Table(3), "number-out-of-range", {"operation": "--table-bits"}),
        (lambda: Table(29), "number-out-of-range", {"operation": "--table-bits"}),
        (
            lambda: Table(4).find_logarithms(points_of([1]), -1),
            "number-out-of-range",
            {"operation": "The bound of a logarithm"},
        ),
        (
            lambda: Table(4).find_logarithms(points_of([1]), 1 << 30),
            "too-large",
            {"operation": "bound"},
        ),
        (
            lambda: Rows.from_dense(np.array([[2**31]])),
            "number-out-of-range",
            {"operation": "values of rows"},
        ),
        (
            lambda: Rows.from_dense(np.array([[-(2**63)]])),
            "number-out-of-range",
            {"operation": "values of rows"},
        ),
        (
            lambda: Rows(np.array([0, 1]), np.array([4], np.int32), np.array([1]), 4),
            "index-out-of-range",
            {"operation": "columns"},
        ),
        (
            lambda: Rows(np.array([0, 2, 1]), np.array([0], np.int32), np.array([1]), 4),
            "invalid-rows",
            {},
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    call: Any, code: str, fields: dict[str, str]
) -> None:
    with raises(TfeBenchError, code, **fields) as caught:
        call()
    assert isinstance(caught.value, (UsageError, RangeError))


def test_a_library_that_is_none_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "wrong.so").write_bytes(b"no library")
    for name in ("wrong.so", "absent.so"):
        with raises(OpsMissing, "curve-not-loadable") as caught:
            curve_library.open_curve_library(tmp_path / name)
        assert "the next use compiles it" in str(caught.value)


def test_the_library_is_compiled_at_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache" / "tfe_bench"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    quick = tuple(flag.replace("-O3", "-O0") for flag in curve_build._FLAGS)
    monkeypatch.setattr(curve_build, "_FLAGS", quick)
    library = curve_build.find_curve_library()
    assert library.parent == cache and cache.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in cache.iterdir()] == [library.name]
    curve_library.open_curve_library(library)
    changed = library.stat().st_mtime_ns
    assert curve_build.find_curve_library() == library
    assert library.stat().st_mtime_ns == changed
    for compiler, words in (
        ("no-such-g++ -pipe", "'no-such-g++' cannot be run"),
        ("false", "with 1"),
    ):
        monkeypatch.setenv("CXX", compiler)
        with raises(OpsMissing, "curve-not-compiled") as caught:
            curve_build.find_curve_library()
        assert words in str(caught.value) and "Install g++" in str(caught.value)
    cache.chmod(0o770)
    with raises(OpsMissing, "curve-not-compiled") as caught:
        curve_build.find_curve_library()
    assert "chmod 700" in str(caught.value)


def test_a_command_without_a_compiler_states_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-g++")
    curve_library.load_curve_library.cache_clear()
    try:
        assert main(["functional", "--quick"]) == OpsMissing.exit_code
        error = capsys.readouterr().err
        assert error.startswith("tfe_bench: OpsMissing: ") and error.count("\n") == 1
        assert "Install g++ 12 or later" in error and "[curve-not-compiled]" in error
        assert main(["technologies", "--quick", "--job", "J1", "--only", "functional"]) == 0
        assert "not measured. The curve of functional encryption" in capsys.readouterr().out
    finally:
        curve_library.load_curve_library.cache_clear()


def _compile_kernels(name: str, flags: list[str], extra: tuple[Path, ...] = ()) -> Path:
    """Compile all kernels, each for its instruction set, and link them.

    Raises:
        subprocess.CalledProcessError: with the compiler's messages.
    """
    common = ["-O1", "-std=c++17", "-fPIC", f"-I{ROOT}", *flags]
    objects = compiled.compile_sources(
        name,
        sorted((*KERNELS.glob("*.cc"), *extra)),
        lambda source: [*common, *(IFMA if source.stem.endswith("_ifma") else [])],
    )
    return compiled.link_objects("linked", objects, common)


@pytest.fixture(scope="module")
def counting() -> Iterator[Any]:
    """Yield the library with a counter of field products, which only portable code increments."""
    target = _compile_kernels("counting", ["-shared", "-DTFE_BENCH_COUNT_PRODUCTS"])
    library = curve_library.open_curve_library(target)
    library.tfe_curve_products.restype = ctypes.c_uint64
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFE_BENCH_ISA", "avx2")
        yield library


def test_secret_numbers_do_not_change_how_much_is_computed(counting: Any) -> None:
    elements = curve.multiply_base(curve.random_scalars(3))
    table, out = curve.build_combs(elements), np.empty((1, 3, 32), np.uint8)
    counts = set()
    for half in (*EDGES, secrets.randbelow(ORDER)):
        for message in (0, 1, -1, 255, -255):
            m = np.full((1, 3), message)
            before = counting.tfe_curve_products()
            counting.tfe_curve_encrypt(
                *(table.ctypes.data, 0, 3, 3, encode_scalars([half]).ctypes.data, m.ctypes.data),
                *(3, 1, out.ctypes.data),
            )
            counts.add(counting.tfe_curve_products() - before)
    # The first call also fills constant tables.
    assert len(counts) == 2 and max(counts) > min(counts) > 1000
    counts.clear()
    for k in EDGES:
        before = counting.tfe_curve_products()
        counting.tfe_curve_multiply_base(encode_scalars([k]).ctypes.data, 1, out.ctypes.data)
        counts.add(counting.tfe_curve_products() - before)
    assert len(counts) <= 2


@pytest.fixture(scope="module")
def sanitized() -> Path:
    """Return a program that calls the library with arrays of the exact sizes."""
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover"]
    own = Path(__file__).with_name("curve_bounds.cc")
    try:
        return _compile_kernels("sanitized", ["-Wall", "-Wextra", "-Werror", *checks], (own,))
    except subprocess.CalledProcessError as error:
        if "cannot find -l" in error.stderr:
            pytest.skip("this compiler has no sanitizers")
        raise AssertionError(error.stderr) from None


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_nothing_is_read_or_written_out_of_bounds(sanitized: Path, isa: str) -> None:
    done = subprocess.run(
        [sanitized],
        env={**os.environ, "TFE_BENCH_ISA": isa},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_processor_computes_the_same(seed: int) -> None:
    """Run the tests of code that depends on the processor again with the portable code."""
    chosen = "multiples or encryption or products or scheme"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", chosen, __file__]
    environment = {**os.environ, "TFE_BENCH_ISA": "avx2", "TFE_BENCH_TEST_SEED": str(seed)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_files_for_one_instruction_set_share_no_functions_with_others() -> None:
    """Check for shared functions: the linker could choose one that crashes on other processors."""
    allowed = {
        "<immintrin.h>",
        "<cstdint>",
        '"benchmarks/technologies/functional/kernels/layout.h"',
    }
    result = (KERNELS / "sums_ifma.cc").read_text().splitlines()
    assert {line.split()[1] for line in result if line.startswith("#include")} == allowed
    layout = (KERNELS / "layout.h").read_text()
    assert "inline" not in layout and "template" not in layout

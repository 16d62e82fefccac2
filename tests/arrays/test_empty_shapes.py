"""Arrays without elements whose other axes are huge: refused with an error, or an empty result.

A limit on a product of sizes does not detect them, and nothing may be built of their length.
"""

from __future__ import annotations

import contextlib
import resource
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.arrays.simulated import Client, Workers
from tfe_bench.arrays import evaluate, operations
from tfe_bench.arrays.array_spec import KINDS
from tfe_bench.arrays.programs import compute
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.worker.memory import MemoryMeter
from tfe_bench.errors import TfeBenchError

X = ["ref", 0]
MEGABYTE = 1 << 20
HUGE = [
    (0, 1 << 30),
    (1 << 30, 0),
    (0, 1 << 13, 1 << 13, 1),
    (0, 1, 1 << 26, 1),
    (0, 2, 2, 1 << 27),
]
# Shapes on which the operations run.
SMALL = [(2, 3), (6,), (2, 2), (1, 4, 4, 2), (1, 4, 4, 1)]


def _list_argument(*values: Any) -> list[Any]:
    return ["list", list(values)]


def _kernel_argument(*shape: int) -> list[Any]:
    import base64

    text = base64.b64encode(np.zeros(shape).tobytes()).decode()
    return ["array", "float64", list(shape), text]


POOLS = ((X, 2), (X, 2, 1, "SAME"), (X, 64))
ADAPTIVE = ((X, 2), (X, 4096))
# By name, several lists of arguments; by default one to three times the array. Named ones last.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "bit_extract": ((X, 1),),
    "bitwise_and": ((X, 3),),
    "bitwise_or": ((X, 3),),
    "left_shift": ((X, 2),),
    "right_shift": ((X, 2),),
    "unpack_bits": ((X,), (X, 4)),
    "einsum": (("...i,...i->...", X, X), ("i...,j...->ij...", X, X), ("ii->i", X)),
    "matvec": ((X, _list_argument(1.0, 2.0, 3.0)),),
    "tensordot": (
        (X, X, 0),
        (X, X, 1),
        (X, X, _list_argument(_list_argument(0), _list_argument(0))),
    ),
    "polyval": ((_list_argument(1.0, 2.0), X),),
    "gather": ((X, _list_argument(0, 1)), (X, _list_argument()), (X, X), (X, 0, {"axis": -1})),
    "one_hot": ((X, 1 << 27), (X, 8), (X, 1)),
    "scatter_nd": (
        (_list_argument(_list_argument(0), _list_argument(1)), X, _list_argument(1 << 27)),
        (_list_argument(_list_argument(2), _list_argument(0)), X, _list_argument(3, 3)),
        (["array", "int64", [0, 1], ""], X, _list_argument(1 << 24, 1 << 3)),
    ),
    "tensor_scatter_nd_update": (
        (X, _list_argument(_list_argument(1)), _list_argument(_list_argument(9.0, 9.0, 9.0))),
        (X, _list_argument(_list_argument(0)), _list_argument(9.0)),
    ),
    "avg_pool2d": POOLS,
    "max_pool2d": POOLS,
    "max_pool_with_argmax": POOLS,
    "adaptive_avg_pool2d": ADAPTIVE,
    "adaptive_max_pool2d": ADAPTIVE,
    "conv2d": (
        (X, _kernel_argument(1, 1, 2, 1)),
        (X, _kernel_argument(1, 1, 1, 2)),
        (X, _kernel_argument(1, 1, 0, 2)),
    ),
    "depthwise_conv2d": ((X, _kernel_argument(1, 1, 2, 1)), (X, _kernel_argument(1, 1, 1, 2))),
    "scaled_dot_product_attention": ((X, X, X), (X, X, X, {"is_causal": True})),
    "pow": ((X, 3), (X, 0.5), (X, X)),
    "bitcast": ((X, 20),),
    "count_outside": ((X, -5, 5), (X, None, 5)),
    "count_steep": ((X, X, 20),),
    "cast": ((X, 16),),
    "in_range": ((X, 18),),
    "where": ((["array", "bool", [1], "AQ=="], X, X),),
    "clip_by_value": ((X, -1.0, 1.0),),
    "quantile": ((X, 0.25), (X, 0.25, -1), (X, 0.25, 0)),
    "median": ((X,), (X, -1), (X, 0)),
    "top_k": ((X, 1), (X, 2), (X, 1 << 27)),
    "sort": ((X,), (X, 0), (X, -1, "DESCENDING")),
    "histogram_fixed_width": (
        (X, _list_argument(-1.0, 1.0), 4096),
        (X, _list_argument(-1.0, 1.0), 3),
    ),
    "bincount": ((X, {"maxlength": 1 << 27}), (X, {"maxlength": 8}), (X, {"maxlength": 1 << 16})),
    "concat": ((_list_argument(X, X), 0), (_list_argument(X, X), -1)),
    "stack": ((_list_argument(X, X),), (_list_argument(X, X), -1)),
    "add_n": ((_list_argument(X, X),),),
    "pad": (
        *(
            (X, _list_argument(_list_argument(1, 1), _list_argument(0, 1)), way)
            for way in ("CONSTANT", "SYMMETRIC")
        ),
        (X, _list_argument(_list_argument(1 << 27, 0))),
    ),
    "broadcast_to": (
        (X, _list_argument(1 << 26, 2, 3)),
        (X, _list_argument(0, 1 << 27)),
        (X, _list_argument(3, 2, 3)),
    ),
    "expand_dims": ((X, 0), (X, -1)),
    "getitem": ((X, 0), (X, ["tuple", [["ellipsis"], ["slice", None, None, -1]]])),
    "reshape": (
        (X, _list_argument(-1)),
        (X, _list_argument(0, 1 << 27)),
        (X, _list_argument(1 << 27, 0)),
    ),
    "reverse": ((X, 0), (X, -1)),
    "slice": ((X, _list_argument(0, 0), _list_argument(-1, -1)),),
    "split": ((X, 1 << 27), (X, 2, 0), (X, 3, -1), (X, 1 << 26, -1)),
    "squeeze": ((X,), (X, 0)),
    "tile": ((X, _list_argument(1 << 13, 1 << 14)), (X, _list_argument(2, 2))),
    "unstack": ((X,), (X, -1)),
}
_ALONG = ((X, {"axis": 0}), (X, {"axis": -1}), (X,))
for _name in ("argmax", "argmin", "reduce_max", "reduce_min", "cummax", "cumprod", "reduce_prod"):
    ARGUMENTS[_name] = _ALONG
for _name in ("reduce_std", "reduce_variance", "reduce_mean", "cumsum", "reduce_sum", "norm"):
    ARGUMENTS[_name] = _ALONG
# Index of the result among several.
PLACES: dict[str, tuple[int | None, ...]] = dict.fromkeys(
    ("top_k", "max_pool_with_argmax", "split", "unstack"), (0,)
)
# Daily cases: operations that build arrays by the length of an axis, or once did.
DAILY = {"sort", "top_k", "median", "quantile", "argmax", "gather", "one_hot", "cumprod", "pad"}
DAILY |= {"reduce_prod", "split", "avg_pool2d", "adaptive_avg_pool2d", "tensor_scatter_nd_update"}


def _list_cases(name: str, shape: tuple[int, ...]) -> Iterator[tuple[dict[str, Any], InputSpec]]:
    body: list[Any] = []
    several = ARGUMENTS.get(name, ((X,), (X, X), (X, X, X)))
    if operations.find_operation(name).loops:
        body = [[1, [["add", [["ref", 0], ["ref", 0]], {}]], [["ref", 1]]]]
        several = ((_list_argument(X), _list_argument(), _list_argument(), 3),)
    for inputs in several:
        named = inputs[-1] if isinstance(inputs[-1], dict) else {}
        arguments = list(inputs[: len(inputs) - bool(named)])
        for kind in KINDS:
            scale = 16 if kind == "fixed" else 0
            for place in PLACES.get(name, (None,)):
                plan = {
                    "leaves": [["input", kind, list(shape), scale]],
                    "steps": [[name, arguments, named, *body]],
                    "outputs": [[["ref", 1, *([] if place is None else [place])], "reveal", {}]],
                }
                yield {"plan": plan, "free": []}, InputSpec("x0", shape, scale)


@contextlib.contextmanager
def _address_space(more: int) -> Iterator[None]:
    """Limit the process's further address space, so that a fault does not exhaust the machine."""
    with open("/proc/self/status") as status:
        own = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmSize"))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (own + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _mark_slow(names: list[str]) -> list[Any]:
    return [n if n in DAILY else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", _mark_slow(sorted(operations.list_operations())))
def test_counting_takes_no_memory_for_the_length_of_an_empty_array(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow  # noqa: F401  (not what is measured)

    others = tuple(each for each in evaluate._UNEXPECTED_ERRORS if each is not MemoryError)
    monkeypatch.setattr(evaluate, "_UNEXPECTED_ERRORS", others)
    admitted = 0
    for shape in SMALL:
        for arguments, spec in _list_cases(name, shape):
            with contextlib.suppress(TfeBenchError):
                compute.PROGRAM.admit(arguments, [spec])
                admitted += 1
    assert admitted, "no case of the operation is one"
    with _address_space(2 << 30):
        tracemalloc.start()
        try:
            for shape in HUGE:
                for arguments, spec in _list_cases(name, shape):
                    tracemalloc.reset_peak()
                    before, _ = tracemalloc.get_traced_memory()
                    with contextlib.suppress(TfeBenchError):
                        request = compute.PROGRAM.admit(arguments, [spec])
                        size = compute.PROGRAM.sized("", None, request, [spec])  # type: ignore[arg-type]
                        assert size.words >= spec.extent, (arguments, shape)
                    _, peak = tracemalloc.get_traced_memory()
                    assert peak - before < 16 * MEGABYTE, (arguments["plan"]["steps"], shape)
        finally:
            tracemalloc.stop()


# (its rows take three workers of the earlier sort 1.5 GB)
LENGTH = 1 << 24


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    stores = Workers(tmp_path_factory.mktemp("empty"))
    yield stores
    stores.close()


RUN = ["sort", "median", "adaptive_avg_pool2d"]


@pytest.mark.parametrize("name", RUN)
def test_a_run_on_an_empty_array_takes_no_memory_for_its_length(
    name: str, workers: Workers
) -> None:
    _run_empty(name, workers, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(operations.list_operations()) - set(RUN)))
def test_every_operation_runs_on_empty_arrays(name: str, workers: Workers) -> None:
    _run_empty(name, workers, 1000)


def _run_empty(name: str, workers: Workers, most: int) -> None:
    meter, client, ran = MemoryMeter(), Client(workers, "alice"), 0
    for shape in [(0, LENGTH), (LENGTH, 0), (0, 1, LENGTH, 1), (0, 4, 4, LENGTH >> 4)]:
        for arguments, spec in _list_cases(name, shape):
            scale = spec.fractional_bits
            value = PrivateInput(np.zeros(shape, np.int64), fractional_bits=scale)
            meter.reset_peak()
            try:
                request = compute.PROGRAM.admit(arguments, [spec])
                if any(m.elements for m in request.plan_price.output_specs):
                    continue  # results with elements take memory
                result = client.run("compute", arguments, {"x0": value})
            except TfeBenchError:
                continue
            ran += 1
            assert meter.peak_growth() < 200 * MEGABYTE, (arguments["plan"]["steps"], shape)
            assert all(v.size < MEGABYTE for v in result.outputs.values())
            if ran == most:
                return
    assert ran or most > 1, "no empty array was taken"

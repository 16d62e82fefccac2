"""Streams of requests: in order, bounded, and ended by the first error."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cli import prediction_stream
from tfe_bench.errors import DataError, RangeError, UsageError
from tfe_bench.models.inference import service, stream


class _Service:
    """Predictions that take a while, and their largest number at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = self.most = self.begun = 0
        self.read = 0
        self.delays: dict[int, float] = {}
        self.failing: set[int] = set()

    def predict(self, cluster: Any, model: Any, images: Any, **options: Any) -> tuple[Any, Any]:
        with self._lock:
            self.running += 1
            self.begun += 1
            self.most = max(self.most, self.running)
        try:
            time.sleep(self.delays.get(images, 0.01))
            options["progress"](0.5, "compute")
        finally:
            with self._lock:
                self.running -= 1
        if images in self.failing:
            raise RangeError("Out of range.")
        return 10 * images, options

    def count_to(self, end: int) -> Iterator[int]:
        for number in range(end):
            self.read = number + 1
            yield number


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> _Service:
    mine = _Service()
    monkeypatch.setattr(service, "predict", mine.predict)
    return mine


def _list_outputs(fake: _Service, count: int, in_flight: int = 4) -> Iterator[Any]:
    model: Any = SimpleNamespace()
    cluster: Any = None
    requests = fake.count_to(count)
    for outputs, _ in stream.predict_stream(cluster, model, requests, in_flight=in_flight):
        yield outputs


def test_results_come_in_the_order_of_the_requests(fake: _Service) -> None:
    fake.delays = {0: 0.3, 5: 0.2}
    assert list(_list_outputs(fake, 20)) == [10 * i for i in range(20)]
    assert 2 <= fake.most <= 4


def test_requests_are_read_as_results_are_taken(fake: _Service) -> None:
    results = _list_outputs(fake, 10**9, in_flight=3)
    for i in range(5):
        assert next(results) == 10 * i
        time.sleep(0.05)
        assert fake.begun <= i + 4 and fake.read <= i + 4
    results.close()  # type: ignore[attr-defined]
    assert fake.running == 0
    begun = fake.begun
    time.sleep(0.1)
    assert fake.begun == begun


def test_an_error_comes_after_earlier_results_and_ends_the_stream(fake: _Service) -> None:
    fake.failing = {6}
    outputs = []
    with pytest.raises(RangeError):
        for each in _list_outputs(fake, 1000):
            outputs.append(each)
    assert outputs == [10 * i for i in range(6)]
    assert fake.begun <= 6 + 4 and fake.running == 0


def test_an_error_of_the_requests_comes_in_its_place(fake: _Service) -> None:
    def requests() -> Iterator[int]:
        yield 1
        yield 2
        raise DataError("As ordered.")

    outputs = []
    cluster, model = None, SimpleNamespace()
    with pytest.raises(DataError, match="As ordered"):
        for each, _ in stream.predict_stream(cluster, model, requests()):  # type: ignore[arg-type]
            outputs.append(each)
    assert outputs == [10, 20]


def test_a_result_does_not_wait_for_the_next_request(fake: _Service) -> None:
    answered = threading.Event()

    def requests() -> Iterator[int]:
        yield 1
        assert answered.wait(30)  # a caller that reads one answer before it writes on
        yield 2

    cluster, model = None, SimpleNamespace()
    outputs = []
    for each, _ in stream.predict_stream(cluster, model, requests()):  # type: ignore[arg-type]
        outputs.append(each)
        answered.set()
    assert outputs == [10, 20]


@pytest.mark.parametrize("value", [0, -1, 65, 2.0, True, "4", None])
def test_the_number_in_flight_is_bounded(value: Any) -> None:
    model: Any = SimpleNamespace()
    cluster: Any = None
    with raises(UsageError, "number-out-of-range", operation="in_flight"):
        stream.predict_stream(cluster, model, [], in_flight=value)


# ---- requests of the command


def _make_model(*shapes: tuple[int, ...], tokens: bool = False) -> Any:
    inputs = {f"x{i}": shape for i, shape in enumerate(shapes)}
    graph = SimpleNamespace(inputs=inputs, tokens={"x0": 9} if tokens else {})
    return SimpleNamespace(name="m", private=SimpleNamespace(graph=graph))


def test_each_line_is_a_request_of_one_sample() -> None:
    lines = io.StringIO("[1, 2.5]\n\n[3, 4]\n[[5]]")
    requests = list(prediction_stream.read_request_lines(lines, _make_model((2,))))
    assert [r.tolist() for r in requests] == [[[1, 2.5]], [[3, 4]], [[[5]]]]
    assert all(r.dtype == np.float64 for r in requests)
    [tokens] = prediction_stream.read_request_lines(
        io.StringIO("[1, 2]"), _make_model((2,), tokens=True)
    )
    assert tokens.dtype.kind == "i"


@pytest.mark.parametrize(
    "line", ["x", "[1, 2", '["a"]', "[[1], [1, 2]]", "[NaN]", "{}", "[null]", "[" * 9999, "[1e999]"]
)
def test_a_line_that_is_no_array_of_numbers_is_refused_by_its_number(line: str) -> None:
    requests = prediction_stream.read_request_lines(
        io.StringIO(f"[1]\n\n{line}\n"), _make_model((1,))
    )
    next(requests)
    with raises(DataError, "invalid-cell", operation="line 3"):
        next(requests)


def test_a_model_of_several_inputs_takes_no_lines() -> None:
    with raises(UsageError, "unsupported-operation"):
        next(prediction_stream.read_request_lines(io.StringIO("[1]"), _make_model((1,), (2,))))


def test_a_file_is_cut_into_requests() -> None:
    x = np.arange(10).reshape(5, 2)
    parts = list(prediction_stream.cut_into_requests(x, 2))
    np.testing.assert_array_equal(np.concatenate(parts), x)
    assert [len(part) for part in parts] == [2, 2, 1]
    named = list(prediction_stream.cut_into_requests({"a": x, "b": x[:, 0]}, 3))
    assert [len(part["b"]) for part in named] == [3, 2]

"""The figures of the exp study: metrics, lines and published figures match the benchmark's."""

from __future__ import annotations

import math
import tomllib

import numpy as np
import pytest

from tests.paths import ROOT
from tfe_bench.benchmarks import prediction
from tfe_bench.benchmarks.exp_study import fits, grid, levels, published
from tfe_bench.errors import UsageError


@pytest.mark.parametrize(
    "row", published.read_published_exp_table("time_fits"), ids=lambda r: "-".join(r.values())
)
def test_least_squares_reproduce_the_fits_of_published_times(row: dict[str, str]) -> None:
    fit = published.published_columns()[row["exp_mode"]].times[f"net{row['net_level']}"]
    assert fit.points == int(row["points"])
    assert fit.a == pytest.approx(float(row["a_s_per_element"]), rel=1e-3)
    assert fit.b == pytest.approx(float(row["b_s"]), abs=1e-3)


@pytest.mark.parametrize(
    "row", published.read_published_exp_table("summary"), ids=lambda r: r["exp_mode"]
)
def test_least_squares_reproduce_the_published_summary(row: dict[str, str]) -> None:
    column = published.published_columns()[row["exp_mode"]]
    assert column.bytes_per_element == pytest.approx(float(row["bytes_per_element"]))
    assert column.rounds == int(row["rounds"])
    assert column.memory.b == pytest.approx(float(row["mem_kb_fixed"]), abs=1)
    assert column.memory.a == pytest.approx(float(row["mem_kb_per_element"]), abs=3e-3)
    assert column.times["net2"].a == pytest.approx(float(row["net2_marginal_s"]), rel=2e-3)


def test_a_line_is_that_of_numpy_and_its_r2_falls_with_noise(rng: np.random.Generator) -> None:
    n = np.array([10.0, 100, 1000, 10_000])
    exact = fits.fit_line(n, 3 * n + 7)
    assert (exact.a, exact.b, exact.r2) == pytest.approx((3, 7, 1))
    noisy = 3 * n + rng.normal(0, 5000, 4)
    fit = fits.fit_line(n, noisy)
    assert (fit.a, fit.b) == pytest.approx(tuple(np.polyfit(n, noisy, 1)))
    assert fit.r2 == pytest.approx(np.corrcoef(n, noisy)[0, 1] ** 2)
    assert fits.fit_line([1, 2], [5, 5]).r2 == 1
    for sizes, values in (([1], [1]), ([2, 2], [1, 3]), ([1, 2, 3], [1, 2]), ([], [])):
        with pytest.raises(UsageError):
            fits.fit_line(sizes, values)


def test_the_metrics_of_taylor_8_are_the_published_ones() -> None:
    x = grid.exp_grid_points()
    a = grid.score_exp_accuracy(x, (1 + x / 256) ** 256, (-40, 40))
    column = published.published_columns()["taylor-8"]
    np.testing.assert_allclose(a.shares, column.shares, atol=1e-3)
    assert a.mape == pytest.approx(column.mape, rel=5e-3)
    assert a.mse == pytest.approx(column.mse, rel=1e-3)
    assert a.mae == pytest.approx(column.mae, rel=1e-3)
    assert a.mean6 == pytest.approx(column.mean6, abs=1e-3)


def test_exact_and_useless_results_score_all_and_nothing() -> None:
    x = grid.exp_grid_points()
    best = grid.score_exp_accuracy(x, np.exp(x), (-10, 10))
    assert best.shares == (1,) * 6 and best.mape == best.max_ape == 0
    assert (best.first, best.last) == (-40, 40)
    worst = grid.score_exp_accuracy(x, np.full(x.shape, -1e30), (50, 60))
    assert worst.shares == (0,) * 6
    assert math.isnan(worst.first) and math.isnan(worst.last) and math.isnan(worst.max_ape)
    half = grid.score_exp_accuracy(x, np.where(x < 0, np.exp(x), -1e30), (-5, 5))
    assert half.shares == (0.5,) * 6 and half.last < 0.01 and half.max_ape > 1
    assert half.max_ae_below_zero == 0


def test_points_are_ten_thousand_equidistant_ones_twice() -> None:
    x = grid.exp_grid_points()
    assert x.shape == (20_000,)
    assert (x[0], x[9_999], x[10_000], x[-1]) == (-40, 40, -20, 20)
    assert np.ptp(np.diff(x[:10_000])) < 1e-12
    rounded = grid.exp_grid_points(float32=True)
    assert 0 < np.abs(rounded - x).max() < 2e-6


def test_a_time_at_a_level_adds_latency_by_round_and_the_busiest_partys_bytes() -> None:
    net2 = levels.LEVELS[2]
    assert (net2.bits_per_second, net2.delay) == (100e6, 0.01)
    assert prediction.modeled_seconds(net2, 0.5, 3, (10, 12_500_000, 20)) == pytest.approx(1.53)
    assert prediction.modeled_seconds(levels.LEVELS[0], 0.5, 1000, (0, 0, 0)) == 0.5
    for level, row in zip(
        levels.LEVELS, published.read_published_exp_table("netlevels"), strict=True
    ):
        assert level.name == f"net{row['net_level']}"
        assert level.bits_per_second == float(row["rate_mbit"]) * 1e6
        assert level.delay == pytest.approx(float(row["latency_ms"]) * 1e-3)


def test_contradictions_of_the_published_figures_are_named() -> None:
    text = "\n".join(published.find_contradictions())
    assert "0.629/0.285/0.602" in text and "0.639/0.305/0.604" in text
    assert "level 0 have holes" in text and "prime n = 10, 100, 1,000;" in text
    assert "level 2 have holes" in text and "level 3 have holes" in text
    assert "level 1" not in text
    assert "10,000,000 is listed twice" in text


def test_published_tables_are_shipped() -> None:
    names = {p.name for p in (ROOT / "benchmarks/exp_study/published").glob("*.csv")}
    assert names == {
        *("comm.csv", "error.csv", "memory.csv", "netlevels.csv", "range.csv", "summary.csv"),
        *("time.csv", "time_fits.csv"),
    }
    assert "*.csv" in (ROOT / "setup.py").read_text()
    assert "include benchmarks *.csv" in (ROOT / "MANIFEST.in").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert any(d.startswith("matplotlib") for d in project["project"]["dependencies"])

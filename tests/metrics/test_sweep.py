"""Settings, curves and bands on analyses with round numbers."""

import math

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.sweep import RepeatedMean, Sweep, SweepPoint
from aorta.metrics import sweep as sweeps
from aorta.metrics.student import t_quantile, t_within
from aorta.metrics.sweep import PointRun, estimate, ratio
from tests.support.analyses import analysis, rank_row

KEY = "training.batch_size"


def measured(nodes: int, rate: float, *, batch: int = 8, **changes: object) -> Analysis:
    """A completed run of one rank a node; each rank 80 ms a step, 30 of it exposed of 40 communication."""
    whole = analysis()
    assert whole.throughput is not None
    rows = [rank_row(rank, data_ms=0.0, comm_ms=30.0) for rank in range(nodes)]
    return msgspec.structs.replace(
        whole,
        scenario=f"{nodes}node",
        nodes=nodes,
        world_size=nodes,
        throughput=msgspec.structs.replace(
            whole.throughput, samples_per_s=rate, global_batch=batch * nodes, per_rank_batch=batch
        ),
        breakdown=msgspec.structs.replace(whole.breakdown, per_rank=rows),
        data_quality=msgspec.structs.replace(whole.data_quality, ranks_seen=nodes, ranks_expected=nodes),
        **changes,
    )


def run(nodes: int, analysed: Analysis | None, repeat: int = 1, **values: str) -> PointRun:
    named = {f"training.{name}": value for name, value in values.items()}
    point = SweepPoint(
        scenario=f"{nodes}node", nodes=nodes, task=0, values=named, repeat=repeat, job_id=f"7_{repeat}"
    )
    return PointRun(point, analysed)


def sweep(*runs: PointRun, repeats: int = 1, **keys: list[str]) -> Sweep:
    named = {f"training.{name}": values for name, values in keys.items()}
    return Sweep(
        keys=named, repeats=repeats, scaling="weak", global_batch=None, executor="slurm",
        points=[item.point for item in runs],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("degrees", "t"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227)]
)
def test_quantiles_are_those_of_the_tables(degrees: int, t: float) -> None:
    assert t_quantile(degrees) == pytest.approx(t, abs=5e-5)
    assert t_within(t_quantile(degrees), degrees) == pytest.approx(0.95)


def test_quantiles_near_the_normal_distribution() -> None:
    assert t_quantile(100_000) == pytest.approx(1.95996, abs=1e-4)
    with pytest.raises(ValueError, match="0 degrees"):
        t_quantile(0)


def test_a_mean_and_its_band() -> None:
    # s = 2, k = 3: half = t(2) · 2 / √3
    found = estimate([8.0, 10.0, 12.0])
    assert found is not None
    half = 4.302652729749752 * 2 / math.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((10.0, 10 - half, 10 + half))


def test_one_repeat_has_no_band_and_equal_repeats_one_of_no_width() -> None:
    single, equal = estimate([5.0]), estimate([5.0, 5.0, 5.0])
    assert single is not None
    assert equal is not None
    assert (single.low, single.high) == (None, None)
    assert (equal.low, equal.high, equal.basis) == (5.0, 5.0, "confidence")
    assert estimate([]) is None
    zero = estimate([0.0, 0.0])
    assert zero is not None
    assert (zero.mean, zero.low, zero.high) == (0.0, 0.0, 0.0)


def test_two_repeats_have_their_range_and_no_band() -> None:
    found = estimate([12.0, 8.0])
    assert found == RepeatedMean(mean=10.0, low=8.0, high=12.0, repeats=2, basis="range")
    assert ratio([19.0, 21.0], [9.0, 11.0]) == RepeatedMean(
        mean=2.0, low=19 / 11, high=21 / 9, repeats=2, basis="range"
    )
    # Three above two: those below still give no band.
    assert ratio([19.0, 20.0, 21.0], [9.0, 11.0]).basis == "range"


def test_the_band_of_a_ratio_holds_the_spread_of_both() -> None:
    above, below = [19.0, 20.0, 21.0], [8.0, 10.0, 12.0]
    # Squared relative standard errors: 1/400/3 and 1/25/3; ν of Welch: 2 · 17² / (1² + 16²) = 2.2, down to 2.
    factor = math.exp(4.302652729749752 * math.sqrt(17 / 1200))
    found = ratio(above, below)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 / factor, 2 * factor))
    assert found.basis == "confidence"


def test_equal_spreads_have_the_degrees_of_both() -> None:
    found = ratio([9.0, 10.0, 11.0], [9.0, 10.0, 11.0])
    assert found.high == pytest.approx(math.exp(2.7764451051977987 * math.sqrt(2 / 300)))


def test_a_ratio_with_a_single_repeat_has_no_band() -> None:
    assert ratio([20.0, 22.0], [10.0]).low is None
    exact = ratio([20.0, 20.0, 20.0], [10.0, 10.0, 10.0])
    assert (exact.mean, exact.low, exact.high) == (2.0, 2.0, 2.0)


def test_a_setting_is_the_mean_of_its_valid_repeats() -> None:
    failed = measured(2, 999.0)
    quality = msgspec.structs.replace(failed.data_quality, state="failed")
    runs = [
        run(2, measured(2, 100.0), 1, batch_size="8"),
        run(2, measured(2, 104.0), 2, batch_size="8"),
        run(2, msgspec.structs.replace(failed, data_quality=quality), 3, batch_size="8"),
        run(2, None, 4, batch_size="8"),
    ]
    [setting] = sweeps.settings(sweep(*runs, repeats=4, batch_size=["8"]), runs)
    result = setting.result
    assert (result.repeats_valid, result.repeats_planned, result.job_ids) == (2, 4, ["7_1", "7_2"])
    assert result.samples_per_s is not None
    assert result.samples_per_s.mean == 102.0
    assert result.exposed_comm_ms is not None
    assert result.exposed_comm_ms.mean == 30.0
    assert result.exposed_comm_pct is not None
    assert result.exposed_comm_pct.mean == pytest.approx(100 * 30 / 80)
    assert result.overlap_ratio is not None
    assert result.overlap_ratio.mean == pytest.approx(1 - 30 / 40)
    assert sweeps.why_not(runs[0]) is None
    assert sweeps.why_not(runs[2]) == "job 7_3: failed"
    assert sweeps.why_not(runs[3]) == "job 7_4 has written nothing"


def test_no_communication_is_zero_exposed_and_no_overlap() -> None:
    alone = measured(1, 50.0)
    rows = [rank_row(0, data_ms=0.0, comm_ms=0.0)]
    table = msgspec.structs.replace(alone.breakdown, per_rank=rows)
    runs = [run(1, msgspec.structs.replace(alone, breakdown=table))]
    [setting] = sweeps.settings(sweep(*runs), runs)
    assert setting.result.exposed_comm_ms is not None
    assert setting.result.exposed_comm_ms.mean == 0.0
    assert setting.result.overlap_ratio is None


def test_a_setting_without_a_valid_run_has_no_numbers() -> None:
    runs = [run(1, None)]
    [setting] = sweeps.settings(sweep(*runs), runs)
    assert setting.result.samples_per_s is None
    assert setting.result.exposed_comm_ms is None
    assert setting.result.world_size is None
    assert sweeps.statement([setting]) == "No point of this sweep could be measured."


def scaling(rates: dict[int, list[float]], batches: dict[int, int] | None = None) -> list[PointRun]:
    return [
        run(nodes, measured(nodes, rate, batch=(batches or {}).get(nodes, 8)), repeat)
        for nodes, values in rates.items()
        for repeat, rate in enumerate(values, start=1)
    ]


def test_speed_up_and_efficiency_against_the_smallest() -> None:
    runs = scaling({1: [100.0, 100.0], 2: [180.0, 180.0], 4: [440.0, 440.0]})
    [curve] = sweeps.curves(sweeps.settings(sweep(*runs, repeats=2), runs))
    assert (curve.reference, curve.label) == ("1node", "weak")
    assert [point.speedup.mean for point in curve.points] == [1.0, 1.8, 4.4]
    assert [point.efficiency.mean for point in curve.points] == pytest.approx([1.0, 1.8 / 2, 4.4 / 4])
    assert [point.flag for point in curve.points] == [None, None, "superlinear"]
    assert [point.speedup.low for point in curve.points] == [None, 1.8, 4.4]


def test_a_curve_starts_at_the_smallest_that_is_valid() -> None:
    runs = [run(1, None), *scaling({2: [200.0], 4: [300.0]})]
    [curve] = sweeps.curves(sweeps.settings(sweep(*runs), runs))
    assert curve.reference == "2node"
    assert [point.efficiency.mean for point in curve.points] == [1.0, 1.5 * 2 / 4]
    assert curve.reason == "without 1node: no valid run"


def test_strong_is_read_off_the_recorded_batches() -> None:
    runs = scaling({1: [100.0], 2: [150.0]}, batches={1: 16, 2: 8})
    [curve] = sweeps.curves(sweeps.settings(sweep(*runs), runs))
    assert curve.label == "strong"


def test_one_number_of_nodes_gives_no_curve_and_no_valid_run_says_so() -> None:
    one = scaling({2: [100.0, 101.0]})
    assert sweeps.curves(sweeps.settings(sweep(*one), one)) == []
    none = [run(1, None), run(2, None)]
    [curve] = sweeps.curves(sweeps.settings(sweep(*none), none))
    assert (curve.points, curve.reason) == ([], "no valid run")


def test_a_key_is_followed_with_everything_else_held() -> None:
    runs = [
        run(nodes, measured(nodes, 10.0), batch_size=batch, seed=seed)
        for nodes in (1, 2)
        for batch in ("8", "16")
        for seed in ("1", "2", "3")
    ]
    whole = sweep(*runs, batch_size=["8", "16"], seed=["1", "2", "3"])
    found = sweeps.settings(whole, runs)
    batch, seed = sweeps.sensitivities(whole, found)
    assert (batch.key, batch.values, len(batch.series)) == (KEY, ["8", "16"], 2 * 3)
    assert len(seed.series) == 2 * 2
    for series in batch.series:
        chosen = [found[place].result for place in series.settings]
        assert [item.values[KEY] for item in chosen] == ["8", "16"]
        assert {item.scenario for item in chosen} == {series.scenario}
        assert all(item.values["training.seed"] == series.held["training.seed"] for item in chosen)


def test_a_key_with_one_value_has_nothing_to_show() -> None:
    runs = [run(1, measured(1, 10.0), batch_size="8"), run(1, measured(1, 11.0), 2, batch_size="8")]
    whole = sweep(*runs, batch_size=["8"])
    assert sweeps.sensitivities(whole, sweeps.settings(whole, runs)) == []


def test_the_fastest_is_named_with_its_lead() -> None:
    runs = [run(1, measured(1, 10.0), batch_size="8"), run(1, measured(1, 25.0), batch_size="16")]
    found = sweeps.settings(sweep(*runs, batch_size=["8", "16"]), runs)
    assert sweeps.statement(found) == (
        "Fastest: training.batch_size = 16 on 1 node with 25.0 samples/s, "
        "2.50× as many as training.batch_size = 8 on 1 node."
    )


@pytest.mark.parametrize(
    ("fast", "words", "none"),
    [
        ([25.0, 25.0, 25.0], "95 % band 2.50 to 2.50", False),
        ([11.0, 25.0, 39.0], "95 % band 0.62 to 10.05", True),
        ([11.0, 39.0], "seen 1.10 to 3.90", False),
        ([9.0, 41.0], "seen 0.90 to 4.10", True),
    ],
)
def test_a_lead_within_the_spread_is_said_to_be_none(fast: list[float], words: str, none: bool) -> None:
    runs = [run(1, measured(1, 10.0), repeat, batch_size="8") for repeat in (1, 2, 3)]
    runs += [run(1, measured(1, rate), repeat, batch_size="16") for repeat, rate in enumerate(fast, start=1)]
    said = sweeps.statement(sweeps.settings(sweep(*runs, repeats=2, batch_size=["8", "16"]), runs))
    assert "2.50× as many" in said
    assert f"({words}" in said
    assert ("the repeats show no clear difference" in said) is none


def test_how_the_fastest_scales_is_said() -> None:
    runs = scaling({1: [100.0], 2: [150.0]})
    assert sweeps.statement(sweeps.settings(sweep(*runs), runs)) == (
        "Fastest: 2 nodes with 150.0 samples/s. Its 2node runs at 75 % efficiency against 1node."
    )

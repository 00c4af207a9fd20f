"""Mistakes that step records show by themselves; each has a twin in which the same is small."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from aorta.artefacts.instrument_record import InstrumentRecord, SampledFunction
from aorta.artefacts.measured import RankBreakdown
from aorta.artefacts.mistakes import Mistake
from aorta.artefacts.weight import Estimate
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.observed_mistakes import with_observed
from aorta.diagnosis.records_alone import ObservedRecords
from aorta.metrics.node_load import NodeLoad
from aorta.metrics.rare_steps import RareSteps
from aorta.metrics.recorded_calls import RecordedCalls
from tests.support.findings import IDLE, changed, context

FULL = NodeLoad(95.0, 50.0, 2.0, 0.0)


def named(seen: Observation) -> dict[str, Mistake]:
    return {item.id: item for item in with_observed(seen).facts.mistakes}


def hooked(rank: int, **values: object) -> InstrumentRecord:
    record = InstrumentRecord(
        rank=rank,
        pid=rank,
        python="python",
        python_version="3.12",
        torch_version="2.11",
        steps=20,
        samples={"other": 50, "forward": 50},
    )
    return msgspec.convert({**msgspec.to_builtins(record), **values}, InstrumentRecord)


def place(function: str, samples: int) -> SampledFunction:
    return SampledFunction(part="other", function=function, file="train.py", line=12, samples=samples)


def run(
    waits: Sequence[float] = (0.0, 0.0),
    hosts: Sequence[float] = (10.0, 10.0),
    *,
    steps: int = 20,
    workers: int | None = 2,
    load: NodeLoad = IDLE,
    **records: object,
) -> Observation:
    """A run of the user's own program with steps of 100 ms, which no replay explains."""
    like = context().steps.breakdown.per_rank[0]
    rows: list[RankBreakdown] = [
        replace(like, rank=rank, data_wait_ms=wait, host_ms=host)
        for rank, (wait, host) in enumerate(zip(waits, hosts, strict=True))
    ]
    stacks = {rank: hooked(rank, loader_workers=workers) for rank in range(len(rows))}
    made = ObservedRecords(steps, rows, **records)  # type: ignore[arg-type]
    return changed(context(), config=None, loads={"node0": load}, stacks=stacks, recorded=made)


def test_nothing_is_named_where_nothing_was_recorded() -> None:
    assert named(context()) == {}
    assert named(run()) == {}


def test_a_loader_without_workers() -> None:
    found = named(run((40.0, 40.0), workers=0))["loader_serial"]
    assert found.gain.value == pytest.approx(100 / 60)
    assert found.ranks == []
    assert named(run((9.0, 9.0), workers=0)) == {}
    assert named(run((40.0, 40.0), workers=None)) == {}, "the number of workers is not known"


def test_a_loader_with_too_few_workers() -> None:
    assert list(named(run((40.0, 40.0)))) == ["loader_few_workers"]
    assert named(run((40.0, 40.0), steps=9)) == {}
    # More workers would wait for a CPU, too; a turn on it does not take most of the step.
    assert named(run((40.0, 40.0), load=FULL)) == {}
    assert list(named(run((60.0, 60.0), load=FULL))) == ["loader_few_workers"]


def test_a_loader_that_is_slow_on_one_rank() -> None:
    found = named(run((0.0, 40.0)))["loader_rank1"]
    assert found.ranks == [1]
    assert found.gain.value == pytest.approx(100 / 60)
    assert "loader_rank1" not in named(run((20.0, 40.0)))


@pytest.mark.parametrize(
    ("mine", "other", "named_as"),
    [(2, None, False), (2, 2, True), (2, 0, True), (0, None, False), (None, None, True), (None, 2, True)],
)
def test_the_only_rank_with_a_loader_is_not_slower_than_other_loaders(
    mine: int | None, other: int | None, named_as: bool
) -> None:
    stacks = {0: hooked(0, loader_workers=other), 1: hooked(1, loader_workers=mine)}
    assert ("loader_rank1" in named(changed(run((0.0, 40.0)), stacks=stacks))) is named_as


@pytest.mark.parametrize(
    ("ready", "id_"), [(0.2, "loader_few_workers"), (0.0, "loader_few_workers"), (2.0, "loader_rank1")]
)
def test_a_loader_without_a_batch_ready_is_as_slow_though_its_rank_waits_elsewhere(
    ready: float, id_: str
) -> None:
    stacks = {
        rank: hooked(rank, loader_workers=1, loader_ready=ready if rank == 0 else 0.0) for rank in (0, 1)
    }
    assert list(named(changed(run((0.0, 40.0)), stacks=stacks))) == [id_]


@pytest.mark.parametrize(("few", "left"), [("loader_few_workers", "loader_rank1"), ("anomaly", "anomaly")])
def test_records_of_many_steps_tell_waits_apart_better_than_few_traced_steps(few: str, left: str) -> None:
    seen = run((0.0, 40.0))
    traced = Mistake(id=few, title="", ranks=[], where=None, gain=Estimate(value=1.2, low=1.0, high=2.0))
    found = named(replace(seen, facts=msgspec.structs.replace(seen.facts, mistakes=[traced])))
    assert left in found
    assert ("loader_few_workers" in found) is False


@pytest.mark.parametrize(("ms", "named_as"), [(200.0, True), (80.0, False), (0.0, False)])
def test_workers_that_start_anew(ms: float, named_as: bool) -> None:
    seen = run((30.0, 30.0), load=FULL)
    # 200 ms in 20 steps of 100 ms.
    stacks = {rank: hooked(rank, loader_workers=2, loader_starts=4, loader_start_ms=ms) for rank in (0, 1)}
    found = named(changed(seen, stacks=stacks))
    assert ("loader_respawn" in found) is named_as
    if named_as:
        assert found["loader_respawn"].gain.value == pytest.approx(1 / (1 - 10 / 100))


def test_a_checkpoint_costs_its_share_of_the_time() -> None:
    found = named(run(rare={"checkpoint": {0: RareSteps(3, 0.2)}}))["ckpt_stall"]
    assert found.ranks == [0]
    assert found.gain.value == pytest.approx(1 / 0.8)
    assert found.gain.low > 1.0
    once = named(run(rare={"checkpoint": {0: RareSteps(1, 0.2), 1: RareSteps(1, 0.2)}}))["ckpt_stall"]
    assert (once.ranks, once.gain.low) == ([], 1.0)
    assert named(run(rare={"checkpoint": {0: RareSteps(3, 0.04)}})) == {}


def test_the_line_of_a_checkpoint_is_the_one_that_saves() -> None:
    saving = SampledFunction(part="checkpoint", function="save", file="train.py", line=7, samples=2)
    seen = run(rare={"checkpoint": {0: RareSteps(3, 0.2)}})
    stacks = {0: hooked(0, places=[place("main", 40), saving]), 1: hooked(1)}
    where = named(changed(seen, stacks=stacks))["ckpt_stall"].where
    assert where is not None
    assert (where.function, where.line) == ("save", 7)
    # Samples of other steps do not tell it.
    assert named(changed(seen, stacks={0: hooked(0, places=[place("main", 40)])}))["ckpt_stall"].where is None


def test_a_validation_on_one_rank_alone() -> None:
    found = named(run(rare={"validation": {0: RareSteps(3, 0.5)}}))["rank0_evaluation"]
    assert found.ranks == [0]
    assert found.gain.value == pytest.approx(2.0)
    assert named(run(rare={"validation": {0: RareSteps(3, 0.5), 1: RareSteps(3, 0.5)}})) == {}
    assert named(run(rare={"validation": {0: RareSteps(3, 0.05)}})) == {}


@pytest.mark.parametrize(
    ("function", "id_"), [("Net.forward", "rank0_evaluation"), ("write_histograms", "rank0_logging")]
)
def test_work_of_one_rank_is_told_by_its_place(function: str, id_: str) -> None:
    seen = run(hosts=(50.0, 10.0))
    mine, others = hooked(0, places=[place(function, 40)]), hooked(1, places=[place(function, 1)])
    found = named(changed(seen, stacks={0: mine, 1: others}))
    assert list(found) == [id_]
    assert found[id_].ranks == [0]
    assert found[id_].where is not None
    assert (found[id_].where.function, found[id_].where.line) == (function, 12)
    assert found[id_].gain.value == pytest.approx(100 / 60)


@pytest.mark.parametrize(
    "function",
    [
        "preprocess",
        "get_batch",
        "logits",
        "<module>",
        "lookup_catalog",
        "fit_logistic",
        "buildTopology",
        "BlogDataset.tokenize",
        "log_mel_spectrogram",
        "log_prob",
    ],
)
def test_work_of_one_rank_whose_name_does_not_say_that_it_logs_has_no_known_mistake(function: str) -> None:
    stacks = {0: hooked(0, places=[place(function, 40)]), 1: hooked(1)}
    assert named(changed(run(hosts=(50.0, 10.0)), stacks=stacks)) == {}


@pytest.mark.parametrize(
    ("file", "function", "logs"),
    [
        ("run_summarization.py", "preprocess", False),
        ("train_metric_learning.py", "shuffle", False),
        ("train_dialog.py", "main", False),
        ("logging_utils.py", "collect", True),
        ("metrics.py", "update", True),
        ("train.py", "TrainLogger.collect", True),
        ("train.py", "_log", True),
        ("train.py", "log_loss", True),
        ("train.py", "loghist", True),
        ("train.py", "writeMetrics", True),
    ],
)
def test_a_name_says_that_code_logs_by_whole_words(file: str, function: str, logs: bool) -> None:
    there = SampledFunction(part="other", function=function, file=f"/job/{file}", line=12, samples=40)
    seen = changed(run(hosts=(50.0, 10.0)), stacks={0: hooked(0, places=[there]), 1: hooked(1)})
    assert ("rank0_logging" in named(seen)) is logs


def test_a_package_that_logs_now_and_then_is_not_where_the_time_goes() -> None:
    inside = SampledFunction(
        part="other", function="add", file="/env/site-packages/wandb/run.py", line=1, samples=4, package=True
    )
    stacks = {0: hooked(0, places=[place("preprocess", 40), inside]), 1: hooked(1)}
    assert named(changed(run(hosts=(50.0, 10.0)), stacks=stacks)) == {}


def test_a_package_that_logs_tells_what_the_function_does() -> None:
    inside = SampledFunction(
        part="other", function="add", file="/env/site-packages/wandb/run.py", line=1, samples=25, package=True
    )
    stacks = {0: hooked(0, places=[place("<module>", 40), inside]), 1: hooked(1)}
    assert list(named(changed(run(hosts=(50.0, 10.0)), stacks=stacks))) == ["rank0_logging"]


def test_layers_of_a_model_count_together() -> None:
    seen, layers = run(hosts=(50.0, 10.0)), [place("Net.forward", 12), place("Layer.forward", 11)]
    found = named(changed(seen, stacks={0: hooked(0, places=layers), 1: hooked(1)}))
    assert list(found) == ["rank0_evaluation"], "23 % of the samples are more than half of 40 %"
    few = [place("Net.forward", 9), place("Layer.forward", 9)]
    assert named(changed(seen, stacks={0: hooked(0, places=few), 1: hooked(1)})) == {}


@pytest.mark.parametrize("samples", [40, 25, 11])
def test_work_that_all_ranks_do_is_not_of_one_rank(samples: int) -> None:
    seen = run(hosts=(50.0, 10.0))
    stacks = {rank: hooked(rank, places=[place("write", 40 if rank == 0 else samples)]) for rank in (0, 1)}
    assert named(changed(seen, stacks=stacks)) == {}
    # The same places with hosts that work as long say nothing.
    apart = {0: hooked(0, places=[place("write", 40)]), 1: hooked(1, places=[])}
    assert named(changed(run(hosts=(12.0, 10.0)), stacks=apart)) == {}


def test_host_work_without_a_place_is_no_mistake() -> None:
    assert named(run(hosts=(50.0, 10.0))) == {}


def test_exchanges_of_all_passes_but_the_last_go() -> None:
    def made(passes: int, *sizes: int, each_pass: bool = True) -> dict[int, RecordedCalls]:
        return dict.fromkeys((0, 1), RecordedCalls(0.0, 0.0, passes, sizes, each_pass))

    # 30 ms of exchange are exposed in each step of 100: three of four passes go.
    found = named(run(calls=made(4, *(8, 4) * 4)))["no_no_sync"]
    assert found.gain.value == pytest.approx(100 / (100 - 30 * 3 / 4))
    assert found.evidence == {"passes_per_step": 4, "collectives_per_step": 8.0}
    assert named(run(calls=made(4, 8, 4))) == {}, "the last pass alone exchanges"
    assert named(run(calls=made(1, 8, 4))) == {}
    assert named(run(calls=made(2, 8, 4, 4, 8))) == {}, "the passes exchange different things"
    both = made(2, 8, 8, each_pass=False)
    assert named(run(calls=both)) == {}, "two models of one size exchange behind both of their passes"


def calls(small: float = 0.0, small_ms: float = 0.0, passes: int = 1) -> dict[int, RecordedCalls]:
    return {rank: RecordedCalls(small, small_ms + 5 * rank, passes, (), False) for rank in (0, 1)}


def test_one_small_collective_per_metric() -> None:
    found = named(run(calls=calls(20.0, 40.0)))["metric_reduces"]
    # Rank 0 waits for nobody in its 40 ms, and one call of 20 stays.
    assert found.gain.value == pytest.approx(100 / (100 - 40 * 19 / 20))
    assert named(run(calls=calls(4.0, 40.0))) == {}
    assert named(run(calls=calls(20.0, 4.0))) == {}
    assert named(run(calls={0: calls(20.0, 40.0)[0]})) == {}


@pytest.mark.parametrize(("passes", "fires"), [(0, True), (4, True), (5, False)])
def test_values_of_each_evaluation_have_to_be_exchanged(passes: int, fires: bool) -> None:
    # 20 small calls are 5 in each of 4 evaluations, and 4 in each of 5; 0: passes differ.
    assert ("metric_reduces" in named(run(calls=calls(20.0, 40.0, passes)))) is fires

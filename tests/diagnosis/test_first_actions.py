"""What a person is told to do first: one direction, a command, and nothing about links that are not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from aorta.artefacts.analysis import RunFacts, Speedup
from aorta.config.schema import Config, DistributedConfig
from aorta.diagnosis.finding import cost_sentence
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.judge import judge
from aorta.diagnosis.observation import Observation
from aorta.metrics.whatif import CollectiveSlot
from aorta.report.next_steps import experiment
from tests.support.analyses import analysis
from tests.support.findings import RECORDS, context, finding

SHARED = "4 ranks share 2 CPUs: times include waiting for a core"


def ddp(bucket_mb: float) -> Config:
    return Config(distributed=DistributedConfig(strategy="ddp", bucket_cap_mb=bucket_mb))


def observed(bucket_mb: float, *places: CollectiveSlot) -> Observation:
    """Two nodes whose DDP exchange was recorded call by call."""
    seen = context(config=ddp(bucket_mb))
    seen = replace(seen, facts=RunFacts(nodes=2))
    model: Any = SimpleNamespace(replays=SimpleNamespace(places=lambda: list(places)))
    return replace(seen, model=model) if places else seen


def bucket_action(seen: Observation) -> str | None:
    said = FINDINGS["communication"].actions(finding("communication"), seen)
    return next((action for action in said if "bucket" in action), None)


def calls(count: int, size: int) -> list[CollectiveSlot]:
    return [CollectiveSlot("all_reduce", "0", number, size, 2.0, 1.9) for number in range(count)]


@pytest.mark.parametrize(
    ("bucket_mb", "places", "command"),
    [
        # 0.2, 1, 5 and 25 MB
        (0.2, [], "--over distributed.bucket_cap_mb=0.2,1,5,25"),
        (100.0, [], "--over distributed.bucket_cap_mb=100,50,25,10"),
        # Many calls of 64 KiB take their latency; two of 50 MB begin too late.
        (25.0, calls(40, 64 << 10), "--over distributed.bucket_cap_mb=25,50,100,200"),
        (25.0, calls(2, 64 << 10), "--over distributed.bucket_cap_mb=25,50,100,200"),
        (25.0, calls(2, 50 << 20), "--over distributed.bucket_cap_mb=25,12.5,6.25,2.5"),
    ],
)
def test_one_direction_for_bucket_sizes_and_the_command_that_tries_it(
    bucket_mb: float, places: list[CollectiveSlot], command: str
) -> None:
    action = bucket_action(observed(bucket_mb, *places))
    assert action is not None
    assert f"aorta sweep --nodes 2 {command}`" in action
    sizes = [float(size) for size in command.partition("=")[2].split(",")]
    assert ("try larger buckets" in action) is (sizes[1] > sizes[0])
    assert ("try smaller buckets" in action) is (sizes[1] < sizes[0])


@pytest.mark.parametrize(
    ("facts", "shape"),
    [
        (RunFacts(job_id="7", nodes=2, world_size=4), "--nodes 2 --procs-per-node 2"),
        (RunFacts(job_id="local-7", nodes=2, world_size=2), "--executor local --nodes 2"),
        (RunFacts(), ""),
    ],
)
def test_the_command_runs_as_the_run_did(facts: RunFacts, shape: str) -> None:
    action = bucket_action(replace(observed(0.2), facts=facts))
    assert action is not None
    assert " ".join(f"aorta sweep {shape} --over".split()) in action


@pytest.mark.parametrize("places", [calls(8, 25 << 20), calls(1, 64 << 10)], ids=["many", "one"])
def test_many_large_calls_and_a_single_small_one_are_no_matter_of_bucket_sizes(
    places: list[CollectiveSlot],
) -> None:
    assert bucket_action(observed(25.0, *places)) is None


def test_the_report_tries_what_the_action_says() -> None:
    action = bucket_action(observed(25.0, *calls(2, 50 << 20)))
    assert action is not None
    command = experiment(analysis(), action, "results/2node/run_102")
    assert command is not None
    assert "--over distributed.bucket_cap_mb=25,12.5,6.25,2.5" in command
    assert "--override" not in command


@pytest.mark.parametrize(
    ("machines", "said"),
    [({0: "a", 1: "a"}, False), ({0: "a", 1: "b"}, True), ({}, True)],
    ids=["one machine", "two machines", "not known"],
)
def test_the_link_between_nodes_is_named_where_there_may_be_one(machines: dict[int, str], said: bool) -> None:
    seen = context(machines=machines)
    actions = FINDINGS["communication"].actions(finding("communication"), seen)
    assert any("link between the nodes" in action for action in actions) is said


def test_ranks_that_share_cores_get_fewer_or_cores_of_their_own_first() -> None:
    seen = context(cores_shared=SHARED)
    (cause,) = [item for item in judge(seen, RECORDS).findings if item.kind == "communication"]
    assert cause.actions[0].startswith("run fewer ranks per node (--procs-per-node)")
    assert cause.actions[0].endswith(SHARED)
    (alone,) = [item for item in judge(context(), RECORDS).findings if item.kind == "communication"]
    assert alone.actions == cause.actions[1:]


@pytest.mark.parametrize(
    ("gained", "said"),
    [
        # The step is 100 ms: without the cause 80 ms (1.25×) or 50 ms (2×).
        (Speedup(low=1.25, high=2.0), "That costs up to 50 of 100 ms per step."),
        (
            Speedup(low=1.25, high=2.0, expected=1.25, basis="bounds"),
            "That costs 20 to 50 of 100 ms per step.",
        ),
        (
            Speedup(low=1.0, high=2.0, expected=1.25, basis="replay"),
            "That costs about 20 of 100 ms per step.",
        ),
        (
            Speedup(low=2.0, high=2.0, expected=2.0, basis="bounds"),
            "That costs 50 of 100 ms per step.",
        ),
        (None, "Averaged over all ranks, that takes 6.50 of 100.0 ms per step."),
    ],
)
def test_an_upper_bound_is_said_as_one_in_the_sentence_of_the_cost(gained: Speedup | None, said: str) -> None:
    found = msgspec.structs.replace(finding("data_loading"), estimated_speedup=gained)
    assert cost_sentence(found, 6.5, context()) == said


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("data_loading", "Rank 1 spends "),
        ("straggler", "Rank 0 spends "),
    ],
)
def test_a_verdict_says_which_rank_waits_for_which(kind: str, said: str) -> None:
    statement = FINDINGS[kind].statement(changed_value(kind, 26.0), context())
    first, second = statement.split(". ")
    assert first.startswith(said)
    assert kind == "data_loading" or first.endswith("waiting for rank 1")
    assert "threshold" not in first
    assert "worst rank" not in statement
    assert second.startswith("That costs ") or second.startswith("Averaged over all ranks, that takes ")


def changed_value(kind: str, value: float) -> Any:
    return msgspec.structs.replace(finding(kind, ranks=[1]), value=value, threshold=20.0)

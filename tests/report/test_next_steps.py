"""Commands that try an action, from the words of the action."""

from __future__ import annotations

import shlex

import pytest

from aorta.diagnosis.actions import FEWER_RANKS
from aorta.report.next_steps import experiment, next_commands
from tests.support.analyses import analysis


def tried(action: str, **changes: object) -> list[str]:
    command = experiment(analysis(**changes), action, "results/2node/run_7")
    return shlex.split(command) if command else []


@pytest.mark.parametrize(
    ("action", "over"),
    [
        (
            "set dataloader.num_workers to 2 or more (now 0, so training stops while each batch is loaded)",
            "num_workers=0,2,4",
        ),
        ("raise dataloader.num_workers, now 4 (8 CPUs are usable on a node)", "num_workers=4,8,16"),
        ("set dataloader.pin_memory to true, so that copies overlap", "pin_memory=false,true"),
        ("set distributed.enable_overlap to true (now false)", "enable_overlap=false,true"),
        ("raise training.gradient_accumulation (now 1) or training.batch_size (now 8)", "accumulation=1,2,4"),
        ("try larger buckets (distributed.bucket_cap_mb, now 0.2): fewer", "bucket_cap_mb=0.2,0.4,0.8"),
        ("lower training.batch_size (now 8), raise training.gradient_accumulation (now 1)", "batch_size=8,4"),
        (
            "set training.mixed_precision to bf16 (now none): activations then take half the memory",
            "precision=none,bf16",
        ),
        ("fsdp.forward_prefetch true (now false)", "forward_prefetch=false,true"),
        (
            "exchange less: fsdp.sharding_strategy is full_shard; shard_grad_op once a step, hybrid_shard",
            "sharding_strategy=full_shard,shard_grad_op,hybrid_shard",
        ),
        ("set dataset.delay_ms to 0 (now 40: each sample sleeps that long)", "delay_ms=40,0"),
    ],
)
def test_the_present_value_is_varied(action: str, over: str) -> None:
    words = tried(action)
    assert words[:2] == ["aorta", "sweep"]
    assert words[words.index("--over") + 1].endswith(over)
    assert words[words.index("--config") + 1] == "results/2node/run_7/config.yaml"
    assert words[words.index("--nodes") + 1] == "2"


@pytest.mark.parametrize(
    ("job", "ranks", "nodes", "command"),
    [
        ("7", 8, 2, "submit --config results/2node/run_7/config.yaml --nodes 2 --procs-per-node 2"),
        ("local-7", 8, 2, "profile --config results/2node/run_7/config.yaml --nodes 2 --procs-per-node 2"),
        # One rank per node: fewer nodes of the machine that they share.
        ("local-7", 4, 4, "profile --config results/2node/run_7/config.yaml --nodes 2 --procs-per-node 1"),
    ],
)
def test_half_of_the_ranks_where_they_share_cores(job: str, ranks: int, nodes: int, command: str) -> None:
    shape = {"job_id": job, "world_size": ranks, "nodes": nodes, "program": "aorta.train (ranking)"}
    assert shlex.join(tried(f"{FEWER_RANKS}: {ranks} ranks share 2 CPUs", **shape)) == f"aorta {command}"


@pytest.mark.parametrize("changes", [{"program": "my_train.py"}, {"world_size": 1, "nodes": 1}])
def test_no_command_with_fewer_ranks_for_an_own_program_or_one_rank(changes: dict[str, object]) -> None:
    shape = {"world_size": 4, "nodes": 2, "program": "aorta.train (ranking)"} | changes
    assert tried(f"{FEWER_RANKS}: ranks share 2 CPUs", **shape) == []


def test_what_belongs_to_the_change_is_set_with_it() -> None:
    words = tried("set compile.enabled to true (now false), compile.mode to reduce-overhead (now default)")
    assert words[words.index("--over") + 1] == "compile.enabled=false,true"
    assert words[words.index("--override") + 1] == "compile.mode=reduce-overhead"


@pytest.mark.parametrize(
    "action",
    [
        "remove .item(), .cpu() and printing",
        "raise dataloader.num_workers",  # from what, nobody says
        "see aorta.dev and no.such_key (now 4)",
        "training (now 4)",
    ],
)
def test_an_action_without_a_key_and_its_value_has_no_command(action: str) -> None:
    assert tried(action) == []


def test_a_local_run_is_tried_here_with_as_many_processes() -> None:
    words = tried("raise training.batch_size (now 8)", job_id="local-3-1", nodes=2, world_size=8)
    assert words[words.index("--executor") + 1] == "local"
    assert words[words.index("--procs-per-node") + 1] == "4"  # 8 ranks on 2 nodes
    assert "--executor" not in tried("raise training.batch_size (now 8)", job_id="102")


def test_paths_are_quoted() -> None:
    command = experiment(analysis(), "raise training.batch_size (now 8)", "a b;rm/run_1")
    assert command is not None
    assert "'a b;rm/run_1/config.yaml'" in command
    assert all("'a b;rm/run_1'" in said for _, said in next_commands("a b;rm/run_1"))

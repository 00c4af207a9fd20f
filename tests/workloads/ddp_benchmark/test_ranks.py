"""Two real ranks on gloo: numbers, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120
PROGRAM = [sys.executable, "-m", "tests.workloads.ddp_benchmark.ranks"]


def environment() -> dict[str, str]:
    foreign = ("AORTA_", "SLURM_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks found, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [*PROGRAM, "compare", str(folder)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"found_{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("kind", ["plain", "odd"])
def test_every_implementation_trains_like_torch_ddp(found: list[dict[str, Any]], kind: str) -> None:
    reference, *others = found[0][kind]
    names = ["torch_ddp", "ddp", "ddp_individual", "ddp_individual_v2", "ddp_bucketed"]
    assert [other["name"] for other in others] == names
    for other in others:
        for mine, theirs in zip(other["weights"], reference["weights"], strict=True):
            assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5), other["name"]


@pytest.mark.parametrize("kind", ["plain", "odd"])
def test_all_ranks_end_with_the_same_weights(found: list[dict[str, Any]], kind: str) -> None:
    # They began with different ones, and each had its own tokens.
    assert [[one["same"] for one in rank[kind]] for rank in found] == [[True] * 6] * 2


def test_a_parameter_that_no_rank_used_has_no_gradient(found: list[dict[str, Any]]) -> None:
    unused = ["frozen", "never.weight", "never.bias"]
    for rank in found:
        # Rank 0 did not use `sometimes` either, but rank 1 did: it has rank 1's gradient, halved.
        assert [sorted(one["absent"]) for one in rank["odd"]] == [sorted(unused)] * 6
        assert [one["absent"] for one in rank["plain"]] == [[]] * 6


def test_gradients_are_means(found: list[dict[str, Any]]) -> None:
    kinds = ["TorchDdp", "Synchronous", "Individual", "IndividualV2", "Bucketed"]
    for rank in found:
        assert rank["mean"] == {kind: [(1 + 2) / 2] for kind in kinds}


def test_gradients_zeroed_in_place_are_still_means(found: list[dict[str, Any]]) -> None:
    assert [rank["kept"] for rank in found] == [[1.5]] * 2


def test_gradients_are_views_of_buckets_that_were_made_once(found: list[dict[str, Any]]) -> None:
    for rank in found:
        for kind in ("plain", "odd"):
            bucketed = rank[kind][-1]
            assert len(bucketed["flats"]) > 1
            assert bucketed["places"] == [bucketed["flats"]] * 5


def test_buckets_are_in_reverse_order(found: list[dict[str, Any]]) -> None:
    for rank in found:
        buckets = rank["plain"][-1]["buckets"]
        registered = [len(weight) for weight in rank["plain"][-1]["weights"]]
        assert rank["plain"][-1]["sent"] == registered[::-1] != registered
        assert [index for bucket in buckets for index in bucket] == list(
            range(len(rank["plain"][0]["weights"]))
        )


def test_collectives_and_bytes(found: list[dict[str, Any]]) -> None:
    for rank in found:
        _, observed, ddp, individual, v2, bucketed = rank["plain"]
        parameters = len(ddp["weights"])
        numbers = sum(len(weight) for weight in ddp["weights"])
        for one in (ddp, individual, v2):  # a collective a parameter, and one that says which were used
            assert {item["collectives"] for item in one["samples"]} == {parameters + 1}
            assert {item["bytes"] for item in one["samples"]} == {4 * (numbers + parameters)}
        assert {item["collectives"] for item in bucketed["samples"]} == {len(bucketed["buckets"])}
        assert {item["bytes"] for item in bucketed["samples"]} == {4 * (numbers + parameters)}
        # Once, DDP tells the other ranks the order of its buckets.
        more = sorted(item["bytes"] - 4 * numbers for item in observed["samples"])
        assert more[0] == 0
        assert sum(extra > 0 for extra in more) <= 1


def test_communication_is_hidden_or_exposed(found: list[dict[str, Any]]) -> None:
    for rank in found:
        for one in rank["plain"][1:]:
            for item in one["samples"]:
                assert item["hidden"] + item["exposed"] == item["comm"]
                assert 0 < item["comm"] <= item["total"]
        assert {item["hidden"] for item in rank["plain"][2]["samples"]} == {0}  # ddp hides nothing
        assert sum(item["hidden"] for item in rank["plain"][5]["samples"]) > 0


def test_communication_of_the_plain_reference_is_absent_not_zero(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert {item["comm"] for item in rank["plain"][0]["samples"]} == {None}


def run_failing(how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, "fail", how],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_error_of_a_rank_ends_the_job() -> None:
    done = run_failing("error")
    assert done.returncode == 1
    assert "aorta: rank 1 failed (exit code 1): ValueError: rank 1 had enough" in done.stderr
    assert "in fail" in done.stderr  # its traceback
    assert "rank 0 failed" not in done.stderr


def test_a_killed_rank_ends_the_job() -> None:
    done = run_failing("kill")
    assert done.returncode == 1
    assert "aorta: rank 1 failed (exit code -9): Signal 9 (SIGKILL)" in done.stderr


def test_a_signal_ends_every_rank() -> None:
    process = subprocess.Popen(
        [*PROGRAM, "fail", "hang"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children: list[psutil.Process] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert "stopped by SIGTERM; every rank was stopped" in said
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []

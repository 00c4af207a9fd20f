"""Requested against used: what is asked for, what is measured, and what may be asked for next time."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pandas as pd
import pytest

from aorta.artefacts.records import Manifest
from aorta.artefacts.resources import ResourceTable, ResourceUse
from aorta.diagnosis.resources import resources
from aorta.readers.run import RunData, read_run
from aorta.readers.sacct import Accounting, elapsed_seconds
from aorta.report.resources import next_time, resource_table
from tests.support.run_spec import RunSpec
from tests.support.synthetic import write_run

GIB = 1 << 30
JOB = {
    "JobID": "101", "State": "COMPLETED", "Elapsed": "00:10:00", "Timelimit": "02:00:00", "NNodes": "2",
    "AllocCPUS": "16", "TotalCPU": "00:20:00", "ReqMem": "64G",
}  # fmt: skip
STEP = {"JobID": "101.0", "State": "COMPLETED", "MaxRSS": "3G", "NTasks": "2"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    folder = tmp_path_factory.mktemp("resources")
    return read_run(write_run(folder, RunSpec(nodes=2, steps=15)), query_accounting=False)


def with_(
    data: RunData,
    *,
    job: dict[str, str] | None = None,
    cpu: pd.DataFrame | None = None,
    gpu: pd.DataFrame | None = None,
    gpus_per_node: int | None = None,
    of_job: bool | None = True,
) -> ResourceTable:
    assert data.account.manifest is not None
    plan = msgspec.structs.replace(data.account.manifest.plan, gpus_per_node=gpus_per_node, nodes=2)
    nodes = [msgspec.structs.replace(node, memory_of_job=of_job) for node in data.account.manifest.nodes]
    made: Manifest = msgspec.structs.replace(data.account.manifest, plan=plan, nodes=nodes)
    attempts = (({**JOB, **(job or {})}, STEP),)
    found = resources(
        replace(
            data,
            account=replace(data.account, manifest=made),
            accounting=Accounting(attempts=attempts),
            cpu=cpu,
            gpu=gpu,
        )
    )
    assert found is not None
    return found


def row(found: ResourceTable, what: str) -> ResourceUse:
    return next(one for one in found.rows if one.what == what)


def samples(**columns: list[float | None]) -> pd.DataFrame:
    return pd.DataFrame({"node_index": [0, 0, 1, 1], **columns}).astype(dict.fromkeys(columns, "float64"))


def test_accounting_alone(data: RunData) -> None:
    found = with_(data)
    time, memory, cpus = (row(found, what) for what in ("time", "memory", "cpus"))
    assert (time.requested, time.used, time.used_pct) == (7200, 600, 100 * 600 / 7200)
    assert (memory.requested, memory.used) == (64 * GIB, 2 * 3 * GIB)
    assert (cpus.requested, cpus.used) == (16, 1200 / 600)
    assert [one.what for one in found.rows] == ["time", "memory", "cpus"], "no GPU was asked for"
    # 600 s and a fifth are 720 s, in steps of five minutes 900 s.
    # 6 GiB and a fifth on two nodes are 4 GiB each.
    assert found.sbatch == ["--time=00:15:00", "--mem=4G"], "a mean of CPUs gives no option"


def test_samples_win_over_accounting(data: RunData) -> None:
    cpu = samples(
        job_memory_used_bytes=[1 * GIB, 9 * GIB, 4 * GIB, 5 * GIB],
        job_cpu_percent=[50, 250, 100, 150],
    )
    found = with_(data, cpu=cpu)
    assert row(found, "memory").used == 9 * GIB + 5 * GIB
    assert row(found, "cpus").used == 2.5 + 1.5
    # 14 GiB and a fifth are 16.8, on two nodes 9 each; 4 CPUs and a fifth are 4.8, on two nodes 3 each.
    assert found.sbatch == ["--time=00:15:00", "--mem=9G", "--cpus-per-task=3"]


@pytest.mark.parametrize("of_job", [None, False])
def test_a_cgroup_that_is_not_the_jobs_says_nothing_of_it(data: RunData, of_job: bool | None) -> None:
    cpu = samples(job_memory_used_bytes=[90 * GIB] * 4, job_cpu_percent=[900] * 4)
    found = with_(data, cpu=cpu, of_job=of_job)
    assert row(found, "memory").used == 6 * GIB
    assert row(found, "cpus").used == 1200 / 600
    still = with_(data, cpu=samples(job_memory_used_bytes=[0] * 4, job_cpu_percent=[0] * 4))
    assert (row(still, "memory").used, row(still, "cpus").used) == (0, 0), "a measured 0 is 0"


def test_a_node_without_samples_leaves_the_sum_unknown(data: RunData) -> None:
    cpu = samples(
        job_memory_used_bytes=[GIB, GIB, None, None],
        job_cpu_percent=[None] * 4,
    )
    found = with_(data, cpu=cpu, job={"TotalCPU": ""})
    assert row(found, "memory").used == 6 * GIB
    assert row(found, "cpus").used is None
    assert row(found, "cpus").used_pct is None


def test_gpus_that_ran_nothing(data: RunData) -> None:
    gpu = pd.DataFrame(
        {"node_index": [0, 0, 1, 1], "gpu_id": [0, 1, 0, 1], "utilization_gpu": [90.0, 0, 80, 0]}
    )
    found = with_(data, gpu=gpu, gpus_per_node=2)
    assert (row(found, "gpus").requested, row(found, "gpus").used) == (4, 2)
    assert "--gpus-per-node=1" in found.sbatch
    unknown = with_(data, gpu=gpu.assign(utilization_gpu=float("nan")), gpus_per_node=2)
    assert row(unknown, "gpus").used is None
    assert not any("gpus" in line for line in unknown.sbatch)


@pytest.mark.parametrize("state", ["TIMEOUT", "CANCELLED by 0", "FAILED", "OUT_OF_MEMORY", "RUNNING"])
def test_a_job_that_did_not_end_by_itself_gives_no_advice(data: RunData, state: str) -> None:
    found = with_(data, job={"State": state})
    assert found.sbatch == []
    assert "did not end by itself" in next_time(found)


def test_a_request_that_was_needed_gives_no_advice(data: RunData) -> None:
    assert with_(data, job={"Timelimit": "00:15:00", "ReqMem": "8G"}).sbatch == []


def test_outside_slurm_there_is_nothing_to_compare(data: RunData) -> None:
    assert data.account.manifest is not None
    local = msgspec.structs.replace(data.account.manifest, executor="local")
    assert resources(replace(data, account=replace(data.account, manifest=local))) is None


def test_the_table_in_words(data: RunData) -> None:
    found = with_(data, job={"Timelimit": "UNLIMITED"}, gpus_per_node=None)
    rows = resource_table(found).rows
    assert rows[0][1:4] == ("—", "0:10:00", "—") or rows[0][2] == "0:10:00"
    assert rows[1][1:4] == ("64.0 GiB", "6.00 GiB", "9")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:10:00", 600), ("1-02:03:04", 93784), ("00:14.070", 14.07), ("02:03", 123),
        ("", None), ("UNLIMITED", None), ("Partition_Limit", None), ("12", None),
    ],
)  # fmt: skip
def test_durations_of_accounting(text: str, seconds: float | None) -> None:
    assert elapsed_seconds(text) == (pytest.approx(seconds) if seconds is not None else None)

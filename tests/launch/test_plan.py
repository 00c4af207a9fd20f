"""Plans, and what is refused before anything is submitted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aorta.artefacts.layout import Scenario
from aorta.artefacts.submissions import SubmissionDir
from aorta.errors import PlanError
from aorta.launch.plan import LaunchPlan, LaunchRequest, agent_arguments, make_plans, parse_scenarios
from aorta.launch.site import Site, ask_site
from aorta.launch.storage import Storage
from tests.support.slurm import cluster

SHARED = Storage(Path("/shared/results"), True, "nfs4", "/shared")
LOCAL = Storage(Path("/results"), True, "ext4", "/")


@pytest.fixture
def site() -> Site:
    return ask_site("me", cluster())


def request(*names: str, **changes: Any) -> LaunchRequest:
    return LaunchRequest(
        scenarios=tuple(Scenario(name) for name in names or ("1node", "2node", "4node")),
        aorta=("/venv/bin/aorta",),
        project=Path("/project"),
        results=Path("/shared/results"),
        submission=SubmissionDir(Path("/shared/results/run_1")),
        **changes,
    )


def plan(site: Site, *names: str, storage: Storage = SHARED, **changes: Any) -> list[LaunchPlan]:
    return make_plans(request(*names, **changes), storage, site)


def refused(site: Site, *names: str, storage: Storage = SHARED, **changes: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan(site, *names, storage=storage, **changes)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_one_plan_a_scenario(site: Site) -> None:
    plans = plan(site)
    assert [(item.scenario, item.nodes) for item in plans] == [("1node", 1), ("2node", 2), ("4node", 4)]
    assert plans[1].config == "/shared/results/run_1/2node.yaml"
    assert plans[1].output == "/shared/results/profile_2node_%j.out"
    assert plans[0].time_limit_s == 30 * 60


def test_a_percent_sign_in_the_folder_is_no_pattern(site: Site) -> None:
    [item] = make_plans(replace(request("1node"), results=Path("/a%j")), SHARED, site)
    assert item.output == "/a%%j/profile_1node_%j.out"


def test_the_cpu_family_asks_for_no_gpus(site: Site) -> None:
    [on_cpu] = plan(site, "cpu_2node", partition="gpu", gpus_per_node=4)
    [on_gpu] = plan(site, "2node", partition="gpu", gpus_per_node=4)
    assert (on_cpu.gpus_per_node, on_gpu.gpus_per_node) == (None, 4)


def test_zero_gpus_are_no_request(site: Site) -> None:
    [item] = plan(site, "1node", gpus_per_node=0)
    assert item.gpus_per_node is None


@pytest.mark.parametrize(
    ("scenarios", "nodes", "names"),
    [
        (None, None, ["1node", "2node", "4node"]),
        ("1node, cpu_2node", None, ["1node", "cpu_2node"]),
        (None, "1,8", ["1node", "8node"]),
    ],
)
def test_scenarios(scenarios: str | None, nodes: str | None, names: list[str]) -> None:
    assert [item.name for item in parse_scenarios(scenarios, nodes)] == names


@pytest.mark.parametrize(
    ("scenarios", "nodes"),
    [
        ("two", None),
        ("0node", None),
        (None, "0"),
        (None, "1,x"),
        (None, "²"),
        ("1node,1node", None),
        ("1node", "1"),
    ],
)
def test_scenarios_that_are_none(scenarios: str | None, nodes: str | None) -> None:
    with pytest.raises(PlanError):
        parse_scenarios(scenarios, nodes)


def test_tasks_and_processes_do_not_multiply(site: Site) -> None:
    message = refused(site, tasks_per_node=8, processes_per_node=8)
    assert "64 processes per node" in message
    assert plan(site, processes_per_node=8)[0].processes_per_node == 8


def test_tasks_multiply_with_the_gpus_too(site: Site) -> None:
    assert "8 processes per node" in refused(site, partition="gpu", gpus_per_node=4, tasks_per_node=2)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("torchrun", "--nproc_per_node", "8", "x.py"), "torchrun"),
        (("/opt/bin/torchrun", "--nproc-per-node=8", "x.py"), "torchrun"),
        (("python3", "-m", "torch.distributed.run", "--nproc_per_node=8", "x.py"), "torch.distributed.run"),
        (("srun", "python", "x.py"), "srun"),
        (("accelerate", "launch", "--num_processes", "8", "x.py"), "accelerate launch"),
    ],
)
def test_a_launcher_inside_the_launcher(site: Site, command: tuple[str, ...], said: str) -> None:
    message = refused(site, "1node", partition="gpu", gpus_per_node=4, command=command)
    assert said in message
    assert ("4 × 8 = 32 processes" in message) == any("8" in word for word in command)


def test_a_program_that_only_looks_like_one(site: Site) -> None:
    [item] = plan(site, "1node", command=("python", "-m", "mymodule", "torchrun"))
    assert item.command[2] == "mymodule"


def test_a_script_that_is_not_there(site: Site) -> None:
    assert "missing.py" in refused(site, command=("missing.py",))


def test_more_gpus_than_a_node_has(site: Site) -> None:
    message = refused(site, "1node", partition="gpu", gpus_per_node=8)
    assert "8 GPUs per node" in message
    assert "have 4" in message
    assert plan(site, "1node", partition="gpu", gpus_per_node=4)[0].gpus_per_node == 4


def test_more_processes_than_gpus(site: Site) -> None:
    assert "share 4 GPUs" in refused(site, partition="gpu", gpus_per_node=4, processes_per_node=5)


def test_more_nodes_than_there_are(site: Site) -> None:
    message = refused(site, "1node", "4node", partition="gpu", gpus_per_node=4)
    assert "4node: 4 nodes" in message
    assert "has 2" in message


@pytest.mark.parametrize("partition", ["nowhere", "debug,nowhere", ""])
def test_an_unknown_partition(site: Site, partition: str) -> None:
    assert "does not exist" in refused(site, partition=partition)


def test_a_partition_that_is_down() -> None:
    from aorta.launch.tools import ToolAnswer

    down = ask_site("me", cluster(sinfo=ToolAnswer(0, "debug|down|infinite|4|(null)|node[1-4]\n")))
    assert "is down" in refused(down, partition="debug")
    assert "no default partition" in refused(down)


def test_one_of_several_partitions_is_enough(site: Site) -> None:
    assert plan(site, "4node", partition="gpu,debug")[0].partition == "gpu,debug"


def test_an_account_of_someone_else(site: Site) -> None:
    assert "'theirs' is not one of yours" in refused(site, account="theirs")
    assert plan(site, account="LAB")[0].account == "LAB"
    without = replace(site, accounts=None)
    assert plan(without, account="theirs")[0].account == "theirs"


@pytest.mark.parametrize("limit", ["soon", "", "-3", "1:2:3:4"])
def test_no_time_limit(site: Site, limit: str) -> None:
    assert "is not a time limit" in refused(site, time_limit=limit)


def test_a_limit_must_leave_time_to_end(site: Site) -> None:
    assert "150 s before the limit" in refused(site, time_limit="00:02:30")
    assert plan(site, time_limit="00:02:31")[0].time_limit_s == 151


def test_a_limit_that_the_partition_does_not_allow(site: Site) -> None:
    assert "longer than partition 'debug'" in refused(site, time_limit="01:00:01")
    assert plan(site, time_limit="01:00:00")[0].time_limit == "01:00:00"


def test_a_folder_that_cannot_be_written(site: Site) -> None:
    assert "not writable" in refused(site, storage=replace(SHARED, writable=False))


def test_a_folder_that_other_nodes_cannot_see(site: Site) -> None:
    message = refused(site, "1node", partition="gpu", storage=LOCAL)
    assert "ext4" in message
    assert "node g1 and 1 more cannot see" in message
    assert plan(site, "1node", partition="gpu", storage=LOCAL, assume_shared=True)
    assert plan(site, "1node", partition="gpu", storage=SHARED)


def test_a_local_folder_is_fine_where_every_node_is_this_machine(site: Site) -> None:
    assert len(plan(site, storage=LOCAL)) == 3
    elsewhere = replace(site, nodes_here=site.nodes_here - {"node3"})
    assert "node3" in refused(elsewhere, storage=LOCAL)


@pytest.mark.parametrize(
    "line", ["--mem=64G", "#SBATCH --exclude=n7", "--gres=gpu:4 --hint=nomultithread", "--gpus=4"]
)
def test_extra_lines(site: Site, line: str) -> None:
    assert plan(site, sbatch_lines=(line,))[0].sbatch_lines == (line,)


@pytest.mark.parametrize(
    "line",
    [
        "--nodes=9",
        "--node=9",
        "--ntasks=8",
        "--ntasks-per-node=8",
        "--output=x",
        "--outp=x",
        "--array=1-9",
        "--mem=1G --array=1-9",
        "--wrap=id",
        "--time=5",
        "--signal=USR1@5",
        "-N9",
        "-o x",
        "--mem 1G -N 9",
        "mem=1G",
        "",
        "--comment='open",
        "--mem=1G\n#SBATCH --nodes=9",
        "--mem=1G\r--nodes=9",
        "--comment=\x1b[2J",
    ],
)
def test_extra_lines_that_are_refused(site: Site, line: str) -> None:
    assert "--sbatch-line" in refused(site, sbatch_lines=(line,))


@pytest.mark.parametrize("name", ["processes_per_node", "cpus_per_task", "tasks_per_node"])
def test_counts_are_positive(site: Site, name: str) -> None:
    assert f"--{name.replace('_', '-')} is 0" in refused(site, **{name: 0})


def test_without_slurm_only_this_machine_is_checked() -> None:
    assert len(make_plans(request(), LOCAL, None)) == 3
    with pytest.raises(PlanError, match="not writable"):
        make_plans(request(), replace(LOCAL, writable=False), None)


def test_arguments_of_the_agent(site: Site) -> None:
    [item] = plan(site, "2node", profiler="none", processes_per_node=2, monitor_interval_s=0.5)
    assert [word for group in agent_arguments(item) for word in group] == (
        "--scenario 2node --results /shared/results --config /shared/results/run_1/2node.yaml "
        "--profiler none --procs-per-node 2 --monitor-interval 0.5"
    ).split()


@pytest.mark.parametrize("nodes", ["99999999999999999999", "9" * 6000, "1000000", "-1", "0"])
def test_a_number_of_nodes_that_cannot_be(nodes: str) -> None:
    with pytest.raises(PlanError, match="is not a number of nodes between 1 and 999999"):
        parse_scenarios(None, nodes)
    with pytest.raises(PlanError, match="is not a name such as"):
        parse_scenarios(f"{nodes}node", None)


def test_more_processes_than_a_machine_runs(site: Site) -> None:
    with pytest.raises(PlanError, match="--procs-per-node is 100000; at most 1024 are started on a node"):
        make_plans(request("1node", processes_per_node=100_000), SHARED, site)
    with pytest.raises(PlanError, match="9999 nodes of 1 processes are 9999 processes on this machine"):
        make_plans(request("9999node"), SHARED, None)

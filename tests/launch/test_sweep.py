"""Plans of sweeps: what is refused, the points, and the text of the array's script."""

from dataclasses import replace
from pathlib import Path

import pytest

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import Scenario
from aorta.artefacts.submissions import SubmissionDir
from aorta.artefacts.sweep import Sweep, SweepPoint, words
from aorta.config.load import load_config
from aorta.errors import ConfigError, PlanError, SubmitError
from aorta.launch.plan import LaunchPlan
from aorta.launch.sbatch import render
from aorta.launch.submitted import read_jobs, read_sweep
from aorta.launch.sweep import SweepRequest, array_plan, make_sweep, parse_over, point_config, point_plan
from aorta.launch.sweep_submission import open_sweep, submit_sweep
from aorta.launch.tools import ToolAnswer
from tests.launch.test_sbatch import PLAN, run_script
from tests.support.slurm import cluster

BASE = replace(PLAN, config="unused", output="unused")

GOLDEN = """\
#!/bin/bash
#SBATCH --job-name=profile_2node
#SBATCH --array=0-2%1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:30:00
#SBATCH --output=/shared/results/profile_2node_%A_%a.out
#SBATCH --open-mode=append
#SBATCH --signal=TERM@90

set -euo pipefail
cd /project

# One task per node: the node agent. exec, so that scancel and the signal before the limit reach it by srun.
# Which node a task is on is known only inside srun, so nothing of it is expanded here.
exec srun \\
    --nodes=2 --ntasks=2 --ntasks-per-node=1 \\
    ${SLURM_CPUS_PER_TASK:+--cpus-per-task="${SLURM_CPUS_PER_TASK}"} \\
    --kill-on-bad-exit=0 --wait=0 \\
    /venv/bin/aorta run-node \\
    --scenario 2node \\
    --results /shared/results \\
    --config /shared/results/run_1/points/2node/"${SLURM_ARRAY_TASK_ID}".yaml \\
    --job-id "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" \\
    --profiler none \\
    --script "$0"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("training: {batch_size: 8}\n")
    return path


def request(config: Path, *nodes: int, **changes: object) -> SweepRequest:
    plain = SweepRequest(
        scenarios=tuple(Scenario(f"{count}node") for count in nodes or (1,)),
        over={},
        repeats=1,
        strong=None,
        weak=False,
        ranks_per_node=1,
        config=config,
        overrides=(),
        executor="slurm",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def points(scenario: str, count: int) -> list[SweepPoint]:
    nodes = Scenario(scenario).nodes
    return [
        SweepPoint(scenario=scenario, nodes=nodes, task=task, values={}, repeat=task + 1)
        for task in range(count)
    ]


def test_the_whole_text() -> None:
    plan = array_plan(
        replace(BASE, profiler="none"), SubmissionDir(Path("/shared/results/run_1")), points("2node", 3), 1
    )
    assert render(plan) == GOLDEN


def test_without_a_limit_the_array_has_none() -> None:
    plan = array_plan(BASE, SubmissionDir(Path("/r/run_1")), points("2node", 3), None)
    assert "#SBATCH --array=0-2\n" in render(plan)


def test_a_task_finds_its_own_configuration_and_name(tmp_path: Path) -> None:
    submission = SubmissionDir(tmp_path / "run 1; x")
    plan = array_plan(replace(BASE, project=str(tmp_path)), submission, points("2node", 8), None)
    given = run_script(render(plan), tmp_path, {"SLURM_ARRAY_JOB_ID": "123", "SLURM_ARRAY_TASK_ID": "4"})
    assert given[given.index("--job-id") + 1] == "123_4"
    assert given[given.index("--config") + 1] == str(point_config(submission, points("2node", 8)[4]))


def test_on_this_machine_a_point_is_a_plan_of_its_own() -> None:
    plan = point_plan(BASE, SubmissionDir(Path("/r/run_1")), points("2node", 2)[1])
    assert (plan.config, plan.array, plan.job_id) == ("/r/run_1/points/2node/1.yaml", None, None)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("training.batch_size=8,16", ("8", "16")),
        ("optimizer.betas=[0.9,0.98],[0.8,0.9]", ("[0.9,0.98]", "[0.8,0.9]")),
        ("distributed.env={A: '1,2'}", ("{A: '1,2'}",)),
        ("training.output_dir='a,b',c", ("'a,b'", "c")),
        ("fsdp.shard_size=null,2", ("null", "2")),
    ],
)
def test_values_are_separated_by_commas_of_their_own(text: str, values: tuple[str, ...]) -> None:
    assert parse_over([text]) == {text.partition("=")[0]: values}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["training.batch_size"], "is not written as"),
        (["8=9"], "is not written as"),
        (["a.b="], "empty value"),
        (["a.b=1,,2"], "empty value"),
        (["a.b=1,1"], "value 1 is given twice"),
        (["a.b=1", "a.b=2"], "a.b comes twice"),
    ],
)
def test_what_cannot_be_swept(texts: list[str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse_over(texts)


def test_every_combination_in_rounds(config: Path) -> None:
    over = {"training.batch_size": ("8", "16"), "dataloader.num_workers": ("0", "2")}
    sweep, configs = make_sweep(request(config, 1, 2, over=over, repeats=3))
    assert len(sweep.points) == len(configs) == 2 * 3 * 2 * 2
    first = sweep.points[:12]
    assert [point.task for point in first] == list(range(12))
    assert [point.repeat for point in first] == [1] * 4 + [2] * 4 + [3] * 4
    assert [words(point.values) for point in first[:4]] == [
        "batch_size=8 num_workers=0",
        "batch_size=8 num_workers=2",
        "batch_size=16 num_workers=0",
        "batch_size=16 num_workers=2",
    ]
    assert [point.task for point in sweep.points[12:]] == list(range(12))
    assert (configs[3].training.batch_size, configs[3].dataloader.num_workers) == (16, 2)
    assert (sweep.scaling, sweep.global_batch) == ("weak", None)


def test_keys_that_end_alike_are_told_apart() -> None:
    assert words({"dataset.seed": "1", "training.seed": "2"}) == "dataset.seed=1 training.seed=2"


def test_one_number_of_nodes_is_no_scaling(config: Path) -> None:
    sweep, _ = make_sweep(request(config, 2, over={"training.seed": ("1", "2")}))
    assert sweep.scaling is None


def test_strong_scaling_shares_the_global_batch(config: Path) -> None:
    sweep, configs = make_sweep(
        request(config, 1, 2, 4, strong=64, ranks_per_node=2, overrides=("training.gradient_accumulation=2",))
    )
    assert [item.training.batch_size for item in configs] == [64 // (n * 2 * 2) for n in (1, 2, 4)]
    assert [point.per_rank_batch for point in sweep.points] == [16, 8, 4]
    assert (sweep.scaling, sweep.global_batch) == ("strong", 64)


def test_weak_scaling_keeps_each_rank_its_batch(config: Path) -> None:
    sweep, configs = make_sweep(request(config, 1, 4, weak=True))
    assert [item.training.batch_size for item in configs] == [8, 8]
    assert sweep.points[0].per_rank_batch is None


@pytest.mark.parametrize(
    ("nodes", "changes", "message"),
    [
        ((1, 2), {"strong": 8, "weak": True}, "cannot be used together"),
        ((2,), {"strong": 8}, "at least two numbers of nodes"),
        ((2,), {"weak": True}, "at least two numbers of nodes"),
        ((1, 3), {"strong": 16}, "3node: a global batch of 16 cannot be divided evenly among 3 ranks"),
        ((1, 4), {"strong": 2}, "4node: a global batch of 2 "),
        ((1, 2), {"strong": 8, "over": {"training.batch_size": ("1", "2")}}, "--strong sets training.batch"),
        ((1, 2), {"strong": 8, "overrides": ("training.batch_size=4",)}, "--strong sets training.batch_size"),
        ((1, 2), {"strong": 8, "own_program": True}, "your own program"),
        ((1,), {}, "nothing varies"),
        (
            (1,),
            {"over": {"training.seed": ("1",)}, "overrides": ("training.seed=2",)},
            "in both --over and --override",
        ),
        ((1,), {"over": {"training.seed": ("1", "01")}}, "seed=1 and seed=01 are the same"),
    ],
)
def test_refused(config: Path, nodes: tuple[int, ...], changes: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_sweep(request(config, *nodes, **changes))


def test_families_do_not_mix(config: Path) -> None:
    scenarios = (Scenario("1node"), Scenario("cpu_2node"))
    with pytest.raises(PlanError, match="families"):
        make_sweep(request(config, scenarios=scenarios))


@pytest.mark.parametrize(("key", "value"), [("training.batchsize", "8"), ("training.batch_size", "many")])
def test_a_key_or_value_that_does_not_exist(config: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        make_sweep(request(config, over={key: (value, "9")}))


def prepared(tmp_path: Path, config: Path) -> tuple[SubmissionDir, Sweep, list[LaunchPlan]]:
    sweep, configs = make_sweep(request(config, 1, 2, over={"training.batch_size": ("2", "4")}))
    submission = SubmissionDir(tmp_path / "results" / "run_1")
    open_sweep(submission, sweep, configs)
    plans = [
        replace(BASE, scenario=f"{nodes}node", nodes=nodes, results=str(tmp_path / "results"))
        for nodes in (1, 2)
    ]
    return submission, sweep, plans


def test_everything_is_on_disk_before_anything_is_submitted(tmp_path: Path, config: Path) -> None:
    submission, sweep, _ = prepared(tmp_path, config)
    assert read_sweep(submission) == sweep
    assert [point.job_id for point in sweep.points] == [None] * 4
    for point, batch in zip(sweep.points, (2, 4, 2, 4), strict=True):
        assert load_config(point_config(submission, point)).training.batch_size == batch
    assert submission.prepared() == []


@pytest.mark.parametrize(("at_most", "dependency"), [(1, True), (None, False)])
def test_arrays_are_recorded_task_by_task(
    tmp_path: Path, config: Path, at_most: int | None, dependency: bool
) -> None:
    submission, sweep, plans = prepared(tmp_path, config)
    fake = cluster()
    told: list[str] = []
    arrays = submit_sweep(
        plans, submission, sweep, fake, lambda array, jobs: told.append(f"{array}: {len(jobs)}"),
        at_most=at_most,
    )  # fmt: skip
    assert arrays == ["101", "102"]
    assert told == ["101: 2", "102: 2"]
    assert submission.job_ids.read_text().split() == ["101_0", "101_1", "102_0", "102_1"]
    assert [point.job_id for point in read_sweep(submission).points] == ["101_0", "101_1", "102_0", "102_1"]
    assert Path(read_jobs(submission)[3].run_dir) == tmp_path / "results/2node/run_102_1"
    assert ("--dependency=afterany:101" in fake.asked[1]) is dependency


def test_a_refused_array_loses_nothing_of_those_before(tmp_path: Path, config: Path) -> None:
    submission, sweep, plans = prepared(tmp_path, config)
    answers = iter(
        [ToolAnswer(0, "101\n"), ToolAnswer(1, err="sbatch: error: Invalid job array specification")]
    )
    fake = cluster(sbatch=lambda argv: next(answers))
    with pytest.raises(SubmitError, match=r"array specification\n.*101"):
        submit_sweep(plans, submission, sweep, fake, lambda array, jobs: None, at_most=None)
    kept = read_json(submission.sweep, Sweep)
    assert [point.job_id for point in kept.points] == ["101_0", "101_1", None, None]

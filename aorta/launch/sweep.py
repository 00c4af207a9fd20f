"""A sweep: every combination of values × repeats × numbers of nodes, as points. Nothing here executes.

The points of one scenario are the tasks of one job array, in rounds: the first repeat of every setting, then
the second, so that a slow drift of the machine falls on all settings alike.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from aorta.artefacts.layout import Scenario, job_output
from aorta.artefacts.submissions import SubmissionDir
from aorta.artefacts.sweep import Sweep, SweepPoint, words
from aorta.config.load import load_config
from aorta.config.schema import Config
from aorta.errors import PlanError
from aorta.launch.plan import CPU_FAMILY, CPU_OVERRIDES, LaunchPlan
from aorta.launch.sbatch import Shell, quote

BATCH = "training.batch_size"
_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_FORM = "write --over training.batch_size=8,16,32, with commas and without spaces"
_TASK = '"${SLURM_ARRAY_TASK_ID}"'
_JOB = Shell('"${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"')


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """Options of a sweep in addition to those of every launch."""

    scenarios: tuple[Scenario, ...]
    over: Mapping[str, tuple[str, ...]]
    repeats: int
    strong: int | None
    """Samples of all ranks in one optimizer step, the same for every number of nodes."""
    weak: bool
    ranks_per_node: int
    config: Path
    overrides: tuple[str, ...]
    executor: Literal["slurm", "local"]
    own_program: bool = False


def parse_over(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Keys and their values in `key.sub=v1,v2`; commas inside brackets or quotes separate nothing.

    Raises:
        PlanError: not of that form, a key or a value comes twice, or a value is empty.
    """
    over: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, separator, listed = text.partition("=")
        if not separator or not _KEY.fullmatch(key):
            raise PlanError(f"--over {text!r} is not written as key.sub=value,value", _FORM)
        values = _split(listed)
        if not all(values):
            raise PlanError(f"--over {text!r} has an empty value", _FORM)
        double = next((value for value in values if values.count(value) > 1), None)
        if double is not None:
            raise PlanError(
                f"--over {key}: the value {double} is given twice", "use --repeats to run it several times"
            )
        if key in over:
            raise PlanError(f"--over {key} comes twice", "list all of its values in one --over")
        over[key] = tuple(values)
    return over


def _split(text: str) -> list[str]:
    parts, depth, quoted = [""], 0, ""
    for char in text:
        if quoted:
            quoted = "" if char == quoted else quoted
        elif char in "\"'":
            quoted = char
        else:
            depth += (char in "[{(") - (char in "]})")
        if char == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def make_sweep(request: SweepRequest) -> tuple[Sweep, list[Config]]:
    """The points of a sweep and the configuration of each, in the same order.

    Raises:
        PlanError: it would not say what it is meant to say.
        ConfigError: a value does not fit its key.
    """
    _check(request)
    points: list[SweepPoint] = []
    configs: list[Config] = []
    for scenario in request.scenarios:
        settings = [_setting(request, scenario, values) for values in _combinations(request.over)]
        _refuse_same(settings)
        rounds = itertools.product(range(1, request.repeats + 1), settings)
        for task, (repeat, (values, config)) in enumerate(rounds):
            configs.append(config)
            points.append(
                SweepPoint(
                    scenario=scenario.name,
                    nodes=scenario.nodes,
                    task=task,
                    values=values,
                    repeat=repeat,
                    per_rank_batch=config.training.batch_size if request.strong is not None else None,
                )
            )
    if len(points) == 1:
        raise PlanError("nothing varies: this is a single run", "give --over, --nodes 1,2 or --repeats 3")
    several: Literal["strong", "weak"] = "strong" if request.strong is not None else "weak"
    sweep = Sweep(
        keys={key: list(values) for key, values in request.over.items()},
        repeats=request.repeats,
        scaling=several if len(request.scenarios) > 1 else None,
        global_batch=request.strong,
        executor=request.executor,
        points=points,
    )
    return sweep, configs


def _check(request: SweepRequest) -> None:
    if request.strong is not None and request.weak:
        raise PlanError("--strong and --weak cannot be used together", "give one of them")
    if (request.strong is not None or request.weak) and len(request.scenarios) < 2:
        raise PlanError("scaling needs at least two numbers of nodes", "give --nodes 1,2,4")
    if len({scenario.family for scenario in request.scenarios}) > 1:
        raise PlanError(
            "scenarios of different families cannot be compared",
            "run one sweep for 1node,2node and another for cpu_1node,cpu_2node",
        )
    fixed = {text.partition("=")[0] for text in request.overrides}
    both = sorted(fixed & set(request.over))
    if both:
        raise PlanError(f"{both[0]} is in both --over and --override", "remove it from --override")
    if request.strong is None:
        return
    if BATCH in fixed | set(request.over):
        raise PlanError(f"--strong sets {BATCH}, which is also given", f"leave out {BATCH} or --strong")
    if request.own_program:
        raise PlanError("--strong cannot set the batch size of your own program", "leave it out")


def _combinations(over: Mapping[str, tuple[str, ...]]) -> list[dict[str, str]]:
    return [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]


def _setting(
    request: SweepRequest, scenario: Scenario, values: dict[str, str]
) -> tuple[dict[str, str], Config]:
    cpu = CPU_OVERRIDES if scenario.family == CPU_FAMILY else ()
    texts = [*cpu, *request.overrides, *(f"{key}={value}" for key, value in values.items())]
    config = load_config(request.config, texts)
    if request.strong is None:
        return values, config
    share = scenario.nodes * request.ranks_per_node * config.training.gradient_accumulation
    if request.strong < share or request.strong % share:
        accumulated = config.training.gradient_accumulation
        raise PlanError(
            f"{scenario.name}: a global batch of {request.strong} cannot be divided evenly among "
            f"{scenario.nodes * request.ranks_per_node} ranks"
            + (f" × {accumulated} accumulated batches" if accumulated > 1 else ""),
            f"choose a multiple of {share}, such as {max(request.strong // share, 1) * share}",
        )
    return values, load_config(request.config, [*texts, f"{BATCH}={request.strong // share}"])


def _refuse_same(settings: Sequence[tuple[dict[str, str], Config]]) -> None:
    for (values, config), (others, other) in itertools.combinations(settings, 2):
        if config == other:
            raise PlanError(
                f"{words(values)} and {words(others)} are the same configuration", "leave one of them out"
            )


def point_config(submission: SubmissionDir, point: SweepPoint) -> Path:
    """File with the resolved configuration of a point."""
    return submission.points(Scenario(point.scenario)) / f"{point.task}.yaml"


def array_plan(
    base: LaunchPlan, submission: SubmissionDir, points: Sequence[SweepPoint], at_most: int | None
) -> LaunchPlan:
    """`base` as an array over `points`, of which `at_most` run at the same time (None: no limit).

    Which point a task is, only the task itself knows: the script leaves its index to the shell.
    """
    folder = submission.points(Scenario(base.scenario))
    results = Path(base.results.replace("%", "%%"))
    limit = f"%{at_most}" if at_most is not None else ""
    return replace(
        base,
        config=Shell(f"{quote(folder)}/{_TASK}.yaml"),
        output=str(job_output(results, base.scenario, "%A_%a")),
        array=f"0-{len(points) - 1}{limit}",
        job_id=_JOB,
    )


def point_plan(base: LaunchPlan, submission: SubmissionDir, point: SweepPoint) -> LaunchPlan:
    """`base` as the run of one point on this machine."""
    return replace(base, config=str(point_config(submission, point)))

"""Reasons, known before a job is queued, for which its run could not be judged."""

from __future__ import annotations

from collections.abc import Iterable

from aorta.artefacts.own_program import OwnProgram
from aorta.commands._say import say
from aorta.config.schema import Config
from aorta.diagnosis.policy import Policy
from aorta.units import plural

UNRECORDED = 2
"""Steps of an own program without a record: hooks learn its cycle from the first, and begin at the second."""


def warn_unjudgeable(configs: Iterable[Config], own: OwnProgram, *, own_program: bool) -> None:
    """Print a warning for each reason, once for all scenarios."""
    said = [text for config in configs for text in unjudgeable(config, own, own_program=own_program)]
    for text in dict.fromkeys(said):
        say(f"warning: {text}", err=True)


def unjudgeable(config: Config, own: OwnProgram, *, own_program: bool) -> list[str]:
    """Return why the run could not be judged; empty where nothing speaks against it.

    A run without a limit of steps gives no reason: the number of its steps is not known.

    Args:
        config: the scenario's resolved configuration.
        own: what the command line says of a program of the user's own.
        own_program: such a program runs in place of the built-in trainer.
    """
    limit = own.steps if own_program else config.training.max_steps or None
    if limit is None:
        return []
    warmup, least = config.capture.warmup_steps, Policy.of(config.thresholds).min_steady_steps
    name = "--steps" if own_program else "training.max_steps"
    unrecorded = UNRECORDED if own_program else 0
    left, said = max(limit - warmup - unrecorded, 0), []
    if left < least:
        hooks = f", and hooks do not record {unrecorded}" if unrecorded else ""
        said.append(
            f"{name} is {limit}, and capture.warmup_steps leaves out the first {warmup}{hooks}: "
            f"{plural(left, 'step')} cannot be judged; {least} are needed. Set {name} to "
            f"{warmup + least + unrecorded} or more"
        )
    return said + ([] if own_program else _of_profiler(config, limit))


def _of_profiler(config: Config, limit: int) -> list[str]:
    """Return that the profiler inside the trainer would record no whole step."""
    if not config.profiling.enabled:
        return []
    before = config.capture.warmup_steps + config.profiling.wait + config.profiling.warmup
    if limit > before:
        return []
    return [
        f"training.max_steps is {limit}, and torch.profiler records from step {before} on: its traces would "
        f"contain no whole step. Set training.max_steps to {before + config.profiling.active} or more"
    ]

from __future__ import annotations

import pytest

from aorta.artefacts.own_program import OwnProgram
from aorta.commands._judgeable import UNRECORDED, unjudgeable, warn_unjudgeable
from aorta.config.schema import CaptureConfig, Config, ProfilingConfig, TrainingConfig
from aorta.config.thresholds import Thresholds


def made(max_steps: int, *, warmup: int = 10, least: int | None = None, profiled: bool = False) -> Config:
    return Config(
        training=TrainingConfig(max_steps=max_steps),
        capture=CaptureConfig(warmup_steps=warmup),
        thresholds=Thresholds(min_steady_steps=least),
        profiling=ProfilingConfig(enabled=profiled, wait=2, warmup=3, active=4),
    )


@pytest.mark.parametrize(
    ("max_steps", "warmup", "least", "warned"),
    [
        (10 + 10, 10, None, False),
        (10 + 9, 10, None, True),
        (5, 10, None, True),
        (7 + 3, 7, 3, False),
        (7 + 2, 7, 3, True),
        (0, 10, None, False),  # no limit
    ],
)
def test_too_few_steady_steps_are_told_before_the_queue(
    max_steps: int, warmup: int, least: int | None, warned: bool
) -> None:
    said = unjudgeable(made(max_steps, warmup=warmup, least=least), OwnProgram(), own_program=False)
    assert len(said) == int(warned)
    if warned:
        assert f"Set training.max_steps to {warmup + (least or 10)} or more" in said[0]


@pytest.mark.parametrize(
    ("steps", "warned"), [(None, False), (10 + 10 + UNRECORDED - 1, True), (10 + 10 + UNRECORDED, False)]
)
def test_steps_of_an_own_program_count_and_not_the_trainers(steps: int | None, warned: bool) -> None:
    said = unjudgeable(made(1, profiled=True), OwnProgram(steps=steps), own_program=True)
    assert [text.startswith(f"--steps is {steps},") for text in said] == [True] * warned
    assert all("Set --steps to 22 or more" in text for text in said)


@pytest.mark.parametrize(("max_steps", "warned"), [(4 + 2 + 3, True), (4 + 2 + 3 + 1, False)])
def test_a_profiler_schedule_without_a_whole_step(max_steps: int, warned: bool) -> None:
    config = made(max_steps, warmup=4, least=1, profiled=True)
    said = unjudgeable(config, OwnProgram(), own_program=False)
    assert ["no whole step. Set training.max_steps to 13" in text for text in said] == [True] * warned
    assert not unjudgeable(made(max_steps, warmup=4, least=1), OwnProgram(), own_program=False)


def test_scenarios_with_one_reason_are_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    warn_unjudgeable([made(3), made(3), made(100)], OwnProgram(), own_program=False)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("warning: training.max_steps is 3") == 1

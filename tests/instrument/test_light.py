"""What runs in a user's process needs the standard library and torch, and nothing else of ours."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from aorta.artefacts.step_record import StepRecord, encode
from aorta.config.schema import CaptureConfig
from aorta.instrument.capture import CaptureSteps

ROOT = Path(__file__).parents[2]
_IMPORTS = """
import sys
import torch
before = set(sys.modules)
import aorta.instrument.recorder, aorta.instrument.companion
for name in sorted({name.partition(".")[0] for name in set(sys.modules) - before}):
    if name not in sys.stdlib_module_names and name not in ("aorta", "torch"):
        print(name)
"""


def test_the_recorder_imports_the_standard_library_and_torch_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def test_the_steps_outside_a_job_are_the_configurations_defaults() -> None:
    usual, own = CaptureConfig(), CaptureSteps.from_environment({})
    assert {name: getattr(own, name) for name in own.__slots__} == {
        name: getattr(usual, name) for name in own.__slots__
    }


def test_the_agents_word_counts() -> None:
    said = CaptureSteps.from_environment({"AORTA_CAPTURE": '{"warmup_steps": 3, "unknown": 1}'})
    assert (said.warmup_steps, said.steps) == (3, 10)


def test_every_field_of_a_record_is_written() -> None:
    names = dict.fromkeys(item.name for item in fields(StepRecord))
    assert encode(StepRecord(**names)).count(b":null") == len(names)

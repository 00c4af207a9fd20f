"""Tab completion: commands, keys of the configuration, files; and bash itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aorta.commands._completion import config_keys
from aorta.config.load import load_config

AORTA = [sys.executable, "-m", "aorta"]


def completed(line: str, tmp_path: Path) -> list[str]:
    """What is offered for the last word of `line`, as click prints it."""
    words = line.split(" ")
    environment = os.environ | {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_AORTA_COMPLETE": "bash_complete",
    }
    done = subprocess.run(AORTA, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_every_key_of_the_configuration_is_offered_and_can_be_set(tmp_path: Path) -> None:
    offered = completed("aorta submit --override ", tmp_path)
    assert offered == [f"plain,{key}=" for key in config_keys()]
    assert load_config(None, ["training.max_steps=7"]).training.max_steps == 7
    assert "plain,training.max_steps=" in offered
    assert len(offered) > 50


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("aorta ana", ["plain,analyze"]),
        ("aorta submit --override training.max_st", ["plain,training.max_steps="]),
        ("aorta profile --override max_st", ["plain,training.max_steps="]),
        ("aorta submit --override training.seed=1 training.max_st", ["plain,training.max_steps="]),
        # bash cuts words at =
        ("aorta submit --override training.seed = 1 training.max_st", ["plain,training.max_steps="]),
        ("aorta sweep --over training.max_st", ["plain,training.max_steps="]),
        ("aorta submit --profiler rocp", ["plain,rocprofv3"]),
        ("aorta submit --nodes 2 my_train", ["file,my_train"]),
        ("aorta submit --override training.nothing", []),
        ("aorta analyze --override data_w", ["plain,thresholds.data_wait_pct="]),
        ("aorta aggregate --override thresholds.data_w", ["plain,thresholds.data_wait_pct="]),
        ("aorta analyze --override training.max_st", []),  # what ran cannot be changed any more
    ],
)
def test_what_is_offered(line: str, offered: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script_and_leaves_no_blank_behind_a_key(tmp_path: Path) -> None:
    (tmp_path / "aorta").write_text(f'#!/bin/sh\nexec {sys.executable} -m aorta "$@"\n')
    (tmp_path / "aorta").chmod(0o755)
    program = """
        eval "$(_AORTA_COMPLETE=bash_source aorta)"
        compopt() { echo "compopt $1 $2"; }
        COMP_WORDS=(aorta submit --override training.max_st) COMP_CWORD=3
        _aorta_completion aorta
        echo "${COMPREPLY[@]}"
        complete -p aorta
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "compopt -o nospace",
        "training.max_steps=",
        "complete -o nosort -F _aorta_completion aorta",
    ]

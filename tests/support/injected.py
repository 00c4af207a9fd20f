"""Programs that run with the hooks of `aorta.inject`, as the node agent would start their ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aorta.artefacts.instrument_record import InstrumentRecord
from aorta.artefacts.layout import RunDir
from aorta.artefacts.step_record import StepRecord
from aorta.runner.command import HOOKS
from tests.support.step_records import read_records

PATIENCE_S = 120
CAPTURE = '{"warmup_steps": 2}'
PYTHON = os.environ.get("AORTA_TEST_PYTHON", sys.executable)
"""The interpreter of the programs: another one needs torch and nothing else."""


@dataclass(frozen=True)
class Ended:
    """What the ranks of a program left."""

    out: list[str]
    """What each rank printed."""
    err: list[str]
    codes: list[int]
    run: Path

    def records(self, rank: int = 0) -> list[StepRecord]:
        """The step records of a rank."""
        return read_records(self.run, rank)

    def status(self, rank: int = 0) -> InstrumentRecord:
        """What the hooks of a rank say."""
        return msgspec.json.decode(RunDir(self.run).instrument(rank).read_bytes(), type=InstrumentRecord)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment(run: Path, *, hooks: bool = True, path: Sequence[Path] = ()) -> dict[str, str]:
    """The environment of a rank; without hooks it is that of the plain program."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("AORTA_", "PYTHONPATH"))}
    env |= {"OMP_NUM_THREADS": "1", "AORTA_RUN_DIR": str(run), "AORTA_CAPTURE": CAPTURE}
    folders = [*([HOOKS] if hooks else []), *path]
    if folders:
        env["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    return env | ({"AORTA_INSTRUMENT": "auto"} if hooks else {})


def run_program(
    source: str,
    folder: Path,
    *,
    ranks: int = 1,
    hooks: bool = True,
    python: str = PYTHON,
    flags: Sequence[str] = (),
    variables: dict[str, str] | None = None,
) -> Ended:
    """Run a program on so many ranks, each a process of its own.

    Args:
        source: of the program.
        folder: gets the program and the run directory.
        ranks: how many; torch's variables say which one each is.
        hooks: whether the hooks are in front of PYTHONPATH.
        python: the interpreter.
        flags: of the interpreter.
        variables: more of the environment.
    """
    script, run = folder / "program.py", folder / ("run" if hooks else "plain")
    script.write_text(source)
    run.mkdir(exist_ok=True)
    env = environment(run, hooks=hooks) | {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        **(variables or {}),
    }
    started = [
        subprocess.Popen(
            [python, *flags, str(script)],
            env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=PATIENCE_S) for process in started]
    return Ended(
        out=[out for out, _ in said],
        err=[err for _, err in said],
        codes=[process.returncode for process in started],
        run=run,
    )

"""The scrubber on a report of a real Nsight Systems, which records a program without a GPU as well."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aorta.artefacts.masking import remember, secret_values
from aorta.runner.scrub import scrub, still_in

NSYS = shutil.which("nsys", path=f"{os.environ.get('PATH', '')}:/opt/aorta-nsys/usr/bin")
VARIABLE, ARGUMENT = "planted-In-A-variable7", "planted-In-An-argument9"


def _export(nsys: str, command: list[str], folder: Path) -> Path:
    """Returns the SQLite export of a recording; on a busy machine nsys itself fails now and then."""
    said = []
    for attempt in range(3):
        made = folder / f"a{attempt}"
        for argv in (
            [nsys, "profile", "--sample=process-tree", "--trace=osrt", "-o", f"{made}", *command],
            [nsys, "export", "--type", "sqlite", "-o", f"{made}.sqlite", f"{made}.nsys-rep"],
        ):
            done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=200)
            if done.returncode != 0:
                said.append(f"{argv[1]} ended with {done.returncode}: {done.stdout}{done.stderr}")
                break
        else:
            return made.with_suffix(".sqlite")
    pytest.fail("\n".join(said))


@pytest.mark.skipif(NSYS is None, reason="no nsys here; scripts/install_nsys.sh unpacks one")
def test_no_secret_is_left_in_a_real_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables, arguments and output of the program, of its children and of nsys itself."""
    assert NSYS is not None
    monkeypatch.setenv("MY_PASSWORD", VARIABLE)
    monkeypatch.setattr("aorta.artefacts.masking._REMEMBERED", [])
    child = "import subprocess, sys; subprocess.run(['sleep', '0.3']); print(sys.argv)"
    command = [
        sys.executable,
        "-c",
        child,
        "--pw",
        ARGUMENT,
        f"X_TOKEN={ARGUMENT}b",
        f"https://u:{ARGUMENT}c@h/",
    ]
    export = _export(NSYS, command, tmp_path)
    raw = export.read_bytes()
    assert VARIABLE.encode() in raw  # so that the test cannot pass where nsys records none of it
    assert ARGUMENT.encode() in raw
    remember(command)
    assert scrub(export)
    left = export.read_bytes()
    assert VARIABLE.encode() not in left
    assert ARGUMENT.encode() not in left
    assert secret_values({"MY_PASSWORD": VARIABLE})
    assert still_in(export, os.environ) == []

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
    made = tmp_path / "a"
    subprocess.run(
        [NSYS, "profile", "--sample=process-tree", "--trace=osrt", "-o", str(made), *command],
        check=True, capture_output=True, timeout=200,
    )  # fmt: skip
    subprocess.run(
        [NSYS, "export", "--type", "sqlite", "-o", f"{made}.sqlite", f"{made}.nsys-rep"],
        check=True, capture_output=True, timeout=200,
    )  # fmt: skip
    export = Path(f"{made}.sqlite")
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

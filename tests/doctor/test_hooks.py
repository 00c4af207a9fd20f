"""Whether hooks work under an interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

from aorta.doctor.hooks import examine_hooks


def test_steps_of_a_program_under_this_python_are_recorded() -> None:
    check = examine_hooks(sys.executable)
    assert (check.state, check.hint) == ("ok", ""), check
    assert check.text.endswith(": steps are recorded")


def test_a_python_without_torch_is_said(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho '[[3, 12, 0], null]'\n")
    fake.chmod(0o755)
    check = examine_hooks(str(fake))
    assert (check.state, check.text) == ("missing", f"{fake} has no torch on this machine")


def test_a_python_that_records_nothing_is_said(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\n[ \"$2\" = '' ] || echo '[[3, 12, 0], \"2.6.0\"]'\n")
    fake.chmod(0o755)
    check = examine_hooks(str(fake))
    assert (check.state, check.text.rpartition(": ")[2]) == ("missing", "nothing was recorded")
    assert examine_hooks("/nowhere").state == "missing"

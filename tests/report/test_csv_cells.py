"""Cells of the tables that a report's page saves: no spreadsheet runs one of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import aorta.report

SCRIPT = Path(aorta.report.__file__).parent / "web/report.js"
CELLS: list[tuple[object, str]] = [
    ("=1+1", "'=1+1"), ("+1", "'+1"), ("-2+3", "'-2+3"), ("-x", "'-x"), ("@a", "'@a"), ("\ta", "'\ta"),
    (-2.5, "-2.5"), (0, "0"), (None, ""), ("gpu-0", "gpu-0"), ('=a,"b"', '"\'=a,""b"""'),
]  # fmt: skip


def test_texts_that_begin_like_formulas_are_quoted_and_numbers_are_not() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    found = re.search(r"const cell = .*?\n  };", SCRIPT.read_text(), re.DOTALL)
    assert found is not None
    program = f"{found[0]}\nconsole.log(JSON.stringify({json.dumps([one for one, _ in CELLS])}.map(cell)))"
    done = subprocess.run([node, "-e", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [cell for _, cell in CELLS]

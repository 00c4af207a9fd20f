"""An example whose run is not kept can be drawn again from its JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = "docs/examples/h200/BOTTLENECK_ANALYSIS"


def test_a_report_is_drawn_from_its_kept_numbers(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs/examples/h200", tmp_path / "docs/examples/h200")
    for ending in (".md", ".html"):
        (tmp_path / f"{PAGE}{ending}").unlink()
    script = ROOT / "scripts/redraw_example.py"
    subprocess.run([sys.executable, script, "docs/examples/h200"], cwd=tmp_path, check=True)
    drawn, kept = (json.loads((folder / f"{PAGE}.json").read_text()) for folder in (tmp_path, ROOT))
    assert drawn["scenarios"] == kept["scenarios"]
    statement = kept["verdict"]["statement"]
    for ending in (".md", ".html"):
        assert statement in (tmp_path / f"{PAGE}{ending}").read_text()
    assert "](../" not in (tmp_path / f"{PAGE}.md").read_text()

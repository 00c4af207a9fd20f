#!/usr/bin/env python3
"""Compare the step records of runs, as `aorta compare` does.

overlap_report.py --log-dir A --label rocm --log-dir B --label cuda --output DIR \\
    --reference cuda --candidate rocm
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"

try:
    from aorta.cli import main
except ImportError:
    if not PYTHON.exists() or Path(sys.prefix) == PYTHON.parent.parent:
        sys.exit(f"overlap_report.py: aorta is not installed\n  hint: run `make -C {ROOT} setup`")
    os.execv(PYTHON, [str(PYTHON), *sys.argv])  # noqa: S606

sys.argv[1:1] = ["compare"]
main()

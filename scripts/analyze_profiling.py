#!/usr/bin/env python3
"""Analyse one run, as `aorta analyze` does.

analyze_profiling.py --results results/profiling/1node/run_<JOB_ID>
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
        sys.exit(f"analyze_profiling.py: aorta is not installed\n  hint: run `make -C {ROOT} setup`")
    os.execv(PYTHON, [str(PYTHON), *sys.argv])  # noqa: S606

words = [word.removeprefix("--results=") for word in sys.argv[1:] if word != "--results"]
sys.argv[1:] = ["analyze", *words]
main()

#!/usr/bin/env python3
"""Do copies run beside matrix products on this GPU?

run_sdma_prototype.py --device 0 --matrix-size 4096 --copy-mb 64 [--iterations N] [--json FILE]
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"

try:
    from aorta.workloads.sdma import main
except ImportError:
    if not PYTHON.exists() or Path(sys.prefix) == PYTHON.parent.parent:
        sys.exit(
            f"run_sdma_prototype.py: aorta or torch is not installed\n  hint: run `make -C {ROOT} setup`"
        )
    os.execv(PYTHON, [str(PYTHON), *sys.argv])  # noqa: S606

sys.exit(main())

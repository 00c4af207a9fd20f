"""How an analysis loads numpy and leaves the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
from aorta.readers.memory import import_numpy
before = dict(os.environ)
import_numpy()
import sys
threads = len(os.listdir("/proc/self/task"))
print(threads, "numpy" in sys.modules, dict(os.environ) == before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux lists them")
@pytest.mark.parametrize("given", [None, "2"])
def test_numpy_starts_no_thread_and_the_environment_stays(given: str | None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    environment |= {} if given is None else {"OPENBLAS_NUM_THREADS": given}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "True", "True"]

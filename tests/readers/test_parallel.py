"""Processes to read with: copies of this one where no thread would be lost, else new ones."""

import os
import sys
import threading
from pathlib import Path

import pytest

from aorta.readers.parallel import processes, worth_processes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies processes safely")
@pytest.mark.skipif(threading.active_count() > 1, reason="this test process runs threads")
def test_a_process_is_copied_and_has_what_this_one_has_imported() -> None:
    alone = worth_processes()
    with processes(1) as pool:
        assert pool.submit(os.getppid).result() == os.getpid()
        assert not pool.submit(_is_new).result()
        # The pool's own thread is one, so that no further copies are made.
        assert worth_processes() > alone


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_process_that_runs_threads_is_not_copied() -> None:
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        with processes(1) as pool:
            new = pool.submit(_is_new).result()
    finally:
        end.set()
        other.join()
    assert new


def _is_new() -> bool:
    """`multiprocessing` names what it starts anew on the command line."""
    return b"--multiprocessing-fork" in Path("/proc/self/cmdline").read_bytes().split(b"\0")

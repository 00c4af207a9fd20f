"""Processes to read with: copies of this one where no thread would be lost, else new ones."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aorta.readers import copies
from aorta.readers.parallel import by_copies, processes, shared_out, worth_processes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies processes safely")
def test_a_process_is_copied_and_has_what_this_one_has_imported() -> None:
    """In a process of its own: other tests may have left threads in this one."""
    code = f"from {__name__} import copied; copied()"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "copied\n"), done.stderr


def copied() -> None:
    alone = worth_processes()
    with processes(1) as pool:
        assert pool.submit(os.getppid).result() == os.getpid()
        assert not pool.submit(_is_new).result()
        # The pool's own thread is one, so that no further copies are made.
        assert worth_processes() > alone
    print("copied")


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


def doubled(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("workers", [2, 3])
def test_items_that_are_shared_out_come_back_in_their_order(count: int, workers: int) -> None:
    items = list(range(count))
    assert shared_out(doubled, items, workers) == [doubled(item) for item in items]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies processes safely")
def test_only_the_last_copies_are_not_waited_for() -> None:
    """In a process of its own, as above."""
    code = f"from {__name__} import left; print(left())"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2"]


def left() -> int:
    for _ in range(3):
        assert by_copies(lambda number: number, [1, 2, 3], workers=3) == [1, 2, 3]
        for process in copies._ending:
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    return len(copies._ending)


def test_copies_have_what_this_process_has_and_send_results_alone() -> None:
    # A function of this very test cannot be sent to another process, and need not be.
    offset = 7
    assert by_copies(lambda number: number + offset, [1, 2, 3]) == [8, 9, 10]
    assert by_copies(lambda number: number + offset, []) == []


def test_an_error_in_a_copy_is_raised_here() -> None:
    def broken(number: int) -> int:
        raise ValueError(f"no {number}")

    with pytest.raises(ValueError, match="no"):
        by_copies(broken, [1, 2])

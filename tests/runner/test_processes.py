"""Children: output, groups, orphans, signals. Waits end on what is waited for, with a generous limit."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from aorta.runner.processes import Child, Interrupts, adopt_orphans, kill_descendants, signal_name

LIMIT_S = 120


def until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def python(code):
    return [sys.executable, "-c", code]


def start(tmp_path, code, echo=None):
    return Child(python(code), env=os.environ, log=tmp_path / "logs/child.log", echo=echo)


def test_output_goes_to_the_log_and_to_the_job(tmp_path):
    echo = io.BytesIO()
    child = start(tmp_path, "import sys; print('one'); print('two', file=sys.stderr)", echo)
    assert child.process.wait(LIMIT_S) == 0
    child.drain()
    assert sorted(echo.getvalue().split()) == [b"one", b"two"]
    assert (tmp_path / "logs/child.log").read_bytes() == echo.getvalue()
    assert child.said("two")
    assert not child.said("three")


class Full(io.BytesIO):
    def write(self, data):
        raise OSError(28, "No space left on device")


def test_a_full_disk_does_not_stop_the_child_or_the_log(tmp_path):
    child = start(tmp_path, "for i in range(20000): print('x' * 20)", Full())
    assert child.process.wait(LIMIT_S) == 0
    child.drain()
    assert (tmp_path / "logs/child.log").read_text().count("\n") == 20000


def test_a_child_has_a_group_and_a_session_of_its_own(tmp_path):
    child = start(tmp_path, "import time; time.sleep(600)")
    assert os.getpgid(child.pid) == os.getsid(child.pid) == child.pid != os.getpgid(0)
    assert child.stop(LIMIT_S) == -signal.SIGTERM


def test_stop_kills_what_ignores_sigterm(tmp_path):
    child = start(
        tmp_path,
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
    )
    until(lambda: "ready" in (tmp_path / "logs/child.log").read_text())
    assert child.stop(0.2) == -signal.SIGKILL


def test_a_program_that_is_not_there_leaves_nothing_open(tmp_path):
    with pytest.raises(FileNotFoundError):
        Child(["/absent/program"], env={}, log=tmp_path / "log")


AGENT = """
import os, sys, time
from pathlib import Path
from aorta.runner.processes import Child, adopt_orphans, kill_descendants
folder, what = Path(sys.argv[1]), sys.argv[2]
adopt_orphans()
sleeper = "import time; time.sleep(600)"
# The middle process starts a grandchild in a session of its own, as torchrun does with its ranks.
middle = (
    "import subprocess, sys, time; from pathlib import Path;"
    f"p = subprocess.Popen([sys.executable, '-c', '{sleeper}'], start_new_session=True);"
    f"Path(r'{folder}/part').write_text(str(p.pid)); Path(r'{folder}/part').rename(r'{folder}/grandchild');"
    "time.sleep(600)"
)
spared = Child([sys.executable, "-c", sleeper], env=os.environ, log=folder / "log")
child = Child([sys.executable, "-c", middle], env=os.environ, log=folder / "log")
while not (folder / "grandchild").exists():
    time.sleep(0.02)
if what == "die":
    (folder / "children").write_text(f"{child.pid} {spared.pid}")
    os._exit(0)
if what == "orphan":
    os.kill(child.pid, 9)
    child.process.wait()
print(kill_descendants(spare=[spared.pid]), child.process.wait(), spared.poll(), flush=True)
spared.stop(30)
"""


def agent(tmp_path, what):
    return subprocess.run(
        [sys.executable, "-c", AGENT, str(tmp_path), what],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    ).stdout


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(("what", "expected"), [("tree", "2 -9 None"), ("orphan", "1 -9 None")])
def test_the_whole_tree_dies_with_its_exit_codes_kept_and_the_spared_one_lives(tmp_path, what, expected):
    assert agent(tmp_path, what).strip() == expected
    assert gone(int((tmp_path / "grandchild").read_text()))


def test_children_get_sigterm_when_the_agent_dies(tmp_path):
    agent(tmp_path, "die")
    pids = [int(text) for text in (tmp_path / "children").read_text().split()]
    try:
        until(lambda: all(gone(pid) for pid in pids))
    finally:
        os.kill(int((tmp_path / "grandchild").read_text()), signal.SIGKILL)


def test_nothing_to_kill_is_0():
    assert kill_descendants(spare=[child.pid for child in psutil.Process().children()]) == 0


def test_the_first_signal_is_kept_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        assert interrupts.received is None
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.received == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_names():
    assert signal_name(9) == "SIGKILL"
    assert signal_name(99) == "signal 99"


def test_adopting_orphans_is_repeatable():
    code = "from aorta.runner.processes import adopt_orphans as a; a(); a()"
    assert subprocess.run(python(code), check=True, timeout=LIMIT_S).returncode == 0
    assert callable(adopt_orphans)


def test_what_is_copied_of_much_output_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("aorta.runner.processes.MOST_COPIED_BYTES", 1000)
    echo = io.BytesIO()
    program = "print('x' * 98, end='\\n' * 2); " * 40 + "print('the end')"
    child = Child([sys.executable, "-c", program], env=dict(os.environ), log=tmp_path / "log", echo=echo)
    assert child.process.wait() == 0
    child.drain()
    for copied in (echo.getvalue(), (tmp_path / "log").read_bytes()):
        assert 1000 < len(copied) < 1300
        assert copied.endswith(b"aorta: more output is not copied; the ranks' own logs have all of theirs\n")
    assert child.lines[-1] == "the end"  # what is looked at to say how it ended is the end

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aorta.cluster import daemons
from aorta.cluster.config import ClusterError
from aorta.cluster.daemons import DaemonProcess

ENVIRONMENT = {"PATH": os.environ["PATH"]}
STUBBORN = (
    "import signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[DaemonProcess]:
    process = daemons.start("sleeper", ["sleep", "60"], ENVIRONMENT, tmp_path / "log")
    yield process
    daemons.stop([process])


def eventually(condition) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def test_a_process_is_alive_until_it_is_stopped(sleeper: DaemonProcess) -> None:
    assert sleeper.alive
    daemons.stop([sleeper])
    assert not sleeper.alive


def test_another_process_or_boot_with_the_same_id_is_not_it(sleeper: DaemonProcess) -> None:
    assert not DaemonProcess("x", sleeper.pid, sleeper.start_ticks + 1, sleeper.boot_id).alive
    assert not DaemonProcess("x", sleeper.pid, sleeper.start_ticks, "another boot").alive


def test_a_process_that_is_not_ours_anymore_is_not_signalled(sleeper: DaemonProcess) -> None:
    daemons.stop([DaemonProcess("x", sleeper.pid, sleeper.start_ticks + 1, sleeper.boot_id)])
    assert sleeper.alive


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    assert eventually(lambda: daemons.started(child.pid) is None)
    assert Path(f"/proc/{child.pid}").exists()
    child.wait()


def test_a_name_with_parentheses_and_spaces_is_read(tmp_path: Path) -> None:
    program = tmp_path / "a) R (b"
    program.symlink_to("/bin/sleep")
    process = daemons.start("odd", [str(program), "60"], ENVIRONMENT, tmp_path / "log")
    stat = Path(f"/proc/{process.pid}/stat")
    try:
        assert eventually(lambda: "(a) R (b)" in stat.read_text())
        assert process.alive
    finally:
        daemons.stop([process])


def test_what_ignores_a_request_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = daemons.start("stubborn", [sys.executable, "-c", STUBBORN], ENVIRONMENT, log)
    assert eventually(lambda: "ready" in log.read_text())
    os.kill(process.pid, signal.SIGTERM)
    assert process.alive
    daemons.stop([process], grace_s=0.1)
    assert not process.alive


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    absent = tmp_path / "no-such-program"
    with pytest.raises(ClusterError, match=rf"cannot start thing \({absent}\): No such file"):
        daemons.start("thing", [str(absent)], ENVIRONMENT, tmp_path / "log")


def test_waiting_for_a_process_that_ends_shows_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "short.log"
    argv = ["sh", "-c", "read line; echo last words >&2; exit 3"]

    def start_and_wait() -> None:
        process = daemons.start("short", argv, ENVIRONMENT, log)
        daemons.wait_until("it is ready", lambda: False, [process], lambda name: tmp_path / f"{name}.log", 60)

    with pytest.raises(ClusterError, match=r"(?s)short ended.*last words"):
        start_and_wait()


def test_waiting_in_vain(sleeper: DaemonProcess, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"waited 0 s in vain until it is ready; .*log is empty"):
        daemons.wait_until("it is ready", lambda: False, [sleeper], lambda _: tmp_path / "log", 0)


def test_waiting_ends_when_ready(sleeper: DaemonProcess, tmp_path: Path) -> None:
    answers = iter([False, False, True])
    daemons.wait_until("it is ready", lambda: next(answers), [sleeper], lambda _: tmp_path / "log", 60)
    assert list(answers) == []


def test_listening_addresses(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "s"))
        assert not daemons.listens(tmp_path / "s")
        unix.listen()
        assert daemons.listens(tmp_path / "s")
        address = tcp.getsockname()
        assert daemons.listens(address)
    assert not daemons.listens(address)
    assert not daemons.listens(tmp_path / "absent")


def test_processes_by_environment(tmp_path: Path) -> None:
    mark = str(tmp_path)
    process = daemons.start("x", ["sleep", "60"], {**ENVIRONMENT, "MARK": mark, "ID": "7"}, tmp_path / "log")
    try:
        assert eventually(lambda: daemons.with_environment({"MARK": mark}))

        def found(wanted: dict[str, str]) -> list[int]:
            return [item.pid for item in daemons.with_environment(wanted)]

        assert found({"MARK": mark, "ID": "7"}) == [process.pid]
        assert found({"MARK": mark, "ID": ""}) == [process.pid]
        assert found({"MARK": mark, "ID": "8"}) == []
        assert found({"MARK": mark, "OTHER": ""}) == []
        assert found({"MARK": mark + "x"}) == []
    finally:
        daemons.stop([process])


def test_run_to_end_tells_what_a_failure_printed() -> None:
    daemons.run_to_end(["true"], ENVIRONMENT)
    with pytest.raises(ClusterError, match="`sh` exited 3: why"):
        daemons.run_to_end(["sh", "-c", "echo why >&2; exit 3"], ENVIRONMENT)


def test_tail_is_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert "line 84" not in daemons.tail(log)
    assert "line 85" in daemons.tail(log)
    assert "line 99" in daemons.tail(log)
    assert daemons.tail(tmp_path / "absent").endswith("could not be read")

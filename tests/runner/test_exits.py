"""How ranks ended: torchrun's summary, error files and output."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aorta.artefacts.layout import NodeDir
from aorta.artefacts.records import RankExit
from aorta.runner import exits
from aorta.runner.exits import hide_logs, mask_logs
from aorta.runner.processes import decode_exit, exit_status

SUMMARY = """\
[rank2]   rank      : 9 (local_rank: 9)
[rank2]   exitcode  : 9 (pid: 9)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
/usr/bin/python FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:00
  host      : localhost
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 30) (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 30
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 31) (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 31
============================================================
""".splitlines()


def test_the_summary_gives_codes_and_who_was_first():
    assert exits.parse_summary(SUMMARY) == ({2: -15, 3: -9}, 3)
    assert exits.parse_summary(["nothing of the kind"]) == ({}, None)


def test_every_rank_gets_a_record_and_the_unknown_stays_unknown(tmp_path):
    ranks, root = exits.rank_exits(SUMMARY, 1, NodeDir(tmp_path), first_rank=2, processes=3)
    assert root == 3
    assert ranks == [
        RankExit(rank=2, exit_code=None, signal="SIGTERM"),
        RankExit(rank=3, exit_code=None, signal="SIGKILL"),
        RankExit(rank=4, exit_code=None, signal=None),
    ]


def test_a_good_end_is_0_for_all_whatever_the_output_holds(tmp_path):
    ranks, root = exits.rank_exits([], 0, NodeDir(tmp_path), first_rank=0, processes=2)
    assert root is None
    assert [(item.rank, item.exit_code, item.error) for item in ranks] == [(0, 0, None), (1, 0, None)]


@pytest.mark.parametrize(
    ("code", "decoded", "status"),
    [
        (0, (0, None), 0),
        (1, (1, None), 1),
        (-9, (None, "SIGKILL"), 137),
        (143, (143, "SIGTERM"), 143),
        (128, (128, None), 128),
        (255, (255, None), 255),
    ],
)
def test_codes(code, decoded, status):
    assert decode_exit(code) == decoded
    assert exit_status(code) == status


def test_error_lines(tmp_path):
    assert exits.error_line(tmp_path, last_words=False) is None
    (tmp_path / "stderr.log").write_text(
        "[rank1]: Traceback (most recent call last):\n"
        "[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory\nclosing\n"
    )
    assert exits.error_line(tmp_path, last_words=False) == "torch.cuda.OutOfMemoryError: CUDA out of memory"
    (tmp_path / "error.json").write_text(
        json.dumps({"message": {"message": "ValueError: no\nmore", "extraInfo": {}}})
    )
    assert exits.error_line(tmp_path, last_words=False) == "ValueError: no"
    (tmp_path / "error.json").write_text("{broken")
    assert exits.error_line(tmp_path, last_words=False) == "torch.cuda.OutOfMemoryError: CUDA out of memory"


def test_an_error_of_any_length_gives_a_readable_line(tmp_path):
    (tmp_path / "stderr.log").write_text("ValueError: " + "x" * 1000 + "\n")
    assert exits.error_line(tmp_path, last_words=False) == "ValueError: " + "x" * (300 - len("ValueError: "))


ABORT = "step 5\nterminate called without an active exception\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (ABORT, "terminate called without an active exception"),
        ("ValueError: handled\n" + ABORT, "terminate called without an active exception"),
        ("terminate called after throwing an instance of 'c10::Error'\n  what():  no\n", "what():  no"),
        ("Fatal Python error: Aborted\n\nThread 0x1:\n  File x\n", "Fatal Python error: Aborted"),
    ],
)
def test_the_runtimes_last_message_is_an_error(tmp_path, text, error):
    (tmp_path / "stderr.log").write_text(text)
    assert exits.error_line(tmp_path, last_words=False) == error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (-6, "out of paper"),
        (3, "out of paper"),
        (-9, None),
        (-15, None),
        (143, None),
        (0, None),
        (None, None),
    ],
)
def test_the_last_words_of_a_rank_that_ended_by_itself_are_its_error(tmp_path, code, error):
    node = NodeDir(tmp_path)
    (node.logs / "rank0").mkdir(parents=True)
    (node.logs / "rank0" / "stderr.log").write_text("warning\n  out of paper\n\n")
    lines = [] if code is None else ["  rank      : 0 (local_rank: 0)", f"  exitcode  : {code} (pid: 30)"]
    ((item,), _) = exits.rank_exits(lines, 1, node, first_rank=0, processes=1)
    assert item.error == error


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [("SIGTERM", None, True), ("SIGTERM", 143, True), ("SIGKILL", None, False), (None, 1, False)],
)
def test_a_rank_that_was_told_to_end(name, code, expected):
    other = RankExit(rank=0, exit_code=None, signal="SIGTERM")  # ended by torchrun because of rank 1
    item = RankExit(rank=1, exit_code=code, signal=name)
    assert exits.told_to_end([other, item], root=1) is expected
    assert not exits.told_to_end([other, item], root=None)


class Torchrun:
    """A process with or without a child, that said some things."""

    def __init__(self, pid, *said):
        self.pid, self._said = pid, said

    def said(self, words):
        return any(words in line for line in self._said)


@pytest.fixture
def torchrun(tmp_path):
    """Starts a process with as many children as asked for; the node folder has logs of two ranks."""
    started = []

    def start(children, *said, ranks=2):
        for rank in range(ranks):
            (tmp_path / f"logs/tok_x/attempt_0/{rank}").mkdir(parents=True)
            (tmp_path / f"logs/tok_x/attempt_0/{rank}/stderr.log").touch()
        program = (
            "import subprocess, sys\nfor _ in range(int(sys.argv[1])): subprocess.Popen(['sleep', '60'])\n"
        )
        program += "print('ready', flush=True)\ninput()\n"
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(children)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(child)
        assert child.stdout.readline() == b"ready\n"
        return Torchrun(child.pid, *said), NodeDir(tmp_path)

    yield start
    for child in started:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@pytest.mark.parametrize(
    ("children", "said", "ranks", "expected"),
    [
        (0, (), 2, True),
        (1, (), 2, False),
        (0, (), 1, False),
        (0, ("E failed (exitcode: 1) local_rank: 0 (pid: 1) of binary: x",), 2, False),
        (0, ("W Received 15 death signal, shutting down workers",), 2, False),
    ],
)
def test_ranks_have_finished_when_torchrun_has_none_left_and_no_complaint(
    torchrun, children, said, ranks, expected
):
    launcher, node = torchrun(children, *said, ranks=ranks)
    assert exits.ranks_finished(launcher, node, "tok", 2) is expected


def test_a_torchrun_that_is_gone_says_nothing(tmp_path):
    assert not exits.ranks_finished(Torchrun(2**22 + 1), NodeDir(tmp_path), "tok", 0)


def test_logs_are_kept_by_global_rank(tmp_path):
    node = NodeDir(tmp_path)
    for local in range(2):
        folder = node.logs / "tok_x1" / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"local {local}")
    exits.collect_logs(node, "tok", first_rank=4, processes=2)
    assert sorted(path.name for path in node.logs.iterdir()) == ["rank4", "rank5"]
    assert (node.logs / "rank5/stdout.log").read_text() == "local 1"


def test_tail_keeps_the_end_of_a_long_file(tmp_path):
    path = tmp_path / "log"
    path.write_text("first\n" + "x" * 200_000 + "\nlast\n")
    lines = exits.tail(path)
    assert lines[-1] == "last"
    assert "first" not in lines


def test_words():
    killed = RankExit(rank=3, exit_code=None, signal="SIGKILL")
    failed = RankExit(rank=1, exit_code=1, signal=None, error="ValueError: x")
    assert exits.describe_exit(killed) == "rank 3 was killed by SIGKILL"
    assert exits.describe_exit(failed) == "rank 1 exited with 1: ValueError: x"


def test_the_logs_are_their_owners_alone_until_they_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2hunter2")
    node = NodeDir(tmp_path / "node0")
    hide_logs(node)
    assert stat.S_IMODE(node.logs.stat().st_mode) == 0o700
    log = node.logs / "rank0" / "stderr.log"
    log.parent.mkdir()
    log.write_text("login with hunter2hunter2\n")
    mask_logs(node)
    assert "hunter2" not in log.read_text()
    usual = tmp_path / "usual"
    usual.mkdir()
    assert node.logs.stat().st_mode == usual.stat().st_mode

"""The terminal that a hang-up leaves behind."""

import os
import signal
import subprocess
import sys

import pytest

SAYS = """
import os, signal, sys
from aorta.commands._signals import EndingSignals
said = int(sys.argv[1])
with EndingSignals() as signals:
    try:
        os.write(said, b".")
        signal.pause()
    except KeyboardInterrupt:
        print("ended", flush=True)
        print("ended", file=sys.stderr, flush=True)
        os.write(said, b"%d" % signals.number)
"""


@pytest.mark.parametrize("hangs_up", [True, False])
def test_what_is_said_after_a_hang_up_fails_nothing(hangs_up: bool) -> None:
    master, slave = os.openpty()
    reads, writes = os.pipe()
    program = subprocess.Popen(
        [sys.executable, "-c", SAYS, str(writes)],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        pass_fds=[writes],
        start_new_session=True,
    )
    os.close(slave)
    os.close(writes)
    assert os.read(reads, 1) == b"."
    if hangs_up:
        os.close(master)
    program.send_signal(signal.SIGHUP)
    assert os.read(reads, 10) == b"1"
    assert program.wait() == 0
    if not hangs_up:
        assert os.read(master, 100).count(b"ended") == 2
        os.close(master)
    os.close(reads)

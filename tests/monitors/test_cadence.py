"""Deadlines by arithmetic, waiting with real signals and a real parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.monitors.cadence import Cadence, DeadlineSleeper


def test_a_late_wake_up_does_not_shift_later_deadlines():
    cadence = Cadence(start_ns=1000, interval_ns=10)
    cadence.woke(1003)
    assert cadence.deadline_ns == 1000 + 10
    cadence.woke(1019)
    assert cadence.deadline_ns == 1000 + 20
    assert (cadence.samples, cadence.missed, cadence.max_late_ns) == (2, 0, 9)


def test_deadlines_that_passed_meanwhile_are_counted_not_made_up():
    cadence = Cadence(start_ns=0, interval_ns=10)
    cadence.woke(35)  # 10, 20 and 30 are over
    assert (cadence.samples, cadence.missed, cadence.max_late_ns) == (1, 3, 35)
    assert cadence.deadline_ns == 40


@given(st.lists(st.integers(0, 95), max_size=30))
def test_every_deadline_that_passed_is_sampled_or_missed(delays):
    cadence = Cadence(start_ns=0, interval_ns=10)
    for delay in delays:
        woke = cadence.deadline_ns + delay
        cadence.woke(woke)
        assert cadence.deadline_ns % 10 == 0
        assert cadence.deadline_ns - 10 <= woke < cadence.deadline_ns
    assert cadence.samples == len(delays)
    assert cadence.missed == sum(delay // 10 for delay in delays)
    assert cadence.max_late_ns == max(delays, default=0)


def far() -> int:
    return time.monotonic_ns() + 100 * 10**9


def test_the_deadline_is_never_early():
    with DeadlineSleeper() as waiter:
        deadline = time.monotonic_ns() + 5_000_000
        assert waiter.wait_until(deadline) is None
        assert time.monotonic_ns() >= deadline


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_wait_at_once_and_the_old_handler_comes_back(number):
    outside = signal.signal(number, signal.SIG_DFL)  # a test run in the background ignores SIGINT
    try:
        with DeadlineSleeper() as waiter:
            os.kill(os.getpid(), number)
            assert waiter.wait_until(far()) == "signal"
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, outside)


def test_a_signal_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with DeadlineSleeper() as waiter:
            os.kill(os.getpid(), signal.SIGHUP)
            assert waiter.wait_until(time.monotonic_ns()) is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "old kernel"])
def test_the_end_of_the_parent_ends_the_wait(pidfd, monkeypatch):
    if not pidfd:

        def refuse(pid):
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", refuse)
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with parent, DeadlineSleeper(parent.pid) as waiter:
        assert waiter.wait_until(time.monotonic_ns()) is None
        parent.kill()
        parent.wait()
        assert waiter.wait_until(far() if pidfd else time.monotonic_ns()) == "parent"


def test_a_parent_that_is_gone_already(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with DeadlineSleeper(child.pid) as waiter:
        assert waiter.wait_until(time.monotonic_ns()) == "parent"

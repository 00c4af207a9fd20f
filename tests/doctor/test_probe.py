"""Probes: each costs its own lines only, whatever it does."""

from __future__ import annotations

import threading

from aorta.doctor.probe import Probe, run_probes
from aorta.doctor.records import Check
from aorta.errors import SchedulerError


def good(name: str) -> Probe:
    return Probe((name,), lambda: [Check(name, "ok", "there")])


def test_probes_answer_in_their_order() -> None:
    assert [check.name for check in run_probes([good("b"), good("a")])] == ["b", "a"]


def test_probe_that_fails_is_a_line_for_each_of_its_checks_and_no_traceback() -> None:
    def broken() -> list[Check]:
        raise ZeroDivisionError("one\ntwo")

    checks = run_probes([Probe(("x", "y"), broken), good("z")])
    assert [(check.name, check.state) for check in checks] == [
        ("x", "missing"), ("y", "missing"), ("z", "ok"),
    ]  # fmt: skip
    assert checks[0].text == "could not be checked: ZeroDivisionError: one two"


def test_error_of_ours_keeps_its_words_and_its_hint() -> None:
    def refused() -> list[Check]:
        raise SchedulerError("sinfo is silent", "look at slurmctld")

    (check,) = run_probes([Probe(("x",), refused)])
    assert (check.text, check.hint) == ("sinfo is silent", "look at slurmctld")


def test_probe_that_hangs_is_left_behind() -> None:
    released = threading.Event()

    def hangs() -> list[Check]:
        released.wait()
        return [Check("x", "ok", "late")]

    try:
        checks = run_probes([Probe(("x",), hangs, limit_s=-1.9), good("y")])
    finally:
        released.set()
    assert [(check.name, check.state) for check in checks] == [("x", "missing"), ("y", "ok")]
    assert "no answer" in checks[0].text

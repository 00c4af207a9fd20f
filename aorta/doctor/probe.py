"""Runs probes side by side, each with a time limit: one that hangs or fails costs its own lines only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aorta.doctor.records import Check
from aorta.errors import AortaError

GRACE_S = 2.0
"""Seconds that a probe gets on top of the limits of the programs that it calls."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A function that looks at something and gives a check for each of `names`."""

    names: tuple[str, ...]
    look: Callable[[], Sequence[Check]]
    limit_s: float = 10.0


def run_probes(probes: Sequence[Probe]) -> tuple[Check, ...]:
    """Returns the checks of all probes in their order.

    Every probe has a thread, started at once. A probe may hang, for example on a dead network file system or
    in a driver. After its limit, it counts as a probe without an answer, and its thread is left behind. Such
    a thread does not keep the process alive.
    """
    found: list[Sequence[Check] | None] = [None] * len(probes)

    def work(index: int, probe: Probe) -> None:
        found[index] = _guarded(probe)

    threads = [
        threading.Thread(target=work, args=(index, probe), daemon=True) for index, probe in enumerate(probes)
    ]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    checks: list[Check] = []
    for index, (probe, thread) in enumerate(zip(probes, threads, strict=True)):
        thread.join(max(0.0, started + probe.limit_s + GRACE_S - time.monotonic()))
        answer = found[index]
        checks += _silent(probe) if answer is None else answer
    return tuple(checks)


def _guarded(probe: Probe) -> Sequence[Check]:
    try:
        return probe.look()
    except AortaError as error:
        reason, hint = " ".join(error.message.split()), error.hint
    except Exception as error:
        # Whatever is strange about this machine is what the user wants to read, not a traceback.
        reason, hint = f"could not be checked: {type(error).__name__}: {' '.join(str(error).split())}", ""
    return [Check(name, "missing", reason, hint) for name in probe.names]


def _silent(probe: Probe) -> list[Check]:
    text = f"gave no answer within {probe.limit_s:g} s"
    return [
        Check(name, "missing", text, "look for a hanging file system, driver or server")
        for name in probe.names
    ]

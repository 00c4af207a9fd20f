"""Handles a node's traces after training: checks them, then has them exported and reduced by
processes of their own, within the time that the job has left.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aorta.artefacts.masking import told_to_children
from aorta.artefacts.records import RankExit
from aorta.runner.captures import TempSpace, findings
from aorta.runner.exits import tail
from aorta.runner.export import LOST
from aorta.runner.options import NodeOptions, TimeLimits
from aorta.runner.processes import Child, Interrupts
from aorta.units import NS_PER_S

_LAST_S = 20.0
"""Kept of the job's time for the marker and the end."""
_GRACE_S = 2.0
_PAUSE_S = 0.2
_TICK_S = 1.0
_LINES_KEPT = 3


class Aftercare:
    """The steps after training on one node.

    Args:
        options: of the agent.
        limits: time limits.
        interrupts: what reached the agent; a signal ends what runs here.
        tick: to be called about every second, so that the other nodes see a sign of life.
        say: one line in the job's output.
    """

    def __init__(
        self,
        options: NodeOptions,
        limits: TimeLimits,
        interrupts: Interrupts,
        tick: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._limits = limits
        self._interrupts = interrupts
        self._tick = tick
        self._say = say
        self._before = interrupts.received

    def check(self, folder: Path, stem: str, exits: Sequence[RankExit], temp: TempSpace) -> list[str]:
        """Problems of the reports of this node's ranks, in words.

        Args:
            folder: of the reports.
            stem: start of their names.
            exits: how each rank ended.
            temp: what was free while they ran.
        """
        output = {}
        for item in exits:
            logs = self._options.run_dir.node(self._options.node_index).logs / f"rank{item.rank}"
            output[item.rank] = [*tail(logs / "stdout.log"), *tail(logs / "stderr.log")]
        found = findings(folder.resolve(), stem, [item.rank for item in exits], output, temp.began_s)
        full = temp.finding(exits)
        return [*found, full] if full is not None else found

    def by_hand(self, profiler: str) -> str:
        """A note with the commands that do later what was not done here."""
        run, index = self._options.run_dir.root, self._options.node_index
        steps = [f"aorta {name} {run} --node {index}" for name in self._commands(profiler)]
        return (
            "traces of this node are as the profiler left them; to reduce them by hand, run "
            f"{'; '.join(steps)}"
        )

    def reduce(self, profiler: str, environ: Mapping[str, str], ends_wall_ns: int | None) -> list[str]:
        """Export and reduce; what could not be done, in words.

        Args:
            profiler: that ran here, or `none`.
            environ: for the processes.
            ends_wall_ns: when the job ends. None means no limit.
        """
        lost: list[str] = []
        for name in self._commands(profiler):
            left = self._limits.export_s
            if ends_wall_ns is not None:
                left = min(left, (ends_wall_ns - time.time_ns()) / NS_PER_S - _LAST_S)
            lost += self._run(name, environ, left)
        return lost

    @staticmethod
    def _commands(profiler: str) -> list[str]:
        return ["reduce"] if profiler == "none" else ["export-traces", "reduce"]

    def _run(self, name: str, environ: Mapping[str, str], left_s: float) -> list[str]:
        """Run one command for at most `left_s` seconds; what it could not do."""
        run, index = self._options.run_dir, self._options.node_index
        again = f"by hand, run aorta {name} {run.root} --node {index}"
        if left_s <= 0 or self._interrupts.received != self._before:
            return [f"aorta {name} did not run: no time was left in the job; {again}"]
        log = run.node(index).logs / f"{name}.log"
        argv = [sys.executable, "-m", "aorta", name, str(run.root.resolve()), "--node", str(index)]
        self._say(f"{name}: traces of this node, for at most {left_s:.0f} s")
        start = next_tick = time.monotonic()
        child = Child(argv, env={**environ, **told_to_children()}, log=log, keep=True)
        ended = ""
        while (code := child.poll()) is None and not ended:
            now = time.monotonic()
            if now >= next_tick:
                self._tick()
                next_tick = now + _TICK_S
            if now - start > left_s:
                ended = f"was ended after {left_s:.0f} s"
            elif self._interrupts.received != self._before:
                ended = "was ended with the job"
            time.sleep(_PAUSE_S)
        if ended:
            child.stop(_GRACE_S)
        child.drain()
        lines = list(child.lines)
        lost = [line.removeprefix(LOST) for line in lines if line.startswith(LOST)]
        if ended:
            return [*lost, f"aorta {name} {ended}; {again}"]
        if code != 0:
            others = [line.strip() for line in lines if line.strip() and not line.startswith(LOST)]
            words = "; ".join(others[-_LINES_KEPT:]) or "it said nothing"
            return [*lost, f"aorta {name} failed with {code}: {words}"]
        self._say(f"{name}: done in {time.monotonic() - start:.1f} s")
        return lost

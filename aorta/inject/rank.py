"""The rank that this process records: samples of its stack, and the file that tells what the hooks saw."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

from aorta.artefacts import names
from aorta.artefacts.layout import RunDir
from aorta.inject.flight import FlightKeeper
from aorta.inject.hooks import Hooks, say
from aorta.inject.loaders import LoaderWorkers
from aorta.inject.roots import RootModules
from aorta.inject.stacks import Sampler, Stacks
from aorta.inject.status import InstrumentStatus
from aorta.inject.variables import Variables
from aorta.instrument.identity import Identity


class Rank:
    """The rank that this process records, once it does.

    Args:
        hooks: of this process.
        roots: root modules of the program.
        workers: of its loaders.
    """

    def __init__(self, hooks: Hooks, roots: RootModules, workers: LoaderWorkers) -> None:
        self._hooks, self._roots, self._workers = hooks, roots, workers
        self._variables = Variables()
        self._status: InstrumentStatus | None = None
        self._stacks: Stacks | None = None
        self.sampler: Sampler | None = None
        self.steady = 0
        """Steady steps that were recorded."""
        self.ended = False
        """The program has come to its end without an error."""

    def variables(self) -> AbstractContextManager[None]:
        """Return a context in which the job's variables are set, also those that the program has removed."""
        return self._variables.set_again()

    @staticmethod
    def run() -> RunDir:
        """Return the folder of the run."""
        return RunDir(Path(os.environ[names.RUN_DIR]))

    def take(self) -> bool:
        """Return whether this process is the one that records its rank."""
        if self._status is not None:
            return True
        rank = Identity.from_environment().rank
        try:
            self._status = InstrumentStatus(self.run().instrument(rank), rank)
        except BlockingIOError:
            say(f"process {os.getpid()} is not recorded, because another process already records rank {rank}")
            return False
        return True

    def watch(self, thread: int, part: Callable[[], str | None], going: Callable[[], object]) -> None:
        """Sample the stack of the training thread from now on.

        Args:
            thread: identity of the training thread.
            part: gives the part of the steady step that is open; None outside of one.
            going: gives something that changes with each step.
        """
        self._stacks = Stacks(thread, part)
        flight = FlightKeeper(self.run().flight(Identity.from_environment().rank), going)
        self.sampler = Sampler(self._stacks, self.report, flight.look)
        self.report()

    def note(self, part: str, frame: FrameType) -> None:
        """Count the place of the program that is doing something, by the innermost frame of it."""
        if self._stacks is not None:
            self._stacks.note(part, frame)

    def report(self, note: str | None = None) -> None:
        """Write the file again."""
        if self._status is not None:
            self._status.write(
                self._hooks,
                self._roots.names,
                self.steady,
                self._stacks,
                workers=self._workers,
                note=note,
                ended=self.ended,
            )

    def stop(self) -> None:
        """End the samples, and write the last report."""
        sampler, self.sampler = self.sampler, None
        if sampler is not None:
            sampler.stop()
            self.report()

    def forget(self) -> None:
        """Let go of the parent's file and thread in a child process."""
        self._status = self.sampler = None

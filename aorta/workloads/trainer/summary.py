"""Progress of a run while it runs: a line now and then, and a row of `metrics.csv` per epoch."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from aorta.artefacts.io import append_line, write_text
from aorta.artefacts.records import METRICS_COLUMNS
from aorta.instrument.wire import StepSummary
from aorta.units import NS_PER_S
from aorta.workloads.trainer.world import World

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Totals:
    """Sums over the steps of one rank in one epoch."""

    steps: int = 0
    samples: int = 0
    losses: int = 0
    loss: float = 0.0
    wall_ns: int = 0
    data_wait_ns: int = 0
    compute_ns: int = 0
    exposed_comm_ns: int = 0
    broken_down: int = 0
    """Number of steps that the two sums above cover."""
    steady_compute_ns: int = 0
    steady_exposed_ns: int = 0
    steady: int = 0
    """Number of the broken-down steps that are neither warm-up nor slowed by a profiler."""

    def add(self, step: StepSummary) -> None:
        """Count a step. `wall_ns` runs from the first step's start to the last one's end."""
        self.steps += 1
        assert step.samples is not None  # this trainer counts them
        self.samples += step.samples
        if step.loss is not None:
            self.losses += 1
            self.loss += step.loss
        self.data_wait_ns += step.data_wait_ns
        if step.compute_ns is not None and step.exposed_comm_ns is not None:
            self.broken_down += 1
            self.compute_ns += step.compute_ns
            self.exposed_comm_ns += step.exposed_comm_ns
            if step.steady:
                self.steady += 1
                self.steady_compute_ns += step.compute_ns
                self.steady_exposed_ns += step.exposed_comm_ns

    def over_ranks(self, world: World) -> Totals:
        """The sums over all ranks, by one reduction on the control group; every rank calls it."""
        integers = [
            self.steps,
            self.samples,
            self.losses,
            self.wall_ns,
            self.data_wait_ns,
            self.compute_ns,
            self.exposed_comm_ns,
            self.broken_down,
            self.steady_compute_ns,
            self.steady_exposed_ns,
            self.steady,
        ]
        counts = torch.tensor(integers, dtype=torch.int64)
        loss = torch.tensor([self.loss], dtype=torch.float64)
        if world.control is not None:
            dist.all_reduce(counts, group=world.control)
            dist.all_reduce(loss, group=world.control)
        steps, samples, losses, *times = (int(value) for value in counts.tolist())
        return Totals(steps, samples, losses, float(loss.item()), *times)


def metrics_row(epoch: int, total: Totals, ranks: int) -> dict[str, object]:
    """A row of `metrics.csv` from the sums over `ranks` ranks: times are means over ranks, throughput is
    global. Compute and exposed communication are those of the steps that were timed part by part; each
    other step counts as the mean of the steady ones among these. None where there were none.
    """
    others = total.steps - total.broken_down

    def of_all(known_ns: int, steady_ns: int) -> float | None:
        if not total.broken_down or (others and not total.steady):
            return None
        rest_ns = others * steady_ns / total.steady if others else 0
        return (known_ns + rest_ns) / ranks / NS_PER_S

    seconds = total.wall_ns / ranks / NS_PER_S
    return {
        "epoch": epoch,
        "train_loss": total.loss / total.losses if total.losses else None,
        "epoch_time_sec": seconds,
        "throughput_samples_per_sec": total.samples / seconds if seconds else None,
        "data_load_time_sec": total.data_wait_ns / ranks / NS_PER_S,
        "compute_time_sec": of_all(total.compute_ns, total.steady_compute_ns),
        "exposed_comm_time_sec": of_all(total.exposed_comm_ns, total.steady_exposed_ns),
        "steps": total.steps // ranks,
        "samples": total.samples,
    }


class Observer:
    """Hears of every record of this rank: adds up the epoch, and on rank 0 logs progress each `log_interval`
    steps.

    Args:
        world: this rank among the others.
        log_interval: steps between progress lines.
        metrics_csv: the file of the rows; a file that is there is replaced.
        columns: of the rows, after `METRICS_COLUMNS`.
    """

    def __init__(
        self, world: World, log_interval: int, metrics_csv: Path, columns: Sequence[str] = ()
    ) -> None:
        self._world = world
        self._interval = log_interval
        self._path = metrics_csv
        self._columns = (*METRICS_COLUMNS, *columns)
        self._totals = Totals()
        self._epoch_start: int | None = None
        self._window: list[StepSummary] = []
        self._unwritten: list[str] = []
        if world.rank == 0:
            write_text(metrics_csv, ",".join(self._columns) + "\n")

    def see(self, step: StepSummary) -> None:
        """Take the next step."""
        if self._epoch_start is None:
            self._epoch_start = step.mono_start_ns
        self._totals.add(step)
        self._totals.wall_ns = step.mono_end_ns - self._epoch_start
        self._window.append(step)
        if len(self._window) == self._interval:
            if self._world.rank == 0:
                log.info(progress(self._window, self._world.size))
            self._window = []

    def end_epoch(self, epoch: int, validation: Mapping[str, float] | None = None) -> None:
        """Write the epoch's row with what `validation` found, also of an epoch that was cut short; an epoch
        without steps has none.
        """
        total = self._totals.over_ranks(self._world)
        self._totals, self._epoch_start, self._window = Totals(), None, []
        if self._world.rank == 0 and total.steps:
            text = io.StringIO()
            row = {
                key: value
                for key, value in metrics_row(epoch, total, self._world.size).items()
                if value is not None
            }
            csv.DictWriter(text, self._columns, restval="").writerow({**row, **(validation or {})})
            self._unwritten.append(text.getvalue().rstrip("\r\n"))
            self._write_rows()

    def _write_rows(self) -> None:
        """Rows that do not fit on the disk wait for the next epoch: training goes on."""
        try:
            append_line(self._path, "\n".join(self._unwritten))
        except OSError as error:
            log.error("%s: %s; %d epochs not written yet", self._path, error.strerror, len(self._unwritten))
        else:
            self._unwritten = []


def progress(window: list[StepSummary], ranks: int) -> str:
    """The log line of some steps. Throughput counts all ranks, at this rank's clock: every rank has the
    same batch.
    """
    last = window[-1]
    seconds = (last.mono_end_ns - window[0].mono_start_ns) / NS_PER_S
    samples = sum(step.samples or 0 for step in window) * ranks
    loss = "n/a" if last.loss is None else f"{last.loss:.4f}"
    return (
        f"epoch {last.epoch} step {last.global_step} loss {loss} lr {last.lr:.2e}"
        f" step {1000 * seconds / len(window):.1f} ms, {samples / seconds:.0f} samples/s global"
    )

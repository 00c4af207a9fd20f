"""Everything that is read of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aorta.artefacts.analysis import Problem
from aorta.artefacts.attached import NodeStandstill
from aorta.artefacts.flight import Recording
from aorta.artefacts.instrument_record import InstrumentRecord
from aorta.artefacts.layout import RunDir
from aorta.artefacts.stops import Stop
from aorta.readers.instruments import read_instruments
from aorta.readers.manifest import Account, read_account
from aorta.readers.parallel import Pool
from aorta.readers.sacct import Accounting, fetch_accounting, read_accounting
from aorta.readers.samples import read_cpu_samples, read_gpu_samples
from aorta.readers.standstills import read_flights, read_standstills, read_stops
from aorta.readers.steps import StepRecords, read_steps

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class RunData:
    """Says what a run directory holds, read once; what is missing or broken is in the parts' `problems`."""

    run: RunDir
    account: Account
    """Manifest, configuration, markers."""
    records: StepRecords
    """Steps by rank."""
    gpu: pd.DataFrame | None
    """GPU_COLUMNS but `timestamp` of every node; None without a sample."""
    cpu: pd.DataFrame | None
    """CPU_COLUMNS, likewise; None without a sample."""
    accounting: Accounting
    standstills: tuple[NodeStandstill, ...]
    flights: tuple[Recording, ...]
    stops: tuple[Stop, ...]
    """Nodes whose ranks stood still until the end."""
    problems: tuple[Problem, ...]
    """Problems of all parts."""
    instruments: Mapping[int, InstrumentRecord] = field(default_factory=dict)
    """Records of what hooks saw in each rank. Empty if there were none."""

    @property
    def nodes_expected(self) -> int:
        """Number of nodes by the manifest; 1 without a manifest."""
        return len(self.account.manifest.nodes) if self.account.manifest is not None else 1

    @property
    def ranks_expected(self) -> int | None:
        """World size by the manifest and the records, the larger one; None if neither says.

        A launcher of the program's own may start more ranks than the manifest knows of.
        """
        sizes = [steps[-1:].labels[0].world_size for steps in self.records.by_rank.values()]
        if self.account.manifest is not None:
            sizes.append(self.account.manifest.world_size)
        return max(sizes, default=None)


def read_run(run: RunDir, *, query_accounting: bool = True) -> RunData:
    """Read a run; nothing that is missing or broken in it is fatal.

    Args:
        run: the run directory.
        query_accounting: ask sacct if the run is a Slurm job; otherwise only an answer kept earlier is used.

    Writes the merged monitor files and `sacct_summary.txt` into the run directory.
    """
    account = read_account(run)
    manifest = account.manifest
    job = manifest.job_id if manifest else None
    with Pool() as pool:
        records = read_steps(run, manifest.attempt if manifest else None, pool, job)
        gpu, gpu_problems = read_gpu_samples(run, pool)
        cpu, cpu_problems = read_cpu_samples(run, pool)
    if query_accounting and manifest is not None and manifest.executor == "slurm":
        accounting = fetch_accounting(
            manifest.job_id, run.sacct_summary, started_wall_ns=manifest.started_wall_ns
        )
    else:
        accounting = read_accounting(run.sacct_summary)
    instruments, unusable = read_instruments(run)
    attempt = manifest.attempt if manifest else None
    standstills, unread = read_standstills(run, attempt)
    stops, unread_stops = read_stops(run, attempt)
    flights, unread_flights = read_flights(run, records.by_rank) if standstills else ((), ())
    parts = (
        account.problems,
        records.problems,
        gpu_problems,
        cpu_problems,
        accounting.problems,
        unread,
        unread_stops,
        unread_flights,
        unusable,
    )
    return RunData(
        run=run,
        account=account,
        records=records,
        gpu=gpu,
        cpu=cpu,
        accounting=accounting,
        standstills=standstills,
        flights=flights,
        stops=stops,
        problems=tuple(problem for part in parts for problem in part),
        instruments=instruments,
    )

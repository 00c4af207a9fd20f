"""Every path of runs and what jobs print; `submissions` has the paths of submissions, `study_layout` those of
sweeps' documents, validations and the DDP benchmark. No other module builds one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.files import Unread, changed_ns, closed, entries, is_folder
from aorta.errors import ArtefactError

_SCENARIO = re.compile(r"(?P<prefix>[a-z][a-z0-9]*_)?(?P<nodes>[1-9][0-9]{0,5})node")
_RECORDS = re.compile(r"rank_([0-9]+)_metrics\.jsonl")
_INSTRUMENTS = re.compile(r"rank_(\d+)_instrument\.json")
_SUMMARY = re.compile(r"rank_([0-9]+)\.json")
_FLAT = re.compile(r"(?P<scenario>(?:[a-z][a-z0-9]*_)?[1-9][0-9]{0,5}node)_(?P<job>\w+)")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named shape of a run: `1node`, `4node`, `cpu_2node`."""

    name: str

    def __post_init__(self) -> None:
        if not _SCENARIO.fullmatch(self.name):
            raise ArtefactError(f"scenario {self.name!r} is not a name such as 2node or cpu_2node")

    @property
    def nodes(self) -> int:
        """Number of nodes in the name."""
        match = _SCENARIO.fullmatch(self.name)
        assert match is not None
        return int(match["nodes"])

    @property
    def family(self) -> str:
        """Returns what precedes the number, without the underscore.

        `cpu` of `cpu_2node`, empty for `2node`.
        """
        match = _SCENARIO.fullmatch(self.name)
        assert match is not None
        return (match["prefix"] or "").rstrip("_")


def is_scenario(name: str) -> bool:
    """True if `name` is of the form `2node` or `cpu_2node`."""
    return _SCENARIO.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class NodeDir:
    """Says what one node wrote: `<run>/nodes/node<i>/`."""

    root: Path

    @property
    def info(self) -> Path:
        """`NodeInfo`: host, GPUs, clocks; written before the first process starts."""
        return self.root / "info.json"

    @property
    def status(self) -> Path:
        """`NodeStatus`: rewritten at start and end."""
        return self.root / "status.json"

    @property
    def standstill(self) -> Path:
        """`NodeStandstill`: where the ranks were when none went on; absent if that was never seen."""
        return self.root / "standstill.json"

    @property
    def stops(self) -> Path:
        """`NodeStops`: when processes of ranks could not run; absent if that was never seen."""
        return self.root / "stops.json"

    @property
    def reserve(self) -> Path:
        """Room for `status` at the end, on a disk that is full by then; there only while the node runs."""
        return self.root / ".reserve"

    @property
    def gpu_csv(self) -> Path:
        """GPU samples of this node."""
        return self.root / "gpu_monitor.csv"

    @property
    def cpu_csv(self) -> Path:
        """CPU, memory and IO samples of this node."""
        return self.root / "cpu_monitor.csv"

    @property
    def monitor_status(self) -> Path:
        """`MonitorStatus`: samples taken and missed."""
        return self.root / "monitor_status.json"

    def trace_summary(self, rank: int) -> Path:
        """`TraceSummary` of a rank of this node."""
        return self.root / "traces" / f"rank_{rank}.json"

    def trace_summaries(self) -> dict[int, Path]:
        """The summaries that there are, by rank."""
        found = {}
        for path in entries(self.root / "traces"):
            match = _SUMMARY.fullmatch(path.name)
            if match:
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    @property
    def reduction(self) -> Path:
        """`Reduction`: which ranks' traces were reduced, and what could not be read."""
        return self.root / "traces" / "reduction.json"

    @property
    def summary_stats(self) -> Path:
        """This node's part of the profiler's `summary_stats.csv`."""
        return self.root / "summary_stats.csv"

    @property
    def logs(self) -> Path:
        """Output of each rank and of the monitor."""
        return self.root / "logs"


@dataclass(frozen=True, slots=True)
class RunDir:
    """One run: `results/profiling/<scenario>/run_<JOB_ID>/`."""

    root: Path

    @classmethod
    def of(cls, results: Path, scenario: Scenario, job_id: str) -> RunDir:
        """The directory of a job below `results`."""
        if not _JOB_ID.fullmatch(job_id):
            raise ArtefactError(f"job id {job_id!r} cannot be part of a path")
        return cls(results / scenario.name / f"run_{job_id}")

    @property
    def manifest(self) -> Path:
        """`Manifest`."""
        return self.root / "manifest.json"

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.root / "config.yaml"

    @property
    def script(self) -> Path:
        """The script that was submitted."""
        return self.root / "job.sbatch"

    @property
    def session(self) -> Path:
        """`Session`: attempt and rendezvous, written by node 0 for the other nodes."""
        return self.root / "session.json"

    @property
    def status(self) -> Path:
        """`RunStatus`: the nodes' markers merged."""
        return self.root / "status.json"

    @property
    def metrics_csv(self) -> Path:
        """One row per epoch."""
        return self.root / "metrics.csv"

    @property
    def gpu_csv(self) -> Path:
        """GPU samples of all nodes."""
        return self.root / "gpu_monitor.csv"

    @property
    def cpu_csv(self) -> Path:
        """CPU samples of all nodes."""
        return self.root / "cpu_monitor.csv"

    @property
    def nsys(self) -> Path:
        """Exports of Nsight Systems reports, one per rank, scrubbed; and `summary_stats.csv`."""
        return self.root / "nsys"

    @property
    def nsys_reports(self) -> Path:
        """Nsight Systems' own reports, one per rank: only their owner may look into this folder, unless
        `capture.keep_environment`.
        """
        return self.nsys / "private"

    @property
    def rocprof(self) -> Path:
        """rocprofv3 output, one per rank."""
        return self.root / "rocprof"

    def summary_stats(self, profiler: str) -> Path:
        """Kernels, copies, ranges and calls of all ranks, by name; `profiler` is `nsys` or `rocprofv3`."""
        return {"nsys": self.nsys, "rocprofv3": self.rocprof}[profiler] / "summary_stats.csv"

    @property
    def torch_profiler(self) -> Path:
        """torch.profiler traces, one folder per rank."""
        return self.root / "torch_profiler"

    def checkpoint(self, epoch: int) -> Path:
        """Weights after an epoch (0-based); the folder is `checkpoints`."""
        return self.root / "checkpoints" / f"epoch_{epoch}.pt"

    @property
    def sacct_summary(self) -> Path:
        """Slurm's accounting of the job."""
        return self.root / "sacct_summary.txt"

    @property
    def job_metadata(self) -> Path:
        """The job in readable lines."""
        return self.root / "job_metadata.txt"

    @property
    def injected(self) -> Path:
        """Returns what the `faults` block put into the run; the analysis never reads it."""
        return self.root / "injected.json"

    @property
    def analysis(self) -> Path:
        """`Analysis`."""
        return self.root / "profiling_analysis.json"

    @property
    def report(self) -> Path:
        """The text report."""
        return self.root / "profiling_report.txt"

    @property
    def plot_png(self) -> Path:
        """The plots, as pixels."""
        return self.root / "profiling_analysis.png"

    @property
    def plot_svg(self) -> Path:
        """The plots, as vectors."""
        return self.root / "profiling_analysis.svg"

    def node(self, index: int) -> NodeDir:
        """The folder of node `index` (0-based, Slurm's SLURM_NODEID)."""
        return NodeDir(self.root / "nodes" / f"node{index}")

    def nodes(self) -> list[tuple[int, NodeDir]]:
        """The node folders that exist, by index."""
        found = [
            (int(path.name.removeprefix("node")), NodeDir(path))
            for path in entries(self.root / "nodes")
            if re.fullmatch(r"node[0-9]+", path.name)
        ]
        return sorted(found, key=lambda item: item[0])

    def records(self, rank: int) -> Path:
        """Step records of one rank."""
        return self.root / f"rank_{rank}_metrics.jsonl"

    def instrument(self, rank: int) -> Path:
        """Returns what the hooks saw in one rank of a program that does not know of aorta."""
        return self.root / f"rank_{rank}_instrument.json"

    def flight(self, rank: int) -> Path:
        """The flight recorder of a rank whose training did not go on; absent if it went on."""
        return self.root / f"rank_{rank}_flight.json"

    def all_records(self) -> dict[int, Path]:
        """Step records of every rank that wrote some."""
        found = {}
        for path in entries(self.root):
            match = _RECORDS.fullmatch(path.name)
            if match:
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    @property
    def planned(self) -> Path:
        """Returns how many steps the trainer is to make."""
        return self.root / "planned.json"

    def all_instruments(self) -> dict[int, Path]:
        """Returns what the hooks saw in each rank, by rank."""
        found = {}
        for path in self.root.glob("rank_*_instrument.json"):
            match = _INSTRUMENTS.fullmatch(path.name)
            if match:
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    def attempt(self, number: int) -> Path:
        """Returns where an earlier attempt of a requeued job is kept."""
        return self.root / f"attempt_{number}"

    def earlier(self, stamp: str) -> Path:
        """Returns where a run outside a job keeps what it found here; `stamp` says when that ended."""
        return self.root / f"earlier_{stamp}"


def runs(results: Path, unread: Unread | None = None) -> list[tuple[Scenario, RunDir]]:
    """Every run below `results`, by scenario (exact name, never a substring), then by modification time.

    A run that this user may not look into is left out, and named in `unread`.
    """
    found = []
    for parent in entries(results, unread):
        if _SCENARIO.fullmatch(parent.name) and is_folder(parent):
            scenario = Scenario(parent.name)
            found += [(scenario, RunDir(folder)) for folder in open_folders(parent, unread)]
    return sorted(found, key=lambda item: (item[0].family, item[0].nodes, changed_ns(item[1].root)))


def open_folders(parent: Path, unread: Unread | None) -> list[Path]:
    """Folders in `parent` whose names begin with `run_`, if this user may look into them."""
    found = []
    for folder in entries(parent, unread):
        if folder.name.startswith("run_") and is_folder(folder):
            reason = closed(folder)
            if reason is None:
                found.append(folder)
            elif unread is not None:
                unread.append((folder, reason))
    return found


def job_output(results: Path, name: str, job_id: str) -> Path:
    """Returns what a job printed: `results/profiling/profile_<scenario>_<JOB_ID>.out`.

    `job_id` may be Slurm's placeholder `%j`, or `%A_%a` of an array's tasks; the analysis job is called
    `aggregate`.
    """
    return results / f"profile_{name}_{job_id}.out"


def flat_alias(results: Path, scenario: Scenario, job_id: str) -> Path:
    """The documented short path of a run with a family: `results/profiling/cpu_2node_<JOB_ID>`."""
    return results / f"{scenario.name}_{job_id}"

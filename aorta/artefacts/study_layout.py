"""Paths of what is made beside the runs: documents of sweeps, validations, the DDP benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

VALIDATIONS = Path("results/validation")
"""Place where validations go, below the project folder."""


@dataclass(frozen=True, slots=True)
class SweepDocs:
    """Says what `aorta aggregate` writes about a sweep, in the folder of documents."""

    root: Path

    @property
    def markdown(self) -> Path:
        """The document."""
        return self.root / "SWEEP_ANALYSIS.md"

    @property
    def json(self) -> Path:
        """`SweepAnalysis`."""
        return self.root / "SWEEP_ANALYSIS.json"

    def plot(self, name: str) -> tuple[Path, Path]:
        """A plot, as pixels and as vectors."""
        folder = self.root / "sweep_analysis"
        return folder / f"{name}.png", folder / f"{name}.svg"


@dataclass(frozen=True, slots=True)
class ValidationDir:
    """One validation: `results/validation/run_<timestamp>/`, or where the user says."""

    root: Path

    @property
    def trials(self) -> Path:
        """`Trial` a line, written as each run has ended; the last line of a cell counts."""
        return self.root / "runs.jsonl"

    @property
    def results(self) -> Path:
        """The base results directory of its runs."""
        return self.root / "profiling"

    @staticmethod
    def document(docs: Path, name: str) -> Path:
        """The table that the matrix `name` gives, below the folder of documents."""
        return docs / f"{name}.md"


@dataclass(frozen=True, slots=True)
class DdpBenchmarkDir:
    """Says what the DDP benchmark writes: results in one folder, traces in one (which may be the same)."""

    root: Path

    @property
    def results(self) -> Path:
        """`DdpBenchmark`."""
        return self.root / "ddp_benchmark.json"

    @property
    def plot_png(self) -> Path:
        """The chart, as pixels."""
        return self.root / "ddp_benchmark.png"

    @property
    def plot_svg(self) -> Path:
        """The chart, as vectors."""
        return self.root / "ddp_benchmark.svg"

    def trace(self, implementation: str, rank: int) -> Path:
        """The torch.profiler trace of one rank."""
        return self.root / f"{implementation}_rank_{rank}_trace.json"

    def summary(self, implementation: str) -> Path:
        """Returns what was traced, in readable lines."""
        return self.root / f"{implementation}_summary.txt"

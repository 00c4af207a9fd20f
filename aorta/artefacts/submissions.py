"""Every path of submissions: what went to Slurm or to the local executor, and its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.files import Unread, entries
from aorta.artefacts.layout import Scenario, is_scenario, open_folders


@dataclass(frozen=True, slots=True)
class SubmissionDir:
    """One submission: `results/profiling/run_<timestamp>/`."""

    root: Path

    @property
    def job_ids(self) -> Path:
        """One job id a line, in the order of acceptance."""
        return self.root / "job_ids.txt"

    @property
    def jobs(self) -> Path:
        """`SubmittedJob` a line: id, scenario, run directory."""
        return self.root / "jobs.jsonl"

    @property
    def private(self) -> Path:
        """Working folder of the local executor, gone when it has ended."""
        return self.root / "local"

    @classmethod
    def of(cls, results: Path, stamp: str) -> SubmissionDir:
        """The submission of the time `stamp` below `results`."""
        return cls(results / f"run_{stamp}")

    def config(self, scenario: Scenario) -> Path:
        """The resolved configuration that the job of `scenario` uses."""
        return self.root / f"{scenario.name}.yaml"

    def script(self, scenario: Scenario) -> Path:
        """The script submitted for `scenario`."""
        return self.root / f"{scenario.name}.sbatch"

    def prepared(self) -> list[Scenario]:
        """The scenarios that were to be submitted, accepted or not, by family and number of nodes."""
        names = [
            path.stem for path in entries(self.root) if path.suffix == ".yaml" and is_scenario(path.stem)
        ]
        return sorted((Scenario(name) for name in names), key=lambda item: (item.family, item.nodes))

    @property
    def sweep(self) -> Path:
        """`Sweep`: the points, in a submission that is a sweep; no such file in any other."""
        return self.root / "sweep.json"

    def points(self, scenario: Scenario) -> Path:
        """Resolved configurations of a sweep's points, each named by its array task: `<task>.yaml`."""
        return self.root / "points" / scenario.name

    @property
    def aggregate_script(self) -> Path:
        """The script of the chained analysis job."""
        return self.root / "aggregate.sbatch"


def submissions(results: Path, unread: Unread | None = None) -> list[SubmissionDir]:
    """Every submission below `results`, oldest first (their names are timestamps).

    One that this user may not look into is left out, and named in `unread`.
    """
    return [SubmissionDir(folder) for folder in open_folders(results, unread)]

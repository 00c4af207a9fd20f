"""The environment that Slurm's programs are called in, and the times that they print in it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

_STRAY = ("SBATCH_", "SLURM_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_")
_NEEDED = frozenset({"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_CLUSTERS"})


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without the variables that Slurm's programs take as options.

    Options in the environment win over lines of the script (`SBATCH_*`), filter what squeue shows
    (`SQUEUE_*`), change how times are printed (`SLURM_TIME_FORMAT`), and describe the allocation that this
    process may be in (`SLURM_*`). The configuration, the identity and the chosen cluster stay. A cluster that
    is chosen for sbatch alone is chosen for all, so that its jobs are found again.
    """
    kept = {
        name: value for name, value in environment.items() if name in _NEEDED or not name.startswith(_STRAY)
    }
    if "SBATCH_CLUSTERS" in kept:
        kept.setdefault("SLURM_CLUSTERS", kept["SBATCH_CLUSTERS"])
    return kept


def printed_s(text: str) -> float | None:
    """Returns seconds since the epoch of a time that Slurm printed; None for `Unknown` and other forms."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").timestamp()
    except (ValueError, OverflowError, OSError):
        return None

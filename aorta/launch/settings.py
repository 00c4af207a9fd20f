"""The site's settings: `scripts/profiling_config.sh`, from what was given and what the cluster says."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from aorta.artefacts import names
from aorta.config.shipped import shipped
from aorta.errors import PlanError
from aorta.launch.checks import account as check_account
from aorta.launch.checks import partitions as check_partitions
from aorta.launch.site import Site
from aorta.launch.submission import CPU_CONFIG, GPU_CONFIG


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """Settings that all submissions at this site share."""

    account: str | None
    """Account to submit with. None if the site has no accounting."""
    partition: str
    gpus_per_node: int


def check_settings(settings: SiteSettings, site: Site) -> None:
    """The account, the partition and its GPUs exist.

    Raises:
        PlanError: one does not.
    """
    check_account(settings.account, site)
    most = max(part.gpus for part in check_partitions(settings.partition, site))
    if settings.gpus_per_node > most:
        raise PlanError(
            f"the nodes of partition {settings.partition!r} have {most} GPUs, not {settings.gpus_per_node}",
            f"say --gpus-per-node {most}",
        )


def render_settings(settings: SiteSettings) -> str:
    """The file's text: exports only, every value quoted for the shell.

    The SLURM_ names are what `aorta submit` reads, the SBATCH_ names what sbatch itself reads for the scripts
    in slurm/.
    """
    # Absolute: the file is sourced in folders of users, too.
    config = shipped(GPU_CONFIG if settings.gpus_per_node else CPU_CONFIG).absolute()
    values: dict[str, object] = {}
    if settings.account is not None:
        values |= {"SLURM_ACCOUNT": settings.account, "SBATCH_ACCOUNT": settings.account}
    values |= {"SLURM_PARTITION": settings.partition, "SBATCH_PARTITION": settings.partition}
    if settings.gpus_per_node:
        values["SBATCH_GPUS_PER_NODE"] = settings.gpus_per_node
    values |= {names.GPUS_PER_NODE: settings.gpus_per_node, names.CONFIG: config}
    head = "# Written by scripts/configure_profiling.sh; source it before run_profiling.sh or sbatch.\n"
    return head + "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in values.items())

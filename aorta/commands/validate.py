"""`aorta validate`: known faults in real runs, and a table of what the analysis said of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import aorta
from aorta.artefacts.study_layout import VALIDATIONS, ValidationDir
from aorta.commands._say import say
from aorta.config.shipped import shipped
from aorta.errors import ArtefactError, PlanError

if TYPE_CHECKING:
    from aorta.artefacts.validation import Trial
    from aorta.validation.matrix import Matrix
    from aorta.validation.running import Execute

CPU_CONFIG, GPU_CONFIG = "validation.yaml", "validation_gpu.yaml"


@click.command("validate")
@click.option("--small", is_flag=True, help="Do only a few runs, to check that everything works.")
@click.option(
    "--gpus", type=click.IntRange(min=1), metavar="N", help="Run the matrix for N GPUs of this machine."
)
@click.option("--hangs", is_flag=True, help="Run jobs that hang on purpose.")
@click.option("--mesh", is_flag=True, help="Run pipelines and other meshes on this machine (gloo).")
@click.option(
    "--mistakes",
    is_flag=True,
    help="Run a plain trainer with known mistakes; with --gpus 1, all of them on a GPU.",
)
@click.option(
    "--stripped",
    is_flag=True,
    help="Use a trainer without instrumentation, as `--instrument auto` records it.",
)
@click.option("--executor", type=click.Choice(["local", "slurm"]), default="local", show_default=True)
@click.option("--partition", envvar="SLURM_PARTITION", help="With --executor slurm.")
@click.option("--account", envvar="SLURM_ACCOUNT", help="With --executor slurm.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of the runs. If it contains runs, the matrix is continued. Default: "
    "results/validation/run_<timestamp>.",
)
@click.option(
    "--analyse-only", is_flag=True, help="Analyse the runs in --into again, without running anything."
)
@click.option(
    "--docs",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for validation.md. Default: docs/ in aorta's own checkout, otherwise results/.",
)
def command(**options: Any) -> int:
    """Inject known faults into real runs, and count how often the analysis finds the right kind, rank and
    gain.

    The result is docs/validation.md (validation-small, -slurm, -gpu or -stripped). Exit status 0: every
    target is met.
    """
    if options["hangs"]:
        from aorta.commands._hangs import validate_hangs

        slurm = options["executor"] == "slurm"
        return validate_hangs(_folder(options).root, small=options["small"], slurm=slurm)
    if options["mesh"]:
        from aorta.commands._meshes import validate_meshes

        return validate_meshes(_folder(options).root, small=options["small"], again=options["analyse_only"])
    if options["mistakes"]:
        from aorta.commands._mistakes import validate_mistakes

        return validate_mistakes(_folder(options).root, gpu=options["gpus"] is not None)
    from aorta.artefacts.names import RESULTS
    from aorta.commands._reports import docs_folder
    from aorta.validation.document import document, targets_text, told
    from aorta.validation.running import analyse_again, in_order, read_trials, run_cells
    from aorta.validation.scoring import score

    matrix, folder = _matrix(options), _folder(options)
    say(f"{len(matrix.cells)} runs; to continue after an interruption: add --into {folder.root}")

    def tell(trial: Trial) -> None:
        say(told(trial))

    from aorta.commands._validation import Stopped, analyse

    ended = 0
    try:
        if options["analyse_only"]:
            analyse_again(matrix.cells, folder, analyse, tell)
        else:
            run_cells(matrix.cells, folder, _executor(options, folder), analyse, tell)
    except Stopped as stopped:
        ended = 128 + stopped.number
    trials = read_trials(folder)
    if not trials and not ended:
        raise PlanError(
            f"{folder.root} contains no run of a validation", "name the folder of one with --into"
        )
    result = score(in_order(matrix.cells, trials))
    path = ValidationDir.document(docs_folder(options["docs"], RESULTS), matrix.name)
    _write(path, document(matrix, result, made_by=_made_by(options)))
    say(f"{targets_text(result)}\ntable: {path}")
    return ended or (0 if result.met else 1)


def _matrix(options: dict[str, Any]) -> Matrix:
    from aorta.commands._validation import links_can_be_limited
    from aorta.validation.matrix import cpu_matrix, gpu_matrix, small_matrix, stripped

    executor = options["executor"]
    if options["gpus"] is not None:
        if options["small"] or executor == "slurm":
            raise PlanError("--gpus uses its own matrix, on this machine", "leave out --small and --executor")
        if options["stripped"]:
            raise PlanError("--stripped runs on the CPU", "leave out --gpus")
        return gpu_matrix(options["gpus"])
    links = executor == "slurm" and links_can_be_limited()
    matrix = small_matrix(executor) if options["small"] else cpu_matrix(executor, links=links)
    return stripped(matrix) if options["stripped"] else matrix


def _folder(options: dict[str, Any]) -> ValidationDir:
    if options["into"] is not None:
        return ValidationDir(options["into"])
    if options["analyse_only"]:
        raise PlanError("--analyse-only needs the folder of a validation", "name it with --into")
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return ValidationDir(VALIDATIONS / f"run_{stamp}")


def _executor(options: dict[str, Any], folder: ValidationDir) -> Execute:
    import os

    from aorta.commands._validation import Local, Slurm
    from aorta.launch.local import visible_gpus

    program = Path(aorta.__file__).parent / "workloads" / "stripped.py" if options["stripped"] else None
    if options["executor"] == "slurm":
        partition, account = options["partition"], options["account"]
        return Slurm(folder, shipped(CPU_CONFIG), partition, account, program)
    wanted = options["gpus"]
    if wanted is None:
        return Local(folder, shipped(CPU_CONFIG), [], program)
    gpus = visible_gpus(os.environ)
    if len(gpus) < wanted:
        raise PlanError(f"--gpus {wanted}: this machine has {len(gpus)}", "use fewer, or leave it out")
    return Local(folder, shipped(GPU_CONFIG), gpus[:wanted])


def _made_by(options: dict[str, Any]) -> str:
    words = ["aorta validate"]
    words += ["--stripped"] if options["stripped"] else []
    words += ["--small"] if options["small"] else []
    words += [f"--gpus {options['gpus']}"] if options["gpus"] is not None else []
    words += [f"--executor {options['executor']}"] if options["executor"] != "local" else []
    return " ".join(words)


def _write(path: Path, text: str) -> None:
    from aorta.artefacts.io import write_text

    try:
        write_text(path, text)
    except OSError as error:
        raise ArtefactError(
            f"{path}: {error.strerror}", "name a folder that can be written with --docs"
        ) from error

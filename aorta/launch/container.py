"""Container runtimes: which one runs an image, and the words before a node's ranks. Pure.

The node agent stays outside. One container per node holds torchrun and the ranks.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from aorta.artefacts import names
from aorta.artefacts.clean import plain
from aorta.config.schema import ContainerConfig
from aorta.errors import ConfigError, RunError
from aorta.monitors.devices import Vendor

Runtime = Literal["pyxis", "apptainer", "charliecloud"]
RUNTIMES: tuple[Runtime, ...] = ("pyxis", "apptainer", "charliecloud")
PROGRAMS: dict[Runtime, tuple[str, ...]] = {
    "pyxis": ("srun",),
    "apptainer": ("apptainer", "singularity"),
    "charliecloud": ("ch-run",),
}
PYTHON = "python3"
"""The interpreter inside an image, unless --python names another one."""
IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST_ONLY = (
    "CONDA_DEFAULT_ENV", "CONDA_EXE", "CONDA_PREFIX", "CONDA_PYTHON_EXE", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "PYENV_ROOT", "PYENV_VERSION", "PYTHONEXECUTABLE", "PYTHONHOME", "VIRTUAL_ENV",
)  # fmt: skip
"""Variables that describe the host's programs. They would mislead those of an image."""
TEMPORARY = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
OF_THE_TASK = (
    "SLURM_LOCALID", "SLURM_NNODES", "SLURM_NODEID", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_PROCID",
    "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS",
)  # fmt: skip
"""Variables of the agent's task, which a further job step replaces by its own."""
_ONE_NODE = ("--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=1")


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the host that a container sees."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contained:
    """A container of one node, as its runtime is told."""

    runtime: Runtime
    program: str
    image: str
    mounts: tuple[Mount, ...]
    workdir: str
    vendor: Vendor | None = None
    """Maker of the node's GPUs. None if the job has none here."""
    passed: tuple[str, ...] = ()
    """Variables of the host that win over those of the image."""
    node: str | None = None
    """Slurm's name of the node."""
    task: tuple[tuple[str, str], ...] = ()
    """`OF_THE_TASK`, as the agent has them."""
    image_environment: bool = False
    """The image has a file of variables that Charliecloud sets on demand."""
    hooks: str | None = None
    """Folder in front of PYTHONPATH. None if nothing is put into the program."""

    def around(self, command: Sequence[str]) -> list[str]:
        """Returns `command` inside the container."""
        return [*_PREFIX[self.runtime](self), *command]


def _pyxis(it: Contained) -> list[str]:
    words = [it.program, *_ONE_NODE]
    if it.node is not None:
        words.append(f"--nodelist={it.node}")
    words += [f"--container-image={it.image}", f"--container-workdir={it.workdir}"]
    if it.mounts:
        words.append("--container-mounts=" + ",".join(_colons(mount) for mount in it.mounts))
    if it.passed:
        words.append("--container-env=" + ",".join(it.passed))
    return [*words, *(("env", *(f"{name}={value}" for name, value in it.task)) if it.task else ())]


def _apptainer(it: Contained) -> list[str]:
    words = [it.program, "exec"]
    if it.vendor is not None:
        words.append({"nvidia": "--nv", "amd": "--rocm"}[it.vendor])
    for mount in it.mounts:
        words += ["--bind", _colons(mount)]
    return [*words, "--pwd", it.workdir, it.image]


def _charliecloud(it: Contained) -> list[str]:
    words = [it.program]
    for mount in it.mounts:
        words += ["--bind", f"{mount.source}:{mount.target}"]
    words += ["--cd", it.workdir, f"--set-env=PATH={IMAGE_PATH}"]
    if it.image_environment:
        words.append("--set-env")
        if it.hooks is not None:
            words.append(f"--set-env=PYTHONPATH={it.hooks}:$PYTHONPATH")
    return [*words, it.image, "--"]


_PREFIX: dict[Runtime, Callable[[Contained], list[str]]] = {
    "pyxis": _pyxis,
    "apptainer": _apptainer,
    "charliecloud": _charliecloud,
}


def _colons(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")


def check_image(image: str) -> None:
    """Refuse a name that a runtime would take for something else.

    Raises:
        ConfigError: it is empty, begins like an option, or holds a control character.
    """
    if not image or image.startswith("-") or any(ord(char) < 32 or ord(char) == 127 for char in image):
        raise ConfigError(
            f"container.image is {image!r}, expected a file, a folder or the name of an image",
            "write a path, or a name such as docker://pytorch/pytorch:latest",
        )


def folder_of(image: str) -> Path | None:
    """Returns the folder that `image` names. None if it is a file, or a name that a runtime knows.

    A name that begins with neither / nor . counts as a folder only if it holds a system. So `aorta` in a
    checkout is the image of that name, and not the package.
    """
    path = Path(image)
    holds = image.startswith(("/", "./", "../")) or (path / "usr").is_dir() or (path / "bin").is_dir()
    return path if holds and path.is_dir() else None


def in_storage(image: str, environ: Mapping[str, str]) -> Path | None:
    """Returns the folder of an image that `ch-image` keeps under this name; None: it keeps none."""
    storage = environ.get("CH_IMAGE_STORAGE") or f"/var/tmp/{environ.get('USER', '')}.ch"  # noqa: S108
    path = Path(storage) / "img" / image.replace("/", "%").replace(":", "+")
    return path if path.is_dir() else None


def parse_mounts(texts: Sequence[str]) -> tuple[Mount, ...]:
    """Returns the folders of `container.mounts`: `SOURCE[:TARGET][:ro|:rw]`, absolute.

    Raises:
        ConfigError: names the entry, what is wrong with it, and what is allowed.
    """
    found = []
    for text in texts:
        parts = text.split(":")
        mode = parts.pop() if parts[-1] in ("ro", "rw") and len(parts) > 1 else "rw"
        if not 1 <= len(parts) <= 2:
            raise _wrong_mount(text, "there are too many colons")
        mount = Mount(parts[0], parts[-1], mode == "ro")
        check_mount(mount, text)
        found.append(mount)
    return tuple(found)


def check_mount(mount: Mount, text: str | None = None) -> None:
    """Refuse a folder that no runtime can be told of.

    Raises:
        ConfigError: a path is relative, is the root, has `..`, or holds a comma, a colon or a control
            character.
    """
    for path in (mount.source, mount.target):
        pure = PurePosixPath(path)
        if not pure.is_absolute() or ".." in pure.parts or len(pure.parts) < 2:
            raise _wrong_mount(text or path, f"{path!r} is no absolute path below /")
        if any(char in ",:" or ord(char) < 32 or ord(char) == 127 for char in path):
            raise _wrong_mount(text or path, f"{path!r} contains a comma, a colon or a control character")


def _wrong_mount(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"container.mounts: {text!r}: {why}",
        "write /folder, /folder:ro or /folder:/inside:ro, without commas; the project and results folders "
        "are also mounted, and their paths must not contain commas either",
    )


def reduced(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    """Returns `mounts`, parents first, without those that another one already shows at the same place."""
    kept: list[Mount] = []
    for mount in sorted(
        dict.fromkeys(mounts), key=lambda item: (len(Path(item.target).parts), item.read_only)
    ):
        if not any(_covers(other, mount) for other in kept):
            kept.append(mount)
    return tuple(kept)


def _covers(outer: Mount, inner: Mount) -> bool:
    source, target = Path(inner.source), Path(inner.target)
    return (
        target.is_relative_to(outer.target)
        and source.is_relative_to(outer.source)
        and target.relative_to(outer.target) == source.relative_to(outer.source)
        and (inner.read_only or not outer.read_only)
    )


def fitting(image: str, *, folder: bool) -> tuple[Runtime, ...]:
    """Returns the runtimes that can run an image of this form, the most usual one first.

    Args:
        image: as the configuration names it.
        folder: it is a folder.
    """
    name = image.lower()
    if folder:
        return ("charliecloud", "apptainer")
    if name.endswith((".sif", ".simg")) or name.startswith(("library://", "oras://", "shub://")):
        return ("apptainer",)
    if name.endswith((".sqsh", ".sqfs", ".squashfs")):
        return ("pyxis", "charliecloud")
    if name.startswith("docker://"):
        return ("pyxis", "apptainer")
    return ("pyxis", "charliecloud")


def choose_runtime(
    requested: Runtime | Literal["auto"], image: str, found: Mapping[Runtime, str], *, folder: bool
) -> tuple[Runtime, str]:
    """Returns the runtime and its program.

    Args:
        requested: `container.runtime`.
        image: as the configuration names it.
        found: program of each runtime that is there.
        folder: the image is a folder.

    Raises:
        RunError: the one asked for, or every one that fits, is not there.
    """
    fits = (requested,) if requested != "auto" else fitting(image, folder=folder)
    chosen = next((runtime for runtime in fits if runtime in found), None)
    if chosen is None:
        wanted = " or ".join(fits)
        there = ", ".join(found) or "none"
        raise RunError(
            f"no runtime for the container {image}: it needs {wanted}, but this node has {there}",
            "load the module of a runtime, or set container.runtime and a suitable image",
        )
    return chosen, found[chosen]


def host_environment(environ: Mapping[str, str], mounts: Sequence[Mount]) -> dict[str, str]:
    """Returns `environ` without what describes the host's programs and folders that no mount shows."""
    seen = [Path(mount.source) for mount in mounts if mount.source == mount.target]
    return {
        name: value
        for name, value in environ.items()
        if name not in HOST_ONLY
        and (name not in TEMPORARY or any(Path(value).is_relative_to(path) for path in seen))
    }


def missing_points(image: Path, mounts: Sequence[Mount]) -> list[Path]:
    """Returns the folders that an image, itself a folder, lacks as places of its mounts.

    Raises:
        RunError: a symbolic link of the image leads out of it.
    """
    found = []
    for mount in mounts:
        place = image
        for part in Path(mount.target).parts[1:]:
            place /= part
            leaves = place.is_symlink() and not place.resolve().is_relative_to(image.resolve())
            if leaves or (place.is_symlink() and place.readlink().is_absolute()):
                raise RunError(
                    f"{place} is a symbolic link that leads out of the image, so nothing can be mounted at "
                    f"{mount.target}",
                    "choose another place inside the container: container.mounts takes SOURCE:TARGET",
                )
        if not place.exists():
            found.append(place)
    return found


def in_words(block: ContainerConfig, project: str, results: str, python: str | None) -> list[str]:
    """Returns lines for people: how each runtime that fits the image starts the ranks of a node.

    Args:
        block: of the configuration.
        project: folder that the ranks start in.
        results: folder of the results.
        python: the image's interpreter. None means the usual one.
    """
    if block.image is None:
        return []
    folder = folder_of(block.image) is not None
    fits = fitting(block.image, folder=folder) if block.runtime == "auto" else (block.runtime,)
    mounts = reduced([*parse_mounts(block.mounts), *(Mount(path, path) for path in (project, results))])
    lines: list[str] = []
    for runtime in fits:
        contained = Contained(
            runtime=runtime,
            program=PROGRAMS[runtime][0],
            image=block.image,
            mounts=mounts,
            workdir=project,
            node="NODE" if runtime == "pyxis" else None,
            passed=("PYTHONPATH", *names.OF_A_RANK) if runtime == "pyxis" else (),
        )
        argv = contained.around([python or PYTHON, "-m", "torch.distributed.run", "..."])
        lines += ["or, without that runtime, by"] if lines else []
        lines.append(plain(shlex.join(argv)))
    if "apptainer" in fits:
        lines.append("Apptainer gets --nv on nodes with NVIDIA GPUs and --rocm on nodes with AMD GPUs,")
    return [*lines, "and mounts whatever else they need: the folders of aorta, the program and the profiler."]

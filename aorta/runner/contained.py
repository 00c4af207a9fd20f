"""The container of this node's ranks: its runtime, its mounts and its interpreter, tried before the start."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from aorta.artefacts import names
from aorta.artefacts.clean import plain
from aorta.artefacts.records import ContainerRun, ProfilerChoice
from aorta.config.schema import Config, ContainerConfig
from aorta.errors import RunError
from aorta.launch import container
from aorta.launch.container import Contained, Mount, Runtime
from aorta.monitors.devices import Vendor
from aorta.runner.command import HOOKS
from aorta.runner.describe import PACKAGES
from aorta.runner.options import NodeOptions

_PROBE_S = 900.0
"""Limit of the first start: a runtime may fetch the image then."""
_SAID = 1 << 16
"""Bytes that the first start may print. The image is not ours, and might print without end."""
_HELP_S = 30.0
_ASKED = ("aorta", *PACKAGES)
_ASK = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print("aorta-versions " + json.dumps(found))
"""
_PROFILER = "nsight"
"""Begins the name of a folder that holds a whole Nsight Systems."""


@dataclass(frozen=True, slots=True)
class Inside:
    """A container that the ranks of this node run in."""

    container: Contained
    python: str
    """The interpreter, as the image names it."""
    packages: dict[str, str]
    """Versions that the image has. Empty if it was not asked."""
    notes: tuple[str, ...] = ()

    @property
    def record(self) -> ContainerRun:
        """Returns what the manifest says of it."""
        return ContainerRun(image=self.container.image, runtime=self.container.runtime)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of the runtime's program and of the ranks."""
        kept = container.host_environment(environ, self.container.mounts)
        # Charliecloud refuses to start without it, and some schedulers leave it out.
        kept.setdefault("USER", pwd.getpwuid(os.getuid()).pw_name)
        if self.container.runtime == "apptainer":
            forced = {name: kept[name] for name in self.container.passed if name in kept}
            for prefix in ("APPTAINERENV_", "SINGULARITYENV_"):
                kept |= {prefix + name: value for name, value in forced.items()}
        return kept


def visible_tool(choice: ProfilerChoice) -> tuple[ProfilerChoice, list[Mount]]:
    """Returns the profiler as a container has it, and the folders to mount for it.

    Nsight Systems is a folder of its own, which is mounted. Any other profiler has to be in the image.
    """
    if choice.program is None:
        return choice, []
    real = Path(choice.program).resolve()
    root = next((path for path in real.parents if path.name.startswith(_PROFILER)), None)
    if choice.resolved == "nsys" and root is not None:
        return msgspec.structs.replace(choice, program=str(real)), [Mount(str(root), str(root), True)]
    return msgspec.structs.replace(choice, program=choice.resolved), []


def enter(
    config: Config,
    options: NodeOptions,
    environ: Mapping[str, str],
    vendor: Vendor | None,
    tools: Sequence[Mount],
) -> Inside | None:
    """Returns the container of this node, which was started once. None if the configuration names no image.

    Args:
        config: of the run.
        options: of the agent.
        environ: of the agent.
        vendor: maker of the node's GPUs. None if there are none.
        tools: folders of the profiler.

    Raises:
        ConfigError: an image or a mount cannot be told to a runtime.
        RunError: no runtime fits, the image does not start, or it has no Python or no torch.
    """
    block = config.container
    if block.image is None:
        return None
    container.check_image(block.image)
    folder = container.folder_of(block.image)
    found = _found(environ)
    runtime, program = container.choose_runtime(block.runtime, block.image, found, folder=folder is not None)
    mounts, notes = _mounts(block, options, config, tools, runtime)
    folder = folder or container.in_storage(block.image, environ)
    if runtime == "charliecloud" and folder is not None:
        _make_points(folder, mounts)
    if runtime == "charliecloud" and vendor == "nvidia":
        notes.append("the image needs the driver's libraries: `ch-fromhost --nvidia IMAGE` installs them")
    hooked = bool(options.command) and options.own.instrument == "auto"
    inside = Inside(
        Contained(
            runtime=runtime,
            program=program,
            image=block.image,
            mounts=mounts,
            workdir=str(Path.cwd()),
            vendor=vendor,
            passed=(*names.OF_A_RANK, *(("PYTHONPATH",) if hooked else ())),
            node=options.slurm_node,
            task=tuple((name, environ[name]) for name in container.OF_THE_TASK if name in environ),
            image_environment=folder is not None and (folder / "ch/environment").is_file(),
            hooks=str(HOOKS) if hooked else None,
        ),
        options.own.python or container.PYTHON,
        {},
        tuple(notes),
    )
    # Each start of pyxis unpacks the image again.
    return inside if runtime == "pyxis" else replace(inside, packages=_asked(inside, options, environ))


def _found(environ: Mapping[str, str]) -> dict[Runtime, str]:
    """The program of each runtime that this node has; pyxis adds options to srun inside a job."""
    found: dict[Runtime, str] = {}
    for runtime, programs in container.PROGRAMS.items():
        program = next((path for name in programs if (path := shutil.which(name))), None)
        if program is None or (runtime == "pyxis" and not _has_pyxis(program, environ)):
            continue
        found[runtime] = program
    return found


def _has_pyxis(srun: str, environ: Mapping[str, str]) -> bool:
    if not environ.get("SLURM_JOB_ID"):
        return False
    try:
        done = subprocess.run(
            [srun, "--help"], capture_output=True, text=True, errors="replace", timeout=_HELP_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "--container-mounts" in done.stdout


def _mounts(
    block: ContainerConfig, options: NodeOptions, config: Config, tools: Sequence[Mount], runtime: Runtime
) -> tuple[tuple[Mount, ...], list[str]]:
    """Every folder that the ranks need, at its own path, and those that the configuration names."""
    asked = container.parse_mounts(block.mounts)
    here, results = Path.cwd(), options.results.resolve()
    found = [*asked, _same(here), _same(results), *tools, *_same_all(_data(config))]
    if options.command:
        found += _same_all([Path(word).parent for word in options.command[:1] if word.startswith("/")], True)
        found.append(_same(HOOKS.parents[1], True))
    for mount in found:
        container.check_mount(mount)
    notes = []
    if runtime == "charliecloud":
        if any(mount.read_only for mount in asked):
            notes.append("Charliecloud mounts every folder as writable, including folders with :ro")
        # The host's /tmp is there already, and nothing can be mounted into a mount.
        found = [mount for mount in found if not (_shown_by_tmp(mount))]
    return container.reduced(found), notes


def _shown_by_tmp(mount: Mount) -> bool:
    return mount.source == mount.target and Path(mount.target).is_relative_to("/tmp")  # noqa: S108


def _same(path: Path, read_only: bool = False) -> Mount:
    return Mount(str(path), str(path), read_only)


def _same_all(paths: Sequence[Path], read_only: bool = False) -> list[Mount]:
    return [_same(path, read_only) for path in paths]


def _data(config: Config) -> list[Path]:
    """Folders of the trainer's data."""
    named = [Path(text).absolute() for text in (config.dcrnn.data, config.dcrnn.adjacency) if text]
    return [path if path.is_dir() else path.parent for path in named]


def _make_points(image: Path, mounts: Sequence[Mount]) -> None:
    """Create the empty folders that mounts need in an image, before it is mounted read-only."""
    for place in container.missing_points(image, mounts):
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"a folder cannot be mounted, because the image has no {place}: {error.strerror}",
                f"its owner can create it: mkdir -p {place}",
            ) from error


def _asked(inside: Inside, options: NodeOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Start the container once, and return the versions that it has."""
    argv = inside.container.around([inside.python, "-c", _ASK, *_ASKED])
    image, runtime = inside.container.image, inside.container.runtime
    try:
        said, code = _first_words(argv, inside.environment(environ))
    except (OSError, TimeoutError) as error:
        raise RunError(f"{runtime} does not start {image}: {error}", "try it by hand on a node") from error
    versions = _versions(said)
    if versions is None:
        why = (said.strip().splitlines() or [f"exit code {code}"])[-1]
        raise RunError(
            f"{runtime} does not start {inside.python} in {image}: {plain(why)[:500]}",
            "try the image by hand on a node; --python names its interpreter",
        )
    if "torch" not in versions and options.own.launcher == "aorta":
        raise RunError(
            f"{inside.python} in {image} has no torch, which is needed to start the ranks",
            "choose another image, or name its interpreter with --python",
        )
    if not options.command and "aorta" not in versions:
        raise RunError(
            f"{inside.python} in {image} has no aorta, which contains the built-in trainer",
            "docs/containers.md shows how to make an image with aorta; your own program does not need it",
        )
    return versions


def _versions(said: str) -> dict[str, str] | None:
    """Returns the versions in the line that `_ASK` prints. None: it printed no such line."""
    for line in reversed(said.splitlines()):
        if line.startswith("aorta-versions "):
            try:
                found = msgspec.json.decode(line.removeprefix("aorta-versions "), type=dict[str, str])
            except (msgspec.DecodeError, UnicodeError):
                return None
            return {name: plain(found[name])[:100] for name in ("python", *_ASKED) if name in found}
    return None


def _first_words(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, int]:
    """Run a command, and return at most `_SAID` bytes of its output with its exit code.

    Raises:
        TimeoutError: it neither ended nor printed that much within `_PROBE_S`.
    """
    late = threading.Event()
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=dict(environ),
        start_new_session=True,
    ) as child:  # fmt: skip

        def end() -> None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        def give_up() -> None:
            late.set()
            end()

        timer = threading.Timer(_PROBE_S, give_up)
        timer.start()
        try:
            assert child.stdout is not None
            said = child.stdout.read(_SAID)
            if len(said) < _SAID:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_HELP_S)
        finally:
            timer.cancel()
            end()
    if late.is_set():
        raise TimeoutError(f"no answer within {_PROBE_S:.0f} s")
    return said.decode(errors="replace"), child.returncode

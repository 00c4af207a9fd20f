"""Reasons to refuse a job before it is submitted. Each check returns or raises PlanError."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from aorta.artefacts.launchers import STARTED_BY_SCHEDULERS, called_by_script, launcher
from aorta.errors import PlanError
from aorta.launch.durations import parse_limit, show
from aorta.launch.site import Partition, Site
from aorta.launch.storage import Storage

_SIGNAL_SLACK_S = 60
"""Slurm may send the signal before the limit this much earlier than asked."""

_OWN_OPTIONS = {
    "nodes": "--nodes or --scenarios",
    "gpus-per-node": "--gpus-per-node",
    "cpus-per-task": "--cpus-per-task",
    "exclusive": "--exclusive",
    "time": "--time",
    "account": "--account",
    "partition": "--partition",
    "qos": "--qos",
    "constraint": "--constraint",
}
_STRUCTURE = {
    "ntasks": "the script starts one task per node",
    "ntasks-per-node": "the script starts one task per node",
    "ntasks-per-gpu": "the script starts one task per node",
    "ntasks-per-socket": "the script starts one task per node",
    "ntasks-per-core": "the script starts one task per node",
    "array": "a scenario is one job",
    "output": "aorta looks for the output in the results folder",
    "error": "aorta looks for the output in the results folder",
    "open-mode": "a requeued job must not lose its earlier output",
    "chdir": "the job runs in the project folder",
    "job-name": "aorta finds the job by its name",
    "signal": "the agents need time before the limit",
    "wrap": "aorta writes the script",
    "wait": "use `aorta wait`",
    "test-only": "use --dry-run",
    "clusters": "aorta follows jobs only on this cluster",
    "parsable": "it changes what sbatch prints",
    "quiet": "it changes what sbatch prints",
    "help": "it submits no job",
    "usage": "it submits no job",
    "version": "it submits no job",
}
# Options of sbatch whose names are also beginnings of names above.
_WHOLE = frozenset({"gpus"})

_PROCESSES = re.compile(r"--(?:nproc[-_]per[-_]node|num_processes|num_gpus)(?:=(?P<value>.*))?")
MOST_PROCESSES = 1024
"""Most processes that a node may have."""
MOST_HERE, MOST_HERE_PER_CPU = 64, 8
"""Processes of a scenario that one machine runs, and of each CPU where it has many."""


def time_limit(text: str, lead_s: int) -> int:
    """Seconds of a time limit that leaves the agents their time to end.

    Raises:
        PlanError: not a limit, or too short.
    """
    seconds = parse_limit(text)
    if seconds is None:
        raise PlanError(
            f"--time {text!r} is not a time limit",
            "write minutes, hours:minutes:seconds or days-hours:minutes:seconds, such as 30 or 00:30:00",
        )
    least = lead_s + _SIGNAL_SLACK_S
    if seconds <= least:
        raise PlanError(
            f"--time {text} is {seconds} s; the agents end up to {least} s before the limit",
            f"give more than {show(least)}",
        )
    return seconds


def size(nodes: int, processes: int | None, *, here: bool) -> None:
    """Refuse more processes than any machine of this kind runs.

    Args:
        nodes: of a scenario.
        processes: of a node. None means one per GPU.
        here: this machine runs them all.

    Raises:
        PlanError: more are asked for.
    """
    each, cpus = processes or 1, os.cpu_count() or 1
    if each > MOST_PROCESSES:
        raise PlanError(
            f"--procs-per-node is {each}; at most {MOST_PROCESSES} are started on a node",
            "give a smaller number",
        )
    most = max(MOST_HERE, MOST_HERE_PER_CPU * cpus)
    if here and nodes * each > most:
        raise PlanError(
            f"{nodes} nodes of {each} processes are {nodes * each} processes on this machine of {cpus} CPUs; "
            f"at most {most} are started",
            "use fewer with --nodes or --procs-per-node, or submit the job to a cluster",
        )


def processes(
    tasks: int, asked: int | None, gpus: int | None, command: Sequence[str], launcher_is_own: bool = False
) -> None:
    """Refuse whatever would multiply the processes: one task per node, and its agent alone starts them.

    Raises:
        PlanError: tasks × processes, a launcher as the user's program, or more processes than GPUs.
    """
    each = asked or gpus or 1
    if tasks != 1:
        total = tasks * each
        raise PlanError(
            f"{tasks} tasks per node with {each} processes each are {total} processes per node: aorta starts "
            "one task per node, whose agent starts the processes",
            f"leave --tasks-per-node at 1 and use --procs-per-node {max(tasks, each)}",
        )
    found = None if launcher_is_own else launcher(command)
    if found is not None:
        inner = _count_after(command)
        many = (
            f"{each} × {inner} = {each * inner} processes per node" if inner else "launchers inside launchers"
        )
        hint = f"give only the script and its arguments: {_works(command)}"
        if found not in STARTED_BY_SCHEDULERS:
            own = f"--launcher own --procs-per-node {inner or each} -- {shlex.join(command)}"
            hint += f"; or, on one node, let it start its ranks: {own}"
        raise PlanError(
            f"the program is started by {found}, but the agent already starts torchrun: {many}", hint
        )
    if asked is not None and gpus and asked > gpus:
        raise PlanError(
            f"{asked} processes per node would share {gpus} GPUs: NCCL takes one process per GPU",
            f"use --procs-per-node {gpus}, or leave it out",
        )


def _works(command: Sequence[str]) -> str:
    """Return the options and the program that work in place of a launcher's command."""
    words = list(command)
    at = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    count = _count_after(command)
    options = f"--procs-per-node {count}" if count else "--procs-per-node N"
    return f"{options} -- {shlex.join(words[at:]) if at is not None else 'SCRIPT ...'}"


def own_launcher(profiler: str | None, command: Sequence[str]) -> str:
    """Return the profiler of a program that starts its ranks itself: none, since aorta starts no rank.

    Raises:
        PlanError: one was named, or there is no program.
    """
    if not command:
        raise PlanError("--launcher own is for a program of your own", "name the program after --")
    if profiler not in (None, "auto", "none"):
        raise PlanError(
            f"--profiler {profiler} runs around each rank, but with --launcher own aorta does not start the "
            "ranks",
            "use --profiler none, or let aorta start the ranks",
        )
    return "none"


_INTERPRETER = re.compile(r"python[\d.]*|(?:ba|da|z)?sh")


def _count_after(command: Sequence[str]) -> int | None:
    words = list(command)
    for index, word in enumerate(words):
        match = _PROCESSES.fullmatch(word)
        if match:
            value = match["value"] if match["value"] is not None else "".join(words[index + 1 : index + 2])
            return int(value) if value.isascii() and value.isdigit() else None
    return None


def shell_script(command: Sequence[str], project: Path) -> None:
    """A shell script that starts ranks itself must not be started once per rank.

    Raises:
        PlanError: it calls a launcher.
    """
    found = called_by_script(command, project)
    if found is not None:
        raise PlanError(
            f"{found[0]} calls {found[1]}, but the agent would start it once per rank",
            f"let the program start its ranks: --launcher own --procs-per-node N -- {shlex.join(command)}",
        )


def program(command: Sequence[str], project: Path) -> None:
    """The user's script is there.

    Raises:
        PlanError: the script, or what a shell or Python is to run, does not exist.
    """
    words = list(command)
    if words and _INTERPRETER.fullmatch(Path(words[0]).name):
        words = words[1:]
    if words and words[0].endswith((".py", ".sh")) and not (project / words[0]).is_file():
        raise PlanError(f"the program {words[0]} does not exist in {project}", "name it from that folder")
    if any("\n" in word or "\0" in word for word in command):
        raise PlanError("an argument of the program contains a line break", "put it into a file")


def sbatch_lines(lines: Sequence[str]) -> None:
    """Extra lines for sbatch leave alone what the script is built on.

    Raises:
        PlanError: a line break, something that is not an option, or an option that is not theirs to set.
    """
    for line in lines:
        if any(ord(char) < 32 or ord(char) == 127 for char in line):
            raise PlanError(
                f"--sbatch-line {line!r} contains a line break or a control character",
                "give each option in a separate --sbatch-line",
            )
        try:
            words = shlex.split(line.removeprefix("#SBATCH").strip())
        except ValueError as error:
            raise PlanError(f"--sbatch-line {line!r}: {error}") from error
        if not words or not words[0].startswith("--") or any(re.match(r"-[^-]", word) for word in words):
            raise PlanError(
                f"--sbatch-line {line!r} does not contain options in their long form",
                "write them as --mem=32G --exclude=node7",
            )
        for word in words:
            if word.startswith("--"):
                _option(word.removeprefix("--").partition("=")[0], line)


def _option(name: str, line: str) -> None:
    if name in _WHOLE:
        return
    # sbatch takes any beginning of an option's name for the option.
    for known, reason in (_OWN_OPTIONS | _STRUCTURE).items():
        if known.startswith(name):
            hint = f"use {reason}" if known in _OWN_OPTIONS else "leave it out"
            own = known in _OWN_OPTIONS
            why = "cannot be used: aorta has its own option" if own else f"cannot be changed: {reason}"
            raise PlanError(f"--sbatch-line {line!r}: --{known} {why}", hint)


def writable(storage: Storage) -> None:
    """The results folder can be made and written.

    Raises:
        PlanError: it cannot.
    """
    if not storage.writable:
        raise PlanError(
            f"the results folder {storage.path} is not writable",
            "choose another folder with --results, or change the permissions",
        )


def run_folders(results: Path, scenarios: Sequence[str]) -> None:
    """Each scenario's folder of runs can be made, or is a folder that can be written.

    Raises:
        PlanError: something else has its name, or it is not writable.
    """
    for name in scenarios:
        folder = results / name
        if os.path.lexists(folder) and not folder.is_dir():
            raise PlanError(
                f"{folder} is not a folder, but the runs of {name} belong there",
                "move it away, or choose another folder with --results",
            )
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise PlanError(
                f"{folder} is not writable", "choose another folder with --results, or change the permissions"
            )


def sbatch_value(name: str, text: str) -> None:
    """`text` can stand in a line `#SBATCH --name=...`.

    sbatch has its own quoting there; what would need more than plain double quotes is refused.

    Raises:
        PlanError: it cannot.
    """
    if any(ord(char) < 32 or ord(char) == 127 or char in "\"'\\`$" for char in text):
        raise PlanError(
            f"--{name}: {text!r} contains a character that a #SBATCH line cannot contain",
            "choose another name",
        )


def account(name: str | None, site: Site) -> None:
    """The account is one of the user's, where accounting can say so.

    Raises:
        PlanError: it is not.
    """
    if name is not None and site.accounts is not None and name.lower() not in site.accounts:
        raise PlanError(
            f"account {name!r} is not one of yours", f"yours are: {', '.join(sorted(site.accounts))}"
        )


def partitions(names: str | None, site: Site) -> list[Partition]:
    """The partitions that `names` (separated by commas; None: the default) stands for.

    Raises:
        PlanError: one does not exist or is down, or there is no default.
    """
    known = ", ".join(site.partitions)
    if names is None:
        if site.default_partition is None:
            raise PlanError("this cluster has no default partition", f"give --partition; there are: {known}")
        return [site.default_partition]
    chosen = []
    for name in names.split(","):
        partition = site.partitions.get(name)
        if partition is None:
            raise PlanError(f"partition {name!r} does not exist on this cluster", f"there are: {known}")
        if not partition.up:
            raise PlanError(f"partition {name!r} is down", f"there are: {known}")
        chosen.append(partition)
    return chosen


def shared(storage: Storage, chosen: Sequence[Partition], site: Site, *, assume_shared: bool) -> None:
    """Every node that may run the job sees the results folder.

    Raises:
        PlanError: its file system lives on this machine alone, and a node is not this machine.
    """
    if assume_shared or storage.shared is not False:
        return
    elsewhere = [node.name for part in chosen for node in part.nodes if node.name not in site.nodes_here]
    if elsewhere:
        more = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
        raise PlanError(
            f"the results folder {storage.path} is on {storage.fs_type} ({storage.mount_point}), which node "
            f"{elsewhere[0]}{more} cannot see",
            "choose a shared folder with --results, or use --assume-shared if the nodes do see this folder",
        )


def fits(scenario: str, nodes: int, gpus: int, limit_s: int, chosen: Sequence[Partition]) -> None:
    """At least one of the partitions can ever run such a job.

    Raises:
        PlanError: none can; the reason is that of the last one looked at.
    """
    reason = hint = ""
    for part in chosen:
        able = sum(1 for node in part.nodes if node.gpus >= gpus)
        if gpus > part.gpus:
            reason = (
                f"{gpus} GPUs per node are requested, but nodes of partition {part.name!r} have {part.gpus}"
            )
            hint = (
                f"use --gpus-per-node {part.gpus}" if part.gpus else "leave out --gpus-per-node for a CPU run"
            )
        elif nodes > able:
            reason = f"{nodes} nodes are requested, but partition {part.name!r} has {able}"
            reason += f" with {gpus} GPUs" if gpus and able < len(part.nodes) else ""
            hint = "choose fewer nodes, such as --nodes 1,2, or another --partition"
        elif part.limit_s is not None and limit_s > part.limit_s:
            reason = (
                f"--time {show(limit_s)} is longer than partition {part.name!r} allows ({show(part.limit_s)})"
            )
            hint = f"give --time {show(part.limit_s)} or less"
        else:
            return
    raise PlanError(f"{scenario}: {reason}", hint)

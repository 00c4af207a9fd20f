"""Start, stop and ask the whole cluster. Every daemon is our own, with its own key, ports and folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from aorta.artefacts.io import read_json, write_json
from aorta.cluster import config, daemons, folders, network, packages, programs
from aorta.cluster.config import ClusterDir, ClusterError, ClusterSettings, Machine
from aorta.cluster.daemons import DaemonProcess
from aorta.cluster.folders import ClusterRecord
from aorta.errors import ArtefactError

_DAEMON_TIMEOUT_S = 60
_NODES_TIMEOUT_S = 90
_UP = ("idle", "allocated", "mixed", "completing")
"""States of a node that is there, whether or not it has work."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as slurmctld sees it."""

    name: str
    state: str
    address: str

    @property
    def up(self) -> bool:
        """True if the node is there, idle or at work; a mark such as `*` means that it does not answer."""
        return self.state in _UP


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """State of the cluster. `record` is None if no cluster was started in the folder."""

    record: ClusterRecord | None
    nodes: list[NodeState]
    problem: str | None = None

    @property
    def up(self) -> bool:
        """Every daemon runs and every node is there."""
        return (
            self.record is not None
            and bool(self.record.processes)
            and all(process.alive for process in self.record.processes)
            and len(self.nodes) == self.record.settings.nodes
            and all(node.up for node in self.nodes)
        )


def this_machine() -> Machine:
    """Facts of this machine.

    Raises:
        ClusterError: slurmd does not tell its version.
    """
    version = subprocess.run(
        ["slurmd", "-V"], env=packages.search_environment(), capture_output=True, text=True, check=False
    )
    return Machine(
        hostname=socket.gethostname().split(".")[0],
        user=_user_name(),
        memory_mib=psutil.virtual_memory().total >> 20,
        slurm=config.parse_version(version.stdout),
    )


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise ClusterError(
            f"user {os.geteuid()} has no name on this machine, and Slurm needs one",
            "run as a user in /etc/passwd",
        ) from error


def choose_netns(wanted: bool | None) -> tuple[bool, str | None]:
    """True if nodes get namespaces, and the reason if they cannot. They need root and the kernel's consent.

    Raises:
        ClusterError: they were asked for and cannot be had.
    """
    if wanted is False:
        return False, None
    reason = "only root can make network namespaces" if os.geteuid() != 0 else network.unusable()
    if reason and wanted:
        raise ClusterError(f"no network namespaces: {reason}", "run as root, or with --no-netns")
    return reason is None, reason


def up(
    folder: ClusterDir,
    settings: ClusterSettings,
    install: bool,
    tell: Callable[[str], object] = lambda _: None,
) -> bool:
    """Start a cluster and wait until all its nodes are idle. Returns False where it already runs like that.

    Args:
        folder: of the cluster.
        settings: of the cluster.
        install: install missing packages.
        tell: told what is done next.

    Raises:
        ClusterError: something is missing or did not start, or another cluster is up. What was started is
            ended.
    """
    folders.refuse_anothers(folder)
    with _lock(folder):
        now = status(folder)
        if now.up and now.record is not None:
            if now.record.settings == settings:
                return False
            raise ClusterError(
                f"a cluster with other settings is up in {folder.root}: {now.record.settings}",
                "run `aorta cluster down` first",
            )
        folders.refuse_foreign(folder)
        packages.require(settings, install, tell)
        if settings.netns:
            _refuse_foreign_network(folder)
        _clear(folder, keep_logs=False)
        _refuse_taken_ports(settings)
        try:
            _start(folder, settings, this_machine(), tell)
        except BaseException:
            _clear(folder, keep_logs=True)
            raise
    return True


def down(folder: ClusterDir, keep_logs: bool) -> bool:
    """End the cluster and remove what it made. Returns False where there was nothing.

    Raises:
        ClusterError: the folder is not a cluster's or another user's, and nothing was done; or it holds
            entries that no cluster made, which stay, and all else was done.
    """
    folders.refuse_anothers(folder)
    with _lock(folder):
        folders.refuse_foreign(folder)
        found = _clear(folder, keep_logs)
        if left := folders.foreign(folder):
            raise ClusterError(
                f"the cluster is down, but {folder.root} stays: aorta did not make {', '.join(left)}",
                "move these files away, or remove the folder by hand",
            )
        return found


def status(folder: ClusterDir) -> ClusterStatus:
    """The state of the cluster; changes nothing."""
    if not folder.record.exists():
        return ClusterStatus(None, [])
    try:
        record = read_json(folder.record, ClusterRecord)
    except ArtefactError as error:
        return ClusterStatus(None, [], str(error))
    if not any(process.alive for process in record.processes):
        return ClusterStatus(
            record, [], "no daemon is running: the machine was restarted, or something else ended the daemons"
        )
    try:
        return ClusterStatus(record, nodes(folder))
    except ClusterError as error:
        return ClusterStatus(record, [], error.message)


def nodes(folder: ClusterDir) -> list[NodeState]:
    """Every node with its state, by sinfo.

    Raises:
        ClusterError: slurmctld does not answer.
    """
    found = []
    for line in client(folder, ["sinfo", "-h", "-N", "-o", "%N|%T|%o"]).splitlines():
        name, state, address = line.split("|")
        found.append(NodeState(name, state, address))
    return found


def client(folder: ClusterDir, argv: Sequence[str]) -> str:
    """Output of a Slurm command on this cluster.

    Raises:
        ClusterError: it failed; the message has its answer.
    """
    done = subprocess.run(
        argv, env=programs.environment(folder), capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(argv)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


@contextlib.contextmanager
def _lock(folder: ClusterDir) -> Iterator[None]:
    """Allows one `up` or `down` at a time; the lock is on the parent folder itself and leaves no file."""
    folder.root.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder.root.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _refuse_foreign_network(folder: ClusterDir) -> None:
    other = network.owner()
    if other is not None and other != folder.root:
        raise ClusterError(
            f"the network of another cluster, {other}, is up",
            f"run `aorta cluster down --dir {other}` first",
        )


def _refuse_taken_ports(settings: ClusterSettings) -> None:
    """Raise for a port of a daemon on which another program listens.

    Raises:
        ClusterError: names the port, the daemon and, where the system tells, the program.
    """
    for daemon, port in settings.ports():
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    continue
                raise ClusterError(
                    f"port {port}, which {daemon} needs, is in use{_listener(port)}",
                    "end that program, or run the cluster on another machine",
                ) from error


def _listener(port: int) -> str:
    """Return which program listens on a port, in words; nothing where the system does not tell."""
    with contextlib.suppress(psutil.Error, OSError):
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port and found.pid:
                return f" by {psutil.Process(found.pid).name()} (process {found.pid})"
    return ""


def _start(
    folder: ClusterDir, settings: ClusterSettings, machine: Machine, tell: Callable[[str], object]
) -> None:
    tell("making the database")
    _write(folder, settings, machine)
    if settings.netns:
        network.create(folder, settings)
    running: list[DaemonProcess] = []

    def start(name: str, argv: list[str]) -> DaemonProcess:
        process = daemons.start(name, argv, programs.environment(folder), folder.log(name))
        running.append(process)
        write_json(folder.record, ClusterRecord(settings, running))
        return process

    def ready(process: DaemonProcess, address: tuple[str, int] | Path) -> None:
        what = f"{process.name} accepts connections"
        daemons.wait_until(what, lambda: daemons.listens(address), [process], folder.log, _DAEMON_TIMEOUT_S)

    tell("starting munge, the database and the accounting")
    munged = start("munged", programs.munged_argv(folder))
    mariadbd = start("mariadbd", programs.mariadbd_argv(folder, machine))
    ready(munged, folder.munge_socket)
    ready(mariadbd, folder.mysql_socket)
    slurmdbd = start("slurmdbd", ["slurmdbd", "-D"])
    ready(slurmdbd, (settings.controller_address, config.ACCOUNTING_PORT))
    for argv in programs.accounting_argvs(_users(machine)):
        client(folder, argv)
    tell(f"starting Slurm's controller and {len(settings.names)} nodes")
    slurmctld = start("slurmctld", ["slurmctld", "-D", "-f", str(folder.slurm_conf)])
    ready(slurmctld, (settings.controller_address, config.CONTROLLER_PORT))
    for name in settings.names:
        prefix = network.enter_argv(folder, name) if settings.netns else []
        start(name, [*prefix, "slurmd", "-D", "-f", str(folder.slurm_conf), "-N", name])
    tell("waiting until every node is idle")
    _await_nodes(folder, [*running[4:], slurmctld])


def _await_nodes(folder: ClusterDir, processes: list[DaemonProcess]) -> None:
    def idle() -> bool:
        try:
            return all(node.state == "idle" for node in nodes(folder))
        except ClusterError:
            return False  # slurmctld is not answering yet

    daemons.wait_until("every node is idle", idle, processes, folder.log, _NODES_TIMEOUT_S)


def _users(machine: Machine) -> list[str]:
    """Users who may submit: the daemons' user, and the one who called sudo."""
    caller = os.environ.get("SUDO_USER", "")
    return [machine.user, caller] if caller and caller != machine.user else [machine.user]


def _write(folder: ClusterDir, settings: ClusterSettings, machine: Machine) -> None:
    """Folders and configuration files; what is private gets its mode before its content."""
    folder.root.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_json(folder.record, ClusterRecord(settings))
    for path in (folder.logs, folder.run, folder.state, folder.spool):
        path.mkdir(mode=0o755, exist_ok=True)
    for name in settings.names:
        (folder.spool / name).mkdir(exist_ok=True)
    for path in (folder.munge, folder.mysql):
        path.mkdir(mode=0o700, exist_ok=True)
    first_job = config.first_job_id(time.time())
    folder.slurm_conf.write_text(config.slurm_conf(folder, settings, machine, first_job), encoding="utf-8")
    folder.hosts.write_text(config.hosts(settings, machine), encoding="utf-8")
    if (cgroups := config.cgroup_conf(machine)) is not None:
        folder.cgroup_conf.write_text(cgroups, encoding="utf-8")
    _write_private(folder.slurmdbd_conf, config.slurmdbd_conf(folder, settings, machine).encode())
    _write_private(folder.munge / "munge.key", secrets.token_bytes(128))
    daemons.run_to_end(programs.mariadb_init_argv(folder, machine), programs.environment(folder))


def _write_private(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)


def _clear(folder: ClusterDir, keep_logs: bool) -> bool:
    """End and remove all that is left of this folder's cluster; True where there was something.

    Nothing here needs the record: daemons are known by the environment that they were given, steps by their
    namespaces or by the environment that Slurm gives them.
    """
    environment = programs.environment(folder)
    ours = {"SLURM_CONF": environment["SLURM_CONF"], "MYSQL_UNIX_PORT": environment["MYSQL_UNIX_PORT"]}
    # Only slurmstepd gives a process these; a shell in which somebody names a job is no job's.
    jobs = {"SLURM_CONF": environment["SLURM_CONF"]}
    jobs |= dict.fromkeys(("SLURM_JOB_ID", "SLURM_TASK_PID", "SLURMD_NODENAME"), "")
    found = folder.root.exists()
    network_is_ours = _network_is_ours(folder)
    # Steps first: a slurmd that is asked to end leaves them, and slurmctld would start what is queued.
    for _ in range(3):
        steps = [*(_inside() if network_is_ours else []), *daemons.with_environment(jobs)]
        found = found or bool(steps)
        daemons.stop(steps, grace_s=3)
    rest = daemons.with_environment(ours)
    daemons.stop(rest)
    if network_is_ours:
        network.destroy()
    folders.remove(folder, keep_logs)
    return found or bool(rest)


def _network_is_ours(folder: ClusterDir) -> bool:
    """True if this folder may remove the network, or what a restart or an interruption left of it."""
    if os.geteuid() != 0 or shutil.which("ip", path=packages.SEARCH_PATH) is None:
        return False
    owner = network.owner()
    return owner == folder.root or (owner is None and bool(network.namespaces()))


def _inside() -> list[DaemonProcess]:
    """Processes in our namespaces."""
    found = [daemons.identify("step", pid) for pid in network.pids()]
    return [process for process in found if process is not None]

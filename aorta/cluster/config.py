"""The cluster's folder, its settings, and the text of every configuration file. All pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from aorta.errors import AortaError

CLUSTER_NAME = "aorta"
ACCOUNT = "aorta"
PARTITION = "debug"
CPUS_PER_NODE = 4
"""Declared, not real: enough for the four nodes to run several jobs at once on a machine with two cores."""
MAX_NODES = 32
JOB_IDS = 66_000_000
"""First job ids lie below this; Slurm itself goes on to 67,043,328 (MaxJobId) before it begins again."""

# Away from Slurm's own 6817 to 6819, so that a Slurm of the site on this machine is never touched.
CONTROLLER_PORT = 26817
NODE_PORT = 26818
ACCOUNTING_PORT = 26819
FIRST_PLAIN_NODE_PORT = 26821

SUBNET = "10.213.0"
"""First three numbers of the private network between the namespaces; it ends at this machine."""
PREFIX_LENGTH = 24

# A Unix socket's path has 108 bytes with its terminator; MariaDB and munge add suffixes of their own.
_LONGEST_SOCKET_PATH = 100
_SAFE_PATH = re.compile(r"[A-Za-z0-9_./+@-]+")
_RATE = re.compile(r"([1-9]\d*)([kmg]?)bit")


class ClusterError(AortaError):
    """The local cluster could not be started, stopped or asked."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class ClusterDir:
    """Every path of a cluster, below one folder.

    Raises:
        ClusterError: the path cannot stand in slurm.conf, or is too long for a Unix socket.
    """

    root: Path

    def __post_init__(self) -> None:
        hint = "give another folder with --dir, such as /tmp/cluster"
        if not self.root.is_absolute():
            raise ClusterError(f"cluster folder {self.root} is not an absolute path", hint)
        if not _SAFE_PATH.fullmatch(str(self.root)):
            raise ClusterError(
                f"cluster folder {self.root}: slurm.conf cannot contain some of these characters", hint
            )
        if len(str(self.mysql_socket)) > _LONGEST_SOCKET_PATH:
            raise ClusterError(
                f"cluster folder {self.root}: the path is too long for a Unix socket in this folder", hint
            )

    @property
    def slurm_conf(self) -> Path:
        """The file that SLURM_CONF names."""
        return self.root / "slurm.conf"

    @property
    def cgroup_conf(self) -> Path:
        """Must lie beside slurm.conf; only newer versions of Slurm get one."""
        return self.root / "cgroup.conf"

    @property
    def slurmdbd_conf(self) -> Path:
        """Must lie beside slurm.conf."""
        return self.root / "slurmdbd.conf"

    @property
    def hosts(self) -> Path:
        """/etc/hosts of the nodes in namespaces."""
        return self.root / "hosts"

    @property
    def record(self) -> Path:
        """Settings and process ids of what was started."""
        return self.root / "cluster.json"

    @property
    def logs(self) -> Path:
        """One file a daemon."""
        return self.root / "logs"

    def log(self, daemon: str) -> Path:
        """Log of one daemon."""
        return self.logs / f"{daemon}.log"

    @property
    def run(self) -> Path:
        """Sockets and process id files."""
        return self.root / "run"

    @property
    def munge_socket(self) -> Path:
        """Socket of our munged."""
        return self.run / "munge.sock"

    @property
    def mysql_socket(self) -> Path:
        """Socket of our MariaDB."""
        return self.run / "mysql.sock"

    @property
    def munge(self) -> Path:
        """Key and seed of munge, for its user only."""
        return self.root / "munge"

    @property
    def mysql(self) -> Path:
        """Data of MariaDB."""
        return self.root / "mysql"

    @property
    def state(self) -> Path:
        """Saved state of slurmctld."""
        return self.root / "state"

    @property
    def spool(self) -> Path:
        """One folder a slurmd."""
        return self.root / "spool"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings that the user asked for.

    Args:
        nodes: how many slurmd there are.
        netns: each node has its own network namespace, address and host name.
        rate_bit_s: limit of each node's link in both directions, in bit/s; None: as fast as the machine.
    """

    nodes: int = 4
    netns: bool = True
    rate_bit_s: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise ClusterError(f"--nodes {self.nodes}: expected 1 to {MAX_NODES}")
        if self.rate_bit_s is not None and not self.netns:
            raise ClusterError(
                "--rate needs nodes in network namespaces", "run as root with --netns, or leave out --rate"
            )

    @property
    def names(self) -> list[str]:
        """node1 to nodeN."""
        return [f"node{index}" for index in range(1, self.nodes + 1)]

    @property
    def controller_address(self) -> str:
        """Address at which slurmctld and slurmdbd listen, as the nodes see it."""
        return f"{SUBNET}.1" if self.netns else "127.0.0.1"

    def ports(self) -> list[tuple[str, int]]:
        """Each daemon that listens on this machine's own addresses, and its port."""
        nodes = [] if self.netns else [(name, self.port(index)) for index, name in enumerate(self.names, 1)]
        return [("slurmctld", CONTROLLER_PORT), ("slurmdbd", ACCOUNTING_PORT), *nodes]

    def address(self, index: int) -> str:
        """Address of node `index`, counted from 1."""
        return f"{SUBNET}.{10 + index}" if self.netns else "127.0.0.1"

    def port(self, index: int) -> int:
        """slurmd's port of node `index`: nodes that share an address need different ones."""
        return NODE_PORT if self.netns else FIRST_PLAIN_NODE_PORT + index - 1


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of this machine that the files name.

    Args:
        hostname: short host name, as the daemons see it.
        user: who runs the daemons.
        memory_mib: memory of the machine; the nodes share it.
        slurm: major and minor version of the installed Slurm.
    """

    hostname: str
    user: str
    memory_mib: int
    slurm: tuple[int, int]


def parse_rate(text: str) -> int:
    """Bits per second from `100mbit`, with the units of tc: bit, kbit, mbit, gbit (powers of ten).

    Raises:
        ClusterError: `text` is not of that form.
    """
    match = _RATE.fullmatch(text.strip().lower())
    if match is None:
        raise ClusterError(f"--rate {text!r}: expected a number and a unit, such as 100mbit or 1gbit")
    return int(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[match[2]]


def first_job_id(now_s: float) -> int:
    """Id of the first job of a cluster that starts at `now_s`, in seconds since the epoch.

    The id counts up once per second. A cluster that is started again later therefore repeats none of the ids
    of an earlier one, and its runs have folders of their own. That fails only where jobs came faster than one
    per second all the time. The ids start again after about two years.
    """
    return 1 + int(now_s) % JOB_IDS


def slurm_conf(folder: ClusterDir, settings: ClusterSettings, machine: Machine, first_job: int) -> str:
    """Text of slurm.conf, for the daemons and for every client command; `first_job` is the first job's id."""
    controller = _controller_lines(folder, settings, machine, first_job)
    return "\n".join([*controller, *_node_lines(settings, machine), ""])


def _controller_lines(
    folder: ClusterDir, settings: ClusterSettings, machine: Machine, first_job: int
) -> list[str]:
    address = settings.controller_address
    return [
        "# Written by `aorta cluster up`; every start replaces it.",
        f"ClusterName={CLUSTER_NAME}",
        f"SlurmctldHost={machine.hostname}({address})",
        f"SlurmctldPort={CONTROLLER_PORT}",
        f"SlurmdPort={NODE_PORT}",
        f"SlurmUser={machine.user}",
        f"SlurmdUser={machine.user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder.munge_socket}",
        f"StateSaveLocation={folder.state}",
        f"SlurmdSpoolDir={folder.spool}/%n",
        f"SlurmctldPidFile={folder.run}/slurmctld.pid",
        f"SlurmdPidFile={folder.run}/slurmd-%n.pid",
        # slurmd itself also writes to its <node>.log; the steps' own lines appear only here.
        f"SlurmdLogFile={folder.logs}/%n-steps.log",
        "MailProg=/bin/true",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "PropagateResourceLimits=NONE",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "SlurmdTimeout=300",
        "MessageTimeout=30",
        "KillWait=30",
        # squeue and scontrol know a job for five minutes after its end, as on most sites.
        "MinJobAge=300",
        f"FirstJobId={first_job}",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=5,sched_interval=5",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "EnforcePartLimits=ALL",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=2",
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={address}",
        f"AccountingStoragePort={ACCOUNTING_PORT}",
        # Not a password: with munge this is the socket of the connection to slurmdbd.
        f"AccountingStoragePass={folder.munge_socket}",
        "AccountingStorageEnforce=associations",
    ]


def _node_lines(settings: ClusterSettings, machine: Machine) -> list[str]:
    memory = max(1, machine.memory_mib // settings.nodes)
    lines = []
    for index, name in enumerate(settings.names, start=1):
        # In a namespace the node has a host name of its own.
        hostname = name if settings.netns else machine.hostname
        lines.append(
            f"NodeName={name} NodeHostname={hostname} NodeAddr={settings.address(index)}"
            f" Port={settings.port(index)} CPUs={CPUS_PER_NODE} RealMemory={memory} State=UNKNOWN"
        )
    lines.append(f"PartitionName={PARTITION} Nodes=ALL Default=YES MaxTime=60 DefaultTime=30 State=UP")
    return lines


def slurmdbd_conf(folder: ClusterDir, settings: ClusterSettings, machine: Machine) -> str:
    """Text of slurmdbd.conf; slurmdbd wants the file's mode to be 600.

    There is no password: the database knows the user by its socket.
    """
    return "\n".join(
        [
            "# Written by `aorta cluster up`; every start replaces it.",
            f"DbdHost={machine.hostname}",
            f"DbdAddr={settings.controller_address}",
            f"DbdPort={ACCOUNTING_PORT}",
            f"SlurmUser={machine.user}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder.munge_socket}",
            f"PidFile={folder.run}/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            f"StorageUser={machine.user}",
            "StorageLoc=slurm_acct_db",
            "",
        ]
    )


def cgroup_conf(machine: Machine) -> str | None:
    """Text of cgroup.conf: nothing of this cluster uses cgroups. None where Slurm does not know that word.

    The manual of 24.05 has `disabled`, that of 23.11 has not. Such versions of slurmd ask for working cgroups
    otherwise, which most containers do not have.
    """
    return "CgroupPlugin=disabled\n" if machine.slurm >= (24, 5) else None


def parse_version(text: str) -> tuple[int, int]:
    """Major and minor version from what `slurmd -V` prints, such as `slurm-wlm 22.05.8`.

    Raises:
        ClusterError: there is no version in `text`.
    """
    match = re.search(r"\b(\d+)\.(\d+)(\.\d+)?\b", text)
    if match is None:
        raise ClusterError(f"`slurmd -V` printed no version: {text.strip()!r}")
    return int(match[1]), int(match[2])


def hosts(settings: ClusterSettings, machine: Machine) -> str:
    """Text of /etc/hosts inside the nodes: each other and the controller by name."""
    lines = ["127.0.0.1 localhost", "::1 localhost", f"{settings.controller_address} {machine.hostname}"]
    lines += [f"{settings.address(index)} {name}" for index, name in enumerate(settings.names, start=1)]
    return "\n".join([*lines, ""])

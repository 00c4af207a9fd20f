"""Description of this cluster: partitions, nodes, GPUs, limits, accounts, and nodes on this machine."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from aorta.errors import SchedulerError
from aorta.launch.durations import parse_limit
from aorta.launch.hosts import expand_hosts
from aorta.launch.tools import Caller


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node as sinfo shows it."""

    name: str
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition."""

    name: str
    default: bool
    up: bool
    limit_s: int | None
    """Longest job. None means no limit."""
    nodes: tuple[SlurmNode, ...]

    @property
    def gpus(self) -> int:
        """GPUs of its best node."""
        return max((node.gpus for node in self.nodes), default=0)


@dataclass(frozen=True, slots=True)
class Site:
    """The cluster, as far as it can be asked."""

    partitions: dict[str, Partition]
    accounts: frozenset[str] | None
    """Accounts of this user in lower case. None if there is no accounting, or if it does not say."""
    nodes_here: frozenset[str] = field(default_factory=frozenset)
    """Nodes that are this machine."""

    @property
    def default_partition(self) -> Partition | None:
        """The partition of a job that names none."""
        return next((item for item in self.partitions.values() if item.default), None)

    def is_one_machine(self, partition: str | None) -> bool:
        """True if every node that a job in `partition` (None: the default) may get is this machine."""
        names = partition.split(",") if partition is not None else []
        chosen = [self.partitions[name] for name in names] if names else [self.default_partition]
        nodes = [node.name for part in chosen if part is not None for node in part.nodes]
        return bool(nodes) and self.nodes_here.issuperset(nodes)


def ask_site(user: str, call: Caller) -> Site:
    """Ask sinfo, sacctmgr and scontrol what there is.

    Raises:
        SchedulerError: sinfo does not answer; without it nothing can be submitted either.
    """
    partitions = ask_partitions(call)
    return Site(partitions, ask_accounts(user, call), ask_nodes_here(call))


def ask_partitions(call: Caller) -> dict[str, Partition]:
    """Every partition by name, by `sinfo`.

    Raises:
        SchedulerError: sinfo is missing, does not answer, or says something else than a table.
    """
    answer = call(["sinfo", "-h", "-a", "-e", "-o", "%P|%a|%l|%c|%G|%N"])
    if not answer.ok:
        raise SchedulerError(
            f"the cluster's partitions cannot be listed: {answer.complaint}",
            "run this where sinfo and sbatch work; after `make cluster-up`, type the `export SLURM_CONF=...`"
            " that it printed; without a cluster, use `aorta profile`",
        )
    found: dict[str, Partition] = {}
    for line in answer.out.splitlines():
        fields = line.split("|")
        if len(fields) != 6:
            raise SchedulerError(f"sinfo printed {line!r}, which is not a row of its table")
        title, availability, limit, cpus, gres, nodelist = fields
        name = title.rstrip("*")
        nodes = tuple(
            SlurmNode(host, int(cpus.rstrip("+")), count_gpus(gres)) for host in expand_hosts(nodelist, call)
        )
        earlier = found[name].nodes if name in found else ()
        found[name] = Partition(
            name, title.endswith("*"), availability == "up", parse_limit(limit), earlier + nodes
        )
    return found


def count_gpus(gres: str) -> int:
    """GPUs in a generic-resource text such as `gpu:a100:4(S:0-1),nvme:1`; `(null)` has none."""
    plain = re.sub(r"\([^)]*\)", "", gres)
    entries = [entry.split(":") for entry in plain.split(",")]
    return sum(int(entry[-1]) for entry in entries if entry[0] == "gpu" and entry[-1].isdigit())


def ask_accounts(user: str, call: Caller) -> frozenset[str] | None:
    """Accounts that `user` may charge, in lower case; None where accounting is absent or says nothing."""
    answer = call(["sacctmgr", "-n", "-P", "show", "associations", f"user={user}", "format=Account"])
    names = frozenset(line.strip().lower() for line in answer.out.splitlines() if line.strip())
    return names if answer.ok and names else None


def ask_default_account(user: str, call: Caller) -> str | None:
    """The account that a job of `user` is charged to if it names none, in lower case. None if unknown."""
    answer = call(["sacctmgr", "-n", "-P", "show", "user", user, "format=DefaultAccount"])
    names = [line.strip().lower() for line in answer.out.splitlines() if line.strip()]
    return names[0] if answer.ok and len(set(names)) == 1 else None


def ask_nodes_here(call: Caller) -> frozenset[str]:
    """Names of the nodes whose slurmd is on this machine, by address.

    A node is here when its address belongs to this machine: to our own network namespace, or to that of a
    slurmd process of this machine (a cluster of namespaces on one host).
    """
    answer = call(["scontrol", "show", "node", "-o"])
    if not answer.ok:
        return frozenset()
    ours = _own_addresses()
    names = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    here = set()
    for line in answer.out.splitlines():
        row = dict(part.partition("=")[::2] for part in line.split() if "=" in part)
        address = row.get("NodeAddr", "")
        if address and (address in names or not ours.isdisjoint(_resolve(address))):
            here.add(row["NodeName"])
    return frozenset(here)


def local_addresses(fib_trie: str) -> set[str]:
    """Addresses that a network namespace answers to, by the text of its /proc/<pid>/net/fib_trie."""
    return set(re.findall(r"\|-- (\S+)\n\s*/32 host LOCAL", fib_trie))


def _own_addresses() -> set[str]:
    import psutil

    found: set[str] = set()
    for table in _address_tables():
        try:
            found |= local_addresses(table.read_text(encoding="ascii", errors="replace"))
        except OSError:
            continue
    for addresses in psutil.net_if_addrs().values():
        found |= {item.address.partition("%")[0] for item in addresses}
    return found


def _address_tables() -> Iterable[Path]:
    import psutil

    yield Path("/proc/self/net/fib_trie")
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "slurmd":
            yield Path(f"/proc/{process.pid}/net/fib_trie")


def _resolve(address: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(address, None)}
    except OSError:
        return set()

"""Finds the address of node 0 that the other nodes reach, and the interface that leads there."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

from aorta.artefacts.records import NodeInfo

_ANY_PORT = 9
"""A UDP connect sends nothing; it only makes the kernel choose a route."""


def machine_id() -> str | None:
    """The kernel's boot id; None where it is hidden."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


def network_id() -> str | None:
    """Boot id and network namespace: processes that share both reach each other over loopback."""
    machine = machine_id()
    try:
        return f"{machine} net:{Path('/proc/self/ns/net').stat().st_ino}" if machine else None
    except OSError:
        return None


def own_addresses() -> list[str]:
    """Addresses of this node's interfaces that are up, IPv4 first, without loopback and link-local ones."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        entry.address.partition("%")[0]
        for name, entries in psutil.net_if_addrs().items()
        if name in up
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    ]
    usable = [text for text in found if not _local_only(text)]
    return sorted(usable, key=lambda text: ipaddress.ip_address(text).version)


def _local_only(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified


def resolve(host: str) -> list[str]:
    """Addresses of a host name, IPv4 first; empty where it has none."""
    try:
        answers = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    found = list(dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in answers))
    return sorted(found, key=lambda text: ipaddress.ip_address(text).version)


def source_towards(address: str) -> str | None:
    """The address from which this machine would talk to `address`; None without a route."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _ANY_PORT))
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def master_address(
    nodes: Sequence[NodeInfo],
    *,
    resolver: Callable[[str], list[str]] = resolve,
    source: Callable[[str], str | None] = source_towards,
) -> str:
    """The address of `nodes[0]` (this one) as the first of the other nodes reaches it.

    The peer's names are tried first, as they are what the site declares, then the addresses that it
    reported. A loopback source means that the peer's name points to this machine: it counts only if all
    nodes share this network. An address that we have too (two machines with the same container bridge)
    leads to ourselves, not to the peer, and is passed over. When nothing leads there, our own name is the
    last resort.
    """
    own = nodes[0]
    if all(_same_network(own, node) for node in nodes[1:]):
        return "127.0.0.1"
    peer = next(node for node in nodes[1:] if not _same_network(own, node))
    names = [name for name in (peer.slurm_node, peer.host) if name]
    targets = [address for name in names for address in resolver(name)]
    for target in _usable([*targets, *peer.addresses], own.addresses):
        address = source(target)
        if address is not None and not _local_only(address):
            return address
    return own.host


def _same_network(one: NodeInfo, other: NodeInfo) -> bool:
    return one.network is not None and one.network == other.network


def _usable(targets: Iterable[str], own: Sequence[str]) -> list[str]:
    return [target for target in dict.fromkeys(targets) if not _local_only(target) and target not in own]


def interface_towards(address: str) -> str | None:
    """Name of the interface that leads to `address` (a name or an address); None where it cannot be told."""
    try:
        targets = [str(ipaddress.ip_address(address))]
    except ValueError:
        targets = resolve(address)
    for target in targets:
        source = source_towards(target)
        for name, entries in psutil.net_if_addrs().items():
            if source is not None and any(entry.address.partition("%")[0] == source for entry in entries):
                return name
    return None


def free_port() -> int:
    """A TCP port that nothing listens on, by asking the kernel for one; another program may still take it
    first.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])

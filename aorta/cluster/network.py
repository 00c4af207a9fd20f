"""Network namespaces of the nodes: a bridge, a veth pair a node, and a rate limit on request.

The functions that make commands are pure; `create`, `destroy` and the questions execute them. All names begin
with `aorta-`, so that what is ours can be found again without a record of it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from aorta.cluster.config import PREFIX_LENGTH, ClusterDir, ClusterError, ClusterSettings
from aorta.cluster.packages import search_environment

BRIDGE = "aorta-br"
NETNS_FOLDER = Path("/run/netns")
_NAMESPACE = re.compile(r"aorta-node\d+")
_VETH = re.compile(r"aorta-n\d+")

# Fixed text, given its values as arguments: the host name and /etc/hosts are the node's own, then its daemon
# takes the process over. `ip netns exec` would do some of this, but it remounts /sys without the cgroups.
_ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


def namespace(name: str) -> str:
    """Namespace of the node `name`."""
    return f"aorta-{name}"


def enter_argv(folder: ClusterDir, name: str) -> list[str]:
    """Words before a command that runs it as the node `name`: its network, host name and /etc/hosts."""
    return [
        "nsenter", f"--net={NETNS_FOLDER / namespace(name)}",
        "unshare", "--uts", "--mount", "--propagation", "slave",
        "sh", "-c", _ENTER, "aorta-node", name, str(folder.hosts),
    ]  # fmt: skip


def create_argvs(folder: ClusterDir, settings: ClusterSettings) -> list[list[str]]:
    """Commands that make the network, in order. The bridge's alias says whose it is."""
    commands = [
        ["ip", "link", "add", BRIDGE, "type", "bridge"],
        ["ip", "link", "set", "dev", BRIDGE, "alias", str(folder.root)],
        ["ip", "addr", "add", f"{settings.controller_address}/{PREFIX_LENGTH}", "dev", BRIDGE],
        ["ip", "link", "set", "dev", BRIDGE, "up"],
    ]
    for index, name in enumerate(settings.names, start=1):
        inside, outside = namespace(name), f"aorta-n{index}"
        address = f"{settings.address(index)}/{PREFIX_LENGTH}"
        commands += [
            ["ip", "netns", "add", inside],
            ["ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", inside],
            ["ip", "link", "set", "dev", outside, "master", BRIDGE, "up"],
            ["ip", "-n", inside, "addr", "add", address, "dev", "eth0"],
            ["ip", "-n", inside, "link", "set", "dev", "lo", "up"],
            ["ip", "-n", inside, "link", "set", "dev", "eth0", "up"],
        ]
        if settings.rate_bit_s is not None:
            limit = limit_arguments(settings.rate_bit_s)
            commands += [
                ["tc", "qdisc", "add", "dev", outside, *limit],
                ["tc", "-n", inside, "qdisc", "add", "dev", "eth0", *limit],
            ]
    return commands


def limit_arguments(rate_bit_s: int) -> list[str]:
    """Token bucket of `rate_bit_s`; 10 ms of burst, at least 16 KiB: small messages are limited too."""
    burst_bytes = max(16 * 1024, rate_bit_s // 8 // 100)
    return ["root", "tbf", "rate", f"{rate_bit_s}bit", "burst", f"{burst_bytes}b", "latency", "50ms"]


def unusable() -> str | None:
    """Why this machine or user cannot have network namespaces; None where they can.

    Tried inside a namespace that ends with the command, so that it leaves nothing.
    """
    probe = ["unshare", "--net", "--uts", "--mount", "ip", "link", "add", BRIDGE, "type", "bridge"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, check=False, env=search_environment())
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    return None if done.returncode == 0 else (done.stderr.strip() or f"{probe[0]} exited {done.returncode}")


def owner() -> Path | None:
    """Folder of the cluster whose network is up on this machine; None where there is no such network."""
    text = run(["ip", "-j", "link", "show"])
    for link in json.loads(text or "[]"):
        if link.get("ifname") == BRIDGE:
            return Path(link.get("ifalias", "/"))
    return None


def create(folder: ClusterDir, settings: ClusterSettings) -> None:
    """Make bridge, namespaces, links and limits.

    Raises:
        ClusterError: a command failed; the message has the command and its answer.
    """
    for argv in create_argvs(folder, settings):
        run(argv)


def relimit_argvs(index: int, rate_bit_s: int | None) -> list[list[str]]:
    """Commands that limit the link of node `index` (from 1) both ways, or set it free (None)."""
    commands = []
    for start, device in (
        (["tc", "qdisc"], f"aorta-n{index}"),
        (["tc", "-n", namespace(f"node{index}"), "qdisc"], "eth0"),
    ):
        free = ["del", "dev", device, "root"]
        commands.append(
            [*start, *(free if rate_bit_s is None else ["replace", *free[1:3], *limit_arguments(rate_bit_s)])]
        )
    return commands


def relimit(index: int, rate_bit_s: int | None) -> None:
    """Limit the link of node `index` (from 1) both ways while the cluster is up, or set it free (None).

    Raises:
        ClusterError: a command failed, such as one that frees what is not limited.
    """
    for argv in relimit_argvs(index, rate_bit_s):
        run(argv)


def destroy() -> None:
    """Remove every link and namespace of ours; quietly nothing where there is none.

    The empty folder /run/netns belongs to iproute2 and stays: removing it could unmount others' namespaces.
    """
    links = [link["ifname"] for link in json.loads(run(["ip", "-j", "link", "show"]) or "[]")]
    for name in links:
        if name == BRIDGE or _VETH.fullmatch(name):
            run(["ip", "link", "delete", "dev", name])
    for name in namespaces():
        run(["ip", "netns", "delete", name])


def namespaces() -> list[str]:
    """Our namespaces that exist."""
    if not NETNS_FOLDER.is_dir():
        return []
    return sorted(entry.name for entry in NETNS_FOLDER.iterdir() if _NAMESPACE.fullmatch(entry.name))


def pids() -> list[int]:
    """Every process inside our namespaces: daemons, steps, and what jobs started."""
    return [int(pid) for name in namespaces() for pid in run(["ip", "netns", "pids", name]).split()]


def run(argv: Sequence[str]) -> str:
    """Runs a command and returns its output.

    Raises:
        ClusterError: it failed; the message has the command and its answer.
    """
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=search_environment())
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(argv)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout

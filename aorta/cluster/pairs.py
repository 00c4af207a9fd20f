"""Network namespaces of ranks, joined pair by pair, so that the link between two ranks can be slow alone.

`create_argvs` and `destroy_argvs` are pure; `joined` executes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import combinations

from aorta.cluster.config import ClusterError
from aorta.cluster.network import limit_arguments, run

_SUBNET = "10.214.0"
"""First three numbers of the private addresses; the links end at this machine."""


def namespace(prefix: str, rank: int) -> str:
    """Returns the namespace of a rank."""
    return f"{prefix}{rank}"


def create_argvs(prefix: str, ranks: int, slow: tuple[int, int], rate_bit_s: int) -> list[list[str]]:
    """Returns the commands that join every two of `ranks` and limit the link of `slow` both ways."""
    names = [namespace(prefix, rank) for rank in range(ranks)]
    commands = [["ip", "netns", "add", name] for name in names]
    commands += [["ip", "-n", name, "link", "set", "dev", "lo", "up"] for name in names]
    for one, other in combinations(range(ranks), 2):
        device = ["ip", "link", "add", f"to{other}", "netns", names[one], "type", "veth"]
        commands.append([*device, "peer", "name", f"to{one}", "netns", names[other]])
        for mine, its in ((one, other), (other, one)):
            inside, end = ["ip", "-n", names[mine]], f"to{its}"
            address = f"{_SUBNET}.{mine + 1}", "peer", f"{_SUBNET}.{its + 1}"
            commands.append([*inside, "addr", "add", *address, "dev", end])
            commands.append([*inside, "link", "set", "dev", end, "up"])
            if {mine, its} == set(slow):
                limit = limit_arguments(rate_bit_s)
                commands.append(["tc", "-n", names[mine], "qdisc", "add", "dev", end, *limit])
    return commands


def destroy_argvs(prefix: str, ranks: int) -> list[list[str]]:
    """Returns the commands that remove the namespaces; their links go with them."""
    return [["ip", "netns", "delete", namespace(prefix, rank)] for rank in range(ranks)]


@contextmanager
def joined(ranks: int, slow: tuple[int, int], rate_bit_s: int) -> Iterator[str]:
    """Joins the ranks and yields the prefix of their namespaces, which end with the context.

    Raises:
        ClusterError: a command failed; the message has the command and its answer.
    """
    prefix = f"aorta-pair{os.getpid()}-"
    try:
        for argv in create_argvs(prefix, ranks, slow, rate_bit_s):
            run(argv)
        yield prefix
    finally:
        for argv in destroy_argvs(prefix, ranks):
            with suppress(ClusterError):
                run(argv)

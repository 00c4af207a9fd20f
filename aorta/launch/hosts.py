"""Slurm's compact node lists, such as `node-[001-002,004]`, to host names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from aorta.errors import SchedulerError
from aorta.launch.tools import Caller

_NOBODY = frozenset({"", "none", "none assigned", "(null)", "n/a"})
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[(?P<ranges>[^\[\]]*)\]|(?P<text>[^\[\]]+)")
_RANGE = re.compile(r"(?P<low>\d+)(?:-(?P<high>\d+))?")


def expand_hosts(text: str, call: Caller) -> list[str]:
    """Host names of a node list, in its order: by `scontrol show hostnames`, by our own reading without it.

    Raises:
        SchedulerError: neither can read it.
    """
    if text.strip().lower() in _NOBODY:
        return []
    answer = call(["scontrol", "show", "hostnames", text.strip()])
    if answer.ok and answer.out.split():
        return answer.out.split()
    return parse_hosts(text)


def parse_hosts(text: str) -> list[str]:
    """Host names of a node list, read without Slurm.

    Several brackets in a name multiply; zeros in front stay.

    Raises:
        SchedulerError: the list is not of that form.
    """
    stripped = text.strip()
    if stripped.lower() in _NOBODY:
        return []
    items = _ITEM.findall(stripped)
    if ",".join(items) != stripped:
        raise SchedulerError(f"node list {text!r} cannot be read")
    return [host for item in items for host in _expand(item)]


def _expand(item: str) -> Iterator[str]:
    choices = []
    for piece in _PIECE.finditer(item):
        choices.append([piece["text"]] if piece["text"] is not None else _numbers(piece["ranges"], item))
    return ("".join(parts) for parts in itertools.product(*choices))


def _numbers(ranges: str, item: str) -> list[str]:
    found: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise SchedulerError(f"node list {item!r}: {part!r} is not a number or a range of numbers")
        low, high = match["low"], match["high"] or match["low"]
        if int(high) < int(low):
            raise SchedulerError(f"node list {item!r}: the range {part!r} runs backwards")
        found.extend(f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1))
    return found

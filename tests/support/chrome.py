"""Checks a file of trace events as strictly as a viewer might: fields, nesting, counters, arrows, names."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

_FIELDS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "cat", "name", "pid", "tid", "ts", "dur"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
    "s": {"ph", "cat", "name", "id", "pid", "tid", "ts"},
    "f": {"ph", "cat", "name", "id", "pid", "tid", "ts", "bp"},
}


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def load(path: Path) -> dict[str, Any]:
    """The document, its times as exact decimals."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document: dict[str, Any] = json.loads(data, parse_float=Decimal, parse_constant=_refuse)
    return document


def ns(value: Decimal | int) -> int:
    """µs with at most three decimals as integer ns."""
    scaled = Decimal(value) * 1000
    assert scaled == scaled.to_integral_value(), value
    return int(scaled)


def checked(path: Path) -> list[dict[str, Any]]:
    """The events of a file in which everything is as it must be."""
    events: list[dict[str, Any]] = load(path)["traceEvents"]
    named: set[tuple[int, int]] = set()
    slices: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    counters: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    arrows: defaultdict[int, list[str]] = defaultdict(list)
    for event in events:
        fields = _FIELDS[event["ph"]]
        assert fields <= set(event) <= fields | {"args"}, event
        assert type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "M":
            if event["name"] in ("process_name", "thread_name"):
                named.add((event["pid"], event["tid"]))
            continue
        at = ns(event["ts"])
        assert at >= 0
        # A double must hold the nanosecond.
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((at, at + ns(event["dur"])))
        elif event["ph"] == "C":
            assert len(event["args"]) == 1
            counters[event["pid"], event["name"]].append(at)
        else:
            arrows[event["id"]].append(event["ph"])
    for where, spans in slices.items():
        assert where in named
        _nest(spans)
    assert all(times == sorted(times) for times in counters.values())
    assert all(phases == ["s", "f"] for phases in arrows.values())
    assert {pid for pid, _ in slices} | {pid for pid, _ in counters} <= {
        pid for pid, tid in named if tid == 0
    }
    return events


def _nest(spans: list[tuple[int, int]]) -> None:
    stack: list[int] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        assert start <= end
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or end <= stack[-1], "slices of one thread overlap"
        stack.append(end)

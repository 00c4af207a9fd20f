"""Tiny Kineto traces: events as dictionaries, files as torch's profiler writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def event(
    cat: str, name: str, ts: Any, dur: Any, *, tid: Any = 1, ph: str = "X", **args: Any
) -> dict[str, Any]:
    """One complete event; `ts` and `dur` are µs."""
    return {"ph": ph, "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(
    name: str, ts: Any, dur: Any, *, stream: int = 7, correlation: int = 0, **args: Any
) -> dict[str, Any]:
    """One kernel on device 0."""
    return event(
        "kernel", name, ts, dur, tid=stream, device=0, stream=stream, correlation=correlation, **args
    )


def text(events: list[dict[str, Any]], **header: Any) -> str:
    """The file with these events as Kineto lays it out: keys before and after the array, events indented."""
    body = ",\n  ".join("{\n    " + json.dumps(one)[1:-1] + "\n  }" for one in events)
    head = json.dumps({"schemaVersion": 1, **header})[:-1]
    tail = '"traceName": "t.json",\n  "displayTimeUnit": "ms"\n}\n'
    return f'\n{head},\n  "traceEvents": [\n  {body}\n  ],\n  {tail}'


def write(path: Path, events: list[dict[str, Any]], **header: Any) -> Path:
    """Write the file, compressed if its name says so."""
    data = text(events, **header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path

"""Tiny Nsight Systems exports, with the tables and columns of the versions that differ."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path


def process(pid: int) -> int:
    """A globalPid as nsys makes it."""
    return (1 << 48) | pid << 24


@dataclass
class Export:
    """Rows to be written; tables without rows are left out, as `nsys export` does."""

    kernels: list[tuple[int, int, int, int, int, int, str]] = field(default_factory=list)
    """start, end, device, stream, correlation, pid, name"""
    copies: list[tuple[int, int, int, int, int, int, int, int]] = field(default_factory=list)
    """start, end, device, stream, correlation, pid, bytes, copyKind"""
    memory: list[tuple[int, int]] = field(default_factory=list)
    """srcKind and dstKind of each copy; empty: the columns are left out, as in older versions."""
    calls: list[tuple[int, int, int, str, int]] = field(default_factory=list)
    """start, end, pid, name, correlation"""
    ranges: list[tuple[int, int | None, int, str, int]] = field(default_factory=list)
    """start, end, pid, text, eventType"""
    epoch_ns: int | None = None
    text_ids: bool = False
    """NVTX texts as string ids (registered strings)."""

    def write(self, path: Path, *, grids: bool = True) -> Path:
        """Write the export; without `grids` its kernels have the columns of a minimal old version."""
        db = sqlite3.connect(path)
        strings: dict[str, int] = {}

        def string(text: str) -> int:
            return strings.setdefault(text, len(strings) + 1)

        if self.kernels:
            more = ", gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT" if grids else ""
            db.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT,"
                f" correlationId INT, globalPid INT, demangledName INT, shortName INT{more})"
            )
            for start, end, device, stream, correlation, pid, name in self.kernels:
                row = [start, end, device, stream, correlation, process(pid), string(name), string("short")]
                row += [1, 1, 1, 32, 1, 1] if grids else []
                db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * len(row))})", row)
        if self.copies:
            kinds = ", srcKind INT, dstKind INT" if self.memory else ""
            db.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, streamId INT,"
                f" correlationId INT, globalPid INT, bytes INT, copyKind INT{kinds})"
            )
            memory = self.memory or [()] * len(self.copies)
            rows = [(*c[:5], process(c[5]), *c[6:], *m) for c, m in zip(self.copies, memory, strict=True)]
            marks = ",".join("?" * len(rows[0]))
            db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({marks})", rows)
        if self.calls:
            db.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME"
                " (start INT, end INT, globalTid INT, correlationId INT, nameId INT)"
            )
            calls = [(s, e, process(pid) | pid, c, string(name)) for s, e, pid, name, c in self.calls]
            db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)", calls)
        if self.ranges:
            db.execute(
                "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT,"
                " textId INT)"
            )
            for start, end, pid, text, kind in self.ranges:
                names = (None, string(text)) if self.text_ids else (text, None)
                db.execute(
                    "INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?)",
                    (start, end, kind, names[0], process(pid) | pid, names[1]),
                )
        if self.epoch_ns is not None:
            db.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INT)")
            db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (self.epoch_ns,))
        db.execute("CREATE TABLE StringIds (id INT, value TEXT)")
        db.executemany(
            "INSERT INTO StringIds VALUES (?,?)", [(number, text) for text, number in strings.items()]
        )
        db.commit()
        db.close()
        return path


SECRET = b"hunter2-planted"


def plant(path: Path) -> Path:
    """Put a secret wherever nsys keeps environments, command lines and output, beside what may stay."""
    text = SECRET.decode()
    block = f"RANK=3\0HF_TOKEN={text}\0SLURM_JOB_ID=7"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
    rows = [("DeviceEnvironment", block.replace("\0", ";")), ("Hostname", "n1")]
    db.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, ?)", rows)
    db.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
    rows = [("PROCESS_0:COMMAND", f"python --password {text}"), ("RATE_HZ", "0")]
    db.executemany("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", rows)
    db.execute("CREATE TABLE ProcessStreams (globalPid INT, filenameId INT, contentId INT)")
    db.execute("INSERT INTO ProcessStreams VALUES (1, 900, 901)")
    rows2 = [(900, "stdout"), (901, f"it is {text}"), (902, block), (903, "kernel")]
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", rows2)
    db.commit()
    db.close()
    return path

"""Damages files and looks at what their readers make of them.

A case is a file, a damage and a reader. Each runs in a process of its own, forked where everything is
imported, with its CPU time and memory limited, so that whatever it does is one outcome. The outcomes:

- refused: an error of ours, one message;
- salvaged: what is left was read, and the problem is named;
- same: the damage took nothing away (a cut in trailing blanks, a flipped bit that nobody reads);
- changed: a flipped bit made another value that could be true; nothing in the file can tell;
- anything else is a failure: crash, hang, memory, or silent (a part read as if it were the whole, or a value
  that the intact file does not hold).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aorta.errors import AortaError

CPU_S = 10
"""CPU time of one case; more counts as a hang."""
WALL_S = 90.0
"""For a case that waits; the machine may be busy with others."""
SLACK_BYTES = 24 << 20
"""What two readings of one file can differ by: allocator, first use of a library."""

GOOD = ("refused", "salvaged", "same", "changed")
BAD = ("crash", "hang", "memory", "silent")

Rows = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader made of a file: a number for each of its rows, sorted, and the problems it named."""

    rows: Rows
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """A file and its reader.

    `read` gets the damaged file, in a folder of its own under the file's own name. `lines` says that a file
    cut between two lines is a whole, shorter file.
    """

    name: str
    source: Path
    read: Callable[[Path], Reading]
    lines: bool = False

    def key(self) -> str:
        """Changes with the file's content."""
        return f"{self.name}:{hashlib.sha256(self.source.read_bytes()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Damage:
    """`cut` at byte `at`, `flip` of bit `bit` of byte `at`, or `blank`: 512 zero bytes from `at`."""

    kind: str
    at: int
    bit: int = 0

    def apply(self, data: bytes) -> bytes:
        """The damaged bytes."""
        if self.kind == "cut":
            return data[: self.at]
        if self.kind == "blank":
            return data[: self.at] + bytes(len(data[self.at : self.at + 512])) + data[self.at + 512 :]
        damaged = bytearray(data)
        damaged[self.at] ^= 1 << self.bit
        return bytes(damaged)

    def __str__(self) -> str:
        return f"{self.kind}@{self.at}" + (f".{self.bit}" if self.kind == "flip" else "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    subject: str
    damage: str
    outcome: str
    detail: str = ""
    cpu_s: float = 0.0
    memory: float = 0.0
    """Peak over that of the intact file."""


def damages(size: int, *, every: int, sample: int | None, flips: int, seed: int) -> list[Damage]:
    """Cuts at every `every`-th byte (`sample` of them at most, drawn), bit flips and blanked blocks."""
    noise = random.Random(f"{seed}:{size}")
    places = list(range(0, size, every))
    if sample is not None and len(places) > sample:
        places = sorted(noise.sample(places, sample))
    found = [Damage("cut", place) for place in places]
    if size:
        found += [Damage("flip", noise.randrange(size), noise.randrange(8)) for _ in range(flips)]
        found += [Damage("blank", noise.randrange(size)) for _ in range(max(1, flips // 4) if flips else 0)]
    return found


@dataclass(slots=True)
class Intact:
    """The reading of the intact file, which all others are held against."""

    rows: Rows
    problems: tuple[str, ...]
    peak_bytes: int
    data: bytes


@dataclass(slots=True)
class _Child:
    subject: Subject
    damage: Damage
    pid: int
    pipe: int
    deadline: float
    text: bytes = b""


@dataclass(slots=True)
class Fuzzer:
    """Runs cases in children of this process, at most `workers` at once."""

    folder: Path
    workers: int = 1
    intact: dict[str, Intact] = field(default_factory=dict)
    _running: list[_Child] = field(default_factory=list)
    _slots: list[int] = field(default_factory=list)

    def prepare(self, subject: Subject) -> str | None:
        """Read the intact file, in a child as well; the reason where that fails."""
        data = subject.source.read_bytes()
        target = self.folder / "intact.npy"
        child = self._start(subject, None, data, save=target)
        answer = json.loads(self._finish(child) or b'{"crash": "died"}')
        if "rows" not in answer:
            return str(answer.get("refused") or answer.get("crash"))
        self.intact[subject.name] = Intact(np.load(target), tuple(answer["problems"]), answer["peak"], data)
        target.unlink()
        return None

    def run(self, cases: Iterator[tuple[Subject, Damage]]) -> Iterator[Outcome]:
        """The outcome of each case, as they end."""
        try:
            for subject, damage in cases:
                while len(self._running) >= self.workers:
                    yield from self._reap()
                data = damage.apply(self.intact[subject.name].data)
                self._running.append(self._start(subject, damage, data))
            while self._running:
                yield from self._reap()
        finally:
            for child in self._running:
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                os.close(child.pipe)
            self._running.clear()

    def _start(
        self, subject: Subject, damage: Damage | None, data: bytes, save: Path | None = None
    ) -> _Child:
        place = self.folder / f"case{len(self._running)}_{time.monotonic_ns()}"
        place.mkdir()
        path = place / subject.source.name
        path.write_bytes(data)
        intact = self.intact.get(subject.name)
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(out)
            _work(subject, damage, path, intact, into, save)
        os.close(into)
        return _Child(subject, damage or Damage("cut", len(data)), pid, out, time.monotonic() + WALL_S)

    def _reap(self) -> Iterator[Outcome]:
        ready, _, _ = select.select([child.pipe for child in self._running], [], [], 0.5)
        for child in list(self._running):
            if child.pipe in ready:
                block = os.read(child.pipe, 1 << 16)
                child.text += block
                if not block:
                    self._running.remove(child)
                    yield self._outcome(child)
            elif time.monotonic() > child.deadline:
                os.kill(child.pid, signal.SIGKILL)

    def _finish(self, child: _Child) -> bytes:
        while block := os.read(child.pipe, 1 << 16):
            child.text += block
        os.close(child.pipe)
        os.waitpid(child.pid, 0)
        return child.text

    def _outcome(self, child: _Child) -> Outcome:
        os.close(child.pipe)
        _, status, usage = os.wait4(child.pid, 0)
        cpu = usage.ru_utime + usage.ru_stime
        name, damage = child.subject.name, str(child.damage)
        if os.WIFSIGNALED(status):
            number = signal.Signals(os.WTERMSIG(status))
            late = number in (signal.SIGXCPU, signal.SIGKILL)
            return Outcome(name, damage, "hang" if late else "crash", f"ended by {number.name}", cpu)
        answer = json.loads(child.text or b'{"crash": "ended without a word"}')
        outcome, detail = judge(answer, child.damage, child.subject, self.intact[name])
        peak, usual = answer.get("peak", 0), self.intact[name].peak_bytes
        if outcome in GOOD and peak > 2 * usual + SLACK_BYTES:
            outcome, detail = "memory", f"{peak >> 20} MiB, the intact file {usual >> 20} MiB"
        return Outcome(name, damage, outcome, detail, round(cpu, 3), round(peak / max(usual, SLACK_BYTES), 2))


def judge(answer: dict[str, object], damage: Damage, subject: Subject, intact: Intact) -> tuple[str, str]:
    """Outcome and detail of what a child said."""
    for word in ("crash", "memory", "refused"):
        if word in answer:
            return word, str(answer[word])
    if answer["equal"] and answer["problems"] == list(intact.problems):
        return "same", ""
    named = bool(set(answer["problems"]) - set(intact.problems))  # type: ignore[call-overload]
    if damage.kind != "cut":
        return ("salvaged" if named else "changed"), ""
    if not answer["part"]:
        return "silent", f"{answer['foreign']} rows that the intact file does not hold"
    if named:
        return "salvaged", ""
    between = subject.lines and (damage.at == 0 or intact.data[damage.at - 1 : damage.at] == b"\n")
    if answer["equal"] or between:
        return "same", "cut between two lines"
    return "silent", f"{answer['rows']} of {len(intact.rows)} rows, and no problem named"


def _work(
    subject: Subject, damage: Damage | None, path: Path, intact: Intact | None, into: int, save: Path | None
) -> None:
    """The child: read, say what came of it, end."""
    answer: dict[str, object]
    try:
        os.chdir(path.parent)
        if intact is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 2))
            most = _status("VmSize") + 4 * intact.peak_bytes + (512 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        try:
            reading = subject.read(path)
            answer = {"problems": [text.replace(str(path.parent), "")[:300] for text in reading.problems]}
            answer["rows"] = len(reading.rows)
            answer["peak"] = max(_status("VmHWM") - before, 0)
            if save is not None:
                np.save(save, reading.rows)
            elif intact is not None:
                answer |= _against(reading.rows, intact.rows)
        except AortaError as error:
            answer = {"refused": error.message[:300], "peak": max(_status("VmHWM") - before, 0)}
        except MemoryError:
            answer = {"memory": "asked for more than four times the intact file's"}
        except BaseException:
            answer = {"crash": traceback.format_exc()[-1500:]}
        with os.fdopen(into, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
    finally:
        _remove(path.parent)
        os._exit(0)


def _against(rows: Rows, intact: Rows) -> dict[str, object]:
    """Whether the rows are those of the intact file, or a part of them."""
    own, counts = np.unique(rows, return_counts=True)
    whole, most = np.unique(intact, return_counts=True)
    index = np.minimum(np.searchsorted(whole, own), max(len(whole) - 1, 0))
    known = whole[index] == own if len(whole) else np.zeros(len(own), dtype=bool)
    enough = known & (counts <= most[index]) if len(whole) else known
    equal = len(rows) == len(intact) and bool(known.all()) and bool((counts == most[index]).all())
    return {"part": bool(enough.all()), "foreign": int((~enough).sum()), "equal": equal}


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def _remove(folder: Path) -> None:
    for entry in sorted(folder.rglob("*"), reverse=True):
        entry.rmdir() if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    folder.rmdir()


def numbered(rows: Sequence[object]) -> Rows:
    """A number for each row, sorted; equal rows have equal numbers within one process family."""
    return np.sort(np.array([hash(row) & ((1 << 64) - 1) for row in rows], dtype=np.uint64))

"""Do the readers survive damaged files? Cuts, bit flips and blanked blocks, each read in its own process.

    python benchmarks/fuzz_readers.py [PATH...] [--no-own] [--unpacked] [--every 1000] [--sample N]
        [--flips 32] [--workers 2] [--minutes M] [--state FILE] [--seed 0]
        [--only NAME [--case cut@12000]]

PATHs are files and folders of traces and samples; unless --no-own, one of each file that aorta writes is made
and damaged too. Every file is cut at every 1,000th byte (`--every`, or `--sample` of these places), and gets
`--flips` bit flips. The checksum of a gzip file gives every flipped bit away; with `--unpacked` the content
is damaged instead, so that the readers of JSON and SQLite meet it. A case fails when its reader

- ends with anything but an error of ours (crash),
- takes more than 10 s of CPU time, or waits for 90 s (hang),
- needs more than twice the memory of the intact file, and 24 MiB (memory),
- gives a part of a cut file and names no problem, or rows that the intact file does not hold (silent).

With `--state` what is done is kept in FILE, and a second call goes on from there; Ctrl-C or SIGTERM ends with
the counts so far, and `--minutes 0` only prints them. The exit code is 1 when a case failed, 130 after a
signal.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.fuzz import BAD, GOOD, Damage, Fuzzer, Outcome, Subject, damages
from tests.support.fuzz_subjects import folder_subjects, own_subjects


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    parser.add_argument("--no-own", action="store_true", help="leave out what aorta itself writes")
    parser.add_argument("--unpacked", action="store_true", help="damage what is in gzip files")
    parser.add_argument("--every", type=int, default=1000, help="bytes between two cuts")
    parser.add_argument("--sample", type=int, help="at most so many cuts a file, drawn")
    parser.add_argument("--flips", type=int, default=32, help="bit flips a file")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no case after so long")
    parser.add_argument("--state", type=Path, help="keep what is done here, and go on from it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="files whose name holds this")
    parser.add_argument("--case", help="one damage, as failures are printed: cut@12000, flip@7.3, blank@512")
    return parser.parse_args()


def parse_case(text: str) -> Damage:
    kind, _, place = text.partition("@")
    at, _, bit = place.partition(".")
    return Damage(kind, int(at), int(bit or 0))


def planned(
    subjects: list[Subject], options: argparse.Namespace, done: set[str]
) -> list[tuple[Subject, Damage]]:
    """The cases that are still to run, shuffled: a run that ends early has seen something of every file."""
    cases = []
    for subject in subjects:
        size = subject.source.stat().st_size
        chosen = (
            [parse_case(options.case)]
            if options.case
            else damages(
                size, every=options.every, sample=options.sample, flips=options.flips, seed=options.seed
            )
        )
        key = subject.key()
        cases += [(subject, damage) for damage in chosen if f"{key} {damage}" not in done]
    random.Random(options.seed).shuffle(cases)
    return cases


def unpacked(subjects: list[Subject], folder: Path) -> list[Subject]:
    """`subjects` with what is in a gzip file in its place, as a file below `folder`."""
    found = []
    for number, subject in enumerate(subjects):
        if subject.source.suffix != ".gz":
            found.append(subject)
            continue
        path = folder / str(number) / subject.source.stem
        path.parent.mkdir(parents=True)
        with gzip.open(subject.source) as packed, path.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
        found += [replace(inside, name=f"{subject.name} unpacked") for inside in folder_subjects([path])]
    return found


def timely(
    cases: list[tuple[Subject, Damage]], minutes: float, left: list[int]
) -> Iterator[tuple[Subject, Damage]]:
    """The cases until the time is over; `left` is set to the number that is not run."""
    end = time.monotonic() + 60 * minutes
    for number, case in enumerate(cases):
        if time.monotonic() > end:
            left[0] = len(cases) - number
            return
        yield case


def finished(state: Path | None) -> dict[str, dict[str, object]]:
    """What an earlier call has done, by case; a line that was cut off counts as not done."""
    found = {}
    for line in state.read_text().splitlines() if state is not None and state.exists() else ():
        try:
            record = json.loads(line)
            found[record["key"]] = record
        except (ValueError, KeyError):
            continue
    return found


class Tally:
    """Counts outcomes, says failures as they come, and keeps what is done."""

    def __init__(self, state: Path | None, known: dict[str, dict[str, object]], keys: dict[str, str]) -> None:
        self.counts = Counter(str(record["outcome"]) for record in known.values())
        self.keys = keys
        self.worst: Outcome | None = None
        self.slowest: Outcome | None = None
        self._kept = state.open("a") if state is not None else None

    def add(self, outcome: Outcome) -> None:
        """One case more."""
        self.counts[outcome.outcome] += 1
        if outcome.outcome in BAD:
            print(
                f"{outcome.outcome.upper()} {outcome.subject} {outcome.damage}\n  {outcome.detail}",
                flush=True,
            )
        if self.worst is None or outcome.memory > self.worst.memory:
            self.worst = outcome
        if self.slowest is None or outcome.cpu_s > self.slowest.cpu_s:
            self.slowest = outcome
        if self._kept is not None:
            record = {"key": f"{self.keys[outcome.subject]} {outcome.damage}", **asdict(outcome)}
            self._kept.write(json.dumps(record) + "\n")
            self._kept.flush()

    def report(self, left: int) -> None:
        """The counts, and the cases that took most."""
        counts = self.counts
        print(f"{len(self.keys)} files, {sum(counts.values())} cases{f', {left} not run' if left else ''}")
        print(", ".join(f"{counts[word]} {word}" for word in GOOD))
        print(f"{self.failures} failures: " + ", ".join(f"{counts[word]} {word}" for word in BAD))
        if self.worst is not None and self.slowest is not None:
            most, last = self.worst, self.slowest
            print(f"most memory: {most.memory} times the intact file's ({most.subject} {most.damage})")
            print(f"longest: {last.cpu_s} s of CPU time ({last.subject} {last.damage})")

    @property
    def failures(self) -> int:
        """Cases that failed, earlier calls included."""
        return sum(self.counts[word] for word in BAD)


def readable(subjects: list[Subject], fuzzer: Fuzzer) -> list[Subject]:
    """Those whose intact file can be read; the others are said."""
    found = []
    for subject in subjects:
        reason = fuzzer.prepare(subject)
        if reason is None:
            found.append(subject)
        else:
            print(f"left out: {subject.name} cannot be read as it is: {reason.splitlines()[-1]}")
    return found


def main() -> int:
    options = arguments()
    # A shell that starts it in the background has it ignore Ctrl-C.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    left, interrupted = [0], False
    with tempfile.TemporaryDirectory(prefix="aorta-fuzz-") as place:
        folder = Path(place)
        subjects = folder_subjects(options.paths)
        subjects = unpacked(subjects, folder / "unpacked") if options.unpacked else subjects
        subjects += [] if options.no_own else own_subjects(folder / "own")
        fuzzer = Fuzzer(folder, options.workers)
        wanted = [item for item in subjects if options.only is None or options.only in item.name]
        subjects = readable(wanted, fuzzer)
        keys = {subject.name: subject.key() for subject in subjects}
        earlier = finished(options.state)
        known = {key: record for key, record in earlier.items() if key.rpartition(" ")[0] in keys.values()}
        tally = Tally(options.state, known, keys)
        cases = planned(subjects, options, set(known))
        try:
            for outcome in fuzzer.run(timely(cases, options.minutes, left)):
                tally.add(outcome)
        except KeyboardInterrupt:
            interrupted = True
        tally.report(left[0])
    return 130 if interrupted else min(tally.failures, 1)


if __name__ == "__main__":
    sys.exit(main())

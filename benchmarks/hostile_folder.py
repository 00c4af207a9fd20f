"""Puts hostile entries one by one into a shared results folder, and analyses it each time.

Healthy runs of two scenarios lie there. Beside them comes one entry of another user: a FIFO, a device, a
socket, a sparse file, a link, a wrong mode or owner, a cut or swapped file, an odd name. Each time
`aorta aggregate` and `aorta status` must end without a fault, below 1 GiB and 60 s of CPU time. The healthy
runs' reports must be whole.

    .venv/bin/python benchmarks/hostile_folder.py [--only WORDS] [--json FILE]

One process at a time is forked from one that has imported everything.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from click.testing import CliRunner

from aorta import cli
from tests.support.rights import ordinary
from tests.support.synthetic import RunSpec, write_run

LIMIT_S, LIMIT_MIB = 60.0, 1024.0
HEALTHY = {
    "1node": RunSpec(steps=24, ranks_per_node=2),
    "2node": RunSpec(steps=24, nodes=2, ranks_per_node=1),
}
_OTHER_USER = 65534
_HANGS_S = 300
"""After which a process that waits for something is ended; a loaded machine takes long for little."""


@dataclass(frozen=True)
class Result:
    """What one entry did."""

    name: str
    seconds: float
    peak_mib: float
    wrong: str
    """Empty where the healthy runs' reports were whole and nothing failed."""


# --- entries -----------------------------------------------------------------------------------------------


def fifo(path: Path) -> None:
    """A FIFO that nobody writes to."""
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    """A socket that nobody listens on."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def sparse(path: Path) -> None:
    """5 GB that take no room."""
    path.touch()
    os.truncate(path, 5 << 30)


def closed_file(path: Path) -> None:
    """A file of mode 0."""
    path.write_text("{}")
    path.chmod(0)


def closed_folder(path: Path) -> None:
    """A folder of mode 0 with something in it."""
    path.mkdir()
    (path / "manifest.json").write_text("{}")
    path.chmod(0)


def listed_only(path: Path) -> None:
    """A folder that can be listed and not entered."""
    path.mkdir()
    (path / "manifest.json").write_text("{}")
    path.chmod(0o444)


def foreign(path: Path) -> None:
    """A private file of another user; of mode 0 where this user may not give files away."""
    closed_file(path)
    with contextlib.suppress(PermissionError):
        os.chown(path, _OTHER_USER, _OTHER_USER)
        path.chmod(0o600)


def text(content: str | bytes) -> Callable[[Path], None]:
    """A file with this content."""
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data) and None


def link(target: str) -> Callable[[Path], None]:
    """A symbolic link."""
    return lambda path: path.symlink_to(target)


KINDS: dict[str, Callable[[Path], None]] = {
    "FIFO": fifo,
    "socket": unix_socket,
    "endless device": link("/dev/zero"),
    "empty device": link("/dev/null"),
    "terminal": link("/dev/tty"),
    "memory of a process": link("/proc/self/mem"),
    "sparse": sparse,
    "folder": Path.mkdir,
    "closed file": closed_file,
    "closed folder": closed_folder,
    "listed folder": listed_only,
    "other user's": foreign,
    "dangling link": link("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to the root": link("/"),
    "link upwards": link(".."),
    "empty": text(b""),
    "zero bytes": text(bytes(1 << 20)),
    "blank lines": text(b"\n" * (1 << 20)),
    "random bytes": text(bytes(range(256)) * 4096),
    "deep JSON": text("[" * 100_000),
    "wide JSON": text('{"a":' + "[" + "0," * 200_000 + "0]}"),
    "cut JSON": text('{"schema_version": 1, "job_id": "'),
    "list": text("[]"),
    "huge numbers": text('{"schema_version": 1, "world_size": 1e308, "nodes": -' + "9" * 30 + "}"),
    "controls": text('{"job_id": "\\u001b]0;owned\\u0007", "why": "\\u202e"}\n'),
}
IN_A_RUN = (
    "manifest.json",
    "config.yaml",
    "rank_0_metrics.jsonl",
    "nodes",
    "nodes/node0/status.json",
    "nodes/node0/cpu_monitor.csv",
    "torch_profiler/rank_0/a.pt.trace.json",
)
"""Files of a run of another user that an entry takes the place of."""
BESIDE = ("2node/run_0", "run_20990101_000000/jobs.jsonl")
"""Places beside the runs."""
NAMES: tuple[bytes, ...] = (
    b"run_\xff",
    b"run_\x1b]0;owned\x07",
    b"run_a\nb",
    b"run_ ",
    b"run_" + b"x" * 240,
    b"run_$(touch owned)",
    b"run_-rf",
    b"run_'\"",
    "run_\u202eevil".encode(),
    b"run_<script>",
    b"run_|a|",
    b"run_%s%n",
    b"run_.",
    b"run_\\",
)


def cases(results: Path, spare: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name of each entry, and what puts it there."""

    def in_a_run(name: str, make: Callable[[Path], None]) -> None:
        run = results / "3node" / "run_9"
        shutil.copytree(spare, run)
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        make(path)

    def beside(name: str, make: Callable[[Path], None]) -> None:
        path = results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)

    def named(name: bytes, parent: str) -> None:
        folder = results / parent
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(spare, folder / os.fsdecode(name))

    for kind, make in KINDS.items():
        for name in IN_A_RUN:
            yield f"{kind} as {name}", lambda name=name, make=make: in_a_run(name, make)
        for name in BESIDE:
            yield f"{kind} as {name}", lambda name=name, make=make: beside(name, make)
    for place, raw in enumerate(NAMES):
        parent = (".", "3node")[place % 2]
        yield f"name {raw[:24]!r} in {parent}", lambda raw=raw, parent=parent: named(raw, parent)


# --- one analysis ------------------------------------------------------------------------------------------


def analysed(results: Path, docs: Path) -> str:
    """Return what is wrong after both commands; empty where nothing is."""
    for words in (["aggregate", str(results), "--docs", str(docs)], ["status", "--results", str(results)]):
        with ordinary():
            done = CliRunner().invoke(cli.group, words, standalone_mode=False)
        error = done.exception
        if error is not None and type(error).__module__ != "aorta.errors":
            return f"{words[0]}: {''.join(traceback.format_exception(error))[-600:]}"
        if words[0] == "aggregate" and error is not None:
            return f"aggregate: {error}"
        if "Traceback" in done.output or "bug in aorta" in done.output or "\x1b]" in done.output:
            return f"{words[0]} printed: {done.output[-600:]}"
    made = json.loads((docs / "BOTTLENECK_ANALYSIS.json").read_text())
    seen = {item["scenario"]: item["data_quality"]["ranks_seen"] for item in made["scenarios"]}
    for name, spec in HEALTHY.items():
        if seen.get(name) != spec.nodes * spec.ranks_per_node:
            return f"the report of {name} is not whole: {seen}"
    if any(folder.name == "owned" for folder in results.parent.rglob("owned")):
        return "a name was run"
    return ""


def alone(results: Path, docs: Path) -> tuple[str, float, float]:
    """Return what is wrong, the CPU seconds and the peak memory (MiB) of a process that analyses."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
            signal.alarm(_HANGS_S)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                wrong = analysed(results, docs)
            os.write(writer, wrong.encode("utf-8", "backslashreplace")[:4000])
            os._exit(0)
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace")[:4000])
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        wrong = told.read().decode()
    _, status, used = os.wait4(child, 0)
    if os.waitstatus_to_exitcode(status) and not wrong:
        wrong = f"ended with {os.waitstatus_to_exitcode(status)}"
    return wrong, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def cleared(folder: Path) -> None:
    """Remove what a case left, whatever its modes."""
    if not folder.is_symlink() and folder.is_dir():
        folder.chmod(0o700)
        for entry in folder.iterdir():
            cleared(entry)
        folder.rmdir()
    else:
        folder.unlink(missing_ok=True)


def measured(only: str) -> list[Result]:
    """Return the results of all entries whose names hold `only`."""
    found = []
    with tempfile.TemporaryDirectory(prefix="hostile-") as scratch:
        results, spare = Path(scratch) / "results", Path(scratch) / "spare" / "run_9"
        for number, spec in enumerate(HEALTHY.values()):
            write_run(results, RunSpec(**{**asdict_of(spec), "job_id": str(101 + number)}))
        write_run(Path(scratch) / "made", RunSpec(steps=24, nodes=3, ranks_per_node=1))
        shutil.copytree(next((Path(scratch) / "made").glob("*/run_*")), spare)
        # Here, so that all that it imports is in the processes that are forked.
        assert analysed(results, Path(scratch) / "docs") == "", analysed(results, Path(scratch) / "docs")
        healthy = {*results.glob("*/*"), *results.iterdir()}
        for name, put in cases(results, spare):
            if only not in name:
                continue
            put()
            wrong, seconds, peak = alone(results, Path(scratch) / "docs")
            if seconds > LIMIT_S or peak > LIMIT_MIB:
                wrong = wrong or f"took {seconds:.1f} s and {peak:.0f} MiB"
            found.append(Result(name, round(seconds, 2), round(peak, 1), wrong))
            if wrong:
                print(f"WRONG {name}: {wrong}", flush=True)
            for path in [*results.glob("*/*"), *results.iterdir()]:
                if path not in healthy:
                    cleared(path)
            shutil.rmtree(Path(scratch) / "docs", ignore_errors=True)
    return found


def asdict_of(spec: RunSpec) -> dict[str, object]:
    """Return the fields of a specification."""
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def main() -> int:
    """Measure, print a summary, and return 1 where an entry cost somebody else a report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="entries whose names hold this")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    results = measured(given.only)
    wrong = [result for result in results if result.wrong]
    slowest = max(results, key=lambda result: result.seconds)
    largest = max(results, key=lambda result: result.peak_mib)
    print(f"{len(results)} hostile entries, {len(wrong)} wrong")
    print(f"slowest: {slowest.seconds:.1f} s of CPU time ({slowest.name})")
    print(f"largest: {largest.peak_mib:.0f} MiB ({largest.name}), of which the imports are a good part")
    if given.json:
        given.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

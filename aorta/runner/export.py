"""Makes two things of a node's profiler reports after training: SQLite exports, scrubbed, and
`summary_stats.csv`.

A process of its own (`aorta export-traces`), so that the agent can end it when time is up. What it could
not do is a line that begins with `LOST`; everything else it prints is progress.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from aorta.artefacts.io import give_usual_permissions, read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import Manifest, NodeInfo
from aorta.config.load import load_config
from aorta.errors import ArtefactError
from aorta.launch import nsys
from aorta.runner import summary_stats
from aorta.runner.captures import of_rank
from aorta.runner.scrub import scrub, still_in
from aorta.units import BYTES_PER_MIB

LOST = "lost: "
_LONGEST = 200
"""Characters of a program's complaint that are repeated."""


def say(text: str) -> None:
    """One line of progress."""
    print(text, flush=True)


def export_node(run: RunDir, index: int) -> None:
    """Export, scrub and sum up what the ranks of node `index` left.

    Raises:
        ArtefactError: `run` is no run, or has no such node.
        OSError: results cannot be written.
    """
    manifest = read_json(run.manifest, Manifest)
    nodes = {node.node_index: node for node in manifest.nodes}
    if index not in nodes:
        raise ArtefactError(f"{run.manifest}: it contains no node {index}", "nodes are counted from 0")
    own = nodes[index]
    keep = load_config(run.config).capture.keep_environment
    first = sum(node.processes for number, node in nodes.items() if number < index)
    ranks = range(first, first + own.processes)
    rows: list[list[str]] = []
    for rank in ranks:
        stats = summary_stats.Stats(rank)
        if own.profiler.resolved == "nsys":
            _nsys(run, rank, own, stats, keep)
        elif own.profiler.resolved == "rocprofv3":
            _rocprof(run.rocprof, rank, stats, keep)
        rows += stats.rows()
    if own.profiler.resolved != "none" and not rows and run.node(index).summary_stats.exists():
        say(f"{LOST}no report of this node is left, so its summary stays as it was")
    elif own.profiler.resolved != "none":
        summary_stats.write(run.node(index).summary_stats, rows)
        summary_stats.merge(run, own.profiler.resolved)
        say(f"{run.summary_stats(own.profiler.resolved)}: {len(rows)} rows of this node")


# --- Nsight Systems ----------------------------------------------------------------------------------------


def _nsys(run: RunDir, rank: int, own: NodeInfo, stats: summary_stats.Stats, keep: bool) -> None:
    program = own.profiler.program or "nsys"
    found = of_rank(run.nsys_reports, rank)
    reports = [path for path in found.complete if path.suffix == ".nsys-rep"]
    made = {path.stem for path in reports}
    for stream in found.streams:
        if stream.stem not in made and (report := _converted(stream, program)) is not None:
            reports.append(report)
    for report in reports:
        _link(report, run.nsys)
        export = run.nsys / f"{report.stem}.sqlite"
        if not _exported(report, export, program, keep):
            continue
        try:
            summary_stats.add_nsys(export, stats)
        except sqlite3.Error as error:
            say(f"{LOST}summary of rank {rank}: {export.name}: {error}")
        say(f"rank {rank}: {export.name}, {export.stat().st_size / BYTES_PER_MIB:.1f} MiB")


def _link(report: Path, folder: Path) -> None:
    """Show the report where people look for it; the link leads only its owner into the private folder. A copy
    that follows links holds the report.
    """
    with contextlib.suppress(OSError):  # there already, or a file system without links
        (folder / report.name).symlink_to(report.relative_to(folder))


def _converted(stream: Path, program: str) -> Path | None:
    """The report of a `.qdstrm`, which this nsys cannot make itself."""
    converter = nsys.importer(program, shutil.which)
    if converter is None:
        say(
            f"{LOST}{stream.name} is raw data: no QdstrmImporter beside {program} or in PATH; on a machine "
            f"with Nsight Systems run QdstrmImporter --input-file {stream.name}"
        )
        return None
    report = stream.with_suffix(".nsys-rep")
    code, words = _call([converter, "--input-file", str(stream), "--output-file", str(report)])
    if code != 0 or not report.is_file():
        hint = " (it needs the libraries libdw1 and libelf1)" if "cannot open shared object" in words else ""
        say(f"{LOST}{stream.name} could not be converted to a report: {words}{hint}")
        return None
    stream.unlink()
    say(f"{report.name}: made of {stream.name}")
    return report


def _exported(report: Path, export: Path, program: str, keep: bool) -> bool:
    """Export `report` to `export`; True if that worked. The file appears only once it is scrubbed."""
    part = report.with_name(f".{report.stem}.part.sqlite")
    try:
        code, words = _call(
            [
                program,
                "export",
                "--type",
                "sqlite",
                "--force-overwrite",
                "true",
                "--output",
                str(part),
                str(report),
            ]
        )
        if code != 0 or not part.is_file() or part.stat().st_size == 0:
            say(f"{LOST}export of {report.name}: {words}")
            return False
        if not keep:
            scrub(part)
            held = still_in(part, os.environ)
            if held:
                say(f"{LOST}export of {report.name}: it contains the value of {', '.join(held)}")
                return False
        give_usual_permissions(part)
        part.replace(export)
    except (OSError, sqlite3.Error) as error:
        say(f"{LOST}export of {report.name}: {error}")
        return False
    finally:
        part.unlink(missing_ok=True)
    return True


def _call(argv: Sequence[str]) -> tuple[int, str]:
    """Exit code and last words of a program; what it writes is for its user alone."""
    try:
        done = subprocess.run(
            list(argv), capture_output=True, text=True, errors="replace", check=False,
            stdin=subprocess.DEVNULL, umask=0o077,
        )  # fmt: skip
    except OSError as error:
        return 127, f"{argv[0]}: {error.strerror}"
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
    return done.returncode, (errors or lines or ["it said nothing"])[-1][:_LONGEST]


# --- rocprofv3 ---------------------------------------------------------------------------------------------


def _keep_private(path: Path) -> None:
    """Scrub a file of rocprofv3; if something of the process is or may be left in it, only its owner may read
    it.
    """
    known = scrub(path)
    held = still_in(path, os.environ)
    if known and not held:
        return
    path.chmod(0o600)
    what = f"contains the value of {', '.join(held)}" if held else "may contain command lines"
    say(f"{path.name}: readable only by its owner, because it {what}")


def _rocprof(folder: Path, rank: int, stats: summary_stats.Stats, keep: bool) -> None:
    for path in of_rank(folder, rank).complete:
        try:
            if not keep:
                _keep_private(path)
            kind = summary_stats.rocprof_kind(path)
            if kind is not None:
                bad = summary_stats.add_rocprof_csv(path, kind, stats)
                if bad:
                    say(
                        f"{LOST}{bad} lines of {path.name} in the summary, because they are not rows of a "
                        f"trace"
                    )
            elif path.suffix == ".db":
                summary_stats.add_rocpd(path, stats)
        except (OSError, sqlite3.Error, msgspec.DecodeError) as error:
            say(f"{LOST}{path.name}: {error}; it may contain environment variables, so do not share it")
    say(f"rank {rank}: rocprofv3's files read")

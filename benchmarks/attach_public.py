"""`aorta attach` on trainers of others, as an ordinary user: rank and line, alarms, harm, and what it costs.

    useradd tester
    python benchmarks/attach_public.py --user tester --python /usr/bin/python3 \
        --packages /tmp/trainers/lib/python3.11/site-packages --output /tmp/attach-public

Each trainer of benchmarks/public_trainers runs on two ranks of gloo with a slow loader, slow host work or a
slow rank, and clean. aorta looks at it from outside for 8 s. A run in `runs.jsonl` is not repeated.
Then one trainer is attached to again and again (`--times`). One rank is alternately left alone and looked
at (`--pairs`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
TRAINERS = ROOT / "benchmarks" / "public_trainers" / "trainers"
PROGRAMS = {
    "nanogpt": ("nanogpt.py",),
    "ddp_tutorial": ("ddp_tutorial.py",),
    "hf_trainer": ("hf_trainer.py",),
    "accelerate": ("accelerate_loop.py",),
    "lightning": ("lightning_fit.py",),
    "deepspeed_zero1": ("deepspeed_zero.py", "1"),
    "deepspeed_zero3": ("deepspeed_zero.py", "3"),
    "fsdp2": ("fsdp2.py",),
    "gan": ("gan.py",),
    "ddp_batchnorm": ("ddp_batchnorm.py",),
}
FAULTS = {"loader": "fetch", "host": "preprocess", "rank": None, "clean": None}
"""The function of each fault; None: it has no line, since the slow work lies in the backward pass, too."""
OTHER_PLACES = {("nanogpt", "loader"): "get_batch"}
PATIENCE_S = 240
WARM_STEPS = 30
SECONDS = 8.0
LOOK_S = 4.0
"""Length of the looks of which the cost is measured."""


class NotTrainedError(Exception):
    """A trainer did not start."""


@dataclass(frozen=True)
class Site:
    """Who runs what."""

    python: str
    packages: str
    user: str | None
    output: Path

    def run_as(self) -> dict[str, Any]:
        """The user of a child, for subprocess; nothing for one's own."""
        if self.user is None:
            return {}
        entry = pwd.getpwnam(self.user)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def environment(self, packages: str) -> dict[str, str]:
        """A small environment with these packages."""
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        return {
            "PATH": path,
            "HOME": str(self.output),
            "PYTHONPATH": packages,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def attach(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """`aorta attach` with these words, as the user."""
        own = next(folder for folder in sys.path if folder.endswith("site-packages"))
        base = (Path(own) / "base.pth").read_text().split() if (Path(own) / "base.pth").is_file() else [own]
        env = self.environment(":".join([str(ROOT), *base]))
        command = [self.python, "-m", "aorta", "attach", *words]
        return subprocess.run(
            command,
            env=env,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **self.run_as(),
        )


@contextlib.contextmanager
def training(site: Site, trainer: str, fault: str, ranks: int = 2) -> Iterator[tuple[int, Path]]:
    """A trainer that has trained some steps: the launcher's process id and the file that counts its steps."""
    folder = site.output / f"{trainer}-{fault}"
    folder.mkdir(parents=True, exist_ok=True)
    counted = folder / "steps"
    counted.unlink(missing_ok=True)
    if site.user is not None:
        os.chown(folder, pwd.getpwnam(site.user).pw_uid, -1)
    env = site.environment(site.packages) | {"FAULT": fault, "STEPS": "20000", "STEPS_SEEN": str(counted)}
    command = [site.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(TRAINERS / PROGRAMS[trainer][0]), *PROGRAMS[trainer][1:]]
    with (folder / "output.log").open("wb") as log:
        child = subprocess.Popen(
            command, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True, **site.run_as()
        )
        try:
            limit = time.monotonic() + PATIENCE_S
            while steps(counted) < WARM_STEPS:
                if child.poll() is not None or time.monotonic() > limit:
                    raise NotTrainedError(f"does not train: {folder}/output.log")
                time.sleep(0.5)
            yield child.pid, counted
        finally:
            # A trainer may ignore SIGTERM, and its ranks are no members of the launcher's group.
            for process in [*psutil.Process(child.pid).children(recursive=True), child]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            child.wait()


def steps(counted: Path) -> int:
    """Steps that a trainer has counted so far."""
    lines = counted.read_text().splitlines() if counted.is_file() else []
    return int(lines[-1].split()[1]) if lines else 0


def look(site: Site, trainer: str, fault: str, turn: int) -> dict[str, Any]:
    """Attach to one run, and keep the answer."""
    with training(site, trainer, fault) as (pid, counted):
        before, began = steps(counted), time.monotonic()
        done = site.attach("--pid", str(pid), "--seconds", f"{SECONDS:g}", "--json")
        took = time.monotonic() - began
        time.sleep(2.0)
        moved = steps(counted) > before
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {"kind": None, "ranks": [], "statement": done.stderr[-500:]}
    return {
        "trainer": trainer,
        "fault": fault,
        "turn": turn,
        "seconds": took,
        "kind": found["kind"],
        "ranks": found["ranks"],
        "where": found.get("where"),
        "lost": found.get("lost_ms_per_second"),
        "statement": found["statement"],
        "still_trains": moved,
    }


def right(row: dict[str, Any]) -> tuple[bool, bool | None]:
    """Rank and kind are right; the line is right, None where the fault has none."""
    if row["fault"] == "clean":
        return row["kind"] == "no_cause_seen", None
    loads = row["fault"] == "loader" and (row["trainer"], "loader") not in OTHER_PLACES
    kinds = ("data_loading",) if loads else ("straggler",)
    rank = row["ranks"] == [1] and row["kind"] in kinds
    place = OTHER_PLACES.get((row["trainer"], row["fault"]), FAULTS[row["fault"]])
    line = None if place is None else (row["where"] or {}).get("function", "").endswith(place)
    return rank, line


def again_and_again(site: Site, times: int) -> dict[str, Any]:
    """Attach many times to one job: does it still train, and what is left behind?"""
    with training(site, "ddp_tutorial", "clean") as (pid, counted):
        failed, before = 0, steps(counted)
        for _ in range(times):
            failed += site.attach("--pid", str(pid), "--seconds", "1", "--json").returncode not in (0, 4)
        time.sleep(2.0)
        alive = Path(f"/proc/{pid}").exists()
        after = steps(counted)
    left = [path for path in Path("/tmp").glob("aorta-attach-*") if path.stat().st_mtime > time.time() - 3600]
    return {"times": times, "failed": failed, "alive": alive, "steps": after - before, "left": len(left)}


def slowdown(site: Site, turns: int) -> dict[str, Any]:
    """Measures the cost of a look to one rank, by steps per second and CPU time per step, in turns.

    A busy machine changes the steps per second. It changes the CPU time that a step takes much less.
    """
    speeds, costs, looks = [], [], []
    with training(site, "ddp_tutorial", "clean", ranks=1) as (pid, counted):
        rank = psutil.Process(pid).children()[0]
        for turn in range(turns):
            rates, cpus = {}, {}
            for attached in (turn % 2 == 0, turn % 2 == 1):
                began, before = time.time(), (rank.cpu_times().user, steps(counted))
                if attached:
                    own = _cpu_of_children()
                    site.attach("--pid", str(pid), "--seconds", f"{LOOK_S:g}", "--json")
                    looks.append(_cpu_of_children() - own)
                else:
                    time.sleep(LOOK_S + 1.0)
                rates[attached] = rate(counted, began, time.time())
                made = max(steps(counted) - before[1], 1)
                cpus[attached] = (rank.cpu_times().user - before[0]) / made
            if all(rates.values()):
                speeds.append(rates[True] / rates[False])
                costs.append(cpus[True] / cpus[False])
    return {
        "speed_ratio": interval(speeds),
        "cpu_per_step_ratio": interval(costs),
        "cpu_s_of_a_look": statistics.median(looks),
        "pairs": len(speeds),
    }


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median, and the bounds of its 95 % interval by resampling."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[1949]


def rate(counted: Path, start: float, end: float) -> float:
    """Steps per second between two times."""
    rows = [line.split() for line in counted.read_text().splitlines()]
    inside = [(float(when), int(count)) for when, count in rows if start <= float(when) <= end]
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) if len(inside) > 1 else 0.0


def refusals(site: Site) -> dict[str, str]:
    """The messages where reading is refused, and where the process is another user's."""
    code = "import ctypes, time, torch; ctypes.CDLL(None).prctl(4, 0); print(1, flush=True); time.sleep(60)"
    env = site.environment(site.packages)
    child = subprocess.Popen(
        [site.python, "-c", code], env=env, cwd="/", stdout=subprocess.PIPE, **site.run_as()
    )
    assert child.stdout is not None
    child.stdout.readline()
    refused = site.attach("--pid", str(child.pid), "--seconds", "1")
    child.kill()
    child.wait()
    other = site.attach("--pid", str(os.getpid()), "--seconds", "1")
    return {
        "ptrace": (refused.stdout + refused.stderr).strip(),
        "other_user": (other.stdout + other.stderr).strip(),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """The table, and what it comes to."""
    print("| trainer | fault | found | where | ms per s | took s |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        good, line = right(row)
        where = row["where"] or {}
        place = f"{where.get('function')}, {Path(where['file']).name}:{where['line']}" if where else ""
        mark = "" if good else " **wrong**"
        mark += "" if line in (True, None) else " **other line**"
        lost = "" if row["lost"] is None else f"{row['lost']:.0f}"
        names = f"| {row['trainer']} | {row['fault']} | {row['kind']} {row['ranks']}{mark}"
        print(f"{names} | {place} | {lost} | {row['seconds']:.1f} |")
    faulty = [right(row) for row in rows if row["fault"] != "clean"]
    lines = [line for _, line in faulty if line is not None]
    alarms = [not right(row)[0] for row in rows if row["fault"] == "clean"]
    ranks = sum(good for good, _ in faulty)
    print(f"\nrank and kind: {ranks} of {len(faulty)}; line: {sum(lines)} of {len(lines)}")
    print(f"clean: {sum(alarms)} alarms in {len(alarms)}")
    print(f"jobs that went on: {sum(row['still_trains'] for row in rows)} of {len(rows)}")
    if rows:
        print(f"longest answer: {max(row['seconds'] for row in rows):.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter that the user may run")
    parser.add_argument("--packages", required=True, help="site-packages of the trainers")
    parser.add_argument("--user", help="ordinary user; only root can say this")
    parser.add_argument("--output", type=Path, default=Path("/tmp/attach-public"))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--times", type=int, default=200, help="attaches to one job; 0: none")
    parser.add_argument("--pairs", type=int, default=40, help="turns of the slowdown")
    parser.add_argument("--no-runs", action="store_true", help="slowdown and attaches alone")
    parser.add_argument("--only", help="names of trainers, with commas")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no trainer stays behind
    site = Site(options.python, options.packages, options.user, options.output.absolute())
    site.output.mkdir(parents=True, exist_ok=True)
    site.output.chmod(0o777)
    kept = site.output / "runs.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    done = {(row["trainer"], row["fault"], row["turn"]) for row in rows}
    for turn in range(0 if options.no_runs else options.turns):
        for trainer in options.only.split(",") if options.only else PROGRAMS:
            for fault in FAULTS:
                if (trainer, fault, turn) in done:
                    continue
                try:
                    row = look(site, trainer, fault, turn)
                except NotTrainedError as error:
                    print(f"{trainer} {fault} {turn}: {error}", flush=True)
                    continue
                rows.append(row)
                with kept.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
                print(f"{trainer} {fault} {turn}: {right(row)} {row['statement']}", flush=True)
    show(rows)
    print(json.dumps(refusals(site), indent=1), flush=True)
    if options.times:
        print(json.dumps(slowdown(site, options.pairs)), flush=True)
        print(json.dumps(again_and_again(site, options.times)), flush=True)


if __name__ == "__main__":
    main()

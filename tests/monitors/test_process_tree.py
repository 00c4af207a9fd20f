"""CPU time of a process tree: real processes, and a procfs of files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from aorta.monitors.cpu import CpuSampler
from aorta.monitors.process_tree import ProcessTree
from aorta.units import NS_PER_S

TICK = NS_PER_S // os.sysconf("SC_CLK_TCK")
BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"


def process(proc: Path, pid: int, parent: int, own: int, ended: int = 0) -> None:
    (proc / str(pid)).mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 9, str(own), "1", str(ended), "2", *["0"] * 6]
    (proc / str(pid) / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")


def test_a_tree_counts_each_process_once_and_no_other(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, own=5, ended=7)  # 5 + 1 own, 7 + 2 of children that ended
    process(tmp_path, 11, 10, own=20)
    process(tmp_path, 12, 11, own=30)
    process(tmp_path, 13, 1, own=1_000)  # somebody else's
    (tmp_path / "self").mkdir()
    assert ProcessTree(10, tmp_path).cpu_ns() == ((5 + 1 + 7 + 2) + (20 + 1 + 2) + (30 + 1 + 2)) * TICK
    assert ProcessTree(14, tmp_path).cpu_ns() is None


def test_children_that_run_and_that_have_ended_count() -> None:
    tree = ProcessTree(os.getpid())
    before = tree.cpu_ns()
    assert before is not None
    subprocess.run([sys.executable, "-c", BURN], check=True)
    ended = tree.cpu_ns()
    assert ended is not None
    assert ended - before >= 0.25 * NS_PER_S
    with subprocess.Popen([sys.executable, "-c", BURN + "input()"], stdin=subprocess.PIPE) as running:
        limit = time.monotonic() + 30
        while (tree.cpu_ns() or 0) - ended < 0.25 * NS_PER_S and time.monotonic() < limit:
            time.sleep(0.02)
        assert (tree.cpu_ns() or 0) - ended >= 0.25 * NS_PER_S
        running.kill()


def test_a_sampler_without_a_cgroup_takes_the_tree(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    process(proc, 10, 1, own=0)
    sampler = CpuSampler(proc, tmp_path / "sys", root=10)
    assert sampler.sample(10**9)["job_cpu_percent"] is None
    used = 50
    (proc / "10" / "stat").write_text(f"10 (a) S 1 {'0 ' * 9}{used} 1 0 2 {'0 ' * 6}\n")
    took = used * TICK / NS_PER_S
    assert sampler.sample(2 * 10**9)["job_cpu_percent"] == round(100 * took / 1.0, 2)
    # Whose processes these are is not known without a root.
    alone = CpuSampler(proc, tmp_path / "sys")
    alone.sample(10**9)
    assert alone.sample(2 * 10**9)["job_cpu_percent"] is None

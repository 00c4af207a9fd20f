"""Which heavy modules each command imports: a command pays for what it uses, and help pays for nothing."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from aorta.artefacts.columns import CPU_COLUMNS
from aorta.cli import COMMANDS

HEAVY = (
    "h5py",
    "jinja2",
    "matplotlib",
    "numpy",
    "numpy.ma",
    "omegaconf",
    "pandas",
    "PIL",
    "psutil",
    "pynvml",
    "rich",
    "submitit",
    "torch",
    "yaml",
)

TABLE = {
    "status": {"rich"},
    "wait": {"rich"},
    "cancel": {"rich"},
    "submit --dry-run": {"jinja2", "omegaconf", "yaml"},
    "analyze trace.json": {"numpy"},
    "analyze trace.json.gz": {"numpy"},
    "analyze trace.json --json -": {"numpy"},
    "analyze ranks": {"numpy"},
    "analyze ranks smi.csv cpu_monitor.csv": {"numpy"},
    "timeline none --output out": {"numpy"},
    "cluster env": set(),
}
"""What each command line may import of `HEAVY`.

It is run in a folder with a Kineto trace of one rank, a folder with those of two, and samples.
"""
RARE = (
    "aorta.artefacts.flight",
    "aorta.artefacts.instrument_record",
    "aorta.artefacts.layout",
    "aorta.artefacts.samples",
    "aorta.artefacts.step_record",
    "aorta.metrics.mesh",
    "aorta.readers.nsys",
    "aorta.readers.operations",
    "aorta.readers.rocprof",
    "aorta.readers.smi_text",
    "concurrent.futures",
    "html.entities",
    "markupsafe",
    "multiprocessing",
    "random",
    "shutil",
    "statistics",
)
"""Modules for what a capture of Kineto traces does not hold; each takes a millisecond or more."""

PROGRAM = """
import sys
from aorta.cli import main
try:
    main()
finally:
    print(*(name for name in sys.argv.pop(0).split(",") if name in sys.modules), file=sys.stderr)
"""
SMI = """timestamp, index, uuid, utilization.gpu [%]
2026/11/27 22:22:37.975, 0, GPU-b, 50 %
"""
TRACE = {
    "distributedInfo": {"rank": 0, "world_size": 1},
    "traceEvents": [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step}",
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": 90,
        }
        for step, ts in enumerate((0, 100, 200))
    ]
    + [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "pid": 0,
            "tid": 7,
            "ts": ts + 10,
            "dur": 50,
            "args": {"device": 0, "stream": 7, "correlation": ts + 1},
        }
        for ts in (0, 100, 200)
    ],
}


def imported(folder: Path, *arguments: str, modules: Sequence[str] = HEAVY) -> set[str]:
    """The modules among some that a fresh process has imported when the command has ended."""
    program = PROGRAM.replace("sys.argv.pop(0)", repr(",".join(modules)))
    # A cluster of this machine would be asked more.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = json.dumps(TRACE)
    (tmp_path / "trace.json").write_text(text)
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "smi.csv").write_text(SMI)
    (tmp_path / "cpu_monitor.csv").write_text(
        ",".join(CPU_COLUMNS) + "\n" + ",".join("1" * len(CPU_COLUMNS)) + "\n"
    )
    (tmp_path / "ranks").mkdir()
    for rank in range(2):
        made = {**TRACE, "distributedInfo": {"rank": rank, "world_size": 2}}
        (tmp_path / "ranks" / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(made).encode()))
    return tmp_path


@pytest.mark.parametrize("line", TABLE)
def test_a_command_imports_what_the_table_says_and_nothing_else(folder: Path, line: str) -> None:
    assert imported(folder, *line.split()) == TABLE[line]


def test_an_analysis_of_kineto_traces_imports_nothing_rare(folder: Path) -> None:
    files = [f"ranks/rank{rank}.json.gz" for rank in range(2)]
    assert imported(folder, "analyze", *files, modules=(*RARE, "numpy")) == {"numpy"}


def test_completion_imports_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_AORTA_COMPLETE", "bash_complete")
    for line in ("aorta ana", "aorta submit --override training.max", "aorta sweep --over training.max"):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
        assert imported(tmp_path) == set()


def test_help_of_no_command_imports_anything_heavy(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from aorta.cli import COMMANDS, group\n"
        "heavy = set(sys.argv[1].split(','))\n"
        "for name in ('', *COMMANDS):\n"
        "    result = CliRunner().invoke(group, [*name.split(), '--help'])\n"
        "    assert result.exit_code == 0, result.output\n"
        "    found = sorted(heavy & set(sys.modules))\n"
        "    if found: print(name or 'aorta', *found); heavy -= set(found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, ",".join(HEAVY)], capture_output=True, text=True, check=True
    )
    assert len(COMMANDS) > 10
    assert done.stdout == ""

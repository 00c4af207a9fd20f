"""For a centre's staff: one line per job, metrics, hours lost per cause, and a quota."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from aorta.artefacts.resources import ResourceTable, ResourceUse
from aorta.commands._accounted import (
    LONGEST_LINE,
    AccountedRun,
    accounted_runs,
    lost_hours,
    one_line,
    prometheus_text,
)
from tests.commands.test_clean import made
from tests.support.commands import run

SCRIPT = Path(__file__).parents[2] / "scripts/slurm_epilog.sh"


def accounted(**changes: object) -> AccountedRun:
    values: dict[str, object] = {
        "scenario": "2node", "job_id": "7", "state": "completed", "ended_wall_ns": 1, "ranks": 8, "gpus": 8,
        "hours": 2.0, "verdict": "communication", "lost_pct": 25.0, "step_ms": 100.0, "resources": None,
    }  # fmt: skip
    return AccountedRun(**{**values, **changes})  # type: ignore[arg-type]


def test_hours_lost_per_cause() -> None:
    found = [
        accounted(),
        accounted(hours=1.0, lost_pct=50.0),
        accounted(lost_pct=None),
        accounted(verdict="healthy", lost_pct=0.0, gpus=0, ranks=2),
        accounted(verdict=None, lost_pct=None, hours=0.5),
    ]
    rows = {row.cause: row for row in lost_hours(found)}
    some = rows["communication"]
    assert (some.runs, some.not_predicted) == (3, 1)
    assert some.gpu_hours == 8 * (2 + 1 + 2)
    assert some.lost_gpu_hours == 8 * (2 * 0.25 + 1 * 0.5)
    assert (rows["healthy"].lost_rank_hours, rows["healthy"].gpu_hours) == (0, None), (
        "0 was found, no GPU was there"
    )
    assert rows["not analysed"].lost_rank_hours is None
    assert next(iter(rows)) == "communication"


def test_one_line_is_short_and_plain() -> None:
    use = ResourceUse(what="time", requested=100, used=10, unit="s", used_pct=10.0, source="accounting")
    table = ResourceTable(rows=[use], sbatch=["--time=00:05:00"])
    assert one_line(accounted(resources=table)) == (
        "aorta 2node: communication costs 25%; step 100 ms; used time 10%; enough --time=00:05:00; "
        "16 GPU-hours"
    )
    wild = one_line(accounted(scenario='é"\n;' + "x" * 500))
    assert len(wild) == LONGEST_LINE
    assert wild.isascii()
    assert wild.isprintable()
    assert '"' not in wild
    assert (
        one_line(accounted(verdict=None, lost_pct=None, step_ms=None, hours=None))
        == "aorta 2node: not analysed"
    )


def test_metrics_are_read_by_prometheus() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    wild = 'a "cause"\\ of\nmine'
    text = prometheus_text([accounted(), accounted(verdict=wild, gpus=0, lost_pct=None)], 12.5)
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    found = {(s.name, tuple(s.labels.values())): s.value for f in families.values() for s in f.samples}
    assert found["aorta_runs", ("completed",)] == 2
    assert found["aorta_gpu_hours", ("communication",)] == 16
    assert found["aorta_lost_gpu_hours", ("communication",)] == 4
    assert found["aorta_rank_hours", (wild,)] == 16
    assert ("aorta_gpu_hours", (wild,)) not in found, "what is not known has no line"
    assert found["aorta_step_seconds", ("2node",)] == 0.1
    assert {family.type for family in families.values()} == {"gauge"}


def test_the_file_is_for_the_textfile_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("staff", "metrics", "out.txt").exit_code != 0
    made(tmp_path, "7", days=0)
    told = run("staff", "metrics", "out.prom", "--since", "999999w")
    assert told.exit_code == 0, told.output
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.prom"]
    assert "aorta_written_timestamp_seconds" in (tmp_path / "out.prom").read_text()


def test_runs_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path, "7", days=0)
    before = json.loads(run("runs", "--lost", "--json").output)["causes"]
    assert [row["cause"] for row in before] == ["not analysed"]
    assert before[0]["lost_rank_hours"] is None
    assert json.loads(run("runs", "--lost", "--since", "1h", "--json").output)["causes"] == [], (
        "it is of 2025"
    )
    assert run("runs", "--since", "1h").exit_code != 0
    assert "not analysed" in run("runs", "--lost").output


def test_the_line_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path, "7", days=0)
    assert run("staff", "line", "8").exit_code != 0
    assert run("staff", "line", "7").output.startswith("aorta 1node: not analysed")
    told = run("staff", "line", "7", "--analyze").output
    assert told.startswith("aorta 1node: ")
    assert "not analysed" not in told


def _with(path: Path, **changes: int) -> None:
    value = json.loads(path.read_text())
    (value["nodes"][0] if path.name == "status.json" else value).update(changes)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("status.json", {"ended_wall_ns": -5}),
        ("status.json", {"ended_wall_ns": 2**63}),
        ("manifest.json", {"world_size": -4}),
        ("manifest.json", {"world_size": 10**18}),
    ],
)
def test_numbers_that_cannot_be_are_not_counted(tmp_path: Path, name: str, changes: dict[str, int]) -> None:
    true, wrong = made(tmp_path, "7", days=0), made(tmp_path, "8", days=0)
    results = true.root.parent.parent
    before = lost_hours(accounted_runs(results))
    assert sum(row.runs for row in before) == 2
    _with(wrong.root / name, **changes)
    (row,) = lost_hours(accounted_runs(results))
    assert row.runs == 1
    assert row.rank_hours == pytest.approx(before[0].rank_hours / 2)


def test_the_epilog_reads_little_of_a_line_without_end(tmp_path: Path) -> None:
    for name, text in {
        "scontrol": 'echo "JobId=7 StdOut=/r/profile_1node_7.out"',
        "aorta": "cat /dev/zero | tr '\\0' x",
        "sacctmgr": 'printf \'%s\' "${!#}" > "$ASKED"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_USER": user,
               "AORTA": str(tmp_path / "aorta"), "ASKED": str(tmp_path / "asked")}  # fmt: skip
    subprocess.run([SCRIPT], check=True, env=environ, timeout=60)
    assert (tmp_path / "asked").read_text() == "AdminComment=" + "x" * LONGEST_LINE


def test_the_epilog_says_in_the_system_log_why_it_writes_nothing(tmp_path: Path) -> None:
    script = tmp_path / "site/scripts/slurm_epilog.sh"
    script.parent.mkdir(parents=True)
    script.write_bytes(SCRIPT.read_bytes())
    (tmp_path / "site/bin").mkdir()
    programs = {
        "scontrol": 'echo "JobId=7 StdOut=/r/profile_1node_7.out"',
        "sacctmgr": 'echo "Access denied" >&2; exit "$DENIED"',
        "logger": 'printf \'%s\\n\' "$*" > "$ASKED"',
        "site/bin/aorta": "echo $TOLD",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    asked = tmp_path / "asked"

    def logged(**changes: str) -> str:
        asked.unlink(missing_ok=True)
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_USER": user,
                   "ASKED": str(asked), "DENIED": "0", "TOLD": "a line"}  # fmt: skip
        subprocess.run(["/bin/bash", script], check=True, env=environ | changes, timeout=60)
        return asked.read_text() if asked.exists() else ""

    assert logged() == "", "the aorta beside the script was found, and Slurm took the line"
    assert logged(DENIED="1") == "-t aorta-epilog -- job 7: sacctmgr: Access denied\n"
    assert f"try: {tmp_path}/site/bin/aorta staff line 7 --analyze --results /r" in logged(TOLD="")
    (tmp_path / "site/bin/aorta").unlink()
    assert logged().endswith("/site/.venv/bin/aorta is not there; set AORTA\n")


def test_the_epilog_changes_only_jobs_of_aorta(tmp_path: Path) -> None:
    programs = {
        "scontrol": 'echo "JobId=7 StdOut=$STDOUT WorkDir=/"',
        "aorta": "printf '%s\\n' 'aorta $(touch pwned) `id` \"x\" 5%; second' 'another line'",
        "sacctmgr": 'printf \'%s\\n\' "$@" > "$ASKED"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    asked = tmp_path / "asked"
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()

    def epilog(output: str) -> None:
        subprocess.run(
            [SCRIPT], check=True, cwd=tmp_path,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_USER": user,
                 "AORTA": str(tmp_path / "aorta"), "STDOUT": output, "ASKED": str(asked)},
        )  # fmt: skip

    epilog("/home/me/slurm-7.out")
    assert not asked.exists()
    epilog("/results/profile_1node_7.out")
    words = asked.read_text().splitlines()
    assert words[-4:] == ["where", "jobid=7", "set", "AdminComment=aorta (touch pwned) id x 5%; second"]
    assert not (tmp_path / "pwned").exists()


def test_a_quota_takes_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {job: made(tmp_path, job, days=days) for job, days in (("1", 30), ("2", 20), ("3", 0))}
    for found in folders.values():
        (found.root / "profiling_report.txt").write_bytes(b"x" * 1_000_000)
        at = (found.root / "manifest.json").stat().st_mtime
        os.utime(found.root / "profiling_report.txt", (at, at))
        os.utime(found.root, (at, at))
    size = sum(path.stat().st_size for path in Path("results/profiling").rglob("*") if path.is_file())
    assert run("clean", "--dry-run").exit_code != 0
    dry = run("clean", "--keep-below", str(size - 1), "--dry-run").output
    assert "run_1" in dry
    assert "run_2" not in dry
    assert "nothing" in run("clean", "--keep-below", str(size), "--dry-run").output
    told = run("clean", "--keep-below", "1", "--yes").output
    assert "stay, which is more than requested" in told
    assert {job: found.root.exists() for job, found in folders.items()} == {"1": False, "2": False, "3": True}
    assert run("clean", "--keep-below", "many").exit_code != 0

"""Real agents whose ranks run inside a stand-in for a profiler."""

from __future__ import annotations

import stat

import pytest

from aorta.artefacts.io import read_json
from aorta.artefacts.records import Manifest, NodeInfo
from tests.support import disk
from tests.support.nsys import SECRET, Export, plant

pytest.importorskip("torch", reason="the agent starts torchrun")


def fake_nsys(folder, outcome):
    """A stand-in for nsys: runs the program, then writes the report where asked, elsewhere, or says why not.

    Its exports are all of one made with planted secrets.
    """
    folder.mkdir()
    export = Export(ranges=[(0, 30, 7, "aorta.step", 59), (40, 50, 7, "aorta.step", 59)])
    plant(export.write(folder / "made.sqlite"))
    place = {"written": "$out", "strayed": f"{folder}/report1"}.get(outcome)
    report = (
        f'name="{place}"; name="${{name//%q\\{{RANK\\}}/$RANK}}"; name="${{name//%h/host}}$RANK.nsys-rep"\n'
        'echo x > "$name"; echo "Generated:"; echo "    $name"'
    )
    script = folder / "nsys"
    script.write_text(
        "#!/bin/bash\n"
        'if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version 2021.3.1"; exit 0; fi\n'
        'if [ "$1" = export ]; then\n'
        '    while [ "$1" != --output ]; do shift; done\n'
        f'    cp {folder}/made.sqlite "$2"; exit 0\n'
        "fi\n"
        'while [ "$1" != -o ]; do shift; done; out="$2"; shift 2\n'
        '"$@"; code=$?\n' + (report if place else 'echo "Import Failed: no space left"') + "\nexit $code\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(folder)


@pytest.mark.parametrize("outcome", ["written", "strayed", "failed"])
def test_each_rank_runs_inside_the_profiler_and_what_is_missing_is_said(job, outcome):
    job.environ["PATH"] = f"{fake_nsys(job.folder / 'bin', outcome)}:{job.environ['PATH']}"
    job.start(0, 1, behaviour="alone", options=["--profiler", "nsys", "--procs-per-node", "2"])
    assert job.wait() == [0], job.output(0)
    choice = read_json(job.run.manifest, Manifest).nodes[0].profiler
    assert (choice.resolved, choice.version) == ("nsys", "NVIDIA Nsight Systems version 2021.3.1")
    assert choice.notes == [
        "nsys 2021.3 is older than 2022.4, the oldest version known to work; it is used anyway"
    ]
    (node,) = job.status.nodes
    reports = list(job.run.nsys_reports.iterdir())
    if outcome == "failed":
        reason = "the profiler could not write it (is the disk full?): no space left"
        assert node.lost == [f"profiler's report of rank {rank}: {reason}" for rank in range(2)]
        assert reports == []
        return
    moved = f"was in {job.folder / 'bin'} and was moved to {job.run.nsys_reports.resolve()}"
    strayed = [f"the report of rank {rank} {moved}" for rank in range(2)]
    assert node.lost == (strayed if outcome == "strayed" else [])
    assert len(reports) == 2
    assert stat.S_IMODE(job.run.nsys_reports.stat().st_mode) == 0o700
    assert len(list(job.run.nsys.glob("toy_2node_profile_rank*.sqlite"))) == 2
    assert job.run.summary_stats("nsys").read_text().splitlines()[1:] == [
        f"{rank},nvtx,aorta.step,2,40,20.0,20.0,10,30," for rank in range(2)
    ]
    holding = [path for path in job.run.root.rglob("*") if path.is_file() and SECRET in path.read_bytes()]
    assert holding == []


@pytest.fixture
def temporary_folder(tmp_path):
    """A disk of 96 MiB."""
    with disk.small_disk(tmp_path / "temporary", "96m") as folder:
        yield folder


def test_a_temporary_folder_that_was_full_for_a_while_is_told(job, temporary_folder):
    bin_folder = fake_nsys(job.folder / "bin", "failed")
    program = job.folder / "bin" / "nsys"
    filled = 'head -c 60M /dev/zero > "$TMPDIR/data"; sleep 2.5; rm "$TMPDIR/data"; '
    program.write_text(program.read_text().replace('"$@"; code=$?', filled + '"$@"; code=$?'))
    job.environ |= {"PATH": f"{bin_folder}:{job.environ['PATH']}", "TMPDIR": str(temporary_folder)}
    job.start(0, 1, behaviour="alone", options=["--profiler", "nsys", "--procs-per-node", "1"])
    assert job.wait() == [0], job.output(0)
    assert f"only 0.09 GiB free in {temporary_folder}: set TMPDIR to another folder" in job.output(0)
    (node,) = job.status.nodes
    (full,) = [words for words in node.lost if words.startswith(f"{temporary_folder} was full (")]
    assert full.endswith("Set TMPDIR to a larger folder")


def fake_rocprofv3(folder):
    """A stand-in for rocprofv3 that knows only two options, and writes a kernel trace as 7.0 does."""
    folder.mkdir()
    script = folder / "rocprofv3"
    header = ",".join(f'"{name}"' for name in ("Kind", "Kernel_Name", "Start_Timestamp", "End_Timestamp"))
    script.write_text(
        "#!/bin/bash\n"
        'if [ "$1" = --version ]; then echo "version: 1.0.0"; exit 0; fi\n'
        'if [ "$1" = --help ]; then echo "[--kernel-trace] [--stats] [--output-format] -- app"; exit 0; fi\n'
        'while [ "$1" != -d ]; do shift; done; out="$2/${4//%env\\{RANK\\}%/$RANK}"; shift 4; shift\n'
        f'out="${{out//\\%hostname\\%/h}}"; out="${{out//\\%pid\\%/$$}}"; "$@"; code=$?\n'
        f"echo '{header}' > \"${{out}}_kernel_trace.csv\"\n"
        'echo \'"KERNEL_DISPATCH","f<"a", int>",100,130\' >> "${out}_kernel_trace.csv"\n'
        "exit $code\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(folder)


def test_rocprofv3_gets_the_users_options_and_its_files_are_summed_up(job):
    job.environ["PATH"] = f"{fake_rocprofv3(job.folder / 'bin')}:{job.environ['PATH']}"
    job.environ["ROCPROF_ARGS"] = "--kernel-trace --stats"
    job.start(0, 1, behaviour="alone", options=["--profiler", "rocprofv3", "--procs-per-node", "2"])
    assert job.wait() == [0], job.output(0)
    (node,) = job.status.nodes
    assert node.lost == []
    assert job.run.summary_stats("rocprofv3").read_text().splitlines()[1:] == [
        f'{rank},kernel,"f<""a"", int>",1,30,30.0,30.0,30,30,' for rank in range(2)
    ]
    clock = read_json(job.run.node(0).info, NodeInfo).clock
    assert min(clock.realtime_ns, clock.boottime_ns) > 0


def test_options_that_this_rocprofv3_does_not_know_end_the_run_before_it_starts(job):
    job.environ["PATH"] = f"{fake_rocprofv3(job.folder / 'bin')}:{job.environ['PATH']}"
    job.environ["ROCPROF_ARGS"] = "--kernel-trace --kernel-symbols"
    job.start(0, 1, options=["--profiler", "rocprofv3"])
    assert job.wait() == [2]
    assert "this rocprofv3 has no option --kernel-symbols" in job.output(0)
    assert not (job.folder / "pid0").exists()

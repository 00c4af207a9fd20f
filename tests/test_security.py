"""What must not happen, by name: text of others that runs, leaves its folder or becomes markup; files that
others may write; pickles; secrets written down. Tests of the parts are beside them; these go the whole way.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aorta.artefacts import io
from aorta.artefacts.layout import RunDir, Scenario
from aorta.commands.analyze import report
from aorta.config.load import load_config
from aorta.config.schema import CaptureConfig, Config, TrainingConfig
from aorta.errors import AortaError, ArtefactError, ConfigError, PlanError
from aorta.launch import checks
from aorta.launch.plan import parse_scenarios
from aorta.launch.sbatch import render
from aorta.report.markdown import md
from aorta.runner.environment import recorded, without_secrets
from tests.support import kineto
from tests.support.slurm import PLAN
from tests.support.synthetic import RunSpec, write_run

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "aorta"
HOSTILE = [
    "$(touch owned)",
    "`touch owned`",
    "; touch owned",
    "a\n#SBATCH --uid=0",
    "&& touch owned",
    "{{ 7 * 7 }}",
    "'",
]
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted-1", "HF_TOKEN": "hf_planted_2", "WANDB_API_KEY": "planted-3",
    "MY_PASSWORD": "planted-4", "NCCL_AUTH_TOKEN": "planted-5", "SLURM_JWT": "planted-6",
}  # fmt: skip


# --- text that would run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [text for text in HOSTILE if "\n" not in text])
def test_shell_metacharacters_in_arguments_reach_the_program_as_they_are(text: str, tmp_path: Path) -> None:
    (tmp_path / "srun").write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    script = render(replace(PLAN, project=str(tmp_path), command=("train.py", text)))
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\0")[-2] == text
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize("text", ["a\n#SBATCH --uid=0", "a\0b"])
def test_line_breaks_in_arguments_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(PlanError, match="line break"):
        checks.program(["train.py", text], tmp_path)


@pytest.mark.parametrize("name", ["account", "partition", "qos", "constraint"])
@pytest.mark.parametrize("text", ["a\n#SBATCH --uid=0", "$(id)", "`id`", 'a" --uid=0 "'])
def test_sbatch_lines_cannot_be_smuggled_into_a_value(name: str, text: str) -> None:
    with pytest.raises(PlanError, match=name):
        render(replace(PLAN, **{name: text}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line",
    ["--mem=1G\n#SBATCH --uid=0", "--wrap=id", "--output=/etc/x", "-o /etc/x", "--chdir=/", "touch owned"],
)
def test_extra_sbatch_lines_are_options_that_do_not_change_the_script(line: str) -> None:
    with pytest.raises(PlanError):
        checks.sbatch_lines([line])


@pytest.mark.parametrize("value", HOSTILE)
def test_configuration_values_never_reach_the_script(value: str, tmp_path: Path) -> None:
    """The script names the configuration's file; its values stay in there."""
    path = tmp_path / "c.yaml"
    io.write_text(path, "dataset:\n  path: " + repr(value).replace("\\n", " ") + "\n")
    with contextlib.suppress(ConfigError):  # no such key, or no such value: refused is as good
        load_config(path)
    assert value not in render(replace(PLAN, config=str(path)))


def test_jinja_in_a_value_is_shown_and_not_run() -> None:
    script = render(replace(PLAN, command=("train.py", "{{ 7 * 7 }}", "{% for x in y %}")))
    assert "{{ 7 * 7 }}" in script
    assert "49" not in script


@pytest.mark.parametrize(
    "text",
    [
        "training: !!python/object/apply:os.system ['touch owned']",
        "!!python/name:os.system",
        "training: !!python/object/new:type {}",
        "&a [*a]",
    ],
)
def test_yaml_tags_are_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError):
        load_config(tmp_path / "c.yaml")
    assert not (tmp_path / "owned").exists()


def test_a_configuration_cannot_read_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    (tmp_path / "c.yaml").write_text("training:\n  output_dir: ${oc.env:HF_TOKEN}\n")
    try:
        assert "hf_planted" not in repr(load_config(tmp_path / "c.yaml"))
    except ConfigError as error:
        assert "hf_planted" not in str(error)  # noqa: PT017  refused is as good


# --- paths that would leave their folder -------------------------------------------------------------------


@pytest.mark.parametrize("job_id", ["../1", "a/b", "..", ".", "", "1\n2", "/etc", "-rf", "1 2"])
def test_job_ids_cannot_leave_the_results_folder(job_id: str) -> None:
    with pytest.raises(ArtefactError):
        RunDir.of(Path("/results"), Scenario("2node"), job_id)


@pytest.mark.parametrize("name", ["../2node", "2node/..", "2node\n", "0node", "a b_2node", "$(id)_2node", ""])
def test_scenario_names_cannot_leave_the_results_folder(name: str) -> None:
    with pytest.raises(ArtefactError):
        Scenario(name)
    with pytest.raises(AortaError):
        parse_scenarios(name.strip("\n") + "/..", None)


# --- text that would become markup -------------------------------------------------------------------------

MARKUP = "<script>alert(1)</script>|[x](javascript:alert(1))\n# T {{ 7*7 }} \x1b]0;owned\x07"


def test_markup_in_host_names_is_shown_inert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunSpec, "host", lambda _self, node: f"{MARKUP}{node}")
    run = write_run(tmp_path, RunSpec(nodes=2, ranks_per_node=1, steps=30, extra_compute_ms={1: 40.0}))
    report(run, query_accounting=False)
    text = run.report.read_text()
    assert "\x1b" not in text
    assert "\x07" not in text
    shown = md(MARKUP)
    assert "<script>" not in shown
    assert "\n" not in shown
    assert "\\](javascript" in shown  # the bracket is escaped: no link


def test_markup_in_kernel_names_is_shown_inert(tmp_path: Path) -> None:
    events = [kineto.kernel(MARKUP, i * 10.0, 8.0) for i in range(20)]
    path = kineto.write(tmp_path / "rank0.json", events, distributedInfo={"rank": 0, "world_size": 1})
    done = subprocess.run(
        [sys.executable, "-m", "aorta", "analyze", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "49" not in [word.strip("|") for word in done.stdout.split()]


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_results_are_as_private_as_the_umask_says(mask: int, tmp_path: Path) -> None:
    """Every file and folder of an analysed run, in a process with that umask."""
    write_run(tmp_path / "results", RunSpec(steps=24))
    for path in [*(tmp_path / "results").rglob("*"), tmp_path / "results"]:
        path.chmod(path.stat().st_mode & ~mask)
    code = (
        "import os, sys; os.umask(int(sys.argv[1])); from pathlib import Path;"
        "from aorta.artefacts.layout import RunDir;"
        "from aorta.commands.analyze import report; report(RunDir(Path(sys.argv[2])), query_accounting=False)"
    )
    run = tmp_path / "results" / "1node" / "run_101"
    subprocess.run([sys.executable, "-c", code, str(mask), str(run)], check=True, timeout=120)
    made = [path for path in run.rglob("*") if not path.is_symlink()]
    assert run / "profiling_analysis.json" in made
    loose = {str(path): oct(path.stat().st_mode) for path in made if stat.S_IMODE(path.stat().st_mode) & mask}
    assert loose == {}


def test_temporary_names_cannot_be_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    rename = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (seen.append(self), rename(self, target))[1])
    for _ in range(20):
        io.write_text(tmp_path / "a.json", "{}")
    assert len(set(seen)) == 20
    assert {path.parent for path in seen} == {tmp_path}
    assert not [path for path in seen if str(os.getpid()) in path.name.split(".")]


def test_a_planted_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "status.json").symlink_to(victim)
    io.write_json(tmp_path / "status.json", {"state": "completed"})
    assert victim.read_text() == "mine"
    assert not (tmp_path / "status.json").is_symlink()


# --- pickles -----------------------------------------------------------------------------------------------

PICKLE_CALLS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_no_module_imports_pickle_but_the_safe_reader_of_the_data_sets() -> None:
    found = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [
                path.relative_to(ROOT).as_posix() for name in names if name.split(".")[0] in PICKLE_CALLS
            ]
    # The first two can name no class and no function; the third reads what its own child process wrote.
    safe = {
        "aorta/workloads/dcrnn/pickles.py",
        "aorta/readers/flight.py",
        "aorta/instrument/wire.py",
        # From a copy of the process itself, through a pipe that no other process has.
        "aorta/readers/copies.py",
    }
    assert set(found) <= safe


def keywords(call: ast.Call) -> dict[str, object]:
    return {word.arg or "": getattr(word.value, "value", None) for word in call.keywords}


def called(call: ast.Call) -> str:
    return ast.unparse(call.func)


def test_no_call_runs_what_a_file_or_a_user_says() -> None:
    """No shell, no eval, no unsafe loader, no unpickling torch.load or numpy.load."""
    wrong = []
    for path in sources():
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name, words = called(call), keywords(call)
            bad = (
                bool(words.get("shell"))
                or name
                in (
                    "eval",
                    "exec",
                    "os.system",
                    "os.popen",
                    "yaml.load",
                    "yaml.unsafe_load",
                    "tempfile.mktemp",
                )
                or (name == "torch.load" and words.get("weights_only") is not True)
                or (name in ("np.load", "numpy.load") and words.get("allow_pickle") is True)
                or words.get("mode") == 0o777
            )
            wrong += [f"{path.relative_to(ROOT)}:{call.lineno} {name}"] if bad else []
    assert wrong == []


def test_the_check_of_calls_finds_a_shell() -> None:
    call = ast.parse("subprocess.run(x, shell=True)").body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert keywords(call.value) == {"shell": True}


def test_analysis_reads_no_pickle(tmp_path: Path) -> None:
    """With `pickle.load` and `loads` made to fail, a run is read and its report written as ever."""
    run = write_run(tmp_path, RunSpec(steps=24))
    (run.root / "rank_0.pkl").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    code = (
        "import pickle, _pickle, sys\nfrom pathlib import Path\n"
        "import pandas, matplotlib.figure\n"  # what they do while they are imported is theirs
        "from aorta.artefacts.layout import RunDir\nfrom aorta.commands.analyze import report\n"
        "def refuse(*a, **k): raise SystemExit('a pickle was read')\n"
        "pickle.load = pickle.loads = _pickle.load = _pickle.loads = refuse\n"
        "report(RunDir(Path(sys.argv[1])), query_accounting=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run.root)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "owned").exists()


# --- secrets -----------------------------------------------------------------------------------------------


def test_no_planted_secret_is_recorded() -> None:
    kept = recorded({**SECRETS, "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "5"})
    assert kept == {"NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "5"}
    assert "planted" not in " ".join(
        without_secrets(["train.py", "--password", "planted", "--api-key=planted"])
    )


def test_no_planted_secret_is_in_what_an_analysis_or_the_doctor_says(tmp_path: Path) -> None:
    run = write_run(tmp_path / "results", RunSpec(steps=24))
    environment = {**os.environ, **SECRETS}
    said = ""
    for words in (
        ["analyze", str(run.root), "--no-accounting"],
        ["doctor", "--json", "--results", str(tmp_path)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "aorta", *words],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        said += done.stdout + done.stderr
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert [value for value in SECRETS.values() if value in said or value.encode() in written] == []


def test_the_config_schema_has_no_field_for_a_secret() -> None:
    names = re.findall(r"\w+", repr(Config(training=TrainingConfig(), capture=CaptureConfig())))
    assert not [name for name in names if re.search(r"password|secret|token$|api_key", name, re.IGNORECASE)]

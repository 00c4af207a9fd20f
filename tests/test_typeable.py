"""Hints can be typed: commands, options and targets exist, and say where they are."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from aorta import typeable
from aorta.cli import COMMANDS, group

ROOT = Path(__file__).parent.parent
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _strings() -> Iterator[str]:
    """Each text of the package that is no docstring; a gap of an f-string is `VALUE`."""
    for path in (ROOT / "aorta").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"\baorta [a-z]|\bmake [a-z]", text):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield node.value


STRINGS = list(_strings())


def hints() -> Iterator[tuple[str, list[str], str]]:
    """Each command of aorta in a text: its name, its long options, the text."""
    for text in STRINGS:
        for match in re.finditer(r"(?<![\w./-])aorta ([a-z][a-z-]*)((?:VALUE)?(?: [^`;,|)\n]*)?)", text):
            if match[1] in COMMANDS:
                words = match[2].partition(" -- ")[0]
                yield match[1], re.findall(r"(?<=\s)(--[a-z][a-z-]+)", words), text


def test_hints_are_found() -> None:
    found = [(name, tuple(options)) for name, options, _ in hints()]
    assert ("sweep", ("--over",)) in found
    assert ("submit", ("--python",)) in found


@pytest.mark.parametrize("name", sorted({name for name, *_ in hints()}))
def test_every_option_in_a_hint_exists(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    nested = command.commands.values() if isinstance(command, click.Group) else ()
    known = {
        option for one in (command, *nested) for parameter in one.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }  # fmt: skip
    for other, options, text in hints():
        if other == name:
            assert set(options) <= known, text


def test_every_target_in_a_hint_exists() -> None:
    for text in STRINGS:
        for target in re.findall(r"`(?:sudo )?make ([a-z-]+)", text):
            assert target in TARGETS, text


def test_every_command_and_target_is_made_typeable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typeable, "program", lambda: "/x/aorta")
    internal = {"run-node", "reduce", "export-traces", "attach-node"}
    for name in COMMANDS.keys() - internal:
        assert typeable.typeable(f"`aorta {name}`") == f"`/x/aorta {name}`"
    for target in TARGETS - {"format", "slurm-files", "wheelhouse", "clean", "help"}:
        assert typeable.typeable(f"make {target}").endswith(f" {target}")
        assert " -C " in typeable.typeable(f"make {target}")


def test_a_page_of_the_documents_is_named_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert typeable.typeable("docs/attach.md says more") == f"{ROOT}/docs/attach.md says more"
    assert typeable.typeable("docs/mine.md") == "docs/mine.md"
    assert typeable.typeable("report: docs/BOTTLENECK_ANALYSIS.md") == "report: docs/BOTTLENECK_ANALYSIS.md"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/attach.md").touch()
    assert typeable.typeable("docs/attach.md says more") == "docs/attach.md says more"
    monkeypatch.chdir(ROOT)
    assert typeable.typeable("docs/containers.md") == "docs/containers.md"


@pytest.mark.parametrize(
    "text",
    [
        "aorta profiles a job",
        "/opt/aorta wait",
        "make profiles",
        "aorta: no run",
        "an aorta of its own",
        "remake test",
    ],
)
def test_other_words_stay(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typeable, "program", lambda: "/x/aorta")
    assert typeable.typeable(text) == text


def told(script: list[str], folder: Path, path: str = "/usr/bin:/bin") -> str:
    """Return the hint of `status` in a folder without runs, as `script` is called there."""
    environ = {**os.environ, "PATH": path, "HOME": str(folder)}
    done = subprocess.run(
        [*script, "status"], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4, done.stderr
    return done.stderr


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A program as pip installs it, below the home folder."""
    path = tmp_path / "my venv" / "bin" / "aorta"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
                    "from aorta.cli import main\nmain()\n")  # fmt: skip
    path.chmod(0o755)
    return path


def test_a_program_outside_of_path_is_named_as_it_was_typed(script: Path, tmp_path: Path) -> None:
    assert "submit with `~/'my venv/bin/aorta' submit`" in told([str(script)], tmp_path)


def test_a_program_in_path_is_named_by_its_word(script: Path, tmp_path: Path) -> None:
    assert "submit with `aorta submit`" in told([str(script)], tmp_path, f"{script.parent}:/usr/bin:/bin")


def test_another_program_in_path_is_not_the_one_that_was_typed(script: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "aorta"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert "`~/'my venv/bin/aorta' submit`" in told([str(script)], tmp_path, f"{other.parent}:/usr/bin:/bin")


def test_a_module_is_named_with_its_interpreter(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "aorta", "status"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert " -m aorta submit`" in done.stderr
    assert sys.executable in done.stderr


def test_make_names_the_checkout_only_outside_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert typeable.typeable("run make setup") == "run make setup"
    monkeypatch.chdir(tmp_path)
    assert typeable.typeable("run make setup") == f"run make -C {ROOT} setup"

"""The check of words, on a few lines of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "words.py"


def check(path: Path, text: str) -> tuple[int, str]:
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.py", '"""Of the ranks, the slow ones."""\n', "a docstring begins with 'Of'"),
        ("a.py", 'x = 1\n"""Those that count."""\n', "a docstring begins with 'Those'"),
        ("a.py", 'words = f"{1} ms a step"\n', "'ms a step'"),
        ("a.md", "It takes 3 ms a step.\n", "'ms a step'"),
        ("a.md", "One rank is late, and nobody waits.\n", "'nobody waits'"),
        ("a.py", 'LATE = 0.1\n"""Share of the step from which on a rank is late."""\n', "'from which on'"),
        ("a.md", "word " * 21 + "\n", "columns, at most 100"),
        ("a.md", ("word " * 10 + "\n") * 3 + "end.\n", "words per sentence"),
    ],
)
def test_what_reads_like_a_translation_is_named(tmp_path, name, text, said):
    code, output = check(tmp_path / name, text)
    assert (code, said in output) == (1, True), output


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""The slow ranks, 3 ms per step."""\nwords = "a step of a rank"\n'),
        ("a.py", 'source = "nobody"\n'),
        ("a.md", "A step takes 3 ms.\n\n    " + "code " * 40 + "\n\n| a | " + "cell " * 40 + "|\n"),
    ],
)
def test_plain_sentences_code_and_tables_pass(tmp_path, name, text):
    assert check(tmp_path / name, text)[0] == 0


def test_a_string_with_a_long_sentence_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    for words, code in ((46, 1), (44, 0)):
        page.write_text(f'SAID = f"{"the word " * (words // 2)}{{words}}"\n')
        assert subprocess.run([sys.executable, SCRIPT, page], check=False).returncode == code


def test_counts_are_printed_of_each_kind_of_text():
    command = [sys.executable, SCRIPT, "--counts"]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["pages", "strings", "docstrings"]
    for row in rows[2:]:
        sentences, mean, long, phrases = (cell.strip() for cell in row.split("|")[2:6])
        assert int(sentences.replace(",", "")) > 100
        assert 6 <= float(mean) < 20
        assert 0 <= float(long.rstrip("%")) < 20
        assert int(phrases.replace(",", "")) >= 0

"""The reference says what the code says: findings, thresholds, fixed numbers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from aorta.commands.explain import command
from aorta.config.thresholds import rows
from aorta.diagnosis.findings import FINDINGS
from aorta.errors import ConfigError
from aorta.report import reference
from aorta.report.glossary import glossary_page
from tests.support.golden import assert_golden

ROOT = Path(__file__).resolve().parents[2]


def assert_part(path: Path, pattern: str, part: str) -> None:
    """The lines of `path` that match `pattern`, in one piece, are `part`."""
    text = path.read_text(encoding="utf-8")
    (found,) = re.finditer(pattern, text, re.MULTILINE)
    if os.environ.get("AORTA_WRITE_GOLDEN"):
        text = text[: found.start()] + part + text[found.end() :]
        path.write_text(text, encoding="utf-8")
    assert part in text


def test_the_page_of_findings_is_made_of_the_code() -> None:
    assert_golden(ROOT / "docs/findings.md", reference.findings_page())


def test_the_page_of_terms_is_made_of_the_code() -> None:
    assert_golden(ROOT / "docs/glossary.md", glossary_page())


def test_the_readmes_table_is_made_of_the_code() -> None:
    assert_part(ROOT / "README.md", r"^\| finding \|.*\n(?:\|.*\n)+", reference.findings_table() + "\n")


def test_the_table_of_the_configuration_is_made_of_the_code() -> None:
    part = reference.configuration_rows() + "\n"
    assert_part(ROOT / "docs/configuration.md", r"(?:^\| `thresholds\..*\n)+", part)


def test_the_comments_of_the_default_configuration_are_made_of_the_code() -> None:
    part = reference.configuration_block() + "\n"
    assert_part(ROOT / "config/default.yaml", r"^thresholds:.*\n(?:  .*\n)+", part)


def test_every_number_that_decides_in_the_diagnosis_is_in_the_page() -> None:
    page = reference.findings_page()
    for path in (ROOT / "aorta/diagnosis").rglob("*.py"):
        for name in re.findall(r"^([A-Z][A-Z_]*) = [\d.]+(?: [/*] \d+)?$", path.read_text(), re.MULTILINE):
            assert f".{name} |" in page, f"{path.name}: {name} has no docstring"


@pytest.mark.parametrize("kind", FINDINGS)
def test_each_finding_is_explained(kind: str) -> None:
    said = CliRunner().invoke(command, [kind]).output
    for heading in ("WHAT IT FINDS", "WHY IT COSTS TIME", "WHAT TO DO"):
        assert heading in said
    for key in FINDINGS[kind].thresholds:
        assert f"thresholds.{key}" in said
    for code in FINDINGS[kind].sub_causes:
        assert f"- {code}: " in said


@pytest.mark.parametrize("key", [row.key for row in rows()])
def test_each_threshold_is_explained_with_or_without_its_block(key: str) -> None:
    said = CliRunner().invoke(command, [key]).output
    assert said.startswith(f"thresholds.{key}\n")
    assert CliRunner().invoke(command, [f"thresholds.{key}"]).output == said


def test_without_a_name_all_are_listed_and_another_name_is_refused_with_all() -> None:
    said = CliRunner().invoke(command).output
    error = CliRunner().invoke(command, ["data_loadin"]).exception
    assert isinstance(error, ConfigError)
    for name in (*FINDINGS, *(row.key for row in rows())):
        assert name in said
        assert name in str(error.hint)

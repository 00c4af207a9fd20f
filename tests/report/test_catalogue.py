"""The pages of mistakes say what the catalogue says."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from aorta.commands.explain import command
from aorta.diagnosis.mistakes import CATALOGUE
from aorta.report.catalogue import mistake_pages
from tests.support.golden import assert_golden

FOLDER = Path(__file__).resolve().parents[2] / "docs/mistakes"


@pytest.mark.parametrize("name", mistake_pages())
def test_each_page_is_made_of_the_code(name: str) -> None:
    assert_golden(FOLDER / name, mistake_pages()[name])


def test_no_other_page_is_left() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(mistake_pages())


@pytest.mark.parametrize("id_", CATALOGUE)
def test_each_mistake_is_explained_with_code(id_: str) -> None:
    said = CliRunner().invoke(command, [id_]).output
    for heading in ("HOW IT SHOWS", "WHY IT COSTS TIME", "WHAT TO DO", "HOW THE GAIN IS PREDICTED"):
        assert heading in said
    for line in CATALOGUE[id_].spec.after.strip().splitlines():
        assert line.strip() in said

"""The published schemas are those of the types, and real files fit them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from aorta.exports.schemas import FILES, text, write_schemas

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs/schemas"


def test_every_schema_is_published_as_it_is(tmp_path: Path) -> None:
    made = {path.name: path.read_text() for path in write_schemas(tmp_path)}
    held = {path.name: path.read_text() for path in PUBLISHED.glob("*.json")}
    assert held == made, "run `aorta export schemas docs/schemas`"


@pytest.mark.parametrize("name", FILES)
def test_a_schema_describes_an_object(name: str) -> None:
    tree = json.loads(text(name))
    target = tree["$ref"].rpartition("/")[2]
    assert tree["$defs"][target]["type"] == "object"
    assert tree["$defs"][target]["properties"]


def test_fields_of_the_committed_examples_are_in_the_schema() -> None:
    for path in ROOT.glob("docs/examples/*/BOTTLENECK_ANALYSIS.json"):
        tree = json.loads(path.read_text())
        schema = json.loads(text("BOTTLENECK_ANALYSIS"))
        known = schema["$defs"][schema["$ref"].rpartition("/")[2]]["properties"]
        assert set(tree) <= set(known), path
        assert msgspec.convert(tree, FILES["BOTTLENECK_ANALYSIS"][0])

"""A name that one process sets and another one reads is written once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aorta
from aorta.artefacts import names

PACKAGE = Path(aorta.__file__).parent
SHARED = {value: key for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}


@pytest.mark.parametrize("name", sorted(SHARED))
def test_no_other_module_writes_the_name_as_a_literal(name):
    written = re.compile(rf"""["']{re.escape(name)}["']""")
    found = [path.name for path in PACKAGE.rglob("*.py") if written.search(path.read_text(encoding="utf-8"))]
    # The injected start runs where aorta cannot be imported yet.
    assert set(found) <= {"names.py", "sitecustomize.py"}

"""The packages' imports are those of docs/architecture.md, and each public class has a name of its own."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
BASIS = {"averages", "errors", "units", "intervals", "typeable", "aorta"}
ROW = re.compile(r"^\| `aorta\.(\w+)` \| .* \| (.*) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """By package: the packages whose modules its own modules import."""
    graph = grimp.build_graph("aorta", cache_dir=None)
    found: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            found[_package(module)].add(_package(other))
    return {package: others - BASIS - {package} for package, others in found.items()}


def _package(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def test_the_table_of_imports_is_that_of_the_code(imported):
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    told = {
        name: set(re.findall(r"`(\w+)`", cell)) for name, cell in ROW.findall(text) if cell != "everything"
    }
    free = {name for name, cell in ROW.findall(text) if cell == "everything"}
    assert told == {name: imported.get(name, set()) for name in told}
    assert imported.keys() - BASIS - {"__main__"} <= told.keys() | free
    assert len(told) > 10


def test_each_public_class_name_stands_for_one_class():
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "aorta").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
    assert len(homes) > 300


def test_observation_adapters_and_judge_stay_small():
    modules = ("observation", "from_records", "from_traces", "judge")
    lines = {name: len((ROOT / f"aorta/diagnosis/{name}.py").read_text().splitlines()) for name in modules}
    assert sum(lines.values()) <= 700, lines

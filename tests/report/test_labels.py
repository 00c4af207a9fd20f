"""Every fact that a finding gives as evidence has a label that says what the figure is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from aorta.report import text
from aorta.report.labels import LABELS

FINDINGS = sorted(Path("aorta/diagnosis/findings").glob("*.py"))


def keys(tree: ast.Module) -> Iterator[str]:
    """Yields the keys of dictionaries that are evidence: they have `files`, or go into a sub-cause."""
    for node in ast.walk(tree):
        dicts: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "SubCause":
            dicts = node.args[2:]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign) and "evidence" in ast.unparse(node.target):
            dicts = [node.value] if node.value is not None else []
        elif isinstance(node, ast.Dict):
            dicts = (
                [node]
                if any(isinstance(key, ast.Constant) and key.value == "files" for key in node.keys)
                else []
            )
        for found in dicts:
            if isinstance(found, ast.Dict):
                yield from (
                    key.value
                    for key in found.keys
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                )


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_evidence_has_labels(path: Path) -> None:
    assert sorted(set(keys(ast.parse(path.read_text(encoding="utf-8")))) - set(LABELS)) == []


def test_keys_of_evidence_are_found() -> None:
    code = "SubCause('a', 'b', {'x': 1})\nf({'files': 1, 'y': 2})\nevidence |= {'z': 3}\ng({'other': 4})"
    assert sorted(keys(ast.parse(code))) == ["files", "x", "y", "z"]


def test_a_labelled_fact_has_the_unit_of_its_label() -> None:
    facts = {
        "overlap_ratio": 0.25,
        "exchanged_times": 2.0,
        "swap_used_bytes": 3e6,
        "phases_ms": {"validation": 4.0},
        "host_ms": None,
        "idle_in_long_gaps_ms": 0.0,
        "compute_holds_gaps": True,
        "files": ["a"],
    }
    assert [line.rpartition(": ")[2] for line in text.evidence(facts)] == [
        "25.0 %", "2.00×", "3.00 MB", "validation 4.00 ms", "—", "0 ms", "yes", "a",
    ]  # fmt: skip

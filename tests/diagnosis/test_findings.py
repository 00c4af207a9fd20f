"""Every table of kinds is made of the findings' modules; one that forgets something does not load."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

from aorta.config.thresholds import Thresholds, rows
from aorta.diagnosis.finding import FindingSpec
from aorta.diagnosis.findings import FINDINGS, NAMES, PLUGINS, kind_name, likeliest
from aorta.diagnosis.judge import judge
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.plugins import HEADINGS, PluginPage, discover
from aorta.diagnosis.policy import Policy
from aorta.metrics.scaling_loss import FACTORS
from tests.support.findings import RECORDS

PACKAGE = Path(__file__).resolve().parents[2] / "aorta"


def test_each_module_is_one_finding_of_its_own_name() -> None:
    modules = [path.stem for path in (PACKAGE / "diagnosis/findings").glob("[a-z]*.py")]
    assert sorted(FINDINGS) == sorted(modules)
    assert [item.module.rpartition(".")[2] for item in PLUGINS] == list(FINDINGS)
    orders = [spec.order for spec in FINDINGS.values()]
    assert orders == sorted(set(orders))


def test_the_tables_know_every_kind() -> None:
    assert set(FINDINGS) < set(NAMES)
    assert {item.kind for item in judge(Observation(), RECORDS).measured} == set(FINDINGS)
    assert kind_name("of_another_version") == "of another version"


def test_thresholds_and_factors_that_findings_name_exist() -> None:
    keys = {row.key for row in rows()}
    named = [key for spec in FINDINGS.values() for key in spec.thresholds]
    assert set(named) <= keys
    assert set(Policy.of().as_dict()) == keys
    assert {factor for spec in FINDINGS.values() for factor in spec.lowers} == set(FACTORS)
    for factor in FACTORS:
        places = [FINDINGS[kind].lowers[factor] for kind in likeliest(factor)]
        assert places == list(range(1, len(places) + 1))


@pytest.mark.parametrize("kind", FINDINGS)
def test_every_cause_that_a_module_can_return_is_listed(kind: str) -> None:
    source = inspect.getsource(sys.modules[f"aorta.diagnosis.findings.{kind}"])
    made = set(re.findall(r'SubCause\(\s*"(\w+)"', source)) | set(re.findall(r'"(\w+_throttling)",', source))
    assert made <= set(FINDINGS[kind].sub_causes)
    helpers = "".join(path.read_text() for path in (PACKAGE / "diagnosis/findings").glob("_[a-z]*.py"))
    for code in set(FINDINGS[kind].sub_causes) - made:
        assert f'"{code}"' in helpers


def test_a_kind_stands_in_its_own_module_and_in_the_truth_of_the_validation() -> None:
    found = [path for path in PACKAGE.rglob("*.py") if "host_bound" in path.read_text(encoding="utf-8")]
    assert {path.name for path in found} == {"host_bound.py", "matrix.py"}


@pytest.mark.parametrize("field", FindingSpec.__struct_fields__)
def test_a_specification_without_a_field_fails(field: str) -> None:
    spec = FINDINGS["communication"]
    values = {name: getattr(spec, name) for name in spec.__struct_fields__ if name != field}
    with pytest.raises(TypeError, match=field):
        FindingSpec(**values)


DOCSTRING = '"""A title.\n\nWhat it finds:\n    a\nWhy it costs time:\n    b\nWhat to do:\n    c\n"""\n'


def plugins(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> tuple[object, ...]:
    (folder / "plugged").mkdir()
    (folder / "plugged/__init__.py").touch()
    (folder / "plugged/_helper.py").write_text("1 / 0")
    (folder / "plugged/one.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return discover("plugged", [str(folder / "plugged")], int)


def test_a_module_is_found_with_what_it_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = plugins(tmp_path, monkeypatch, DOCSTRING + "SPEC = 7")
    assert (found.module, found.spec, found.page) == ("plugged.one", 7, PluginPage("A title", "a", "b", "c"))


@pytest.mark.parametrize("source", ["", "ONE = 1\nTWO = 2"])
def test_a_module_without_exactly_one_object_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    with pytest.raises(TypeError, match=r"plugged\.one: exports \d objects of int, 1 is needed"):
        plugins(tmp_path, monkeypatch, DOCSTRING + source)


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_docstring_without_a_heading_or_with_an_empty_one_is_refused(heading: str) -> None:
    whole = DOCSTRING.strip('"\n')
    assert PluginPage.of("m", whole).title == "A title"
    for broken in (whole.replace(f"{heading}:", ""), re.sub(rf"({heading}:\n)    .", r"\1", whole)):
        with pytest.raises(TypeError, match=f"'{heading}:'"):
            PluginPage.of("m", broken)


def test_null_takes_its_meaning_from_the_other_keys() -> None:
    nulls = Policy.of(Thresholds(exposed_comm_pct=15.0))
    assert (nulls.straggler_pct, nulls.exchange_pct, nulls.min_steady_steps) == (15.0, 15.0, 10)
    traced = Policy.of(Thresholds(exposed_comm_pct=15.0), traced=True)
    assert (traced.straggler_pct, traced.exchange_pct, traced.min_steady_steps) == (10.0, 15.0, 3)
    low = Policy.of(Thresholds(exposed_comm_pct=5.0), traced=True)
    assert low.straggler_pct == 5.0
    own = Thresholds(straggler_pct=40.0, exchange_pct=0.0, min_steady_steps=4)
    for of_traces in (True, False):
        mine = Policy.of(own, traced=of_traces)
        assert (mine.straggler_pct, mine.exchange_pct, mine.min_steady_steps) == (40.0, 0.0, 4)

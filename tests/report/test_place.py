"""The first screen names the line of code, and says why only some ranks are slow, if that is known."""

from __future__ import annotations

from msgspec.structs import replace

from aorta.artefacts.analysis import CodeLocation, Finding
from aorta.artefacts.measured import BreakdownTable
from aorta.report import sections
from aorta.report.bare import bare_page
from aorta.report.blocks import words
from aorta.report.place import place_pairs
from tests.support.analyses import analysis, rank_row


def said(finding: Finding, *, data_ms: float = 40.0) -> dict[str, str]:
    """Returns the pairs; rank 1 loads for `data_ms`, rank 0 for none: its own step is that much longer."""
    rows = [rank_row(0, data_ms=0.0, comm_ms=data_ms), rank_row(1, data_ms=data_ms, comm_ms=0.0)]
    whole = analysis(breakdown=BreakdownTable(steps=30, per_rank=rows))
    return {name: words(line) for name, line in place_pairs(whole, finding)}


def cause(where: CodeLocation | None = None) -> Finding:
    main = analysis().findings[0]
    assert main.ranks == [1]
    return replace(main, where=where, sub_cause=None, sub_cause_text=None, actions=[])


def place(longer_ms: float | None) -> CodeLocation:
    return CodeLocation(
        function="Shard.read", file="/home/me/train.py", line=33, share=0.384, longer_ms=longer_ms
    )


def test_the_line_of_code_is_named_with_its_share() -> None:
    line = "Shard.read in train.py, line 33: 38 % of rank 1's step"
    assert said(cause(place(None)))["Line of code"] == line
    assert "Line of code" not in said(cause())


def test_a_line_that_takes_longer_than_on_the_other_rank_is_compared_with_it() -> None:
    assert said(cause(place(30.0)))["Line of code"].endswith(", 30.0 ms more per step than on rank 0")
    assert said(cause(place(10.0)))["Line of code"].endswith(" than on rank 0 (of 40.0 ms in total)")
    assert said(cause(place(0.0)))["Line of code"].endswith("of rank 1's step")


def test_a_line_that_takes_longer_is_no_reason() -> None:
    for longer in (30.0, 10.0, 0.0, None):
        found = said(cause(place(longer)))["Why only rank 1"]
        assert found == "not known from this run. Compare rank 1 with rank 0."


def test_an_action_that_compares_ranks_is_named_where_the_reason_is_not_measured() -> None:
    found = said(replace(cause(), actions=["use more workers", "compare the loaders of rank 1"]))
    assert found["Why only rank 1"] == "not known from this run. Compare the loaders of rank 1."


def test_a_sub_cause_that_compares_ranks_is_the_reason() -> None:
    hot = replace(cause(), kind="straggler", sub_cause="thermal_throttling", sub_cause_text="its GPU is hot")
    assert said(hot)["Why only rank 1"] == "its GPU is hot"
    late = replace(hot, sub_cause="compute", sub_cause_text="rank 1 computes for longer")
    assert said(late)["Why only rank 1"].startswith("not known")


def test_a_cause_of_all_ranks_has_no_such_line() -> None:
    for ranks in ([], [0, 1]):
        assert not any(name.startswith("Why") for name in said(replace(cause(), ranks=ranks)))


def test_the_fix_beside_a_line_of_code_is_one_that_changes_something() -> None:
    search = ["look at Shard.read (train.py, line 33)", "compare node2 with the other nodes"]
    for actions, fix in ((search, search[0]), ([*search, "set num_workers to 2"], "set num_workers to 2")):
        known = replace(cause(place(30.0)), actions=actions)
        whole = replace(analysis(), findings=[known])
        pairs = sections.summary(whole, bare_page(whole), None).pairs
        assert [words(line) for name, line in pairs if name == "Fix"] == [fix]

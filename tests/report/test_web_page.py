"""The HTML page: self-contained, escaped, small, and without names where that is asked."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis, Problem, Submitted, Verdict
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.measured import Blame, BreakdownTable
from aorta.artefacts.page import (
    Excerpt,
    ExcerptLane,
    ExcerptSegment,
    StepTimeSeries,
    Strip,
    UtilizationCurve,
    UtilizationOverTime,
)
from aorta.diagnosis.findings import likeliest
from aorta.metrics.scaling import scaling_curves
from aorta.report.aggregate import ScenarioReport, build
from aorta.report.bare import bare_page
from aorta.report.document import document_page, redacted
from aorta.report.redact import Redactor
from tests.support.analyses import analysis, data_loading_finding, rank_row

MAX_BYTES = 2_000_000


def timeline(ranks: int, pieces: int = 40) -> Excerpt:
    """Each rank computes and waits for rank 0 in turns of 1 ms."""
    lanes = [
        ExcerptLane(
            rank=rank,
            host=f"gpu-{rank // 8}.cluster.example.org",
            segments=[
                ExcerptSegment(
                    doing="wait" if piece % 2 else "compute",
                    start_ms=float(piece),
                    end_ms=piece + 1.0,
                    waits_for=0 if piece % 2 else None,
                )
                for piece in range(pieces)
            ],
        )
        for rank in range(ranks)
    ]
    return Excerpt(global_step=7, step_ms=40.0, median_ms=39.0, lanes=lanes, note="")


def report(whole: Analysis, *found: Excerpt, run: str = "results/2node/run_7") -> ScenarioReport:
    page = bare_page(whole)
    seconds = [float(second) for second in range(240)]
    curve = UtilizationCurve(what="gpu", seconds=seconds, middle=[97.0] * 240)
    page = msgspec.structs.replace(
        page,
        steps=StepTimeSeries(
            global_step=list(range(480)), ms=[90.0] * 480, steady=[True] * 480, steps_a_point=1
        ),
        utilization=UtilizationOverTime(
            strips=[Strip(name="gpu-0.cluster.example.org", nodes=1, curves=[curve])],
            window_s=(3.0, 200.0),
            absent="",
        ),
    )
    return ScenarioReport(Scenario(str(whole.scenario)), RunDir(Path(run)), whole, page, timelines=found)


def page_of(*reports: ScenarioReport, missing: list[Problem] | None = None, redact: bool = False) -> str:
    curves = scaling_curves([item.analysis for item in reports], likeliest=likeliest)
    aggregate = build(reports, curves, missing or [], 0)
    shown = redacted(aggregate, reports) if redact else (aggregate, list(reports))
    return document_page(*shown)


def ranked(ranks: int, scenario: str = "2node") -> Analysis:
    rows = [rank_row(rank, host=f"gpu-{rank // 8}.cluster.example.org") for rank in range(ranks)]
    blame = [Blame(rank=1, cause="data_loading", lost_ms_per_step=30.0 * (ranks - 1))]
    breakdown = BreakdownTable(steps=30, per_rank=rows)
    nodes = int(scenario.removesuffix("node"))
    quality = msgspec.structs.replace(analysis().data_quality, ranks_seen=ranks, ranks_expected=ranks)
    quality = msgspec.structs.replace(quality, nodes_seen=nodes, nodes_expected=nodes)
    return analysis(
        scenario=scenario,
        nodes=nodes,
        world_size=ranks,
        breakdown=breakdown,
        blame=blame,
        data_quality=quality,
    )


def test_nothing_is_fetched_and_nothing_else_may_run() -> None:
    page = page_of(report(analysis(), timeline(2)))
    assert not re.search(r"""(?:src|href)=["'](?!#)""", page)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", page.split("<body>")[0])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'")
    assert "unsafe" not in policy[1].partition("script-src")[2]
    assert "onclick=" not in page


def test_words_of_the_data_stay_words() -> None:
    hostile = "</script><img src=x onerror=alert(1)>\"'&\x1b"
    whole = analysis(
        verdict=Verdict(kind="data_loading", statement=hostile, ranks=[1]),
        findings=[
            data_loading_finding(cause=hostile, actions=[hostile], nodes=[hostile], sub_cause_text=hostile)
        ],
        breakdown=BreakdownTable(steps=1, per_rank=[rank_row(0, host=hostile), rank_row(1)]),
        program=hostile,
        submitted=Submitted(command=hostile, commit=hostile, submission=hostile),
    )
    lane = ExcerptLane(rank=0, host=hostile, segments=timeline(1).lanes[0].segments)
    page = page_of(
        report(whole, msgspec.structs.replace(timeline(1), lanes=[lane], note=hostile)),
        missing=[Problem(file=hostile, reason=hostile)],
    )
    assert "<img" not in page
    assert page.count("</script>") == 3  # the data, the library, ours
    assert "\x1b" not in page.partition('id="data"')[0]


def test_the_first_screen_is_that_of_the_document() -> None:
    page = page_of(report(ranked(2, "1node")), report(ranked(4, "2node"), timeline(4)))
    first = page.partition("<details")[0]
    for words in (
        "data loading",
        "Fix",
        "Best-case speed-up",
        "do the work of",
        "Confidence",
        "aorta compare",
    ):
        assert words.lower() in first.lower()
    assert page.count("data-run-section") - page.count("dataset.runSection") >= 2


def test_what_was_not_measured_has_no_chart() -> None:
    whole = analysis(breakdown=BreakdownTable(steps=0, per_rank=[]), blame=[], findings=[], throughput=None)
    bare = ScenarioReport(Scenario("2node"), RunDir(Path("r")), whole, bare_page(whole))
    body = page_of(bare).partition("<body>")[2].partition('id="data"')[0]
    assert "Not measured" in body
    assert "<canvas" not in body
    assert "data-plot" not in body


@pytest.mark.parametrize(
    ("scenarios", "ranks", "lanes"), [(12, 32, 32), (1, 512, 512), (1, 8192, 64), (12, 512, 512)]
)
def test_the_page_stays_small(scenarios: int, ranks: int, lanes: int) -> None:
    pieces = 300 if lanes == 512 else 1000
    reports = [
        report(ranked(ranks, f"{nodes}node"), timeline(lanes, pieces)) for nodes in range(1, scenarios + 1)
    ]
    assert len(page_of(*reports).encode()) < MAX_BYTES


def test_redaction_takes_names_of_hosts_users_and_paths() -> None:
    whole = ranked(16)
    secret = "rank 1 on gpu-1 reads /home/alice/secret/data.bin as alice from 10.1.2.3"
    whole = msgspec.structs.replace(
        whole,
        verdict=Verdict(kind="data_loading", statement=secret, ranks=[1]),
        submitted=Submitted(
            command="python /home/alice/train.py --data=/scratch/corp/x", commit="c", submission=None
        ),
    )
    shown = report(whole, timeline(16), run="/scratch/corp/results/2node/run_7")
    page = page_of(shown, redact=True)
    for name in ("gpu-0", "gpu-1", "example.org", "alice", "/home", "corp", "10.1.2.3", "secret"):
        assert name not in page, name
    assert "data.bin" in page
    assert "train.py" in page
    plain = page_of(shown)
    assert all(name in plain for name in ("gpu-1", "alice", "10.1.2.3", "/scratch/corp"))


def test_a_name_is_always_the_same_word_and_codes_stay() -> None:
    # A host may be called like one of our words.
    lane = ExcerptLane(rank=0, host="compute", segments=timeline(1).lanes[0].segments)
    found = msgspec.structs.replace(timeline(1), lanes=[lane])
    shown = Redactor([found]).record(found)
    assert shown.lanes[0].host == "host0"
    assert [item.doing for item in shown.lanes[0].segments] == [item.doing for item in lane.segments]
    redactor = Redactor([found], ["n1.example.org"])
    assert redactor.text("n1 and n1.example.org, not n12") == "host1 and host1, not n12"
    assert redactor.text("200 samples/s, 3 of 4") == "200 samples/s, 3 of 4"


def test_names_in_keys_of_evidence_are_redacted_and_keys_of_ours_stay() -> None:
    finding = msgspec.structs.replace(data_loading_finding(), evidence={"by": {"gpu-1": 4.0}, "step_ms": 9.0})
    whole = msgspec.structs.replace(ranked(16), findings=[finding])
    shown = Redactor([whole]).record(whole).findings[0].evidence
    assert shown == {"by": {"host1": 4.0}, "step_ms": 9.0}


def test_a_standstill_has_neither_a_picture_nor_a_price() -> None:
    stood = msgspec.structs.replace(
        data_loading_finding(), kind="hang", value=None, threshold=None, estimated_speedup=None
    )
    whole = analysis(
        verdict=Verdict(kind="hang", statement="The job stood still.", ranks=[1]),
        findings=[stood],
        breakdown=BreakdownTable(steps=0, per_rank=[]),
        blame=[],
    )
    bare = ScenarioReport(Scenario("2node"), RunDir(Path("r")), whole, bare_page(whole))
    body = page_of(bare).partition("<body>")[2].partition('id="data"')[0].partition("Terms")[0]
    for words in ("Where the time in a step goes", "Cost", "Best-case speed-up", "measured —", ">CSV<"):
        assert words not in body, words
    assert "Fix" in body


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mail alice@corp.example.com", "mail <address>"),
        ("tcp://head.corp.example.com:29500", "<address>"),
        ("from s3://bucket/secret/x.bin, twice", "from <address>, twice"),
        ("fe80::1 and 2001:db8::2", "<address> and <address>"),
        ("GPU-1 and gpu-1", "host1 and host1"),
        ("/scratch/alice", "<path>/user0"),
        ("at::native::add, std::max, 07:16:00, a/b, 3.10", "at::native::add, std::max, 07:16:00, a/b, 3.10"),
    ],
)
def test_addresses_are_redacted_and_code_and_times_stay(text: str, shown: str) -> None:
    assert Redactor([{"command": "/home/alice/x"}], ["gpu-0", "gpu-1"]).text(text) == shown


def test_without_known_waits_nothing_is_called_a_transfer() -> None:
    def legend(doing: str) -> str:
        segments = [
            ExcerptSegment(doing=what, start_ms=float(at), end_ms=at + 1.0)  # type: ignore[arg-type]
            for at, what in enumerate(("compute", "transfer", doing))
        ]
        lanes = [ExcerptLane(rank=rank, host=None, segments=segments) for rank in range(2)]
        page = page_of(report(ranked(2), msgspec.structs.replace(timeline(1), lanes=lanes)))
        return page.partition("<canvas")[2].partition("</figure>")[0]

    assert "exposed transfer" in legend("wait")
    assert "exposed transfer" not in legend("host")
    assert "exposed communication" in legend("host")

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.errors import ConfigError
from aorta.launch.rocprof_capture import known_options, main, rocprof_prefix

KNOWN = frozenset({"--kernel-trace", "--stats", "--output-format", "--att"})
OUT = Path("out")
NAMED = ["-d", "out", "-o", "train_rank%env{RANK}%_%hostname%_%pid%", "--"]


def test_without_options_the_usual_traces() -> None:
    prefix, notes = rocprof_prefix(OUT, "train")
    assert prefix == [
        "rocprofv3", "--kernel-trace", "--hip-runtime-trace", "--rccl-trace", "--marker-trace",
        "--memory-copy-trace", "--stats", "--summary", "--output-format", "csv", *NAMED,
    ]  # fmt: skip
    assert notes == []


def test_usual_traces_that_a_version_lacks_are_left_out_and_said() -> None:
    prefix, notes = rocprof_prefix(OUT, "train", "", KNOWN)
    assert prefix == ["rocprofv3", "--kernel-trace", "--stats", "--output-format", "csv", *NAMED]
    assert notes[0] == "this rocprofv3 has no --hip-runtime-trace, so it is left out"
    assert len(notes) == 5


def test_the_users_options_replace_them_and_the_name_stays() -> None:
    found, _ = rocprof_prefix(OUT, "train", "--kernel-trace --stats -x 'a b'", KNOWN)
    assert found == [
        "rocprofv3", "--kernel-trace", "--stats", "-x", "a b", "--output-format", "csv", *NAMED,
    ]  # fmt: skip


REGIONS = KNOWN | {"--selected-regions", "--marker-trace", "--collection-period"}


def test_the_ranks_say_when_to_record_where_this_version_listens() -> None:
    prefix, notes = rocprof_prefix(OUT, "train", "", REGIONS, ranged=True)
    assert prefix == [
        "rocprofv3", "--kernel-trace", "--marker-trace", "--stats", "--selected-regions",
        "--output-format", "csv", *NAMED,
    ]  # fmt: skip
    assert "the whole run" not in str(notes)
    found, _ = rocprof_prefix(OUT, "train", "--kernel-trace", REGIONS, ranged=True)
    assert found[:4] == ["rocprofv3", "--kernel-trace", "--marker-trace", "--selected-regions"]
    assert "--selected-regions" not in rocprof_prefix(OUT, "train", "", REGIONS)[0]


@pytest.mark.parametrize(
    ("text", "known", "note"),
    [
        ("", KNOWN, "this rocprofv3 has no --selected-regions: the whole run is recorded"),
        ("", frozenset(), "this rocprofv3 has no --selected-regions: the whole run is recorded"),
        ("--kernel-trace --collection-period 1:2:3", REGIONS, "names collection periods"),
        ("--kernel-trace -P 1:2:3", REGIONS, "names collection periods"),
    ],
)
def test_otherwise_the_whole_run_is_recorded_and_a_note_says_why(
    text: str, known: frozenset[str], note: str
) -> None:
    prefix, notes = rocprof_prefix(OUT, "train", text, known, ranged=True)
    assert "--selected-regions" not in prefix
    assert note in notes[-1]


def test_a_format_of_the_users_is_the_only_one() -> None:
    assert "csv" not in rocprof_prefix(OUT, "train", "--kernel-trace --output-format=json", KNOWN)[0]
    assert "csv" not in rocprof_prefix(OUT, "train", "--kernel-trace -f json", KNOWN)[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--kernel-trace --kernel-symbols", "no option --kernel-symbols"),
        ("--kernel-trace -o mine", "sets -o"),
        ("--kernel-trace 'open", "No closing quotation"),
        ("--kernel-trace -- --stats", "contains --, after which"),
        ("--stats", "only a summary and no trace"),
        ("-S --output-format json", "only a summary and no trace"),
    ],
)
def test_what_cannot_work_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rocprof_prefix(OUT, "train", text, KNOWN)


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        ("-r --output-format pftrace", True),
        ("-r -f otf2", True),
        ("-r -f pftrace json", False),
        ("--pmc GRBM_COUNT --stats --output-format=rocpd", False),
        ("-r --summary", False),
    ],
)
def test_formats_that_nothing_reads_are_said(text: str, noted: bool) -> None:
    _, notes = rocprof_prefix(OUT, "train", text)
    assert notes == ["this format of rocprofv3 is not analysed: one of csv, json, rocpd is"] * noted


def test_a_version_that_does_not_tell_its_options_is_trusted() -> None:
    assert "--kernel-symbols" in rocprof_prefix(OUT, "train", "--kernel-symbols")[0]


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "rocprofv3"
    program.write_text(
        "#!/bin/sh\necho 'usage: rocprofv3 [-h] [--kernel-trace [BOOL]] [--att] -- app (see non--option)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_options_are_asked_of_the_installed_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    assert known_options() == {"--kernel-trace", "--att"}


def test_words_come_out_ended_by_zero_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, monkeypatch)
    assert main(["out", "--att --kernel-trace"]) == 0
    said = capsys.readouterr()
    assert said.out.split("\0") == [
        "rocprofv3",
        "--att",
        "--kernel-trace",
        "--output-format",
        "csv",
        *NAMED,
        "",
    ]
    assert "single kernel" in said.err
    assert main(["out", "--never"]) == 2
    assert "has no option --never" in capsys.readouterr().err


def test_without_rocprofv3_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["out", ""]) == 5
    assert "rocprofv3 is not in PATH" in capsys.readouterr().err


def test_an_option_of_an_old_guide_gets_a_clear_answer() -> None:
    with pytest.raises(ConfigError) as caught:
        rocprof_prefix(OUT, "train", "--kernel-trace --kernel-symbols", KNOWN)
    assert caught.value.hint.startswith("leave it out: rocprofv3 writes the kernels' names")

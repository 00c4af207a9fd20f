"""What each of Slurm's states means for a wait."""

import pytest

from aorta.launch.states import CODES, STATES, parse_state

ENDED = (
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY REVOKED "
    "SPECIAL_EXIT"
).split()
GOING = (
    "PENDING RUNNING COMPLETING CONFIGURING SUSPENDED REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD "
    "RESIZING SIGNALING STAGE_OUT STOPPED"
).split()


@pytest.mark.parametrize("name", ENDED)
def test_an_ended_job_is_ok_only_when_completed(name: str) -> None:
    assert parse_state(name).phase == "ended"
    assert parse_state(name).ok == (name == "COMPLETED")


@pytest.mark.parametrize("name", GOING)
def test_a_job_that_goes_on_has_not_ended(name: str) -> None:
    assert parse_state(name).phase in ("pending", "running")
    assert not parse_state(name).ok


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CANCELLED by 1000", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("RECONFIG+", "RECONFIG_FAIL"),
        (" completed \n", "COMPLETED"),
        ("CD", "COMPLETED"),
        ("CG", "COMPLETING"),
        ("OOM", "OUT_OF_MEMORY"),
        ("R", "RUNNING"),
    ],
)
def test_other_spellings(text: str, name: str) -> None:
    assert parse_state(text) is STATES[name]


def test_every_code_stands_for_a_known_state() -> None:
    assert set(CODES.values()) <= set(STATES)


@pytest.mark.parametrize("text", ["", "  ", "SPARKLING", "PENDINGX"])
def test_a_word_in_no_table_is_unknown_and_neither_ended_nor_going(text: str) -> None:
    assert parse_state(text).phase == "unknown"


@pytest.mark.parametrize("text", ["RE+", "OUT_OF_ME", "+", ""])
def test_a_part_of_a_name_that_is_not_said_to_be_cut_or_of_several_is_unknown(text: str) -> None:
    assert parse_state(text).phase == "unknown"

"""Node lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.errors import SchedulerError
from aorta.launch.hosts import expand_hosts, parse_hosts
from aorta.launch.tools import ToolAnswer
from tests.support.slurm import MISSING, FakeSlurm


def test_ranges_and_single_numbers_keep_their_zeros() -> None:
    assert parse_hosts("ml-16-node-[001-002,004],ml-17-node-[001-003]") == [
        "ml-16-node-001",
        "ml-16-node-002",
        "ml-16-node-004",
        "ml-17-node-001",
        "ml-17-node-002",
        "ml-17-node-003",
    ]


def test_brackets_multiply() -> None:
    hosts = parse_hosts("foo-[10-20]-[01-02]")
    assert len(hosts) == 11 * 2
    assert hosts[:3] == ["foo-10-01", "foo-10-02", "foo-11-01"]


@pytest.mark.parametrize("text", ["None assigned", "(null)", "", "  ", "n/a"])
def test_nobody(text: str) -> None:
    assert parse_hosts(text) == []
    assert expand_hosts(text, FakeSlurm({})) == []


def test_plain_names() -> None:
    assert parse_hosts("a,b-1,c") == ["a", "b-1", "c"]


@pytest.mark.parametrize("text", ["n[1-", "n[]", "n[a-b]", "n[3-1]", "a,,b", "n]1["])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(SchedulerError, match="node list"):
        parse_hosts(text)


@given(st.integers(0, 500), st.integers(0, 40), st.integers(1, 4))
def test_a_range_has_its_length_and_width(low: int, more: int, width: int) -> None:
    hosts = parse_hosts(f"n[{low:0{width}d}-{low + more:0{width}d}]")
    assert [int(host[1:]) for host in hosts] == list(range(low, low + more + 1))
    assert all(len(host) - 1 >= width for host in hosts)


def test_scontrol_is_asked_first() -> None:
    fake = FakeSlurm({"scontrol": ToolAnswer(0, "n1\nn2\n")})
    assert expand_hosts("n[1-2]", fake) == ["n1", "n2"]
    assert fake.asked == [["scontrol", "show", "hostnames", "n[1-2]"]]


def test_without_scontrol_the_own_reading_counts() -> None:
    assert expand_hosts("n[1-2]", FakeSlurm({"scontrol": MISSING})) == ["n1", "n2"]

"""The zone of local times, told by a capture that they cover."""

from __future__ import annotations

import pytest

from aorta.metrics.zones import zone_offset

MINUTE = 60 * 1_000_000_000
HOUR = 60 * MINUTE


@pytest.mark.parametrize("offset", [0, -8 * HOUR, 5 * HOUR + 45 * MINUTE, 14 * HOUR])
def test_the_only_zone_that_fits(offset: int) -> None:
    assert (
        zone_offset((100 * HOUR + offset, 100 * HOUR + 3 * MINUTE + offset), (100 * HOUR, 100 * HOUR + 1))
        == offset
    )


@pytest.mark.parametrize("off", [15 * HOUR, -13 * HOUR, 7 * MINUTE, -7 * MINUTE])
def test_no_zone_fits(off: int) -> None:
    samples = 100 * HOUR + off, 100 * HOUR + 3 * MINUTE + off
    assert (
        zone_offset(samples, (100 * HOUR, 100 * HOUR + 1))
        == "the samples do not cover the capture in any time zone"
    )


def test_samples_long_enough_for_two_zones_tell_none() -> None:
    found = zone_offset(
        (100 * HOUR, 100 * HOUR + 20 * MINUTE), (100 * HOUR + 2 * MINUTE, 100 * HOUR + 3 * MINUTE)
    )
    assert isinstance(found, str)
    assert "2 different zones" in found

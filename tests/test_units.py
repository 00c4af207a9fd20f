"""Words of counts; the arithmetic of times is tested where it is used."""

from __future__ import annotations

from aorta.units import plural


def test_a_count_has_the_form_of_its_noun() -> None:
    words = [plural(count, "rank") for count in (0, 1, 2, 1024)]
    assert words == ["0 ranks", "1 rank", "2 ranks", "1,024 ranks"]
    assert [plural(count, "launch", "launches") for count in (1, 2)] == ["1 launch", "2 launches"]

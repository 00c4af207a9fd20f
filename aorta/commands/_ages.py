"""Ages and sizes on the command line."""

from __future__ import annotations

import re

import click

_AGE = re.compile(r"(\d{1,6})([hdw])")
_SECONDS = {"h": 3_600, "d": 86_400, "w": 7 * 86_400}
_SIZE = re.compile(r"(\d{1,12})([kMGTP]?)B?")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}


class Age(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """Seconds, written as `12h`, `30d` or `8w`."""

    name = "age"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the seconds of `value`."""
        if isinstance(value, int):
            return value
        match = _AGE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not an age: write 12h, 30d or 8w", param, ctx)
        return int(match[1]) * _SECONDS[match[2]]


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes, written as `500M`, `20G` or `1T`, in powers of 1,000."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the bytes of `value`."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size: write 500M, 20G or 1T", param, ctx)
        unit: int = 1000 ** _POWERS[match[2]]
        return int(match[1]) * unit

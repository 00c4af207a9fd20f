"""Descriptions of process groups by `pg_config` in a Kineto trace's `distributedInfo`.

Newer versions of torch describe the group of each call. Others only number it there, and describe it once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from aorta.readers.trace_build import SENT

UNDESCRIBED = (None, "", "undefined", "default_pg")
"""Descriptions that say nothing."""


def named_group(description: str | None, number: object) -> str:
    """Returns the name of a group: its number, behind its description where there is one."""
    if description in UNDESCRIBED:
        return str(number)
    return f"{description}:{number}".replace(" ", "_")


def described(names: Sequence[str], groups: Collection[int], info: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names with descriptions of groups that only have a number.

    Args:
        names: of the trace.
        groups: codes of names that are groups.
        info: `distributedInfo`.
    """
    config = info.get("pg_config")
    known = {
        str(one.get("pg_name")): one.get("pg_desc")
        for one in (config if isinstance(config, list) else ())
        if isinstance(one, dict) and isinstance(one.get("pg_desc"), str)
    }
    if not known:
        return tuple(names)
    made = list(names)
    for code, name in enumerate(names):
        sent = name.startswith(SENT)
        if code not in groups and not sent:
            continue
        number, space, rest = name.removeprefix(SENT).partition(" ")
        text = f"{named_group(known.get(number), number)}{space}{rest}"
        made[code] = SENT + text if sent else text
    return tuple(made)

"""Results of a look at the machine: checks, and the conclusions from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "missing"]
"""`note`: there, with a limit that the text names; `missing`: absent, broken, or not to be found out."""

Works = Literal["yes", "in part", "no"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check, its state and its hint."""

    name: str
    state: State
    text: str
    """The result, in one line."""
    hint: str = ""
    """A command or step that helps; empty if there is nothing to do."""
    value: dict[str, Any] = field(default_factory=dict)
    """The same for programs; a key is absent where its number could not be found out."""


@dataclass(frozen=True, slots=True)
class Ability:
    """One task that people want to do on this machine."""

    name: str
    command: str
    works: Works
    reasons: tuple[str, ...] = ()
    """Reasons why it does not work, or what will be left out."""
    todo: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Examination:
    """Everything that was found on one machine."""

    host: str
    checks: tuple[Check, ...]
    abilities: tuple[Ability, ...]
    needed: tuple[str, ...]
    """Names of the abilities that decide about `ok`; of a group `a|b` one is enough."""

    @property
    def lacking(self) -> tuple[str, ...]:
        """Members of `needed` that do not work, not even in part."""
        working = {ability.name for ability in self.abilities if ability.works != "no"}
        return tuple(group for group in self.needed if not working.intersection(group.split("|")))

    @property
    def ok(self) -> bool:
        """All that is needed works, at least in part."""
        return not self.lacking

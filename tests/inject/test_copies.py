"""The hooks on copies come and go, and leave torch as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from aorta.inject.copies import CopyHooks
from aorta.inject.hooks import Hooks


class Seen:
    """Stands for the driver."""

    detailed = True

    def __init__(self) -> None:
        self.hooks = Hooks(lambda name: None)
        self.told: list[object] = []

    def copy_begins(self) -> int:
        return 7

    def copy_ended(self, start: object, result: object) -> None:
        self.told.append((start, result))


@pytest.fixture
def hooks() -> Iterator[tuple[Seen, CopyHooks]]:
    seen = Seen()
    made = CopyHooks(seen)  # type: ignore[arg-type]
    yield seen, made
    made.watch(False)


def test_copies_are_noted_while_somebody_watches(hooks: tuple[Seen, CopyHooks]) -> None:
    seen, made = hooks
    before = dict(vars(torch.Tensor))
    made.watch(True)
    copy = torch.ones(2).to(torch.float64)
    assert seen.told == [(7, copy)]
    made.watch(False)
    torch.ones(2).to(torch.float64)
    assert len(seen.told) == 1
    assert dict(vars(torch.Tensor)) == before


def test_what_another_library_has_put_over_them_stays(
    hooks: tuple[Seen, CopyHooks], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = hooks
    made.watch(True)
    ours = torch.Tensor.to

    def theirs(tensor: Any, *args: Any) -> Any:
        return ours(tensor, *args)

    monkeypatch.setattr(torch.Tensor, "to", theirs)
    made.watch(False)
    assert torch.Tensor.to is theirs
    made.watch(True)
    assert torch.Tensor.to is theirs
    monkeypatch.undo()

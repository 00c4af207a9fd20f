"""Hooks that fail."""

from __future__ import annotations

import pytest

from aorta.inject.hooks import Hooks


def fails(*_: object) -> None:
    raise ValueError("broken")


def test_a_hook_that_fails_is_switched_off_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    failed: list[str] = []
    hooks = Hooks(failed.append)
    call = hooks.around("forward", lambda x: x + 1, fails, fails)
    assert [call(1), call(2)] == [2, 3]
    assert failed == ["forward"]
    assert capsys.readouterr().err.count("the hook for forward failed") == 1


def test_the_end_of_what_raised_is_noted_and_the_error_stays() -> None:
    seen: list[object] = []
    hooks = Hooks(seen.append)

    def original() -> None:
        raise KeyError("the program's own")

    with pytest.raises(KeyError, match="the program's own"):
        hooks.around("backward", original, lambda: "token", lambda token, _: seen.append(token))()
    assert seen == ["token"]


def test_what_a_function_returned_is_noted_and_returned() -> None:
    seen: list[object] = []
    assert Hooks(seen.append).after("clipping", lambda: 3.0, seen.append)() == 3.0
    assert seen == [3.0]


def test_an_error_in_the_end_keeps_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    call = Hooks(fails).around("loader", lambda: "batch", lambda: 1, fails)
    assert call() == "batch"
    assert "recording ends here" in capsys.readouterr().err

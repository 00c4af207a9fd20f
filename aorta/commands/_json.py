"""`--json`: one JSON object on standard output, and everything that is said on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from aorta.commands._say import say_json


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object; messages go to standard error."
    )(function)


@contextlib.contextmanager
def messages_aside(as_json: bool) -> Iterator[None]:
    """While this is entered, what is printed goes to standard error if `as_json`."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


def echo_json(value: object) -> None:
    """Print `value` as JSON."""
    say_json(value)

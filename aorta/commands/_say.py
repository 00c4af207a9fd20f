"""The one way in which commands print: without secrets, and safe for a terminal."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from aorta.artefacts.clean import lines
from aorta.artefacts.masking import here
from aorta.errors import AortaError
from aorta.typeable import typeable


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text: its commands can be typed here, its secrets are masked, its control characters taken out.

    Raises:
        AortaError: it cannot be written, such as to a full disk.
    """
    _print(lines(here().text(typeable(str(text)))), err=err, nl=nl)


def say_script(text: str) -> None:
    """Print a script as it is submitted, its secrets masked and its control characters taken out.

    Raises:
        AortaError: it cannot be written, such as to a full disk.
    """
    _print(lines(here().text(text)), nl=False)


def say_json(value: object) -> None:
    """Print a record or plain data as JSON, its secrets masked.

    Raises:
        AortaError: it cannot be written, such as to a full disk.
    """
    from aorta.artefacts.io import json_bytes

    _print(json_bytes(value).decode(), nl=False)


def say_encoded(line: str) -> None:
    """Print a line for another process of aorta unchanged, because its author has masked secrets.

    Raises:
        AortaError: it cannot be written, such as to a full disk.
    """
    _print(line)


def _print(text: str, *, err: bool = False, nl: bool = True) -> None:
    try:
        click.echo(text, err=err, nl=nl)
    except BrokenPipeError:
        raise  # who reads has seen enough
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: Exception) -> AortaError:
    """Return the message for output that cannot be written."""
    return AortaError(
        f"cannot write the output: {getattr(error, 'strerror', error)}",
        "redirect it to a place with free space",
    )


def flush() -> None:
    """Write out what is printed, and give up what cannot be.

    Raises:
        AortaError: it cannot be written, such as to a full disk.
    """
    if sys.stdout is None:
        return  # it was closed before the start
    try:
        sys.stdout.flush()
    except OSError as error:
        # The interpreter would try again at its end, and complain.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise unwritten(error) from error

"""Sizes per peer of an all-to-all, from the arguments of its kernel."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from aorta.readers.kernels import operation
from aorta.readers.kineto_events import Arguments

_SHARES = list[Annotated[int, Meta(ge=0)]]
_TEXT = msgspec.json.Decoder(_SHARES)


def sent_words(arguments: Arguments, elements: int, item: int | None, members: int) -> str | None:
    """Returns the bytes that an all-to-all sends to each member, such as `1024 0 512`.

    An empty list of splits says that all get as much. None if the call is another one, or a size is not
    known, as where torch cuts a list of more than 30 splits short.

    Args:
        arguments: of the kernel.
        elements: of the input; negative: not known.
        item: bytes of an element.
        members: of the group.
    """
    if operation(arguments.collective or "") != "all_to_all" or item is None or elements < 0 or members < 2:
        return None
    shares = _shares(arguments.splits_in)
    if shares is None:
        return None
    # Splits count rows of the input, or elements where a list of tensors was given.
    shares = shares or [1] * members
    total = sum(shares)
    if len(shares) != members or (elements and not total):
        return None
    if any(elements * share % (total or 1) for share in shares):
        return None
    return " ".join(str(elements * share // (total or 1) * item) for share in shares)


def _shares(splits: Any) -> list[int] | None:
    """Returns the numbers of a list, or of its text. None if it is cut short or not a list of numbers."""
    try:
        return _TEXT.decode(splits) if isinstance(splits, str) else msgspec.convert(splits, _SHARES)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None

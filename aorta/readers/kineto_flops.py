"""Floating-point operations of recorded operators, by the shapes that a capture with `record_shapes` holds.

A product of matrices of m×k and k×n numbers takes 2·m·k·n operations. Attention is two products for each
head, counted in full, also where a mask needs half of them. Its backward pass is twice the forward one: what
is computed again there is no work of the model. Convolutions are not counted: their output is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from aorta.artefacts.events import ABSENT

Shape = Sequence[int]
_ATTENTION = "aten::_scaled_dot_product_{}_attention{}"
_BACKENDS = ("flash", "efficient", "cudnn", "fused")
_ITEM_BYTES = {
    "float": 4, "double": 8, "c10::half": 2, "c10::bfloat16": 2, "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
}  # fmt: skip


def _product(first: Shape, second: Shape) -> int:
    *batch, rows, inner = first
    return 2 * prod(batch) * rows * inner * second[-1]


def _attention(query: Shape, key: Shape, value: Shape) -> int:
    *heads, rows, width = query
    return 2 * prod(heads) * rows * key[-2] * (width + value[-1])


def _attention_backward(query: Shape, key: Shape, value: Shape) -> int:
    return 2 * _attention(query, key, value)


_COUNTED: dict[str, tuple[int, int, Callable[..., int]]] = {
    "aten::mm": (0, 2, _product),
    "aten::bmm": (0, 2, _product),
    "aten::addmm": (1, 2, _product),
    "aten::_addmm_activation": (1, 2, _product),
    "aten::baddbmm": (1, 2, _product),
    "aten::_scaled_mm": (0, 2, _product),
}
"""First tensor that counts, how many do, and the arithmetic; none of these operators calls another one."""
for _name in _BACKENDS:
    _COUNTED[_ATTENTION.format(_name, "")] = (0, 3, _attention)
    _COUNTED[_ATTENTION.format(_name, "_backward")] = (1, 3, _attention_backward)

COUNTED = tuple(_COUNTED)
"""Names of the operators."""


def flops(name: str, dims: object, types: object) -> tuple[int, int]:
    """Operations of a recorded operator and bytes of one number; ABSENT: not known."""
    counted = _COUNTED.get(name)
    if counted is None or not isinstance(dims, list) or not isinstance(types, list):
        return ABSENT, ABSENT
    first, count, arithmetic = counted
    shapes, kinds = dims[first : first + count], types[first : first + count]
    fewest = 3 if count > 2 else 2
    plain = len(shapes) == len(kinds) == count and all(
        isinstance(shape, list) and len(shape) >= fewest and all(type(n) is int and n >= 0 for n in shape)
        for shape in shapes
    )
    items = {_ITEM_BYTES.get(str(kind).lower()) for kind in kinds}
    item = items.pop() if len(items) == 1 else None
    if not plain or item is None:
        return ABSENT, ABSENT
    found = arithmetic(*shapes)
    return (found, item) if found < 1 << 62 else (ABSENT, ABSENT)

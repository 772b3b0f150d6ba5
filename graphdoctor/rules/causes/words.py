"""The words that messages use for recorded values."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.values.locations import Location, file_line
from graphdoctor.values.recording import Arg, Op, Opaque, TensorUse


def tensor_words(use: TensorUse) -> str:
    """ "(4, 8) float32 tensor", without an article."""
    shape = shape_words(use) if use.shape else "0-d"
    return f"{shape} {use.dtype} tensor"


def shape_words(use: TensorUse) -> str:
    """As Python writes a tuple: "(4, 8)", "(4,)", "()"."""
    return str(tuple(use.shape))


def operator_words(op: Op) -> str:
    """ "aten.mul", without the overload."""
    return op.name.rpartition(".")[0] or op.name


def place_words(place: Location | None, seen_from: Location | None) -> str:
    """ "line 12" within the same file, else "model.py:12"; "" where unknown."""
    if place is None:
        return ""
    if seen_from is not None and place.file == seen_from.file:
        return f"line {place.line}"
    return file_line(place)


def value_words(value: Arg) -> str:
    if isinstance(value, Opaque):
        return value.text
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, TensorUse):
        return tensor_words(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(value_words, value))}]"
    return repr(value)


def listed(values: Sequence[str]) -> str:
    """Distinct values in order: "1.0, 0.5, 0.25"; long lists end in "..."."""
    distinct = list(dict.fromkeys(values))
    shown = distinct[:4] + (["..."] if len(distinct) > 4 else [])
    return ", ".join(shown)

"""What a collective's arguments, as torch writes them, say of its message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from graphdoctor.trace.read.columns import message_bytes, message_of


def arguments(**changes: Any) -> Any:
    plain = {
        "collective": "allreduce", "dtype": "Float", "elements": 10, "elements_out": 10,
        "group": "0", "group_ranks": "[0, 1]",
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **changes})


@pytest.mark.parametrize(
    ("dtypes", "size"),
    [
        ("ComplexDouble", 16),
        ("Double Long ComplexFloat", 8),
        ("Float Int UInt32", 4),
        ("BFloat16 Half Short UInt16", 2),
        ("Byte Char Bool Float8_e4m3fn", 1),
    ],
)
def test_each_element_takes_the_bytes_of_its_type(dtypes: str, size: int) -> None:
    for dtype in dtypes.split():
        assert message_bytes(arguments(dtype=dtype)) == 10 * size, dtype


def test_the_larger_of_what_goes_in_and_what_comes_out_counts() -> None:
    assert message_bytes(arguments(elements=3, elements_out=12)) == 48
    assert message_bytes(arguments(elements=12, elements_out=3)) == 48
    assert message_bytes(arguments(elements=None, elements_out=3)) == 12


@pytest.mark.parametrize(
    "changes",
    [{"dtype": None}, {"elements": None, "elements_out": "x"}, {"elements": -4, "elements_out": -4},
     {"elements": 2**60, "elements_out": 0}],
)  # fmt: skip
def test_what_is_no_size_is_none(changes: dict[str, Any]) -> None:
    assert message_bytes(arguments(**changes)) == 0


def test_the_group_is_told_where_it_is_whole() -> None:
    found = message_of(arguments(group_ranks="[0, 2, 16]"))
    assert found is not None
    assert (found.collective, found.nbytes, found.ranks) == ("allreduce", 40, (0, 2, 16))
    for cut in ("[0, 1, ...]", None):
        found = message_of(arguments(group_ranks=cut))
        assert found is not None and found.ranks == ()
    assert message_of(arguments(collective=None, elements=0, elements_out=0)) is None

"""The operators of one iteration -> what each of them must come after."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.operators import host_learns
from graphdoctor.values.recording import Op, TensorUse

Value = tuple[int, int, tuple[int, ...], tuple[int, ...], str]


def predecessors(ops: Sequence[Op]) -> list[frozenset[int]]:
    """For each position, the earlier positions that it depends on directly.

    A reader depends on the last writer of the memory, a writer also on the readers since then, and
    random operators on each other, because they draw from one generator. Host reads, which hold
    back all that follows, are not in here (`is_host_read`). The edges are linear in the arguments.
    """
    ledger = _Ledger()
    return [ledger.enter(position, op) for position, op in enumerate(ops)]


def is_host_read(op: Op) -> bool:
    """Whether the host learns a value, or a shape, from the operator and may act on it.

    It goes on as the value says: what it does then cannot move before.
    """
    return bool(host_learns(op)) or (
        not _ends_on_device(op) and any(use.is_cuda for use in op.inputs)
    )


def _ends_on_device(op: Op) -> bool:
    """Whether nothing that it makes or changes is memory of the host."""
    changed = [use for use in op.inputs if use.storage in op.writes] if op.writes else ()
    return all([use.is_cuda for use in (*op.outputs, *changed)])


class _Ledger:
    """Who wrote, read and made what so far, by position."""

    def __init__(self) -> None:
        self._writer: dict[int, int] = {}
        self._readers: dict[int, list[int]] = {}
        self._maker: dict[Value, int] = {}
        self._random: int | None = None

    def enter(self, position: int, op: Op) -> frozenset[int]:
        found: set[int] = set()
        self._enter_inputs(position, op, found)
        for storage in op.writes:
            self._enter_write(position, storage, found)
        inputs = {use.storage for use in op.inputs}
        for use in op.outputs:
            if use.storage not in inputs:
                self._enter_write(position, use.storage, found)
            self._maker[value_of(use)] = position
        if op.may_draw:
            if self._random is not None:
                found.add(self._random)
            self._random = position
        found.discard(position)
        return frozenset(found)

    def _enter_inputs(self, position: int, op: Op, found: set[int]) -> None:
        is_view = op.is_view
        for use in op.inputs:
            maker = self._maker.get(value_of(use))
            if maker is not None:
                found.add(maker)
            if is_view and maker is not None:
                continue  # a view does not look at the values: writes and it may change places
            if use.storage in self._writer:
                found.add(self._writer[use.storage])
            if not is_view:
                self._readers.setdefault(use.storage, []).append(position)

    def _enter_write(self, position: int, storage: int, found: set[int]) -> None:
        found.update(
            self._readers.pop(storage, ())
        )  # a writer reads too: it is after the last write
        self._writer[storage] = position


def value_of(use: TensorUse) -> Value:
    """Equal for two uses of the same elements in the same order."""
    return use.storage, use.offset, use.shape, use.stride, use.dtype

"""State that code outside of the step may change -> that of it by which the step decides.

What only a weak reference leads to is gone once its owner drops it, and memory that is mapped from a file, or shared
with other processes, is written to by others. Nobody hears that it is asked, so other state stands in for it.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from graphdoctor.target.state.plain import is_array
from graphdoctor.target.state.walk import Walk

_BYTES = (0x00, 0x01, 0x7F, 0xFF)
_MOST_BYTES = 1 << 22
_WEAK = (weakref.WeakSet, weakref.WeakValueDictionary, weakref.WeakKeyDictionary)
Others = Mapping[int, object]  # by the identity of what they stand in for


def others_of(roots: Mapping[str, object]) -> Iterator[tuple[str, Others]]:
    """What is held by others, and what may be there instead."""
    reached = [value for _, value, _ in Walk(roots, with_empty=False)]
    weak = [one for one in reached if _is_weak(one)]
    if weak:
        leaves = {id(one) for one in weak}
        owned = {id(value) for _, value, _ in Walk(roots, leaves=leaves)}
        gone = {id(one): _gone(one) for one in weak if not _is_owned(one, owned)}
        if gone:
            yield "a weak reference", gone
    shared = [one for one in reached if _is_shared(one)]
    for number in _BYTES if shared else ():
        yield "memory that others write to", {id(one): _filled(one, number) for one in shared}


class _Short:
    """Nobody keeps one."""

    def method(self) -> None: ...


def _is_weak(held: Any) -> bool:
    return isinstance(held, _WEAK) or type(held) in _GONE


_GONE: Mapping[type, Callable[[], object]] = {
    weakref.ref: lambda: weakref.ref(_Short()),
    weakref.WeakMethod: lambda: weakref.WeakMethod(_Short().method),
    weakref.finalize: lambda: weakref.finalize(_Short(), _Short),
}


def _gone(held: Any) -> object:
    return _GONE.get(type(held), type(held))()


def _is_owned(held: Any, owned: set[int]) -> bool:
    """Whether the state itself keeps all that a weak reference, or a container of them, leads to."""
    return all(one is None or id(one) in owned for one in _kept(held))


def _kept(held: Any) -> list[object]:
    kind = type(held)
    if kind is weakref.finalize:
        alive = held.peek()
        return [alive[0]] if alive is not None else []
    if kind is weakref.WeakMethod:
        method = held()
        return [method.__self__] if method is not None else []
    if kind is weakref.ref:
        return [held()]
    return list(held.values() if isinstance(held, weakref.WeakValueDictionary) else held)


def _is_shared(value: Any) -> bool:
    if not _is_mapped(value):
        return False
    with memoryview(value) as memory:
        return 0 < memory.nbytes <= _MOST_BYTES


def _is_mapped(value: Any) -> bool:
    if isinstance(value, mmap.mmap):
        return not value.closed
    if isinstance(value, memoryview):
        return isinstance(value.obj, mmap.mmap)
    if isinstance(value, ctypes._SimpleCData | ctypes.Array | ctypes.Structure):
        return type(getattr(value, "_wrapper", None)).__module__ == "multiprocessing.heap"
    if not is_array(value) or value.dtype.hasobject:
        return False
    base = value.base
    while is_array(base):
        base = base.base
    return _is_mapped(base)


def _filled(held: Any, number: int) -> object:
    """The same of other bytes, which nobody else has."""
    with memoryview(held) as memory:
        data = bytearray([number]) * memory.nbytes
    if isinstance(held, mmap.mmap):
        other = mmap.mmap(-1, len(data))
        other[:] = bytes(data)
        return other
    if isinstance(held, memoryview):
        return memoryview(data)
    if is_array(held):
        numpy: Any = sys.modules["numpy"]
        return numpy.frombuffer(data, held.dtype).reshape(held.shape).view(type(held))
    return type(held).from_buffer(data)

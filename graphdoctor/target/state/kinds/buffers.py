"""Memory outside torch, and random generators: arrays, buffers, numbers of C, streams in memory."""

from __future__ import annotations

import copy
import io
import random
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.kinds.kind import Digest, Kind, Restore
from graphdoctor.target.state.kinds.objects import Object
from graphdoctor.target.state.kinds.written import saved_dict
from graphdoctor.target.state.plain import STREAMS, is_memory
from graphdoctor.target.state.saved_tensor import Saving

# More bytes than this are a data set, which costs too much to look at after every step.
_DATA = 1 << 22


class Buffer(Object):
    """What has the buffer protocol: an array, a number of C, a map of a file."""

    @classmethod
    def includes(cls, kind: type, value: object) -> bool:
        try:
            memoryview(value).release()  # type: ignore[arg-type]
        except TypeError:
            return False
        except (ValueError, BufferError):  # one that is closed, or in use
            pass
        return True

    def save(self, value: Any, saving: Saving) -> Iterator[Restore]:
        if is_memory(value):
            yield saved_memory(value)
        else:
            yield from super().save(value, saving)

    def digest(self, value: Any) -> Digest | None:
        if not is_memory(value):
            return None
        with memoryview(value) as memory:
            if memory.nbytes > _DATA:
                return Digest(f"{memory.nbytes} bytes", "contents")
            return Digest(_sum_of(memory.tobytes()), "contents")


def _sum_of(data: bytes) -> str:
    return f"{len(data)} bytes of {zlib.crc32(data):x}"


def saved_memory(held: Any) -> Restore:
    """What an array, a number of C or a memory map holds; of a map, not where it has become shorter or longer."""
    if isinstance(held, (array, bytearray)):
        return partial(held.__setitem__, slice(None), held[:])
    values = memoryview(held).tobytes()

    def restore() -> None:
        with memoryview(held) as memory:
            if memory.nbytes == len(values) and memory.tobytes() != values:
                memory.cast("B")[:] = values

    return restore


class Array(Buffer):
    """An array of NumPy's, which need not be there."""

    @classmethod
    def includes(cls, kind: type, value: object) -> bool:
        numpy = sys.modules.get("numpy")
        return numpy is not None and issubclass(kind, numpy.ndarray)

    def save(self, value: Any, saving: Saving) -> Iterator[Restore]:
        yield saved_array(value)

    def digest(self, value: Any) -> Digest | None:
        if value.dtype.hasobject:
            return super().digest(value)
        about = f"{value.dtype} of shape {value.shape}"
        has_sum = value.nbytes <= _DATA
        return Digest(f"{about}, {_sum_of(value.tobytes())}" if has_sum else about, "contents")


def saved_array(held: Any) -> Restore:
    """A NumPy array's values and its shape; not where it has become shorter or longer."""
    values = held.copy()

    def restore() -> None:
        if held.size != values.size:
            return
        if held.shape != values.shape:
            held.shape = values.shape
        if held.flags.writeable:
            held[...] = values

    return restore


class NumpyScalar(Kind):
    @classmethod
    def includes(cls, kind: type, value: object) -> bool:
        numpy = sys.modules.get("numpy")
        return numpy is not None and issubclass(kind, numpy.generic)

    def digest(self, value: Any) -> Digest:
        return Digest(repr(value))


class Stream(Object):
    """A stream in memory. Its position counts as its state: code reads on from there."""

    types = STREAMS

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.is_iterator = False  # whose position is restored

    def save(self, value: Any, saving: Saving) -> Iterator[Restore]:
        yield saved_stream(value)
        yield saved_dict(attributes(value))

    def digest(self, value: Any) -> Digest | None:
        return None if value.closed else Digest(value.tell(), "position")


def saved_stream(held: Any) -> Restore:
    """The contents and the position: as pickle does, past a subclass's methods and newlines."""
    if held.closed:
        return lambda: None
    kind: Any = io.BytesIO if isinstance(held, io.BytesIO) else io.StringIO
    # The last are a subclass's attributes, which are saved as any other's.
    *saved, _ = kind.__getstate__(held)

    def restore() -> None:
        if not held.closed and kind.__getstate__(held)[:-1] != tuple(saved):
            kind.__setstate__(held, (*saved, None))

    return restore


class RandomGenerator(Kind):
    """A generator of random numbers that the user owns: Python's, NumPy's or torch's."""

    types = (torch.Generator, random.Random)

    @classmethod
    def includes(cls, kind: type, value: object) -> bool:
        numpy = sys.modules.get("numpy")
        of_numpy = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
        return issubclass(kind, cls.types + of_numpy)

    def save(self, value: Any, saving: Saving) -> Iterable[Restore]:
        return (saved_random(value),)


def saved_random(generator: Any) -> Restore:
    if isinstance(generator, random.SystemRandom):  # the machine's, which nobody can put back
        return lambda: None
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if hasattr(generator, "set_state"):  # torch's, and the older one of NumPy's
        return partial(generator.set_state, generator.get_state())
    bits = generator.bit_generator
    return partial(setattr, bits, "state", copy.deepcopy(bits.state))

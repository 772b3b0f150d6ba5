"""Numbers, texts, flags, dates and enums; arrays and numbers of NumPy, and random generators."""

from __future__ import annotations

import copy
import datetime
import random
import sys
import zlib
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Any

import torch

from graphdoctor.target.state.attributes import SCALARS
from graphdoctor.target.state.kinds.kind import Digest, Kind, Restore
from graphdoctor.target.state.kinds.objects import Object
from graphdoctor.target.state.saved_tensor import Saving

_PLACE: Any = torch._C.Generator.device
# More bytes than this are a data set, which costs too much to look at after every step.
_DATA = 1 << 22


class Array(Object):
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
        if value.nbytes <= _DATA:
            about = f"{about}, {value.nbytes} bytes of {zlib.crc32(value.tobytes()):x}"
        return Digest(about, "contents")


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
    if isinstance(generator, torch.Generator):
        return partial(set_random_state, generator, generator.get_state())
    if hasattr(generator, "set_state"):  # the older one of NumPy's
        return partial(generator.set_state, generator.get_state())
    bits = generator.bit_generator
    return partial(setattr, bits, "state", copy.deepcopy(bits.state))


def set_random_state(generator: torch.Generator, state: torch.Tensor) -> None:
    sharing_state(generator).set_state(state)


def sharing_state(generator: torch.Generator) -> torch.Generator:
    """A generator to set the state of this one through: with a GPU's, cuDNN keeps its dropout state then.

    After a call of `set_state` or `manual_seed` of the default generator itself, even with the state that it has, the
    next RNN with dropout makes a new dropout state (`get_dropout_state` in aten/src/ATen/native/cudnn/RNN.cpp). It
    reads a seed on the host for that, which no capture allows, and a graph goes on with the state of its capture.
    """
    # Where it truly is: the emulated device says otherwise.
    is_on_gpu = _PLACE.__get__(generator).type == "cuda"
    return generator.graphsafe_get_state() if is_on_gpu else generator


class Scalar(Kind):
    types = SCALARS
    is_scalar = True

    def digest(self, value: Any) -> Digest:
        return Digest(value)


class Number(Kind):
    types = (datetime.date, datetime.timedelta)

    def digest(self, value: Any) -> Digest:
        return Digest(repr(value))


class EnumMember(Kind):
    types = (Enum,)

    def digest(self, value: Any) -> Digest:
        return Digest(str(value))

"""The generators of random numbers that Python and NumPy have -> which of them moved, and in which line.

No profiler is told of NumPy's draws, nor of a function that C calls by itself, as `functools.partial(random.random)`
and `operator.call` do: what shows is the generator's state.
"""

from __future__ import annotations

import _random
import gc
import random
import sys
from collections.abc import Iterator, Mapping
from itertools import compress
from typing import Any

from graphdoctor.record.host.lines import Seen
from graphdoctor.target.state.globals import numpy_generator
from graphdoctor.target.state.walk import Walk
from graphdoctor.values.host_events import RandomDraw


def generators(roots: Mapping[str, object]) -> list[Any]:
    """Wherever they are: a cache or a package that the step asks may hold them, too.

    Python's garbage collector knows of all but those that were there when somebody froze it, and of Python's bare ones.
    """
    kinds: set[Any] = set(_with_subclasses(_random.Random))
    pythons = getattr(random.random, "__self__", None)
    owns: list[Any] = [pythons] if isinstance(pythons, _random.Random) else []
    if (numpys := numpy_generator()) is not None:
        owns.append(numpys)
        numpy = sys.modules["numpy"].random
        for kind in (numpy.Generator, type(numpys), numpy.BitGenerator):
            kinds.update(_with_subclasses(kind))
    held = [value for _, value, _ in Walk(roots, with_empty=False)]
    # Of hundreds of thousands of objects, in some tens of milliseconds: no line of Python for each.
    objects = held + gc.get_objects()
    found = [*owns, *compress(objects, map(kinds.__contains__, map(type, objects)))]
    owned = {id(bits) for one in found if (bits := _bits_of(one)) is not one}
    return list({id(one): one for one in found if id(one) not in owned}.values())


def _with_subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for each in kind.__subclasses__():
        yield from _with_subclasses(each)


class GeneratorState:
    """A generator, and where it was when it was last looked at."""

    def __init__(self, generator: Any) -> None:
        self._name = _name_of(generator)
        self._generator = generator
        self._seen = state_of(generator)

    def after_line(self, *, is_users: bool) -> Iterator[Seen]:
        before, self._seen = self._seen, state_of(self._generator)
        if before != self._seen and is_users:
            yield Seen(RandomDraw, self._name)


def _name_of(generator: Any) -> str:
    if isinstance(generator, _random.Random):
        return "random.Random"
    return "numpy.random.Generator" if hasattr(generator, "bit_generator") else "numpy.random"


def state_of(generator: Any) -> Any:
    """A generator's state, in a form that can be compared."""
    if isinstance(generator, _random.Random):  # without what a subclass makes of it
        return _random.Random.getstate(generator)
    return _plain(_bits_of(generator).state)


def _bits_of(generator: Any) -> Any:
    """What a generator draws from: itself, where it is nothing but bits."""
    owned = (getattr(generator, name, None) for name in ("bit_generator", "_bit_generator"))
    return next((one for one in owned if one is not None), generator)


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state

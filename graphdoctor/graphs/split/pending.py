"""A stand-in for a number that the step reads from the device: it can be passed on, and not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, cast


class StepRefused(BaseException):
    """The step does something that its pieces cannot repeat; the text is the reason.

    No `Exception`: the step's own handlers must not take it for an error of the step.
    """


class Watch:
    """Whether stand-ins refuse to be looked at, and the first reason why the step was refused."""

    def __init__(self) -> None:
        self.is_armed = True
        self.reason = ""

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Let graphdoctor itself look at state that may hold stand-ins."""
        before, self.is_armed = self.is_armed, False
        try:
            yield
        finally:
            self.is_armed = before

    def refuse(self, reason: str) -> NoReturn:
        self.reason = self.reason or reason
        raise StepRefused(reason)


class Pending:
    """Stands for a value that each call reads anew. `value` is the last one that was read.

    The step may return it, or give it to another call that is made again. Python that looks at it
    would not be run again, so looking ends the capture.
    """

    __slots__ = ("_reason", "_watch", "value")

    def __init__(self, watch: Watch, reason: str) -> None:
        self._watch = watch
        self._reason = reason
        self.value: object = None

    # isinstance() asks for it where type() did not settle the matter.
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        if self._watch.is_armed:
            self._watch.refuse(self._reason)
        return Pending


def _refusing(name: str) -> Callable[..., object]:
    inherited = getattr(object, name, None)

    def look(self: Pending, *args: object) -> object:
        if self._watch.is_armed:
            self._watch.refuse(self._reason)
        if inherited is None:
            raise TypeError(f"a pending value has no {name}")
        return inherited(self, *args)

    return look


_UNARY = "bool float int index complex neg pos abs invert trunc floor ceil round hash repr str len"
_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_OTHER = "lt le eq ne gt ge format iter getitem contains call"
for _name in (
    *_UNARY.split(),
    *_BINARY.split(),
    *(f"r{name}" for name in _BINARY.split()),
    *_OTHER.split(),
):
    setattr(Pending, f"__{_name}__", _refusing(f"__{_name}__"))


def read(value: object) -> object:
    """What a stand-in stands for, or the value itself; also inside a list or a tuple."""
    kind = type(value)
    if kind is Pending:
        return cast("Pending", value).value
    if kind is list:
        return [read(item) for item in cast("list[object]", value)]
    if kind is tuple:
        return tuple(read(item) for item in cast("tuple[object, ...]", value))
    return value

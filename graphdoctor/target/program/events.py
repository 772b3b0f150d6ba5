"""Events of what a running program does to models and optimizers, with the lines that led to each."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from types import CodeType, FrameType
from typing import Any, Literal, Protocol

import torch
from torch.optim import optimizer as torch_optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import dataloader

from graphdoctor.target.frames import is_machinery
from graphdoctor.values.locations import Location

Kind = Literal[
    "forward", "backward", "zero-grad", "step", "stepped", "clip", "scaler", "schedule", "made",
    "compiled",
]  # fmt: skip
MOST_FRAMES = 60


@dataclass(frozen=True, slots=True)
class At:
    """A frame, and the line that it was on at the event."""

    frame: FrameType | None  # None where it is remembered: a frame keeps its variables alive
    code: CodeType
    line: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that belongs to a step; `places` are the frames of the program, innermost first.

    `number` is that of the next node that autograd makes in this thread.
    """

    kind: Kind
    places: tuple[At, ...]
    subject: object
    is_autocast: bool
    number: int = 0


def without_frames(event: Event) -> Event:
    """The event, to be remembered: it keeps no variables and no graph of autograd alive."""
    subject = None if event.kind == "backward" else event.subject
    places = tuple(At(None, at.code, at.line) for at in event.places)
    return replace(event, places=places, subject=subject)


class Listener(Protocol):
    """Who is told of events. What it raises is raised in the program."""

    def event(self, event: Event) -> None: ...

    def mark(self, frame: FrameType) -> None: ...

    def unmark(self) -> None: ...

    def loaded(self, batches: object, wall_s: float) -> None: ...

    def call(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]
    ) -> Any: ...  # fmt: skip


def places(depth: int = 2) -> tuple[At, ...]:
    """The running frames that are the program's or its libraries', without torch's and Python's own."""
    found: list[At] = []
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and len(found) < MOST_FRAMES:
        if not is_machinery(frame.f_code.co_filename):
            found.append(At(frame, frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def location_of(at: At) -> Location:
    return Location(at.code.co_filename, at.line, at.code.co_name)


def make_event(kind: Kind, subject: object, where: tuple[At, ...]) -> Event:
    """The event that happens now."""
    number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    return Event(kind, where, subject, torch.is_autocast_enabled("cuda"), number)


_METHODS: tuple[tuple[Any, str, Kind], ...] = (
    (torch.autograd, "backward", "backward"),
    (torch.optim.Optimizer, "__init__", "made"),
    (torch, "compile", "compiled"),
    (torch.nn.Module, "compile", "compiled"),
    (torch.optim.Optimizer, "zero_grad", "zero-grad"),
    (torch.nn.Module, "zero_grad", "zero-grad"),
    (torch.nn.utils, "clip_grad_norm_", "clip"),
    (torch.nn.utils, "clip_grad_value_", "clip"),
    (torch.amp.GradScaler, "unscale_", "scaler"),
    (torch.amp.GradScaler, "update", "scaler"),
)


class Heard:
    """Who listens. Functions that stand in for torch's find it here: what they close over is walked."""

    listener: Listener | None = None
    nesting = threading.local()

    @classmethod
    def tell(cls, kind: Kind, subject: object) -> None:
        """Nothing inside a module's call counts: the call as a whole does."""
        if cls.listener is not None and not getattr(cls.nesting, "inside", False):
            cls.listener.event(make_event(kind, subject, places(3)))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside the block the listener hears of events, in every thread; afterwards all is as before."""
    with ExitStack() as undo:

        def stand_in(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
            original = vars(owner)[name]
            undo.callback(setattr, owner, name, original)
            setattr(owner, name, make(original))

        stand_in(dataloader._BaseDataLoaderIter, "__next__", _loading)
        for owner, name, kind in _METHODS:
            stand_in(owner, name, _telling(kind))
        stand_in(torch.nn.Module, "__call__", _calling)
        for schedule in _schedules():
            stand_in(schedule, "step", _telling("schedule"))
        before = torch_optimizer.register_optimizer_step_pre_hook(
            lambda optimizer, *_: Heard.tell("step", optimizer)
        )
        undo.callback(before.remove)
        after = torch_optimizer.register_optimizer_step_post_hook(
            lambda optimizer, *_: Heard.tell("stepped", optimizer)
        )
        undo.callback(after.remove)
        undo.callback(setattr, Heard, "listener", None)
        Heard.listener = listener
        yield


def _calling(call: Any) -> Any:
    def calling(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        listener, nesting = Heard.listener, Heard.nesting
        if torch.compiler.is_compiling() or listener is None or getattr(nesting, "inside", False):
            return call(module, *args, **kwargs)
        nesting.inside = True
        try:
            return listener.call(module, args, kwargs, lambda: call(module, *args, **kwargs))
        finally:
            nesting.inside = False

    return calling


def _loading(following: Any) -> Any:
    def load(batches: Any) -> Any:
        """What runs meanwhile, such as transforms that are modules, is no part of a step."""
        nesting, began = Heard.nesting, time.perf_counter()
        was_inside = getattr(nesting, "inside", False)
        nesting.inside = True
        try:
            return following(batches)
        finally:
            nesting.inside = was_inside
            if Heard.listener is not None:
                Heard.listener.loaded(batches, time.perf_counter() - began)

    return load


def _telling(kind: Kind) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        @wraps(original, updated=())
        def told(*args: Any, **kwargs: Any) -> Any:
            Heard.tell(kind, args[0] if args else None)
            return original(*args, **kwargs)

        return told

    return wrap


def _schedules() -> Iterator[type]:
    """Classes of schedules with a `step` of their own."""
    waiting: list[type] = [LRScheduler]
    while waiting:
        kind = waiting.pop()
        waiting.extend(kind.__subclasses__())
        if "step" in vars(kind):
            yield kind


class Mark:
    """Does nothing where no `graphdoctor run` listens."""

    __slots__ = ()

    def __enter__(self) -> None:
        if Heard.listener is not None:
            Heard.listener.mark(sys._getframe(1))

    def __exit__(self, *exc_info: object) -> None:
        if Heard.listener is not None:
            Heard.listener.unmark()


_MARK = Mark()


def step() -> Mark:
    """Mark the statements of a `with` block as one step of the program.

    `graphdoctor run` then diagnoses these, and no others of that loop. Without it this does nothing.
    """
    return _MARK

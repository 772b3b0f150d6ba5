"""torch's modes and switches: whether they are those of the capture when a graph is to be replayed."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from graphdoctor.device.emulated import entered
from graphdoctor.graphs.guards.guard import OF_ALL_MODULES
from graphdoctor.graphs.tensor_layouts import wants_gradient
from graphdoctor.target.state.globals import ATTENTION, EVERY, SWITCHES
from graphdoctor.values.recording import Recording

_call = getattr(operator, "call")  # noqa: B009  (since Python 3.11; typeshed has it for newer ones)
_Switch = tuple[str, Callable[[], Any]]
_NO_STREAM = -1
_CAPTURE = "a capture of the caller's"
_DEVICE = "the current device"
_DISPATCH = "the number of dispatch modes"
_FUNCTIONS = "the number of function modes"
_LEVEL = "the level of forward-mode gradients"
_SAVED = "the hooks on saved tensors, as of activation checkpointing,"
# What torch's guards of tensors see as well, by the dispatch keys that a call's tensors have meanwhile.
_SEEN_BY_FORM = frozenset({"torch.func", "tracing"})
# What a forward pass may query, or what chooses kernels; each a name and a function that finds the query.
# What this torch lacks is left out.
_SWITCHES: tuple[tuple[str, Callable[[], Callable[[], object]]], ...] = (
    ("autocast", lambda: partial(torch.is_autocast_enabled, "cuda")),
    ("autocast's dtype", lambda: partial(torch.get_autocast_dtype, "cuda")),
    ("the default dtype", lambda: torch.get_default_dtype),
    ("deterministic algorithms", lambda: torch._C._get_deterministic_algorithms),
    (_DEVICE, lambda: _of_cuda("current_device", "_cuda_getDevice")),
    ("attention's fast path", lambda: torch.backends.mha.get_fastpath_enabled),
    (_DISPATCH, lambda: torch._C._len_torch_dispatch_stack),
    (_FUNCTIONS, lambda: torch._C._len_torch_function_stack),
    ("torch.func", lambda: torch._C._functorch.maybe_current_level),
    ("tracing", lambda: torch._C._is_tracing),
    (_LEVEL, lambda: partial(getattr, forward_ad, "_current_level")),
    (
        _SAVED,
        lambda: partial(torch._C._autograd._top_saved_tensors_default_hooks, True),
    ),
    (_CAPTURE, lambda: _of_cuda("is_current_stream_capturing", "_cuda_isCurrentStreamCapturing")),
    *((each.meaning, each.asked_quickly) for each in SWITCHES if each.operators),
)
_AUTOCAST = ("autocast", "autocast's dtype")
# By which kernels of these operators alone are chosen. An operator that is not torch's may ask for all.
_OF_SOME: dict[str, tuple[str, ...]] = {
    "attention's fast path": ATTENTION,
    **{each.meaning: each.operators for each in SWITCHES if each.operators != EVERY},
}
_TORCHS_OWN = ("aten.", "prims.", "prim.")
# What dynamo's guard of torch's global state compares in one call into C++, and the field in which it does.
_AT_ONCE = {
    **dict.fromkeys(_AUTOCAST, "autocast_state"),
    "the default dtype": "default_dtype",
    "deterministic algorithms": "deterministic_algorithms",
    "half-precision sums": "allow_fp16_reduce",
    "bfloat16 sums": "allow_bf16_reduce",
    "the precision of matrix products": "allow_tf32",
}


class Modes:
    """torch's modes while a graph is captured. Gradients are not among them: callers choose by them.

    Without `autocast`, nor is that. `stream_number` tells streams apart. All switches are watched until
    `watch` narrows them to those that choose kernels of the captured operators.
    """

    def __init__(self, *, autocast: bool = True) -> None:
        self._all = [each for each in _available() if autocast or each[0] not in _AUTOCAST]
        self._off, self._on, self._at_once = _global_state()
        self.stream_number = _stream_number()
        self._operators: set[str] = set()
        self._watch(self._all)

    def watch(self, recording: Recording) -> None:
        """Watch what chooses the kernels of these operators, and of those given before."""
        self._operators |= {
            " ".join([op.name, *sorted({use.dtype for use in (*op.inputs, *op.outputs)})])
            for each in recording.captured
            for op in each.ops
        }
        self._watch([each for each in self._all if self._chooses(each[0])])

    def _chooses(self, name: str) -> bool:
        words = _OF_SOME.get(name)
        return words is None or any(
            not operator.startswith(_TORCHS_OWN) or any(word in operator for word in words)
            for operator in self._operators
        )

    def _watch(self, found: list[_Switch]) -> None:
        self._found, self._before = found, {name: ask() for name, ask in found}
        is_same = self._check(without=frozenset())
        stream_number = self.stream_number if _CAPTURE in self._before else lambda: _NO_STREAM

        def check() -> bool:
            try:
                return is_same(stream_number())
            except Exception:  # a switch does not answer while its old and new names are mixed
                return False

        # Whether nothing changed. Called before every replay.
        self.is_same = check

    def without_gradients(self, parameters: Sequence[torch.Tensor]) -> Callable[[int], bool]:
        """A check for calls on the stream of this number in which none of these requires gradients.

        torch's guards have compared the tensors of such a call with those of an earlier one. The check may
        raise RuntimeError.
        """
        # Nothing is saved for a backward pass.
        return self._check(self._seen_by_form | {_SAVED}, parameters)

    def in_gradient_mode(self, *, has_tensors: bool) -> Callable[[int], bool]:
        """The same for calls in the current gradient mode, if they have tensors."""
        without = self._seen_by_form if has_tensors else frozenset()
        return self._check(without, grad=torch.is_grad_enabled())

    @property
    def _seen_by_form(self) -> Set[str]:
        # Dispatch keys show a dispatch mode.
        return _SEEN_BY_FORM | ({_DISPATCH} if self._before.get(_DISPATCH) == 0 else set())

    def _check(
        self, without: Set[str], parameters: Sequence[torch.Tensor] = (), *, grad: bool = False
    ) -> Callable[[int], bool]:
        """Whether all is as at the capture, and no module has a hook. The stream's number is given.

        The global state is compared first with the one that has gradients, or has none.
        """
        found = [each for each in self._found if each[0] not in {*without, _CAPTURE}]
        at_once = [ask for name, ask in found if name in self._at_once]
        before_at_once = [self._before[name] for name, _ in found if name in self._at_once]
        asked_always = {_DEVICE, _FUNCTIONS, _LEVEL}
        rest = [each for each in found if each[0] not in {*self._at_once, *asked_always}]
        asks, before = [ask for _, ask in rest], [self._before[name] for name, _ in rest]
        first, second = (self._on, self._off) if grad else (self._off, self._on)
        hooks, always = OF_ALL_MODULES, dict(self._found)
        device, device_before = always.get(_DEVICE, _nothing), self._before.get(_DEVICE)
        functions, functions_before = always[_FUNCTIONS], self._before[_FUNCTIONS]
        level_before = self._before[_LEVEL]
        is_capturing, was_capturing = _always(False), False
        for name, ask in self._found:
            if name == _CAPTURE:
                is_capturing, was_capturing = ask, self._before[name]
        # Nothing is captured on the default stream, so the driver is asked about others only.
        default = 0 if was_capturing is False and entered() is None else _NO_STREAM

        def is_global_state_same() -> bool:
            if parameters and torch.is_grad_enabled() and any(map(wants_gradient, parameters)):
                return False
            return second() or [*map(_call, at_once)] == before_at_once

        def is_same(stream: int) -> bool:
            return (
                (first() or is_global_state_same())
                and device() == device_before
                and functions() == functions_before
                and forward_ad._current_level == level_before
                and not any(hooks)
                and (not asks or [*map(_call, asks)] == before)
                and (stream == default or is_capturing() is was_capturing)
            )

        return is_same

    def difference(self) -> str:
        """What changed, in one sentence; "" if nothing did."""
        if any(OF_ALL_MODULES):
            return "a hook for all modules is registered, which a replay would not run"
        for name, ask in self._found:
            try:
                now = ask()
            except RuntimeError as error:
                return f"torch does not tell {name}: {error}"
            if now != (before := self._before[name]):
                return f"{name} changed from {_short(before)} to {_short(now)}"
        return ""


def _global_state() -> tuple[Callable[[], bool], Callable[[], bool], Set[str]]:
    """Whether torch's global state is the current one, without and with gradients; the switches in it.

    If both return False, each switch is to be read.
    """
    try:
        guard: Any = torch._C._dynamo.guards.GlobalStateGuard
        with torch.no_grad():
            without = guard()
        with torch.enable_grad():
            wanted = guard()
        fields = json.loads(without.__getstate__())
    except Exception:  # another torch's guard tells no fields, or switches do not answer
        return _never, _never, frozenset()
    seen = {name for name, field in _AT_ONCE.items() if field in fields}
    if "dtype" not in fields.get("autocast_state", ()):
        seen -= {"autocast's dtype"}
    return without.check, wanted.check, seen


def _never() -> bool:
    return False


def _nothing() -> None:
    """A query that this torch lacks."""


def _always(answer: bool) -> Callable[[], bool]:
    return lambda: answer


def _short(setting: object) -> str:
    return "some" if isinstance(setting, tuple) else str(setting)


def _of_cuda(name: str, in_c: str) -> Callable[[], object]:
    """torch.cuda's function, or what it asks in C, which spares two calls in Python."""
    found = getattr(torch._C, in_c, None) if entered() is None else None
    return found if found is not None else getattr(torch.cuda, name)  # type: ignore[no-any-return]


def _stream_number() -> Callable[[], int]:
    """A function that tells the streams of the current device apart; 0 is the default one."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is None or entered() is not None or not torch.cuda.is_available():
        return lambda: int(torch.cuda.current_stream().cuda_stream)
    # On another device, the current one is not the same.
    return partial(raw, torch.cuda.current_device())


def _available() -> Iterator[_Switch]:
    for name, find in _SWITCHES:
        try:
            ask = find()
            ask()
        except (AttributeError, RuntimeError, AssertionError):
            continue
        yield name, ask

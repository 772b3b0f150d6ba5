"""torch's modes and switches at a capture -> whether they are still the same when a graph is to be replayed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from types import NoneType
from typing import Any

import torch
from torch.autograd import forward_ad

from graphdoctor.device.emulated import entered
from graphdoctor.graphs.guards.hooks import OF_ALL_MODULES
from graphdoctor.graphs.guards.written_out import Question, all_of, written_out
from graphdoctor.target.state.switches import ATTENTION, EVERY, SWITCHES
from graphdoctor.values.host_events import OF_ENVIRONMENT
from graphdoctor.values.recording import Op, Recording

_wants_gradient = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_CAPTURE = "a capture of the caller's"
_LEVEL = "the level of forward-mode gradients"
_SAVED = "the hooks on saved tensors, as of activation checkpointing,"
# What torch's guards of tensors see as well, by the dispatch keys that a call's tensors have meanwhile.
_SEEN_BY_FORM = frozenset({"torch.func", "tracing"})
# What a forward pass may look at, or kernels are chosen by; each a name and where it is asked for.
# What this torch lacks is left out.
_SWITCHES: tuple[tuple[str, Callable[[], Callable[[], object]]], ...] = (
    ("autocast", lambda: partial(torch.is_autocast_enabled, "cuda")),
    ("autocast's dtype", lambda: partial(torch.get_autocast_dtype, "cuda")),
    ("the default dtype", lambda: torch.get_default_dtype),
    ("deterministic algorithms", lambda: torch._C._get_deterministic_algorithms),
    ("the current device", lambda: _of_cuda("current_device", "_cuda_getDevice")),
    ("attention's fast path", lambda: torch.backends.mha.get_fastpath_enabled),
    ("the number of dispatch modes", lambda: torch._C._len_torch_dispatch_stack),
    ("the number of function modes", lambda: torch._C._len_torch_function_stack),
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
# What dynamo's guard of torch's global state sees in one call into C++, and the fields that it needs for it.
_AT_ONCE = frozenset(
    {*_AUTOCAST, "the default dtype", "deterministic algorithms", "half-precision sums"}
    | {"bfloat16 sums"}
)
_FIELDS = ("autocast_state", "default_dtype", "deterministic_algorithms")
_REDUCE = ("allow_fp16_reduce", "allow_bf16_reduce")


class Modes:
    """What is set while a graph is captured. Gradients are not among it: callers choose by them.

    Without `autocast`, nor is that. `stream_number` tells streams apart. Until it is told what is captured,
    everything is watched.
    """

    def __init__(self, *, autocast: bool = True) -> None:
        self._all = [each for each in _available() if autocast or each[0] not in _AUTOCAST]
        self._hooks = OF_ALL_MODULES
        self._off, self._on = _global_state()
        self.stream_number = _stream_number()
        self._operators: set[str] = set()
        self._variables: dict[str, Callable[[], object]] = {}
        self._watch(self._all)

    def watch(self, recording: Recording) -> None:
        """Watch what these operators' kernels, and those before, are chosen by, and what they asked the environment."""
        self._operators |= {_told_of(op) for each in recording.captured for op in each.ops}
        for event in recording.host:
            if event.kind == "outside" and event.name.startswith(OF_ENVIRONMENT):
                key = event.name.removeprefix(OF_ENVIRONMENT)
                self._variables[event.name] = partial(os.environ.get, key)
        chosen = [each for each in self._all if self._chooses(each[0])]
        self._watch([*chosen, *self._variables.items()])

    def _chooses(self, name: str) -> bool:
        words = _OF_SOME.get(name)
        return words is None or any(
            not operator.startswith(_TORCHS_OWN) or any(word in operator for word in words)
            for operator in self._operators
        )

    def _watch(self, found: list[tuple[str, Callable[[], object]]]) -> None:
        self._found, self._before = found, [ask() for _, ask in found]
        # Whether nothing is set otherwise. Asked before every replay.
        self.is_same = written_out(
            self._asks("(off() or on() or {at_once})", {"stream_number": self.stream_number})
        )

    def asks_without_gradients(self, parameters: Sequence[torch.Tensor]) -> Question:
        """Whether nothing is set otherwise on the stream of the number `stream`, and these want no gradients.

        Asked of a call whose tensors torch's guards have compared with those of a call that was answered.
        """
        wanting = "are_gradients_enabled() and any(map(wants_gradient, parameters))"
        given = {"are_gradients_enabled": torch.is_grad_enabled, "wants_gradient": _wants_gradient}
        return self._asks(
            f"(off() or not ({wanting}) and (on() or {{at_once}}))",
            {**given, "parameters": parameters},
            stream="stream",
            without=_SEEN_BY_FORM | {_SAVED},  # where nothing wants gradients, nothing is saved
        )

    def _asks(
        self,
        global_state: str,
        given: Mapping[str, object],
        *,
        stream: str = "stream_number()",
        without: Set[str] = frozenset(),
    ) -> Question:
        """Whether all is as before, and nothing hooked.

        torch does not tell some settings while their old and new names are mixed: no answer is a no.
        """
        asked = {**given, "off": self._off, "on": self._on, "forward_ad": forward_ad}
        terms = []
        for place, hooks in enumerate(self._hooks):
            asked[f"hooks{place}"] = hooks
            terms.append(f"not hooks{place}")
        at_once: list[str] = []
        for place, ((name, ask), was) in enumerate(zip(self._found, self._before, strict=True)):
            if name in without:
                continue
            asked |= {f"switch{place}": ask, f"was{place}": was}
            (at_once if name in _AT_ONCE else terms).append(_is_as_it_was(name, place, was, stream))
        return Question(all_of([global_state.format(at_once=all_of(at_once)), *terms]), asked)

    def difference(self) -> str:
        """What is set otherwise, in one sentence; "" where nothing is."""
        if any(self._hooks):
            return "a hook for all modules is registered, which a replay would not run"
        for (name, ask), before in zip(self._found, self._before, strict=True):
            try:
                now = ask()
            except RuntimeError as error:
                return f"torch does not tell {name}: {error}"
            if now != before:
                return f"{name} changed from {_short(before)} to {_short(now)}"
        return ""


def _told_of(op: Op) -> str:
    """Its name, and the dtypes of its tensors."""
    return " ".join([op.name, *sorted({use.dtype for use in (*op.inputs, *op.outputs)})])


def _is_as_it_was(name: str, place: int, was: object, stream: str) -> str:
    """Whether a switch is; an identity where there is one, which is quicker than to compare."""
    if name == _LEVEL:
        return f"forward_ad._current_level == was{place}"
    same = "is" if type(was) in (bool, NoneType, torch.dtype) else "=="
    asked = f"switch{place}() {same} was{place}"
    if name != _CAPTURE or was is not False or entered() is not None:
        return asked
    # Nothing is captured on the default stream, so that the driver is asked about others only.
    return f"({stream} == 0 or {asked})"


def _global_state() -> tuple[Callable[[], bool], Callable[[], bool]]:
    """Whether nothing in torch's global state is another; where both say no, each switch is to be asked.

    Gradients are part of that state, so that there is a guard for each.
    """
    try:
        guard: Any = torch._C._dynamo.guards.GlobalStateGuard
        with torch.no_grad():
            without = guard()
        with torch.enable_grad():
            wanted = guard()
        seen = json.loads(without.__getstate__())
        if not all(field in seen for field in (*_FIELDS, *_REDUCE)):
            return _never, _never
        if "dtype" not in seen["autocast_state"]:
            return _never, _never
    except Exception:  # another torch's guard tells no fields
        return _never, _never
    return without.check, wanted.check


def _never() -> bool:
    return False


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


def _available() -> Iterator[tuple[str, Callable[[], object]]]:
    for name, find in _SWITCHES:
        try:
            ask = find()
            ask()
        except (AttributeError, RuntimeError, AssertionError):
            continue
        yield name, ask

"""Raises an error in a block of a test that names each line on which the host waits for the GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, closing
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from graphdoctor.device.emulated import entered
from graphdoctor.device.real import RealStorageTable, WatchedDevice
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.diagnose.suppress import suppress
from graphdoctor.record.operators import OperatorObserver
from graphdoctor.record.scopes import Scopes
from graphdoctor.rules import ALL_RULES
from graphdoctor.values.errors import CannotDoItHere, HostWaited, UsageError
from graphdoctor.values.escape import visible
from graphdoctor.values.figures import count_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.host_events import HostEvent
from graphdoctor.values.locations import file_line
from graphdoctor.values.recording import Iteration, Recording

_WAITING = tuple(rule for rule in ALL_RULES if rule.makes_host_wait)
_GPU = WatchedDevice()  # one for all threads: what it replaces in torch belongs to all of them


class no_sync(ContextDecorator):
    """Fail where the host waits for the GPU inside of the block, or copies memory that is not pinned.

    For tests, on a GPU or on the emulated device. At the block's end `HostWaited`, an AssertionError,
    names each line, the rule and the fix. Lines in `with graphdoctor.allowed("GD101", reason="..."):`,
    or with a comment `# graphdoctor: ignore[GD101]`, are let pass. Of one guard that is entered again
    and again, the first `warm_up` passes may wait: caches fill, kernels compile. Each thread has its
    own passes, and what other threads do does not count.

    Seen are operators and calls of torch.cuda; not seen is what an extension in C++ does by itself,
    and what runs inside of a CUDA graph. On a GPU, code under `torch.compile` runs eagerly in it.
    Raises CannotDoItHere where there is neither a GPU nor an emulated device.
    """

    def __init__(self, *, warm_up: int = 0) -> None:
        if warm_up < 0:
            raise UsageError(f"warm_up must be a whole number of at least 0, not {warm_up}")
        self._warm_up = warm_up
        self._of_thread = threading.local()

    def __enter__(self) -> no_sync:
        passes = self._of_thread.passes = getattr(self._of_thread, "passes", 0) + 1
        watch = _Watch() if passes > self._warm_up else None
        if watch is not None:
            watch.begin()
        self._watches.append(watch)
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> Literal[False]:
        watch = self._watches.pop()
        if watch is None:
            return False
        found = watch.end()
        if kind is None and found:  # an error of the block itself says more
            raise HostWaited("\n".join(_lines(found)))
        return False

    @property
    def _watches(self) -> list[_Watch | None]:
        """Of this thread, innermost last: a function that is guarded may call itself."""
        if not hasattr(self._of_thread, "watches"):
            self._of_thread.watches = []
        watches: list[_Watch | None] = self._of_thread.watches
        return watches


class _OwnThread(OperatorObserver):
    """Only of what the thread does that made it, and autograd for its sake."""

    def __init__(self, table: Any, device_of: Any) -> None:
        super().__init__(table, Scopes({}), iteration=1, named={}, device_of=device_of)
        self._thread = threading.get_ident()

    def event(self, event: HostEvent) -> None:
        if threading.get_ident() == self._thread or self._is_in_its_backward():
            super().event(event)

    def _is_in_its_backward(self) -> bool:
        """autograd's own thread has the modes of the one that called it."""
        modes = _get_current_dispatch_mode_stack()
        return any(self in getattr(mode, "observers", ()) for mode in modes)


class _Watch:
    """One pass through the block."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def begin(self) -> None:
        emulated = entered()
        observing: AbstractContextManager[None]
        if emulated is not None:
            self._kind: Literal["emulated", "cuda"] = "emulated"
            self._observer = _OwnThread(emulated.table, emulated.device_name_of)
            observing = emulated.observed_by(self._observer)
        elif torch.cuda.is_available():
            self._kind = "cuda"
            table = self._stack.enter_context(closing(RealStorageTable()))
            self._observer = _OwnThread(table, _GPU.device_name_of)
            observing = _GPU.observed_in_this_thread(self._observer, table)
        else:
            raise CannotDoItHere(
                "graphdoctor.no_sync() needs a GPU, and torch finds none here: run the block inside"
                " `with graphdoctor.EmulatedDevice():`, or in a test with the fixture `graphdoctor`"
            )
        self._stack.enter_context(observing)

    def end(self) -> tuple[Finding, ...]:
        """What made the host wait, and is not allowed to."""
        self._stack.close()
        observer = self._observer
        iteration = Iteration(
            index=0,
            capturing=False,
            inputs=(),
            ops=tuple(observer.ops),
            events=tuple(observer.events),
            externals=tuple(observer.externals.values()),
            outputs=(),
            changes=(),
        )
        recording = Recording(device=self._kind, mode="inference", eager=(), captured=(iteration,))
        found = diagnose(recording, _WAITING).findings
        marked, _ = suppress(found, recording, file="")
        return tuple(finding for finding in marked if finding.suppressed is None)


def _lines(found: Sequence[Finding]) -> Iterator[str]:
    yield f"the host waits for the GPU in {count_text(len(found), 'place')}"
    for finding in found:
        yield ""
        where = f"{file_line(finding.location)}: " if finding.location is not None else ""
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        yield visible(f"{where}{finding.rule} {finding.name}{times}")
        if finding.location is not None and finding.excerpt is not None:
            line = finding.excerpt.lines[finding.location.line - finding.excerpt.first_line]
            yield f"    {visible(line.strip())}"
        yield f"  {visible(finding.message)}"
        yield f"  Fix: {visible(finding.fix)}"
        yield from (f"    {visible(line)}" for line in finding.fix_code)
    yield ""
    yield 'Where it is wanted: `with graphdoctor.allowed("ID", reason="..."):` around the line.'

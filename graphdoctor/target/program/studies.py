"""Save the beginnings of a step that was found, diagnose it in the middle of the program, and restore all."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

from graphdoctor.target.program.rebuild import NotRebuilt
from graphdoctor.target.program.step import Outcome, SeenStep
from graphdoctor.target.state.snapshot import snapshot
from graphdoctor.target.target import Target
from graphdoctor.values.errors import Interrupted
from graphdoctor.values.locations import Location
from graphdoctor.values.options import Bounds
from graphdoctor.values.program import NotReached

Diagnose = Callable[[Target], Outcome]
Waits = Counter[tuple[Location | None, str]]
Observe = Callable[[Waits], AbstractContextManager[None]]
FEWEST_STEPS = 2  # steps without which nothing can be compared


class Studies:
    """Keeps beginnings of steps and diagnoses each kind once. `is_busy`: what runs now is no program.

    `wall_s` is the time that all of it took.
    """

    def __init__(self, diagnose: Diagnose, bounds: Bounds, observe: Observe) -> None:
        self._diagnose = diagnose
        self._bounds = bounds
        self._observe = observe
        self._gap = ExitStack()  # open from the end of a step that is saved to the next beginning
        self._lock = threading.Lock()
        self.is_busy = False
        self.wall_s = 0.0
        self._studying_s = 0.0

    @property
    def now_s(self) -> float:
        """The time, but for that of diagnoses."""
        return time.perf_counter() - self._studying_s

    def close_gap(self) -> None:
        """The next step begins."""
        self._gap.close()

    def enter(self, step: SeenStep, keep: Callable[[], None], autocast: bool | None) -> None:
        """A step begins: keep its beginning where it is its turn, and diagnose where there are enough."""
        self.close_gap()
        before = self.wall_s
        self.keep(step, keep, autocast)
        # Not inside a run that assumes a capture, which would count the diagnosis as the step's work. The question
        # makes `capture()` record its step outside of one, too, and the diagnosis is made there.
        is_capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if step.beginnings >= self._needed(step) and not is_capturing:
            self._study_once(step, autocast)
        if step.entered_at is not None:
            step.entered_at += self.wall_s - before

    def has_enough(self, step: SeenStep) -> bool:
        """Whether enough beginnings are saved, and nothing was diagnosed yet."""
        return not step.is_done and not step.reason and step.beginnings >= self._needed(step)

    def is_due(self, step: SeenStep) -> bool:
        """Whether enough of this kind have passed for this one to be saved."""
        return step.begun > self._bounds.after and step.knows_passes

    def finish(self, step: SeenStep) -> None:
        """The program has ended: diagnose what was saved, where it can be compared."""
        if step.beginnings >= FEWEST_STEPS * step.passes_per_step:
            self._study_once(step, None)

    def leave(self, step: SeenStep) -> None:
        """A step has ended: watch what the program does until the next one, if it is saved."""
        began = time.perf_counter()
        step.leave()
        if step.saved is not None and not step.is_done:
            self.close_gap()
            self._gap.enter_context(self._observe(step.waits))
            step.gaps += 1
        self.wall_s += time.perf_counter() - began

    def keep(self, step: SeenStep, keep: Callable[[], None], autocast: bool | None) -> None:
        """Note how a step begins, where enough have passed and more are needed."""
        if step.is_done or step.reason or not self.is_due(step):
            return
        if step.beginnings >= self._needed(step):
            return
        with self._lock, _surrounded(autocast):
            began = time.perf_counter()
            step.is_recorded = True
            try:
                keep()
            except NotRebuilt as reason:
                step.reason = str(reason)
            finally:
                self.wall_s += time.perf_counter() - began

    def _needed(self, step: SeenStep) -> int:
        return self._bounds.steps * step.passes_per_step

    def _study_once(self, step: SeenStep, autocast: bool | None) -> None:
        if step.is_done or step.reason:
            return
        with self._lock:
            began = time.perf_counter()
            try:
                self._study(step, autocast)
            finally:
                took_s = time.perf_counter() - began
                self.wall_s += took_s
                self._studying_s += took_s

    def _study(self, step: SeenStep, autocast: bool | None) -> None:
        """Put the program back to the first beginning, diagnose, and put everything to where it is."""
        assert step.saved is not None
        step.is_done, self.is_busy = True, True
        outer = snapshot({})
        try:
            with _surrounded(autocast):
                target = step.target(iterations=self._bounds.steps)
                now = snapshot({**step.saved.roots, **target.roots})
                try:
                    step.saved.start.restore()
                    step.outcome = self._diagnose(target)
                    if step.is_incomplete:  # nothing true can be said of it
                        step.outcome = None
                        raise NotRebuilt(
                            "Run again by themselves, these lines did not step the optimizer, so they are not the whole"
                            " step: mark it with `with graphdoctor.step():`."
                        )
                finally:
                    now.restore()
        except NotRebuilt as reason:
            step.reason = str(reason)
        except Interrupted as error:
            step.outcome = error.report
            raise KeyboardInterrupt from None  # what the program knows
        except KeyboardInterrupt:
            step.outcome = NotReached("Its diagnosis was interrupted.")
            raise
        except Exception as error:  # a fault of ours, which must not end the program
            step.reason = (
                f"This is a bug in graphdoctor, please report it: {type(error).__name__}: {error}"
            )
        finally:
            outer.restore()
            step.saved = None
            self.is_busy = False


@contextmanager
def _surrounded(autocast: bool | None) -> Iterator[None]:
    """The modes around a step, where those of now are of a statement in it.

    Copies that autocast keeps of weights are none of the step's: a capture would read them for ever.
    """
    is_on = {kind: torch.is_autocast_enabled(kind) for kind in ("cuda", "cpu")}
    keeps = torch.is_autocast_cache_enabled()
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    if autocast is False:
        for kind in is_on:
            torch.set_autocast_enabled(kind, False)
        for _ in range(depth):
            torch.autocast_decrement_nesting()
    elif any(is_on.values()):
        torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        if autocast is False:
            for _ in range(depth):
                torch.autocast_increment_nesting()
        for kind, enabled in is_on.items():
            torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_cache_enabled(keeps)
        torch.clear_autocast_cache()

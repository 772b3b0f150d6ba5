"""A step and inputs that are drawn anew -> those that the step accepts with other values; the rest as given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from graphdoctor.device.observe.storages import parts_of
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.snapshot import named_tensors, snapshot
from graphdoctor.target.state.tree import leaves
from graphdoctor.target.target import Inputs, Target
from graphdoctor.values.errors import GraphDoctorError

FIXED = "every iteration gets the inputs as they were given"
_MOST_TRIALS = 24  # each runs the step once
_LONGEST = 160

Run = Callable[[Inputs], object]


def with_fixed_inputs(target: Target) -> Target:
    """The target, whose every call gets the values that it was described with."""
    first = target.fresh_inputs()
    state = memory_of(named_tensors(target.roots).values())
    return replace(
        target,
        fresh_inputs=lambda: clone_inputs(first, kept=state),
        variation=None,
        has_fixed_inputs=True,
        notes=(*target.notes, FIXED),
    )


def settled(target: Target, run: Run, *, given: object) -> Target:
    """Find out by throw-away runs which inputs may have other values; the others stay as given.

    `given` is what `run` returned for the inputs as they were given. An input is kept where the step
    raises with other values of it, or gives results that are not finite, which they were. State is
    afterwards as it was before.
    """
    variation = target.variation
    if variation is None or not variation.varied:
        return target
    before = snapshot(target.roots)
    search = _Search(target, run, before.restore, must_be_finite=_is_finite(given))
    try:
        kept = search.kept(variation.varied)
    finally:
        before.restore()
    if not kept:
        return target
    variation.keep(kept)
    return replace(
        target,
        has_fixed_inputs=not variation.varied,
        notes=(*target.notes, _note(kept, search.why)),
    )


def _note(kept: Sequence[str], why: str) -> str:
    names = ", ".join(kept)
    return f"{names}: kept as given, because with other values of the same range {why}"


@dataclass
class _Search:
    """Halves what does not go together until each input is known to vary, or to be kept."""

    target: Target
    run: Run
    restore: Callable[[], None]
    must_be_finite: bool
    why: str = ""
    _accepted: list[str] = field(default_factory=list)
    _trials: int = 0

    def kept(self, paths: Sequence[str]) -> list[str]:
        self._accept(list(paths))
        return [path for path in paths if path not in self._accepted]

    def _accept(self, paths: list[str]) -> None:
        if self._trials < _MOST_TRIALS and self._works([*self._accepted, *paths]):
            self._accepted += paths
        elif len(paths) > 1:
            self._accept(paths[: len(paths) // 2])
            self._accept(paths[len(paths) // 2 :])

    def _works(self, paths: list[str]) -> bool:
        self._trials += 1
        assert self.target.variation is not None
        with self.target.variation.trying(paths):
            inputs = self.target.fresh_inputs()
        try:
            result = self.run(inputs)
        except Exception as error:  # whatever the step raises
            self.why = self.why or f"the step fails ({_words(error)})"
            return False
        finally:
            self.restore()
        if self.must_be_finite and not _is_finite(result):
            self.why = self.why or "it gives results that are not finite"
            return False
        return True


def _words(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, GraphDoctorError) and error.__cause__ else error
    first = (str(cause).strip().splitlines() or [""])[0]
    text = f"{type(cause).__name__}: {first}" if first else type(cause).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _is_finite(result: object) -> bool:
    """Whether all floating tensors that the step returned are; one that returns none is."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return all(map(_has_finite_values, leaves(result, "output").values()))


def _has_finite_values(leaf: object) -> bool:
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or leaf.is_nested:
        return True
    return bool(parts_of(leaf)[0].detach().isfinite().all())

"""Find what Python changes between two eager calls of a split step, which replays leave out."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphdoctor.graphs.split.glue import glue_objects
from graphdoctor.graphs.split.pending import Watch
from graphdoctor.graphs.static_inputs import is_same_value
from graphdoctor.target.state.snapshot import named_state, named_tensors

_ABSENT = object()


class PythonChanges:
    """Compares state before and after each stretch of the step's own Python.

    `rebound` has the tensors that it put into attributes, by path; None where it removed one. Each
    call leaves those of the captured run behind. What the glue looks at must not change there at
    all: an optimizer whose rate the step sets in Python would go on with the captured one.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self.rebound: dict[str, torch.Tensor | None] = {}
        self._roots = roots
        self._glue = glue_objects(roots)
        self._before: dict[str, torch.Tensor] = {}
        self._glue_before: dict[str, object] = {}

    def before_python(self) -> None:
        self._before = named_tensors(self._roots, with_gradients=False)
        self._glue_before = self._glue_state()

    def after_python(self, watch: Watch) -> None:
        """Raises `StepRefused` where Python changed what the glue depends on."""
        after = self._glue_state()
        for path in self._glue_before.keys() | after.keys():
            if not _is_same(self._glue_before.get(path, _ABSENT), after.get(path, _ABSENT)):
                owners = [name for name in self._glue if path.startswith(name)]
                owner = max(owners, key=len, default="an optimizer, schedule or scaler")
                watch.refuse(
                    f"the step changes {path} in Python, on which {owner} depends; "
                    "Python between the graphs is not run again"
                )
        now = named_tensors(self._roots, with_gradients=False)
        for path in self._before.keys() | now.keys():
            if self._before.get(path) is not now.get(path):
                self.rebound[path] = now.get(path)

    def _glue_state(self) -> dict[str, object]:
        # Gradients come and go in every step; `Gradients` keeps track of them.
        tensors, values = named_state(self._glue, with_gradients=False)
        return {**values, **tensors}


def _is_same(before: object, after: object) -> bool:
    if isinstance(before, torch.Tensor) or isinstance(after, torch.Tensor):
        return before is after
    if before is _ABSENT or after is _ABSENT:
        return False
    return is_same_value(before, after)

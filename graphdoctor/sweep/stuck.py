"""A step's outputs as described, and at another batch size -> those that the batch did not reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Stuck:
    """`text` names the outputs that keep the described batch's size, "" for none.

    `is_all`: no output followed, so that the step did not run at the wanted size at all.
    """

    text: str = ""
    is_all: bool = False


def stuck_outputs(before: Shapes, now: Shapes, *, described: int, batch: int) -> Stuck:
    """Outputs with as many rows as before: broadcasting against a cache hides a wrong batch.

    From a batch of 1 nothing can be concluded: an output of one row may be a summary.
    """
    if batch == described:
        return Stuck()
    sized = [path for path, shape in before.items() if shape and shape[0] == described]
    kept = [path for path in sized if now.get(path, ())[:1] == (described,)]
    if not kept or described == 1:
        return Stuck()
    follows = any(now.get(path, ())[:1] == (batch,) for path in sized)
    text = (
        f"{', '.join(kept)} {'keeps' if len(kept) == 1 else 'keep'} the {described} rows of the"
        " described batch: something that was not changed decides how many there are"
    )
    return Stuck(text, is_all=not follows)

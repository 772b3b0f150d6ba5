"""An iteration in, the operators that seed cuDNN's dropout because the recording set the generator's state out."""

from __future__ import annotations

from graphdoctor.values.recording import Iteration

# aten/src/ATen/native/cudnn/RNN.cpp, get_dropout_state: after the generator's state was set, the
# first RNN with dropout draws a seed, reads it on the host and makes its state anew.
_SEEDING = ("random_", "_local_scalar_dense", "_cudnn_init_dropout_state")


def dropout_seeding(iteration: Iteration) -> frozenset[int]:
    """Their indices; none where the step itself seeds the generator, since each replay would too.

    Every series of iterations begins with the generator's state put back, so its first iteration
    shows what no step in a row does.
    """
    if any(event.kind == "rng-state" for event in iteration.events):
        return frozenset()
    found: set[int] = set()
    names = [op.base_name for op in iteration.ops]
    for place, name in enumerate(names):
        if name == _SEEDING[-1] and tuple(names[max(0, place - 2) : place + 1]) == _SEEDING:
            found.update(range(place - 2, place + 1))
            if place > 2 and names[place - 3] == "empty":
                found.add(place - 3)
    return frozenset(iteration.ops[place].index for place in found)

"""Steps by what goes in and comes out."""

from __future__ import annotations

import collections
import dataclasses

import torch

from odd.step import odd, x8


@dataclasses.dataclass
class Batch:
    data: torch.Tensor
    scale: float = 2.0


Pair = collections.namedtuple("Pair", ["left", "right"])


@odd
def dataclass_made_inside():
    return lambda x: Batch(x * 2), (x8(),)


@odd
def namedtuple_out():
    return lambda x: Pair(x * 2, right=x + 1), (x8(),)


@odd
def generator_out():
    return lambda x: sum(part * 2 for part in x.unbind()), (x8(),)


@odd
def none_and_numbers_out():
    return lambda x: {"y": x * 2, "n": None, "k": 3, "shape": x.shape}, (x8(),)


@odd
def input_returned():
    return lambda x: (x, x.t(), x * 2), (x8(),)


@odd
def input_written():
    return lambda x: x.mul_(2), (x8(),)

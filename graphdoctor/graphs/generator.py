"""The state of the generator that device operators draw from, on a real or the emulated device."""

from __future__ import annotations

import torch

from graphdoctor.target.state.kinds.plain_values import set_random_state, sharing_state


def generator_state() -> torch.Tensor:
    """The state of the current device's generator."""
    return _generator().get_state()


def set_generator_state(state: torch.Tensor) -> None:
    set_random_state(_generator(), state)


def seed_generators(seed: int) -> None:
    """As `torch.cuda.manual_seed_all`, but cuDNN's dropout state is left as it is."""
    for generator in torch.cuda.default_generators:
        sharing_state(generator).manual_seed(seed)


def _generator() -> torch.Generator:
    """The emulated device draws from the CPU's generator, which stands in `default_generators` there."""
    generators = torch.cuda.default_generators
    generator: torch.Generator = generators[torch.cuda.current_device()]
    return generator

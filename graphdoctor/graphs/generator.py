"""The state of the generator that device operators draw from, on a real or the emulated device."""

from __future__ import annotations

import torch


def generator_state() -> torch.Tensor:
    """The state of the current device's generator."""
    return _generator().get_state()


def set_generator_state(state: torch.Tensor) -> None:
    _generator().set_state(state)


def _generator() -> torch.Generator:
    """The emulated device draws from the CPU's generator, which stands in `default_generators` there."""
    generators = torch.cuda.default_generators
    generator: torch.Generator = generators[torch.cuda.current_device()]
    return generator

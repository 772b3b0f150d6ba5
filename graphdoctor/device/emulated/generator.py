"""The device generator's state: read, set and seeded through stand-ins that tell what a capture refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from graphdoctor.device.emulated.logical import LogicalDevice
from graphdoctor.device.observe.host_calls import refusal_of_rng_call, rng_call_name
from graphdoctor.device.observe.patches import Patches
from graphdoctor.values.host_events import RngState


def stand_in_for_random_state(device: LogicalDevice, patches: Patches) -> None:
    """The emulated device draws from the CPU's generator, so its state is that one."""

    def telling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            called = rng_call_name(name, sys._getframe(1))
            _tell(device, called, torch.default_generator, (name, args, kwargs))
            result = function(*args, **kwargs)
            if name in ("get_rng_state", "get_rng_state_all"):
                device.state_was_read(generator.get_state())
            elif name in ("set_rng_state", "set_rng_state_all"):
                device.state_was_set(generator.get_state())
            return result

        return call

    generator = torch.default_generator
    functions: dict[str, Callable[..., Any]] = {
        "get_rng_state": lambda device="cuda": generator.get_state(),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state": lambda new_state, device="cuda": generator.set_state(new_state),
        "set_rng_state_all": lambda new_states: generator.set_state(new_states[0]),
        "manual_seed": lambda seed: generator.manual_seed(int(seed)),
        "manual_seed_all": lambda seed: generator.manual_seed(int(seed)),
        "seed": generator.seed,
        "seed_all": generator.seed,
        "initial_seed": generator.initial_seed,
    }
    for name, function in functions.items():
        for module in (torch.cuda, torch.cuda.random):
            patches.set(module, name, telling(name, function))
    patches.set(torch.cuda, "default_generators", (generator,) * device.rank.count)
    patches.set(torch, "Generator", _generator_class(device, torch.Generator))


def _tell(
    device: LogicalDevice,
    name: str,
    generator: torch.Generator,
    call: tuple[str, tuple[Any, ...], dict[str, Any]],
) -> None:
    method, args, kwargs = call
    argument = args[0] if args else next(iter(kwargs.values()), None)
    refusal = refusal_of_rng_call(
        method, argument, current_seed=generator.initial_seed, seed_of=_seed_of
    )
    device.event(RngState(name, refusal=refusal))


_PLAIN_GENERATOR = torch.Generator


def _seed_of(state: torch.Tensor) -> int:
    generator = _PLAIN_GENERATOR()
    generator.set_state(state)
    return int(generator.initial_seed())


def _generator_class(
    emulated: LogicalDevice, original: type[torch.Generator]
) -> type[torch.Generator]:
    class AnyGenerator(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, original)

    class Generator(original, metaclass=AnyGenerator):  # type: ignore[misc, valid-type]
        """A generator of the emulated device draws on the CPU and says where it belongs."""

        def __new__(cls, device: Any = "cpu") -> Any:
            made: Any = original.__new__(cls, "cpu")  # type: ignore[call-arg]
            made._logical = torch.device(device)
            return made

        @property
        def device(self) -> torch.device:
            where: torch.device = self._logical
            return torch.device("cuda", emulated.rank.index) if where.type == "cuda" else where

        def manual_seed(self, seed: int) -> Any:
            self._tell("manual_seed", "manual_seed", seed)
            return super().manual_seed(seed)

        def set_state(self, new_state: torch.Tensor) -> Any:
            self._tell("set_state", "set_rng_state", new_state)
            return super().set_state(new_state)

        def seed(self) -> int:
            self._tell("seed", "seed")
            return int(super().seed())

        def get_state(self) -> torch.Tensor:
            self._tell("get_state", "get_rng_state")
            state: torch.Tensor = super().get_state()
            return state

        def graphsafe_get_state(self) -> torch.Generator:
            state: torch.Generator = self.clone_state()
            return state

        def graphsafe_set_state(self, state: torch.Generator) -> Any:
            super().set_state(original.get_state(state))
            return self

        def _tell(self, name: str, method: str, *args: Any) -> None:
            if self._logical.type == "cuda":
                _tell(emulated, f"torch.Generator.{name}()", self, (method, args, {}))

    return Generator

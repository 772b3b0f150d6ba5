"""As much of gymnasium as programs of reinforcement learning ask for, around one small linear system.

What is measured is the training step: the environment only has to give observations of the right shape.
Programs here write figures with SummaryWriter, which would need another package; it keeps nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

OBSERVED, EPISODE = {"discrete": 4, "box": 11}, 200


class Space:
    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.random = np.random.default_rng(0)

    def seed(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)


class Box(Space):
    def __init__(self, low: float, high: float, shape: tuple[int, ...]) -> None:
        super().__init__(shape, np.float32)
        self.low, self.high = (np.full(shape, each, np.float32) for each in (low, high))

    def sample(self) -> np.ndarray:
        return self.random.uniform(self.low, self.high).astype(np.float32)


class Discrete(Space):
    def __init__(self, n: int) -> None:
        super().__init__((), np.int64)
        self.n = n

    def sample(self) -> np.int64:
        return np.int64(self.random.integers(self.n))


class _Unused(Space):
    """A kind of space that no environment here has."""


class Env:
    def __init__(self, name: str) -> None:
        is_discrete = name.startswith("CartPole")
        size = OBSERVED["discrete" if is_discrete else "box"]
        self.action_space = Discrete(2) if is_discrete else Box(-1.0, 1.0, (3,))
        self.observation_space = Box(-10.0, 10.0, (size,))
        self.observation_space.dtype = np.float32 if is_discrete else np.float64
        self.system = np.random.default_rng(1).normal(0, 0.3, (size, size))
        self.random = np.random.default_rng(0)

    def reset(self, seed: int | None = None) -> np.ndarray:
        if seed is not None:  # without one, the environment draws on, as gymnasium's do
            self.random = np.random.default_rng(seed)
        self.at, self.state = 0, self.random.normal(0, 1, len(self.system))
        return self.state

    def step(self, action: Any) -> tuple[np.ndarray, float, bool]:
        self.at += 1
        self.state = np.tanh(self.system @ self.state) + 0.1 * np.sum(action)
        self.state += self.random.normal(0, 0.1, len(self.state))
        return self.state, float(-np.abs(self.state).mean()), self.at >= EPISODE


class SyncVectorEnv:
    def __init__(self, makers: Any) -> None:
        self.envs = [make() for make in makers]
        self.num_envs = len(self.envs)
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        if isinstance(one := self.single_action_space, Box):
            shape = (self.num_envs, *one.shape)
            self.action_space = Box(one.low.flat[0], one.high.flat[0], shape)

    def reset(self, seed: int = 0) -> tuple[np.ndarray, dict[str, Any]]:
        return self._observed([each.reset(seed + i) for i, each in enumerate(self.envs)]), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        steps = [each.step(action) for each, action in zip(self.envs, actions, strict=True)]
        observed = [
            each.reset() if step[2] else step[0]
            for each, step in zip(self.envs, steps, strict=True)
        ]
        rewards, ended = (
            np.array([step[1] for step in steps]),
            np.array([step[2] for step in steps]),
        )
        return self._observed(observed), rewards, ended, np.zeros(self.num_envs, bool), {}

    def _observed(self, states: list[np.ndarray]) -> np.ndarray:
        return np.stack(states).astype(self.single_observation_space.dtype)

    def close(self) -> None:
        pass


class SummaryWriter:
    def __init__(self, *_: Any) -> None: ...
    def add_text(self, *_: Any) -> None: ...
    def add_scalar(self, *_: Any) -> None: ...
    def close(self) -> None: ...


def make(name: str, **_: Any) -> Env:
    return Env(name)


def _unchanged(env: Env, *_: Any, **__: Any) -> Env:
    return env


_WRAPPERS = ("RecordEpisodeStatistics", "FlattenObservation", "ClipAction", "NormalizeObservation",
             "TransformObservation", "NormalizeReward", "TransformReward")  # fmt: skip
wrappers = SimpleNamespace(**dict.fromkeys(_WRAPPERS, _unchanged))
vector = SimpleNamespace(SyncVectorEnv=SyncVectorEnv)
_OTHERS = {name: type(name, (_Unused,), {}) for name in ("MultiDiscrete", "MultiBinary", "Dict")}
spaces = SimpleNamespace(Space=Space, Box=Box, Discrete=Discrete, **_OTHERS)

_tensorboard = ModuleType("torch.utils.tensorboard")
_tensorboard.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
sys.modules["torch.utils.tensorboard"] = _tensorboard

"""Optimizers of a captured step: what a capture needs of them, and what may change between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_, itemgetter
from typing import Any

import torch

from graphdoctor.target.state.walk import Walk

Group = dict[str, Any]
_RATE, _BETAS, _DECAY = "lr", "betas", "weight_decay"
# These compute with a learning rate in a tensor; the others call `.item()` of it, which a capture refuses.
_TENSOR_RATE = (torch.optim.Adam, torch.optim.AdamW)
_MORE_DIGITS = 1 + 2**-26  # less than half of float32's last digit
_NOT_OPTIONS = frozenset({"params", "initial_lr", "param_names"})


def optimizers_in(roots: Mapping[str, object]) -> list[torch.optim.Optimizer]:
    """The optimizers that the roots reach, each once."""
    found = (v for _, v, _ in Walk(roots) if isinstance(v, torch.optim.Optimizer))
    return list({id(optimizer): optimizer for optimizer in found}.values())


def scalers_in(roots: Mapping[str, object]) -> list[torch.amp.GradScaler]:
    """The enabled gradient scalers that the roots reach."""
    found = (v for _, v, _ in Walk(roots) if isinstance(v, torch.amp.GradScaler))
    return [scaler for scaler in found if scaler.is_enabled()]


class FilledNumber:
    """A number that a graph reads from a tensor on the GPU, and the value that the tensor has."""

    def __init__(self, value: float, device: torch.device) -> None:
        self.filled = value
        with torch.inference_mode(False):  # calls outside it fill the tensor, too
            self.tensor = torch.tensor(value, dtype=torch.float32, device=device)

    def fill(self, value: float) -> None:
        """Write a value that is not there yet: by text, so that a NaN is no change, and -0.0 is one."""
        if repr(value) != repr(self.filled):
            self.tensor.fill_(value)
        self.filled = value


def float_behind(tensor: torch.Tensor) -> float:
    """A float that fills such a tensor with its value, and has more digits, as the floats of programs have.

    A step in float64 computes with all of them, and so differs from replays that read the tensor.
    """
    return float(tensor.item() * _MORE_DIGITS)


class _Option(FilledNumber):
    """An option of a parameter group that a graph reads from a tensor on the GPU."""

    def __init__(self, group: Group, option: str) -> None:
        self.group, self.option = group, option
        super().__init__(self.now, group["params"][0].device)

    @property
    def now(self) -> float:
        """The program's current value: a number, or the first of `betas`."""
        value = self.group[self.option]
        return float(value[0] if self.option == _BETAS else value)

    @property
    def with_tensor(self) -> object:
        """The option as the optimizer gets it inside the step, which decays weights before the optimizer does."""
        if self.option == _BETAS:
            return (self.tensor, *self.group[self.option][1:])
        return 0.0 if self.option == _DECAY else self.tensor

    def decay(self, *_: object) -> None:
        """Decay the weights as AdamW does, with numbers in tensors: its kernels take `weight_decay` as a number."""
        weights = [weight for weight in self.group["params"] if weight.grad is not None]
        if weights:
            with torch.no_grad():
                torch._foreach_mul_(weights, 1 - self.group[_RATE] * self.tensor)


class Numbers:
    """Options of optimizers that change between steps: tensors on the GPU while a step runs.

    Between steps they are the program's own numbers: a schedule or an assignment changes `group["lr"]` as
    always, and `fill` copies it to where graphs read it.
    """

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], *, is_scaled: bool = False
    ) -> None:
        self._is_scaled = is_scaled
        self._numbers: list[_Option] = []
        self._decays: list[tuple[torch.optim.Optimizer, _Option]] = []
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                takes_tensor = isinstance(optimizer, _TENSOR_RATE) or group.get("fused")
                if isinstance(group.get(_RATE), (int, float)) and takes_tensor and _on_gpu(group):
                    self._numbers.append(_Option(group, _RATE))

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [number.tensor for number in self._numbers]

    def fill(self) -> None:
        """Write the program's current numbers into the tensors that graphs read."""
        for number in self._numbers:
            if number.group[number.option] is not number.filled:
                number.fill(number.now)

    @contextmanager
    def as_tensors(self) -> Iterator[None]:
        """Let optimizers compute with the tensors in this block."""
        self.fill()
        before = [(n.group, n.option, n.group[n.option], n.with_tensor) for n in self._numbers]
        for group, option, _, tensor in before:
            group[option] = tensor
        hooks = [each.register_step_pre_hook(number.decay) for each, number in self._decays]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for group, option, number, tensor in before:
                if group[option] is tensor:
                    group[option] = number

    def covers(self, group: Group, option: str) -> bool:
        """Whether a graph reads this option from a tensor."""
        return any(n.group is group and n.option == option for n in self._numbers)

    def add_momentum(self, optimizer: torch.optim.Optimizer) -> bool:
        """Read the first of Adam's betas from a tensor, too, as OneCycleLR changes it in each step.

        Only Adam's loop over single tensors computes with it, which a GradScaler cannot skip on the GPU.
        Returns whether this was possible.
        """
        if not isinstance(optimizer, _TENSOR_RATE) or self._is_scaled:
            return False
        missing = [g for g in optimizer.param_groups if not self.covers(g, _BETAS) and _on_gpu(g)]
        for group in missing:
            group["foreach"] = group["fused"] = False
            self._numbers.append(_Option(group, _BETAS))
        if missing:
            optimizer._step_supports_amp_scaling = False
        return bool(missing)

    def add_decay(self, optimizer: torch.optim.Optimizer) -> bool:
        """Read the weight decay of AdamW from a tensor, too, as DINO changes it in each step.

        A GradScaler that skips a step on the GPU would not skip the decay. Returns whether this was possible.
        """
        if not isinstance(optimizer, torch.optim.AdamW) or self._is_scaled:
            return False
        groups = [group for group in optimizer.param_groups if group[_DECAY] and _on_gpu(group)]
        added = [_Option(each, _DECAY) for each in groups if not self.covers(each, _DECAY)]
        self._numbers += added
        self._decays += [(optimizer, number) for number in added]
        return bool(added)


def _on_gpu(group: Group) -> bool:
    return bool(group["params"]) and all(p.is_cuda for p in group["params"])


class OptimizerGuard:
    """What a graph froze of an optimizer: its options, and which objects hold its state."""

    def __init__(self, optimizer: torch.optim.Optimizer, numbers: Numbers) -> None:
        self._optimizer = optimizer
        self._groups, self._state = optimizer.param_groups, optimizer.state
        # What others add later, with steps of other parameters, comes after it.
        self._held = dict(self._state)
        self._entries = list(self._held.values())
        self._each = list(self._groups)
        self._names: list[list[str]] = []
        self._readers: list[tuple[Callable[[Group], tuple[object, ...]], Group]] = []
        for group in self._each:
            names = [n for n in group if n not in _NOT_OPTIONS and not numbers.covers(group, n)]
            self._names.append(names)
            self._readers.append((itemgetter(*names, *names[:1]), group))
        self._options = self._options_now()
        self._counts = [len(group["params"]) for group in self._each]

    def _options_now(self) -> list[tuple[object, ...]]:
        return [read(group) for read, group in self._readers]

    def _holds_entries(self) -> bool:
        state = self._state
        return len(state) >= len(self._entries) and all(map(is_, state.values(), self._entries))

    def difference(self) -> str:
        """What changed, in one sentence; "" if nothing did."""
        optimizer, name = self._optimizer, type(self._optimizer).__name__
        if optimizer.state is not self._state or optimizer.param_groups is not self._groups:
            return f"{name} loaded another state"
        if not self._holds_entries():
            return f"the state of {name} was emptied or replaced"
        if [len(group["params"]) for group in self._groups] != self._counts:
            return f"{name} has other parameters"
        if self._options_now() != self._options:
            changed = self._changed()
            why = ", which its kernels take as a number" if changed == [_DECAY] else ""
            return f"{' and '.join(changed)} of {name} changed{why}"
        return ""

    def moves_options(self, numbers: Numbers) -> bool:
        """Whether only the first of its betas, or its weight decay, changed: a tensor has it from now on."""
        changed = self._changed()
        if changed == [_BETAS]:
            return numbers.add_momentum(self._optimizer)
        return changed == [_DECAY] and numbers.add_decay(self._optimizer)

    def _changed(self) -> list[str]:
        now = self._options_now()
        changed: set[str] = set()
        for names, was, found in zip(self._names, self._options, now, strict=True):
            changed.update(n for n, a, b in zip(names, was, found, strict=False) if a != b)
        return sorted(changed)

    def adopt(self) -> bool:
        """Copy a state that was loaded with `load_state_dict` into the tensors that graphs use.

        So is one that an eager step made after the program emptied it. Returns whether it has the same structure.
        """
        optimizer = self._optimizer
        loaded, groups = optimizer.state, optimizer.param_groups
        if loaded is self._state and self._holds_entries():
            return groups is self._groups
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        held = {**self._held, **self._state, **self._held}  # those of the graph, in their order
        if not held.keys() <= loaded.keys() or len(groups) != len(self._each):
            return False
        for parameter, ours in held.items():
            theirs = loaded[parameter]
            if ours.keys() != theirs.keys():
                return False
            for name, tensor in ours.items():
                if isinstance(tensor, torch.Tensor) and isinstance(theirs[name], torch.Tensor):
                    pairs.append((tensor, theirs[name]))
                elif tensor != theirs[name]:
                    return False
        if any(into.shape != values.shape for into, values in pairs):
            return False
        with torch.no_grad():
            for into, values in pairs:
                into.copy_(values)
        for ours, theirs in zip(self._each, groups, strict=True):
            for name, value in theirs.items():
                if name not in ("params", "capturable", "fused", "foreach"):
                    ours[name] = value
        others = {each: state for each, state in loaded.items() if each not in held}
        self._state.clear()
        self._state.update(held | others)
        optimizer.state, optimizer.param_groups = self._state, self._groups
        return True

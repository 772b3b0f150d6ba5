"""The gradients that a step finds when it begins: whether they are part of what it computes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from graphdoctor.target.state.cpp_guards import add_guard, guards_of, has_imported_dynamo

gradient_of: Any = torch.Tensor.grad.__get__  # type: ignore[union-attr]


class Observed:
    """What one eager call did with gradients."""

    has_run_backward = False
    has_stepped = False

    def stepped(self, *_: object) -> None:
        """An optimizer has stepped; fused kernels count no writes to the weights."""
        self.has_stepped = True


class StartingGradients:
    """Which of the trained tensors have a gradient when a call begins.

    `backward()` adds to a gradient that is there and creates one that is not, so these are two graphs.
    A step that drops all gradients before it computes new ones needs one graph, and so does one that leaves them alone,
    such as the action of an agent.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        leaves = {id(tensor): tensor for tensor in tensors if tensor.is_leaf}
        self._trained = [tensor for tensor in leaves.values() if tensor.requires_grad]
        self._dropped_by: set[Hashable] = set()
        self._left_alone_by: set[Hashable] = set()

    def cover(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether all tensors of these that are trained are among its own."""
        known = set(map(id, self._trained))
        return all(id(t) in known for t in tensors if t.is_leaf and t.requires_grad)

    def key_of(self, call: Hashable) -> tuple[bool, ...]:
        """What calls of this kind have in common if one graph serves them."""
        is_one = call in self._dropped_by or call in self._left_alone_by
        return () if is_one else self.are_missing()

    def note(self, call: Hashable, *, leaves_alone: bool) -> None:
        """Note whether calls of this kind neither read nor write gradients."""
        (self._left_alone_by.add if leaves_alone else self._left_alone_by.discard)(call)

    def are_left_alone(self, call: Hashable) -> bool:
        """Whether calls of this kind neither read nor write gradients."""
        return call in self._left_alone_by

    def are_missing(self) -> tuple[bool, ...]:
        """Of each trained tensor, whether it has no gradient."""
        return tuple([gradient is None for gradient in map(gradient_of, self._trained)])

    def missing_in(self, left: Mapping[torch.Tensor, torch.Tensor | None]) -> tuple[bool, ...]:
        """The same for these gradients, as far as they are of trained tensors."""
        return tuple([left[tensor] is None for tensor in self._trained if tensor in left])

    def now(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Each trained tensor with its gradient."""
        return [(tensor, tensor.grad) for tensor in self._trained]

    @contextmanager
    def observed(self, call: Hashable) -> Iterator[Observed]:
        """Observe an eager call of this kind."""
        observed = Observed()
        found = [tensor for tensor in self._trained if tensor.grad is not None]
        versions = [_versions(tensor) for tensor in self._trained]
        # Weak references, since others would keep the gradients' memory from being reused.
        before = {memory.cdata: memory for tensor in found if (memory := _memory_of(tensor))}
        hook = register_optimizer_step_post_hook(observed.stepped)
        try:
            yield observed
        finally:
            hook.remove()
        memories = [memory for tensor in self._trained if (memory := _memory_of(tensor))]
        kept = [memory for memory in memories if memory.cdata in before]
        has_all = all(tensor.grad is not None for tensor in self._trained)
        if len(before) == len(self._trained) and has_all and not kept:
            self._dropped_by.add(call)
        has_any = any(tensor.grad is not None for tensor in self._trained)
        is_new = has_any and len(kept) < len(before)
        has_written = observed.has_stepped or versions != [_versions(t) for t in self._trained]
        observed.has_run_backward = is_new or has_written


def check_of_gradients(left: Mapping[torch.Tensor, torch.Tensor | None]) -> Callable[[], bool]:
    """A function that returns whether tensors have these very gradients, as they have now."""
    tensors, gradients = tuple(left), [*left.values()]

    def guard(manager: Any, tensor: torch.Tensor, kind: Any) -> None:
        of_gradient = manager.grad_manager("", tensor.grad, kind)
        add_guard(of_gradient.add_id_match_guard, id(left[tensor]))

    # The getter in Python takes 0.1 µs for each tensor.
    check = guards_of(tensors, guard) if has_imported_dynamo() and tensors else None
    if check is not None:
        return partial(check, tensors)
    return lambda: all(map(operator.is_, map(gradient_of, tensors), gradients))


def _memory_of(tensor: torch.Tensor) -> StorageWeakRef | None:
    """The memory of a tensor's gradient; None for a sparse one, or for none."""
    gradient = tensor.grad
    if gradient is None or gradient.layout is not torch.strided:
        return None
    return StorageWeakRef(gradient.untyped_storage())


def _versions(tensor: torch.Tensor) -> tuple[int, int]:
    """Counts the writes to a tensor and to its gradient."""
    if tensor.is_inference():  # which counts none, and is not trained
        return -1, -1
    gradient = tensor.grad
    return tensor._version, -1 if gradient is None else gradient._version

"""A module at the time of its capture -> whether a graph of it still holds: addresses, flags, attributes, hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from graphdoctor.graphs.modules.attribute_watch import AttributeWatch, joined
from graphdoctor.graphs.modules.hooks import all_hooks, has_global_hooks
from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.dict_versions import DictVersions

_HOLDERS = ("_parameters", "_buffers", "_modules")
_address = torch.Tensor.data_ptr
_wants_gradient = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
# In C where this torch has it: hundreds of parameters are looked at before each replay.
_same_addresses = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)


class Guard:
    """What a captured forward took from its module, below all hooks of the module itself.

    Attributes of the module and of those inside it are watched if they are tensors, modules, or
    plain values; what lies deeper, as in a configuration object, is not. Dictionaries are asked for
    their version, and read only where that is another. Lists are always read, and so are the module's
    own attributes: its forward is replaced there, step by step, by the graph itself.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._always, self._inside = AttributeWatch(), AttributeWatch()
        self._hooks: list[dict[Any, Any]] = []
        self._empty: list[dict[Any, Any]] = []
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for path, inner in module.named_modules():
            self._watch(path, inner, is_outermost=inner is module)
            found |= {id(tensor): (name, tensor) for name, tensor in _tensors(path, inner)}
        self._paths = [name for name, _ in found.values()]
        self._tensors = [tensor for _, tensor in found.values()]
        self._addresses: list[int | None] = list(map(_address, self._tensors))
        self._every = list(range(len(self._tensors)))
        self._wanted = list(map(_wants_gradient, self._tensors))
        self._versions = DictVersions(self._inside.dicts, self._inside.is_same)

    def _watch(self, path: str, module: torch.nn.Module, *, is_outermost: bool) -> None:
        own: dict[str, Any] = attributes(module)
        is_torchs = type(module).__module__.startswith("torch.nn.")
        (self._always if is_outermost else self._inside).add(path, own, is_torchs=is_torchs)
        self._always.add_lists(path, own)
        if not is_outermost:
            self._inside.close(path, own)
            # They are empty: a module with a hook inside is not graphed.
            self._hooks.extend(all_hooks(module))
            self._empty.extend(all_hooks(module))
        for holder in (own[name] for name in _HOLDERS):
            if not holder:
                self._empty.append(holder)
            elif type(holder) is dict:
                self._inside.add_holder(path, holder)
            else:  # older versions of torch have OrderedDicts, which have no version
                self._always.add_holder(path, holder)

    def holds(self, grad: bool) -> bool:
        """Whether nothing has changed. Fast: it runs before each replay."""
        try:
            return (
                not any(self._empty)
                and not has_global_hooks()
                and self._versions.are_same()
                and self._always.is_same()
                and self._are_in_place()
                and (not grad or list(map(_wants_gradient, self._tensors)) == self._wanted)
            )
        # A tensor in another's place has no truth value; a deleted attribute cannot be read.
        except Exception:
            return False

    def _are_in_place(self) -> bool:
        if _same_addresses is not None:
            return bool(_same_addresses(self._tensors, self._addresses, self._every))
        return list(map(_address, self._tensors)) == self._addresses

    def change(self, grad: bool) -> str:
        """What has changed, in words; for a guard that does not hold."""
        return next(self._changes(grad), "something inside it changed")

    def _changes(self, grad: bool) -> Iterator[str]:
        yield from self._always.changes()
        yield from self._inside.changes()
        for index, (path, tensor) in enumerate(zip(self._paths, self._tensors, strict=True)):
            if tensor.data_ptr() != self._addresses[index]:
                yield f"{path} lies at another address than the captured one"
            if grad and tensor.requires_grad != self._wanted[index]:
                yield f"requires_grad of {path} changed"
        if any(self._hooks) or has_global_hooks():
            yield "a hook was registered inside it"
        yield "a module inside it was given its first parameter, buffer or submodule"


def _tensors(path: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    own: dict[str, Any] = attributes(module)
    for holder in (*(own[name] for name in _HOLDERS), own):
        for key, value in holder.items():
            if isinstance(value, torch.Tensor):
                yield joined(path, key), value

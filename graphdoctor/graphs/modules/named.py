"""Root objects -> their modules by the paths that a recording names them with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphdoctor.record.scopes import module_paths
from graphdoctor.target.state.walk import Walk


def modules_by_path(roots: Mapping[str, object]) -> dict[str, torch.nn.Module]:
    """Every module that the roots reach; the outermost may have the path ""."""
    found: dict[int, torch.nn.Module] = {}
    with torch._C.DisableTorchFunction():
        for _, value, _ in Walk(roots, with_empty=False):
            if isinstance(value, torch.nn.Module):
                found.update((id(module), module) for module in value.modules())
    return {path: found[key] for key, path in module_paths(roots).items() if key in found}

"""A module with its inputs -> whether torch.export takes it, and what of a device's values its graph reads."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from typing import Any

import torch
from dynamo_breaks import places, words

# What a graph of operators holds where the eager step reads the device: the host's number, a size.
READS = ("item", "_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal")


class TensorsOnly(torch.nn.Module):
    """A model without the caches that it returns, whose classes torch.export does not know."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        found = self.model(**inputs)
        parts = found.values() if isinstance(found, dict) else found
        return tuple(part for part in parts if isinstance(part, torch.Tensor))


def exported(target: Any) -> dict[str, Any]:
    """On the CPU; torch.export takes modules, so there is nothing to ask about a training step."""
    model, fresh = target
    try:
        with torch.no_grad():
            program = torch.export.export(TensorsOnly(model), (), fresh(), strict=False)
    except Exception as error:
        return {"export": "refused", "error": words(error), "places": where(error)}
    reads: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for node in program.graph.nodes:
        name = str(node.target).split(".")
        if node.op == "call_function" and len(name) > 1 and name[1] in READS:
            reads[name[1], tuple(lines_in(node.stack_trace or ""))] += 1
    return {"export": "exported", "reads": [[name, list(at), n] for (name, at), n in reads.items()]}


def where(error: BaseException) -> list[str]:
    """The lines that the error's text names, and those that its traceback went through."""
    return [*lines_in(str(error)), *places(traceback.extract_tb(error.__traceback__))]


def lines_in(text: str) -> list[str]:
    """The lines of installed packages that a traceback in text names, torch left out, innermost first."""
    found = []
    for path, line in re.findall(r'File "([^"]+)", line (\d+)', text):
        _, inside, rest = path.rpartition("site-packages/")
        if inside and not rest.startswith("torch/"):
            found.append(f"{rest}:{line}")
    return found[::-1]

"""Facts about operators from table.json, read once and when first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Literal

import msgspec
from msgspec import Struct

from graphdoctor.operators.conditions import CONDITIONS
from graphdoctor.values.recording import Op

Effect = Literal[
    "captured", "reads-value", "sizes-result", "waits", "copies", "pins", "refused", "freezes"
]
Evidence = Literal["measured", "source", "documentation", "unconfirmed"]

# What each effect means to a person, in a table's cell.
EFFECTS: Mapping[Effect, str] = {
    "captured": "captured",
    "reads-value": "reads a value",
    "sizes-result": "reads a size",
    "waits": "waits",
    "copies": "copies",
    "pins": "pins memory",
    "refused": "refused",
    "freezes": "captured, and replays wrong",
}
_FILE = "table.json"


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    """Where and when the measured facts were measured."""

    gpu: str
    torch: str
    date: str


class OperatorFact(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a capture makes of one operator, where a condition on its arguments holds.

    `operator` is "aten.normal.Tensor_Tensor", or "aten.normal" for all its overloads. `why`
    completes a sentence that begins with the operator. `source` is the file and function, or the
    page, that says so. `refused` and `captured` count the measured calls that meet the condition;
    `kernels` are the fewest and the most kernels that one of them launched.
    """

    operator: str
    effect: Effect
    when: str = "always"
    why: str = ""
    source: str = ""
    evidence: Evidence = "unconfirmed"
    refused: int = 0
    captured: int = 0
    kernels: tuple[int, int] | None = None

    def holds(self, op: Op) -> bool:
        """Whether the fact is about this call."""
        return _is_named(self.operator, op.name) and CONDITIONS[self.when].holds(op)


class Table(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """All facts, sorted by operator; `runs` are where the measured ones come from."""

    runs: tuple[Run, ...]
    operators: tuple[OperatorFact, ...]

    @cached_property
    def hazards(self) -> Mapping[str, tuple[OperatorFact, ...]]:
        """By name without overload: what stands in a capture's way."""
        found: dict[str, tuple[OperatorFact, ...]] = {}
        for fact in self.operators:
            if fact.effect != "captured":
                base = _base_name(fact.operator)
                found[base] = (*found.get(base, ()), fact)
        return found

    @cached_property
    def kernels(self) -> Mapping[str, int]:
        """By name without overload: the fewest kernels of a measured call, at least one."""
        found: dict[str, int] = {}
        for fact in self.operators:
            if fact.kernels is not None:
                base, fewest = _base_name(fact.operator), max(1, fact.kernels[0])
                found[base] = min(found.get(base, fewest), fewest)
        return found


@cache
def load_table() -> Table:
    return msgspec.json.decode(files(__package__).joinpath(_FILE).read_bytes(), type=Table)


@cache
def is_listed(name: str) -> bool:
    """Whether the table has an effect of an operator with this name, with or without overload."""
    return _base_name(name) in load_table().hazards


def fact_about(op: Op, *effects: Effect) -> OperatorFact | None:
    """What stands in the way of capturing this call, by one of these effects; none given: by any."""
    if not is_listed(op.name):
        return None
    known = load_table().hazards[op.base_name]
    wanted = (fact for fact in known if not effects or fact.effect in effects)
    return next((fact for fact in wanted if fact.holds(op)), None)


def measured_kernels(base_name: str) -> int:
    """Kernels of one call of an operator on a GPU; 1 if nobody measured it."""
    return load_table().kernels.get(base_name, 1)


def evidence_words(fact: OperatorFact) -> str:
    """How well a fact is known: "measured on NVIDIA H200 with torch 2.11.0"."""
    if fact.evidence == "measured":
        run = load_table().runs[-1]
        return f"measured on {run.gpu} with torch {run.torch.partition('+')[0]}"
    if fact.evidence == "source":
        return "read in torch's source, not measured"
    return "documented, not measured" if fact.evidence == "documentation" else "not confirmed"


def _base_name(operator: str) -> str:
    return operator.split(".", 2)[1] if "." in operator else operator


def _is_named(fact: str, operator: str) -> bool:
    return operator == fact or operator.startswith(f"{fact}.")


# ATen's backward formulas of these look for zeros in the input with nonzero(), and take a longer way
# without it while any dispatch mode is active: a recording is made under one, and never shows the wait.
# Measured on an NVIDIA H200, torch 2.11.0, 2026-11-20: captures of both are refused, with "operation not
# permitted when stream is capturing" (benchmarks/data/opinfo_h200_torch2.11.jsonl.gz).
WAITING_BACKWARD = frozenset({"prod", "cumprod"})
# autograd's nodes of the same operators, by the name that a running node tells
WAITING_NODES = frozenset({"ProdBackward0", "ProdBackward1", "CumprodBackward0"})


def waits_in_backward(forward: Op) -> bool:
    """Whether the backward of this operator waits; that of a single number does not look at it."""
    return forward.base_name in WAITING_BACKWARD and any(use.shape for use in forward.inputs)

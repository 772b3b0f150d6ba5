"""The operator table and what opinfo_capture.py measured -> the table with its evidence; and what speaks against it.

    python benchmarks/truth/build_operator_table.py benchmarks/data/opinfo_h200_torch2.11.jsonl.gz

Facts with a source were written by hand: they are kept, and the measured calls that they are about are
counted. All other facts are measured ones, and made anew.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import graphdoctor.operators
from graphdoctor.operators import OperatorFact, Run, Table
from graphdoctor.values.recording import Arg, Op, Opaque, TensorUse

TABLE = Path(graphdoctor.operators.__file__).with_name("table.json")
_COPIES = ("_to_copy", "copy_")
_NOT_PERMITTED = "operation not permitted"


@dataclass(frozen=True)
class Measured:
    """One operator call in a capture: whether the capture failed in it, and how."""

    op: Op
    entry: str
    refused: bool
    error: str = ""
    waits: int = 0
    kernels: int | None = None


@dataclass
class Against:
    """What a person has to look at."""

    contradictions: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    unattributed: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("measured", type=Path)
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    lines = read_lines(options.measured)
    before = msgspec.json.decode(options.table.read_bytes(), type=Table)
    table, against = merged(before, lines)
    options.table.write_bytes(written(table))
    for title, rows in vars(against).items():
        print(f"{title}: {len(rows)}")
        print("".join(f"  {row}\n" for row in rows), end="")
    measured = sum(fact.evidence == "measured" for fact in table.operators)
    print(f"{len(table.operators)} facts, {measured} of them measured")


def read_lines(path: Path) -> list[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def written(table: Table) -> bytes:
    """One fact a line, so that a change of one is a change of one line."""
    facts = b",\n".join(msgspec.json.encode(fact) for fact in table.operators)
    return b'{"runs":%s,\n"operators":[\n%s\n]}\n' % (msgspec.json.encode(table.runs), facts)


def merged(before: Table, lines: Sequence[Mapping[str, Any]]) -> tuple[Table, Against]:
    """The facts by hand with their counts, then the facts that only the measurement knows."""
    against = Against()
    calls: dict[str, list[Measured]] = defaultdict(list)
    for line in lines:
        for call in _calls_of(line, against):
            calls[call.op.name].append(call)
    everything = [call for of_one in calls.values() for call in of_one]
    by_hand = [fact for fact in before.operators if fact.source]
    facts = [_counted(fact, everything, against) for fact in by_hand]
    for name, of_one in calls.items():
        rest = [call for call in of_one if not any(fact.holds(call.op) for fact in by_hand)]
        if rest and (fact := _found(name, rest, against)) is not None:
            facts.append(fact)
    facts.sort(key=lambda fact: (fact.operator, fact.effect, fact.when))
    runs = [Run(r["gpu"], r["torch"], r["date"]) for line in lines if (r := line.get("run"))]
    return Table(runs=tuple(runs[-1:]), operators=tuple(facts)), against


def _calls_of(line: Mapping[str, Any], against: Against) -> Iterator[Measured]:
    """The operators of one sample whose part in its capture is known."""
    if "captures" not in line or line.get("aten_left_out") or "sparse" in line["opinfo"]:
        return  # how sparse a tensor is was not written down
    entry = f"{line['opinfo']}[{line['sample']}] {line['mode']}({line['arguments'][:60]})"
    ops = [(op_of(call), call[3]) for call in line["aten"]]
    working = [op for op, _ in ops if not is_view(op.name)]
    if line["captures"]:
        if line.get("replay") == "different":
            against.differing.append(f"{entry}: {line['difference'][:100]}")
        kernels = (
            (line.get("nodes") or {}).get("kernel", 0) if line.get("nodes") is not None else None
        )
        for op, waits in ops:
            if op.base_name in _COPIES:
                continue
            alone = working == [op]
            yield Measured(op, entry, False, waits=waits, kernels=kernels if alone else None)
        return
    blamed = [op_of(line["failing"])] if line.get("failing") else []
    blamed += [op for op, waits in ops if waits and op not in blamed]
    if not blamed:
        against.unattributed.append(f"{entry}: {line['error'][:100]}")
    for op in blamed:
        if op.base_name not in _COPIES:  # where they lead decides, not what they are
            waits = max((waits for other, waits in ops if other.name == op.name), default=0)
            yield Measured(op, entry, True, line["error"], waits)


def op_of(call: Sequence[Any]) -> Op:
    """A measured call as a recording has it, as far as a condition may look."""
    name, args, kwargs = call[0], call[1], call[2]
    return Op(
        index=0, name=name, args=tuple(map(_arg, args)), outputs=(), writes=(), tags=(),
        kwargs=tuple((key, _arg(value)) for key, value in kwargs.items()),
        phase="forward", module="", device="cuda:0",
    )  # fmt: skip


def _arg(value: Any) -> Arg:
    if isinstance(value, list):
        return tuple(map(_arg, value))
    if not isinstance(value, dict):
        return value  # type: ignore[no-any-return]
    if "o" in value:
        return Opaque(value["o"])
    return TensorUse(
        storage=0, shape=tuple(value["s"]), stride=(), offset=0, dtype=value["d"], itemsize=0,
        device="cuda:0" if value["c"] else "cpu",
    )  # fmt: skip


def is_view(name: str) -> bool:
    """Whether the schema says that the result is an input seen otherwise."""
    import torch

    space, operator, overload = name.split(".") if name.count(".") == 2 else (name, "", "")
    packet = getattr(getattr(torch.ops, space), operator, None) if operator else None
    if packet is None or overload not in packet.overloads():
        return False
    return bool(getattr(packet, overload).is_view)


def _counted(fact: OperatorFact, calls: Iterable[Measured], against: Against) -> OperatorFact:
    """The fact with the calls that it is about; calls on nothing show nothing."""
    about = [call for call in calls if fact.holds(call.op) and _has_work(call.op)]
    if not about:
        return fact
    refused = sum(call.refused for call in about)
    captured = len(about) - refused
    evidence = "measured" if bool(captured) is (fact.effect == "freezes") else "unconfirmed"
    if evidence == "unconfirmed":
        shown = next(call.entry for call in about if not call.refused)
        against.contradictions.append(
            f"{fact.operator} ({fact.when}): {captured} of {len(about)} calls were captured: {shown}"
        )
    return msgspec.structs.replace(fact, evidence=evidence, refused=refused, captured=captured)


def _found(name: str, calls: Sequence[Measured], against: Against) -> OperatorFact | None:
    """The fact about an operator that nobody wrote; None where it depends on what is not known."""
    working = [call for call in calls if _has_work(call.op)] or calls
    refused = [call for call in working if call.refused]
    captured = [call for call in working if not call.refused]
    if refused and captured:
        examples = f"refused: {refused[0].entry}; captured: {captured[0].entry}"
        against.mixed.append(f"{name}: {len(refused)} of {len(working)} calls; {examples}")
        return None
    kernels = [call.kernels for call in captured if call.kernels is not None]
    if captured:
        return OperatorFact(
            name,
            "captured",
            evidence="measured",
            captured=len(captured),
            kernels=(min(kernels), max(kernels)) if kernels else None,
        )
    waits = _NOT_PERMITTED in refused[0].error and any(call.waits for call in refused)
    why = "waits for the device inside" if waits else f"is refused ({refused[0].error[:80]})"
    return OperatorFact(
        name,
        "waits" if waits else "refused",
        why=why,
        evidence="measured",
        refused=len(refused),
    )


def _has_work(op: Op) -> bool:
    uses = [use for use in op.inputs if use.is_cuda]
    return bool(uses) and all(use.numel for use in uses)


if __name__ == "__main__":
    main()

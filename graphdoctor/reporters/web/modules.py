"""The lanes of a step -> its modules as a tree: operators, launches, time, graphs and findings of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphdoctor.reporters.web.code import Numbered
from graphdoctor.values.lanes import StepLanes

MOST_ROWS = 120
_OUTSIDE = "(outside any module)"


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module with all that it holds; `graphs` are those that take over operators of it.

    `share` is of the host's time in the eager step. `findings` are numbers on the page.
    """

    path: str
    depth: int
    operators: int
    launches: int
    host_us: float
    device_us: float
    share: float
    graphs: tuple[str, ...]
    is_all_captured: bool
    findings: tuple[int, ...]


@dataclass(slots=True)
class _Node:
    path: str
    depth: int
    operators: int = 0
    launches: int = 0
    host_us: float = 0.0
    device_us: float = 0.0
    eager: int = 0
    graphs: dict[int, None] = field(default_factory=dict)
    findings: dict[int, None] = field(default_factory=dict)
    below: dict[str, _Node] = field(default_factory=dict)


def module_rows(lanes: StepLanes, findings: Sequence[Numbered]) -> tuple[list[ModuleRow], int]:
    """Modules in the order in which the step reaches them, and how many more there are.

    Where there are too many, the deepest are left out.
    """
    root = _tree(lanes, findings)
    nodes = [*_walk(root)]
    depths = sorted(node.depth for node in nodes)
    deepest = depths[MOST_ROWS] - 1 if len(depths) > MOST_ROWS else len(nodes)
    kept = [node for node in nodes if node.depth <= max(deepest, 1)][:MOST_ROWS]
    total = sum(node.host_us for node in root.below.values()) or 1.0
    return [_row(node, lanes, total) for node in kept], len(nodes) - len(kept)


def _tree(lanes: StepLanes, findings: Sequence[Numbered]) -> _Node:
    places = {
        (one.finding.location.file, one.finding.location.line): one.number
        for one in reversed(findings)
        if one.finding.location is not None
    }
    root = _Node("", 0)
    chains: dict[int, list[_Node]] = {}
    for one in lanes.eager:
        chain = chains.get(one.module)
        if chain is None:
            chain = chains[one.module] = _chain(root, lanes.modules[one.module])
        number = places.get((lanes.files[one.file], one.line)) if one.file >= 0 else None
        for node in chain:
            node.operators += 1
            node.launches += one.kernels
            node.host_us += one.at.host_us + one.at.waited_us
            node.device_us += one.at.device_us
            node.eager += one.graph < 0
            node.graphs |= {one.graph: None} if one.graph >= 0 else {}
            node.findings |= {number: None} if number is not None else {}
    return root


def _chain(root: _Node, path: str) -> list[_Node]:
    """The nodes from the first part of a path to its last."""
    nodes, node, so_far = [], root, ""
    for part in path.split(".") if path else [_OUTSIDE]:
        so_far = f"{so_far}.{part}" if so_far else part
        node = node.below.setdefault(part, _Node(so_far, node.depth + 1))
        nodes.append(node)
    return nodes


def _walk(node: _Node) -> Iterator[_Node]:
    for below in node.below.values():
        yield below
        yield from _walk(below)


def _row(node: _Node, lanes: StepLanes, total_us: float) -> ModuleRow:
    return ModuleRow(
        path=node.path,
        depth=node.depth,
        operators=node.operators,
        launches=node.launches,
        host_us=node.host_us,
        device_us=node.device_us,
        share=node.host_us / total_us,
        graphs=tuple(lanes.graphs[number] for number in node.graphs),
        is_all_captured=not node.eager,
        findings=tuple(sorted(node.findings)),
    )

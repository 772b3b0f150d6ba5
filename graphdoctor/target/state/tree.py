"""The leaves of nested inputs and outputs by path, and the same nesting around other leaves.

Containers and objects are what their kinds open, an object where it holds a tensor, however deep. Nothing is
written into the caller's, and what cannot be copied is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import torch

from graphdoctor.target.state.kinds import kind_of
from graphdoctor.target.state.kinds.kind import Node
from graphdoctor.target.target import Inputs

Leaves = dict[str, object]
Change = Callable[[object], object]


def input_leaves(inputs: Inputs) -> Leaves:
    """ "inputs[0]" for a positional argument, "inputs.mask" for a keyword, and so on inwards."""
    found: Leaves = {}
    for index, arg in enumerate(inputs.args):
        found.update(leaves(arg, f"inputs[{index}]"))
    for name, arg in inputs.kwargs.items():
        found.update(leaves(arg, f"inputs.{name}"))
    return found


def leaves(value: object, path: str) -> Leaves:
    """Every leaf below `path`, in order: "output", "output[0]", "output.loss"."""
    return {path: value} if isinstance(value, torch.Tensor) else Tree(value).leaves(path)


def map_inputs(change: Change, inputs: Inputs, *, into_objects: bool = True) -> Inputs:
    """The same call with every leaf changed."""
    tree = Tree((inputs.args, dict(inputs.kwargs)), into_objects=into_objects)
    args, kwargs = tree.map(change)
    return Inputs(args, kwargs)


def map_leaves(change: Change, value: object) -> object:
    """The same nesting, of the same types, with every leaf changed; `value` stays as it is."""
    return change(value) if isinstance(value, torch.Tensor) else Tree(value).map(change)


class Tree:
    """A value taken apart once. With `into_objects` False, objects that are no containers are leaves."""

    def __init__(self, value: object, *, into_objects: bool = True) -> None:
        self._root = value
        self._nodes = _opened(value, into_objects)  # by id
        try:
            self._order = _in_order(self._nodes)
        except CycleError:  # nothing can be copied in such a circle
            self._nodes, self._order = {}, []
        self._containers = {key for key, node in self._nodes.items() if node.is_container}
        parts = (part for node in self._nodes.values() for _, part in node.parts)
        self._leaves = {id(part): part for part in parts if id(part) not in self._nodes}

    def leaves(self, path: str) -> Leaves:
        """Every leaf by its path; an object that is held twice is listed where it is met first."""
        found: Leaves = {}
        above: set[int] = set()  # the containers around the current one: a circle ends there
        listed: set[int] = set()
        waiting: list[tuple[str | None, object]] = [(path, self._root)]
        while waiting:
            step, value = waiting.pop()
            if step is None:
                above.discard(id(value))
            elif (node := self._nodes.get(id(value))) is None:
                found[unused(step, found)] = value
            elif id(value) not in above and id(value) not in listed:
                above.add(id(value))
                if not node.is_container:
                    listed.add(id(value))
                waiting.append((None, value))
                waiting.extend((step + inner, part) for inner, part in reversed(node.parts))
        return found

    def map(self, change: Change) -> Any:
        """The same nesting around `change(leaf)`; what is held twice is held twice again.

        Containers are new. An object is copied only where a leaf in it changes: else it stays itself.
        """
        if id(self._root) not in self._nodes:
            return change(self._root)
        made = {key: change(leaf) for key, leaf in self._leaves.items()}
        renewed = self._containers
        if len(renewed) < len(self._nodes):
            renewed = self._renewed(made)
        for key in self._order:
            node = self._nodes[key]
            made[key] = node.another(made) if key in renewed else node.value
        for key in renewed:
            self._nodes[key].fill(made[key], made)
        return made[id(self._root)]

    def _renewed(self, made: Mapping[int, object]) -> set[int]:
        """What is made anew, from the root inwards: containers, and objects in which a leaf changes."""
        changed = {key for key, leaf in self._leaves.items() if made[key] is not leaf}
        touched = _holders(self._nodes, lambda part: id(part) in changed)
        return set(_reached(self._root, self._nodes, self._containers | touched))


def _opened(root: object, into_objects: bool) -> dict[int, Node]:
    """Every node; without recursion, however deep the nesting is."""
    found: dict[int, Node] = {}
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) not in found:
            node = kind_of(value).open(value, into_objects=into_objects)
            if node is not None:
                found[id(value)] = node
                waiting.extend(part for _, part in node.parts)
    holding = _holders(found, lambda part: isinstance(part, torch.Tensor))
    for node in found.values():
        node.choose(holding)
    chosen = {key for key, node in found.items() if node.is_container or key in holding}
    return _reached(root, found, chosen)


def _in_order(nodes: Mapping[int, Node]) -> list[int]:
    """What is filled later, then tuples and the like, each after those that it holds."""
    fixed = {key: node for key, node in nodes.items() if node.put is None}
    held = {key: [id(p) for _, p in node.content if id(p) in fixed] for key, node in fixed.items()}
    return [*(nodes.keys() - fixed.keys()), *TopologicalSorter(held).static_order()]


def _reached(root: object, nodes: Mapping[int, Node], wanted: Container[int]) -> dict[int, Node]:
    """Those that the root leads to by wanted ones alone."""
    reached: dict[int, Node] = {}
    waiting = [root]
    while waiting:
        key = id(waiting.pop())
        if key in wanted and key not in reached:
            reached[key] = nodes[key]
            waiting.extend(part for _, part in reversed(nodes[key].parts))
    return reached


def _holders(nodes: Mapping[int, Node], wanted: Callable[[object], bool]) -> set[int]:
    """The nodes that hold a wanted part, however deep."""
    above: dict[int, list[int]] = {}
    waiting: list[int] = []
    for key, node in nodes.items():
        for _, part in node.parts:
            if id(part) in nodes:
                above.setdefault(id(part), []).append(key)
            elif wanted(part):
                waiting.append(key)
    reached: set[int] = set()
    while waiting:
        key = waiting.pop()
        if key not in reached:
            reached.add(key)
            waiting.extend(above.get(key, ()))
    return reached


def unused(path: str, taken: Container[str]) -> str:
    """The path, or with a number: an item and an attribute, or variables of two functions, may have one name."""
    free, number = path, 2
    while free in taken:
        free, number = f"{path}#{number}", number + 1
    return free

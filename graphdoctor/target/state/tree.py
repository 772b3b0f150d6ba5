"""The leaves of nested inputs and outputs by path, and the same nesting around other leaves.

Containers are what `containers.py` opens. Any other object is one where it holds a tensor, however
deep. Nothing is written into the caller's, and what cannot be copied is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import torch

from graphdoctor.target.state.containers import Node, open_node
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
        nodes = _opened(value, into_objects)  # by id
        immutable = _in_order(nodes)
        if immutable is None:  # nothing can be copied in such a circle
            nodes, immutable = {}, {}
        self._nodes, self._immutable = nodes, immutable
        parts = (part for node in nodes.values() for _, part in node.parts)
        self._leaves = {id(part): part for part in parts if id(part) not in nodes}
        self._mutable = {key: node for key, node in nodes.items() if node.put is not None}
        self._containers = {key for key, node in nodes.items() if node.is_container}

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
        for key, node in self._mutable.items():
            made[key] = node.blank(()) if key in renewed else node.value
        for key, node in self._immutable.items():
            held = [made[part] for part in node.ids]
            made[key] = node.blank(held) if key in renewed else node.value
        for key in renewed:
            self._nodes[key].fill(made[key], made)
        return made[id(self._root)]

    def _renewed(self, made: Mapping[int, object]) -> set[int]:
        """What is made anew, from the root inwards: containers, and objects in which a leaf changes."""
        changed = {key for key, leaf in self._leaves.items() if made[key] is not leaf}
        touched = _holders(self._nodes, lambda part: id(part) in changed)
        renewed: set[int] = set()
        waiting = [self._root]
        while waiting:
            value = waiting.pop()
            key = id(value)
            if key not in renewed and (key in self._containers or key in touched):
                renewed.add(key)
                waiting.extend(part for _, part in self._nodes[key].parts)
        return renewed


def _opened(root: object, into_objects: bool) -> dict[int, Node]:
    """Every node, those that it holds before it; without recursion, however deep the nesting is."""
    found: dict[int, Node] = {}
    waiting: list[tuple[object, bool]] = [(root, False)]
    order: dict[int, Node] = {}
    while waiting:
        value, is_done = waiting.pop()
        if is_done:
            order[id(value)] = found[id(value)]
        elif (
            id(value) not in found
            and (node := open_node(value, into_objects=into_objects)) is not None
        ):
            found[id(value)] = node
            waiting.append((value, True))
            held = [*(part for _, part in node.content), *node.own.values()]
            waiting.extend((part, False) for part in reversed(held))
    for node in found.values():
        node.parts = [*node.content, *node.own.items()]
    holding = _holders(found, lambda part: isinstance(part, torch.Tensor))
    for key, node in found.items():
        node.choose(holding)
        if not node.is_container and key not in holding:
            del order[key]
    reached: set[int] = set()
    left = [root]
    while left:
        key = id(left.pop())
        if key in order and key not in reached:
            reached.add(key)
            left.extend(part for _, part in order[key].parts)
    return {key: node for key, node in order.items() if key in reached}


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


def _in_order(nodes: Mapping[int, Node]) -> dict[int, Node] | None:
    """Tuples and the like, each after those that it holds; None where they hold themselves."""
    ordered: dict[int, Node] = {}
    left = {key: node for key, node in nodes.items() if node.put is None}
    while left:
        for key, node in left.items():
            if all(part in ordered or part not in left for part in node.ids):
                ordered[key] = node
        before = len(left)
        left = {key: node for key, node in left.items() if key not in ordered}
        if len(left) == before:
            return None
    return ordered


def unused(path: str, taken: Container[str]) -> str:
    """The path, or with a number: an item and an attribute, or variables of two functions, may have one name."""
    free, number = path, 2
    while free in taken:
        free, number = f"{path}#{number}", number + 1
    return free

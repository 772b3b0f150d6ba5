"""A module at its capture -> whether anything that its forward reads from the host is still the same.

Dictionaries, modules' own ones among them, are asked for their version first. Where it is another,
a comparison costs one pass in C over all attributes (`list == list`, which takes identity for
equality and so never looks at a tensor that is in its place). What `==` cannot tell apart, items of lists and keys
among it, has to be the same object. Each tensor is asked for its address.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from graphdoctor.graphs.guards.as_captured import kept
from graphdoctor.graphs.guards.classes import names_in
from graphdoctor.graphs.guards.differences import NOTHING, changed, difference, is_as_good
from graphdoctor.graphs.guards.lying import Lying
from graphdoctor.graphs.guards.module_attributes import Attributes, Module, Outermost
from graphdoctor.graphs.guards.reached import Reached
from graphdoctor.graphs.guards.written_out import Question, all_of, in_parts, written_out
from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.dict_versions import DictVersions

_get = dict.get
_chain = chain.from_iterable
_call = getattr(operator, "call")  # noqa: B009  (since Python 3.11; typeshed asks for more)
_ARE_WANTED = "[*map(gradients, tensors)] == wanted"
_wants_gradient = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]


class Guard:
    """Remembers what `roots` reach: attributes, containers, globals and classes of the user's, tensors.

    Constants have to be equal, everything else has to be the same object with the same content. Keeps
    the captured tensors' memory alive, so that a replay never reads memory that was freed. `around`
    is the module whose forward a graph stands in for, if it is in the module's place during calls.
    What only `without` leads to is not watched.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        *,
        around: torch.nn.Module | None = None,
        without: Sequence[object] = (),
    ) -> None:
        self._roots, self._outermost, self._without = roots, around, without
        self._watch()

    def _watch(self) -> None:
        around = self._outermost
        found = Reached(self._roots, around, self._without)
        self.tensors = found.tensors
        self._lying = Lying(found.tensor_paths, found.tensors)
        self._wanted = list(map(_wants_gradient, self.tensors))
        self._reads_wanted = found.reads_requires_grad
        self._modules = [
            Module(path, own, names, is_around=around is not None and own is attributes(around))
            for path, own, names in found.modules
        ]
        self._containers = found.containers
        self._empty = found.empty
        self._hooks = found.hooks
        self._exact_paths, self._exact_in, self._exact_keys = _columns(found.exact, 3)
        self._exact = list(map(_get, self._exact_in, self._exact_keys))
        self._asked_paths, self._asked = _columns(found.asked, 2)
        self._answers = list(map(_call, self._asked))
        self._kept = list(kept(found))
        self._classes = found.classes
        self.traits = found.traits
        self._seldom_written = found.seldom_written
        self._split_by_version()

    def _split_by_version(self) -> None:
        """Sort out what need not be read while the versions of dictionaries stay as they are."""
        around = [module for module in self._modules if module.is_around]
        modules = [module for module in self._modules if not module.is_around]
        pairs = [(live, saved) for _, live, saved in self._containers]
        in_dicts = [pair for pair in pairs if _is_full_dict(pair[0])]
        lists = [pair[0] for pair in pairs if _is_list(pair[0])]
        rest = [pair for pair in pairs if not _is_list(pair[0]) and not _is_full_dict(pair[0])]
        self._around = Outermost(around[0]) if around else None
        self._inside = Attributes(modules)
        self._nothing = [*(empty for _, empty in self._empty), *self._hooks]
        self._live_dicts, self._saved_dicts = _columns(in_dicts, 2)
        self._live_rest, self._saved_rest = _columns(rest, 2)
        self._keys = _Items(self._live_dicts)
        self._items = _Items(
            [*lists, *(live for live in self._live_rest if isinstance(live, dict))]
        )
        self._versioned = [*self._inside.own, *self._live_dicts, *self._seldom_written]
        self._split_exact()
        self._dicts = DictVersions(self._versioned, self._dicts_are_equal)
        # Whether nothing has changed. It is fast, and may be wrong in one way: `difference` may find
        # that what was put in anew is as good as what was there, and another one has to be asked then.
        self.asks = self._asks()
        # The same as a function; with `grad`, nor have the tensors that want gradients.
        self.is_same = written_out(self._asks_for_gradients(), parameters="*, grad=False")

    def _split_exact(self) -> None:
        known = set(map(id, self._versioned))
        rows = list(zip(self._exact_in, self._exact_keys, self._exact, strict=True))
        self._dict_exact = _columns([row for row in rows if id(row[0]) in known], 3)
        self._exact_outside = [at for at, row in enumerate(rows) if id(row[0]) not in known]

    def _asks(self) -> Question:
        """What is there to be asked, and nothing else."""
        are_dicts_same, given = self._dicts.question
        terms = ["not any(nothing)", are_dicts_same]
        given["nothing"] = self._nothing
        if self._around is not None:
            terms.append("is_around_same()")
            given["is_around_same"] = self._around.is_same
        if self._live_rest:
            terms.append("live == saved")
            given |= {"live": self._live_rest, "saved": self._saved_rest}
        if self._items.of:
            terms.append(_Items.ARE_SAME)
            given |= self._items.given
        for place in self._exact_outside:
            held = self._exact_in[place]
            # What is gone raises, which is no answer.
            found = (
                f"held{place}[key{place}]"
                if type(held) is dict
                else f"get(held{place}, key{place})"
            )
            terms.append(f"{found} is exact[{place}]")
            given |= {f"held{place}": self._exact_in[place], f"key{place}": self._exact_keys[place]}
        for place, ask in enumerate(self._asked):
            terms.append(f"ask{place}() is answers[{place}]")
            given[f"ask{place}"] = ask
        for place, each in enumerate(self._kept):
            is_kept, its_own = each.question(place)
            terms.append(is_kept)
            given |= its_own
        # `difference` writes into these lists.
        given |= {"exact": self._exact, "answers": self._answers}
        given["get"] = _get
        question = in_parts(terms, given)
        lie = self._lying.question
        terms = [question.expression, lie.expression]
        if self._reads_wanted:
            terms.append(_ARE_WANTED)
        return Question(all_of(terms), {**question.given, **lie.given, **self._gradients()})

    def _asks_for_gradients(self) -> Question:
        return Question(
            f"{self.asks.expression} and (not grad or {_ARE_WANTED})",
            {**self.asks.given, **self._gradients()},
        )

    def _gradients(self) -> dict[str, object]:
        return {"gradients": _wants_gradient, "wanted": self._wanted, "tensors": self.tensors}

    def _dicts_are_equal(self) -> bool:
        exact_in, exact_keys, exact = self._dict_exact
        return (
            self._inside.are_same()
            and self._live_dicts == self._saved_dicts
            and self._keys.are_same()
            and all(map(operator.is_, map(_get, exact_in, exact_keys), exact))
            and all(names.issuperset(names_in(members)) for _, members, names in self._classes)
        )

    def difference(self, *, grad: bool = False) -> str:
        """What changed, in one sentence; "" where nothing did, whatever objects were replaced."""
        if any(self._hooks):
            return "a hook was registered on a module, which a replay would not run"
        try:
            return next(filter(None, self._differences(grad)), "")
        except Exception as error:  # an __eq__ of the user's, or of two that do not know each other
            return f"what the captured module holds cannot be compared any more: {error}"

    def _differences(self, grad: bool) -> Iterator[str]:
        for module in self._modules:
            yield difference(module.path, module.now(), module.before)
        yield from (f"{path}.{next(iter(held))} is new" for path, held in self._empty if held)
        for path, live, saved in self._containers:
            yield difference(path, live, saved)
        yield from (each.difference() for each in self._kept)
        for name, members, names in self._classes:
            if new := set(names_in(members)) - names:
                yield f"{name}.{min(new)} is new"
        yield from self._lying.differences()
        for path, tensor, wanted in zip(self._lying.paths, self.tensors, self._wanted, strict=True):
            if (grad or self._reads_wanted) and tensor.requires_grad != wanted:
                yield f"requires_grad of {path} changed from {wanted} to {tensor.requires_grad}"
        yield from self._replaced()

    def _replaced(self) -> Iterator[str]:
        """What equals what was there, and is another object: from now on that one is watched."""
        is_container_new = False
        for index, (held, key) in enumerate(zip(self._exact_in, self._exact_keys, strict=True)):
            before, now = self._exact[index], _get(held, key, NOTHING)
            if is_as_good(before, now):
                self._exact[index] = now
            elif self._has_content_of(before, now):
                is_container_new = True
            else:
                yield changed(self._exact_paths[index], before, now)
        for index, ask in enumerate(self._asked):
            before, now = self._answers[index], ask()
            if not is_as_good(before, now):
                yield changed(self._asked_paths[index], before, now)
            self._answers[index] = now
        # Nothing else is another, or nobody would have asked for more.
        if is_container_new:
            self._watch()
        else:
            self._split_exact()
            self._keys.look()
            self._items.look()

    def _has_content_of(self, before: object, now: object) -> bool:
        """Whether a list or a dictionary has the constants that another one had at the capture."""
        saved = next((saved for _, live, saved in self._containers if live is before), None)
        if type(now) is not type(before) or type(now) is not type(saved) or len(now) != len(saved):  # type: ignore[arg-type]
            return False
        if isinstance(saved, dict) and isinstance(now, dict):
            keys = all(map(is_as_good, saved, now))
            return keys and all(map(is_as_good, saved.values(), now.values()))
        return isinstance(now, list) and all(map(is_as_good, saved, now))  # type: ignore[call-overload]


class _Items:
    """Lists, sets and keys of dictionaries, whose items have to be the same objects in the same order."""

    ARE_SAME = "[*map(len, lists)] == counts and all(map(is_, chain(lists), items))"

    def __init__(self, of: list[Iterable[object]]) -> None:
        self.of = of
        self._items: list[object] = []
        self._counts: list[int] = []
        self.look()

    @property
    def given(self) -> dict[str, object]:
        return {
            "lists": self.of,
            "counts": self._counts,
            "items": self._items,
            "is_": operator.is_,
            "chain": _chain,
        }

    def look(self) -> None:
        self._items[:], self._counts[:] = [*_chain(self.of)], [*map(len, self.of)]  # type: ignore[arg-type]

    def are_same(self) -> bool:
        return [*map(len, self.of)] == self._counts and all(  # type: ignore[arg-type]
            map(operator.is_, _chain(self.of), self._items)
        )


def _columns(rows: list[Any], count: int) -> list[list[Any]]:
    """Rows of `count` entries, turned into lists of one entry each."""
    return [[row[place] for row in rows] for place in range(count)]


def _is_full_dict(value: object) -> bool:
    return type(value) is dict and bool(value)


def _is_list(value: object) -> bool:
    return isinstance(value, (list, deque, set))

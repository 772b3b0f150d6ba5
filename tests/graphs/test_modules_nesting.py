"""What modules take and return, however it is nested, is the same from a graph as from the module."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from graphdoctor.graphs.modules import graph_modules
from graphdoctor.target.state.snapshot import named_tensors, snapshot
from graphdoctor.target.state.tree import leaves
from tests.support.graphed_twins import Side, data, total, twins
from tests.support.graphed_twins import emulated as emulated


class Attributes(dict[str, Any]):
    """Items that can be read as attributes, as many libraries have them."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Strict(list[Any]):
    """A list that takes two parts, one by one."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        super().__init__([first, second])


class Many(list[Any]):
    pass


class Pair(NamedTuple):
    out: torch.Tensor
    aux: Any


@dataclass(frozen=True)
class Checked:
    """Looks at what it is given, and computes a field by itself."""

    out: torch.Tensor
    rest: dict[str, Any]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        assert isinstance(self.out, torch.Tensor)
        object.__setattr__(self, "size", len(self.rest))


def backbone_like(y: torch.Tensor, z: torch.Tensor) -> Any:
    return OrderedDict([("1", z), ("0", y), ("pool", y[:, :2].clone())])


class Keeps(dict[str, Any]):
    """Has a tensor that is no item."""

    def __init__(self, out: torch.Tensor, hidden: torch.Tensor) -> None:
        super().__init__(out=out)
        self.hidden = hidden


RETURNED: dict[str, Any] = {
    "OrderedDict with digits, not sorted": backbone_like,
    "dict": lambda y, z: {"b": y, "a": z, 3: (y, None)},
    "dict subclass": lambda y, z: Attributes(y=y, z={"in": [z]}),
    "dict subclass with a tensor that is no item": lambda y, z: Keeps(y, z),
    "UserDict": lambda y, z: UserDict({"y": y, "z": z}),
    "named tuple in a list": lambda y, z: [Pair(y, {"0": z}), "text", 1.5],
    "list subclass": lambda y, z: Many([y, Many([z])]),
    "list subclass with a constructor of its own": lambda y, z: Strict(y, z),
    "dataclass": lambda y, z: Checked(y, {"0": z, "n": 2}),
    "what torch.max returns": lambda y, z: torch.max(y, 1),
    "one tensor in two places": lambda y, z: OrderedDict([("0", y), ("1", (y, z))]),
    "torch.Size beside a tensor": lambda y, z: (y, list(z.shape)),
}


class Returning(nn.Module):
    """Two layers, and whatever is made of what they compute."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.first, self.second, self.make = nn.Linear(8, 8), nn.Linear(8, 8), make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(self.first(x).tanh(), self.second(x).sigmoid())


def same_make(wanted: Any, found: Any) -> None:
    """Types and the order of keys, all the way down."""
    assert type(wanted) is type(found)
    if isinstance(wanted, (dict, UserDict)):
        assert list(wanted) == list(found)
        wanted, found = list(wanted.values()), list(found.values())
    if isinstance(wanted, (tuple, list)):
        assert len(wanted) == len(found)
        for one, other in zip(wanted, found, strict=True):
            same_make(one, other)


@pytest.mark.parametrize("how", RETURNED)
@pytest.mark.parametrize("training", [False, True])
def test_a_replay_returns_the_same_types_keys_and_order(how: str, training: bool) -> None:
    answers: list[Any] = []

    def run(side: Side, seed: int = 0) -> Any:
        if not training:
            answers.append(side.look(data(seed=seed)))
            return answers[-1]
        side.model.zero_grad()
        answers.append(side.model(data(seed=seed)))
        total(answers[-1]).backward()
        return [leaf.detach() for leaf in leaves(answers[-1], "").values() if torch.is_tensor(leaf)]

    with twins(lambda: Returning(RETURNED[how]), [run]) as pair:
        assert pair.made.paths == ("",), pair.made.left_out
        for seed in range(3):
            answers.clear()
            pair.both(partial(run, seed=seed))
            same_make(*answers)
            wanted, found = ({"output": answer} for answer in answers)
            assert list(named_tensors(wanted)) == list(named_tensors(found))
        assert pair.made.replays == 3 and not pair.reasons


def test_one_tensor_in_two_places_stays_one() -> None:
    with twins(
        lambda: Returning(RETURNED["one tensor in two places"]), [lambda side: side.look(data())]
    ) as pair:
        found = pair.graphed.look(data(seed=1))
        assert found["0"] is found["1"][0] and pair.made.replays == 1


class Uncopied(dict[str, Any]):
    def __copy__(self) -> Any:
        raise TypeError("not this one")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda y, z: Uncopied(y=y), "it returns a Uncopied that keeps a tensor in output.y"),
        (lambda y, z: MappingProxyType({"y": y}), "it returns a mappingproxy, whose content"),
    ],
)
def test_what_cannot_be_made_anew_is_left_out(make: Any, reason: str) -> None:
    model = Returning(make).cuda()
    restore = snapshot({"m": model}).restore
    made = graph_modules({"": model}, lambda: model(data()), restore=restore)
    assert made.left_out[""].startswith(reason)
    assert set(made.paths) == {"first", "second"}


class Moody(nn.Module):
    """Returns one thing and then another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        return (y, y) if torch.cuda.is_current_stream_capturing() else (y, y.clone())


def test_a_forward_that_returns_other_things_while_it_is_captured_is_left_out() -> None:
    model = Moody().cuda()
    restore = snapshot({"m": model}).restore
    made = graph_modules({"": model}, lambda: model(data())[0].sum().backward(), restore=restore)
    assert "its forward does not return the same kind of value in every call" in made.left_out[""]


class Head(nn.Module):
    """As torchvision's RPNHead: a list of maps of different sizes, two layers called for each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU())
        self.logits, self.boxes = nn.Conv2d(4, 1, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        hidden = [self.conv(feature) for feature in x]
        return [self.logits(t) for t in hidden], [self.boxes(t) for t in hidden]


class Detector(nn.Module):
    """A backbone that returns an OrderedDict, and a head that is given a list of its values."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Head()
        self.backbone = Pyramid()

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(list(self.backbone(x).values()))


class Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> OrderedDict[str, torch.Tensor]:
        y = self.layer(x)
        half, quarter = (nn.functional.max_pool2d(y, size) for size in (2, 4))
        return OrderedDict([("0", y), ("1", half), ("pool", quarter)])


PLACES = [
    [""],
    ["backbone", "head"],
    ["backbone", "head.conv", "head.logits", "head.boxes"],
]


@pytest.mark.parametrize("paths", PLACES)
@pytest.mark.parametrize("training", [False, True])
def test_maps_of_several_sizes_go_through_one_module(paths: list[str], training: bool) -> None:
    def run(side: Side, seed: int = 0) -> Any:
        x = data(1, 2, 8, 8, seed=seed)
        return side.train(x) if training else side.look(x)

    with twins(Detector, [run], paths=paths) as pair:
        assert list(pair.made.paths) == paths, pair.made.left_out
        for seed in range(3):
            pair.both(partial(run, seed=seed))
        calls = sum(3 if path.startswith("head.") else 1 for path in paths)
        assert pair.made.replays == 3 * calls and not pair.reasons


def test_a_shape_that_depends_on_data_runs_eagerly() -> None:
    with twins(Detector, [lambda side: side.train(data(1, 2, 8, 8))], paths=["head"]) as pair:
        pair.both(lambda side: side.train(data(1, 2, 12, 12, seed=1)))
        pair.both(lambda side: side.train(data(1, 2, 8, 8, seed=2)))
        assert pair.made.replays == 1
        assert pair.reasons == [
            "head: The shape of inputs[0][0] changed from (1, 2, 8, 8) to (1, 2, 12, 12): "
            "a graph is captured for one shape."
        ]


@dataclass
class Batch:
    x: torch.Tensor
    extra: dict[str, Any]


class Taking(nn.Module):
    """Arguments and keyword arguments that are nested several times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, batch: Batch, lists: list[Any], *, more: Any = None) -> Any:
        y = self.layer(batch.x) + batch.extra["0"][0]
        for index, part in enumerate(lists):
            y = y + self.layer(part["t"]) * index
        return OrderedDict([("0", y), ("1", more["pair"].aux * 2)])


def taken(seed: int, *, wants: bool) -> tuple[Any, ...]:
    made = iter(data(4, 8, seed=seed + place).requires_grad_(wants) for place in range(9))
    batch = Batch(next(made), {"0": (next(made),), "name": "x"})
    return batch, [{"t": next(made)}, {"t": next(made)}], {"pair": Pair(next(made), next(made))}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("wants", [False, True])
def test_tensors_inside_lists_dicts_and_dataclasses_are_given(training: bool, wants: bool) -> None:
    def run(side: Side, seed: int = 0) -> Any:
        batch, lists, more = taken(seed, wants=wants)
        if not training:
            with torch.no_grad():
                return side.model(batch, lists, more=more)
        side.model.zero_grad()
        total(side.model(batch, lists, more=more)).backward()
        return [batch.x.grad, lists[1]["t"].grad, more["pair"].out.grad, more["pair"].aux.grad]

    with twins(Taking, [run]) as pair:
        assert pair.made.paths == ("",), pair.made.left_out
        for seed in (10, 20, 30):
            pair.both(partial(run, seed=seed))
        assert pair.made.replays == 3 and not pair.reasons


def test_an_immutable_mapping_is_no_argument_for_a_graph() -> None:
    model = Taking().cuda()
    batch, lists, more = taken(0, wants=False)
    frozen = MappingProxyType(more)
    restore = snapshot({"m": model}).restore
    made = graph_modules({"": model}, lambda: model(batch, lists, more=frozen), restore=restore)
    assert made.left_out[""] == (
        "an input is a mappingproxy, whose contents may change without being noticed"
    )


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.layer(x) * (2 if x is y else 3) * y
        return answer


@pytest.mark.parametrize("wants", [False, True])
def test_a_tensor_that_is_given_twice_is_not_two_tensors(wants: bool) -> None:
    """Attention asks `query is key`; a graph of one has one memory for both."""

    def same(side: Side, seed: int = 0) -> Any:
        side.model.zero_grad()
        x = data(seed=seed).requires_grad_(wants)
        total(side.model(x, x)).backward()
        return x.grad

    def two(side: Side, seed: int = 0) -> Any:
        side.model.zero_grad()
        x, y = data(seed=seed).requires_grad_(wants), data(seed=seed + 1).requires_grad_(wants)
        total(side.model(x, y)).backward()
        return x.grad, y.grad

    with twins(Product, [same]) as pair:
        for seed in range(3):
            pair.both(partial(same, seed=seed))
        assert pair.made.replays == 3
        pair.both(two)
        assert pair.reasons == [
            "The nesting of the inputs changed, or which of them are one and the same tensor."
        ]
    with twins(Product, [two, same]) as pair:
        pair.both(two)
        pair.both(same)
        assert pair.made.replays == 2


def test_inputs_that_share_memory_need_not_share_it_again() -> None:
    def sharing(side: Side) -> Any:
        both = data(8, 8)
        return side.look(both[:4], y=both[2:6])

    def apart(side: Side) -> Any:
        return side.look(data(seed=3), y=data(seed=4))

    with twins(Product, [sharing]) as pair:
        pair.both(apart)
        assert pair.made.replays == 1

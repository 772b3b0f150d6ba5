"""A recording saved and read again is the same value and is diagnosed the same; what an operator tells of itself."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

from graphdoctor.diagnose.diagnose import Diagnosis, diagnose
from graphdoctor.values.host_events import ClockRead, Query, Sync
from graphdoctor.values.recording import Opaque, Recording
from tests.steps.making import data, steps_of
from tests.support.builders import iteration, op, recording, tensor
from tests.support.diagnosing import recorded

FORMATS = {"msgpack": msgspec.msgpack, "json": msgspec.json}


def training():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = torch.cat([model(x), model(x)[[0, 2]]]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return steps_of(step, model, optimizer)


def indexed_by_mask():
    return (lambda x: x[x > 0] * float(x.sum())), (data(),)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("step", [training, indexed_by_mask])
def test_a_recording_comes_back_as_it_was(step, name: str) -> None:
    made = recorded(step)
    read = FORMATS[name].decode(FORMATS[name].encode(made), type=Recording)
    assert read == made
    assert without_columns(diagnose(read)) == without_columns(diagnose(made))


def without_columns(diagnosis: Diagnosis) -> Diagnosis:
    """Which expression of a line is known only in the process that recorded it."""
    findings = tuple(msgspec.structs.replace(found, columns=None) for found in diagnosis.findings)
    return msgspec.structs.replace(diagnosis, findings=findings)


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_of_argument_comes_back(name: str) -> None:
    arguments = (
        tensor(1, 4), Opaque("torch.float32"), True, 1, 1.0, "text", None,
        (tensor(2, 4), None, 2), ((1, 2), (3,)), ((tensor(3, 4), (1.5, None)), True),
    )  # fmt: skip
    step = iteration([op("aten.cat.default", arguments, [tensor(4, 4)])])
    made = msgspec.structs.replace(recording(step), host=(ClockRead("time()"),))
    read = FORMATS[name].decode(FORMATS[name].encode(made), type=Recording)
    assert read == made
    assert [type(arg) for arg in read.captured[0].ops[0].args] == [type(arg) for arg in arguments]


@pytest.mark.parametrize(
    ("shape", "dtype", "numel", "nbytes"),
    [((), "float32", 1, 4), ((3, 5), "float16", 15, 30), ((3, 0), "int64", 0, 0)],
)
def test_a_tensors_bytes_are_those_of_its_elements(
    shape: tuple[int, ...], dtype: str, numel: int, nbytes: int
) -> None:
    use = tensor(1, *shape, dtype=dtype)
    assert (use.numel, use.nbytes) == (numel, nbytes)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("aten.add_.Tensor", "add_"),
        ("mine.op", "op"),
        ("flex_attention", "flex_attention"),
        ("a.b.c.d", "b"),
    ],
)
def test_the_name_of_an_operator_without_namespace_and_overload(name: str, base: str) -> None:
    assert op(name).base_name == base


def test_tensors_are_found_in_lists_of_lists_and_in_keywords_after_them() -> None:
    uses = [tensor(number, 2) for number in range(5)]
    made = op(
        "mine.op",
        (uses[0], (uses[1], (uses[2],), None), 3),
        kwargs=(("a", 1), ("b", (uses[3],)), ("c", uses[4])),
    )
    assert made.inputs == tuple(uses)


@pytest.mark.parametrize(
    ("name", "tags", "may_draw"),
    [
        ("aten.native_dropout.default", ("nondeterministic_seeded",), True),
        ("aten.add.Tensor", ("pointwise",), False),
    ],
)
def test_tags_tell_what_may_draw(name: str, tags: tuple[str, ...], may_draw: bool) -> None:
    assert op(name, tags=tags).may_draw == may_draw


def test_only_what_makes_no_memory_and_writes_none_is_a_view() -> None:
    base, part, other = tensor(1, 4), tensor(1, 2), tensor(2, 4)
    assert op("aten.slice.Tensor", [base], [part]).is_view
    assert op("aten.unbind.int", [base], [part, part]).is_view
    assert not op("aten.tanh.default", [base], [other]).is_view
    assert not op("mine.both", [base], [part, other]).is_view
    assert not op("aten.add_.Tensor", [base], [base], writes=[1]).is_view
    assert not op("aten._assert_async.default", [base]).is_view


def test_events_are_asked_for_by_their_kind() -> None:
    events = (Sync("a", 0), Query("b", 1), Sync("c", 2))
    made = msgspec.structs.replace(iteration([]), events=events)
    assert [event.name for event in made.events_of(Sync)] == ["a", "c"]

"""A recording that was saved and read again is the same value, and is diagnosed the same."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

from graphdoctor.diagnose.diagnose import Diagnosis, diagnose
from graphdoctor.values.recording import HostEvent, Opaque, Recording
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
    made = msgspec.structs.replace(recording(step), host=(HostEvent("host-time", "time()", 0),))
    read = FORMATS[name].decode(FORMATS[name].encode(made), type=Recording)
    assert read == made
    assert [type(arg) for arg in read.captured[0].ops[0].args] == [type(arg) for arg in arguments]

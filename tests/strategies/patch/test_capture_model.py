"""A model that a step calls is captured where the program makes it, and the layers of a model are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from graphdoctor.strategies.patch.edits.capture_model import CaptureModel
from graphdoctor.strategies.patch.edits.edit import NoProposal
from graphdoctor.values.locations import Location
from graphdoctor.values.program import CalledModule
from tests.support.reports import SAFE, step_of

NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)

    def forward(self, x):
        return self.first(x).relu()

    def act(self, x):
        return {call}.argmax()
"""


@pytest.mark.parametrize("call", ["self.forward(x)", "self(x)"])
def test_layers_of_a_model_whose_forward_is_called_directly_are_not_captured_one_by_one(
    call: str, tmp_path: Path
) -> None:
    file = tmp_path / f"{len(call)}.py"  # its tree is kept by the name
    file.write_text(NET.format(call=call), encoding="utf-8")
    layer = CalledModule("Linear", "self.first", str(file), 4, 8)
    report = replace(SAFE, strategies=())
    calling = replace(step_of(report), location=Location(str(file), 7, "forward"), mode="inference")
    step = replace(calling, modules=(layer,))
    if call == "self(x)":
        assert CaptureModel().propose(step).changes
        return
    words = r"`self.forward\(x\)` in line 10 .* Write `self\(x\)`,"
    with pytest.raises(NoProposal, match=words) as refused:
        CaptureModel().propose(step)
    assert "gain little" not in str(refused.value)  # the table may show a speedup of each layer

"""Values that a loop only collects or adds up are read after the loop, and what the program prints stays the same."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.strategies.patch.source import changed_sources
from tests.strategies.patch.test_capture_step import HEAD, printed, proposal

LOOP = """\
total = 0.5
for epoch in range(3):
    losses, rest = [], 0.0
    hits = []
    # All batches.
    for x, y in data:
        out = model(x)  # first
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # last
        hits += [(out.argmax(1) == y).sum().item()]
    print(epoch, hits, sum(hits))
print(total)
"""
LIST = "hits = torch.hstack(hits).tolist() if hits else []\n"
SUM = LOOP.replace("hits += [(out.argmax(1) == y).sum().item()]", "total += loss.item()")
IN_FUNCTION = """\
def train(epochs):
    seen, numbers = 0, list()
    for epoch in range(epochs):
        for x, y in data:
            loss = nn.functional.cross_entropy(model(x), y)  # first
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # last
            seen += 1
            if epoch:
                # From the second epoch on.
                numbers.append(loss.item())
    return numbers, seen


print(train(3), train(0))
"""
READ_AFTER = {
    "figures of one loop": (LOOP, [LIST]),
    "losses of two loops in a function, which may have none": (
        IN_FUNCTION,
        [
            "    numbers = torch.hstack(numbers).tolist() if numbers else []\n",
            "                # From the second epoch on.\n                numbers.append(loss)\n",
        ],
    ),
    "a sum of losses": (
        SUM,
        [
            "\n\n\nloss_values = []\n",
            "        loss_values.append(loss)\n",
            "for each in loss_values:\n    total += each.item()\n",
        ],
    ),
    "a sum that the outer loop prints": (
        SUM.replace("sum(hits)", "total"),
        ["    loss_values = []\n", "    for each in loss_values:\n        total += each.item()\n"],
    ),
    "a sum and a list": (
        SUM.replace("total += loss.item()", "total += loss.item()\n        hits += [loss.item()]"),
        [LIST, "for each in loss_values:\n"],
    ),
}
READ_IN_EACH_STEP = {
    "values of steps that also print one": LOOP.replace("item()]", "item()]\n        print(loss)"),
    "values of steps that read one below": LOOP.replace("item()]", "item()]\n        x.cpu()"),
    "a list that the loop prints": LOOP.replace("item()]", "item()]\n        print(hits[-1])"),
    "a list that gets other values": LOOP.replace("item()]", "item()]\n        hits.append(0)"),
    "a list that is created above the outer loop": "hits = []\n" + LOOP.replace("hits = []", ""),
    "a list with another name": LOOP.replace("hits = []", "hits = seen = []"),
    "a list that is kept before the loop": LOOP.replace("    #", "    seen = hits\n    #"),
    "a list that starts with a value": LOOP.replace("hits = []", "hits = [0]"),
    "a list that a function reads": "def last():\n    return hits[-1]\n\n\n" + LOOP,
    "a sum that is read in each step": SUM.replace("x, y in", "i, (x, y) in enumerate(").replace(
        "enumerate( data:", "enumerate(data):"
    ).replace("+= loss.item()", "+= loss.item()\n        print(total)"),
    "a sum that is read after an error": """\
total = 0.0
try:
    for x, y in data:
        loss = nn.functional.cross_entropy(model(x), y)  # first
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # last
        total += loss.item()
except KeyboardInterrupt:
    print(total)
""",
    "a value that later steps change in place": "worst = torch.zeros(())\n"
    + LOOP.replace("optimizer.zero_grad()", "optimizer.zero_grad()\n        kept = worst.detach()")
    .replace("        optimizer.step()", "        worst.copy_(loss.detach())\n        optimizer.step()")
    .replace("(out.argmax(1) == y).sum().item()", "kept.item()"),
    "a value that the loop binds to something else": SUM.replace(
        "total +=", "loss = x.mean() if epoch else loss\n        total +="
    ),
}  # fmt: skip


def changed(file: Path, source: str) -> str:
    return changed_sources(proposal(file, HEAD + source).changes)[str(file)][1]


@pytest.mark.parametrize("name", READ_AFTER)
def test_values_that_are_only_collected_are_read_after_the_loop(name: str, tmp_path: Path) -> None:
    source, lines = READ_AFTER[name]
    text = changed(tmp_path / f"{len(name)}.py", source)  # its tree is kept by the name
    for line in lines:
        assert line in text
    eager = text.replace("import graphdoctor\n", "\n").replace("@graphdoctor.capture\n", "")
    assert printed(eager) == printed(HEAD + source) != ""


@pytest.mark.parametrize("name", READ_IN_EACH_STEP)
def test_a_value_that_may_be_read_before_is_read_in_its_step(name: str, tmp_path: Path) -> None:
    text = changed(tmp_path / f"{len(name)}.py", READ_IN_EACH_STEP[name])
    assert ".item()" in text
    assert "hstack" not in text
    assert "each" not in text


def test_replays_collect_values_of_their_own_steps(tmp_path: Path) -> None:
    head = HEAD.replace("nn.Linear(8, 2))", 'nn.Linear(8, 2)).to("cuda")').replace(
        "for _ in range(6)]", "for _ in range(6)]\ndata = [(x.cuda(), y.cuda()) for x, y in data]"
    )
    source = SUM.replace(
        "total += loss.item()", "total += loss.item()\n        hits += [loss.item()]"
    )
    file = tmp_path / "replayed.py"
    text = changed_sources(proposal(file, head + source).changes)[str(file)][1]
    assert text.count(".item()") == 1
    out, namespace = io.StringIO(), dict[str, object]()
    with EmulatedDevice(), contextlib.redirect_stdout(out):
        exec(compile(text, str(file), "exec"), namespace)
    assert out.getvalue() == printed(HEAD + source)
    assert namespace["train_step"].replayed >= 10  # type: ignore[attr-defined]

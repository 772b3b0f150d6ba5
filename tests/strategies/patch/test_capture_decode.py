"""The loop of a program that decodes or acts gets a captured step, and does what it did before."""

from __future__ import annotations

import ast
import contextlib
import io
from pathlib import Path

import pytest
from msgspec.structs import replace

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.strategies.patch.edits import EDITS
from graphdoctor.strategies.patch.edits.capture_decode import CaptureDecode
from graphdoctor.strategies.patch.edits.edit import NoProposal, Proposal
from graphdoctor.strategies.patch.made import with_patch
from graphdoctor.strategies.patch.source import changed_sources
from graphdoctor.values.locations import Lines, Location
from graphdoctor.values.program import CalledModule, ProgramStep
from tests.strategies.patch.test_changed_programs import patched, tried_in
from tests.support.reports import SAFE, of_program, step_of

HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.register_buffer("seen", torch.zeros(24, 8))

    def forward(self, token, position):
        self.seen[position] = self.words(token)[0]
        mask = torch.arange(24, device=token.device) <= position
        return self.head(self.seen.mul(mask[:, None]).sum(0, keepdim=True))


model = Model().to("cuda").eval()
"""
DECODE_ONE = """\
def decode_one_token(model, x, input_pos, **sampling):
    logits = model(x, input_pos)  # call
    return logits.argmax(-1, keepdim=True), logits


@torch.no_grad()
def decode_n_tokens(model, cur_token, input_pos, count):
    new_tokens = []
    for i in range(count):
        next_token, _ = decode_one_token(model, cur_token, input_pos, temperature=0.8)
        input_pos += 1
        new_tokens.append(next_token.clone())
        cur_token = next_token.clone()
    return new_tokens


first = torch.ones(1, 1, dtype=torch.long, device="cuda")
made = decode_n_tokens(model, first, torch.zeros(1, dtype=torch.long, device="cuda"), 14)
print(torch.cat(made).tolist())
"""
PROGRAMS = {
    "statements of a file": (
        HEAD
        + """\
token = torch.ones(1, 1, dtype=torch.long, device="cuda")
position = torch.zeros(1, dtype=torch.long, device="cuda")
with torch.inference_mode():
    for _ in range(14):
        logits = model(token, position)  # call
        token = torch.argmax(logits, -1, keepdim=True)
        position += 1
        print(token.item())
""",
        ["def decode_step(token, position):", "        token = decode_step(token, position)"],
    ),
    "a function that samples, and joins its tokens": (
        HEAD
        + """\
@torch.no_grad()
def generate(model, tokens, count, temperature=1.0, top_k=None):
    position = torch.zeros(1, dtype=torch.long, device=tokens.device)
    token = tokens[:, -1:]
    for i in range(count):
        logits = model(token, position) / temperature  # call
        if top_k is not None:
            values, _ = torch.topk(logits, top_k)
            logits[logits < values[:, [-1]]] = -float("inf")
        token = torch.softmax(logits, -1).argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, token), dim=1)
        position = position + 1
    return tokens


print(generate(model, torch.ones(1, 1, dtype=torch.long, device="cuda"), 14, 0.8, 4))
""",
        [
            "def decode_step(model, token, position, temperature, top_k):",
            "        token = decode_step(model, token, position, temperature, top_k)",
            "        tokens = torch.cat((tokens, token), dim=1)",
        ],
    ),
    "a distribution": (
        HEAD.replace("import nn\n", "import nn\nfrom torch.distributions import Categorical\n")
        + """\
def draw(logits):
    return Categorical(logits=logits).sample()[:, None]


token = torch.ones(1, 1, dtype=torch.long, device="cuda")
position = torch.zeros(1, dtype=torch.long, device="cuda")
with torch.no_grad():
    for _ in range(14):
        token = draw(model(token, position))  # call
        position += 1
        print(token.item())
""",
        [
            "torch.distributions.Distribution.set_default_validate_args(False)",
            "    token = draw(model(token, position))  # call",
        ],
    ),
    "an action with noise, and one of a normal distribution": (
        HEAD.replace("import nn\n", "import nn\nfrom torch.distributions import Normal\n")
        + """\
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread = nn.Linear(3, 2), nn.Parameter(torch.zeros(2))
        self.register_buffer("scale", torch.ones(2) / 2)

    def get_action(self, x):
        probs = Normal(self.mean(x), self.spread.exp().expand(1, 2))
        action = probs.sample()
        return action, probs.log_prob(action)


agent, share = Agent().to("cuda"), 0.5
seen = torch.ones(1, 3, device="cuda")
for _ in range(14):
    with torch.no_grad():
        action, chance = agent.get_action(seen)  # call
        action += torch.normal(0, agent.scale * share)
        seen = torch.cat((action, chance.sum(1, keepdim=True)), 1)
    print(seen.tolist())
""",
        [
            "        action = probs.rsample().detach()",
            "    action, chance = agent.get_action(seen)  # call",
            "    std = agent.scale * share",
            "    action += torch.randn_like(std) * std",
        ],
    ),
    "a function for one token": (
        HEAD + DECODE_ONE,
        ["@graphdoctor.capture", "def decode_one_token(model, x, input_pos, **sampling):"],
    ),
}
LOOP = """\
token = torch.ones(1, 1, dtype=torch.long, device="cuda")
for step in range(14):
    {}
"""
REFUSED = {
    "the loop's counter `step`": LOOP.format("token = model(token, step).argmax(-1)  # call"),
    "nothing of one call to the next": LOOP.format("logits = model(token, token)  # call"),
    "more than to bind its result": LOOP.format("print(model(token, token))  # call"),
    "gradient may be taken of `scores`": """\
seen = torch.ones(1, 1, dtype=torch.long, device="cuda")
for _ in range(8):
    scores = model(seen, seen)  # call
    seen = torch.argmax(scores, -1, keepdim=True)
    seen = seen.cpu()
    scores.sum().backward()
""",
    "the host waits for `nonzero": LOOP.format("token = model(token, token).nonzero()[0]  # call"),
    "no loop of its file": "def answer(token):\n    return model(token, token)  # call\n",
}


def _changed(file: Path, source: str, *, trains: bool = False) -> str:
    return changed_sources(_proposal(file, source, trains=trains).changes)[str(file)][1]


def _proposal(file: Path, source: str, *, trains: bool = False) -> Proposal:
    return CaptureDecode().propose(_step(file, source, trains=trains))


def _step(file: Path, source: str, *, trains: bool = False) -> ProgramStep:
    file.write_text(source, encoding="utf-8")
    line = next(n for n, text in enumerate(source.split("\n"), 1) if text.endswith("  # call"))
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    around = [f.name for f in functions if f.lineno < line <= (f.end_lineno or 0)]
    return replace(
        step_of(replace(SAFE, strategies=())),
        location=Location(str(file), line, around[-1] if around else "<module>"),
        last_line=line,
        mode="inference",
        modules=(CalledModule("Model", "model", trains=trains),),
    )


def _printed(source: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source.replace("cuda", "cpu"), "program.py", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_decodes_the_same_through_the_step(name: str, tmp_path: Path) -> None:
    source, lines = PROGRAMS[name]
    file = tmp_path / f"{name[:8].strip()}.py"
    changed = _changed(file, source)
    assert {*lines} <= {*changed.split("\n")}, changed
    assert changed.count("@graphdoctor.capture\n") == 1
    eager = changed.replace("import graphdoctor\n", "\n").replace("@graphdoctor.capture\n", "")
    assert _printed(eager) == _printed(source) != ""


@pytest.mark.parametrize("words", REFUSED)
def test_a_call_that_no_loop_gets_on_by_is_left_alone(words: str, tmp_path: Path) -> None:
    file = tmp_path / f"{len(words)}.py"
    with pytest.raises(NoProposal, match=words):
        _changed(file, HEAD + REFUSED[words], trains="gradient" in words)


AGENT = """\
import numpy as np


class Agent(nn.Sequential):
    def get_action(self, seen):
        logits = self(seen)  # call
        return logits.argmax(-1), logits


agent, device = Agent(nn.Embedding(16, 8), nn.Linear(8, 16)).to("cuda"), torch.device("cuda")
optimizer = torch.optim.SGD(agent.parameters(), lr=0.1)
seen = np.array([3])
for _ in range(12):
    action, _ = agent.get_action(torch.tensor(seen).to(device))
    action = action.detach().cpu().numpy()
    seen = (seen + action) % 16
    logits = agent.get_action(torch.tensor([4]).to(device))[1]
    loss = logits.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(action, seen, f"{loss.item():.3f}")
"""
ACT_LINE = "    action, _ = agent.get_action(torch.tensor(seen).to(device))"
ACT = """\
@graphdoctor.capture
@torch.no_grad()
def act(seen):
    action, _ = agent.get_action(seen)
    return action
"""


def test_a_network_that_acts_is_called_without_gradients(tmp_path: Path) -> None:
    """What the host makes of what it has seen is an argument, and the method that also trains is no step."""
    file = tmp_path / "acts.py"
    changed = _changed(file, HEAD + AGENT, trains=True)
    assert ACT in changed
    call = "    action = act(torch.tensor(seen).to(device))\n    action = action.detach()"
    assert call in changed
    eager = changed.replace("import graphdoctor\n", "\n").replace("@graphdoctor.capture\n", "")
    assert _printed(eager) == _printed(HEAD + AGENT)
    report, _ = with_patch(of_program(_step(file, HEAD + AGENT, trains=True)), str(tmp_path))
    lines = (HEAD + AGENT).split("\n")
    act, method = (lines.index(each) + 1 for each in (ACT_LINE, "    def get_action(self, seen):"))
    assert report.steps[0].captured == (  # the host reads in the line below
        Lines(str(file), act, act),
        Lines(str(file), method, method + 2),
    )


PICKS = """\
class Net(nn.Sequential):
    def pick(self, seen, at):
        out = self(seen)  # call
        if at > 8:
            return 0
        return out.argmax().item()


q = Net(nn.Linear(4, 8), nn.Linear(8, 4)).to("cuda")
optimizer = torch.optim.SGD(q.parameters(), lr=0.1)


def train():
    for _ in range(2):
        loss = q(torch.ones(1, 4, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Env:
    def step(self, action):
        return torch.eye(4, device="cuda")[action]


env, action = Env(), 3
seen = env.step(action)
for _ in range(12):
    action = q.pick(seen, action)
    seen = env.step(action)
    print(action, [round(each, 3) for each in q(seen).tolist()])
    train()
"""


def test_a_method_that_reads_its_action_calls_the_model_in_a_captured_step(tmp_path: Path) -> None:
    """The method chooses on the host, and a captured training step may call the same model."""
    file = tmp_path / "picks.py"
    made = _proposal(file, HEAD + PICKS, trains=True)
    assert made.covers is not None  # else no captured step could call the model, too
    changed = changed_sources(made.changes)[str(file)][1]
    act = "@graphdoctor.capture\n@torch.no_grad()\ndef act(self, seen):\n    out = self(seen)"
    assert f"{act}  # call\n    return out\n" in changed
    assert "        out = act(self, seen)\n        if at > 8:\n" in changed
    out, namespace = io.StringIO(), dict[str, object]()
    with EmulatedDevice(), contextlib.redirect_stdout(out):
        exec(compile(changed, str(file), "exec"), namespace)
    assert out.getvalue() == _printed(HEAD + PICKS)
    assert namespace["act"].replayed >= 8  # type: ignore[attr-defined]


def test_a_method_keeps_the_gradients_of_what_it_returns(tmp_path: Path) -> None:
    source = HEAD + PICKS.replace("out.argmax().item()", "out.argmax().item(), out")
    with pytest.raises(NoProposal, match="gradient may be taken of `out`"):
        _changed(tmp_path / "returns.py", source, trains=True)


ROLLOUT = """\
import torch
from torch import nn

torch.manual_seed(0)
STEPS = 6
agent = nn.Linear(3, 4).to("cuda")
observations = torch.zeros((STEPS, 2, 3), device="cuda")
actions, values, dones = (torch.zeros((STEPS, 2), device="cuda") for _ in range(3))
seen, done = torch.ones(2, 3, device="cuda"), torch.zeros(2, dtype=torch.bool, device="cuda")


class Env:
    def step(self, taken, step):
        seen = [[one, two, 0.5 * step] for one, two in zip(taken, taken[::-1])]
        return torch.tanh(torch.tensor(seen, device="cuda"))


env = Env()
for iteration in range(3):
    for step in range(STEPS):
        observations[step] = seen
        dones[step] = ~done
        # The action.
        with torch.no_grad():
            scores = agent(seen)  # call
            values[step] = scores.mean(1)
        actions[step] = scores.argmax(1)
        seen = env.step(scores.argmax(1).tolist(), step)
        done = seen[:, 0] > 0.9
    print(observations.tolist(), actions.tolist(), values.tolist(), dones.tolist())
"""
ACT_AND_WRITE = """\
def act(step, seen, done):
    observations[step] = seen.type_as(observations)
    dones[step] = (~done).type_as(dones)
    # The action.
    with torch.no_grad():
        scores = agent(seen)  # call
        values[step] = scores.mean(1).type_as(values)
    actions[step] = scores.argmax(1).type_as(actions)
    return scores
"""
NO_ROWS = {
    "an index that is computed": ("observations[step] =", "observations[step - 1] ="),
    "a value of the host": ("] = seen\n", "] = torch.tensor([0.5]).to('cuda')\n"),
    "a value that counts": ("] = seen\n", "] = seen + step\n"),
    "storage that is made in each round": (
        "    for step in",
        "    observations = torch.zeros_like(observations)\n    for step in",
    ),
}


def _act(file: Path, source: str, *, with_rows: bool = True) -> str:
    step = _step(file, source)
    changes = CaptureDecode(with_rows=with_rows).propose(step).changes
    return changed_sources(changes)[str(file)][1]


def test_an_agent_writes_its_rollout_in_the_captured_step(tmp_path: Path) -> None:
    file = tmp_path / "rollout.py"
    changed = _act(file, ROLLOUT)
    assert ACT_AND_WRITE in changed
    call = '        scores = act(torch.full((1,), step, device="cuda"), seen, done)\n        seen ='
    assert call in changed
    out, namespace = io.StringIO(), dict[str, object]()
    with EmulatedDevice(), contextlib.redirect_stdout(out):
        exec(compile(changed, str(file), "exec"), namespace)
    assert out.getvalue() == _printed(ROLLOUT)
    assert namespace["act"].replayed >= 12  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NO_ROWS)
def test_a_write_that_no_graph_could_make_stays_outside(name: str, tmp_path: Path) -> None:
    before, after = NO_ROWS[name]
    assert before in ROLLOUT
    changed = _act(tmp_path / f"{len(name)}.py", ROLLOUT.replace(before, after))
    assert "def act(step, done, seen):\n    dones[step] = (~done)" in changed
    with pytest.raises(NoProposal, match="writes a row"):
        _act(tmp_path / "none.py", ROLLOUT.replace("[step] =", "[step + 0] ="))


def test_an_agent_acts_in_a_captured_step_if_its_rows_stay_outside(tmp_path: Path) -> None:
    changed = _act(tmp_path / "apart.py", ROLLOUT, with_rows=False)
    assert "def act(seen):\n    scores = agent(seen)  # call\n    return scores\n" in changed
    names = [each.name for each in EDITS]
    first = names.index("capture the step of a rollout")
    assert names[first + 1] == "capture the decode step"


def test_the_gpu_computes_the_action_that_the_host_reads(tmp_path: Path) -> None:
    source = """\
for _ in range(8):
    scores = model(seen, place)  # call
    scores += torch.normal(scores, 0.1)
    seen = [int(torch.argmax(scores, dim=1).cpu().numpy()[0])]
"""
    changed = _changed(tmp_path / "read.py", source)
    assert (
        "    scores += torch.normal(scores, 0.1)\n    seen = torch.argmax(scores, dim=1)\n"
        in changed
    )
    assert changed.endswith("decode_step(seen)\n    seen = [int(seen.cpu().numpy()[0])]\n")
    waits = source.replace("(scores, 0.1)", "(1.0, scale)") + "    env.step(seen)\n"
    changed = _changed(tmp_path / "waits.py", waits)
    assert "def act(seen):\n    scores = model(seen, place)  # call\n    return scores\n" in changed
    assert "    scores = act(seen)\n    scores += torch.normal(1.0, scale)\n" in changed


def test_a_cache_for_each_prompt_is_named(tmp_path: Path) -> None:
    source = """\
def generate(model, token):
    past = StaticCache(max_cache_len=8)
    for _ in range(8):
        out = model(token, past)  # call
        past = out.past
        token = out.logits.argmax(-1)
    return token
"""
    assert "make `past` once and reset it" in _proposal(tmp_path / "prompts.py", source).clause
    kept = source.replace("    past = Static", "    for_none = Static")
    assert "once" not in _proposal(tmp_path / "kept.py", kept).clause


def test_a_program_that_decodes_replays_its_function_for_one_token(tmp_path: Path) -> None:
    file = tmp_path / "generate.py"
    file.write_text(HEAD + DECODE_ONE)
    report = tried_in(file, patched(file))
    assert report.patch is not None and report.patch.status == "same results", report.patch
    assert "+@graphdoctor.capture\n def decode_one_token(" in report.patch.diff
    assert "11 calls were replayed" in report.patch.tried

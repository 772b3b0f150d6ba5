"""`init` writes a target for models that lack inputs: with a guess, marked, that runs where it is right."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from graphdoctor.check.template import TEMPLATE_FILE
from graphdoctor.cli import main

NET = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(x)


class Net(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))

    def forward(self, x, scale=1.0):
        return self.blocks(self.first(x)) * scale


class Words(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.table = nn.Embedding(100, width)

    def forward(self, input_ids, attention_mask):
        return self.table(input_ids) * attention_mask[..., None]
"""


def test_models_without_inputs_get_a_template_with_marked_guesses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    said = capsys.readouterr().out
    assert f"fill in the lines of {TEMPLATE_FILE} that are marked FILL IN" in said
    text = (tmp_path / TEMPLATE_FILE).read_text()
    assert "def net_net():" in text and "def net_words():" in text and "block" not in text
    assert 'x = torch.randn(8, 12, device="cuda")  # FILL IN: a guess from forward(x)' in text
    assert "Words(width=...).cuda().eval()  # FILL IN: the arguments of Words" in text
    assert "input_ids = torch.randint(0, 100, (2, 128)" in text
    settings = (tmp_path / "graphdoctor.toml").read_text()
    assert f'"{TEMPLATE_FILE}:net_net"' in settings and f'"{TEMPLATE_FILE}:net_words"' in settings
    assert main(["analyze", f"{TEMPLATE_FILE}:net_net", "--strategies", "none"]) == 0
    assert capsys.readouterr().out.startswith("SAFE")


def test_an_existing_template_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / TEMPLATE_FILE).write_text("# mine\n")
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 2
    assert f"{TEMPLATE_FILE} exists already" in capsys.readouterr().err
    assert (tmp_path / TEMPLATE_FILE).read_text() == "# mine\n"


def test_a_dry_run_prints_both_files_and_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "def net_net():" in said and "[[" in said
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


GPT = """\
from dataclasses import dataclass
import torch
from torch import nn


@dataclass
class GPTConfig:
    vocab: int
    width: int = 16


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()


class Block(nn.Module):
    def forward(self, x):
        return Round.apply(x)


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList([(Block if config.width else nn.Identity)()])

    def forward(self, idx=None, targets=None):
        return self.table(idx)


class Deep(nn.Module):
    def __init__(self, block, depth, channels=1):
        super().__init__()
        self.stem = nn.Conv2d(channels, 8, 3)

    def forward(self, x, labels):
        return self.stem(x)


class Wide(Deep):
    def __init__(self):
        super().__init__(Block, 2)


def deep18(pretrained=False) -> Deep:
    return _deep(block=Block)
"""


def test_template_takes_settings_classes_factories_and_any_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("gpt-nets", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "2net.py").write_text(GPT)
    assert main(["init", "--dry-run"]) == 0
    text = capsys.readouterr().out.partition("fail-on")[0]
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    names = [node.name for node in functions]
    assert names == [
        "net_gpt",
        "net_deep",
        "net_wide",
        "other_2net_gpt",
        "other_2net_deep",
        "other_2net_wide",
    ]
    assert 'import_module("gpt-nets.2net")' in text
    assert "model = GPT(config=GPTConfig(vocab=...)).cuda().eval()  # FILL IN" in text
    assert 'idx = torch.randint(0, 1000, (2, 128), device="cuda")  # FILL IN' in text
    assert "model = deep18().cuda().eval()  # FILL IN" in text
    assert 'x = torch.randn(2, 1, 28, 28, device="cuda")  # FILL IN' in text
    assert 'labels = torch.randint(0, 10, (2,), device="cuda")  # FILL IN' in text
    assert "return model, (x, labels)" in text and "Round" not in text


def test_init_takes_one_file_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "one.py").write_text(NET)
    (tmp_path / "two.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "nets/one.py", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "from nets.one import Net" in text and "two" not in text


@pytest.mark.parametrize(
    "text",
    [
        "from models import Net\n\nnet = Net()\nfor batch in range(3):\n    net(batch).backward()\n",
        "from torch import nn\n\n\nclass Actor(nn.Module):\n    def act(self, x):\n        return x\n",
        'print "of Python 2"\n',
    ],
)
def test_a_file_without_a_model_gets_a_blank_target_and_is_told_of_run(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "train.py"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("No model class with forward() in train.py.\n")
    assert "needs no target: `graphdoctor run train.py`." in said
    blank = (tmp_path / TEMPLATE_FILE).read_text()
    ast.parse(blank)
    assert blank.count("# FILL IN: ") == 2
    assert f'"{TEMPLATE_FILE}:graphdoctor_target"' in (tmp_path / "graphdoctor.toml").read_text()
    assert main(["analyze", f"{TEMPLATE_FILE}:graphdoctor_target"]) == 3
    assert "model = MyModel().cuda().eval()  # FILL IN" in capsys.readouterr().err

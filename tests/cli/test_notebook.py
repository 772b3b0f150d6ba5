"""`%load_ext graphdoctor`: a cell is diagnosed as a step, on the notebook's own objects, and leaves them alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import graphdoctor
from graphdoctor.cli.notebook import step_of
from graphdoctor.values.report import Report


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    found = InteractiveShell.instance()
    found.extension_manager.load_extension("graphdoctor")
    yield found
    InteractiveShell.clear_instance()


@pytest.fixture
def names(shell: InteractiveShell) -> dict[str, object]:
    shell.user_ns.update(
        graphdoctor=graphdoctor,
        torch=torch,
        model=torch.nn.Linear(8, 8),
        x=torch.ones(4, 8),
        losses=[],
        count=1,
    )
    return shell.user_ns


def _report(shell: InteractiveShell, cell: str, line: str = "") -> Report:
    found = shell.run_cell_magic("graphdoctor", line, cell)
    assert isinstance(found, Report)
    return found


def test_a_cell_is_a_step_and_its_findings_lie_on_its_lines(shell, names) -> None:
    report = _report(shell, "y = model(x)\nif y.sum() > 0:\n    y = y * 2\ny\n")
    found = next(one for one in report.findings if one.rule == "GD107")
    assert found.location is not None and found.location.line == 2
    assert found.excerpt is not None and found.excerpt.lines[1] == "if y.sum() > 0:"
    assert report.target.name == "cell"


def test_a_cell_is_named_as_the_notebook_numbers_it(shell, names) -> None:
    for _ in range(2):
        number = shell.execution_count
        done = shell.run_cell("%%graphdoctor\nif x.sum() > 0:\n    x * 2\n", store_history=True)
        found = next(one for one in done.result.findings if one.rule == "GD107")
        assert found.location is not None
        assert (found.location.file, found.location.line) == (f"In[{number}]", 1)


def test_a_model_of_another_cell_is_found_there(shell, names) -> None:
    cell = """class Branching(torch.nn.Module):
    def forward(self, x):
        if x.sum().item() > 0:
            x = x * 2
        return x
"""
    number = shell.execution_count
    shell.run_cell(cell, store_history=True).raise_error()
    shell.run_cell("report = graphdoctor.analyze(Branching(), x)", store_history=True).raise_error()
    found = next(one for one in shell.user_ns["report"].findings if one.rule == "GD107")
    assert found.location is not None
    assert (found.location.file, found.location.line) == (f"In[{number}]", 3)
    assert f"In[{number}]:3" in str(shell.user_ns["report"])
    assert "ipython-input" not in str(shell.user_ns["report"])


def test_a_training_cell_leaves_the_notebook_as_it_was(shell, names) -> None:
    names["optimizer"] = torch.optim.SGD(names["model"].parameters(), lr=0.1)
    before = [one.detach().clone() for one in names["model"].parameters()]
    cell = "loss = model(x).sum()\nloss.backward()\noptimizer.step()\nlosses.append(loss.item())\n"
    report = _report(shell, cell, "--gpu h200")
    assert report.target.mode == "training"
    (found,) = (one for one in report.findings if one.rule == "GD101")
    assert found.location is not None and found.location.line == 4
    assert report.estimate is not None and "H200" in report.estimate.gpu
    assert names["losses"] == [] and "loss" not in names
    assert all(map(torch.equal, before, names["model"].parameters()))


def test_what_a_cell_prints_is_shown_once(shell, names, capsys) -> None:
    cell = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nmodel(x)\n"
    report = _report(shell, cell)
    assert report.verdict == "safe" and "streams" not in repr(report)
    assert capsys.readouterr() == ("out\n", "err\n")


def test_a_line_is_a_step_too(shell, names) -> None:
    report = shell.run_line_magic("graphdoctor", "model(x)")
    assert report.verdict == "safe"


def test_a_cell_without_tensors_of_the_notebook_needs_no_inputs(shell, names) -> None:
    report = _report(shell, "t = torch.ones(4, 8, device='cuda')\nt @ t.T\n")
    assert report.verdict == "safe" and report.operators >= 2


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("--gpu h300", "model(x)", "there is no device profile for 'h300'"),
        ("--mdoe training", "model(x)", "unrecognized arguments: --mdoe"),
        ("--inputs fixd", "model(x)", "did you mean 'fixed'"),
        ("", "model(x", r"was never closed \(In\[\d+\], line 1\)"),
        ("", "model(x[:, :3])", "mat1 and mat2 shapes"),
        ("", "# nothing\n", "the cell is empty"),
        ("'", "model(x)", "No closing quotation"),
    ],
)
def test_a_mistake_is_said_without_a_traceback(line, cell, said, shell, names) -> None:
    with pytest.raises(UsageError, match=said):  # which IPython shows as its text alone
        shell.run_cell_magic("graphdoctor", line, cell)


def test_help_of_the_magic_names_its_options(shell) -> None:
    magic = shell.find_cell_magic("graphdoctor")
    assert "--gpu" in magic.__doc__ and "%%graphdoctor" in magic.__doc__


def test_inputs_are_the_tensors_that_a_cell_reads_and_no_weights() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    names = {"a": torch.ones(3), "b": torch.zeros(3), "weight": weight, "unread": torch.ones(1)}
    step, inputs = step_of("c = (lambda: a * weight)()\nb += c\nb", names, file="<cell>")
    assert [id(one) for one in inputs] == [id(names["a"]), id(names["b"])]
    assert step(torch.full((3,), 2.0), torch.ones(3)).tolist() == [3.0, 3.0, 3.0]


def test_what_a_cell_binds_begins_as_the_notebook_has_it() -> None:
    names = {"count": 1, "torch": torch}
    step, _ = step_of("count = count + 1\ntorch.full((1,), count)", names, file="<cell>")
    assert [step().item(), step().item()] == [2, 2] and names["count"] == 1


def test_a_report_shows_itself_in_a_terminal_too(shell, names) -> None:
    report = _report(shell, "model(x)\n")
    shown, _ = shell.display_formatter.format(report)
    assert shown["text/plain"] == str(report) and "<pre" in shown["text/html"]


def test_the_extension_is_found_by_its_name() -> None:
    assert callable(graphdoctor.load_ipython_extension)

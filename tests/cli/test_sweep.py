"""`graphdoctor sweep`: the page, the JSON, wrong calls, and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from graphdoctor.cli import main
from graphdoctor.reporters import sweep_page
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.values.figures import Range
from graphdoctor.values.report import Machine, TargetInfo
from graphdoctor.values.sweep import GainEnd, Sweep, SweepRow, SweptInput
from tests.support.schemas import schema_of

TINY = """\
import torch

def graphdoctor_target():
    return torch.nn.Linear(4, 4), (torch.ones(2, 4),)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.py"
    path.write_text(TINY)
    return path


def exactly(value: float) -> Range:
    return Range(value, value, value)


ROWS = (
    SweepRow(
        batch=1,
        status="measured",
        verdict="safe",
        scope="whole step",
        eager_us=exactly(2361.0),
        graph_us=exactly(797.0),
        speedup=Range(2.94, 2.96, 3.04),
        launch_bound_share=exactly(0.6),
        device_busy_share=exactly(0.3),
        eager_samples_per_s=exactly(423.6),
        graph_samples_per_s=exactly(1254.7),
    ),
    SweepRow(
        batch=16,
        status="predicted",
        verdict="unknown",
        scope="whole step",
        eager_us=exactly(3000.0),
        graph_us=exactly(2990.0),
        speedup=Range(1.0, 1.01, 1.02),
        notes=("the \x1b[31mtwins\x1b[0m do not fit",),
    ),
    SweepRow(batch=32, status="out-of-memory", reason="the step ran out of memory"),
    SweepRow(batch=64, status="not-run", reason="not run, since memory ran out at batch 32"),
)
SWEEP = Sweep(
    schema_version=1,
    tool_version="0",
    target=TargetInfo("resnet50", "/models/resnet50.py", "graphdoctor_target()", "inference"),
    machine=Machine("cuda", "NVIDIA H200", "3.12.3", "2.11.0", "Linux"),
    gpu="NVIDIA H200",
    rows=ROWS,
    end=GainEnd("ends", "From batch 16 on, a graph brings less than 1.05x.", 16),
    described_batch=1,
    inputs=(SweptInput("inputs[0]", (1, 3, 224, 224), True), SweptInput("inputs[1]", (), False)),
    notes=("something is doubtful",),
)


def test_the_page_says_where_the_gain_ends_and_shows_every_size() -> None:
    page = sweep_page.render(SWEEP, Look())
    assert page.startswith("THE GAIN ENDS AT BATCH 16  resnet50, inference\n")
    for part in (
        "From batch 16 on",
        "measured on NVIDIA H200; ~ predicted",
        "2.96x (2.94 to 3.04)",
        "~1.01x (1.00 to 1.02)",
        "424, 1.25k",
        "60%   30%",
        "Batch 1       safe",
        "Batch 16      unknown",
        "out of memory",
        "not run, since memory ran out at batch 32",
        "Changed       inputs[0]: 1x3x224x224 to Nx3x224x224",
        "Kept          inputs[1]: a scalar",
        "something is doubtful",
        "batch 16: the ",
    ):
        assert part in page, part


def test_the_page_is_plain_within_80_columns_and_shows_no_escape() -> None:
    page = sweep_page.render(SWEEP, Look(show_all=True))
    assert max(map(len, page.splitlines())) <= 80
    assert "\x1b" not in page


def test_bars_fill_as_far_as_is_sure() -> None:
    lines = sweep_page.render(SWEEP, Look()).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("Speedup "))
    first, second = lines[start + 1 : start + 3]
    assert first.count("#") > 2.5 * second.count("#")
    assert first.index("|") == second.index("|")
    assert "+" in first


def test_the_json_follows_its_schema() -> None:
    found = json.loads(written(SWEEP))
    jsonschema.validate(found, schema_of("sweep"))
    assert [row["status"] for row in found["rows"]] == [row.status for row in ROWS]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "rows": [{"batch": "1"}]}, schema_of("sweep"))


def test_a_file_becomes_a_page_and_a_saved_sweep(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "out.json"
    call = ["sweep", str(file), "--batch", "4, 1,4", "--device", "emulated"]
    curves = saved.parent / "curves"
    assert main([*call, "--json", str(saved), "--tensorboard", str(curves)]) == 0
    assert len(list(curves.glob("sweep/*/events.out.tfevents.*"))) == 2
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "predicted for NVIDIA H100" in captured.out
    assert "2x4 to Nx4" in captured.out
    sweep = json.loads(saved.read_text())
    jsonschema.validate(sweep, schema_of("sweep"))
    assert [(row["batch"], row["status"]) for row in sweep["rows"]] == [
        (1, "predicted"),
        (4, "predicted"),
    ]
    assert main([*call, "--json", "-", "--gpu", "a100"]) == 0
    assert "A100" in json.loads(capsys.readouterr().out)["gpu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FILE", "--batch", ""], "expected whole numbers from 1"),
        (["FILE", "--batch", "0"], "got '0'"),
        (["FILE", "--batch", "1,x"], "got 'x'"),
        (["FILE", "--batch", "1,,2"], "got ''"),
        (["FILE", "--batch=-3"], "got '-3'"),
        (["FILE", "--batch", "1e9"], "got '1e9'"),
        (["FILE", "--batch", "99999999999"], "from 1 to 1,000,000"),
        (["FILE", "--gpu", "gtx1"], "no device profile"),
        (["nowhere.py"], "does not exist"),
        (["SCALAR"], "no tensor with a dimension"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    scalar = tmp_path / "scalar.py"
    scalar.write_text(
        "import torch\ndef graphdoctor_target():\n"
        "    return torch.nn.ReLU(), (torch.tensor(1.0),)\n"
    )
    names = {"FILE": str(file), "SCALAR": str(scalar)}
    call = [names.get(argument, argument) for argument in arguments]
    assert main(["sweep", *call, "--device", "emulated"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_help_and_reporters_need_no_torch() -> None:
    code = (
        "import sys, graphdoctor.cli\n"
        "try:\n    graphdoctor.cli.main(['sweep', '--help'])\nexcept SystemExit:\n    pass\n"
        "import graphdoctor.reporters.sweep_page, graphdoctor.reporters.plain_json\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == 0


def test_a_log_of_sizes_brings_the_sizes_to_capture_and_the_settings(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = file.parent / "lengths.txt"
    log.write_text("".join(f"{size}\n" for size in (1, 1, 1, 3, 7, 7, 30)))
    called = ["sweep", str(file), "--device", "emulated", "--lengths", str(log)]
    assert main([*called, "--max-graphs", "2", "--batch", "1,30"]) == 0
    page = capsys.readouterr().out
    assert "7 calls of the log" in page
    assert "Compared with usual sizes" in page
    assert '"cudagraph_capture_sizes": sizes' in page
    section = page[page.index("Sizes to capture") : page.index("Verdicts")]
    assert max(map(len, section.splitlines())) <= 80
    assert main([*called, "--max-graphs", "2", "--batch", "1,30", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema_of("sweep"))
    assert len(found["lengths"]["chosen"]["sizes"]) <= 2
    assert found["lengths"]["calls"] == 7


def test_a_wrong_log_or_count_is_said_before_anything_runs(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = file.parent / "lengths.txt"
    log.write_text("many\n")
    assert main(["sweep", str(file), "--lengths", str(log)]) == 2
    assert "is no size" in capsys.readouterr().err
    assert main(["sweep", str(file), "--lengths", str(log), "--max-graphs", "0"]) == 2
    assert "expected a number of at least 1, got '0'" in capsys.readouterr().err

"""`graphdoctor trace`: one file, a folder, wrong calls, and what it imports."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from graphdoctor.cli import main
from tests.support.schemas import schema_of
from tests.support.traces import TraceBuilder, launch_bound


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return launch_bound(50, steps=3).write(tmp_path / "run.pt.trace.json")


def test_a_file_becomes_a_page(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("LAUNCH BOUND")
    assert "The GPU waits for the CPU" in out


def test_json_is_written_beside_the_page_or_instead(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "out.json"
    assert main(["trace", str(file), "--step", "1", "--wall-ms", "0.3", "--json", str(saved)]) == 0
    assert "LAUNCH BOUND" in capsys.readouterr().out
    report = json.loads(saved.read_text())
    jsonschema.validate(report, schema_of("trace"))
    assert report["prediction"]["wall_us"] == 300.0
    assert [step["name"] for step in report["steps"]] == ["ProfilerStep#1"]
    assert main(["trace", str(file), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["device_busy_share"] == pytest.approx(0.2, abs=0.01)


def test_a_folder_shows_every_worker_what_differs_and_what_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, kernels in enumerate((50, 60)):
        builder = launch_bound(kernels, steps=3)
        content = {**builder.document(), "distributedInfo": {"rank": rank}}
        path = tmp_path / f"host_{rank}.1.pt.trace.json.gz"
        path.write_bytes(gzip.compress(json.dumps(content).encode()))
    (tmp_path / "notes.json").write_text("{}")
    assert main(["trace", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for part in ("2 ranks", "rank 0", "rank 1", "Step", "notes.json"):
        assert part in out
    assert main(["trace", str(tmp_path), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, schema_of("trace"))
    (step,) = [item for item in report["differences"] if item["figure"] == "kernels"]
    assert (step["low"], step["high"]) == (50, 60)
    assert step["high_worker"].startswith("rank 1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.json"], "no file or folder"),
        (["FILE", "--wall-ms", "0"], "expected a number above 0"),
        (["FILE", "--wall-ms", "nan"], "expected a number above 0"),
        (["FILE", "--step", "77"], "no ProfilerStep#77"),
        (["FILE", "--gpu", "gtx1"], "no device profile"),
        (["EMPTY"], "no traces"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "empty").mkdir()
    names = {"FILE": str(file), "EMPTY": str(tmp_path / "empty")}
    assert main(["trace", *(names.get(argument, argument) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_trace_of_the_cpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = TraceBuilder()
    builder.operator("aten::mul", 0, 5)
    assert main(["trace", str(builder.write(tmp_path / "cpu.json"))]) == 2
    assert "has no GPU events" in capsys.readouterr().err


def test_standard_input_is_read(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with file.open("rb") as opened:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(opened))
        assert main(["trace", "-"]) == 0
    assert capsys.readouterr().out.startswith("LAUNCH BOUND")


@pytest.mark.parametrize("option", ["--json", "--annotate"])
@pytest.mark.parametrize("name", ["same", "link", "hard"])
def test_no_output_destroys_what_is_read(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, name: str
) -> None:
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    output = file if name == "same" else tmp_path / name
    before = file.read_bytes()
    assert main(["trace", str(file), option, str(output)]) == 2
    assert "is a trace that is read" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_a_trace_of_the_folder_and_one_name_for_two_outputs_are_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file.read_bytes()
    assert main(["trace", str(tmp_path), "--json", str(file)]) == 2
    assert "is a trace that is read" in capsys.readouterr().err
    both = str(tmp_path / "out")
    assert main(["trace", str(file), "--json", both, "--annotate", both]) == 2
    assert "name the same file" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_a_limit_of_memory_is_one_sentence(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(file), "--max-memory", "0.01"]) == 2
    assert "--max-memory" in capsys.readouterr().err
    assert main(["trace", str(file), "--max-memory", "100"]) == 0


def test_it_needs_no_torch(file: Path) -> None:
    code = (
        "import sys, graphdoctor.cli\n"
        f"assert graphdoctor.cli.main(['trace', {str(file)!r}]) == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode
        == 0
    )

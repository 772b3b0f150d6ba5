"""The command line: exit codes, one sentence for each error, and what goes to which stream."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import graphdoctor
from graphdoctor.cli import COMMANDS, main
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.errors import CannotDoItHere, GraphDoctorError, UsageError, UserCodeError
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Report
from tests.support.reports import PARTLY_SAFE

Show = Callable[[Report], None]
Analysis = Callable[[str, AnalyzeOptions, Callable[[str], None], Show], Report]


@pytest.fixture
def analysis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Analysis], None]:
    """Puts a function in the place of the pipeline, in a folder with a file to name."""
    (tmp_path / "model.py").touch()
    monkeypatch.chdir(tmp_path)

    def install(function: Analysis) -> None:
        module = ModuleType("graphdoctor.pipeline")
        vars(module)["analyze_target"] = function
        monkeypatch.setitem(sys.modules, "graphdoctor.pipeline", module)

    return install


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(written_as("json", PARTLY_SAFE, Look()), encoding="utf-8")
    return path


def failing_with(error: BaseException) -> Analysis:
    def analyze_target(
        spec: str, options: AnalyzeOptions, tell: Callable[[str], None], show: Show
    ) -> Report:
        raise error

    return analyze_target


def test_options_reach_the_pipeline(analysis, capsys) -> None:
    calls = []
    analysis(lambda spec, options, tell, show: calls.append((spec, options)) or PARTLY_SAFE)
    arguments = "model.py:net --mode training --device emulated --iterations 6 --gpu a100"
    inputs = "--host slow-server --input 8x3:float16 --input 4:int64 --trace-dir traces"
    assert main([*arguments.split(), *inputs.split()]) == 2  # no command
    assert main(["analyze", *arguments.split(), *inputs.split()]) == 0
    shapes = ("8x3:float16", "4:int64")
    options = AnalyzeOptions(
        "training",
        "emulated",
        6,
        shapes,
        "a100",
        "slow-server",
        trace_dir="traces",
        times_stages=True,
    )
    assert calls == [("model.py:net", options)]


def test_options_have_the_defaults_of_their_type_and_stages_are_timed(analysis) -> None:
    calls = []
    analysis(lambda spec, options, tell, show: calls.append(options) or PARTLY_SAFE)
    assert main(["analyze", "model.py"]) == 0
    assert calls == [AnalyzeOptions(times_stages=True)]


@pytest.mark.parametrize("verdict", ["safe", "partly-safe", "unsafe", "unknown"])
def test_any_verdict_is_success(analysis, capsys, verdict: str) -> None:
    report = Report(
        **{**{f: getattr(PARTLY_SAFE, f) for f in Report.__struct_fields__}, "verdict": verdict}
    )
    analysis(lambda spec, options, tell, show: report)
    assert main(["analyze", "model.py"]) == 0
    assert capsys.readouterr().out.startswith(verdict.upper().replace("-", " "))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("there is no file model.py"), 2),
        (GraphDoctorError("something else"), 2),
        (UserCodeError("the model failed"), 3),
        (CannotDoItHere("there is no GPU"), 4),
    ],
)
def test_error_is_one_sentence_with_its_code(analysis, capsys, error, code: int) -> None:
    analysis(failing_with(error))
    assert main(["analyze", "model.py"]) == code
    captured = capsys.readouterr()
    assert captured.err == f"graphdoctor: error: {error}\n"
    assert captured.out == ""


def test_user_s_own_frames_follow_the_sentence(analysis, capsys) -> None:
    frames = '  File "model.py", line 3, in forward\n    raise \x1b[31mValueError\n'
    analysis(failing_with(UserCodeError("forward raised ValueError: a\nb", frames)))
    assert main(["analyze", "model.py"]) == 3
    assert capsys.readouterr().err == (
        "graphdoctor: error: forward raised ValueError: a\\nb\n"
        '  File "model.py", line 3, in forward\n    raise \\x1b[31mValueError\n'
    )


def test_template_to_paste_keeps_its_lines(analysis, capsys) -> None:
    analysis(failing_with(UsageError("paste this:\n\ndef graphdoctor_target():\n    \x07")))
    assert main(["analyze", "model.py"]) == 2
    assert capsys.readouterr().err == (
        "graphdoctor: error: paste this:\n\ndef graphdoctor_target():\n    \\x07\n"
    )


def test_unexpected_exception_asks_for_a_bug_report(analysis, capsys, monkeypatch) -> None:
    monkeypatch.delenv("GRAPHDOCTOR_DEBUG", raising=False)
    analysis(failing_with(KeyError("gone")))
    assert main(["analyze", "model.py"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "please report it" in err
    assert "KeyError: 'gone'" in err
    assert "Traceback" not in err


def test_traceback_is_shown_on_request_only(analysis, capsys, monkeypatch) -> None:
    monkeypatch.setenv("GRAPHDOCTOR_DEBUG", "1")
    analysis(failing_with(KeyError("gone")))
    assert main(["analyze", "model.py"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_interrupt_has_the_shell_s_code(analysis, capsys) -> None:
    analysis(failing_with(KeyboardInterrupt()))
    assert main(["analyze", "model.py"]) == 130
    assert capsys.readouterr().err == "graphdoctor: interrupted\n"


def test_model_that_exits_is_the_user_s_fault(analysis, capsys) -> None:
    analysis(failing_with(SystemExit(0)))
    assert main(["analyze", "model.py"]) == 3
    assert "model.py ended the interpreter with exit code 0" in capsys.readouterr().err


def test_what_the_model_prints_stays_out_of_the_report(analysis, capsys) -> None:
    def analyze_target(
        spec: str, options: AnalyzeOptions, tell: Callable[[str], None], show: Show
    ) -> Report:
        print("loading weights")
        return PARTLY_SAFE

    analysis(analyze_target)
    assert main(["analyze", "model.py", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"] == "partly-safe"
    assert captured.err == "loading weights\n"


def test_json_is_saved_beside_the_page_and_shows_the_same_page_again(
    analysis, capsys, tmp_path: Path
) -> None:
    analysis(lambda spec, options, tell, show: PARTLY_SAFE)
    path = tmp_path / "report.json"
    path.write_text("an older report")
    assert main(["analyze", "model.py", "--json", str(path)]) == 0
    page = capsys.readouterr().out
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out == page
    assert {entry.name for entry in tmp_path.iterdir()} == {"model.py", "report.json"}


@pytest.mark.parametrize("place", ["", "missing/report.json"])
def test_place_that_cannot_be_written_is_refused_before_the_work(
    analysis, capsys, tmp_path: Path, place: str
) -> None:
    analysis(failing_with(AssertionError("the analysis was started")))
    assert main(["analyze", "model.py", "--json", str(tmp_path / place)]) == 2
    assert "error: cannot write" in capsys.readouterr().err


def test_report_can_be_written_to_a_device(analysis, capsys) -> None:
    analysis(lambda spec, options, tell, show: PARTLY_SAFE)
    assert main(["analyze", "model.py", "--json", os.devnull]) == 0
    assert not Path(os.devnull).is_file()


def test_all_shows_more_than_the_default(saved: Path, capsys) -> None:
    assert main(["report", str(saved)]) == 0
    default = capsys.readouterr().out
    assert main(["report", str(saved), "--all"]) == 0
    assert len(capsys.readouterr().out) > len(default)


def test_broken_report_is_named(tmp_path: Path, capsys) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"schema_version": 1,')
    assert main(["report", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"graphdoctor: error: {path} is cut short")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["analyze"], "the following arguments are required: TARGET"),
        (["analyze", "m.py", "--iterations", "1"], "expected a number of at least 2, got '1'"),
        (["analyze", "m.py", "--iterations", "many"], "at least 2, got 'many'"),
        (["analyze", "m.py", "--mode", "both"], "invalid choice: 'both'"),
        (
            ["analyze", "m.py", "--mode", "train"],
            "inference, training); did you mean 'training'",
        ),
        (["sweep", "m.py", "--device", "gpu-emulated"], "did you mean 'emulated'"),
        (["diff", "a", "b", "--output-format", "mark-down"], "did you mean 'markdown'"),
        (["check", "--output-format", "junit-xml"], "did you mean 'junit'"),
        (["check", "--report", "sarf=x"], "got 'sarf=x'; did you mean 'sarif'"),
        (["analyze", "m.py", "--iter", "3"], "unrecognized arguments: --iter 3"),
        (
            ["analyze", "m.py", "--iter=3"],
            "did you mean '--iterations'? (see `graphdoctor analyze",
        ),
        (
            ["report", "m.json", "another"],
            "unrecognized arguments: another (see `graphdoctor report",
        ),
        (["-x"], "unrecognized arguments: -x (see"),
        (["diagnose"], "invalid choice: 'diagnose'"),
        (["analize", "m.py"], "did you mean 'analyze'"),
        (["--verison"], "did you mean '--version'?"),
        (["report"], "the following arguments are required: FILE"),
    ],
)
def test_wrong_call_is_one_sentence(capsys, arguments: list[str], sentence: str) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert sentence in err
    assert "--help`" in err


def test_no_command_shows_the_help_as_an_error(capsys) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(command.name in captured.err for command in COMMANDS)


def test_every_module_has_a_command() -> None:
    folder = Path(graphdoctor.__file__).parent / "cli"
    shared = {"__init__", "arguments", "checking", "live", "output"}
    modules = {path.stem for path in folder.glob("*.py")}
    assert modules - shared == {type(one).__module__.rpartition(".")[2] for one in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_of_every_command_fits_80_columns(command, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as done:
        main([command.name, "--help"])
    assert done.value.code == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert (command.__doc__ or "").split("\n")[0] in out


def test_version_is_the_package_s(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"graphdoctor {graphdoctor.__version__}\n"


def test_broken_pipe_of_the_model_s_own_is_an_error(analysis, capsys) -> None:
    analysis(failing_with(BrokenPipeError("a worker died")))
    assert main(["analyze", "model.py"]) == 2
    assert "a worker died" in capsys.readouterr().err


def test_missing_file_is_said_before_torch_is_imported(analysis, capsys) -> None:
    """Importing it takes seconds; the pipeline here would say that it was reached."""
    analysis(failing_with(AssertionError("reached")))
    for command in ("analyze", "sweep"):
        assert main([command, "absent.py:make"]) == 2
        assert "absent.py does not exist (looked in" in capsys.readouterr().err
        assert main([command, __file__, "--gpu", "h10"]) == 2
        assert "did you mean 'h100'?" in capsys.readouterr().err

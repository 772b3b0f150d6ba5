"""A program runs under graphdoctor as it runs under Python."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from graphdoctor.target.program.launch import Ended, Program, run_program
from graphdoctor.values.errors import UsageError

PRINTS = """\
import os, sys
print(__name__, os.path.basename(__file__), sys.argv[1:], os.path.basename(sys.path[0]))
print(sys.modules["__main__"].__file__ == __file__, __spec__)
"""


def run(file: Path, *arguments: str) -> Ended:
    return run_program(Program(str(file), arguments), lambda: False)


def test_a_script_sees_what_it_sees_under_python(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "script.py"
    file.write_text(PRINTS)
    before = (list(sys.argv), list(sys.path), sys.modules["__main__"])
    assert run(file, "--epochs", "1") == Ended("finished", 0)
    printed = capfd.readouterr().out
    alone = subprocess.run(
        [sys.executable, file, "--epochs", "1"], capture_output=True, text=True, check=True
    )
    assert printed == alone.stdout
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no data')", 1, "no data"),
        ("exit()", 0, ""),
    ],
)
def test_the_exit_code_is_the_program_s(tmp_path: Path, line: str, code: int, text: str) -> None:
    file = tmp_path / "script.py"
    file.write_text(f"import builtins\nfrom sys import exit\n{line}\n")
    assert run(file) == Ended("finished", code, text)


def test_a_failure_shows_the_program_s_frames_only(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("def train():\n    raise ValueError('no more data')\n\ntrain()\n")
    ended = run(file)
    assert (ended.ending, ended.exit_code) == ("raised", 1)
    alone = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert ended.text == alone.stderr.rstrip("\n")


def test_an_interrupt_has_the_shell_s_code(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("raise KeyboardInterrupt\n")
    assert run(file).exit_code == 130


def test_threads_that_python_waits_for_are_waited_for(tmp_path: Path) -> None:
    file, done = tmp_path / "script.py", tmp_path / "done"
    file.write_text(
        "import threading, time, sys\n"
        "def late():\n    time.sleep(0.2)\n    open(sys.argv[1], 'w').close()\n"
        "threading.Thread(target=late).start()\n"
    )
    run(file, str(done))
    assert done.exists()


def test_threads_that_were_there_before_are_not_waited_for(tmp_path: Path) -> None:
    file, is_over = tmp_path / "script.py", threading.Event()
    file.write_text("")
    other = threading.Thread(target=is_over.wait, args=(30,))
    other.start()
    try:
        assert run(file).exit_code == 0
        assert other.is_alive()
    finally:
        is_over.set()
        other.join()


def test_a_module_runs_as_with_python_m(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    assert run_program(Program("mypackage.train", ("-x",), True), lambda: False).exit_code == 0
    assert capsys.readouterr().out == "__main__ mypackage ['-x']\n"
    assert "mypackage" in sys.modules and os.getcwd() == str(tmp_path)


def test_what_is_no_program_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the program .*missing\.py: No such file"):
        run(tmp_path / "missing.py")
    (tmp_path / "broken.py").write_text("def (:\n")
    with pytest.raises(UsageError, match="is no Python program"):
        run(tmp_path / "broken.py")


def test_the_source_of_a_function_is_the_text_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "program.py"
    file.write_text("import inspect\n\n\ndef step():\n    return 1\n")
    text = "import inspect\n\n\ndef step():\n    return 2\n\n\nprint(inspect.getsource(step))\n"
    run_program(Program(str(file)), lambda: False, sources={str(file): text})
    assert "return 2" in capsys.readouterr().out
    assert linecache.getline(str(file), 5) == "    return 1\n"

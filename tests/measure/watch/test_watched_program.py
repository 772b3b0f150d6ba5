"""`graphdoctor watch` lets a program run and end as under Python, and reports on what it saw."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from graphdoctor.cli import main
from tests.support import warm
from tests.support.schemas import schema_of

NO_DEVICE = "There is no CUDA device to watch"


def watch(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = warm.command(warm.CLI, "watch", *options, str(file))
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def script(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "serve.py"
    file.write_text(text)
    return file


ENDINGS = {
    "raised": ("def work():\n    raise ValueError('no more data')\nwork()\n", "The program failed"),
    "exit": ("import sys\nsys.exit(7)\n", "to its end, with exit code 7"),
    "interrupted": (
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n",
        "was interrupted",
    ),
    "terminated": (
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n",
        "was terminated (SIGTERM)",
    ),
}
CODES = {"raised": 1, "exit": 7, "interrupted": 130, "terminated": -signal.SIGTERM}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_exit_code_is_the_program_s_and_the_report_says_how_it_ended(
    tmp_path: Path, ending: str
) -> None:
    text, said = ENDINGS[ending]
    done = watch(script(tmp_path, text), "--json", str(tmp_path / "watch.json"))
    assert done.returncode == CODES[ending]
    assert said in " ".join(done.stderr.split())
    assert done.stdout == ""
    report = json.loads((tmp_path / "watch.json").read_text())
    jsonschema.validate(report, schema_of("watch"))
    assert report["state"] == ("finished" if ending == "exit" else ending)
    if ending == "raised":
        alone = subprocess.run(
            [sys.executable, tmp_path / "serve.py"], capture_output=True, text=True
        )
        assert alone.stderr in done.stderr


EVERYTHING = """\
import json, os, signal, threading, time, torch
got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
os.chdir("elsewhere")
threads = [threading.Thread(target=lambda: torch.ones(3).sum()) for _ in range(3)]
for thread in threads:
    thread.start()
if os.fork() == 0:
    assert signal.getsignal(signal.SIGUSR1).__name__ == "<lambda>"
    assert signal.signal.__module__ == "signal"
    print("child", flush=True)
    raise SystemExit(3)  # runs off the end of the program, through graphdoctor's own frames
print("child's code", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
with torch.profiler.profile() as own:
    torch.ones(3).sum()
print("sum" in str([event.key for event in own.key_averages()]), flush=True)
os.kill(os.getpid(), signal.SIGUSR1)
while not os.path.exists("../watch.json"):
    time.sleep(0.01)
print(json.load(open("../watch.json"))["state"], got == [signal.SIGUSR1])
"""


def test_threads_forks_profilers_signals_and_folders_are_the_program_s_own(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file = script(tmp_path, EVERYTHING)
    command = warm.command(warm.CLI, "watch", "--json", "watch.json", file.name)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path,
                          env=_environment())  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["child", "child's code 3", "True", "running True"],
    )
    assert done.stderr.count("goes on") == 1 and done.stderr.count("to its end") == 1
    assert "Processes that the program forked (1) are not watched." in done.stderr


def _environment() -> dict[str, str]:
    import os

    root = str(Path(__file__).parents[3])
    return {**os.environ, "PYTHONPATH": root, "KINETO_LOG_LEVEL": "99"}


def test_processes_of_several_write_a_report_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    file = script(tmp_path, "import sys\nsys.stderr = None\n")
    assert main(["watch", "--json", str(tmp_path / "watch.json"), str(file)]) == 0
    report = json.loads((tmp_path / "watch.rank1.json").read_text())
    assert report["rank"] == 1 and not (tmp_path / "watch.json").exists()
    monkeypatch.undo()
    assert "graphdoctor watch rank 1" in capsys.readouterr().err


def test_one_sentence_says_that_there_is_no_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphdoctor.measure.watch.watcher._has_cuda", lambda: False)
    file = script(tmp_path, "import torch\nprint(torch.cuda.is_available())\n")
    assert main(["watch", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.out in ("False\n", "True\n")
    assert captured.err.startswith(f"graphdoctor watch: {NO_DEVICE}")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "graphdoctor watch train.py -- --epochs 1"),
        (("--every", "0s", "serve.py"), "expected a time"),
        (("missing.py",), "missing.py is no file"),
        (("--evry", "3s"), "unrecognized arguments: --evry"),
    ],
)
def test_a_wrong_call_is_said_in_one_sentence(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", *arguments]) == 2
    assert says in capsys.readouterr().err

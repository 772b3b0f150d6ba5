"""Arguments that several commands take: declares them, and reads their text or says what is wrong with it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.values.errors import UsageError
from graphdoctor.values.file_kinds import refuse_saved
from graphdoctor.values.target_spec import check_file

if TYPE_CHECKING:
    from graphdoctor.target.program.launch import Program

DEFAULT_BUDGET_S = 120.0
DEFAULT_LIMIT_S = 600.0
NO_STRATEGIES = "none"
_TIME = re.compile(r"(?P<number>\d+(\.\d+)?|\.\d+)\s*(?P<unit>s|m|min|h)?")
_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that reads `[tool.graphdoctor]`."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, such as fail-on=error, or a file like graphdoctor.toml; may be repeated",
    )
    parser.add_argument(
        "--isolated", action="store_true", help="ignore the settings files of the project"
    )


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """The target, and how and where it runs."""
    add = parser.add_argument
    add("target", metavar="TARGET", help="file.py, file.py:name or package.module:name")
    add("--mode", choices=("inference", "training"), help="default: what the target describes")
    add(
        "--device",
        choices=("auto", "cuda", "emulated"),
        default="auto",
        help="auto (the default) takes a GPU where there is one, and else emulates one",
    )


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Tensors for a module without inputs, and the machine that is predicted for."""
    add = parser.add_argument
    add(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE:DTYPE",
        help="a tensor for a module that comes without inputs, such as"
        " 8x3x224x224:float16; once for each argument",
    )
    add_inputs_argument(parser, default="vary")
    add_machine_arguments(parser)


def add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    """The GPU that is predicted for, and the host that feeds it."""
    parser.add_argument(
        "--gpu", default="h100", help="predict for this GPU: h100 (the default), h200, a100 ..."
    )
    parser.add_argument(
        "--host",
        default="",
        help="predict for this host of the GPU: server (the default), slow-server, or a file of"
        " `graphdoctor calibrate --host`",
    )


def add_inputs_argument(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    """Whether given inputs get other values; without a `default` each target's settings say it."""
    parser.add_argument(
        "--inputs",
        choices=("vary", "fixed"),
        default=default,
        help="vary (the default): other values of the same make for each step, where the step"
        " accepts them; fixed: the inputs as given, and a verdict on them only",
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What to analyse and how."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="file.py, file.py:name, a folder, or the name of a target in the settings;"
        " default: every target in the settings",
    )
    parser.add_argument("--device", choices=("emulated", "cuda", "auto"), help="default: emulated")
    add_inputs_argument(parser, default=None)
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="targets analyzed at once (default: one per core)"
    )
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="for each target (default: 300)"
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="analyze again what has not changed since an earlier check",
    )
    add_settings_arguments(parser)


def add_program_arguments(parser: argparse.ArgumentParser) -> None:
    """Which program, as Python's own command line names it: `program_of` reads it."""
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", help="run a module, as `python -m` does"
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [--] ARGUMENTS",
        help="the script, and its own arguments",
    )


def program_of(args: argparse.Namespace) -> Program:
    """What `run` and `watch` are to run: a script or -m module, with its own arguments."""
    words = list(args.program)
    if args.module is not None:
        from graphdoctor.target.program.launch import Program

        return Program(args.module, tuple(words[1:] if words[:1] == ["--"] else words), True)
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        raise UsageError(
            "there is nothing to run: name a script and its arguments, such as"
            f" `{args.parser.prog} train.py -- --epochs 1`, or a module with -m"
        )
    if words[0].startswith("-"):
        raise UsageError(f"unrecognized arguments: {words[0]} (see `{args.parser.prog} --help`)")
    refuse_saved(Path(words[0]))
    if not Path(words[0]).is_file():  # said before torch is imported
        raise UsageError(
            f"{words[0]} is no file in {Path.cwd()}: name a script, or a module as -m package.module"
        )
    check_file(Path(words[0]))  # a notebook is JSON, which Python takes for a program
    from graphdoctor.target.program.launch import Program

    rest = words[2:] if words[1:2] == ["--"] else words[1:]
    return Program(words[0], tuple(rest))


def names(text: str) -> tuple[str, ...]:
    """The names between commas; what they name is known once torch is there."""
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names:
        raise argparse.ArgumentTypeError("expected names such as whole,modules, or none; got none")
    return () if names == (NO_STRATEGIES,) else names


def seconds(text: str) -> float:
    found = _TIME.fullmatch(text.strip().lower())
    seconds = float(found["number"]) * _UNITS_S[found["unit"] or "s"] if found else 0.0
    if seconds <= 0.0:
        raise argparse.ArgumentTypeError(f"expected a time such as 120s or 2m, got {text!r}")
    return seconds


def at_least(least: int) -> Callable[[str], int]:
    """What reads a whole number that is no smaller."""

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a number of at least {least}, got {text!r}")
        return int(text)

    return count

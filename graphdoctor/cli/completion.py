"""`graphdoctor completion SHELL`: what a shell runs to complete commands, options, rules, GPUs and targets."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from graphdoctor.cli.output import FormatAndFile, show
from graphdoctor.values.errors import CannotDoItHere, GraphDoctorError

SHELLS = ("bash", "zsh", "fish")
Words = Callable[[str], Iterable[str]]  # of what is written already
_ASKED = "_ARGCOMPLETE"  # a shell sets it when it asks what could stand next


class CompletionCommand:
    """Print what a shell runs to complete graphdoctor's command lines.

    bash   eval "$(graphdoctor completion bash)"       in ~/.bashrc
    zsh    eval "$(graphdoctor completion zsh)"        in ~/.zshrc, after compinit
    fish   graphdoctor completion fish | source        in ~/.config/fish/config.fish
    """

    name = "completion"
    help = "complete commands, options and rules in a shell"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=SHELLS)

    def run(self, args: argparse.Namespace) -> int:
        try:
            from argcomplete.shell_integration import shellcode
        except ImportError as error:
            raise CannotDoItHere(
                "completion needs the package argcomplete: pip install argcomplete"
            ) from error
        show(shellcode(["graphdoctor"], shell=args.shell) + "\n")
        return 0


def answer_shell(parser: argparse.ArgumentParser) -> None:
    """Where a shell asks what could stand next, say it and leave; else return at once."""
    if _ASKED not in os.environ:
        return
    import argcomplete

    for action in _actions(parser):
        words = (
            _formats(action.type.formats)
            if isinstance(action.type, FormatAndFile)
            else _WORDS.get(action.dest)
        )
        if words is not None:
            action.completer = _completer(words)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options="long")


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of the parser and of those of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def _completer(words: Words) -> Callable[..., list[str]]:
    """Whatever is wrong with the project is said when a command runs, and not by a key."""

    def complete(prefix: str, **asked: object) -> list[str]:
        with suppress(GraphDoctorError, OSError):
            return [word for word in words(prefix) if word.startswith(prefix)]
        return []

    return complete


def _rules(prefix: str) -> Iterator[str]:
    from graphdoctor.rules import ALL_RULES

    for rule in ALL_RULES:
        yield from (rule.id, rule.name)


def _gpus(prefix: str) -> Iterable[str]:
    from graphdoctor.estimate.gpus import profile_names

    return profile_names()


def _hosts(prefix: str) -> Iterable[str]:
    from graphdoctor.estimate.hosts import host_names

    return host_names()


def _targets(prefix: str) -> Iterator[str]:
    """Names of the settings' targets, and Python files and folders here."""
    from graphdoctor.check.settings.files import load

    yield from (target.name for target in load(Path.cwd()).settings.targets)
    yield from _files(prefix)


def _files(prefix: str) -> Iterable[str]:
    from argcomplete.completers import FilesCompleter

    found: list[str] = FilesCompleter(allowednames=(".py",))(prefix)
    return found


def _formats(formats: Iterable[str]) -> Words:
    return lambda prefix: [f"{name}=" for name in formats]


def _settings(prefix: str) -> Iterator[str]:
    from dataclasses import fields

    from graphdoctor.check.settings.settings import Settings

    return (f"{one.name.replace('_', '-')}=" for one in fields(Settings))


# By the names that arguments have in all commands; what is not here has choices, or is a file.
_WORDS: dict[str, Words] = {
    "rule": _rules,
    "gpu": _gpus,
    "host": _hosts,
    "paths": _targets,
    "target": _files,
    "config": _settings,
}

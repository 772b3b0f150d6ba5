"""`graphdoctor init` and `graphdoctor show-settings`: the first settings of a project, and those that hold."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.arguments import add_settings_arguments
from graphdoctor.cli.checking import load_project, of_notebooks
from graphdoctor.cli.output import show
from graphdoctor.reporters.files import check_writable, save
from graphdoctor.values.errors import UsageError
from graphdoctor.values.escape import visible

if TYPE_CHECKING:
    from graphdoctor.check.settings.settings import TargetSettings
    from graphdoctor.check.template import LoneFile


_LONE_SHOWN = 5


class InitCommand:
    """Look for models in a repository and write a target for each into its settings.

    Writes [tool.graphdoctor] into pyproject.toml, or graphdoctor.toml if there is
    none. If no file says what its inputs are, also writes graphdoctor_targets.py: a
    target for each model, with guessed inputs on marked lines. Runs no code of the
    repository.
    """

    name = "init"
    help = "write settings for a repository's models"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "path",
            nargs="?",
            type=Path,
            default=Path(),
            metavar="PATH",
            help="a folder, or one file of the project here; default: here",
        )
        parser.add_argument("--dry-run", action="store_true", help="print it, and write nothing")

    def run(self, args: argparse.Namespace) -> int:
        if not args.path.exists():
            raise UsageError(f"{args.path} does not exist")
        from graphdoctor.check.settings.toml import first_settings_toml
        from graphdoctor.check.template import discover, lone_modules

        looked = args.path.resolve()
        here = Path.cwd() if looked.is_relative_to(Path.cwd()) else looked.parent
        root = here if looked.is_file() else looked
        path, before = _place(root)
        found = discover(looked, root=root)
        lone = lone_modules(looked, root=root)
        guessed = ""
        if not found:
            from graphdoctor.check.settings.settings import TargetSettings
            from graphdoctor.check.template import TEMPLATE_FILE, lone_models, template

            models = [*lone_models(lone, root=root)]
            guessed = template(models)
            functions = [model.function for model in models] or ["graphdoctor_target"]
            entries = [f"{TEMPLATE_FILE}:{function}" for function in functions]
            found = [TargetSettings(entry.partition(":")[2], entry) for entry in entries]
            if (root / TEMPLATE_FILE).exists():
                raise UsageError(f"{TEMPLATE_FILE} exists already; add targets to it by hand")
        section = first_settings_toml(found, is_shared=path.name == "pyproject.toml")
        if args.dry_run:
            show(f"{guessed}\n{section}" if guessed else section)
            return 0
        check_writable(path)
        if guessed:
            save(guessed, root / TEMPLATE_FILE)
        save(_joined(before, section), path)
        said = "" if lone or not guessed else _nothing_found(args.path)
        show(said + (_guessed_steps(path, found) if guessed else _next_steps(path, found, lone)))
        return 0


def _place(root: Path) -> tuple[Path, str]:
    """The file to write into, and its text. Raises UsageError where it has settings already."""
    from graphdoctor.check.settings.files import OWN_FILE, SHARED_FILE, read_toml

    own, shared = root / OWN_FILE, root / SHARED_FILE
    if own.exists():
        raise UsageError(f"{own} exists already; add targets to it by hand")
    if not shared.exists():
        return own, ""
    tools = read_toml(shared).get("tool")
    if isinstance(tools, dict) and "graphdoctor" in tools:
        raise UsageError(f"{shared} has [tool.graphdoctor] already; add targets to it by hand")
    return shared, shared.read_bytes().decode()  # with its own ends of lines


def _joined(before: str, section: str) -> str:
    """At the end, where it disturbs nothing; proved to be TOML before it is written."""
    import tomllib

    end = "\r\n" if "\r\n" in before else "\n"
    text = f"{before.rstrip()}\n\n{section}" if before.strip() else section
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"cannot add a section to pyproject.toml ({error}); add this by hand\n\n{section}"
        ) from error
    return text.replace("\r\n", "\n").replace("\n", end)


def _nothing_found(path: Path) -> str:
    place = visible(str(path)) if path.name else "this folder"
    run = f"`graphdoctor run {place if path.is_file() else 'SCRIPT.py'}`"
    return (
        f"No model class with forward() in {place}{of_notebooks(path)}.\n"
        f"A program that trains or serves needs no target: {run}.\n\n"
    )


def _guessed_steps(path: Path, found: list[TargetSettings]) -> str:
    """What was written, and what to do with a template."""
    file, _, name = found[0].entry.partition(":")
    return (
        f"Wrote {file}, with a target for each model, and {path.name} for `graphdoctor check`.\n"
        + "".join(f"  {visible(target.entry)}\n" for target in found)
        + f"\nNext: fill in the lines of {file} that are marked FILL IN, then run\n"
        + f"`graphdoctor analyze {file}:{visible(name)}`.\n"
    )


def _next_steps(path: Path, found: list[TargetSettings], lone: list[LoneFile]) -> str:
    from graphdoctor.values.figures import count_text

    lines = [f"{path.name}: {count_text(len(found), 'target')}"]
    lines += [f"  {visible(target.entry)}" for target in found]
    if lone:
        lines += ["", "Left out, because no function graphdoctor_target() gives their inputs:"]
        lines += [f"  {visible(file)}: {visible(names[0])}" for file, names in lone[:_LONE_SHOWN]]
        if lone[_LONE_SHOWN:]:
            lines.append(f"  and {len(lone) - _LONE_SHOWN} more")
    lines += [
        "",
        "Next: `graphdoctor baseline` accepts what is there today, and",
        "`graphdoctor check` fails on what is new.",
    ]
    return "\n".join(lines) + "\n"


FILES = ("graphdoctor.toml", "pyproject.toml")


class ShowSettingsCommand:
    """Print the settings that hold in this folder, as TOML, defaults included.

    With --schema, a JSON schema of them, by which editors complete and check.
    """

    name = "show-settings"
    help = "print the settings that hold here"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_settings_arguments(parser)
        parser.add_argument(
            "--schema",
            nargs="?",
            const=FILES[0],
            choices=FILES,
            help=f"print the JSON schema of {FILES[0]} (the default) or of {FILES[1]} instead",
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.schema is not None:
            import json

            from graphdoctor.check.settings.toml import settings_schema

            show(json.dumps(settings_schema(args.schema), indent=2) + "\n")
            return 0
        from graphdoctor.check.settings.toml import settings_toml

        project = load_project(args)
        show(f"# from {project.source}\n{settings_toml(project.settings)}")
        return 0

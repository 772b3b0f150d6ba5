"""What commands that run targets share: the project's settings, which targets are meant, and their outcomes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.output import ProgressLine, progress
from graphdoctor.values.errors import UsageError, UserCodeError
from graphdoctor.values.file_kinds import refuse_saved
from graphdoctor.values.spelling import meant
from graphdoctor.values.target_spec import NOTEBOOK, check_file, check_spec

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from graphdoctor.check.cache.kept import Cache
    from graphdoctor.check.gate import Outcome
    from graphdoctor.check.settings.files import Project
    from graphdoctor.check.settings.settings import TargetSettings
    from graphdoctor.values.options import InputsChoice

_NAMED = 3


@contextmanager
def running(args: argparse.Namespace) -> Iterator[ProgressLine]:
    """Around the run of the target; what the model prints goes to stderr: stdout is for the page.

    A file that is missing and a GPU that has no profile are said before torch is imported. Raises
    UsageError.
    """
    check_spec(args.target)
    from graphdoctor.device.processes.thrift import be_thrifty
    from graphdoctor.estimate.hosts import profile_for

    profile_for(args.gpu, args.host)
    be_thrifty()
    try:
        with progress(sys.stderr) as tell, redirect_stdout(sys.stderr):
            tell("importing torch")
            yield tell
    except SystemExit as error:
        raise UserCodeError(
            f"{args.target} ended the interpreter with exit code {error.code!r} instead of running"
            " to its end"
        ) from error


def load_project(args: argparse.Namespace) -> Project:
    """The settings that hold here, with what the command line says on top."""
    from graphdoctor.check.settings.files import load

    given = {"device": "device", "jobs": "jobs", "time_limit": "time-limit"}
    overrides = [
        f"{key}={value}"
        for name, key in given.items()
        if (value := getattr(args, name, None)) is not None
    ]
    return load(Path.cwd(), overrides=[*args.config, *overrides], isolated=args.isolated)


def choose(paths: Sequence[str], project: Project) -> tuple[tuple[TargetSettings, ...], bool]:
    """The targets that are meant, each once, and whether these are all of the project.

    Raises UsageError where a path means none.
    """
    targets = project.settings.targets
    if not paths:
        if not targets:
            raise UsageError(
                "there is nothing to check: name a file with a function graphdoctor_target() that returns a"
                " model and its inputs, or let `graphdoctor init` write targets into the settings"
            )
        return targets, True
    chosen: dict[str, TargetSettings] = {}
    for path in paths:
        for target in _meant(path, project):
            chosen[target.name] = target
    return tuple(chosen.values()), False


def run(
    targets: Sequence[TargetSettings],
    project: Project,
    *,
    inputs: InputsChoice | None = None,
    no_cache: bool = False,
    executor: Executor | None = None,
) -> list[Outcome]:
    """Analyse them, with a line of progress on a terminal. `inputs` goes before what settings say."""
    from graphdoctor.check.run_targets import cache_of, run_all
    from graphdoctor.values.figures import count_text

    if inputs is not None:
        from dataclasses import replace

        targets = [replace(target, inputs=inputs) for target in targets]
    cache = None if no_cache else cache_of(project)
    with progress(sys.stderr) as tell:
        tell(f"analyzing {count_text(len(targets), 'target')}")
        outcomes = run_all(
            targets,
            project,
            lambda done, of: tell(f"{done} of {of} targets analyzed"),
            cache=cache,
            executor=executor,
        )
    if cache is not None:
        cache.clear_unused()
        _tell_of_cache(cache, len(targets))
    return outcomes


def _tell_of_cache(cache: Cache, count: int) -> None:
    """On stderr, since the page is the same whether anything was kept or not."""
    from graphdoctor.values.escape import visible
    from graphdoctor.values.figures import count_text, first_of

    said = []
    if cache.taken:
        said.append(
            f"{cache.taken} of {count_text(count, 'target')} unchanged since an earlier check"
            " (--no-cache analyzes them again)"
        )
    if cache.not_kept:
        each = [f"{name} ({why})" for name, why in sorted(cache.not_kept.items())]
        said.append(f"not kept for the next check: {first_of(each, _NAMED)}")
    for sentence in said:
        print(f"graphdoctor: {visible(sentence)}", file=sys.stderr)


def _meant(path: str, project: Project) -> Sequence[TargetSettings]:
    """A name of the settings; else what the settings have below the path; else the path itself."""
    from graphdoctor.check.settings.settings import TargetSettings, default_name, root_relative

    targets = project.settings.targets
    named = [target for target in targets if target.name == path]
    if named:
        return named
    if Path(path).is_dir():
        return _in_folder(Path(path), project)
    where, colon, name = path.rpartition(":")
    file = Path(where if colon and not path.endswith(".py") else path)
    if file.suffix == NOTEBOOK:
        check_file(file)
    if file.suffix != ".py" and not colon:
        refuse_saved(file)
        known = [target.name for target in targets]
        raise UsageError(
            f"{path} is not a file, a folder or a target (the settings have"
            f" {', '.join(known) or 'none'}){meant(path, known)}"
        )
    if file.suffix != ".py":  # package.module:name
        return [TargetSettings(default_name(path), path)]
    check_file(file)
    entry = root_relative(file, project.root) + (f":{name}" if file != Path(path) else "")
    same = [target for target in targets if entry in (target.entry, target.file)]
    return same or [TargetSettings(default_name(entry), entry)]


def of_notebooks(folder: Path) -> str:
    """What to do about a folder of notebooks, as the end of a sentence; "" without any."""
    if not any(folder.glob(f"**/*{NOTEBOOK}")):
        return ""
    return "; notebooks are not looked into: %%graphdoctor analyzes a cell in one"


def _in_folder(folder: Path, project: Project) -> Sequence[TargetSettings]:
    import dataclasses

    from graphdoctor.check.settings.settings import root_relative

    below = root_relative(folder, project.root)
    configured = [
        target
        for target in project.settings.targets
        if below == "." or target.file.startswith(f"{below}/")
    ]
    if configured:
        return configured
    from graphdoctor.check.template import discover

    inside = folder.resolve().is_relative_to(project.root)
    root = project.root if inside else folder.resolve()
    found = discover(folder.resolve(), root=root, exclude=project.settings.exclude)
    if not found:
        raise UsageError(
            f"no target in {folder if folder.name else 'this folder'}. A target is a file with a function"
            " graphdoctor_target() that returns a model and its inputs; `graphdoctor init` writes one"
            + of_notebooks(folder)
        )
    if inside:
        return found
    return [dataclasses.replace(target, entry=str(root / target.entry)) for target in found]

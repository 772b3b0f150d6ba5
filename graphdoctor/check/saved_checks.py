"""Read the outcomes in JSON files of checks, as one check of all their targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import graphdoctor
from graphdoctor.check.gate import Outcome
from graphdoctor.check.settings.files import Project
from graphdoctor.check.settings.settings import TargetSettings
from graphdoctor.reporters.files import read
from graphdoctor.reporters.plain_json import parsed
from graphdoctor.values.check import Check, Shard
from graphdoctor.values.errors import UsageError


def read_checks(paths: Sequence[Path]) -> dict[str, Check]:
    """By the names of the files. Raises UsageError, also where a share of a check is missing."""
    checks = {str(path): parsed(read(path, ""), Check, name=str(path)) for path in paths}
    for name, check in checks.items():
        if check.tool_version != graphdoctor.__version__:
            raise UsageError(
                f"{name} was written by graphdoctor {check.tool_version}, and this is"
                f" {graphdoctor.__version__}: check again with one version"
            )
    _check_whole({name: check.shard for name, check in checks.items()})
    return checks


def outcomes_of(checks: dict[str, Check], project: Project) -> tuple[list[Outcome], bool]:
    """Each target's, in the order of the settings, and whether none of the settings' is missing.

    Raises UsageError where two files have a target of one name.
    """
    known = {target.name: target for target in project.settings.targets}
    found: dict[str, Outcome] = {}
    of_file: dict[str, str] = {}
    for name, one in ((name, one) for name, check in checks.items() for one in check.targets):
        if one.name in found:
            raise UsageError(
                f"the target {one.name!r} is both in {of_file[one.name]} and in {name}"
            )
        of_file[one.name] = name
        result = one.report or one.fault
        if result is None:
            raise UsageError(f"{name} has neither a report nor a fault of the target {one.name!r}")
        settings = known.get(one.name) or TargetSettings(one.name, one.path or one.name)
        found[one.name] = Outcome(settings, result)
    in_order = [*(name for name in known if name in found), *sorted(found.keys() - known.keys())]
    return [found[name] for name in in_order], bool(known) and known.keys() <= found.keys()


def _check_whole(shards: dict[str, Shard | None]) -> None:
    """A share that is missing must not pass as one that found nothing."""
    there = {name: shard for name, shard in shards.items() if shard is not None}
    if not there:
        return
    first = next(iter(there.values()))
    for name, shard in there.items():
        if (shard.count, shard.of) != (first.count, first.of):
            raise UsageError(f"{name} is a share of another check than {next(iter(there))}")
    numbers = [shard.number for shard in there.values()]
    missing = sorted({*range(1, first.count + 1)} - {*numbers})
    if missing:
        named = ", ".join(f"{number}/{first.count}" for number in missing)
        raise UsageError(f"the check is not whole: of its shards, {named} is missing")
    if len(numbers) > first.count:
        raise UsageError("a shard of the check is there twice")

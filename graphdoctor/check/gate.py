"""Compares reports with the baseline and settings: what is new or worse, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import asdict

import graphdoctor
from graphdoctor.check.baseline import Accepted, Baseline, Entry, Key, keys_of
from graphdoctor.check.relative_paths import RelativePaths, is_inside, nearest_place
from graphdoctor.check.selection import selected, unused_comments
from graphdoctor.check.settings.files import Project
from graphdoctor.check.settings.settings import Settings, TargetSettings
from graphdoctor.check.step_figures import (
    beyond_baseline,
    beyond_budget,
    figures_of,
    improvements,
    with_causes,
)
from graphdoctor.reporters.files import read
from graphdoctor.reporters.plain_json import parsed
from graphdoctor.rules import ALL_RULES
from graphdoctor.values.check import (
    CHECK_SCHEMA_VERSION,
    Breach,
    Check,
    CheckedFinding,
    CheckedTarget,
    Fault,
    Shard,
    StaleEntry,
    fails,
)
from graphdoctor.values.errors import UsageError
from graphdoctor.values.finding import Finding, severity_of
from graphdoctor.values.report import Report

# In a pytest node id: those entries are the plugin's, and only a run of that test can judge them.
TEST_MARK = "::"
_FAULT_CODES = (2, 3, 4)  # the first that occurs is the check's own exit code


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of analysing one target. A report's paths are relative to the project.

    `analysis_s` is None where nothing was analysed: the report was kept, or comes from a file.
    """

    target: TargetSettings
    result: Report | Fault
    analysis_s: float | None = None


def gate(
    outcomes: Sequence[Outcome], baseline: Baseline, project: Project, *, is_complete: bool
) -> Check:
    """Compare with the baseline and the budgets; `is_complete` says that no target was left out."""
    targets = [_checked(outcome, baseline, project) for outcome in outcomes]
    stale = _stale(outcomes, baseline, project, is_complete)
    return _check(targets, stale, _notes(outcomes, baseline), project)


def merged(checks: Sequence[Check], project: Project) -> Check:
    """Several checks of different targets as one, in the order of the targets' names."""
    targets = sorted((one for check in checks for one in check.targets), key=lambda one: one.name)
    stale = (entry for check in checks for entry in check.stale)
    notes = dict.fromkeys(note for check in checks for note in check.notes)
    return _check(targets, stale, notes, project)


def _check(
    targets: Sequence[CheckedTarget],
    stale: Iterable[StaleEntry],
    notes: Iterable[str],
    project: Project,
) -> Check:
    settings = project.settings
    old = tuple(sorted(stale))
    return Check(
        schema_version=CHECK_SCHEMA_VERSION,
        kind="check",
        tool_version=graphdoctor.__version__,
        fail_on=settings.fail_on,
        exit_code=_exit_code(targets, old, settings),
        targets=tuple(targets),
        stale=old,
        stale_fails=not settings.allow_stale,
        notes=tuple(notes),
        prefix=RelativePaths(project.root).prefix,
    )


def entries_of(outcome: Outcome, project: Project) -> list[Entry]:
    """What a baseline would accept of one target: every finding that counts."""
    return [
        Entry(key.path, key.rule, key.source, outcome.target.name, key.ordinal)
        for _, key in _counted(outcome, project)
    ]


def accepted_of(outcome: Outcome) -> Accepted | None:
    """The structure that a baseline would accept; None of a target that has no report."""
    if isinstance(outcome.result, Fault):
        return None
    report, figures = outcome.result, figures_of(outcome.result)
    return Accepted(
        target=outcome.target.name,
        **asdict(figures),
        verdict=report.verdict,
        device=report.machine.device,
        torch=_release(report.machine.torch),
    )


def matters(entry: Entry, settings: Settings) -> bool:
    """Whether an entry is about what can fail a check.

    That a graph would not pay is a prediction, which better figures of a GPU may change: such an
    entry may come and go.
    """
    slow = {rule.id for rule in ALL_RULES if rule.effect == "replay-is-slow"}
    return entry.rule not in slow or fails("note", settings.fail_on)


def path_of(outcome: Outcome) -> str:
    """The target's own file, relative to the project, or "" where it has none there."""
    own, result = outcome.target.file, outcome.result
    if own or isinstance(result, Fault):
        return own
    return result.target.file if is_inside(result.target.file) else ""


def _counted(outcome: Outcome, project: Project) -> list[tuple[Finding, Key]]:
    if isinstance(outcome.result, Fault):
        return []
    own = path_of(outcome)
    findings = [
        finding
        for finding in selected(outcome.result, project, otherwise=own).findings
        if finding.suppressed is None
    ]
    return [*zip(findings, keys_of(findings, root=project.root, otherwise=own), strict=True)]


def _checked(outcome: Outcome, baseline: Baseline, project: Project) -> CheckedTarget:
    name, own = outcome.target.name, path_of(outcome)
    if isinstance(outcome.result, Fault):
        return CheckedTarget(name, own, fault=outcome.result, analysis_s=outcome.analysis_s)
    report, figures = outcome.result, figures_of(outcome.result)
    findings = []
    for finding, key in _counted(outcome, project):
        place = nearest_place(finding, otherwise=own)
        findings.append(
            CheckedFinding(
                finding=finding,
                severity=severity_of(finding),
                is_new=not baseline.has(name, key),
                path=place.file,
                line=place.line,
                fingerprint=key.fingerprint,
            )
        )
    before = baseline.figures_of(name, device=report.machine.device)
    breaches = [*beyond_budget(report, figures, outcome.target.budgets)]
    # A replay that is wrong although no rule says why must not pass for lack of a finding.
    is_explained = any(finding.effect != "replay-is-slow" for finding in report.findings)
    is_known = before is not None and before.verdict == "unsafe"
    if report.verdict == "unsafe" and not is_explained and not is_known:
        breaches.append(Breach("replay", report.reason, "verification"))
    if before is not None:
        breaches += beyond_baseline(figures, before.figures)
    caused = with_causes(
        breaches,
        findings,
        now=figures,
        before=before.figures if before is not None else None,
        budgets=outcome.target.budgets,
        fail_on=project.settings.fail_on,
    )
    return CheckedTarget(
        name=name,
        path=own,
        report=selected(report, project, otherwise=own),
        figures=figures,
        findings=tuple(findings),
        breaches=tuple(caused),
        improvements=tuple(improvements(figures, before.figures)) if before is not None else (),
        analysis_s=outcome.analysis_s,
    )


def _stale(
    outcomes: Sequence[Outcome], baseline: Baseline, project: Project, is_complete: bool
) -> Iterator[StaleEntry]:
    """Entries of targets that were analysed and lack them, or that are no targets any more."""
    analysed = {one.target.name for one in outcomes if not isinstance(one.result, Fault)}
    configured = {one.target.name for one in outcomes}
    found = {entry for outcome in outcomes for entry in entries_of(outcome, project)}
    for entry in baseline.entries:
        if not matters(entry, project.settings):
            continue
        is_gone = is_complete and entry.target not in configured and TEST_MARK not in entry.target
        if is_gone or (entry.target in analysed and entry not in found):
            yield entry.stale


def _exit_code(
    targets: Sequence[CheckedTarget], stale: Sequence[StaleEntry], settings: Settings
) -> int:
    faults = {target.fault.exit_code for target in targets if target.fault is not None}
    for code in _FAULT_CODES:
        if code in faults:
            return code
    is_worse = any(
        target.breaches
        or any(one.is_new and fails(one.severity, settings.fail_on) for one in target.findings)
        for target in targets
    )
    return 1 if is_worse or (stale and not settings.allow_stale) else 0


def _notes(outcomes: Sequence[Outcome], baseline: Baseline) -> Iterator[str]:
    """What else differs from when the baseline was made: whoever sees figures move should know."""
    said = set()
    for outcome in outcomes:
        before = baseline.targets.get(outcome.target.name)
        if before is None or isinstance(outcome.result, Fault):
            continue
        machine = outcome.result.machine
        if before.device != machine.device:
            said.add(
                f"the baseline was made on the device {before.device!r} and this is"
                f" {machine.device!r}, so waits, launches and graphs are not compared"
            )
        elif before.torch and before.torch != _release(machine.torch):
            said.add(
                f"the baseline was made with torch {before.torch} and this is torch"
                f" {_release(machine.torch)}, which may issue other operators"
            )
    yield from sorted(said)
    yield from unused_comments(outcome.result for outcome in outcomes)


def _release(version: str) -> str:
    """2.13.0 of 2.13.0+cpu: the build does not change which operators run."""
    return version.partition("+")[0]


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

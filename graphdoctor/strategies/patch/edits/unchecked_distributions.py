"""Turns off, below the imports, the checks of distributions' arguments on the host.

`Categorical(logits=x)` asks whether all of `x` are valid, and the host waits for the answer: no graph can.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from graphdoctor.rules.host_read import checks_arguments
from graphdoctor.source.trees import calls_in, scope_at
from graphdoctor.strategies.patch.source import (
    CannotEdit,
    Change,
    Import,
    import_of_torch,
    source_of,
)
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import is_library

CURES = ("GD101", "GD107")
TURNED_OFF = "torch.distributions.Distribution.set_default_validate_args(False)"
_PACKAGE = "torch.distributions"


def unchecked_distributions(findings: Iterable[Finding], file: str) -> tuple[Change, ...]:
    """The change of a program's file whose step reads the device where a function makes a distribution."""
    return unchecked_at(
        file,
        {
            (at.file, at.line)
            for finding in findings
            if finding.rule in CURES
            for at in (finding.location, *finding.stack)
            if at is not None and not is_library(at.file)
        },
    )


def unchecked_at(file: str, places: Iterable[tuple[str, int]]) -> tuple[Change, ...]:
    """The change of a file if one of the functions with these lines makes a distribution."""
    if not any(_makes_distribution(*place) for place in sorted(places)):
        return ()
    return (*import_of_torch(file), Import(file, TURNED_OFF))


def is_unchecked(finding: Finding) -> bool:
    """Whether a finding is about an argument check that the change turns off; `validate_args=True` keeps one."""
    at = finding.location
    if finding.rule not in CURES or at is None or not checks_arguments(at):
        return False
    scope = scope_at(at.file, at.line)
    keywords = (k for call in calls_in(scope or ast.Pass()) for k in call.keywords)
    given = (ast.unparse(k.value) for k in keywords if k.arg == "validate_args")
    return all(value == "False" for value in given)


def _makes_distribution(file: str, line: int) -> bool:
    """Whether the function with that line calls a class of torch.distributions, and does not say how it checks."""
    try:
        tree = ast.parse(source_of(file))
    except CannotEdit:
        return False
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE)
        for alias in node.names
    }
    modules = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if ".".join(filter(None, (getattr(node, "module", ""), alias.name))) == _PACKAGE
    }
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    around = [f for f in functions if f.lineno <= line <= (f.end_lineno or f.lineno)]
    calls = calls_in(*around)
    return any(
        ast.unparse(call.func).rpartition("distributions.")[2] in names
        or "distributions." in ast.unparse(call.func)
        or ast.unparse(call.func).rpartition(".")[0] in modules
        for call in calls
        if all(keyword.arg != "validate_args" for keyword in call.keywords)
    )

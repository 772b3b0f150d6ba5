"""Writes a check as Markdown for a comment on a pull request, which its first line finds again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

from graphdoctor.reporters.check import wording
from graphdoctor.reporters.look import Look
from graphdoctor.values.check import Check, CheckedTarget, Occurrence, occurrences
from graphdoctor.values.escape import visible
from graphdoctor.values.figures import first_of, share_text
from graphdoctor.values.finding import effect_text

MOST_CHARACTERS = 64_900  # GitHub refuses a comment of more than 65,536
_MOST_PLACES = 30
# Of what Markdown means something by; the rest does so at the start of a line only.
_SPECIAL = re.compile(r"([\\`*_\[\]#|~$])")


def render(check: Check, look: Look) -> str:
    """The comment; what does not fit is counted, not cut through."""
    return render_within(check, MOST_CHARACTERS)


def render_within(check: Check, most_characters: int) -> str:
    """The same within another limit, such as a step summary's."""
    log = "; the job's log has them"
    return fitted("\n".join(_head(check)), _blocks(check), most_characters, elsewhere=log)


def fitted(
    head: str, blocks: Iterable[str], most_characters: int = MOST_CHARACTERS, *, elsewhere: str = ""
) -> str:
    """The blocks as far as they fit; what does not is counted, not cut through."""
    room = most_characters - len(head) - 200  # for the line that counts what is left out
    kept: list[str] = []
    left_out = 0
    for block in blocks:
        if len(block) + 2 <= room and not left_out:
            kept.append(block)
            room -= len(block) + 2
        else:
            left_out += 1
    if left_out:
        kept.append(f"*{left_out:,} more sections do not fit in here{elsewhere}.*")
    return "\n\n".join((head, *kept)) + "\n"


def escaped(text: str) -> str:
    """Text within a line that Markdown and HTML show as it is, and that mentions nobody."""
    text = visible(text).replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(r"\\\1", text).replace("@", "@\u200b")


def code(text: str) -> str:
    """Text as inline code, whatever backquotes it has."""
    text = visible(text)
    fence = _fence(text, 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _head(check: Check) -> Iterator[str]:
    word = "passed" if wording.passed(check) else "failed"
    project = check.prefix.rstrip("/")
    yield _marker(project)
    where = f" in {escaped(project)}" if project else ""
    yield f"### graphdoctor {word}{where}: {escaped(wording.headline(check))}"


def _marker(project: str) -> str:
    """What a comment is found again by: each project of a repository has one of its own."""
    return f"<!-- graphdoctor {quote(visible(project))} -->" if project else "<!-- graphdoctor -->"


def _blocks(check: Check) -> Iterator[str]:
    problems = wording.problems(check)
    if problems:
        yield "\n".join(("#### Targets that failed or got worse", "", *map(_problem, problems)))
    new = occurrences(check, is_new=True)
    if new:
        yield "#### New findings"
    yield from (_cause(check, cause) for cause in wording.causes(new))
    if check.stale:
        yield f"{escaped(wording.stale_text(check).replace('`', ''))}."
    # In blocks, so that a check of very many targets fits as far as it goes.
    rows = [_row(target) for target in check.targets]
    header = "| target | verdict | waits | launches | graphs | captured | findings |"
    yield "\n".join((header, "|---|---|--:|--:|--:|--:|---|", *rows))
    known = occurrences(check, is_new=False)
    if known:
        lines = "\n".join(
            f"- {_place(one)} {escaped(wording.title(one.checked.finding))}" for one in known
        )
        summary = f"<summary>{len(known):,} known in the baseline</summary>"
        yield f"<details>{summary}\n\n{lines}\n\n</details>"


def _problem(problem: wording.Problem) -> str:
    text = f"- **{escaped(problem.target)}**: {problem.title}: {escaped(problem.message)}"
    if not problem.details:
        return text
    details = "\n".join(f"  {line}" for line in wording.details(problem))
    fence = _fence(details, 3)
    return f"{text}\n\n  {fence}text\n{details}\n  {fence}"


def _cause(check: Check, cause: Sequence[Occurrence]) -> str:
    """The first finding with its code, the lines of all, and the fix once."""
    finding = cause[0].checked.finding
    places = first_of([*map(_place, cause)], _MOST_PLACES)
    targets = [*dict.fromkeys(name for one in cause for name in one.targets)]
    lines = [
        f"**{escaped(wording.title(finding))}** at {places}: {effect_text(finding)}",
        f"(reached by {escaped(wording.names(targets))})",
    ]
    if text := "\n".join(wording.code_lines(finding)):
        fence = _fence(text, 3)
        lines += ["", f"{fence}python", text, fence]
    lines += [
        "",
        f"*What:* {escaped(finding.message)}",
        *(line for one in cause for line in _with(check, one)),
        "",
        f"*Fix:* {escaped(visible(finding.fix))}",
    ]
    if text := "\n".join(map(visible, finding.fix_code)):
        fence = _fence(text, 3)
        lines += ["", f"{fence}python", text, fence]
    return "\n".join(lines)


def _with(check: Check, one: Occurrence) -> tuple[str, ...]:
    worse = wording.came_with(check, one)
    return ("", f"*With it:* {escaped(worse)}") if worse else ()


def _place(one: Occurrence) -> str:
    return code(wording.place(one.checked.path, one.checked.line) or "no file")


def _row(target: CheckedTarget) -> str:
    verdict = target.report.verdict if target.report is not None else "failed"
    figures = target.figures
    counted = (
        f"{figures.syncs:,} | {figures.launches:,} | {figures.graphs:,} |"
        f" {share_text(figures.coverage)}"
        if figures is not None
        else " | | | "
    )
    return f"| {escaped(target.name)} | {verdict} | {counted} | {wording.findings_text(target)} |"


def _fence(text: str, least: int) -> str:
    """More backquotes than any run of them in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)

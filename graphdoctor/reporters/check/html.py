"""Check -> one HTML file; several checks of one repository -> the same of the last, with their history."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from graphdoctor.reporters.check import wording
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.web import document
from graphdoctor.reporters.web.code import Numbered, files_of, parts, prose
from graphdoctor.reporters.web.history import HEIGHT, LABELS, WIDTH, Dated, curves_of
from graphdoctor.values.check import Check, occurrences
from graphdoctor.values.figures import share_text
from graphdoctor.values.finding import effect_text


def render(check: Check, look: Look) -> str:
    """The page of one check, which asks no network for anything and runs no script."""
    return render_history([Dated("", check)], look)


def render_history(checks: Sequence[Dated], look: Look) -> str:
    """The page of the last check, with curves over all of them, from the oldest on."""
    check = checks[-1].check
    numbers = count(1)
    causes = [
        [(Numbered(next(numbers), one.checked.finding), one) for one in cause]
        for cause in wording.causes(occurrences(check, is_new=True))
    ]
    numbered = [one for cause in causes for one, _ in cause]
    return document(
        "check.html",
        check=check,
        word="PASSED" if wording.passed(check) else "FAILED",
        headline=wording.headline(check),
        causes=causes,
        effect_text=effect_text,
        known=occurrences(check, is_new=False),
        files=files_of(numbered, look.base),
        checks=checks,
        history=curves_of(checks) if len(checks) > 1 else [],
        labels=LABELS,
        width=WIDTH,
        height=HEIGHT,
        parts=parts,
        prose=prose,
        wording=wording,
        share_text=share_text,
    )

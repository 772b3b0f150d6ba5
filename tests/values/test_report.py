"""Scopes of captures: saved as words, read back as values."""

from __future__ import annotations

import msgspec
import pytest

from graphdoctor.values.captures import (
    WHOLE_STEP,
    CaptureOutcome,
    Scope,
    Verification,
    outcome_of_whole_step,
)


@pytest.mark.parametrize(
    ("scope", "text"),
    [(WHOLE_STEP, "whole step"), (Scope("A"), "region A"), (Scope("AB"), "region AB")],
)
def test_a_scope_is_saved_as_words_and_read_back(scope: Scope, text: str) -> None:
    assert str(scope) == text
    assert Scope.parse(text) == scope


@pytest.mark.parametrize("text", ["", "region", "region ", "whole", "whole step ", "a region"])
def test_a_saved_report_with_another_scope_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="a scope is"):
        Scope.parse(text)
    with pytest.raises(msgspec.ValidationError, match="a scope is"):
        msgspec.json.decode(
            msgspec.json.encode({"scope": text, "status": "refused"}), type=CaptureOutcome
        )


def test_an_outcome_says_what_it_is_of() -> None:
    whole, part = CaptureOutcome("whole step", "captured"), CaptureOutcome("region B", "captured")
    assert (whole.is_whole_step, whole.region) == (True, "")
    assert (part.is_whole_step, part.region) == (False, "B")
    assert msgspec.json.decode(msgspec.json.encode(part))["scope"] == "region B"
    assert outcome_of_whole_step((part, whole)) is whole
    assert outcome_of_whole_step((part,)) is None


@pytest.mark.parametrize(
    ("verification", "is_verified"),
    [
        (None, False),
        (Verification("verified", 3, 14, "bitwise"), True),
        (Verification("wrong", 3, 14, "bitwise"), False),
        (Verification("not-verified", 0, 0, "bitwise"), False),
    ],
)
def test_only_what_was_compared_and_equal_is_verified(
    verification: Verification | None, is_verified: bool
) -> None:
    assert (
        CaptureOutcome("whole step", "captured", verification=verification).is_verified
        is is_verified
    )

"""The true cause of a failed capture, its words, and its line."""

from __future__ import annotations

import sys

import torch

from graphdoctor.graphs.cause import in_words, location_of, true_cause

FORBIDDEN = "CUDA error: operation not permitted when stream is capturing"
SPOILT = "CUDA error: operation failed due to a previous error during capture"


def raised(*texts: str) -> BaseException:
    """An error whose chain of contexts has these texts, the first one raised first."""
    error: BaseException | None = None
    for text in texts:
        following = RuntimeError(text)
        following.__context__ = error
        error = following
    assert error is not None
    return error


def test_ending_a_spoilt_capture_is_not_the_cause() -> None:
    assert str(true_cause(raised(FORBIDDEN, SPOILT))) == FORBIDDEN
    assert str(true_cause(raised("capturable is False", SPOILT))) == "capturable is False"


def test_a_refusal_that_the_step_raised_again_is_the_cause() -> None:
    assert str(true_cause(raised(FORBIDDEN, "my model failed", SPOILT))) == FORBIDDEN


def test_what_an_error_s_code_handled_before_is_not_the_cause() -> None:
    assert str(true_cause(raised("no module named x", "my model failed"))) == "my model failed"


def test_an_error_of_its_own_is_its_cause() -> None:
    assert str(true_cause(raised(SPOILT))) == SPOILT


def test_an_explicit_cause_is_followed_and_a_circle_is_left() -> None:
    inner, outer = RuntimeError(FORBIDDEN), RuntimeError("outer")
    outer.__cause__ = inner
    inner.__context__ = outer

    assert true_cause(outer) is inner


def test_known_texts_are_explained_and_quoted() -> None:
    words = in_words(RuntimeError(FORBIDDEN + "\nCUDA kernel errors might be reported later"))

    assert words.startswith("the host waited for the device")
    assert words.endswith(f"({FORBIDDEN})")
    assert "might be" not in words


def test_other_errors_keep_type_and_first_line() -> None:
    assert in_words(ValueError("bad\nmore")) == "ValueError: bad"
    assert in_words(AssertionError()) == "AssertionError"
    assert in_words(SystemExit(3)) == "the step ended the interpreter with exit code 3"
    assert in_words(torch.OutOfMemoryError("CUDA out of memory")).startswith("memory ran out")


def test_the_location_is_the_innermost_line_of_the_user() -> None:
    def helper() -> None:
        torch.zeros(2) @ torch.zeros(3)

    try:
        helper()
    except RuntimeError as error:
        location = location_of(error)

    assert location is not None
    assert (location.file, location.function) == (__file__, "helper")
    assert location.line == helper.__code__.co_firstlineno + 1


def test_an_error_without_a_user_s_frame_has_no_location() -> None:
    assert location_of(RuntimeError("never raised")) is None
    try:
        sys.getrefcount()
    except TypeError as error:
        error.__traceback__ = None
        assert location_of(error) is None

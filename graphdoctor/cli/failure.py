"""A command that may fail -> an exit code, and one sentence on stderr that says what went wrong."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from graphdoctor.cli.output import ReaderGone
from graphdoctor.values.errors import GraphDoctorError, UserCodeError
from graphdoctor.values.escape import visible, visible_lines

EXIT_INTERRUPTED = 130
DEBUG_VARIABLE = "GRAPHDOCTOR_DEBUG"


def exit_code(run: Callable[[], int]) -> int:
    """What `run` returns, or the code of its error, which is then on stderr."""
    try:
        return run()
    except ReaderGone:
        return 0
    except KeyboardInterrupt:
        _say("interrupted")
        return EXIT_INTERRUPTED
    except UserCodeError as error:
        _say(f"error: {visible(str(error))}\n{error.frames}")
        return error.exit_code
    except GraphDoctorError as error:
        _say(f"error: {error}")
        return error.exit_code
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _say(
            "error: this is a bug in graphdoctor, please report it with"
            f" {DEBUG_VARIABLE}=1 and this text: {visible(what)}"
        )
        return GraphDoctorError.exit_code


def _say(text: str) -> None:
    """Write to stderr, so that nothing in the text can be obeyed by the terminal."""
    lines = visible_lines(f"graphdoctor: {text}".rstrip("\n"))
    if os.environ.get(DEBUG_VARIABLE) == "1":
        lines += visible_lines(traceback.format_exc())
    with suppress(OSError):  # nobody reads stderr either; the exit code still tells
        print("\n".join(lines), file=sys.stderr)

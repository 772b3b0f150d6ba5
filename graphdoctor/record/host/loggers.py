"""Where what is printed, warned of and logged goes -> whether by nothing of the user's, and to where no step reads."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from logging.handlers import MemoryHandler, QueueHandler
from typing import Any

from graphdoctor.record.host.plain import is_of_user

_KEEP_RECORDS = (MemoryHandler, QueueHandler)


def prints_plainly() -> bool:
    return is_plain_stream(sys.stdout)


def warns_plainly() -> bool:
    hooks = (warnings.warn, warnings.showwarning, warnings.formatwarning)
    return not any(map(is_of_user, hooks)) and is_plain_stream(sys.stderr)


def logs_plainly(logger: logging.Logger | None, level: str) -> bool:
    """Whether it goes only through classes of Python's library and of installed packages."""
    makers = (logging.getLogRecordFactory(), getattr(logging, level, None))
    if any(is_of_user(one) for one in makers if one is not None):
        return False
    return not is_of_user(getattr(type(logger), level, None)) and hands_on_plainly(logger)


def hands_on_plainly(logger: logging.Logger | None) -> bool:
    """Whether what is done with a record is of no consequence for a step."""
    while logger is not None:
        if any(map(_is_changed, _parts(logger))):
            return False
        if not all(map(_writes_away, logger.handlers)):
            return False
        logger = logger.parent if logger.propagate else None
    return True


def _parts(logger: logging.Logger) -> Iterator[object]:
    yield logger
    yield from logger.filters
    for handler in logger.handlers:
        yield from (handler, handler.formatter, *handler.filters)


def _is_changed(part: Any) -> bool:
    """Whether the user wrote it, or put something in its place."""
    held = getattr(part, "__dict__", {}).values()
    return is_of_user(part) or any(is_of_user(one) for one in held if callable(one))


def _writes_away(handler: logging.Handler) -> bool:
    if isinstance(handler, _KEEP_RECORDS):
        return False
    is_pythons = type(handler).__module__.partition(".")[0] == "logging"
    stream = getattr(handler, "stream", None)
    return not is_pythons or stream is None or is_plain_stream(stream)


def is_plain_stream(stream: object) -> bool:
    return not isinstance(stream, io.StringIO) and not is_of_user(stream)

"""A class of the user's -> an instance, or one sentence on what its constructor needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from graphdoctor.target.user_code import user_code
from graphdoctor.values.errors import UsageError


def instantiate(cls: Any, *args: object, **kwargs: object) -> Any:
    """`cls(*args, **kwargs)`, checked first so that a wrong call is told from a failing one."""
    if not callable(cls):
        raise UsageError(f"{cls!r} should be a class, but is of type {type(cls).__name__}")
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):  # some classes of extensions have none
        signature = None
    if signature is not None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(
                f"{cls.__name__} cannot be made: {error}; its constructor is "
                f"{cls.__name__}{signature}; write get_init_inputs() or graphdoctor_target()"
            ) from None
    with user_code(f"{cls.__name__}()"):
        return cls(*args, **kwargs)


def needed_arguments(called: Callable[..., object]) -> list[str]:
    """The parameters of a function, or of a class's constructor, that have no default."""
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]

"""A call or an expression in a running frame -> whether it only computes a value, or shows one, and changes nothing."""

from __future__ import annotations

import ast
import builtins
import datetime
import json
import logging
import math
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Container
from contextlib import suppress
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from graphdoctor.record.host.expressions import is_call_at
from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.user_code import is_user_file

MISSING = object()
_LEVELS = frozenset(
    ["debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log"]
)
_PURE = frozenset(
    {
        *(
            abs,
            all,
            any,
            bool,
            bytes,
            complex,
            dict,
            divmod,
            enumerate,
            float,
            format,
            frozenset,
            hash,
            int,
        ),
        *(
            isinstance,
            len,
            list,
            max,
            min,
            ord,
            range,
            repr,
            round,
            set,
            sorted,
            str,
            sum,
            tuple,
            type,
            zip,
        ),
    }
)
_PURE_MODULES = frozenset({os.path.__name__, "genericpath", math.__name__, json.__name__})
_PURE_TYPES = (datetime.datetime, datetime.date, datetime.timedelta, pathlib.Path)
_CLOCKS = frozenset({time.time, time.perf_counter, time.monotonic, time.strftime, time.localtime})
# Of what was asked for: text, numbers, what lies in a file, rows of a table.
_OF_ANSWERS = frozenset(
    {
        *(
            "as_integer_ratio",
            "decode",
            "encode",
            "endswith",
            "exists",
            "fetchall",
            "fetchmany",
            "fetchone",
        ),
        *(
            "find",
            "format",
            "get",
            "is_dir",
            "is_file",
            "isdigit",
            "items",
            "iterdir",
            "keys",
            "lower",
            "lstrip",
        ),
        *(
            "partition",
            "read",
            "read1",
            "read_bytes",
            "read_text",
            "readline",
            "readlines",
            "rpartition",
        ),
        *(
            "rsplit",
            "rstrip",
            "split",
            "splitlines",
            "startswith",
            "stat",
            "strip",
            "timestamp",
            "title",
        ),
        *("tolist", "total_seconds", "upper", "values"),
    }
)
_OF_TENSORS = frozenset(
    ["item", "tolist", "detach", "mean", "sum", "norm", "float", "cpu", "size", "dim", "numel"]
)
THROUGH = (
    ast.Compare, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.IfExp, ast.JoinedStr, ast.FormattedValue,
    ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Slice, ast.Starred, ast.Subscript,
)  # fmt: skip


class Calls:
    """Those of one frame; `answers` are the names that hold what was asked for, or what comes of it."""

    def __init__(self, frame: FrameType, answers: Container[str] = ()) -> None:
        self._frame, self._answers = frame, answers

    def is_pure(self, node: ast.AST) -> bool:
        """Whether it only computes a value, and changes nothing."""
        if isinstance(node, (ast.Constant, ast.Name, ast.expr_context, ast.operator, ast.cmpop)):
            return True
        if isinstance(node, (ast.unaryop, ast.boolop)):
            return True
        if isinstance(node, ast.Attribute):
            is_answers = isinstance(node.value, ast.Name) and node.value.id in self._answers
            return is_answers or self.resolved(node) is not MISSING
        if isinstance(node, (*THROUGH, ast.keyword)):
            return all(map(self.is_pure, ast.iter_child_nodes(node)))
        return isinstance(node, ast.Call) and self.is_pure_call(node)

    def is_pure_call(self, call: ast.Call) -> bool:
        if not all(map(self.is_pure, [*call.args, *call.keywords])):
            return False
        if is_call_at(call, self._frame):  # what is asked
            return True
        if self.shows(call) or self._is_known(call):
            return True
        func = call.func
        if not isinstance(func, ast.Attribute):
            return False
        found = self.resolved(func.value)
        if self._is_answer(func.value) or isinstance(found, (str, pathlib.PurePath)):
            return func.attr in _OF_ANSWERS
        is_tensor = found is MISSING or isinstance(found, torch.Tensor)
        return is_tensor and func.attr in _OF_TENSORS and self.is_pure(func.value)

    def _is_answer(self, node: ast.AST) -> bool:
        """Whether it is what was asked for, or what a method of that gives."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_of_one = node.func.attr in _OF_ANSWERS and self._is_answer(node.func.value)
            return is_of_one or is_call_at(node, self._frame)
        is_name = isinstance(node, ast.Name) and node.id in self._answers
        return is_name or is_call_at(node, self._frame)

    def takes_harmlessly(self, call: ast.Call, node: ast.AST) -> bool:
        """Whether a call with it only computes something, or shows it."""
        rest = [one for one in (*call.args, *call.keywords) if one is not node]
        if not all(map(self.is_pure, rest)):
            return False
        if node is call.func:
            return isinstance(node, ast.Attribute) and node.attr in _OF_ANSWERS
        return self.shows(call) or self._is_known(call) or self._writes_file(call)

    def _is_known(self, call: ast.Call) -> bool:
        func = call.func
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Constant):
            return True  # of a text
        found: Any = self.resolved(func)
        if any(not isinstance(one.value, ast.Constant) for one in call.keywords):
            return False  # such as the key of sorted()
        with suppress(TypeError):
            if found in _PURE or found in _CLOCKS or found in _PURE_TYPES:
                return True
        is_function = isinstance(found, (FunctionType, BuiltinFunctionType))
        return is_function and found.__module__ in _PURE_MODULES

    def _writes_file(self, call: ast.Call) -> bool:
        """What a later step reads of it, it asks for."""
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in ("write_text", "write_bytes"):
            return False
        folder = func.value
        while isinstance(folder, ast.BinOp) and isinstance(folder.op, ast.Div):
            folder = folder.left
        return isinstance(self.resolved(folder), pathlib.PurePath)

    def shows(self, call: ast.Call) -> bool:
        """Whether it prints, warns or logs, by nothing of the user's."""
        func = call.func
        found: Any = self.resolved(func)
        if found is print:
            return not any(one.arg not in ("sep", "end", "flush") for one in call.keywords)
        if found is warnings.warn:
            return True
        if isinstance(found, ModuleType) or not isinstance(func, ast.Attribute):
            return False
        holder = self.resolved(func.value)
        if func.attr not in _LEVELS:
            return False
        if holder is logging:
            return _has_plain_handlers(logging.root)
        return isinstance(holder, logging.Logger) and _has_plain_handlers(holder)

    def resolved(self, node: ast.AST) -> object:
        """What an expression stands for now, without running any code of the user's."""
        if isinstance(node, ast.Name):
            spaces = (self._frame.f_locals, self._frame.f_globals, vars(builtins))
            return next((space[node.id] for space in spaces if node.id in space), MISSING)
        if not isinstance(node, ast.Attribute):
            return MISSING
        held = self.resolved(node.value)
        own = vars(held) if isinstance(held, (ModuleType, type)) else attributes(held)
        return own.get(node.attr, MISSING) if held is not MISSING else MISSING

    def draws_by_numpy(self, call: ast.Call) -> bool:
        """Whether it is a method of one of NumPy's generators, and gives what it draws back."""
        numpy = sys.modules.get("numpy")
        if numpy is None or not isinstance(call.func, ast.Attribute) or len(call.args) > 2:
            return False
        held = self.resolved(call.func.value)
        is_held = isinstance(held, (numpy.random.Generator, numpy.random.RandomState))
        return held is numpy.random or is_held

    def is_harmless_call(self, call: ast.Call) -> bool:
        """Whether it shows something, or computes something without the code of others."""
        return self.shows(call) or self._is_known(call)


def _has_plain_handlers(logger: logging.Logger | None) -> bool:
    """Whether what is logged goes only through classes of Python's library and of installed packages."""
    while logger is not None:
        parts: list[object] = [logger, *logger.filters]
        for handler in logger.handlers:
            parts += [handler, handler.formatter, *handler.filters]
        if any(map(_is_of_user, parts)):
            return False
        logger = logger.parent if logger.propagate else None
    return True


def _is_of_user(value: object) -> bool:
    kind = value if callable(value) and hasattr(value, "__code__") else type(value)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return is_user_file(file) if file is not None else kind.__module__ != "builtins"

"""A call or an expression in a running frame -> whether it only computes a value, or shows one, and changes nothing."""

from __future__ import annotations

import _random
import ast
import builtins
import datetime
import functools
import inspect
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

from graphdoctor.record.host.bindings import bindings_of
from graphdoctor.record.host.expressions import function_of, is_call_at, rebound_in
from graphdoctor.record.host.loggers import logs_plainly, prints_plainly, warns_plainly
from graphdoctor.record.host.plain import has_own_access, is_of_user, is_plain
from graphdoctor.target.state.attributes import attributes

MISSING = object()
_LEVELS = frozenset(
    ["debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log"]
)
_PURE = frozenset(
    getattr(builtins, name)
    for name in [
        "abs",
        "all",
        "any",
        "bool",
        "bytes",
        "complex",
        "dict",
        "divmod",
        "enumerate",
        "float",
        "format",
        "frozenset",
        "hash",
        "int",
        "isinstance",
        "len",
        "list",
        "max",
        "min",
        "ord",
        "range",
        "repr",
        "round",
        "set",
        "sorted",
        "str",
        "sum",
        "tuple",
        "type",
        "zip",
    ]
)
_PURE_MODULES = frozenset({os.path.__name__, "genericpath", math.__name__, json.__name__})
_PURE_TYPES = (datetime.datetime, datetime.date, datetime.timedelta, pathlib.Path)
_CLOCKS = frozenset({time.time, time.perf_counter, time.monotonic, time.strftime, time.localtime})
# Of what was asked for: text, numbers, what lies in a file, rows of a table.
_OF_ANSWERS = frozenset([
    "as_integer_ratio", "decode", "encode", "endswith", "exists", "fetchall", "fetchmany", "fetchone",
    "find", "format", "get", "is_dir", "is_file", "isdigit", "items", "iterdir", "keys", "lower", "lstrip",
    "partition", "read", "read1", "read_bytes", "read_text", "readline", "readlines", "rpartition",
    "rsplit", "rstrip", "split", "splitlines", "startswith", "stat", "strip", "timestamp", "title",
    "tolist", "total_seconds", "upper", "values",
])  # fmt: skip
_OF_TENSORS = frozenset(
    ["item", "tolist", "detach", "mean", "sum", "norm", "float", "cpu", "size", "dim", "numel"]
)
_ABOUT_TENSORS = frozenset(["shape", "dtype", "device", "ndim", "requires_grad"])
THROUGH = (
    ast.Compare, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.IfExp, ast.JoinedStr, ast.FormattedValue,
    ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Slice, ast.Starred, ast.Subscript,
)  # fmt: skip


class Calls:
    """Those of one frame; `answers` are the names that hold what was asked for, or what comes of it."""

    def __init__(
        self, frame: FrameType, answers: Container[str] = (), *, asks_by_itself: bool = True
    ) -> None:
        self._frame, self._answers = frame, answers
        self._asks_by_itself = asks_by_itself  # and not by a function that does more than to ask
        self._bindings = bindings_of(function_of(frame.f_code, frame.f_lineno))

    def is_pure(self, node: ast.AST) -> bool:
        """Whether it only computes a value, and changes nothing."""
        if isinstance(node, (ast.Constant, ast.expr_context, ast.operator, ast.cmpop)):
            return True
        if isinstance(node, ast.Name):
            return self.holds_plainly(node)
        if isinstance(node, (ast.unaryop, ast.boolop)):
            return True
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in self._answers:
                return self._is_nobodys(node.value)
            found = self.resolved(node)
            if found is MISSING and node.attr in _ABOUT_TENSORS:
                holder = self.resolved(node.value)
                return isinstance(holder, torch.Tensor) and self.is_pure(node.value)
            return found is not MISSING and is_plain(found)
        if isinstance(node, (*THROUGH, ast.keyword)):
            return all(map(self.is_pure, ast.iter_child_nodes(node)))
        return isinstance(node, ast.Call) and self.is_pure_call(node)

    def holds_plainly(self, name: ast.Name) -> bool:
        """Whether nothing that a name may stand for is the user's own, whose operators may do anything."""
        found = self._now(name.id)
        if found is not MISSING and not is_plain(found):
            return False
        return self._bindings.are_all(name.id, self._binds_plainly)

    def _is_nobodys(self, name: ast.Name) -> bool:
        """The same of an answer, which may be an open file."""
        is_own = not is_of_user(self._now(name.id)) or self._now(name.id) is MISSING
        return is_own and self._bindings.are_all(name.id, self._binds_plainly)

    def _binds_plainly(self, value: ast.AST) -> bool:
        if isinstance(value, ast.Call):  # which is judged where it is called
            made = self._called(value.func)
            return isinstance(made, torch.nn.Module) or (made is not None and not is_of_user(made))
        return self.is_pure(value)

    def _called(self, func: ast.AST) -> object:
        """What is called, a method's function too; None where that is not known."""
        found = self.resolved(func)
        if found is not MISSING or not isinstance(func, ast.Attribute):
            return found if found is not MISSING else None
        holder = self.resolved(func.value)
        if holder is not MISSING:
            return inspect.getattr_static(type(holder), func.attr, None)
        is_plain_call = isinstance(func.value, ast.Call) and self._binds_plainly(func.value)
        return MISSING if is_plain_call or self.is_pure(func.value) else None

    def is_pure_call(self, call: ast.Call) -> bool:
        if not all(map(self.is_pure, [*call.args, *call.keywords])):
            return False
        if is_call_at(call, self._frame):  # what is asked
            return self._asks_by_itself
        if self.shows(call) or self._is_known(call):
            return True
        func = call.func
        if not isinstance(func, ast.Attribute):
            return False
        found = self.resolved(func.value)
        if self._is_answer(func.value) or isinstance(found, (str, pathlib.PurePath)):
            return func.attr in _OF_ANSWERS
        is_tensor = found is MISSING or isinstance(found, torch.Tensor)
        return (
            is_tensor
            and not is_of_user(found)
            and func.attr in _OF_TENSORS
            and self.is_pure(func.value)
        )

    def _is_answer(self, node: ast.AST) -> bool:
        """Whether it is what was asked for, or what a method of that gives."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_of_one = node.func.attr in _OF_ANSWERS and self._is_answer(node.func.value)
            return is_of_one or is_call_at(node, self._frame)
        if isinstance(node, ast.Name):
            return node.id in self._answers and self._is_nobodys(node)
        return is_call_at(node, self._frame)

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
        return is_function and not is_of_user(found) and found.__module__ in _PURE_MODULES

    def _writes_file(self, call: ast.Call) -> bool:
        """What a later step reads of it, it asks for."""
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in ("write_text", "write_bytes"):
            return False
        return self.is_path(func.value)

    def is_path(self, folder: ast.AST) -> bool:
        while isinstance(folder, ast.BinOp) and isinstance(folder.op, ast.Div):
            folder = folder.left
        return isinstance(self.resolved(folder), pathlib.PurePath)

    def shows(self, call: ast.Call) -> bool:
        """Whether it prints, warns or logs, by nothing of the user's."""
        func = call.func
        found: Any = self.resolved(func)
        if found is print:
            is_to_stdout = all(one.arg in ("sep", "end", "flush") for one in call.keywords)
            return is_to_stdout and prints_plainly()
        if found is warnings.warn:
            given = [self.resolved(one) for one in call.args]
            return warns_plainly() and not any(map(is_of_user, given)) and not call.keywords
        if isinstance(found, ModuleType) or not isinstance(func, ast.Attribute):
            return False
        holder = self.resolved(func.value)
        if func.attr not in _LEVELS:
            return False
        logger = logging.root if holder is logging else holder
        return isinstance(logger, logging.Logger) and logs_plainly(logger, func.attr)

    def resolved(self, node: ast.AST) -> object:
        """What an expression stands for now, without running any code of the user's."""
        if isinstance(node, ast.Name):
            is_rebound = node.id in rebound_in(self._frame.f_code.co_filename)
            is_same = self._bindings.is_bound_once(node.id) and not is_rebound
            return self._now(node.id) if is_same else MISSING
        if not isinstance(node, ast.Attribute):
            return MISSING
        held = self.resolved(node.value)
        if has_own_access(held, node.attr) or self._bindings.sets_attribute(node.attr):
            return MISSING
        own = vars(held) if isinstance(held, (ModuleType, type)) else attributes(held)
        if isinstance(held, torch.nn.Module) and node.attr not in own:
            own = {**held._parameters, **held._buffers, **held._modules}
        return own.get(node.attr, MISSING) if held is not MISSING else MISSING

    def _now(self, name: str) -> object:
        spaces = (self._frame.f_locals, self._frame.f_globals, vars(builtins))
        return next((space[name] for space in spaces if name in space), MISSING)

    def draws_unseen(self, call: ast.Call) -> bool:
        """Whether it gives what it draws: a method of one of NumPy's generators, or a partial of one of Python's."""
        called = self.resolved(call.func)
        if isinstance(called, functools.partial):
            return isinstance(getattr(called.func, "__self__", None), _random.Random)
        numpy = sys.modules.get("numpy")
        if numpy is None or not isinstance(call.func, ast.Attribute) or len(call.args) > 2:
            return False
        held = self.resolved(call.func.value)
        is_held = isinstance(held, (numpy.random.Generator, numpy.random.RandomState))
        return held is numpy.random or is_held

    def is_harmless_call(self, call: ast.Call) -> bool:
        """Whether it shows something, or computes something without the code of others."""
        return self.shows(call) or self._is_known(call)

"""Functions of Python's and torch's that tell how the world or the process stands, and what their answers are."""

from __future__ import annotations

import builtins
import gc
import linecache
import logging
import os
import pathlib
import queue
import select
import signal
import sys
import threading
import tracemalloc
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple

import torch

try:
    import resource
except ImportError:  # not on every system
    resource = None  # type: ignore[assignment]

# What the answer is: `decides` may be anything; `measures` tells of the machine, as a clock does;
# `configures` changes only where the program itself changes it; `stands` is how the process stands, such as its
# memory, and `switch` a mode that a captured model watches: nothing is said of either unless it decides.
# `either` is yes or no, which is for nobody to know, but both can be tried.
# `decides-as-set`: by a mode, or by a variable of the environment, which a captured model watches, too.
Answer = Literal[
    "decides", "decides-as-set", "measures", "configures", "stands", "switch", "either"
]

_MEMORY = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "mem_get_info",
    "memory_stats",
)  # fmt: skip
# Functions by what has them, under whatever name code knows them. What a system or a torch lacks is left out.
_ASKED: tuple[tuple[Any, Answer, tuple[str, ...]], ...] = (
    (os, "decides",
     ("stat", "lstat", "fstat", "access", "read", "pread", "readv", "readlink", "waitpid")),
    (os, "measures", ("getloadavg", "times", "sysconf", "cpu_count", "statvfs")),
    (resource, "measures", ("getrusage",)),
    (builtins, "decides", ("input",)),
    (builtins, "stands", ("id",)),
    (select, "decides", ("select",)),
    (linecache, "decides", ("getline", "getlines")),
    (threading.Event, "either", ("is_set",)),
    (threading.Semaphore, "decides", ("acquire",)),
    (threading.Thread, "either", ("is_alive",)),
    (threading, "stands", ("active_count",)),
    (os.path, "either", ("exists", "lexists", "isfile", "isdir", "islink")),
    (pathlib.Path, "either", ("exists", "is_file", "is_dir", "is_symlink")),
    (threading, "decides", ("enumerate",)),
    (Future, "either", ("done", "running", "cancelled")),
    (queue.Queue, "decides", ("empty", "full", "qsize")),
    (os, "stands", ("getppid",)),
    (gc, "switch", ("isenabled",)),
    (gc, "decides", ("get_objects",)),
    (gc, "stands", ("get_count", "get_stats", "get_threshold", "get_freeze_count")),
    (sys, "stands", ("gettrace", "getprofile", "getallocatedblocks", "getrefcount")),
    (tracemalloc, "stands", ("get_traced_memory",)),
    (signal, "stands", ("sigpending", "getitimer")),
    (logging.Logger, "switch", ("isEnabledFor", "getEffectiveLevel")),
    (torch, "switch",
     ("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "get_autocast_dtype",
      "is_autocast_cache_enabled", "get_default_dtype", "are_deterministic_algorithms_enabled",
      "is_deterministic_algorithms_warn_only_enabled", "get_deterministic_debug_mode", "is_anomaly_enabled",
      "get_num_threads", "is_warn_always_enabled")),
    (torch, "stands", ("get_num_interop_threads", "is_anomaly_check_nan_enabled")),
    (torch.cuda.memory, "stands", _MEMORY),
    (torch.cuda, "stands", _MEMORY),
)  # fmt: skip


class Asked(NamedTuple):
    """A function that is asked: what has it, what it is called there, and what its answer is."""

    owner: Any
    attribute: str
    function: Any
    answer: Answer

    @property
    def name(self) -> str:
        """Of a class, with its module; of what is built in, without."""
        is_class = isinstance(self.owner, type)
        owner = (
            f"{self.owner.__module__}.{self.owner.__name__}."
            if is_class
            else f"{self.owner.__name__}."
        )
        owner = {
            "builtins.": "",
            "torch.cuda.memory.": "torch.cuda.",
            "posixpath.": "os.path.",
        }.get(owner, owner)
        return f"{owner.replace('._base', '').replace('._local', '')}{self.attribute}()"

    @property
    def holder(self) -> Any:
        """Where it can be replaced: in a class, the one that defines it."""
        classes = getattr(self.owner, "__mro__", ())
        return next((one for one in classes if self.attribute in vars(one)), self.owner)


ASKED = tuple(
    Asked(owner, name, function, answer)
    for owner, answer, names in _ASKED
    for name in names
    if (function := getattr(owner, name, None)) is not None
)

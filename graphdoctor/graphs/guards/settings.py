"""A function of the user's -> the settings of the process that its code asks for, by the names that it mentions.

Kernels that are chosen by one are watched by `Modes`; here is what code itself may decide by.
"""

from __future__ import annotations

import decimal
import gc
import locale
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType

import torch
from torch.backends import opt_einsum  # torch 2.6 does not import it by itself

from graphdoctor.target.state.switches import PRECISIONS, SWITCHES, read_precision
from graphdoctor.target.state.variables import mentions
from graphdoctor.target.user_code import is_user_file

Setting = tuple[str, Callable[[], object]]
_of_decimal = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimal_context() -> object:
    context = decimal.getcontext()
    return [getattr(context, name) for name in _of_decimal]


def _numpy_errors() -> object:
    numpy = sys.modules.get("numpy")
    return numpy.geterr() if numpy is not None else None


def _levels() -> object:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    levels = [each.level for each in loggers if isinstance(each, logging.Logger)]
    return logging.root.manager.disable, levels


GRADIENTS: Setting = ("whether gradients are enabled", torch.is_grad_enabled)
_INFERENCE: Setting = ("inference mode", torch.is_inference_mode_enabled)
_CPU_AUTOCAST: Setting = (
    "autocast on the CPU",
    lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
)
_DECIMAL: Setting = ("the context of decimal", _decimal_context)
_DEBUG_MODE: Setting = (
    "deterministic algorithms that only warn",
    torch.is_deterministic_algorithms_warn_only_enabled,
)
OF_THE_THREAD: Setting = ("the thread", threading.get_ident)
# A name as well, which a program may give it while it runs.
_THREAD_BY_NAME: Setting = (
    "the thread or its name",
    lambda: (threading.get_ident(), threading.current_thread().name),
)
_LOGGING: Setting = ("the level of a logger", _levels)
SEED: Setting = ("the seed of torch's generator", torch.initial_seed)
_LOCALE: Setting = ("the locale", partial(locale.setlocale, locale.LC_ALL))


def _told_in_c(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except RuntimeError:  # old and new names of a switch are mixed
        return [read_precision(switch) for switch in PRECISIONS]


def _of_backends() -> object:
    """All that torch.backends tells: of these `Modes` watches only what chooses kernels of the captured operators."""
    fast = torch.backends.mha.get_fastpath_enabled()
    kept_in_c = (_told_in_c(switch.read) for switch in SWITCHES)
    return [fast, opt_einsum.enabled, opt_einsum.strategy, *kept_in_c]


_BACKENDS: Setting = ("torch.backends", _of_backends)
_BY_NAME: dict[str, Setting] = {
    "is_grad_enabled": GRADIENTS,
    "is_inference_mode_enabled": _INFERENCE,
    "is_inference": _INFERENCE,
    "is_autocast_enabled": _CPU_AUTOCAST,
    "is_autocast_cpu_enabled": _CPU_AUTOCAST,
    "get_autocast_dtype": _CPU_AUTOCAST,
    "get_autocast_cpu_dtype": _CPU_AUTOCAST,
    "is_autocast_cache_enabled": ("autocast's cache", torch.is_autocast_cache_enabled),
    "is_anomaly_enabled": ("anomaly detection", torch.is_anomaly_enabled),
    "get_num_threads": ("the number of threads", torch.get_num_threads),
    "get_deterministic_debug_mode": _DEBUG_MODE,
    "is_deterministic_algorithms_warn_only_enabled": _DEBUG_MODE,
    "fill_uninitialized_memory": (
        "torch.utils.deterministic.fill_uninitialized_memory",
        lambda: getattr(torch.utils.deterministic, "fill_uninitialized_memory"),  # noqa: B009
    ),
    **dict.fromkeys(
        (
            *("backends", "_C", "cudnn", "mkldnn", "nnpack", "opt_einsum", "allow_tf32"),
            *("get_fastpath_enabled", "preferred_linalg_library", "preferred_blas_library"),
            *("fp16_bf16_reduction_math_sdp_allowed", "_cur_sdpa_kernel_backends"),
        ),
        _BACKENDS,
    ),
    "is_warn_always_enabled": ("torch.set_warn_always", torch.is_warn_always_enabled),
    "fp32_precision": (
        "torch.backends.fp32_precision",
        lambda: [read_precision(switch) for switch in PRECISIONS],
    ),
    **{switch.name: (switch.name, switch.read) for switch in SWITCHES if "sdp" in switch.name},
    "benchmark_limit": (
        "torch.backends.cudnn.benchmark_limit",
        lambda: torch.backends.cudnn.benchmark_limit,
    ),
    "Decimal": _DECIMAL,
    "getcontext": _DECIMAL,
    "localcontext": _DECIMAL,
    "getcwd": ("the working directory", os.getcwd),
    "cwd": ("the working directory", os.getcwd),
    "setlocale": _LOCALE,
    "getlocale": _LOCALE,
    "localeconv": _LOCALE,
    "getrecursionlimit": ("the recursion limit", sys.getrecursionlimit),
    "isenabled": ("garbage collection", gc.isenabled),
    "geterr": ("NumPy's handling of errors", _numpy_errors),
    "current_thread": _THREAD_BY_NAME,
    "get_ident": OF_THE_THREAD,
    "main_thread": _THREAD_BY_NAME,
    "initial_seed": SEED,
    "PRINT_OPTS": ("torch.set_printoptions", lambda: vars(torch._tensor_str.PRINT_OPTS).copy()),
    **dict.fromkeys(("isEnabledFor", "getEffectiveLevel", "disable"), _LOGGING),
    "get_float32_matmul_precision": (
        "torch.get_float32_matmul_precision",
        partial(_told_in_c, torch._C._get_float32_matmul_precision),
    ),
}


def settings_read(function: FunctionType) -> Iterator[Setting]:
    """Each setting with how to ask for it. What a constructor asks for was asked for once."""
    return (_BY_NAME[name] for name in asked_in(function) if name in _BY_NAME)


def asks_for_requires_grad(function: FunctionType) -> bool:
    return "requires_grad" in asked_in(function)


def asked_in(function: FunctionType) -> tuple[str, ...]:
    """The names by which a function of the user's may ask for something in a forward."""
    code = function.__code__
    is_asking = is_user_file(code.co_filename) and code.co_name != "__init__"
    return (*mentions(function), *code.co_freevars) if is_asking else ()

"""A method in C, a view, a weak reference, a cache, an operator of the user's -> the object whose state it leads to."""

from __future__ import annotations

import gc
import weakref
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from contextlib import suppress
from functools import cache
from types import BuiltinFunctionType, MappingProxyType, MethodWrapperType, ModuleType
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef

_Cached = type(cache(lambda: None))
LEADING_ON = (
    BuiltinFunctionType,
    MethodWrapperType,
    MappingProxyType,
    weakref.ref,
    *weakref.ProxyTypes,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
    _Cached,
    CustomOpDef,
    torch._ops.OpOverloadPacket,
    torch._ops.OpOverload,
)


def behind(value: Any) -> Iterator[object]:
    """What a method in C, a view, a weak reference, a cache or an operator of the user's stands for."""
    if isinstance(value, weakref.ProxyTypes):
        with suppress(Exception):  # what it stood for is gone, or answers for itself
            yield value.__reduce_ex__.__self__
    elif isinstance(value, weakref.ref):
        yield value()
    elif isinstance(value, _Cached):
        yield value.__wrapped__
    elif isinstance(value, CustomOpDef):
        yield from (value._init_fn, *value._backend_fns.values())
    elif isinstance(value, torch._ops.OpOverload):
        yield from filter(None, [OPDEFS.get(value._name)])
    elif isinstance(value, torch._ops.OpOverloadPacket):
        yield from filter(None, [OPDEFS.get(value._qualified_op_name)])
    elif isinstance(value, (MappingProxyType, KeysView, ValuesView, ItemsView)):
        yield from gc.get_referents(value)
    elif not isinstance(value.__self__, (ModuleType, type)):
        yield value.__self__

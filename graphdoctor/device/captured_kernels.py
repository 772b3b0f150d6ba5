"""Read the kernels of a graph while it is captured, with the parameters that they were launched with.

Only the driver knows these. Without CUDA's driver, or with one older than CUDA 12.4, a graph seems to have no nodes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

# Of cuda.h: CUDA_SUCCESS, CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_GRAPH_NODE_TYPE_KERNEL and _GRAPH, CU_LAUNCH_PARAM_...
_SUCCESS = 0
_IS_ACTIVE = 1
_KERNEL, _CHILD_GRAPH = 0, 4
_END, _BUFFER_POINTER, _BUFFER_SIZE = 0, 1, 2
# Larger structs have arrays for the most tensors that a launch can have: those of apex's multi_tensor_apply, 2,900
# bytes and more, and NCCL's, 4,096. The unused entries hold what was on the stack, such as addresses of old tensors.
_LARGEST = 2048


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("parameters", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kern", c_void_p),
        ("context", c_void_p),
    )


# A function that is called with other types than the driver's ends the process.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuStreamGetCaptureInfo_v3": (
        c_void_p, POINTER(c_int), POINTER(c_uint64), POINTER(c_void_p), c_void_p, c_void_p, c_void_p,
    ),
    "cuGraphGetNodes": (c_void_p, POINTER(c_void_p), POINTER(c_size_t)),
    "cuGraphNodeGetType": (c_void_p, POINTER(c_int)),
    "cuGraphChildGraphNodeGetGraph": (c_void_p, POINTER(c_void_p)),
    "cuGraphKernelNodeGetParams_v2": (c_void_p, POINTER(_KernelNode)),
    "cuFuncGetName": (POINTER(c_char_p), c_void_p),
    "cuKernelGetName": (POINTER(c_char_p), c_void_p),
    "cuFuncGetParamInfo": (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
    "cuKernelGetParamInfo": (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
}  # fmt: skip


@cache
def _driver() -> Any:
    """None where a function is missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        for name, types in _FUNCTIONS.items():
            function = getattr(driver, name)
            function.argtypes, function.restype = types, c_int
    except (OSError, AttributeError):
        return None
    return driver


@dataclass(frozen=True, slots=True)
class CapturedKernel:
    """`words`: the 8-byte words of its parameters, of structs too; an address is one of them.

    `node`: the position of its node, or of the node whose child graph has it.
    """

    node: int
    name: str
    words: tuple[int, ...]


class _Signature(NamedTuple):
    name: str
    parameters: tuple[tuple[int, int], ...]  # offset and size in bytes


class _Refused(Exception):
    """The driver returned an error."""


class CaptureNodes:
    """The nodes of the graph that a stream captures, in the order of their launches."""

    def __init__(self, stream: int) -> None:
        self._driver = _driver()
        self._stream = stream

    def count(self) -> int:
        """How many there are so far."""
        if self._driver is None:
            return 0
        try:
            return self._count(self._graph())
        except _Refused:
            return 0

    def kernels(self, positions: Iterable[int]) -> Iterator[CapturedKernel]:
        """The kernels of the nodes at these positions, while the capture is under way."""
        if self._driver is None:
            return
        signatures: dict[int, _Signature] = {}
        try:
            nodes = self._nodes(self._graph())
            for position in positions:
                if position < len(nodes):
                    yield from self._kernels(nodes[position], position, signatures)
        except _Refused:
            return

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._driver, name)(*arguments) != _SUCCESS:
            raise _Refused

    def _graph(self) -> c_void_p:
        """The driver destroys the graph of a capture that fails, so its handle must not be kept."""
        status, graph = c_int(), c_void_p()
        self._call(
            "cuStreamGetCaptureInfo_v3",
            self._stream, byref(status), None, byref(graph), None, None, None,
        )  # fmt: skip
        if status.value != _IS_ACTIVE or not graph:
            raise _Refused
        return graph

    def _count(self, graph: c_void_p) -> int:
        count = c_size_t()
        self._call("cuGraphGetNodes", graph, None, byref(count))
        return count.value

    def _nodes(self, graph: c_void_p) -> list[int]:
        count = c_size_t(self._count(graph))
        if not count.value:  # the driver refuses an array for the nodes of an empty graph
            return []
        nodes = (c_void_p * count.value)()
        self._call("cuGraphGetNodes", graph, nodes, byref(count))
        return [node for node in nodes[: count.value] if node]

    def _kernels(
        self, node: int, position: int, signatures: dict[int, _Signature]
    ) -> Iterator[CapturedKernel]:
        kind = c_int()
        self._call("cuGraphNodeGetType", node, byref(kind))
        if kind.value == _CHILD_GRAPH:
            child = c_void_p()
            self._call("cuGraphChildGraphNodeGetGraph", node, byref(child))
            for each in self._nodes(child):
                yield from self._kernels(each, position, signatures)
        if kind.value != _KERNEL:
            return
        kernel = _KernelNode()
        self._call("cuGraphKernelNodeGetParams_v2", node, byref(kernel))
        handle = kernel.func or kernel.kern
        if not handle:
            return
        signature = signatures.get(handle)
        if signature is None:
            signature = signatures[handle] = self._signature(
                handle, "Func" if kernel.func else "Kernel"
            )
        words: dict[int, None] = {}
        for content in _contents(kernel, signature):
            count = len(content) // 8
            words.update(dict.fromkeys(struct.unpack_from(f"={count}Q", content)))
        yield CapturedKernel(position, signature.name, tuple(words))

    def _signature(self, handle: int, kind: str) -> _Signature:
        text = c_char_p()
        self._call(f"cu{kind}GetName", byref(text), handle)
        parameters: list[tuple[int, int]] = []
        offset, size = c_size_t(), c_size_t()
        describe = getattr(self._driver, f"cu{kind}GetParamInfo")
        while describe(handle, len(parameters), byref(offset), byref(size)) == _SUCCESS:
            parameters.append((offset.value, size.value))
        mangled = (text.value or b"").decode(errors="replace")
        return _Signature(torch._C._demangle(mangled), tuple(parameters))


def _contents(kernel: _KernelNode, signature: _Signature) -> Iterator[bytes]:
    """The bytes of each parameter that can have an address, as they are in the node's own memory."""
    buffer = None if kernel.parameters else _buffer(kernel)
    for index, (offset, size) in enumerate(signature.parameters):
        if not 8 <= size <= _LARGEST:
            continue
        if buffer is not None:
            yield buffer[offset : offset + size]
        elif kernel.parameters and (address := kernel.parameters[index]):
            yield ctypes.string_at(address, size)


def _buffer(kernel: _KernelNode) -> bytes | None:
    """All parameters, where a launch had them in one buffer."""
    address, size = None, None
    for index in range(0, 4, 2):
        if not kernel.extra or (kernel.extra[index] or _END) == _END:
            break
        if kernel.extra[index] == _BUFFER_POINTER:
            address = kernel.extra[index + 1]
        if kernel.extra[index] == _BUFFER_SIZE:
            size = kernel.extra[index + 1]
    if not address or not size:
        return None
    return ctypes.string_at(address, c_size_t.from_address(size).value)

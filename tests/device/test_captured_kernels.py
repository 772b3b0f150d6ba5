"""Kernels of a capture are read from the driver: here from functions that have the driver's types."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from graphdoctor.device import captured_kernels
from graphdoctor.device.captured_kernels import CapturedKernel, CaptureNodes

STREAM, GRAPH, CHILD = 0x51, 0x6000, 0x7000
INVALID_VALUE = 1


@dataclass
class Kernel:
    """Parameters by their bytes. `in_buffer`: the launch had them in one buffer."""

    name: str
    parameters: tuple[bytes, ...]
    in_buffer: bool = False
    is_function: bool = True


class Driver:
    """Its memory is held as long as it is."""

    def __init__(self, nodes: tuple[Kernel | str, ...], child: tuple[Kernel | str, ...]) -> None:
        self.status = 1
        self._graphs = {GRAPH: nodes, CHILD: child}
        self._held: list[Any] = []
        functions = {}
        for name, types in captured_kernels._FUNCTIONS.items():
            made = ctypes.CFUNCTYPE(ctypes.c_int, *types)(getattr(self, name))
            functions[name] = made
        self.functions = SimpleNamespace(**functions)

    def cuStreamGetCaptureInfo_v3(
        self, stream: int, status: Any, number: Any, graph: Any, *others: Any
    ) -> int:
        assert stream == STREAM
        assert not number
        assert others == (None, None, None)
        status[0], graph[0] = self.status, GRAPH
        return 0

    def cuGraphGetNodes(self, graph: int, nodes: Any, count: Any) -> int:
        found = self._graphs[graph]
        if nodes and not found:  # CUDA 13 refuses an array for the nodes of an empty graph
            return INVALID_VALUE
        for index in range(count[0] if nodes else 0):
            nodes[index] = graph + 1 + index
        count[0] = len(found)
        return 0

    def _at(self, node: int) -> Any:
        return self._graphs[node & ~0xFFF][(node & 0xFFF) - 1]

    def cuGraphNodeGetType(self, node: int, kind: Any) -> int:
        found = self._at(node)
        kind[0] = 0 if isinstance(found, Kernel) else {"memset": 2, "child": 4}[found]
        return 0

    def cuGraphChildGraphNodeGetGraph(self, node: int, graph: Any) -> int:
        graph[0] = CHILD
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: int, result: Any) -> int:
        kernel, into = self._at(node), result[0]
        if kernel.is_function:
            into.func = node
        else:
            into.kern = node
        if kernel.in_buffer:
            content = b"".join(kernel.parameters)
            buffer = ctypes.create_string_buffer(content, len(content))
            size = ctypes.c_size_t(len(content))
            extra = (ctypes.c_void_p * 5)(2, ctypes.addressof(size), 1, ctypes.addressof(buffer), 0)
            self._held += [buffer, size, extra]
            into.extra = extra
            return 0
        buffers = [ctypes.create_string_buffer(each, len(each)) for each in kernel.parameters]
        array = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        self._held += [buffers, array]
        into.parameters = array
        return 0

    def cuFuncGetName(self, name: Any, node: int) -> int:
        text = ctypes.create_string_buffer(self._at(node).name.encode())
        self._held.append(text)
        name[0] = ctypes.addressof(text)
        return 0

    def cuFuncGetParamInfo(self, node: int, index: int, offset: Any, size: Any) -> int:
        parameters = self._at(node).parameters
        if index >= len(parameters):
            return INVALID_VALUE
        offset[0] = sum(map(len, parameters[:index]))
        size[0] = len(parameters[index])
        return 0

    cuKernelGetName = cuFuncGetName
    cuKernelGetParamInfo = cuFuncGetParamInfo


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def kernels(
        *nodes: Kernel | str, child: tuple[Kernel | str, ...] = (), status: int = 1
    ) -> tuple[int, list[CapturedKernel]]:
        driver = Driver(nodes, child)
        driver.status = status
        monkeypatch.setattr(captured_kernels, "_driver", lambda: driver.functions)
        capture = CaptureNodes(STREAM)
        return capture.count(), list(capture.kernels(range(len(nodes))))

    yield kernels


def word(value: int) -> bytes:
    return struct.pack("=Q", value)


def test_parameters_are_read_in_words_also_those_in_a_struct(read: Any) -> None:
    struct_of_pointers = struct.pack("=IIQQ", 3, 0, 0x7000, 0x8000)
    kernel = Kernel("_Z3addPfi", (word(0x6000), b"\0\0\0\7", struct_of_pointers))
    count, found = read("memset", kernel)
    assert count == 2
    assert found == [CapturedKernel(1, "add(float*, int)", (0x6000, 3, 0x7000, 0x8000))]


@pytest.mark.parametrize("is_function", [True, False], ids=["function", "kernel"])
@pytest.mark.parametrize("in_buffer", [True, False], ids=["buffer", "pointers"])
def test_all_ways_to_launch_are_read(read: Any, *, is_function: bool, in_buffer: bool) -> None:
    kernel = Kernel("triton_", (word(1), word(2)), in_buffer=in_buffer, is_function=is_function)
    _, found = read(kernel)
    assert found == [CapturedKernel(0, "triton_", (1, 2))]


def test_kernels_of_a_child_graph_have_the_position_of_its_node(read: Any) -> None:
    kernel = Kernel("inner", (word(9),))
    _, found = read("memset", "child", child=(kernel, kernel))
    assert [(each.node, each.words) for each in found] == [(1, (9,)), (1, (9,))]


def test_kernels_after_an_empty_child_graph_are_read(read: Any) -> None:
    _, found = read("child", Kernel("later", (word(9),)))
    assert [(each.node, each.words) for each in found] == [(1, (9,))]


def test_an_array_with_room_for_more_is_not_read(read: Any) -> None:
    _, found = read(Kernel("multi_tensor_apply", (word(5) * 300, word(6))))
    assert [each.words for each in found] == [(6,)]


def test_a_capture_that_failed_has_no_nodes(read: Any) -> None:
    assert read(Kernel("any", (word(1),)), status=2) == (0, [])


def test_without_a_driver_there_are_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_kernels, "_driver", lambda: None)
    capture = CaptureNodes(STREAM)
    assert (capture.count(), list(capture.kernels([0]))) == (0, [])

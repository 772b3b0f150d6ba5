"""Read a SQLite export of Nsight Systems: kernels, copies, CUDA calls and NVTX ranges."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from graphdoctor.trace.arrays import (
    KINDS,
    NO_CORRELATION,
    About,
    Calls,
    DeviceEvents,
    Ints,
    Spans,
    Trace,
)
from graphdoctor.trace.intervals import NONE
from graphdoctor.trace.read.blocks import check_memory
from graphdoctor.trace.read.split import DATABASE
from graphdoctor.values.errors import UsageError

_KERNELS, _COPIES, _FILLS, _GRAPHS = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
_CALLS, _RANGES = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_ROWS = 1 << 16
_EACH_ROW = 240  # bytes that reading and explaining take for each
_PROCESS_BITS = 24  # a globalTid is a globalPid with the thread in its last bits
_PAST_CORRELATIONS = 1 << 32
# As Nsight Systems numbers them (ENUM_CUDA_MEM_KIND), which is not as CUPTI does; in torch.profiler's words.
_WAYS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
_API_VERSION = re.compile(r"_v\d{4,}$")
# What torch.autograd.profiler.emit_nvtx() writes: "aten::mm, seq = 5, op_id = 12".
_RECORDED = re.compile(r"^(?P<name>.+?), (seq|op_id|sizes|input_op_ids) = ")
_OPERATOR = re.compile(r"^\w+::[\w.]+$")


def is_database(path: Path) -> bool:
    """Whether the file is one of SQLite's, as Nsight Systems and rocprof write them."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(DATABASE)) == DATABASE


def read_nsight(path: Path, most_bytes: int | None = None) -> Trace:
    """Read one export. Raises UsageError where it is another database, broken, or takes more memory."""
    try:
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            export = _Export(database, path)
            export.check_memory(most_bytes)
            return export.trace()
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise UsageError(
            f"{path} cannot be read as an export of Nsight Systems ({error}): export it again with `nsys export"
            " --type sqlite`."
        ) from error


class _Export:
    """The tables of one export, and the names that their rows share."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self._database, self._path = database, path
        rows = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self._tables = {name for (name,) in rows}
        if not self._tables & {_KERNELS, _CALLS, _COPIES, _GRAPHS}:
            raise UsageError(
                f"{path} is a database without CUDA's activities. Of Nsight Systems it needs an export of a run"
                " with `nsys profile --trace=cuda,nvtx`; of rocprof nothing is read: record with torch.profiler,"
                " which runs on ROCm too."
            )
        self._names: dict[str, int] = {}
        self._strings: dict[int, str] = dict(self._pairs("StringIds", ("id", "value")))
        self._processes: dict[int, int] = {}
        self._devices: dict[tuple[int, int], int] = {}

    def check_memory(self, most_bytes: int | None) -> None:
        tables = self._tables & {_KERNELS, _COPIES, _FILLS, _GRAPHS, _CALLS, _RANGES}
        counts = [self._database.execute(f"SELECT count(*) FROM {name}") for name in tables]
        rows = sum(count.fetchone()[0] for count in counts)
        check_memory(f"export {self._path}", most_bytes, rows * _EACH_ROW, f"for {rows:,}")

    def trace(self) -> Trace:
        copied = ("copyKind", "srcKind", "dstKind")
        known = self._columns(_KERNELS)
        written = ("demangledName", "shortName", "mangledName")
        key = next((name for name in written if name in known), "")
        parts = [
            self._device_columns(_KERNELS, "kernel", (key,), self._text, graph="graphId"),
            self._device_columns(_COPIES, "memcpy", copied, _copy_name),
            self._device_columns(_FILLS, "memset", (), lambda key: "Memset (Device)"),
            # Whole graphs, where it traced no nodes: one event each.
            self._device_columns(
                _GRAPHS, "kernel", ("graphId",), lambda key: f"CUDA graph {key}", graph="graphId"
            ),
        ]
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        events = DeviceEvents(*columns).in_order()
        threads: dict[int, int] = {}
        calls = Calls(*self._calls(threads)).in_order()
        ranges = Spans(*self._ranges(threads)).in_order()
        names = tuple(self._names)
        is_operator = np.array([bool(_OPERATOR.match(name)) for name in names], np.bool_)
        are_operators = is_operator[ranges.name] if len(ranges) else np.zeros(0, np.bool_)
        streams = max(1, int(events.stream.max(initial=0)) + 1)
        # CUDA's number of each device; with the process where there are several, since each
        # counts for itself.
        several = len({process for process, _ in self._devices}) > 1
        return Trace(
            about=About(device_names=self._device_names(), writer="nsight"),
            names=names,
            threads=tuple(
                f"{key >> _PROCESS_BITS}/{key % (1 << _PROCESS_BITS)}" for key in threads
            ),
            devices=tuple(
                f"{device} of process {process % (1 << _PROCESS_BITS)}" if several else str(device)
                for process, device in self._devices
            ),
            streams=tuple(map(str, range(streams))),
            device_events=events,
            calls=calls,
            operators=ranges.take(are_operators),
            annotations=ranges.take(~are_operators),
            events=sum(len(table) for table in (events, calls, ranges)),
        )

    def _device_columns(
        self,
        table: str,
        kind: str,
        key: Sequence[str],
        name: Callable[[int], str],
        graph: str = "",
    ) -> list[Ints]:
        """`name` gives the text of an event from its `key` columns, as digits to the base of 100."""
        wanted = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes")
        rows = self._integers(table, (*wanted, graph, *key))
        start, end, device, stream, correlation, process, nbytes, graphs, *parts = rows
        keys = np.zeros_like(start)
        for part in parts:
            keys = keys * 100 + part
        process = process >> _PROCESS_BITS
        places = [
            self._devices.setdefault(pair, len(self._devices))
            for pair in zip(process.tolist(), device.tolist(), strict=True)
        ]
        count = len(start)
        return [
            self._numbered(keys, name),
            start,
            np.maximum(start, end),
            np.full(count, KINDS.index(kind)),
            np.array(places, np.int64),
            np.clip(stream, 0, None),
            self._correlations(correlation, process),
            graphs,
            nbytes,
            np.full(count, NONE),
        ]

    def _calls(self, threads: dict[int, int]) -> list[Ints]:
        wanted = ("start", "end", "globalTid", "correlationId", "nameId")
        start, end, thread, correlation, key = self._integers(_CALLS, wanted)
        names = self._numbered(key, lambda key: _API_VERSION.sub("", self._text(key)))
        has_process = _KERNELS not in self._tables or "globalPid" in self._columns(_KERNELS)
        process = thread >> _PROCESS_BITS if has_process else np.zeros_like(thread)
        return [
            names,
            start,
            np.maximum(start, end),
            _places(thread, threads),
            self._correlations(correlation, process),
        ]

    def _ranges(self, threads: dict[int, int]) -> list[Ints]:
        """Ranges that end; marks and ranges of which the end was not recorded say nothing of time."""
        if _RANGES not in self._tables:
            return [np.empty(0, np.int64) for _ in range(4)]
        known = self._columns(_RANGES)
        text = "text" if "text" in known else "NULL"
        key = "textId" if "textId" in known else "NULL"
        thread = "globalTid" if "globalTid" in known else "0"
        cursor = self._database.execute(
            f'SELECT start, "end", {thread}, {text}, {key} FROM {_RANGES} WHERE "end" > start'
        )
        rows = [
            (start, end, thread, self._name(_range_name(text or self._text(key or 0))))
            for start, end, thread, text, key in cursor
        ]
        start, end, owner, names = np.array(rows, np.int64).reshape(-1, 4).T
        return [names, start, end, _places(owner, threads)]

    def _device_names(self) -> tuple[str, ...]:
        if "TARGET_INFO_GPU" not in self._tables:
            return ()
        names = dict(self._pairs("TARGET_INFO_GPU", ("id", "name")))
        if "TARGET_INFO_CUDA_DEVICE" in self._tables:
            seen = dict(self._pairs("TARGET_INFO_CUDA_DEVICE", ("cudaId", "gpuId")))
            names = {cuda: names.get(gpu, "") for cuda, gpu in seen.items()} or names
        return tuple(str(names.get(number, "")) for number in range(max(names, default=-1) + 1))

    def _numbered(self, keys: Ints, name: Callable[[int], str]) -> Ints:
        values, places = np.unique(keys, return_inverse=True)
        numbers = np.array([self._name(name(key)) for key in values.tolist()], np.int64)
        found: Ints = numbers[places.reshape(-1)] if len(keys) else keys
        return found

    def _correlations(self, correlation: Ints, process: Ints) -> Ints:
        """Ids that are unique among processes: each process counts its calls for itself."""
        found = correlation + _places(process, self._processes) * _PAST_CORRELATIONS
        return np.where(correlation > 0, found, NO_CORRELATION)

    def _name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def _text(self, key: int) -> str:
        return str(self._strings.get(key, ""))

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._database.execute(f"PRAGMA table_info({table})")}

    def _pairs(self, table: str, names: tuple[str, str]) -> Iterator[tuple[Any, Any]]:
        if table not in self._tables:
            return iter(())
        return self._database.execute(f"SELECT {', '.join(names)} FROM {table}")

    def _integers(self, table: str, wanted: Sequence[str]) -> list[Ints]:
        """Columns of whole numbers, 0 for what this version of the export does not have."""
        if table not in self._tables:
            return [np.empty(0, np.int64) for _ in wanted]
        known = self._columns(table)
        columns = [f'coalesce("{name}", 0)' if name in known else "0" for name in wanted]
        cursor = self._database.execute(f"SELECT {', '.join(columns)} FROM {table}")
        parts = [np.empty((0, len(wanted)), np.int64)]
        while rows := cursor.fetchmany(_ROWS):
            parts.append(np.array(rows, np.int64))
        return list(np.concatenate(parts).T.copy())


def _copy_name(key: int) -> str:
    """As torch.profiler writes it: "Memcpy HtoD (Pinned -> Device)"."""
    kind, source, target = key // 10000, key // 100 % 100, key % 100
    ends = f"{_MEMORY.get(source, 'Unknown')} -> {_MEMORY.get(target, 'Unknown')}"
    return f"Memcpy {_WAYS.get(kind, 'Unknown')} ({ends})"


def _range_name(text: str) -> str:
    recorded = _RECORDED.match(text)
    return recorded["name"] if recorded else text


def _places(keys: Ints, numbers: dict[int, int]) -> Ints:
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys.tolist()], np.int64)

"""A trace of TraceBuilder's -> the SQLite export that Nsight Systems would write of the same run."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from tests.support.traces import TraceBuilder

# As in the SQLite Export Schema Reference of Nsight Systems, without what nobody reads.
SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER,
    contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
    shortName INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER,
    dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,
    textId INTEGER);
"""
_COPY = re.compile(r"Memcpy (HtoD|DtoH|DtoD) \((\w+) -> (\w+)\)")
_WAYS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
_MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2}


def write_nsight(
    builder: TraceBuilder, path: Path, *, processes: tuple[int, ...] = (4000,)
) -> Path:
    """The same run once for each process, all with the same correlation ids; on device 0 of each."""
    strings: defaultdict[str, int] = defaultdict(lambda: len(strings) + 1)
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (3, 'Test GPU')")
        database.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (3, 0, 4000)")
        for process in processes:
            for event in builder.events:
                _insert(database, event, process << 24, strings)
        database.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(key, text) for text, key in strings.items()]
        )
        database.commit()
    return path


def _insert(
    database: sqlite3.Connection, event: dict, process: int, strings: dict[str, int]
) -> None:  # type: ignore[type-arg]
    start, end = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
    args, name = event.get("args", {}), event["name"]
    device = (args.get("device"), args.get("stream"), args.get("correlation"), process)
    if event["cat"] == "kernel":
        row = (start, end, device[0], 1, *device[1:], strings[name], strings[name[:5]], None)
        _into(database, "CUPTI_ACTIVITY_KIND_KERNEL", row)
    elif event["cat"] == "gpu_memcpy":
        found = _COPY.match(name)
        assert found is not None
        kinds = (_WAYS[found[1]], _MEMORY[found[2]], _MEMORY[found[3]])
        _into(database, "CUPTI_ACTIVITY_KIND_MEMCPY", (start, end, *device, args["bytes"], *kinds))
    elif event["cat"] in ("cuda_runtime", "cuda_driver"):
        key = strings[f"{name}_v7000"]
        row = (start, end, 0, process + event["tid"], args["correlation"], key, 0)
        _into(database, "CUPTI_ACTIVITY_KIND_RUNTIME", row)
    elif event["cat"] == "cpu_op":  # as emit_nvtx() writes it, a registered string
        key = strings[f"{name}, seq = 5, op_id = 12"]
        _into(database, "NVTX_EVENTS", (start, end, 59, None, process + event["tid"], key))
    else:
        _into(database, "NVTX_EVENTS", (start, end, 59, name, process + event["tid"], None))


def _into(database: sqlite3.Connection, table: str, row: tuple[object, ...]) -> None:
    database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

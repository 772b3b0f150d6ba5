"""Traces that fsspec reads: behind URLs, in zip files, packed as xz."""

from __future__ import annotations

import json
import lzma
import sys
import threading
import zipfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest

from graphdoctor.cli import main
from graphdoctor.reporters.plain_json import written
from graphdoctor.trace.explain.folder import explain_folder, trace_files
from graphdoctor.trace.explain.trace_report import TraceOptions
from graphdoctor.trace.read.blocks import RemotePath, place
from graphdoctor.trace.read.file import read_trace
from graphdoctor.values.errors import UsageError
from tests.trace.test_folder import traces, worker

OPTIONS = TraceOptions(gpu="h100")


def in_memory(folder: Path) -> str:
    system = fsspec.filesystem("memory")
    system.put(f"{folder}/", f"/{folder.name}/", recursive=True)
    return f"memory://{folder.name}"


def zipped(folder: Path) -> str:
    target = folder.with_suffix(".zip")
    with zipfile.ZipFile(target, "w") as packed:
        for file in folder.iterdir():
            packed.write(file, f"logs/{file.name}")
    return str(target)


@pytest.mark.parametrize("put", [in_memory, zipped])
def test_a_folder_elsewhere_has_the_report_of_the_local_one(tmp_path: Path, put) -> None:  # type: ignore[no-untyped-def]
    traces(tmp_path)
    local = explain_folder(tmp_path, OPTIONS, lambda text: None)
    elsewhere = place(put(tmp_path))
    assert elsewhere.is_dir()
    found = explain_folder(elsewhere, OPTIONS, lambda text: None)
    text = written(found)
    for path, mine in zip(trace_files(elsewhere), trace_files(tmp_path), strict=True):
        text = text.replace(str(path), str(mine))
    assert text.replace(f'"{elsewhere}"', f'"{tmp_path}"') == written(local)


def test_a_packed_file_reads_as_the_plain_one(tmp_path: Path) -> None:
    plain = worker(10, 5.0).write(tmp_path / "w.json")
    packed = tmp_path / "w.json.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    with zipfile.ZipFile(tmp_path / "w.json.zip", "w") as archive:
        archive.write(plain, "w.json")
    events = read_trace(plain).events
    assert [read_trace(path).events for path in (packed, tmp_path / "w.json.zip")] == [events] * 2
    packed.write_bytes(lzma.compress(plain.read_bytes())[:-40])
    cut = read_trace(packed)
    assert cut.is_cut
    assert "damaged" in cut.warnings[0] or "cut short" in cut.warnings[0]


def test_plain_local_files_need_no_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces(tmp_path)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert len(explain_folder(tmp_path, OPTIONS, lambda text: None).workers) == 4
    (tmp_path / "w9.json.xz").write_bytes(b"")
    (_, sentence) = explain_folder(tmp_path, OPTIONS, lambda text: None).failures
    assert "w9.json.xz" in sentence
    assert "pip install 'graphdoctor[cluster]'" in sentence


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("unheard://bucket/w.json", "Protocol not known: unheard"),
        (
            "memory://no/such/w.json",
            "Cannot read the trace memory://no/such/w.json: it is not there",
        ),
        ("s3://bucket/run.sqlite", "copy it to this machine first"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(url: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_trace(place(url))


def test_a_packing_that_nothing_unpacks_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsspec, "available_compressions", lambda: [None, "xz", "zip"])
    (tmp_path / "w.json.zst").write_bytes(b"")
    with pytest.raises(UsageError, match="pip install 'graphdoctor\\[cluster\\]'"):
        read_trace(tmp_path / "w.json.zst")


class _Whole(BaseHTTPRequestHandler):
    """Sends each file from its beginning, whatever range is asked for; of cut.json less than it promises."""

    files: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        content = self.files.get(self.path.partition("?")[0].strip("/"))
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        is_cut = self.path.startswith("/cut")
        with suppress(ConnectionError):  # the reader may have seen enough
            self.wfile.write((content or b"")[: -9 if is_cut else None])
        self.close_connection = is_cut

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_a_server_that_sends_whole_files_only(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp reads https://; it is in the extra `cluster`")
    traces(tmp_path)
    content = (tmp_path / "w0.json").read_bytes()
    job = Path(zipped(tmp_path)).read_bytes()
    packed = tmp_path / "w.json.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("w.json", content)
    _Whole.files = {
        "w.json": content, "cut.json": content + b" " * (5 << 20), "w.json.zip": packed.read_bytes(), "job.zip": job
    }  # fmt: skip
    with ThreadingHTTPServer(("127.0.0.1", 0), _Whole) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        events = read_trace(place(f"{url}/w.json")).events
        assert read_trace(place(f"{url}/w.json.zip")).events == events
        cut = read_trace(place(f"{url}/cut.json"))
        assert cut.is_cut and cut.events == events
        assert "Not enough data" in cut.warnings[0] and "\n" not in cut.warnings[0]
        with pytest.raises(UsageError, match="404"):
            read_trace(place(f"{url}/gone.json"))
        folder = place(f"{url}/job.zip?sig=secret")
        assert str(folder) == f"{url}/job.zip"
        assert len(explain_folder(folder, OPTIONS, lambda text: None).workers) == 4
        server.shutdown()


@pytest.mark.parametrize("name", ["w.json.zip", "w.json.xz"])
def test_of_what_cannot_be_unpacked_at_all_the_reason_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK half of a file")
    with pytest.raises(UsageError, match="can be unpacked: it is damaged"):
        read_trace(tmp_path / name)


def test_reports_have_no_password_and_no_signature() -> None:
    path = RemotePath("https://me:secret@host:8080/logs/w.json?sig=secret")
    assert (str(path), path.name, path.is_dir()) == (
        "https://host:8080/logs/w.json",
        "w.json",
        False,
    )
    assert str(RemotePath("zip://w.json::https://host/a.zip?sig=secret")) == (
        "zip://w.json::https://host/a.zip"
    )


def test_the_command_reads_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.dumps(worker(10, 5.0).document()).encode()
    fsspec.filesystem("memory").pipe_file("/one/w.json", content)
    assert main(["trace", "memory://one/w.json"]) == 0
    assert "memory://one/w.json" in capsys.readouterr().out

"""What a run read is followed, and any change of it is seen; of what cannot be followed nothing is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from graphdoctor.check.cache.dependencies import CannotKeep, Dependencies, Files, dependencies
from graphdoctor.check.cache.reads import Reads
from graphdoctor.device.processes.process import environment
from tests.support.checking import write

_FOLLOWED = """\
import runpy, sys
from graphdoctor.check.cache.reads import ReadsObserver
import msgspec
observer = ReadsObserver()
observer.start()
sys.path.insert(0, ".")
runpy.run_path("net.py")
sys.stdout.buffer.write(msgspec.json.encode(observer.reads()))
"""


def _reads(folder: Path, source: str) -> Reads:
    """Of a run of net.py with this source, in a process of its own."""
    write(folder, {"net.py": source})
    done = subprocess.run(
        [sys.executable, "-c", _FOLLOWED],
        cwd=folder,
        env=environment(PYTHONDONTWRITEBYTECODE=""),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Reads)


def _depends(folder: Path, source: str) -> Dependencies:
    began_ns = time.time_ns()
    return dependencies(_reads(folder, source), Files(folder), since_ns=began_ns + 10**12)


def _is_as_before(depends_on: Dependencies, folder: Path) -> bool:
    return depends_on.are_as_before(Files(folder))


def test_nothing_has_changed_as_long_as_nothing_was_touched(tmp_path: Path) -> None:
    write(tmp_path, {"helper.py": "A = 1\n", "data.json": "{}", "unread.json": "{}"})
    depends_on = _depends(tmp_path, "import helper\nopen('data.json').read()\n")
    assert _is_as_before(depends_on, tmp_path)
    write(tmp_path, {"helper.py": "A = 1\n", "unread.json": "[]", "other.py": "B = 2\n"})
    assert _is_as_before(depends_on, tmp_path)  # the same text at another time


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("import helper\n", "helper.py"),
        ("def f():\n    import helper\nf()\n", "helper.py"),
        ("import importlib\nimportlib.import_module('pack.part')\n", "pack/part.py"),
        ("import pack.part\n", "pack/__init__.py"),
        ("with open('data.bin', 'rb') as file:\n    file.read()\n", "data.bin"),
        ("import pathlib\npathlib.Path('data.bin').read_bytes()\n", "data.bin"),
        ("import os\nos.close(os.open('data.bin', os.O_RDONLY))\n", "data.bin"),
        ("import os.path\nos.path.getsize('data.bin')\n", "data.bin"),
        ("import os\nopen('data/config.json').close()\n", "data/weights.safetensors"),
    ],
)
def test_a_changed_file_is_seen(source: str, file: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        {"helper.py": "A = 1\n", "pack/__init__.py": "", "pack/part.py": "", "data.bin": "1"},
    )
    write(tmp_path, {"data/config.json": "{}", "data/weights.safetensors": "1"})
    depends_on = _depends(tmp_path, source)
    (tmp_path / file).write_text("# 2\n", encoding="utf-8")
    assert not _is_as_before(depends_on, tmp_path)


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("import os\nos.path.exists('local.toml')\n", "local.toml"),
        ("try:\n    open('lo' + 'cal.toml')\nexcept OSError:\n    pass\n", "local.toml"),
        ("try:\n    import fast_path\nexcept ImportError:\n    pass\n", "fast_path.py"),
        ("import colorsys\n", "colorsys.py"),  # stands before the library's own
        (
            "import pack\ntry:\n    import pack.extra\nexcept ImportError:\n    pass\n",
            "pack/extra.py",
        ),
        ("import os\nos.listdir('configs')\n", "configs/b.yaml"),
        ("import glob\nglob.glob('configs/*.yaml')\n", "configs/b.yaml"),
    ],
)
def test_a_new_file_is_seen_where_the_run_looked_for_it(
    source: str, file: str, tmp_path: Path
) -> None:
    write(tmp_path, {"pack/__init__.py": "", "configs/a.yaml": ""})
    depends_on = _depends(tmp_path, source)
    assert _is_as_before(depends_on, tmp_path)
    write(tmp_path, {file: "# new\n"})
    assert not _is_as_before(depends_on, tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ.get('MODE')\n",
        "import os\nos.getenv('MODE')\n",
        "import os\n'MODE' in os.environ\n",
        "import os\ndict(os.environ)\n",
    ],
)
def test_a_variable_that_was_looked_at_is_compared(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depends_on = _depends(tmp_path, source)
    assert _is_as_before(depends_on, tmp_path)
    monkeypatch.setenv("MODE", "fast")
    assert not _is_as_before(depends_on, tmp_path)


def test_a_variable_that_was_not_looked_at_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depends_on = _depends(tmp_path, "import os\nos.environ.get('MODE')\n")
    monkeypatch.setenv("SPEED", "fast")
    assert _is_as_before(depends_on, tmp_path)


def test_values_of_variables_are_not_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    depends_on = _depends(tmp_path, "import os\nos.environ.get('TOKEN')\n")
    assert b"TOKEN" in msgspec.json.encode(depends_on)
    assert b"hunter2" not in msgspec.json.encode(depends_on)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import subprocess\nsubprocess.run(['true'])\n", "processes"),
        ("import os\nos.system('true')\n", "processes"),
        ("import os\nif os.fork() == 0:\n    os._exit(0)\n", "processes"),
        ("import socket\nsocket.getaddrinfo('localhost', 80)\n", "network"),
        ("try:\n    import h5py\nexcept ImportError:\n    pass\n", "h5py"),
    ],
)
def test_what_cannot_be_followed_is_not_kept(source: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(CannotKeep, match=why):
        _depends(tmp_path, source)


def test_a_module_that_is_read_as_compiled_code_is_known_by_its_source(tmp_path: Path) -> None:
    write(tmp_path, {"helper.py": "A = 1\n"})
    for _ in range(2):
        depends_on = _depends(tmp_path, "import helper\n")
    assert (tmp_path / "__pycache__").is_dir()
    assert _is_as_before(depends_on, tmp_path)
    write(tmp_path, {"helper.py": "A = 2\n"})
    assert not _is_as_before(depends_on, tmp_path)


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    began_ns = time.time_ns()
    reads = _reads(tmp_path, "X = 1\n")  # which writes it
    os.utime(tmp_path / "net.py", (1, 1))  # an old time does not help
    with pytest.raises(CannotKeep, match=r"net\.py changed while it ran"):
        dependencies(reads, Files(tmp_path), since_ns=began_ns)


def test_a_file_that_the_run_wrote_itself_is_none_of_its_reads(tmp_path: Path) -> None:
    source = "open('made.txt', 'w').close()\nopen('ma' + 'de.txt').read()\n"
    reads = _reads(tmp_path, source)
    assert not any(path.endswith("made.txt") for path in reads.files)


def test_the_machine_s_state_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "mounts").symlink_to("/proc/self/mounts")
    depends_on = _depends(tmp_path, "open('/proc/stat').close()\nopen('mounts').close()\n")
    assert not any("/proc/" in one.path for one in depends_on.files)
    began_ns = time.time_ns()
    dependencies(Reads((str(tmp_path / "mounts"),), (), (), ()), Files(tmp_path), since_ns=began_ns)


def test_another_checkout_of_the_same_files_is_the_same(tmp_path: Path) -> None:
    write(tmp_path / "one", {"helper.py": "A = 1\n"})
    depends_on = _depends(tmp_path / "one", "import helper\n")
    (tmp_path / "one").rename(tmp_path / "two")
    assert _is_as_before(depends_on, tmp_path / "two")
    assert str(tmp_path) not in msgspec.json.encode(depends_on).decode()


def test_an_installed_file_is_compared_by_its_content_once_its_time_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages"
    write(library, {"lib.py": "A = 1\n"})
    monkeypatch.setattr("sysconfig.get_paths", lambda: _paths(library))
    recorded = Files(tmp_path / "project").state(str(library / "lib.py"))
    os.utime(library / "lib.py", (1, 1))  # installed again
    assert Files(tmp_path / "project").is_as(recorded)
    (library / "lib.py").write_text("A = 2\n", encoding="utf-8")  # mended by hand
    assert not Files(tmp_path / "project").is_as(recorded)


def _paths(library: Path) -> dict[str, str]:
    return {
        "purelib": str(library),
        "platlib": str(library),
        "stdlib": "/nowhere",
        "platstdlib": "/nowhere",
    }

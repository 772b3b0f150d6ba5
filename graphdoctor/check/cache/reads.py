"""Record which files, folders and variables the run of a target reads, in the target's process."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OF_THE_MACHINE = ("/proc/", "/sys/", "/dev/")
_PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn",
              "os.spawn", "pty.spawn")  # fmt: skip
_NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")

_MAPPINGS = ("os", "collections.abc", "_collections_abc")  # through which the environment is read


class Lookup(msgspec.Struct, frozen=True, order=True):
    """A folder in which modules were looked for, and under which names, found or not."""

    folder: str
    names: tuple[str, ...]


class Reads(msgspec.Struct, frozen=True):
    """What a run depended on, in absolute paths. `reason` says why that is not all; "" where it is.

    `files` were opened, there or not; `folders` were listed. `reads_all_variables` where the whole
    environment was gone through.
    """

    files: tuple[str, ...]
    folders: tuple[str, ...]
    lookups: tuple[Lookup, ...]
    variables: tuple[str, ...]
    reads_all_variables: bool = False
    reason: str = ""


class ReadsObserver:
    """Follows this process by an audit hook, which stays until it ends: for a process of one job."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._written: set[str] = set()
        self._folders: set[str] = set()
        self._lookups: set[tuple[str, str]] = set()
        self._variables: set[str] = set()
        self._reads_all_variables = False
        self._reason = ""

    def start(self) -> None:
        """Follow from now on, for the life of the process."""
        platform.platform()  # starts a process when it is asked for the first time
        self._follow_variables()
        notes: dict[str, Callable[[tuple[Any, ...]], None]] = {
            "open": self._opened,
            "os.listdir": self._listed,
            "os.scandir": self._listed,
            "import": self._imported,
            "ctypes.dlopen": self._library_opened,
            "sqlite3.connect": self._opened,
            **dict.fromkeys(_PROCESSES, self._gives_up("it starts processes")),
            **dict.fromkeys(_NETWORK, self._gives_up("it uses the network")),
        }

        def hook(event: str, args: tuple[Any, ...]) -> None:
            note = notes.get(event)
            if note is None:
                return
            try:
                note(args)
            except Exception as error:  # never the model's to see: its report is not kept
                self._reason = f"{event} could not be followed ({type(error).__name__})"

        sys.addaudithook(hook)

    def reads(self) -> Reads:
        """Everything until now, and the files of all modules that are loaded."""
        found = {_source(path) for path in (*self._files, *_module_files())}
        folders: dict[str, set[str]] = {}
        for folder, name in self._lookups:
            folders.setdefault(folder, set()).add(name)
        lookups = (Lookup(folder, tuple(sorted(names))) for folder, names in folders.items())
        return Reads(
            files=tuple(sorted(found)),
            folders=tuple(sorted(self._folders)),
            lookups=tuple(sorted(lookups)),
            variables=tuple(sorted(self._variables)),
            reads_all_variables=self._reads_all_variables,
            reason=self._reason,
        )

    def _opened(self, args: tuple[Any, ...]) -> None:
        path = _path(args[0])
        if not path or path.startswith(OF_THE_MACHINE):
            return
        flags = args[2] if len(args) > 2 else 0  # of a mode too, such as "w"
        if isinstance(flags, int) and flags & _WRITING and path not in self._files:
            self._written.add(path)  # its own: what it reads of it again it has made itself
        elif path not in self._written:
            self._files.add(path)

    def _listed(self, args: tuple[Any, ...]) -> None:
        # Imports list the folders of the search path, and are followed by their names.
        if not sys._getframe(2).f_code.co_filename.startswith("<frozen importlib"):
            self._folders.add(_path(args[0]) or os.getcwd())

    def _imported(self, args: tuple[Any, ...]) -> None:
        name, file, search_path = args[:3]
        if isinstance(file, str):
            self._files.add(file)
        parent, _, tail = str(name).rpartition(".")
        package = sys.modules.get(parent) if parent else None
        folders = getattr(package, "__path__", ()) if parent else search_path or ()
        for folder in folders:
            if isinstance(folder, str):
                self._lookups.add((os.path.abspath(folder), tail))

    def _library_opened(self, args: tuple[Any, ...]) -> None:
        if isinstance(args[0], str) and os.sep in args[0]:
            self._files.add(os.path.abspath(args[0]))

    def _gives_up(self, why: str) -> Callable[[tuple[Any, ...]], None]:
        def note(args: tuple[Any, ...]) -> None:
            self._reason = self._reason or why

        return note

    def _follow_variables(self) -> None:
        """Every look into `os.environ` encodes the name that it looks for."""
        environ: Any = os.environ
        encode, decode = environ.encodekey, environ.decodekey

        def encodekey(name: str) -> bytes:
            encoded: bytes = encode(name)  # raises for what is no name
            if not _is_ours(sys._getframe(1)):
                self._variables.add(name)
            return encoded

        def decodekey(name: bytes) -> str:
            self._reads_all_variables |= not _is_ours(sys._getframe(1))
            decoded: str = decode(name)
            return decoded

        environ.encodekey, environ.decodekey = encodekey, decodekey


def _is_ours(frame: FrameType | None) -> bool:
    """Whether graphdoctor asks, which keeps the whole environment to put it back."""
    while frame is not None and frame.f_globals.get("__name__") in _MAPPINGS:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("graphdoctor.")


def _path(value: object) -> str:
    """Absolute; "" for what is no path, such as the number of an open file."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        return ""
    return os.path.abspath(os.fsdecode(value))


def _module_files() -> Iterator[str]:
    """Also of modules that were there before: the process is a copy of one that had torch."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str):
            yield os.path.abspath(file)


def _source(path: str) -> str:
    """The source of compiled code, which Python compares with it."""
    if not path.endswith(".pyc"):
        return path
    try:
        source = importlib.util.source_from_cache(path)
    except ValueError:
        return path
    return source if Path(source).exists() else path

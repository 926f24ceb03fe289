"""Files: those that come with the package, the one way to write, to digest, and to read YAML and JSON of strangers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from vldebias.errors import InvalidInputError, PromptSetError, VldebiasError, did_you_mean, fail, shortened, warn

LOCK = ".vldebias.lock"  # of a folder that a run writes

MAX_BYTES = 1_000_000  # of a YAML file, which people write
MAX_DEPTH = 32  # of lists and mappings in each other
_MAX_DIGITS = 19  # of an integer: any int64

_FORMULA = "'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"  # what a spreadsheet runs, full-width signs among it
SHIELDED = f"^'({_FORMULA})"  # a cell of `shielded` that has its apostrophe

_PACKAGE = Path(__file__).resolve().parent


# ---- what comes with the package ---------------------------------------------------------------------------


class _Packaged(NamedTuple):
    """YAML files of one kind: inside the package in a wheel; beside it in a checkout, or an editable install of one."""

    kind: str
    packed: str
    beside: str
    error: type[VldebiasError]

    def folder(self) -> Path:
        """The folder with the files; raises where neither place has any."""
        places = (_PACKAGE / "_resources" / self.packed, _PACKAGE.parent / self.beside)
        for place in places:
            if any(place.glob("*.yaml")):
                return place
        raise self.error(
            f"got no {self.kind}s (*.yaml) in {places[0]} or {places[1]}; expected them in one of the two; "
            "reinstall vldebias."
        )

    def names(self) -> list[str]:
        """Those that come with the package, sorted: the stems of their files."""
        return sorted(path.stem for path in self.folder().glob("*.yaml"))

    def file(self, name: str) -> Path:
        """The file of one; for an unknown name the error lists the names, the likely ones first."""
        names = self.names()
        if name in names:
            return self.folder() / f"{name}.yaml"
        listed, hint = ", ".join(names), did_you_mean(name, names)
        raise self.error(f"got the {self.kind} {name!r}; expected one of {listed}, or the path of a .yaml file; {hint}")


_PROMPTS = _Packaged("prompt set", "prompts", "prompts", PromptSetError)
prompts_dir, prompt_names, prompt_file = _PROMPTS.folder, _PROMPTS.names, _PROMPTS.file

_SUITES = _Packaged("suite", "suites", "eval/suites", InvalidInputError)
suites_dir, suite_names, suite_file = _SUITES.folder, _SUITES.names, _SUITES.file


# ---- writing -----------------------------------------------------------------------------------------------


def write_atomically(path: str | Path, content: str | bytes | Callable[[Path], object]) -> Path:
    """Put a file in place in one move: a reader, a kill or a full disk finds the old file or the new, whole and synced.

    Args:
        path: where to; its folder is made. A file that is there already keeps its mode.
        content: text (as UTF-8), bytes, or a function that writes the file whose path it is given, such as
            `lambda partial: image.save(partial, format="png")`; that path ends in ".partial", whatever `path` ends in.

    Returns:
        `path`.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.partial")
    file = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)  # less the umask
    try:
        mode = os.fstat(file).st_mode
        with contextlib.suppress(FileNotFoundError):
            mode = path.stat().st_mode
        with os.fdopen(file, "wb") as opened:
            if not callable(content):
                opened.write(content.encode() if isinstance(content, str) else content)
        if callable(content):
            content(partial)
        partial.chmod(mode & 0o777)  # also where a library has made the file anew
        sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)
    return path


def readable_json(value: Any, depth: int = 0) -> str:
    """JSON in which a list or mapping that fits into 400 characters has one line: small, and readable in a diff."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) <= 400 - depth or not isinstance(value, (dict, list, tuple)) or not value:
        return line
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(k), ensure_ascii=False)}: {readable_json(v, depth + 1)}" for k, v in value.items()]
    else:
        parts = [readable_json(one, depth + 1) for one in value]
    (first, last), indent = "{}" if isinstance(value, dict) else "[]", "\n" + " " * depth
    return first + ",".join(f"{indent} {part}" for part in parts) + indent + last


def shielded(text: str) -> str:
    """A text for CSV that no spreadsheet runs: an apostrophe before a leading =, +, -, @, tab or line break.

    "=1+1" -> "'=1+1"; one that begins so by itself gets one more, so that `unshielded` gives every text back. Source:
    OWASP, "CSV Injection". Numbers are not for this: -0.5 is one.
    """
    return f"'{text}" if re.match(_FORMULA, text) else text


def unshielded(cell: str) -> str:
    """The text of which `shielded` made a cell."""
    return re.sub(SHIELDED, r"\1", cell)


def sync(path: Path) -> None:
    """Have a file or a folder on the disk, so that it survives a loss of power; some systems cannot open a folder."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add_tensors(state: Any, tensors: Iterable[tuple[str, Any]]) -> None:
    """Names, types, shapes and contents of tensors into a hash of hashlib; mapped ones are not copied."""
    import torch

    for name, tensor in tensors:
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


# ---- one writer --------------------------------------------------------------------------------------------

_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
_handles: set[int] = set()
_FAR = 1 << 30  # Windows keeps others from reading the byte that it locks


@contextlib.contextmanager
def only_writer(folder: str | Path, say: Callable[[str], object] = warn) -> Iterator[None]:
    """While it lasts, no other process writes this folder, nor another thread of this one; it may be entered again.

    The lock is the system's (flock; on Windows a locked byte), so that it ends with the process that has it, however
    that ends, and no process that it forks keeps it. The file beside the results says whose it is, for people.
    Of several processes that make up one run, one takes it for all.

    Args:
        folder: made with its parents.
        say: told where a run before was killed, and where nothing can be locked.

    Raises:
        InvalidInputError: another run writes there; the message says which, since when, and what to do.
        OSError: the folder cannot be written.
    """
    folder = Path(folder).resolve()
    if folder in _held.get():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    handle = _taken(folder, say)
    outer = _held.set(_held.get() | {folder})
    try:
        yield
    finally:
        if handle in _handles:  # or this is a fork, which has no part in it
            _held.reset(outer)
            _handles.discard(handle)
            if sys.platform == "win32":  # where a file that is open cannot go
                os.close(handle)
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink()
            if sys.platform != "win32":
                os.close(handle)


def _taken(folder: Path, say: Callable[[str], object]) -> int:
    """The open lock file of a folder, which says that this process has it."""
    path = folder / LOCK
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            free = _lock(handle, folder, say)
            if free and not (path.exists() and os.path.samestat(os.fstat(handle), path.stat())):
                os.close(handle)  # whoever had it has just ended, and taken the file away
                continue
            os.lseek(handle, 0, os.SEEK_SET)
            before = " ".join(os.read(handle, 300).decode(errors="replace").split())
            if not free:
                fail(
                    str(folder),
                    "a second run",
                    f"one at a time: {before or 'another process'} writes there",
                    "wait until it has ended, stop it, or choose another folder (--out)",
                )
            if before:
                say(f"{folder}: {before} did not come to its end there (killed?); this run takes over what it left")
            now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}, since {now}\n".encode())
            _handles.add(handle)
            return handle
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(handle)
            raise


def _lock(handle: int, folder: Path, say: Callable[[str], object]) -> bool:
    """Whether the file is this process's now; a file system without locks is told of, and does without."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, _FAR, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    except OSError as error:
        say(f"{folder}: cannot be locked ({error.strerror}); start no second run there while this one lasts")
    return True


def _let_go() -> None:
    """A process that was forked has no part in the lock, and may outlive the one that has."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()
    _held.set(frozenset())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


# ---- reading what people write -----------------------------------------------------------------------------


def read_yaml(
    path: str | Path, *, error: type[VldebiasError] = InvalidInputError, max_bytes: int = MAX_BYTES
) -> dict[Any, Any]:
    """The mapping in a YAML file from anywhere, without what YAML does behind one's back.

    No anchors that are repeated (a few lines can stand for gigabytes), no tags, no key twice, dates stay text.

    Raises:
        error: the file cannot be read, is too large or too deep, is no mapping, or has one of those; the message
            names the file, and the key or the line.
    """
    path = Path(path)
    return parse_yaml(_text(path, error, max_bytes), str(path), error=error, mapping=True)


def parse_yaml(text: str, where: str, *, error: type[VldebiasError] = InvalidInputError, mapping: bool = False) -> Any:
    """As `read_yaml`, of a text that comes from `where`; anything but a mapping is fine unless `mapping`."""
    try:
        content = _Yaml(text, where, error).content()
    except (yaml.YAMLError, ValueError, RecursionError) as reason:
        if isinstance(reason, VldebiasError):
            raise
        came = " ".join(str(reason).split())[:300]
        fail(f"{where}: file", came, "YAML in UTF-8", "correct the file at that place", error)
    if mapping and not isinstance(content, dict):
        shown = f"{shortened(repr(content), 60)} ({type(content).__name__})"
        fail(f"{where}: file", shown, "a mapping of keys to values", "write 'key: value' lines", error)
    return content


def read_json(
    path: str | Path, *, error: type[VldebiasError] = InvalidInputError, max_bytes: int = 1_000_000_000
) -> Any:
    """The content of a JSON file from anywhere; the law of `read_yaml` holds, and numbers are finite.

    Raises:
        error: the file cannot be read, is too large, or is not JSON; the message names the file and the place.
    """
    path = Path(path)
    return parse_json(_text(path, error, max_bytes), str(path), error=error)


def parse_json(text: str | bytes, where: str, *, error: type[VldebiasError] = InvalidInputError) -> Any:
    """As `read_json`, of a text that comes from `where`, such as a file and its line."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as reason:
        fail(where, " ".join(str(reason).split())[:300], "JSON in UTF-8", "correct the file at that place", error)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]}")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} twice")
    return content


def _text(path: Path, error: type[VldebiasError], max_bytes: int) -> str:
    key = f"{path}: file"
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        fail(key, "no such file", "a file that can be read", "check the path", error)
    except (OSError, ValueError) as reason:  # ValueError: a path with a NUL in it
        problem = f"{type(reason).__name__} ({getattr(reason, 'strerror', None) or reason})"
        fail(key, problem, "a file that can be read", "check the path", error)
    if len(data) > max_bytes:
        fail(key, f"more than {max_bytes:,} bytes", "a short file", "split it", error)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        fail(key, str(reason), "UTF-8", "save it in that encoding", error)


class _Yaml(yaml.SafeLoader):
    """YAML's safe loader, made stricter."""

    def __init__(self, text: str, where: str, error: type[VldebiasError]) -> None:
        super().__init__(text)
        self._where, self._error, self._depth = where, error, 0

    def content(self) -> Any:
        try:
            return self.get_single_data()
        finally:
            self.dispose()

    def refuse(self, mark: Any, came: str, expected: str, remedy: str, key: str = "file") -> NoReturn:
        fail(f"{self._where}: {key}", f"{came} in line {mark.line + 1}", expected, remedy, self._error)

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            self.refuse(event.start_mark, f"the alias *{event.anchor}", "no aliases", "write the value out")
        if getattr(event, "tag", None) not in (None, "!"):
            self.refuse(event.start_mark, f"the tag {event.tag}", "no tags", "take it out")
        if self._depth == MAX_DEPTH:
            came = f"more than {MAX_DEPTH} levels"
            self.refuse(event.start_mark, came, "lists and mappings less deep in each other", "write it flatter")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.refuse(key.start_mark, "a list or a mapping as a key", "a name", "write 'name: value'")
            if key.value in seen:
                self.refuse(key.start_mark, "the key a second time", "each key once", "merge the two", key.value)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> Any:
        text = node.value
        if ":" in text:  # to YAML 1.1, 12:30 is 750
            return text
        if len(text.lstrip("+-").replace("_", "")) > _MAX_DIGITS:
            came = f"a number of {len(text)} digits"
            self.refuse(node.start_mark, came, f"at most {_MAX_DIGITS}", "put quotes around what is text")
        return super().construct_yaml_int(node)


_Yaml.add_constructor("tag:yaml.org,2002:int", _Yaml.construct_yaml_int)
# "2020-01-01" is text: as a date it would surprise, and "2020-13-45" would raise.
_Yaml.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


# ---- what ran ----------------------------------------------------------------------------------------------


@cache
def _version(name: str) -> str | None:
    with contextlib.suppress(PackageNotFoundError):  # run from a checkout that is not installed
        return version(name)
    return None


def versions() -> dict[str, str]:
    """Versions of what the figures depend on, by the names of the packages."""
    names = ("vldebias", "torch", "open_clip_torch", "transformers", "diffusers", "numpy")
    return {"python": platform.python_version()} | {name: own for name in names if (own := _version(name))}


def commit() -> str | None:
    """Commit of the checkout this package runs from, with "-dirty" where tracked files differ; None for a wheel.

    Results that were written before (eval/results) change nothing of what is measured, and are not looked at.
    """
    root = _PACKAGE.parent
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root)]
    try:
        named = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
        changed = [*git, "diff", "--quiet", "HEAD", "--", ".", ":(exclude)eval/results"]
        clean = subprocess.run(changed, capture_output=True, check=False).returncode == 0
    except OSError:  # no git
        return None
    if named.returncode:  # nothing was committed yet
        return None
    return named.stdout.strip() + ("" if clean else "-dirty")

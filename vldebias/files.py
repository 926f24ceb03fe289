"""Find packaged files, write files atomically, lock folders, and read untrusted YAML and JSON."""

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
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from vldebias.errors import InvalidInputError, did_you_mean, warn

LOCK = ".vldebias.lock"  # of a folder that a run writes
_MAX_YAML = 1_000_000  # bytes of a file that people write
_MAX_JSON = 50_000_000  # bytes of a file that programs write: results of a large suite have 3 MB
_MAX_DEPTH = 32  # of lists and mappings in each other

_FORMULA = "'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"  # what a spreadsheet runs, with full-width signs
SHIELDED = f"^'({_FORMULA})"  # a cell of `shielded` that has its apostrophe

_PACKAGE = Path(__file__).resolve().parent


# ---- files of the package --------------------------------------------------------------------------------------


def _packaged(kind: str, packed: str, beside: str, name: str | None = None) -> Any:
    """Return the names of packaged YAML files, or the path of one: inside the package in a wheel, else next to it."""
    places = (_PACKAGE / "_resources" / packed, _PACKAGE.parent / beside)
    files = next(filter(None, ({path.stem: path for path in place.glob("*.yaml")} for place in places)), None)
    if files is None:
        raise InvalidInputError(f"got no {kind}s (*.yaml) in {places[0]} or {places[1]}; reinstall vldebias.")
    if name is None:
        return sorted(files)
    if name not in files:
        known, hint = ", ".join(sorted(files)), did_you_mean(name, files)
        raise InvalidInputError(
            f"got the {kind} {name!r}; expected one of {known}, or the path of a .yaml file; {hint}"
        )
    return files[name]


prompt_names: Callable[[], list[str]] = partial(_packaged, "prompt set", "prompts", "prompts")
prompt_file: Callable[[str], Path] = partial(_packaged, "prompt set", "prompts", "prompts")
suite_names: Callable[[], list[str]] = partial(_packaged, "suite", "suites", "eval/suites")
suite_file: Callable[[str], Path] = partial(_packaged, "suite", "suites", "eval/suites")


# ---- writing ---------------------------------------------------------------------------------------------------


def write_atomically(path: str | Path, content: str | bytes | Callable[[Path], object]) -> Path:
    """Write a file atomically and synced: after a crash or on a full disk the old file or the new one is complete.

    content: text (as UTF-8), bytes, or a function that writes to a given path. Missing folders are created; an
    existing file keeps its mode.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.partial")
    try:
        partial.touch(exist_ok=False)  # its mode is that of the umask
        mode = (path if path.exists() else partial).stat().st_mode
        if callable(content):
            content(partial)
        else:
            partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.chmod(mode & 0o777)  # also where a library has made the file itself
        sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)
    return path


def sync(path: Path) -> None:
    """Flush a file or a folder to disk, so that it survives a power loss; folders are skipped outside of POSIX."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def shielded(text: str) -> str:
    """Return a text that no spreadsheet runs as a formula: "'" is put before a leading =, +, -, @, tab or line break.

    "=1+1" -> "'=1+1"; `unshielded` gives every text back. Source: OWASP, "CSV Injection".
    """
    return f"'{text}" if re.match(_FORMULA, text) else text


def unshielded(cell: str) -> str:
    """Return the original text of a cell that `shielded` made."""
    return re.sub(SHIELDED, r"\1", cell)


def digest(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add_tensors(state: Any, tensors: Iterable[tuple[str, Any]]) -> None:
    """Update a hashlib object with names, types, shapes and contents of tensors; memory-mapped ones are not copied."""
    import torch

    for name, tensor in tensors:
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


# ---- one writer ------------------------------------------------------------------------------------------------

_held: dict[Path, int] = {}  # folder -> thread of this process that writes it


@contextlib.contextmanager
def only_writer(folder: str | Path, say: Callable[[str], object] = warn) -> Iterator[None]:
    """Lock a folder for writing against other processes and other threads; a thread may enter again.

    The lock is a POSIX record lock: it ends with the process that holds it and is not inherited by forks.
    say: called with a message if an earlier run was killed, or if the file system has no locks.

    Raises:
        InvalidInputError: another run writes there; the message says which, since when, and what to do.
        OSError: the folder cannot be written.
    """
    folder, process, thread = Path(folder).resolve(), os.getpid(), threading.get_ident()
    if _held.get(folder) == thread:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    if folder in _held:  # to open and close the file once more would end the lock
        raise _second_run(folder, f"process {process}")
    file = _locked(folder, say)
    _held[folder] = thread
    try:
        yield
    finally:
        if os.getpid() == process:  # a fork has no part in it
            del _held[folder]
            with contextlib.suppress(OSError):  # Windows removes no open file
                (folder / LOCK).unlink()
            file.close()


def _second_run(folder: Path, who: str) -> InvalidInputError:
    return InvalidInputError(
        f"{folder}: {who or 'another process'} writes there; expected one run at a time. Wait until it has ended, stop "
        "it, or choose another folder (--out)."
    )


def _locked(folder: Path, say: Callable[[str], object]) -> Any:
    """Return the open lock file of a folder, which names this process as its holder."""
    path, free = folder / LOCK, True
    file = open(path, "a+b", buffering=0)  # noqa: SIM115
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        free = False
    except (ImportError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        say(f"{folder}: cannot be locked ({why}); do not start a second run there before this one has ended")
    if free and not (path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())):
        file.close()  # its holder has just ended and deleted it
        return _locked(folder, say)
    file.seek(0)
    before = " ".join(file.read(300).decode(errors="replace").split())
    if not free:
        file.close()
        raise _second_run(folder, before)
    if before:
        say(f"{folder}: {before} did not finish there (killed?); this run continues from its files")
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}\n".encode())
    return file


# ---- reading what people write ---------------------------------------------------------------------------------


def read_yaml(path: str | Path) -> dict[Any, Any]:
    """Return the mapping in an untrusted YAML file, read with a strict subset of YAML.

    Repeated anchors (a few lines can expand to gigabytes), tags and duplicate keys are refused; dates stay text.

    Raises:
        InvalidInputError: the file cannot be read, is too large or too deep, is no mapping, or has one of those; the
            message names the file and the line.
    """
    content = parse_yaml(read_bytes(path, max_bytes=_MAX_YAML), str(path))
    if not isinstance(content, dict):
        raise InvalidInputError(f"{path}: got {content!r:.60}; expected a mapping of keys to values, 'key: value'")
    return content


def parse_yaml(text: str | bytes, where: str) -> Any:
    """Return the content of a YAML text, under the rules of `read_yaml`; messages name its origin `where`."""
    with _told(where, "YAML"):
        return _Yaml(text.decode("utf-8-sig") if isinstance(text, bytes) else text).get_single_data()


def read_json(path: str | Path) -> Any:
    """Return the content of an untrusted JSON file; duplicate keys and numbers that are not finite are refused.

    Raises:
        InvalidInputError: the file cannot be read, is too large, or is not JSON; the message names file and place.
    """
    return parse_json(read_bytes(path), str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """Return the content of a JSON text, under the rules of `read_json`; messages name its origin `where`."""
    with _told(where, "JSON"):
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        return json.loads(text, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_each_once)


@contextlib.contextmanager
def _told(where: str, what: str) -> Iterator[None]:
    try:
        yield
    except (yaml.YAMLError, ValueError, RecursionError) as reason:
        said = " ".join(str(reason).split())[:300]
        raise InvalidInputError(f"{where}: got {said}; expected {what} in UTF-8; correct the file there") from None


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text[:40]}")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} twice")
    return dict(pairs)


def read_bytes(path: str | Path, *, max_bytes: int = _MAX_JSON) -> bytes:
    """Return the content of an untrusted file; raise InvalidInputError if it is unreadable or has over `max_bytes`."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(max_bytes + 1) if size <= max_bytes else b""
    except (OSError, ValueError) as reason:  # ValueError: a path with a NUL in it
        problem = "no such file" if isinstance(reason, FileNotFoundError) else f"{type(reason).__name__} ({reason})"
        raise InvalidInputError(f"{path}: got {problem}; expected a file that can be read; check the path") from None
    if max(size, len(data)) > max_bytes:
        raise InvalidInputError(f"{path}: got more than {max_bytes:,} bytes; expected a shorter file; split it")
    return data


class _Yaml(yaml.SafeLoader):
    """Load YAML like the safe loader, with more refusals."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _refused(f"the alias *{event.anchor}; write the value out", event)
        if getattr(event, "tag", None) not in (None, "!"):
            raise _refused(f"the tag {event.tag}; take it out", event)
        if self.depth == _MAX_DEPTH:
            raise _refused(f"more than {_MAX_DEPTH} levels; write it flatter", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a list or a mapping as a key; write 'name: value'", key)
            if key.value in seen:
                raise _refused(f"the key {key.value!r} a second time; merge the two", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> Any:
        return node.value if ":" in node.value else super().construct_yaml_int(node)  # to YAML 1.1, 12:30 is 750


def _refused(problem: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=f"{problem}, line {place.start_mark.line + 1}")


_Yaml.add_constructor("tag:yaml.org,2002:int", _Yaml.construct_yaml_int)
# "2020-01-01" is text: as a date it would surprise, and "2020-13-45" would raise.
_Yaml.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)


# ---- what ran --------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on: package -> version."""
    found = {"python": platform.python_version()}
    for name in ("vldebias", "torch", "open_clip_torch", "transformers", "diffusers", "numpy"):
        with contextlib.suppress(PackageNotFoundError):  # run from a checkout that is not installed
            found[name] = version(name)
    return found


def commit() -> str | None:
    """Return the commit of the checkout this package runs from, "-dirty" where tracked files differ; None for a wheel.

    Files in eval/results are ignored, because earlier results do not change what is measured.
    """
    root = _PACKAGE.parent
    if not (root / ".git").exists():
        return None
    run = partial(subprocess.run, cwd=root, capture_output=True, text=True, check=False)
    try:
        named = run(["git", "rev-parse", "--short=12", "HEAD"])
        changed = run(["git", "diff", "--quiet", "HEAD", "--", ".", ":(exclude)eval/results"])
    except OSError:  # no git
        return None
    return None if named.returncode else named.stdout.strip() + ("-dirty" if changed.returncode else "")

"""Find packaged files, write files atomically, hash them, and read untrusted YAML and JSON."""

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
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from vldebias.errors import InvalidInputError, PromptSetError, did_you_mean, warn

LOCK = ".vldebias.lock"  # of a folder that a run writes
MAX_BYTES = 1_000_000  # of a YAML file, which people write
_MAX_JSON = 50_000_000  # of a JSON file, which programs write: results of a large suite have 3 MB
_MAX_DEPTH = 32  # of lists and mappings in each other
_MAX_DIGITS = 19  # of an integer: any int64

_FORMULA = "'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"  # what a spreadsheet runs, full-width signs among it
SHIELDED = f"^'({_FORMULA})"  # a cell of `shielded` that has its apostrophe

_PACKAGE = Path(__file__).resolve().parent


# ---- what comes with the package ---------------------------------------------------------------------------

_KINDS = {"prompt set": ("prompts", "prompts", PromptSetError), "suite": ("suites", "eval/suites", InvalidInputError)}


def _packaged(kind: str) -> dict[str, Path]:
    """Return name -> YAML file: inside the package in a wheel, next to it in a checkout or an editable install."""
    packed, beside, error = _KINDS[kind]
    places = (_PACKAGE / "_resources" / packed, _PACKAGE.parent / beside)
    for place in places:
        if found := sorted(place.glob("*.yaml"), key=lambda path: path.stem):
            return {path.stem: path for path in found}
    raise error(f"got no {kind}s (*.yaml) in {places[0]} or {places[1]}; expected them in one; reinstall vldebias.")


def _names(kind: str) -> list[str]:
    return list(_packaged(kind))


def _file(kind: str, name: str) -> Path:
    files = _packaged(kind)
    if name in files:
        return files[name]
    listed, hint = ", ".join(files), did_you_mean(name, files)
    raise _KINDS[kind][2](f"got the {kind} {name!r}; expected one of {listed}, or the path of a .yaml file; {hint}")


prompt_names, prompt_file = partial(_names, "prompt set"), partial(_file, "prompt set")
suite_names, suite_file = partial(_names, "suite"), partial(_file, "suite")


# ---- writing -----------------------------------------------------------------------------------------------


def write_atomically(path: str | Path, content: str | bytes | Callable[[Path], object]) -> Path:
    """Write a file atomically and synced: after a crash or on a full disk the old file or the new one is complete.

    content: text (as UTF-8), bytes, or a function that writes to a given path. Missing folders are created; an
    existing file keeps its mode.

    Raises:
        OSError: it cannot be written; nothing is left behind.
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


# ---- one writer --------------------------------------------------------------------------------------------

_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
_ours: set[Path] = set()  # folders that some thread of this process writes


@contextlib.contextmanager
def only_writer(folder: str | Path, say: Callable[[str], object] = warn) -> Iterator[None]:
    """Lock a folder for writing against other processes and other threads; the lock is reentrant.

    The lock is a POSIX record lock: it ends with the process that holds it and is not inherited by forks.
    say: called with a message if an earlier run was killed, or if the file system has no locks.

    Raises:
        InvalidInputError: another run writes there; the message says which, since when, and what to do.
        OSError: the folder cannot be written.
    """
    folder, process = Path(folder).resolve(), os.getpid()
    if folder in _held.get():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    if folder in _ours:  # to open and close the file once more would end the lock
        raise _second_run(folder, f"process {process}")
    file = _locked(folder, say)
    _ours.add(folder)
    outer = _held.set(_held.get() | {folder})
    try:
        yield
    finally:
        if os.getpid() == process:  # a fork has no part in it
            _held.reset(outer)
            _ours.discard(folder)
            with contextlib.suppress(OSError):  # Windows removes no open file
                (folder / LOCK).unlink()
            file.close()


def _second_run(folder: Path, who: str) -> InvalidInputError:
    return InvalidInputError(
        f"{folder}: got a second run; expected one at a time: {who or 'another process'} writes there; wait until it "
        "has ended, stop it, or choose another folder (--out)."
    )


def _locked(folder: Path, say: Callable[[str], object]) -> Any:
    """Return the open lock file of a folder, which names this process as its holder."""
    path = folder / LOCK
    file = open(path, "a+b", buffering=0)  # noqa: SIM115
    try:
        free = _lock(file, folder, say)
        if free and not (path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())):
            file.close()  # whoever had it has just ended, and taken the file away
            return _locked(folder, say)
        file.seek(0)
        before = " ".join(file.read(300).decode(errors="replace").split())
        if not free:
            raise _second_run(folder, before)
        if before:
            say(f"{folder}: {before} did not come to its end there (killed?); this run takes over what it left")
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}\n".encode())
        return file
    except BaseException:
        file.close()
        raise


def _lock(file: Any, folder: Path, say: Callable[[str], object]) -> bool:
    """Whether the file is this process's now; a system without locks is told of, and does without."""
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        say(f"{folder}: cannot be locked ({why}); start no second run there while this one lasts")
    return True


# ---- reading what people write -----------------------------------------------------------------------------


def read_yaml(path: str | Path) -> dict[Any, Any]:
    """Return the mapping in an untrusted YAML file, read with a strict subset of YAML.

    Repeated anchors (a few lines can expand to gigabytes), tags and duplicate keys are refused; dates stay text.

    Raises:
        InvalidInputError: the file cannot be read, is too large or too deep, is no mapping, or has one of those; the
            message names the file and the line.
    """
    content = parse_yaml(read_bytes(path, max_bytes=MAX_BYTES), str(path))
    if not isinstance(content, dict):
        raise InvalidInputError(f"{path}: expected a mapping of keys to values, 'key: value', got {content!r:.60}")
    return content


def parse_yaml(text: str | bytes, where: str) -> Any:
    """Return the content of a YAML text, under the rules of `read_yaml`; messages name its origin `where`."""
    try:
        return _Yaml(text.decode("utf-8-sig") if isinstance(text, bytes) else text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as reason:
        raise _not(where, reason, "YAML") from None


def read_json(path: str | Path) -> Any:
    """Return the content of an untrusted JSON file; duplicate keys and numbers that are not finite are refused.

    Raises:
        InvalidInputError: the file cannot be read, is too large, or is not JSON; the message names file and place.
    """
    return parse_json(read_bytes(path), str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """Return the content of a JSON text, under the rules of `read_json`; messages name its origin `where`."""
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        return json.loads(text, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as reason:
        raise _not(where, reason, "JSON") from None


def _not(where: str, reason: Exception, what: str) -> InvalidInputError:
    said = " ".join(str(reason).split())[:300]
    return InvalidInputError(f"{where}: got {said}; expected {what} in UTF-8; correct the file at that place")


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
    """Return the content of an untrusted file, after checking its size.

    Raises:
        InvalidInputError: the file cannot be read, or has more than `max_bytes`; the message names it.
    """
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
        if ":" in node.value:  # to YAML 1.1, 12:30 is 750
            return node.value
        if len(node.value.lstrip("+-").replace("_", "")) > _MAX_DIGITS:
            raise _refused(f"a number of {len(node.value)} digits; put quotes around what is text", node)
        return super().construct_yaml_int(node)


def _refused(problem: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=f"{problem}, line {place.start_mark.line + 1}")


_Yaml.add_constructor("tag:yaml.org,2002:int", _Yaml.construct_yaml_int)
# "2020-01-01" is text: as a date it would surprise, and "2020-13-45" would raise.
_Yaml.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


# ---- what ran ----------------------------------------------------------------------------------------------


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
    git = ["git", "-C", str(root)]
    try:
        named = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
        changed = [*git, "diff", "--quiet", "HEAD", "--", ".", ":(exclude)eval/results"]
        clean = subprocess.run(changed, capture_output=True, check=False).returncode == 0
    except OSError:  # no git
        return None
    if named.returncode or not (root / ".git").exists():  # nothing was committed yet, or this is no checkout
        return None
    return named.stdout.strip() + ("" if clean else "-dirty")

"""Find packaged files, write files atomically, lock folders, and read untrusted YAML and JSON."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import platform
import re
import secrets
import socket
import stat
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.errors import REMOVED, InvalidInputError, StorageError, did_you_mean, shortened, warn
from vldebias.utils.json_values import JSON

if TYPE_CHECKING:
    import pandas as pd
    import yaml
    from pydantic import ValidationError
    from torch import Tensor

LOCK = ".vldebias.lock"  # lock file of an output folder
_MAX_YAML = 1_000_000  # maximum size in bytes of a hand-written file
_YAML_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MOST_DIGITS = 100  # maximum length of a number in YAML
_MAX_JSON = 50_000_000  # maximum size in bytes of a generated file; large results are about 3 MB
_FORMULA = (  # strings that a spreadsheet would run as formulas, including full-width characters
    "'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
)
_STORAGE_PROBLEMS = {
    errno.ENOSPC: "no space is left on the disk; free some space, and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space, and run the same command again",
    errno.EFBIG: "the file is larger than the file system or `ulimit -f` allows; raise the limit or"
    " choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
}
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.partial")  # names that `_temporary_file` creates
_PACKAGE = Path(__file__).resolve().parents[1]


def packaged(kind: str) -> dict[str, Path]:
    """Return the packaged files by name.

    Args:
        kind: "prompts", "prompts/protocol" or "suites" (YAML files), or "records" (JSON files).
    """
    # The files are inside the package in a wheel, but next to it in a checkout.
    folder_in_wheel = _PACKAGE / "_resources" / kind
    folder_in_checkout = {"suites": "eval/suites", "records": "eval/records"}.get(kind, kind)
    pattern = "*.json" if kind == "records" else "*.yaml"
    for folder in (folder_in_wheel, _PACKAGE.parent / folder_in_checkout):
        file_of_name = {path.stem: path for path in folder.glob(pattern)}
        if file_of_name:
            return dict(sorted(file_of_name.items()))
    raise InvalidInputError(f"found no {pattern} files in {folder}; reinstall vldebias")


@contextlib.contextmanager
def storage_errors(path: str | Path) -> Iterator[None]:
    """Convert errors raised when a file cannot be written to `StorageError`.

    Python raises an OSError, safetensors its own error that contains "(os error 28)" or, before
    version 0.6, "Os { code: 28", and torch a RuntimeError with an OSError as its context.

    Args:
        path: the file or folder named in the message.

    Raises:
        StorageError: If no space is left, the file is too large, or the file system is read-only.
    """
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        code = _storage_code(error)
        if code is None:
            raise
        raise StorageError(code, f"cannot write {path}: {_STORAGE_PROBLEMS[code]}") from error


def _storage_code(error: BaseException | None) -> int | None:
    """Return the operating system's code for a storage error, or None for other errors."""
    while error is not None:
        code = getattr(error, "errno", None)
        match = re.search(r"(?:\(os error|Os \{ code:) (\d+)", str(error))
        if match:
            code = int(match[1])
        if code in _STORAGE_PROBLEMS:
            return code
        error = error.__cause__ or error.__context__
    return None


def write_atomically(path: str | Path, content: str | bytes | Callable[[Path], object]) -> Path:
    """Write a file atomically: after a crash or a power loss, it is either the old or the new file.

    Missing folders are created, and the mode of an existing file is preserved. Temporary files that
    a killed process left in the folder are removed.

    Args:
        path: the file to write or replace.
        content: text (written as UTF-8), bytes, or a function that writes to the path it is given.

    Returns:
        The path of the file.

    Raises:
        InvalidInputError: If the path is a folder.
        StorageError: If no space is left, the file is too large, or the file system is read-only.
        OSError: If the file cannot be written for a different reason.
    """
    path = Path(path)
    if path.is_dir():
        raise InvalidInputError(f"{path}: is a folder; expected the path of a file")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path.parent)
        with _temporary_file(path) as partial:
            # Preserve the mode of an existing file. A new file's mode depends on the umask.
            mode = (path if path.exists() else partial).stat().st_mode
            if callable(content):
                _write_by(content, partial)
            else:
                partial.write_bytes(content.encode() if isinstance(content, str) else content)
            partial.chmod(mode & 0o777)  # in case a library replaced the file
            sync(partial)
            os.replace(partial, path)
        # Sync the folder, too, because a power loss could otherwise undo the rename.
        sync(path.parent)
    return path


def _write_by(write: Callable[[Path], object], partial: Path) -> None:
    """Write a temporary file with a library function."""
    try:
        write(partial)
    except RuntimeError as error:
        if _storage_code(error) is None:
            # torch does not report why writing failed, but writing another block raises the actual
            # error.
            with partial.open("ab") as file:
                file.write(bytes(4096))
        raise


@contextlib.contextmanager
def _temporary_file(path: Path) -> Iterator[Path]:
    """Create a file next to `path`, and remove it at the end unless it was moved.

    The file is locked, so that other processes do not mistake it for a killed process's leftover.
    """
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.partial")
    with contextlib.ExitStack() as stack:
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        stack.callback(partial.unlink, missing_ok=True)
        if _locked(handle):
            stack.callback(os.close, handle)
        else:
            # Windows does not support these locks, and cannot move an open file.
            os.close(handle)
        # A concurrent process may have removed the file as a leftover before it was locked.
        partial.touch()
        yield partial


def _locked(handle: int) -> bool:
    """Lock an open file, or return False if it is already locked or locks are not supported."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


_swept: set[Path] = set()  # folders in which this process has looked for leftovers


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files that killed processes left in a folder, once per process."""
    folder = folder.resolve()
    if folder in _swept:
        return
    _swept.add(folder)
    for path in folder.glob(".*.partial"):
        if not _TEMPORARY.fullmatch(path.name):
            continue
        # A concurrent process may remove the file first, or it may belong to a different user.
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDWR)
            try:
                if _locked(handle):
                    path.unlink()
            finally:
                os.close(handle)


def sync(path: Path) -> None:
    """Flush a file or folder to disk, so that it survives a power loss.

    Folders are skipped on systems other than POSIX.
    """
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def shielded(text: str) -> str:
    """Prepend "'" to a string that a spreadsheet would run as a formula.

    "=1+1" becomes "'=1+1", and `unshielded` is the inverse. Source: OWASP, "CSV Injection".
    """
    return f"'{text}" if re.match(_FORMULA, text) else text


def spreadsheet_csv(frame: pd.DataFrame, *, index: bool = False) -> str:
    """Return a table as CSV that a spreadsheet can open without running formulas.

    Args:
        frame: the table. Its strings and column names are escaped with `shielded`.
        index: whether to write the table's index as the first columns.
    """
    columns = frame.reset_index() if index else frame.copy()
    for place, dtype in enumerate(columns.dtypes):
        if dtype.kind not in "iufb":
            texts = columns.iloc[:, place]
            columns.isetitem(
                place, [shielded(cell) if isinstance(cell, str) else cell for cell in texts]
            )
    columns.columns = [shielded(str(name)) for name in columns.columns]
    return columns.to_csv(index=False)


def unshielded(cell: str) -> str:
    """Return a cell's original string, the inverse of `shielded`."""
    return re.sub(f"^'({_FORMULA})", r"\1", cell)


def digest(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add_tensors(state: hashlib._Hash, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Update a hash with tensor names, types, shapes and contents, without copying.

    Args:
        state: a hashlib object.
        tensors: (name, tensor) pairs.
    """
    import torch

    for name, tensor in tensors:
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


_locked_folders: dict[Path, int] = {}  # the thread that writes to each folder


@contextlib.contextmanager
def only_writer(folder: str | Path, report: Callable[[str], object] = warn) -> Iterator[None]:
    """Lock a folder against writes by other processes and threads.

    The lock is reentrant within a thread. It is a POSIX record lock, which is released when the
    process ends and is not inherited by forks.

    Args:
        folder: the output folder of a run.
        report: a function that receives a message if the file system does not support locks.

    Raises:
        InvalidInputError: If a different run, which the message names, is writing to the folder.
        OSError: If the folder is not writable.
    """
    folder = Path(folder).resolve()
    thread = threading.get_ident()
    if _locked_folders.get(folder) == thread:
        yield
        return
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    writer = f"process {os.getpid()} on {socket.gethostname()}"
    expected = (
        "only one run at a time may use it. Wait for it to finish, stop it, or choose a different"
        " folder (--out)."
    )
    # Look for a lock held by this process before opening the lock file, because closing the file a
    # second time would release that lock.
    if folder in _locked_folders:
        raise InvalidInputError(f"{folder}: {writer} is writing to this folder, and {expected}")
    with path.open("ab+", buffering=0) as file:
        try:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            other_writer = path.read_text(errors="replace").strip() or "another process"
            raise InvalidInputError(
                f"{folder}: {other_writer:.300} is writing to this folder, and {expected}"
            ) from None
        except (ImportError, OSError) as error:
            report(
                f"{folder}: cannot be locked ({error}); do not start another run in this folder"
                " until this one has finished"
            )
        # Write only after locking, because the file may contain a different writer's name.
        with storage_errors(path):
            file.truncate(0)
            file.write(f"{writer}\n".encode())
        _locked_folders[folder] = thread
        try:
            yield
        finally:
            del _locked_folders[folder]


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Load a mapping from an untrusted YAML file, rejecting aliases and repeated keys.

    Raises:
        InvalidInputError: If the file cannot be read, is too large, or is not a YAML mapping. The
            message names the line.
    """
    import yaml

    text = read_bytes(path, max_bytes=_MAX_YAML)
    try:
        content = yaml.load(text.decode("utf-8-sig"), _strict_loader())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{path}: not valid YAML in UTF-8: {' '.join(str(error).split()):.300}; correct it"
        ) from None
    if not isinstance(content, dict):
        raise InvalidInputError(
            f"{path}: got {content!r:.60}; expected a mapping such as 'key: value'"
        )
    return content


@cache
def _strict_loader() -> type[yaml.SafeLoader]:
    """Return a safe YAML loader that also rejects repeated keys and aliases.

    Aliases could expand to gigabytes.
    """
    # Imported here, because many commands do not read YAML.
    import yaml

    class StrictLoader(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            event: yaml.Event = self.peek_event()
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.AliasEvent):
                raise yaml.YAMLError(
                    f"line {line}: the alias *{event.anchor} is not supported; write out the value"
                )
            node: yaml.Node | None = super().compose_node(parent, index)
            is_number = isinstance(node, yaml.ScalarNode) and node.tag in _YAML_NUMBERS
            if node is not None and is_number and len(node.value) > _MOST_DIGITS:
                # "1:1:..." is a number to base 60, which Python could neither show nor convert.
                raise yaml.YAMLError(
                    f"line {line}: a number of {len(node.value):,} characters; expected at most"
                    f" {_MOST_DIGITS} digits, or text in quotes"
                )
            if isinstance(node, yaml.MappingNode):
                # The safe loader would silently keep the last of two equal keys.
                counts = Counter(str(key.value) for key, _ in node.value)
                for key, count in counts.items():
                    if count > 1:
                        raise yaml.YAMLError(
                            f"the key {key!r} twice in the mapping of line {line}; merge the two"
                        )
            return node

    return StrictLoader


def read_json(path: str | Path, *, max_bytes: int = _MAX_JSON) -> JSON:
    """Load an untrusted JSON file, rejecting NaN, infinity and halves of surrogate pairs.

    Args:
        path: the file to read.
        max_bytes: the maximum size of the file.

    Raises:
        InvalidInputError: If the file cannot be read, is too large, or is not JSON. The message
            names the file and position.
    """
    text = read_bytes(path, max_bytes=max_bytes)
    try:
        # Python's parser accepts NaN and Infinity, which are not valid JSON.
        value: JSON = json.loads(text, parse_float=_finite, parse_constant=_finite)
        if b"\\ud" in text.lower() or b"\xed" in text:
            # Half of a surrogate pair can be read, but not written to a file again.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path}: got {error}; expected JSON in UTF-8") from None
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]}")
    return value


def refuse_special(path: str | Path) -> None:
    """Raise an error for a pipe or a device, or a link to one, which may be read without end.

    Files that do not exist, and folders, are left to the caller.
    """
    mode = stat.S_IFREG
    with contextlib.suppress(OSError, ValueError):
        mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InvalidInputError(f"{path}: expected a file, got a pipe, a socket or a device")


def refuse_lfs_pointer(path: str | Path) -> None:
    """Raise an error if a file is a pointer that Git LFS leaves in a clone without its files."""
    refuse_special(path)
    start = b""
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        start = file.read(40)
    if start.startswith(b"version https://git-lfs.github.com/"):
        raise InvalidInputError(
            f"{path}: got a pointer of Git LFS instead of the file; run `git lfs pull` in its"
            " repository"
        )


def read_bytes(path: str | Path, *, max_bytes: int = _MAX_JSON) -> bytes:
    """Return the content of an untrusted file.

    Args:
        path: the file to read.
        max_bytes: the maximum size of the file.

    Raises:
        InvalidInputError: If the file cannot be read, or is larger than `max_bytes`.
    """
    refuse_lfs_pointer(path)
    try:
        with open(path, "rb") as file:
            data = None
            # Check the size first, so that a large file is not loaded into memory.
            if os.fstat(file.fileno()).st_size <= max_bytes:
                data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise InvalidInputError(f"{path}: no such file; check the path") from None
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL character
        raise InvalidInputError(
            f"{path}: cannot be read ({type(error).__name__}: {error}); check the path"
        ) from None
    if data is None or len(data) > max_bytes:
        raise InvalidInputError(f"{path}: expected at most {max_bytes:,} bytes; split the file")
    return data


_EXPECTED = {
    "missing": "missing; expected a value",
    "string_type": "expected a string; in YAML, put quotes around yes, no, numbers and dates",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "extra_forbidden": "unknown key",
}


def explain(error: ValidationError, place: str = "", known: Iterable[str] = ()) -> str:
    """Describe the first problem in a pydantic error, with location, expected value and input.

    Args:
        error: an error with at least one problem.
        place: the prefix of the location.
        known: the valid keys, used to suggest a key that is similar to an unknown one.
    """
    problem = error.errors()[0]
    # Leave out pydantic's names for validators.
    path = [str(key) for key in problem["loc"] if not str(key).startswith("function-")]
    where = ".".join([place, *path] if place else path)
    inner_error = problem.get("ctx", {}).get("error")
    if isinstance(inner_error, type(error)):
        return explain(inner_error, where, known)
    expected = _EXPECTED.get(problem["type"], problem["msg"].removeprefix("Value error, "))
    if problem["type"] == "too_short":
        expected = f"expected at least {problem['ctx']['min_length']} entries"
    if problem["type"] == "extra_forbidden":
        key = str(problem["loc"][-1]).rpartition(".")[2]  # "q" for "loss.q"
        expected += f"; {REMOVED.get(key) or did_you_mean(key, known, 'remove it')}"
    if not where:
        return expected
    if isinstance(problem["input"], Mapping):  # the input is too long to show
        return f"{where}: {expected}"
    return f"{where}: {expected}; got {shortened(repr(problem['input']), 80)}"


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect results, by package name."""
    version_of_package = {"python": platform.python_version()}
    for name in ("vldebias", "torch", "open_clip_torch", "transformers", "diffusers", "numpy"):
        with contextlib.suppress(PackageNotFoundError):  # not installed, or only a checkout
            version_of_package[name] = version(name)
    return version_of_package


def commit() -> str | None:
    """Return the checkout's commit, with "-dirty" if tracked files differ, or None for a wheel.

    Files in eval/results are ignored, because they do not affect measurements.
    """
    run = partial(
        subprocess.check_output, cwd=_PACKAGE.parent, text=True, stderr=subprocess.DEVNULL
    )
    with contextlib.suppress(OSError, subprocess.CalledProcessError):  # no git, or no commit
        if (_PACKAGE.parent / ".git").exists():
            head = run(["git", "rev-parse", "--short=12", "HEAD"]).strip()
            changed = run(
                ["git", "diff", "--name-only", "HEAD", "--", ".", ":(exclude)eval/results"]
            )
            return f"{head}-dirty" if changed else head
    return None

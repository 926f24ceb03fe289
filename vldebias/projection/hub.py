"""Check whether the Hugging Face Hub responds, and upload or download edits.

The check saves time without network access, because huggingface_hub would try every file six times,
for 23 seconds in total, and print each attempt.
"""

from __future__ import annotations

import os
import re
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import TimeoutError
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from vldebias.errors import InvalidInputError, check_kind
from vldebias.utils.names import check_path
from vldebias.version import __version__

WEIGHTS = "projection.safetensors"
"""Name of the file that contains an edit's tensors, with its config in the header."""

_PATIENCE = 3.0  # seconds to wait for the hub; the libraries only give up after a minute

NO_CODE: dict[str, object] = {"trust_remote_code": False}
"""Arguments for every `from_pretrained`; otherwise transformers asks on the terminal whether to run
a folder's code."""

# Fragments of the error messages that libraries raise if the hub does not respond.
_UNREACHED = (
    "couldn't connect to",
    "cannot find the requested files",
    "outgoing traffic has been disabled",
    "root cause in the stacktrace above",
)

# What messages of libraries mean, which name their own classes or a website.
_MEANINGS = {
    re.compile("Can't load (?:image )?processor"): "save its processor (processor.save_pretrained)",
    re.compile("checkpoint file for '([^']*)'"): r"\1 is damaged or incomplete; download it again",
    re.compile(r"expected [\[{][^\[\]{}]*[\]}], but only \{[^{}]*\} were passed"): (
        "its model_index.json lacks parts; save the pipeline there with all of its parts"
    ),
}


@contextmanager
def offline_reason(name: str | Path | None = None) -> Iterator[str]:
    """Yield the reason why the hub cannot be reached, or "" if it responds.

    If the hub cannot be reached, libraries use only their caches inside the block.

    Args:
        name: the name of what is being loaded. For a local file or folder, the check is skipped.
    """
    if name is not None and Path(name).exists():
        yield ""
        return
    from huggingface_hub import constants

    was_offline = constants.HF_HUB_OFFLINE
    why_offline = ""
    if was_offline:
        why_offline = "HF_HUB_OFFLINE is set"
    elif not _answers(constants.ENDPOINT):
        why_offline = f"{urlsplit(constants.ENDPOINT).hostname} does not respond"
    # The setting is global to the process, so it is always restored below.
    constants.HF_HUB_OFFLINE = bool(why_offline)  # checked for every request
    try:
        yield why_offline
    finally:
        constants.HF_HUB_OFFLINE = was_offline


def _answers(endpoint: str) -> bool:
    """Return whether a server answers within a few seconds, through a proxy if one is set."""
    # Use a thread, because the name lookup has no timeout of its own.
    with ThreadPool(1) as pool, suppress(TimeoutError):
        return pool.apply_async(_has_answer, (endpoint,)).get(_PATIENCE)
    return False


def _has_answer(endpoint: str) -> bool:
    """Return whether a server answers a request, even with an error."""
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_PATIENCE)
    except HTTPError:
        return True
    except URLError as error:
        # The libraries may trust other certificates than Python does.
        return isinstance(error.reason, ssl.SSLError)
    except OSError:
        return False
    return True


def reason(error: BaseException) -> str:
    """Describe in one line why something could not be loaded, given any library exception."""
    # Do not repeat torch's message, which advises running the code in the file. transformers 4
    # wraps that error in an error of its own.
    is_pickle = False
    cause: BaseException | None = error
    while cause is not None:
        is_pickle = is_pickle or type(cause).__name__ == "UnpicklingError"
        cause = cause.__cause__ or cause.__context__
    if is_pickle:
        return (
            "it contains Python objects in addition to tensors (a pickle), which can run code when"
            " they are loaded; if you trust it, convert it: safetensors.torch.save_file(state_dict,"
            " 'model.safetensors')"
        )
    if "Could not import module" in str(error):
        # transformers hides why an import failed, such as a torchvision for another torch.
        while error.__cause__ or error.__context__:
            error = cast("BaseException", error.__cause__ or error.__context__)
    text = str(error)
    if "key(s) in state_dict" in text:
        return _differing_keys(text)
    if any(words in text for words in _UNREACHED):
        return "it is not in this machine's cache, and the hub cannot be reached"
    for pattern, meaning in _MEANINGS.items():
        if found := pattern.search(text):
            return found.expand(meaning)
    first = text.strip().partition("\n")[0].rstrip(".:")
    understood = isinstance(error, (OSError, ValueError, RuntimeError)) and first
    return first if understood else f"{type(error).__name__}: {first}"


def _differing_keys(text: str) -> str:
    """Summarise torch's message about missing and unexpected keys, which may list hundreds."""
    parts = []
    for kind in ("Missing", "Unexpected"):
        listed = re.search(rf"{kind} key\(s\) in state_dict: ([^\n]*)", text)
        if listed:
            keys = re.findall('"([^"]+)"', listed[1])
            parts.append(f"{len(keys)} {kind.lower()} keys, such as {', '.join(keys[:2])}")
    return f"it is the checkpoint of another model: {'; '.join(parts)}"


def wrong_content(path: str | Path) -> str:
    """Return what a file of weights is instead, if it is a web page or a pointer, or "".

    Args:
        path: a file, or a folder with files of weights.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = [
            file for suffix in ("safetensors", "bin", "pt") for file in path.rglob(f"*.{suffix}")
        ]
    for file in files:
        start = b""
        with suppress(OSError), file.open("rb") as stream:
            start = stream.read(200).lstrip().lower()
        if start.startswith((b"<!doctype html", b"<html")):
            return f"{file.name} is a web page, not weights; download the file itself"
        if start.startswith(b"version https://git-lfs"):
            return (
                f"{file.name} is a Git LFS pointer, not weights; run `git lfs pull` in its folder"
            )
    return ""


def find_folder(name: str | Path, revision: str | None) -> Path:
    """Return a local folder, or download a hub repository's edits and return their folder.

    Args:
        name: a local folder, or the name of a hub repository.
        revision: a branch, tag or commit of the repository. If None, the latest is loaded.

    Raises:
        InvalidInputError: If the name is neither a folder nor a readable repository.
    """
    expected = "a folder written by save_pretrained, or the name of a hub repository"
    check_kind("load_edit", name, str | os.PathLike, expected)
    check_path(str(name), "edit")
    if os.path.isdir(name):
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        with offline_reason():
            return Path(
                snapshot_download(str(name), revision=revision, allow_patterns=[f"*{WEIGHTS}"])
            )
    except (OSError, ValueError) as error:  # all hub errors derive from one of these
        raise InvalidInputError(
            f"{str(name)[:200]}: neither a folder nor a repository that can be read"
            f" ({reason(error)}); expected a folder written by save_pretrained or the name of a hub"
            " repository"
        ) from error


def upload(folder: str, repo_id: str, private: bool | None) -> str:
    """Upload a folder to a repository, and return the commit URL.

    Args:
        folder: the folder, whose contents are uploaded.
        repo_id: the name of the repository, which is created if it does not exist.
        private: whether a new repository is private. If None, the account's default is used.

    Raises:
        InvalidInputError: If the hub cannot be reached or denies write access.
    """
    import huggingface_hub

    try:
        repo = huggingface_hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        message = f"Upload an edit (vldebias {__version__})"
        commit_url = huggingface_hub.upload_folder(
            repo_id=repo, folder_path=folder, commit_message=message
        )
        return str(commit_url)
    except (OSError, ValueError, huggingface_hub.errors.HTTPError) as error:
        raise InvalidInputError(
            f"{repo_id}: not uploaded: {reason(error)}; expected a connection to the hub and a"
            " token with write access (`hf auth login`, or HF_TOKEN)"
        ) from error

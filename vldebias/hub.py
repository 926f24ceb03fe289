"""The Hugging Face hub: whether it answers is asked once, where its libraries would ask for minutes; no code from it.

Without a network huggingface_hub 2 tries every file six times, with pauses of 23 seconds, and prints each of them.
"""

from __future__ import annotations

import logging
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vldebias.errors import warn

PATIENCE = 3.0
"""Seconds for the hub to answer; the libraries ask for a minute before they give up."""

NO_CODE: dict[str, Any] = {"trust_remote_code": False}
"""For every `from_pretrained`: left out, transformers asks on the terminal, and runs a folder's code at a "y"."""


def away() -> str:
    """Why the hub cannot be asked, in words; "" where it answers."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    server = urlsplit(constants.ENDPOINT)
    port = server.port or (80 if server.scheme == "http" else 443)
    answered = threading.Event()

    def ask() -> None:
        with suppress(OSError):
            socket.create_connection((server.hostname or "", port), timeout=PATIENCE).close()
            answered.set()

    if not urllib.request.getproxies().get("https"):  # a proxy knows names that this machine does not
        thread = threading.Thread(target=ask, daemon=True)  # looking up a name has no time limit of its own
        thread.start()
        thread.join(PATIENCE)
        if not answered.is_set():
            return f"{server.hostname} does not answer"
    return ""


@contextmanager
def asked_once(name: str | Path | None = None) -> Iterator[str]:
    """`away`; where that is not "", libraries look in their caches alone inside, and say at once what is not there.

    name: what is loaded, of which nobody is asked where it is a file or a folder. What libraries log is told as
    warnings if the way leads somewhere; else the error says it.
    """
    if name is not None and Path(name).exists():
        yield ""
        return
    from huggingface_hub import constants

    why, before = away(), constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = bool(why)  # read at every request
    try:
        with _logged_as_warnings():
            yield why
    finally:
        constants.HF_HUB_OFFLINE = before


def not_cached(error: BaseException | None) -> bool:
    """Whether an error comes of what the hub would have, and its cache has not."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    while error is not None:
        if isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
            return True
        error = error.__cause__ or error.__context__
    return False


def reason(error: BaseException) -> str:
    """Why something could not be loaded, in one line, whatever its library has raised."""
    if type(error).__name__ == "UnpicklingError":  # torch, which advises to run the code
        return (
            "it holds Python objects beside its tensors (a pickle), which can run code where they are loaded; convert "
            "it where you trust it: safetensors.torch.save_file(state_dict, 'model.safetensors')"
        )
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".:")
    understood = isinstance(error, (OSError, ValueError, RuntimeError)) and first
    return first if understood else f"{type(error).__name__}: {first}"


@contextmanager
def _logged_as_warnings() -> Iterator[None]:
    """open_clip logs to the root, which prints all that other libraries have printed once more from then on.

    Whoever has set up logging gets the records as ever.
    """
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    kept = BufferingHandler(capacity=1 << 30)
    kept.setLevel(logging.WARNING)
    root.addHandler(kept)
    try:
        yield
    finally:
        root.removeHandler(kept)
    for record in kept.buffer:
        if record.name == "root":  # libraries with a name print their own
            warn(record.getMessage())

"""Access the Hugging Face hub: check once whether it answers, describe errors, and upload edits.

Without a network huggingface_hub 2 tries every file six times, with pauses of 23 seconds, and prints each attempt.
"""

from __future__ import annotations

import logging
import socket
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vldebias import __version__
from vldebias.errors import InvalidInputError, warn

if TYPE_CHECKING:
    from vldebias.edit import Edit

_PATIENCE = 3.0  # seconds for the hub to answer; the libraries ask for a minute before they give up

NO_CODE: dict[str, Any] = {"trust_remote_code": False}
"""For every `from_pretrained`: left out, transformers asks on the terminal, and runs a folder's code at a "y"."""


def _away() -> str:
    """Return why the hub cannot be reached, in words; "" if it answers."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    server, answered = urlsplit(constants.ENDPOINT), threading.Event()
    port = server.port or (80 if server.scheme == "http" else 443)

    def ask() -> None:
        with suppress(OSError):
            socket.create_connection((server.hostname or "", port), timeout=_PATIENCE).close()
            answered.set()

    if urllib.request.getproxies().get("https"):  # a proxy knows names that this machine does not
        return ""
    thread = threading.Thread(target=ask, daemon=True)  # looking up a name has no time limit of its own
    thread.start()
    thread.join(_PATIENCE)
    return "" if answered.is_set() else f"{server.hostname} does not answer"


class _Told(logging.Handler):
    """open_clip logs to the root, which would set it up and print what other libraries have printed once more."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "root":  # libraries with a name print their own
            warn(record.getMessage())


@contextmanager
def asked_once(name: str | Path | None = None) -> Iterator[str]:
    """Check whether the hub answers and yield the reason if not, else ""; without it libraries only read their caches.

    name: what is loaded; for a local file or folder the check is skipped. Root log messages become warnings.
    """
    if name is not None and Path(name).exists():
        yield ""
        return
    from huggingface_hub import constants

    root, told = logging.getLogger(), _Told(logging.WARNING)
    why, before = _away(), constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = bool(why)  # read at every request
    if not root.handlers:
        root.addHandler(told)
    try:
        yield why
    finally:
        root.removeHandler(told)
        constants.HF_HUB_OFFLINE = before


def reason(error: BaseException) -> str:
    """Return in one line why something could not be loaded, from any exception of a library."""
    if type(error).__name__ == "UnpicklingError":  # torch, which advises to run the code
        return (
            "it holds Python objects beside its tensors (a pickle), which can run code where they are loaded; convert "
            "it where you trust it: safetensors.torch.save_file(state_dict, 'model.safetensors')"
        )
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".:")
    understood = isinstance(error, (OSError, ValueError, RuntimeError)) and first
    return first if understood else f"{type(error).__name__}: {first}"


def push_to_hub(
    edits: Edit | Mapping[str, Edit] | str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
) -> str:
    """Upload fitted edits and a model card, without model weights; return the URL of the commit.

    edits: one edit, edits by role, or a folder with either, which is loaded first so that damaged files are refused.

    Raises:
        InvalidInputError: no edits or damaged ones, or the hub cannot be reached or denies write access.
    """
    import huggingface_hub

    from vldebias.edit import Edit
    from vldebias.methods import load_edit, load_edits

    if isinstance(edits, str | Path):
        edits = load_edit(edits) if (Path(edits) / "config.json").is_file() else load_edits(edits)
    given: Mapping[str, Edit] = {"": edits} if isinstance(edits, Edit) else edits
    if not given or not all(isinstance(one, Edit) for one in given.values()):
        raise InvalidInputError(f"edits: expected fitted edits, one or by role, got {edits!r}")
    hub = huggingface_hub.HfApi(token=token)
    with tempfile.TemporaryDirectory() as made:
        for role, edit in given.items():
            edit.save_pretrained(Path(made) / role)
        shown = card(next(iter(given.values())), [role for role in given if role])
        (Path(made) / "README.md").write_text(shown, encoding="utf-8")
        try:
            repo = hub.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
            message = f"Upload an edit (vldebias {__version__})"
            return str(hub.upload_folder(repo_id=repo, folder_path=made, commit_message=message))
        except (OSError, huggingface_hub.errors.HfHubHTTPError) as error:
            raise InvalidInputError(
                f"{repo_id}: not uploaded: {reason(error)}; expected the hub within reach and a token that may write "
                "there (`hf auth login`, or token=)"
            ) from error


def card(edit: Edit, roles: Sequence[str] = ()) -> str:
    """Return the text of the model card: which model the edit was fitted on, and how to attach it."""
    origin, load = edit.provenance, "load_edits" if roles else "load_edit"
    return f"""---
library_name: vldebias
tags:
- fairness
- vision-language
---
# {origin.prompts or "An edit"} for {origin.model_id or "a model without a name"}

An edit of text embeddings ({origin.method}) that mitigates what its prompt set describes, made with vldebias
{__version__}. It mitigates and does not remove bias: measure before and after on your own data.

    import vldebias
    attachment = vldebias.debias(model, vldebias.methods.{load}("this repository or folder"))

It is refused for weights other than those it was fitted on. Roles: {", ".join(roles) or "one"}. Prompt set:
`{origin.prompts}` (hash `{origin.prompts_hash}`). `config.json` has the rest.
"""

"""The folder of a saved edit: `projection.safetensors`, `config.json` and a model card.

The tensors' header holds a copy of the config. Both files are replaced one after the other, each atomically, and both
carry one digest over tensors and config: a save that was killed in between leaves either the old edit or the new one,
and a flipped bit is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from vldebias import __version__
from vldebias.errors import InvalidInputError, VldebiasWarning, warn
from vldebias.files import add_tensors, parse_json, write_atomically
from vldebias.hub import asked_once, reason
from vldebias.provenance import Choice, Fingerprint, Provenance

WEIGHTS, CONFIG, CARD = "projection.safetensors", "config.json", "README.md"
FORMAT = 2
_NOTHING = {"nothing": torch.zeros(1)}  # in the place of tensors where an edit has none: the file asks for some

Lam = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Config(BaseModel):
    """config.json. Format 1, of the first edition, has no kind, no settings and no digest."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())  # model_id is a field of ours

    format: int = Field(default=FORMAT, ge=1, le=FORMAT)
    kind: str = "projection"
    dim: int = Field(gt=0)
    rank: int | None = Field(default=None, ge=0)
    lam: Lam | tuple[Lam, ...]
    method: str = Field(min_length=1, max_length=200)
    space: str | None
    model_id: str | None
    fingerprint: Fingerprint | None
    image_fingerprint: Fingerprint | None = None
    prompts: str | None
    prompts_hash: str | None
    stated_words: tuple[str, ...]
    uses_images: bool = False
    labels: str | None = None
    max_loss: float | None = Field(default=None, gt=0, lt=1)
    choice: Choice | None = None
    settings: dict[str, Any] = {}
    vldebias_version: str = __version__
    sha256: str | None = None

    @model_validator(mode="after")
    def _by_format(self) -> Config:
        if self.format == 1:
            if self.rank is None:
                raise ValueError("rank: expected the number of columns of the factors")
            nothing = self.method == "auto: none"
            if (self.rank == 0) != nothing:
                raise ValueError(f"rank: expected 0 for 'auto: none' and more for any other method, got {self.rank}")
            self.uses_images = "equalise" in self.method
        elif self.sha256 is None:
            raise ValueError("sha256: expected the digest of tensors and config")
        return self

    @classmethod
    def of(cls, provenance: Provenance, **own: Any) -> Config:
        """Of an edit that is saved; the digest is still to come."""
        return cls(sha256="", **own, **{one.name: getattr(provenance, one.name) for one in fields(Provenance)})

    @classmethod
    def parse(cls, text: str | bytes, what: str) -> tuple[Config, dict[str, Any]]:
        """The config, and its plain values, of which the digest is."""
        raw = parse_json(text, what)
        return cls.model_validate_json(json.dumps(raw)), raw

    @property
    def provenance(self) -> Provenance:
        """What it says of where the edit comes from."""
        return Provenance(**{one.name: getattr(self, one.name) for one in fields(Provenance)})


def write_folder(folder: Path, config: Config, given: Mapping[str, Tensor]) -> None:
    """Tensors, config.json and a model card, into a folder that is made if missing."""
    from safetensors.torch import save

    tensors = {name: one.detach().cpu().contiguous().clone() for name, one in (given or _NOTHING).items()}
    plain = config.model_dump(mode="json")
    plain["sha256"] = _digest(plain, tensors)
    header = {"format": "pt", "config": json.dumps(plain, ensure_ascii=False)}
    write_atomically(folder / CARD, _CARD)
    write_atomically(folder / WEIGHTS, save(tensors, metadata=header))
    write_atomically(folder / CONFIG, json.dumps(plain, ensure_ascii=False, indent=2) + "\n")


def read_folder(folder: Path) -> tuple[Config, dict[str, Tensor]]:
    """Config and tensors that belong together: those of config.json, else those of a save that was interrupted.

    Raises:
        InvalidInputError: files that are missing, damaged or of a format that is not known.
    """
    config, tensors = _read(folder)
    return config, {} if tensors.keys() == _NOTHING.keys() else tensors


def _read(folder: Path) -> tuple[Config, dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    path, weights = folder / CONFIG, folder / WEIGHTS
    if not path.is_file():
        raise InvalidInputError(f"{path}: missing; expected a folder written by CalibratedProjection.save_pretrained")
    try:
        config, raw = Config.parse(path.read_bytes(), "json")
    except (ValidationError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path}: not the config of a projection: {error}") from None
    try:
        with safe_open(weights, framework="pt") as file:
            header = file.metadata() or {}
            # A mapped file is not aligned as torch allocates, which would change products in the last bit.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InvalidInputError(f"{weights}: unreadable ({error}); save the projection again") from None
    if config.format == 1 and config.sha256 is None and "config" not in header:
        warn(
            f"{folder}: is of the first edition and has no digest, so that damage to it goes unnoticed; write it "
            "again: vldebias.load_edit(folder).save_pretrained(folder)"
        )
        expected = {"left": (config.dim, config.rank), "right": (config.dim, config.rank)}
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != expected:
            raise InvalidInputError(f"{weights}: expected factors {expected} as config.json says, got {shapes}")
        return config, tensors
    if _digest(raw, tensors) == config.sha256:
        return config, tensors
    inner = None
    with suppress(KeyError, ValidationError, ValueError, RecursionError):
        inner, raw = Config.parse(header["config"], "header")
    if inner is None or _digest(raw, tensors) != inner.sha256:
        raise InvalidInputError(
            f"{weights}: damaged: its content has not the digest that was saved with it; save the projection again, or "
            "fetch it again"
        )
    warn(
        f"{path}: describes another projection than {WEIGHTS} holds: a save was interrupted, or the file was edited. "
        f"What {WEIGHTS} says of itself counts; save the projection again",
        VldebiasWarning,
    )
    return inner, tensors


def _digest(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over a config, but for its own digest, and the tensors."""
    content = {key: value for key, value in config.items() if key != "sha256"}
    total = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    add_tensors(total, sorted(tensors.items()))
    return total.hexdigest()


def find_folder(
    directory_or_repo: str | Path,
    revision: str | None = None,
    token: str | None = None,
    patterns: Sequence[str] = (WEIGHTS, CONFIG),
) -> Path:
    """A folder as it is, or that of a hub repository, downloaded; patterns: the files that are wanted.

    Raises:
        InvalidInputError: neither.
    """
    folder, name = Path(directory_or_repo), str(directory_or_repo)
    try:
        if folder.is_dir():
            return folder
    except OSError:  # a text that is too long for a name
        pass
    if folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise InvalidInputError(f"{name[:200]}: no such folder; expected one written by save_pretrained")
    import huggingface_hub

    own = list(patterns)
    try:
        with asked_once():
            return Path(huggingface_hub.snapshot_download(name, revision=revision, token=token, allow_patterns=own))
    except (OSError, ValueError) as error:  # every error of the hub is one of the two
        raise InvalidInputError(
            f"{name[:200]}: neither a folder nor a repository that can be read ({reason(error)[:300]}); "
            "expected a folder written by save_pretrained or the name of a hub repository"
        ) from error


_CARD = """---
library_name: vldebias
tags:
- fairness
- vision-language
---
# Calibrated projection

A closed-form projection that mitigates one or more attributes in the embeddings of one model, made with vldebias. It
was fitted in closed form, without labels or training: from prompts alone, or with unlabelled images beside them where
`uses_images` in `config.json` is true. It mitigates and does not remove bias: measure before and after on your own
data. `config.json` says for which model, space and weights it was fitted; attaching it to anything else is refused.

    import vldebias
    edit = vldebias.load_edit("this repository or folder")
    attachment = vldebias.debias(model, edit)
"""

"""Save, load and share projections: safetensors factors, a validated config, a model card; on disk or on the hub."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
from huggingface_hub import ModelHubMixin, snapshot_download
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.projection import CalibratedProjection

__all__ = ["load", "push", "save"]

WEIGHTS = "projection.safetensors"
CONFIG = "config.json"


NOTHING = "auto: none"  # the identity, where "auto" found nothing that helps
_METHOD = rf"^({NOTHING}|((orth|orth-cali|cali|difference)(\+equalise)?|equalise)(, bounded)?)$"

Lam = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class FingerprintConfig(BaseModel):
    """What vldebias.fingerprint.weights_fingerprint returns."""

    model_config = ConfigDict(extra="forbid", strict=True)

    structure: str
    norms: list[float]
    waves: list[float]


class ProjectionConfig(BaseModel):
    """config.json of a saved projection."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: int = Field(default=1, ge=1, le=1)
    dim: int = Field(gt=0)
    rank: int = Field(ge=0)
    lam: Lam | list[Lam]
    method: str = Field(pattern=_METHOD)
    space: str | None
    model_id: str | None
    fingerprint: FingerprintConfig | None
    image_fingerprint: FingerprintConfig | None = None
    prompts: str | None
    prompts_hash: str | None
    stated_words: list[str]
    vldebias_version: str

    @model_validator(mode="after")
    def _of_rank_0_only_where_nothing_was_chosen(self) -> ProjectionConfig:
        if (self.rank == 0) != (self.method == NOTHING):
            raise ValueError(f"rank: expected 0 for {NOTHING!r} and more for any other method, got {self.rank}")
        return self

    @classmethod
    def of(cls, projection: CalibratedProjection) -> ProjectionConfig:
        """The config that describes `projection`."""
        return cls.model_validate(
            {
                "dim": projection.dim,
                "rank": projection.rank,
                "lam": list(projection.lam) if isinstance(projection.lam, tuple) else projection.lam,
                "method": projection.method,
                "space": projection.space,
                "model_id": projection.model_id,
                "fingerprint": projection.fingerprint,
                "image_fingerprint": projection.image_fingerprint,
                "prompts": projection.prompts,
                "prompts_hash": projection.prompts_hash,
                "stated_words": list(projection.stated_words),
                "vldebias_version": version("vldebias"),
            }
        )


_CARD = """---
{{ card_data }}
---
# Calibrated projection

A closed-form projection that mitigates one or more attributes in the text embeddings of one model, made with
vldebias. It was fitted in closed form, without labels or training: from prompts alone, or with unlabelled images
beside them where `method` in `config.json` says "equalise". It mitigates and does not remove bias:
measure before and after on your own data. `config.json` says for which model, space and weights it was fitted;
attaching it to anything else is refused.

    import vldebias
    projection = vldebias.CalibratedProjection.from_pretrained("this repository or folder")
    attachment = vldebias.debias(model, projection)
"""


class _Stored(
    ModelHubMixin,
    library_name="vldebias",
    tags=["fairness", "vision-language"],
    model_card_template=_CARD,
):
    """Carries a projection through huggingface_hub's mixin, so that the mathematics needs to know no hub."""

    def __init__(self, projection: CalibratedProjection) -> None:
        self.projection = projection
        self._hub_mixin_config = ProjectionConfig.of(projection).model_dump()

    def _save_pretrained(self, save_directory: Path) -> None:
        factors = {
            "left": self.projection.left.contiguous(),
            "right": self.projection.right.clone().contiguous(),
        }
        save_file(factors, save_directory / WEIGHTS, metadata={"format": "pt"})


def save(projection: CalibratedProjection, directory: str | Path) -> Path:
    """Write `projection` into `directory` (made if missing)."""
    _Stored(projection).save_pretrained(directory)
    return Path(directory)


def push(projection: CalibratedProjection, repo_id: str, *, private: bool | None, token: str | None) -> str:
    """Upload `projection` to `repo_id`; returns the URL of the commit."""
    message = f"Upload {projection.method} projection (vldebias {version('vldebias')})"
    return str(_Stored(projection).push_to_hub(repo_id, private=private, token=token, commit_message=message))


def load(
    directory_or_repo: str | Path, *, revision: str | None = None, token: str | None = None
) -> CalibratedProjection:
    """Read a projection from a folder, or from a hub repository if no such folder exists."""
    folder = Path(directory_or_repo)
    if not folder.is_dir():
        if folder.is_absolute() or str(directory_or_repo).startswith(".") or str(directory_or_repo).count("/") > 1:
            raise InvalidInputError(f"{directory_or_repo}: no such folder; expected one written by save_pretrained")
        folder = _download(str(directory_or_repo), revision, token)
    config = _read_config(folder)
    factors = _read_factors(folder, config)
    return CalibratedProjection(
        left=factors["left"],
        right=factors["right"],
        lam=tuple(config.lam) if isinstance(config.lam, list) else config.lam,
        method=config.method,
        space=config.space,
        model_id=config.model_id,
        fingerprint=None if config.fingerprint is None else config.fingerprint.model_dump(),
        image_fingerprint=None if config.image_fingerprint is None else config.image_fingerprint.model_dump(),
        prompts=config.prompts,
        prompts_hash=config.prompts_hash,
        stated_words=tuple(config.stated_words),
    )


def _download(repo: str, revision: str | None, token: str | None) -> Path:
    try:
        return Path(snapshot_download(repo, revision=revision, token=token, allow_patterns=[WEIGHTS, CONFIG]))
    except (OSError, ValueError) as error:  # every error of the hub is one of the two
        raise InvalidInputError(
            f"{repo}: neither a folder nor a repository that can be read ({error}); "
            "expected a folder written by save_pretrained or the name of a hub repository"
        ) from error


def _read_config(folder: Path) -> ProjectionConfig:
    path = folder / CONFIG
    if not path.is_file():
        raise InvalidInputError(f"{path}: missing; expected a folder written by CalibratedProjection.save_pretrained")
    try:
        return ProjectionConfig.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (ValidationError, ValueError) as error:
        raise InvalidInputError(f"{path}: not the config of a projection: {error}") from None


def _read_factors(folder: Path, config: ProjectionConfig) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    try:
        factors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InvalidInputError(f"{path}: unreadable ({error}); save the projection again") from None
    found = {name: tuple(tensor.shape) for name, tensor in factors.items()}
    expected = {"left": (config.dim, config.rank), "right": (config.dim, config.rank)}
    if found != expected:
        raise InvalidInputError(f"{path}: expected factors {expected} as config.json says, got {found}")
    if any(t.dtype != torch.float64 for t in factors.values()):
        kinds = sorted({str(t.dtype) for t in factors.values()})
        raise InvalidInputError(f"{path}: expected float64 factors, got {kinds}; save the projection again")
    if not all(bool(t.isfinite().all()) for t in factors.values()):
        raise InvalidInputError(f"{path}: the factors hold NaN or infinite values; fit and save the projection again")
    # A mapped file is not aligned as torch allocates, which would change products in the last bit.
    return {name: tensor.clone() for name, tensor in factors.items()}

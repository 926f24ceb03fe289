"""Define edits of embeddings, which methods fit; an edit declares its tensors, so it can be checked, saved and loaded.

A folder holds `projection.safetensors`, whose header has a config with the kind and settings of the edit, and a digest
of config and tensors; a copy of the config, `config.json`; and a model card. Only the first file is read. It is
replaced atomically: an interrupted save leaves the old edit or the new one. The digest detects corrupted files.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_type_hints

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from vldebias import __version__
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.files import add_tensors, parse_json, write_atomically
from vldebias.hub import asked_once, card, reason
from vldebias.provenance import Choice as Choice
from vldebias.provenance import Fingerprint as Fingerprint
from vldebias.provenance import Provenance as Provenance

WEIGHTS, CONFIG = "projection.safetensors", "config.json"
_NOTHING = {"nothing": torch.zeros(1)}  # in the place of tensors where an edit has none: the file asks for some


class Edit(ABC):
    """Change embeddings by a fitted map without side effects: z + strength (edit(z) - z).

    A subclass is a dataclass with a `kind`, under which it is saved, the `axes` of its tensors and `__call__`; other
    fields are saved as settings. A subclass with a separate map for images overrides `side` and `image`. A subclass
    that averages over rewritten prompts defines `wordings(prompt)` and `combined(z, each, strength)`, and the host
    encodes these prompts. All tensors must be finite.

    >>> @dataclass(frozen=True, eq=False, repr=False)
    ... class Shift(Edit):
    ...     kind = "shift"
    ...     axes = {"by": "d"}
    ...     by: Tensor
    ...     provenance: Provenance
    ...     def __call__(self, z, strength=1.0):
    ...         return z + strength * self.by.to(z)

    Attributes:
        provenance: method, weights and prompts that it was fitted with.
        axes: field -> axes of its tensor, as {"left": "d rank"}: a letter has one size, "d" is the width.
        dtype: of all its tensors, or None.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Edit]]] = {}
    axes: ClassVar[Mapping[str, str]] = {}
    dtype: ClassVar[torch.dtype | None] = None
    provenance: Provenance

    @property
    def side(self) -> str:
        """Return which embeddings of an image-text model it changes by default: "text", "image" or "both"."""
        return "text"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            Edit.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        self.check_tensors()

    def check_tensors(self) -> None:
        """Refuse tensors with wrong axes, dtype or values; called when an edit is made, saved or loaded.

        Raises:
            InvalidInputError: axes or a dtype that do not fit, NaN or infinite values; the message names the tensor.
        """
        sizes: dict[str, int] = {}
        for name, tensor in self.tensors().items():
            shape, axes = tuple(tensor.shape), self.axes[name].split() if name in self.axes else None
            if axes is not None:
                known = ", ".join(f"{axis} = {sizes[axis]}" for axis in axes if axis in sizes)
                fits = len(axes) == len(shape)
                fits = fits and all(sizes.setdefault(axis, n) == n for axis, n in zip(axes, shape, strict=True))
                if not fits or self.dtype not in (None, tensor.dtype):
                    wanted = f"({', '.join(axes)}){f' with {known}' if known else ''}"
                    kind = "" if self.dtype is None else f" of {self.dtype}"
                    raise InvalidInputError(
                        f"{name}: expected a tensor {wanted}{kind}, got {shape}{f' of {tensor.dtype}' if kind else ''}"
                    )
            if not bool(tensor.isfinite().all()):
                raise InvalidInputError(
                    f"{type(self).__name__} ({self.method}): {name!r} {shape} holds {int((~tensor.isfinite()).sum())} "
                    "NaN or infinite values; expected finite ones: look for rows that are zero or not finite in what "
                    "it was fitted to"
                )

    @property
    def dim(self) -> int:
        """Return the width d of the embeddings it acts on."""
        specs = ((name, spec.split()) for name, spec in self.axes.items())
        return next(int(getattr(self, name).shape[axes.index("d")]) for name, axes in specs if "d" in axes)

    @abstractmethod
    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        """Return changed embeddings (b, ..., d) in the shape, dtype and device of `z`; strength 0 gives `z` itself."""

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """Return changed image embeddings (b, d); by default with the same map as texts."""
        return self(x, strength)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are saved: name -> tensor."""
        return {name: getattr(self, name) for name in self.axes}

    def settings(self) -> dict[str, Any]:
        """Return the settings that are saved with the tensors, as plain values for JSON."""
        types = _settings_of(type(self))
        return {name: one.dump_python(getattr(self, name), mode="json") for name, one in types.items()}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Self:
        """Rebuild an edit from its `tensors()` and `settings()`.

        Raises:
            InvalidInputError, KeyError, TypeError, ValueError: they do not describe an edit of this kind.
        """
        if tensors.keys() != cls.axes.keys():
            raise InvalidInputError(f"expected the tensors {', '.join(cls.axes)}, got {', '.join(tensors)}")
        types = _settings_of(cls)
        own = {name: one.validate_python(settings[name]) for name, one in types.items() if name in settings}
        maker: Any = getattr(cls, "of", cls)  # of what is made by something else than its constructor
        made: Self = maker(**tensors, **own, provenance=provenance)
        return made

    def folded(self) -> Any:
        """Return the `CalibratedProjection` to merge into the weights in place of this edit (`Attachment.merge`).

        Raises:
            VldebiasError: the edit cannot be merged into weights.
        """
        raise VldebiasError(
            f"{type(self).__name__} ({self.method}) is not one linear map of an embedding and cannot become part of "
            "weights; keep it attached, or save it and attach it after loading"
        )

    def stamped(self, **fields: Any) -> Self:
        """Return a copy of the edit with some fields of its provenance replaced."""
        return replace(self, provenance=replace(self.provenance, **fields))  # type: ignore[type-var]

    @property
    def method(self) -> str:
        """Return the name of the method that fitted it."""
        return self.provenance.method

    @property
    def lam(self) -> float | tuple[float, ...]:
        """Return the weight of the prompt pairs (or image means): one value, or one per prompt set."""
        return self.provenance.lam

    @property
    def space(self) -> str | None:
        """Return the space of the embeddings that it was fitted in, such as "open_clip.joint"."""
        return self.provenance.space

    @property
    def model_id(self) -> str | None:
        """Return the name of the model that it was fitted on, such as a hub id or a checkpoint."""
        return self.provenance.model_id

    @property
    def stated_words(self) -> tuple[str, ...]:
        """Return the words by which a prompt states the attribute."""
        return self.provenance.stated_words

    def check_strength(self, strength: float) -> None:
        """Refuse a strength that is not a number in [0, 1]."""
        if isinstance(strength, (bool, str)) or not 0 <= strength <= 1:
            raise InvalidInputError(f"strength: expected a number in [0, 1], got {strength!r}")

    def where(self) -> str:
        """Return its width, space and model as text for messages."""
        return f"dim {self.dim}, space {self.space or 'unknown'}, model {self.model_id or 'unknown'}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method}, lam={self.lam}, {self.where()})"

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write tensors, config.json and a model card into `directory` (made if missing); return it.

        An interrupted save leaves the previous content or the new edit, never a mixture.

        Raises:
            InvalidInputError: NaN or infinite values.
        """
        from safetensors.torch import save

        self.check_tensors()
        folder = Path(directory)
        tensors = {name: one.detach().cpu().contiguous().clone() for name, one in (self.tensors() or _NOTHING).items()}
        config = _Config(kind=self.kind, provenance=self.provenance, settings=self.settings())
        plain = config.model_dump(mode="json") | {"dim": self.dim, "rank": getattr(self, "rank", None)}
        plain["sha256"] = _digest(plain, tensors)
        write_atomically(folder / "README.md", card(self))
        write_atomically(folder / WEIGHTS, save(tensors, metadata={"format": "pt", "config": json.dumps(plain)}))
        write_atomically(folder / CONFIG, json.dumps(plain, ensure_ascii=False, indent=2) + "\n")
        return folder

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
        """Upload the edit to the Hugging Face hub with a model card; return the URL of the commit."""
        from vldebias.hub import push_to_hub

        return push_to_hub(self, repo_id, private=private, token=token)

    @classmethod
    def from_pretrained(
        cls, directory_or_repo: str | Path, *, revision: str | None = None, token: str | None = None
    ) -> Self:
        """Load an edit that `save_pretrained` or `push_to_hub` wrote, from a folder or a hub repository.

        Raises:
            InvalidInputError: no such folder or repository, damaged files, or an edit of another kind.
        """
        folder = find_folder(directory_or_repo, revision, token)
        config, tensors = _read(folder / WEIGHTS)
        kind = Edit.kinds.get(config.kind)
        if kind is None or not issubclass(kind, cls):
            known = sorted(name for name, one in Edit.kinds.items() if issubclass(one, cls))
            raise InvalidInputError(
                f"{folder}: holds an edit of kind {config.kind!r}; expected {' or '.join(known)}; "
                "vldebias.load_edit reads every kind that is installed"
            )
        try:
            edit = kind.build(tensors, config.settings, config.provenance)
            edit.check_tensors()
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"{folder / WEIGHTS}: {error}; fit and save the projection again") from None
        return edit


@cache
def _settings_of(kind: type[Edit]) -> dict[str, TypeAdapter[Any]]:
    """Return a type adapter for each field of a dataclass that is neither a tensor nor the provenance."""
    own: list[str] = [one.name for one in fields(kind) if one.init] if is_dataclass(kind) else []
    types = get_type_hints(kind) if own else {}
    return {name: TypeAdapter(types[name]) for name in own if name not in {*kind.axes, "provenance"}}


# ---- the folder ------------------------------------------------------------------------------------------------


class _Config(BaseModel):
    """Hold everything needed to rebuild an edit except its tensors; dim and rank are only informative."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[3] = 3
    kind: str
    provenance: Provenance
    settings: dict[str, Any] = {}
    dim: int | None = None
    rank: int | None = None
    vldebias_version: str = __version__
    sha256: str = ""


def _digest(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a config, without its own digest, and the tensors."""
    content = {key: value for key, value in config.items() if key != "sha256"}
    total = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    add_tensors(total, sorted(tensors.items()))
    return total.hexdigest()


def _read(weights: Path) -> tuple[_Config, dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="pt") as file:
            header = file.metadata() or {}
            # A mapped file is not aligned as torch allocates, which would change products in the last bit.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InvalidInputError(f"{weights}: missing or unreadable ({error}); save the projection again") from None
    plain = parse_json(header.get("config", ""), f"{weights}: config")
    if not isinstance(plain, dict) or _digest(plain, tensors) != plain.get("sha256"):
        raise InvalidInputError(
            f"{weights}: damaged: its content has not the digest that was saved with it; save or fetch it again"
        )
    try:
        config = _Config.model_validate_json(json.dumps(plain))
    except (ValidationError, RecursionError) as error:
        raise InvalidInputError(f"{weights}: not the config of a projection: {error}") from None
    return config, {} if tensors.keys() == _NOTHING.keys() else tensors


def find_folder(
    directory_or_repo: str | Path,
    revision: str | None = None,
    token: str | None = None,
    patterns: Sequence[str] = (WEIGHTS, CONFIG),
) -> Path:
    """Return a local folder, or download a hub repository and return its folder; `patterns` selects the files.

    Raises:
        InvalidInputError: no such folder, and no repository of this name that can be read.
    """
    folder, name = Path(directory_or_repo), str(directory_or_repo)
    if len(name) < 4000 and folder.is_dir():
        return folder
    if folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise InvalidInputError(f"{name[:200]}: no such folder; expected one written by save_pretrained")
    import huggingface_hub

    try:
        with asked_once():
            fetched = huggingface_hub.snapshot_download(
                name, revision=revision, token=token, allow_patterns=list(patterns)
            )
    except (OSError, ValueError) as error:  # every error of the hub is one of the two
        raise InvalidInputError(
            f"{name[:200]}: neither a folder nor a repository that can be read ({reason(error)[:300]}); "
            "expected a folder written by save_pretrained or the name of a hub repository"
        ) from error
    return Path(fetched)

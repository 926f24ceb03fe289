"""What a method gives: an edit of embeddings, which declares its tensors and so can be checked, saved and loaded.

A folder holds `projection.safetensors`, in whose header a config says how the edit is built, with a digest over it and
the tensors; a copy of the config for people, `config.json`; and a model card. What is read is the one file, which is
replaced in one move: a save that was killed leaves either the old edit or the new one, and a flipped bit is noticed.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_type_hints

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from vldebias import __version__
from vldebias.errors import InvalidInputError, VldebiasError, warn
from vldebias.files import MAX_BYTES, add_tensors, parse_json, read_bytes, write_atomically
from vldebias.hub import asked_once, card, reason
from vldebias.provenance import Choice as Choice
from vldebias.provenance import Fingerprint as Fingerprint
from vldebias.provenance import Provenance as Provenance

WEIGHTS, CONFIG = "projection.safetensors", "config.json"
_NOTHING = {"nothing": torch.zeros(1)}  # in the place of tensors where an edit has none: the file asks for some


class Edit(ABC):
    """A pure map of embeddings, fitted once: z + strength (edit(z) - z).

    A subclass is a dataclass that names a `kind`, under which it is saved, the `axes` of its tensors and what it does;
    its other fields are saved as settings. One that has something of its own for images says so by `side`, and gives
    `image`. One that is the mean over other wordings of a prompt gives `wordings(prompt)` and `combined(z, each,
    strength)`, and the host encodes them. None holds a number that is not finite.

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
        axes: field -> axes of its tensor, as {"left": "d rank"}. A number is that size; "d" is the width of the
            embeddings, one in all parts; other letters have one size in a class.
        parts: field -> a class with axes of its own; the field may be None where that is its default.
        dtype: of all its tensors, or None.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Edit]]] = {}
    axes: ClassVar[Mapping[str, str]] = {}
    parts: ClassVar[Mapping[str, type]] = {}
    dtype: ClassVar[torch.dtype | None] = None
    provenance: Provenance

    @property
    def side(self) -> str:
        """What of an image-text model it acts on where nobody asks otherwise: "text", "image" or "both"."""
        return "text"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            Edit.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        self.check_tensors()

    def check_tensors(self) -> None:
        """Refuse tensors that do not fit: of a dataclass when it is made, of any edit when it is saved or loaded.

        Raises:
            InvalidInputError: axes or a dtype that do not fit, NaN or infinite values; the message names the tensor.
        """
        _check(type(self), self.tensors(), self.method)

    @property
    def dim(self) -> int:
        """Width d of the embeddings it acts on."""
        tensors = self.tensors()
        specs = ((name, spec.split()) for name, spec, _, _ in _declared(type(self)) if name in tensors)
        return next(int(tensors[name].shape[axes.index("d")]) for name, axes in specs if "d" in axes)

    @abstractmethod
    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        """Return changed embeddings (b, ..., d) in the shape, dtype and device of `z`; strength 0 gives `z` itself."""

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """Return changed image embeddings (b, d); here by the map of the texts."""
        return self(x, strength)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is saved of it: name -> tensor."""
        return _tensors_of(self)

    def settings(self) -> dict[str, Any]:
        """Return what is saved beside the tensors: plain values for JSON."""
        types = _settings_of(type(self))
        return {name: one.dump_python(getattr(self, name), mode="json") for name, one in types.items()}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Self:
        """Return the edit that `tensors()` and `settings()` came from.

        Raises:
            InvalidInputError, KeyError, TypeError, ValueError: they are not of this kind.
        """
        _check(cls, tensors, provenance.method)
        types = _settings_of(cls)
        own = {name: one.validate_python(settings[name]) for name, one in types.items() if name in settings}
        edit: Self = _built(cls, tensors, "", own, provenance)
        return edit

    def folded(self) -> Any:
        """Return the `CalibratedProjection` that weights can hold in the place of this edit (`Attachment.merge`).

        Raises:
            VldebiasError: weights cannot hold it.
        """
        raise VldebiasError(
            f"{type(self).__name__} ({self.method}) is not one linear map of an embedding and cannot become part of "
            "weights; keep it attached, or save it and attach it after loading"
        )

    def stamped(self, **fields: Any) -> Self:
        """Return the same edit with some fields of its provenance replaced."""
        return replace(self, provenance=replace(self.provenance, **fields))  # type: ignore[type-var]

    @property
    def method(self) -> str:
        """Name of the method that it was fitted with."""
        return self.provenance.method

    @property
    def lam(self) -> float | tuple[float, ...]:
        """Weight of the prompt pairs (or of what takes their place), one or one per prompt set."""
        return self.provenance.lam

    @property
    def space(self) -> str | None:
        """Which tensor of which host it belongs to, such as "open_clip.joint"."""
        return self.provenance.space

    @property
    def model_id(self) -> str | None:
        """Where the weights came from that it was fitted on."""
        return self.provenance.model_id

    @property
    def stated_words(self) -> tuple[str, ...]:
        """Words by which a prompt states the attribute."""
        return self.provenance.stated_words

    def check_strength(self, strength: float) -> None:
        """Refuse a strength outside [0, 1], and what is no number."""
        if isinstance(strength, (bool, str)) or not 0 <= strength <= 1:
            raise InvalidInputError(f"strength: expected a number in [0, 1], got {strength!r}")

    def where(self) -> str:
        """Return width, space and model, for messages."""
        return f"dim {self.dim}, space {self.space or 'unknown'}, model {self.model_id or 'unknown'}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method}, lam={self.lam}, {self.where()})"

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write tensors, config.json and a model card into `directory` (made if missing); return it.

        A save that is killed leaves what was there before, or the new edit, never a mixture.

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
        """Upload to the Hugging Face hub with a card; return the URL of the commit."""
        from vldebias.hub import push_to_hub

        return push_to_hub(self, repo_id, private=private, token=token)

    @classmethod
    def from_pretrained(
        cls, directory_or_repo: str | Path, *, revision: str | None = None, token: str | None = None
    ) -> Self:
        """Read what `save_pretrained` or `push_to_hub` wrote, from a folder or a hub repository.

        Raises:
            InvalidInputError: no such folder or repository, damaged files, or an edit of another kind.
        """
        folder = find_folder(directory_or_repo, revision, token)
        config, tensors = _read(folder)
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


# ---- the tensors that a class declares --------------------------------------------------------------------------


def _declared(kind: Any, prefix: str = "") -> Iterator[tuple[str, str, str, Any]]:
    """Name, axes, prefix and dtype of each tensor; those of a part are named "part.tensor"."""
    for name, spec in kind.axes.items():
        yield prefix + name, spec, prefix, getattr(kind, "dtype", None)
    for field, part in getattr(kind, "parts", {}).items():
        yield from _declared(part, f"{prefix}{field}.")


def _tensors_of(given: Any) -> dict[str, Tensor]:
    tensors = {name: getattr(given, name) for name in given.axes}
    for field in getattr(given, "parts", {}):
        if (part := getattr(given, field)) is not None:
            tensors |= {f"{field}.{name}": tensor for name, tensor in _tensors_of(part).items()}
    return tensors


def _built(kind: Any, tensors: Mapping[str, Tensor], prefix: str, own: dict[str, Any], provenance: Provenance) -> Any:
    for name in kind.axes:
        own[name] = tensors[prefix + name]
    for field, part in getattr(kind, "parts", {}).items():
        inner = f"{prefix}{field}."
        there = any(name.startswith(inner) for name in tensors)
        own[field] = _built(part, tensors, inner, {}, provenance) if there else None
    if any(one.name == "provenance" for one in fields(kind)):
        own["provenance"] = provenance
    return getattr(kind, "of", kind)(**own)  # `of`: what is made by something else than its constructor


def _check(kind: Any, tensors: Mapping[str, Tensor], method: str) -> None:
    """Refuse tensors that are not those that `kind` declares, and numbers that are not finite."""
    if kind.axes or kind.parts:
        _check_axes(kind, tensors)
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise InvalidInputError(
                f"{kind.__name__} ({method}): {name!r} {tuple(tensor.shape)} holds {int((~tensor.isfinite()).sum())} "
                "NaN or infinite values; expected finite ones: look for rows that are zero or not finite in what it "
                "was fitted to"
            )


def _check_axes(kind: Any, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not those that `kind` declares: missing, undeclared, of other axes or another dtype."""
    declared = list(_declared(kind))
    names = [name for name, *_ in declared]
    if strangers := sorted(tensors.keys() - set(names)):
        raise InvalidInputError(f"{', '.join(strangers)}: not among the tensors {', '.join(names)}")
    optional = {f"{one.name}." for one in fields(kind) if one.default is None}
    sizes: dict[str, int] = {}
    for name, spec, prefix, dtype in declared:
        if prefix in optional and not any(other.startswith(prefix) for other in tensors):
            continue
        axes, tensor = spec.split(), tensors.get(name)
        shape = None if tensor is None else tuple(tensor.shape)
        keys = [axis if axis == "d" or axis.isdigit() else prefix + axis for axis in axes]
        sizes |= {axis: int(axis) for axis in axes if axis.isdigit()}
        fits = shape is not None and len(shape) == len(axes)
        for key, size in zip(keys, shape or (), strict=False):
            fits = fits and sizes.setdefault(key, size) == size
        if tensor is None or not fits:
            known = ", ".join(f"{axis} = {sizes[key]}" for axis, key in zip(axes, keys, strict=True) if key in sizes)
            told = f" with {known}" if known else ""
            raise InvalidInputError(f"{name}: expected a tensor ({', '.join(axes)}){told}, got {shape}")
        if dtype not in (None, tensor.dtype):
            raise InvalidInputError(f"{name}: expected {dtype}, got {tensor.dtype}")


@cache
def _settings_of(kind: type[Edit]) -> dict[str, TypeAdapter[Any]]:
    """The fields of a dataclass that are no tensors, parts nor provenance, and how they are read and written."""
    own: list[str] = [one.name for one in fields(kind) if one.init] if is_dataclass(kind) else []
    types = get_type_hints(kind) if own else {}
    return {name: TypeAdapter(types[name]) for name in own if name not in {*kind.axes, *kind.parts, "provenance"}}


# ---- the folder ------------------------------------------------------------------------------------------------


class _Config(BaseModel):
    """What it takes to build an edit, beside its tensors. dim and rank are there for people."""

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
    """SHA-256 over a config, but for its own digest, and the tensors."""
    content = {key: value for key, value in config.items() if key != "sha256"}
    total = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    add_tensors(total, sorted(tensors.items()))
    return total.hexdigest()


def _read(folder: Path) -> tuple[_Config, dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    path, weights = folder / CONFIG, folder / WEIGHTS
    if not path.is_file():
        raise InvalidInputError(f"{path}: missing; expected a folder written by CalibratedProjection.save_pretrained")
    beside = parse_json(read_bytes(path, max_bytes=MAX_BYTES), str(path))
    try:
        with safe_open(weights, framework="pt") as file:
            header = file.metadata() or {}
            # A mapped file is not aligned as torch allocates, which would change products in the last bit.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InvalidInputError(f"{weights}: unreadable ({error}); save the projection again") from None
    plain = parse_json(header.get("config", ""), f"{weights}: config")
    if not isinstance(plain, dict) or _digest(plain, tensors) != plain.get("sha256"):
        raise InvalidInputError(
            f"{weights}: damaged: its content has not the digest that was saved with it; save or fetch it again"
        )
    try:
        config = _Config.model_validate_json(json.dumps(plain))
    except (ValidationError, RecursionError) as error:
        raise InvalidInputError(f"{weights}: not the config of a projection: {error}") from None
    if beside != plain:
        warn(
            f"{path}: describes another projection than {WEIGHTS} holds: a save was interrupted, or the file was "
            f"edited. What {WEIGHTS} says of itself counts; save the projection again"
        )
    return config, {} if tensors.keys() == _NOTHING.keys() else tensors


def find_folder(
    directory_or_repo: str | Path,
    revision: str | None = None,
    token: str | None = None,
    patterns: Sequence[str] = (WEIGHTS, CONFIG),
) -> Path:
    """Return a folder as it is, or that of a hub repository, downloaded; patterns: the files that are wanted.

    Raises:
        InvalidInputError: neither.
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

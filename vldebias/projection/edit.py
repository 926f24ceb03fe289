"""Define embedding edits, which declare their tensors so that they can be checked and saved.

A folder contains a model card and `projection.safetensors`, whose header contains the edit's config
and a digest of config and tensors. Files are replaced atomically.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_type_hints

import torch
from pydantic import BaseModel, create_model
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import REMOVED, InvalidInputError, check_arguments, check_kind
from vldebias.projection.card import model_card
from vldebias.projection.hub import WEIGHTS, find_folder, upload
from vldebias.projection.provenance import Choice, Provenance
from vldebias.utils.files import add_tensors, refuse_lfs_pointer, write_atomically
from vldebias.utils.formats import check_json_format
from vldebias.version import __version__

_LARGEST = 1e12  # largest value in an edit; products of two such factors are finite in float32
_LONGEST_CONFIG = 1_000_000  # characters; a config has about 100 for each tensor of the model


@check_arguments()
def push_to_hub(
    edits: Edit | Mapping[str, Edit], repo_id: str, *, private: bool | None = None
) -> str:
    """Upload a fitted edit, or edits by role, with a model card, and return the commit URL.

    Model weights are not uploaded.

    See also docs/how-to/merge.md.

    Args:
        edits: an edit, or a mapping from roles to edits, such as the result of
            `vldebias.fit_projections`.
        repo_id: the name of the repository ("user/name"), which is created if it does not exist.
        private: whether a new repository is private. If None, the account's default is used.

    Returns:
        The URL of the commit, a string. `load_edit(repo_id)` loads the edits.

    Raises:
        InvalidInputError: If the mapping is empty, or the hub cannot be reached or denies write
            access.

    >>> import vldebias
    >>> loaded = vldebias.load_host("miniature")
    >>> edits = vldebias.fit_projections(
    ...     loaded.host, "gender", method="cali", tokenizer=loaded.tokenizer
    ... )
    >>> push_to_hub(edits.only, "me/miniature-gender")  # doctest: +SKIP
    'https://huggingface.co/me/miniature-gender/commit/...'
    """
    edit_of_role: Mapping[str, Edit] = edits if isinstance(edits, Mapping) else {"": edits}
    if isinstance(edits, str | Path):
        raise InvalidInputError(
            f"edits: got the path {str(edits)!r}; pass vldebias.load_edit({str(edits)!r})"
        )
    if not edit_of_role:
        raise InvalidInputError(
            "edits: got an empty mapping; expected an edit, or a mapping from role to edit, such as"
            " the result of vldebias.fit_projections"
        )
    # Upload only files written by `save_pretrained`, never the contents of a user's folder.
    with tempfile.TemporaryDirectory() as folder:
        for role, edit in edit_of_role.items():
            check_kind("edits", edit, Edit, "an edit, or a mapping from role to edit")
            edit.save_pretrained(Path(folder) / role)
        roles = [role for role in edit_of_role if role]
        Path(folder, "README.md").write_text(edit.card(roles), encoding="utf-8")
        return upload(folder, repo_id, private)


class Edit(ABC):
    """Change embeddings with a fitted, pure function: z + strength (edit(z) - z).

    Subclasses are dataclasses that define a `kind`, under which they are saved, the `axes` of their
    tensors, and `__call__`. Other fields are saved as settings. A subclass with a separate map for
    images overrides `side` and `image`. A subclass that averages over several wordings of a prompt
    derives from `Rewording`.

    Attributes:
        provenance: how and on which model the edit was fitted. The properties `method`, `lam`,
            `space`, `model_id` and `stated_words` are taken from it.
        axes: the axes of each tensor, by field, such as {"left": "d rank"}. Axes with the same name
            have the same size, and "d" is the width.
        dtype: the dtype of all tensors, or None.
        side: which embeddings of an image-text model the edit changes by default: "text", "image"
            or "both".

    >>> from dataclasses import dataclass
    >>> import torch
    >>> from vldebias.projection.provenance import Provenance
    >>> @dataclass(frozen=True, eq=False, repr=False)
    ... class Shift(Edit):
    ...     kind = "shift"
    ...     axes = {"by": "d"}
    ...     by: torch.Tensor
    ...     provenance: Provenance
    ...     def __call__(self, z, strength=1.0):
    ...         return z + strength * self.by.to(z)
    >>> Shift(torch.ones(2), Provenance("shift"))(torch.zeros(2), strength=0.5)
    tensor([0.5000, 0.5000])
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Edit]]] = {}
    axes: ClassVar[Mapping[str, str]] = {}
    dtype: ClassVar[torch.dtype | None] = None
    dim: int
    provenance: Provenance
    side: str = "text"

    @property
    def method(self) -> str:
        """Return the name of the method that fitted the edit."""
        return self.provenance.method

    @property
    def lam(self) -> float | tuple[float, ...]:
        """Return the weight of the prompt pairs, or one weight per attribute."""
        return self.provenance.lam

    @property
    def space(self) -> str | None:
        """Return the name of the space in which the edit was fitted, a result of `Host.space`."""
        return self.provenance.space

    @property
    def model_id(self) -> str | None:
        """Return the name of the model on which the edit was fitted."""
        return self.provenance.model_id

    @property
    def stated_words(self) -> tuple[str, ...]:
        """Return the attribute words that exempt a prompt from editing."""
        return self.provenance.stated_words

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            Edit.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        """Check the tensors and set `dim`, both on creation and before saving.

        Raises:
            InvalidInputError: If axes, dtypes or values are wrong.
        """
        # An axis that occurs twice, like "d" in `left` and `right`, must have the same size in both
        # tensors.
        size_of_axis: dict[str, int] = {}
        for name, axes in self.axes.items():
            tensor = getattr(self, name)
            names = axes.split()
            fits = tensor.ndim == len(names) and self.dtype in (None, tensor.dtype)
            if fits:
                for axis, size in zip(names, tensor.shape, strict=True):
                    fits = fits and size_of_axis.setdefault(axis, size) == size
            if not fits:
                dtype = self.dtype or "any dtype"
                raise InvalidInputError(
                    f"{name}: expected a tensor ({', '.join(names)}) of {dtype}, sizes"
                    f" {size_of_axis}; got {tensor.dtype} {tuple(tensor.shape)}"
                )
            largest = float(tensor.abs().max()) if tensor.numel() else 0.0
            if not math.isfinite(largest):  # a maximum is NaN if any value is
                bad = int((~tensor.isfinite()).sum())
                raise InvalidInputError(
                    f"{type(self).__name__} ({self.method}): {name!r} {tuple(tensor.shape)} has"
                    f" {bad} NaN or infinite values; expected finite values. Look for rows of"
                    " zeros or NaN in the data that the edit was fitted to"
                )
            if largest > _LARGEST:
                raise InvalidInputError(
                    f"{type(self).__name__} ({self.method}): {name!r} {tuple(tensor.shape)} has"
                    f" values up to {largest:.0e}; expected at most {_LARGEST:.0e}, so that edited"
                    " embeddings are finite. Fit the edit to embeddings of a usual size"
                )
        if "d" in size_of_axis:
            # Plain assignment would fail, because subclasses may be frozen.
            object.__setattr__(self, "dim", size_of_axis["d"])

    @abstractmethod
    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        """Return changed embeddings (b, ..., d) with the shape, dtype and device of `z`.

        Args:
            z: the text embeddings.
            strength: the fraction of the change to apply, in [0, 1]. If 0, `z` itself is returned.
        """

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """Return changed image embeddings (b, d), using the same map as for text by default.

        Args:
            x: the image embeddings.
            strength: the fraction of the change to apply, in [0, 1]. If 0, `x` itself is returned.
        """
        return self(x, strength)

    def effect_in_words(self) -> str:
        """Describe the edit's effect for its model card."""
        # A fit does not show that an edit helps, so the card does not say so.
        return (
            "It is meant to reduce the bias that its prompt set describes. Whether it does depends"
            " on\nthe model and the data, so measure before and after on your own data."
        )

    def card(self, roles: Sequence[str] = ()) -> str:
        """Return the model card, as `model_card` describes."""
        return model_card(self.provenance, self.side, self.effect_in_words(), roles)

    def check_input(self, z: object, strength: float) -> None:
        """Check the width and type of embeddings, and the strength.

        Args:
            z: the embeddings.
            strength: the strength, expected to be in [0, 1].
        """
        is_number = isinstance(strength, (Real, Tensor)) and not isinstance(strength, bool)
        if not is_number or not 0 <= strength <= 1:
            raise InvalidInputError(f"strength: expected a number in [0, 1], got {strength!r}")
        if not isinstance(z, Tensor):
            received = type(z).__name__
        else:
            received = f"{z.dtype} {tuple(z.shape)}"
            # torch supports neither multiplication nor type promotion for float8.
            is_float = z.is_floating_point() and z.itemsize > 1
            if z.ndim and z.shape[-1] == self.dim and is_float:
                return
        raise InvalidInputError(
            f"expected float embeddings (..., {self.dim}) of 16 bits or more, got {received}; the"
            f" edit was fitted for {self.where()}"
        )

    def settings(self) -> dict[str, object]:
        """Return the fields other than tensors, which are also saved."""
        return {name: getattr(self, name) for name in _settings_of(type(self)).model_fields}

    def with_provenance(self, **fields: Any) -> Self:
        """Return a copy of the edit with some provenance fields replaced."""
        edit = copy(self)  # the tensors have already been checked
        object.__setattr__(edit, "provenance", replace(self.provenance, **fields))
        return edit

    def where(self) -> str:
        """Describe the edit's width, space and model for messages."""
        return (
            f"dim {self.dim}, space {self.space or 'unknown'}, model {self.model_id or 'unknown'}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method}, lam={self.lam}, {self.where()})"

    def save_pretrained(self, directory: str | Path) -> Path:
        """Save the tensors, config and model card in a folder, and return the folder.

        An interrupted save leaves either the previous content or the new edit, never a mixture.

        Args:
            directory: the folder, which is created if it does not exist.

        Raises:
            InvalidInputError: If values are NaN or infinite.
        """
        from safetensors.torch import save

        # Tensors may have been modified since the edit was created.
        self.__post_init__()
        folder = Path(directory)
        tensors = {
            name: getattr(self, name).detach().cpu().contiguous().clone() for name in self.axes
        }
        config = _Config(
            kind=self.kind, provenance=self.provenance, settings=self.settings()
        ).model_dump_json()
        header = {"format": "pt", "config": config, "sha256": _digest(config, tensors)}
        # Write the card first, because a folder counts as an edit once it contains the tensor file.
        write_atomically(folder / "README.md", self.card())
        content = save(tensors, metadata=header)
        # safetensors writes metadata in an order that varies between calls. Sorting it makes the
        # files of equal edits identical. A file consists of 8 bytes for the header length, the JSON
        # header padded with spaces, and the tensors.
        end = 8 + int.from_bytes(content[:8], "little")
        entries = json.loads(content[8:end])
        sorted_header = json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()
        sorted_header += b" " * (-len(sorted_header) % 8)
        length = len(sorted_header).to_bytes(8, "little")
        write_atomically(folder / WEIGHTS, length + sorted_header + content[end:])
        return folder

    push_to_hub = push_to_hub

    @classmethod
    def from_pretrained(cls, directory_or_repo: str | Path, *, revision: str | None = None) -> Self:
        """Load an edit saved by `save_pretrained` or `push_to_hub`.

        Args:
            directory_or_repo: a folder, or the name of a hub repository.
            revision: a branch, tag or commit of the repository. If None, the latest is loaded.

        Raises:
            InvalidInputError: If the folder or repository does not exist, files are damaged, or the
                edit is of a different kind.
        """
        weights = find_folder(directory_or_repo, revision) / WEIGHTS
        header, tensors = _read_tensors(weights)
        check_json_format(header.get("config", ""), weights)
        try:
            return cls._rebuild(header, tensors)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{weights}: {error}; save the edit or download it again"
            ) from None

    @classmethod
    def _rebuild(cls, header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Self:
        """Rebuild an edit from a file's header and tensors.

        Raises:
            TypeError, ValueError: If the content is damaged, the edit is of a different kind, or
                tensors do not match.
        """
        config_text = header.get("config", "")
        if len(config_text) > _LONGEST_CONFIG:
            raise ValueError(
                f"a config of {len(config_text):,} characters; expected at most {_LONGEST_CONFIG:,}"
            )
        # The digest also covers the config, so manual changes, for example to lam, are rejected.
        if header.get("sha256") != _digest(config_text, tensors):
            raise ValueError("the file is damaged: its content does not match its digest")
        config = _Config.model_validate_json(config_text)
        kind: Any = Edit.kinds.get(config.kind)
        if kind is None or not issubclass(kind, cls):
            expected = [name for name, known in Edit.kinds.items() if issubclass(known, cls)]
            raise ValueError(
                f"the file contains an edit of kind {config.kind!r}; expected"
                f" {' or '.join(sorted(expected))}."
                f" {REMOVED.get(config.kind, 'vldebias.load_edit loads every installed kind')}"
            )
        if tensors.keys() != kind.axes.keys():
            raise ValueError(
                f"expected the tensors {', '.join(kind.axes)}, got {', '.join(tensors)}"
            )
        settings = dict(_settings_of(kind).model_validate(config.settings))
        edit: Self = kind(**tensors, **settings, provenance=config.provenance)
        return edit


class Edits(dict[str, Edit]):
    """Store fitted edits by role; empty if the default method declined to edit.

    Attributes:
        declined: the default's decisions not to edit. Several if it decided for each prompt set.

    >>> from vldebias.projection.projection import CalibratedProjection
    >>> edits = Edits(text=CalibratedProjection.identity(256))
    >>> edits.only is edits["text"]
    True
    """

    declined: tuple[Choice, ...] = ()

    @property
    def only(self) -> Edit:
        """Return the edit for a host with one role.

        Raises:
            InvalidInputError: If there are several roles, or the default declined.
        """
        if len(self) == 1:
            return next(iter(self.values()))
        if self.declined:
            reasons = " ".join(f"{choice.attribute}: {choice.reason}" for choice in self.declined)
            raise InvalidInputError(f"the default attaches no edit. {reasons}")
        raise InvalidInputError(
            f"the host has the roles {list(self)}; choose the edit of one role, such as"
            f" edits[{next(iter(self), 'text')!r}]"
        )


def rounded(wide: Tensor, z: Tensor) -> Tensor:
    """Return embeddings (..., d) with the dtype and device of `z`, scaled down if they exceed it.

    An edit can move a value of 60,000 beyond the range of float16. Such an embedding keeps its
    direction, because infinity would become NaN in the next operation.

    Args:
        wide: edited embeddings (..., d), in float32 or wider.
        z: the embeddings before the edit.
    """
    if wide.dtype != z.dtype:
        largest = wide.abs().amax(dim=-1, keepdim=True)
        wide = wide * (torch.finfo(z.dtype).max / largest).clamp(max=1)
    return wide.to(z)


class Rewording(Edit):
    """Replace an embedding with the mean over several wordings of its prompt."""

    @abstractmethod
    def wordings(self, prompt: str) -> Sequence[str]:
        """Return the wordings of a prompt. All prompts have the same number of wordings."""

    def combined(
        self, z: Tensor, wordings: Tensor, strength: float, *, unit: bool = False
    ) -> Tensor:
        """Return embeddings moved towards the mean over their wordings.

        Args:
            z: the prompt embeddings (b, ...).
            wordings: the embeddings of the prompts' wordings (b, wordings, ...).
            strength: the fraction of the change to apply, in [0, 1].
            unit: whether the wordings' embeddings have norm 1, so that their mean is scaled to the
                norm of `z`.
        """
        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        mean = wordings.to(wide).mean(1)
        if unit:
            mean = wide.norm(dim=-1, keepdim=True) * normalize(mean, dim=-1)
        return rounded(torch.lerp(wide, mean, strength), z)


class Rowwise(Edit):
    """Replace each embedding with its norm times a function of its unit vector, in float64."""

    @abstractmethod
    def _replacement(self, unit: Tensor, image: bool) -> Tensor:
        """Return replacements for unit text or image rows (n, d)."""

    def __call__(self, z: Tensor, strength: float = 1.0, *, image: bool = False) -> Tensor:
        """Return changed embeddings (..., d) with the shape, dtype and device of `z`.

        Args:
            z: the embeddings.
            strength: the fraction of the change to apply, in [0, 1]. If 0, `z` itself is returned.
            image: whether `z` contains image embeddings.
        """
        self.check_input(z, strength)
        if strength == 0 or (self.side == "image" and not image):
            return z
        rows = z.detach().cpu().double().reshape(-1, self.dim)
        # The maps are fitted to rows of norm 1.
        length = rows.norm(dim=1, keepdim=True)
        replacement = self._replacement(rows / length.clamp(min=1e-12), image)
        return rounded(torch.lerp(rows, length * replacement, strength).reshape(z.shape), z)

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        return self(x, strength, image=True)


@cache
def _settings_of(kind: type[Edit]) -> type[BaseModel]:
    """Return a pydantic model for the fields other than tensors and provenance."""
    types = get_type_hints(kind, include_extras=True)
    settings = dict[str, Any]()
    for setting in fields(kind):  # type: ignore[arg-type]
        if setting.init and setting.name not in {*kind.axes, "provenance"}:
            # A file that lacks a setting is damaged, so no setting has a default.
            settings[setting.name] = (types[setting.name], ...)
    return create_model(kind.__name__, **settings)


class _Config(BaseModel, extra="forbid"):
    """Store everything needed to rebuild an edit, except for its tensors."""

    format_version: Literal[1] = 1
    kind: str
    provenance: Provenance
    settings: dict[str, object] = {}
    vldebias_version: str = __version__


def _read_tensors(weights: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read the header and tensors of a safetensors file.

    Raises:
        InvalidInputError: If the file is missing or cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    refuse_lfs_pointer(weights)
    try:
        with safe_open(weights, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {}
            for name in file.keys():  # noqa: SIM118 (the file is not a mapping)
                # Memory-mapped tensors are aligned differently from torch's own, and matrix
                # products would then differ in the last bit.
                tensors[name] = file.get_tensor(name).clone()
    except (OSError, SafetensorError) as error:
        raise InvalidInputError(
            f"{weights}: missing or unreadable ({error}); expected the folder of a saved edit, as"
            " `vldebias debias --out` and save_pretrained write it"
        ) from None
    return header, tensors


def _digest(config: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a config and the tensors."""
    total = hashlib.sha256(config.encode())
    add_tensors(total, sorted(tensors.items()))
    return total.hexdigest()

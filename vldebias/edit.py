"""What a method gives: an edit of embeddings, which declares its tensors and so can be checked, saved and loaded."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, get_type_hints

import torch
from pydantic import TypeAdapter
from torch import Tensor

from vldebias import __version__, gone
from vldebias.axes import check_axes, fields_from, tensors_of, width_of
from vldebias.edit_folder import WEIGHTS, Config, find_folder, read_folder, write_folder
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.provenance import Candidate as Candidate
from vldebias.provenance import Choice as Choice
from vldebias.provenance import Fingerprint as Fingerprint
from vldebias.provenance import Provenance as Provenance

Guidance = Callable[[int, Tensor, Tensor], Tensor]
"""The number of a pass of a denoiser, what it predicts for some texts (k, b, ...) and for none (b, ...) -> what is
added to what it predicts for the prompts (b, ...)."""


@dataclass(frozen=True)
class Rows:
    """What is known of the rows of a batch: the prompt of each, and the seed of the image that it is for.

    numbers: in [0, 1), what decides about a draw where no seeds are told.
    embed: other prompts -> their rows (n, d) of length 1 in the same space, never edited; for edits that ask for them.
    states: of a pipeline: other prompts -> all their states (n, tokens, d) as it reads them, never edited.
    begun: of a pipeline: pairs of prompts -> how near to the first of each it begins to draw the mean of their states,
        (n,) in [0, 1].
    guide: of a pipeline whose denoiser can be guided, where the rows are those of a whole call: takes states
        (k, tokens, d) of texts, the number of images, and what is made of the predictions (`Host.guide`).
    kept: what a prompt states itself is kept.
    """

    texts: tuple[str, ...]
    seeds: tuple[int, ...] | None = None
    embed: Callable[[Sequence[str]], Tensor] | None = None
    numbers: tuple[float, ...] | None = None
    states: Callable[[Sequence[str]], Tensor] | None = None
    begun: Callable[[Sequence[tuple[str, str]]], Tensor] | None = None
    guide: Callable[[Tensor, int, Guidance], None] | None = None
    kept: bool = True

    def at(self, places: Sequence[int]) -> Rows:
        """Some of them."""

        def some(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
            return None if values is None else tuple(values[i] for i in places)

        texts = tuple(self.texts[i] for i in places)
        return replace(self, texts=texts, seeds=some(self.seeds), numbers=some(self.numbers), guide=None)


class Edit(ABC):
    """A change of embeddings, fitted once: z + strength (edit(z) - z).

    A subclass is a dataclass that names a `kind`, under which it is saved, the `axes` of its tensors and what it does;
    its other fields are saved as settings. One that has something of its own for images says so by `side`, and gives
    `image`. None holds a number that is not finite.

    >>> @dataclass(frozen=True, eq=False, repr=False)
    ... class Shift(Edit):
    ...     kind = "shift"
    ...     axes = {"by": "d"}
    ...     by: Tensor
    ...     provenance: Provenance
    ...     def __call__(self, z, strength=1.0, rows=None):
    ...         return z + strength * self.by.to(z)

    Attributes:
        provenance: method, weights and prompts that it was fitted with.
        axes, parts, dtype: its tensors; see `vldebias.axes`.
        sampled: it draws something for each image, and so needs the seed of every row, or a number.
        reads_text: it needs the prompt of every row. guides: it leaves embeddings as they are and guides the denoiser.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Edit]]] = {}
    axes: ClassVar[Mapping[str, str]] = {}
    parts: ClassVar[Mapping[str, type]] = {}
    dtype: ClassVar[torch.dtype | None] = None
    sampled: ClassVar[bool] = False
    reads_text: ClassVar[bool] = False
    guides: ClassVar[bool] = False
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
        tensors = self.tensors()
        if self.axes or self.parts:
            check_axes(type(self), tensors)
        for name, tensor in tensors.items():
            if not bool(tensor.isfinite().all()):
                raise InvalidInputError(
                    f"{type(self).__name__} ({self.method}): {name!r} {tuple(tensor.shape)} holds "
                    f"{int((~tensor.isfinite()).sum())} NaN or infinite values; expected finite ones: look for rows "
                    "that are zero or not finite in what it was fitted to"
                )

    @property
    def dim(self) -> int:
        """Width d of the embeddings it acts on."""
        return width_of(self)

    @abstractmethod
    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """Embeddings (b, ..., d), changed, in the shape, dtype and device of `z`; strength 0 gives `z` itself."""

    def draw(self, rows: Rows) -> list[str]:
        """What is drawn for each row, of an edit that samples.

        Raises:
            InvalidInputError: rows without seeds or numbers.
        """
        raise VldebiasError(f"{type(self).__name__} ({self.method}) draws nothing")

    def leaves(self, text: str) -> bool:
        """Is a prompt that names one of `stated_words` left alone? Else the edit keeps what it states (`Rows.kept`)."""
        return True

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """Image embeddings (b, d), changed, as `__call__` changes texts; here by the same map."""
        return self(x, strength)

    def tensors(self) -> dict[str, Tensor]:
        """What is saved of it: name -> tensor on the CPU."""
        return tensors_of(self)

    def settings(self) -> dict[str, Any]:
        """What is saved beside the tensors: plain values for JSON."""
        types = _settings_of(type(self))
        return {name: one.dump_python(getattr(self, name), mode="json") for name, one in types.items()}

    @classmethod
    def fields_of(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that `settings()` came from; one that a file does not say has its default.

        Raises:
            ValueError: values of other types.
        """
        types = _settings_of(cls)
        return {name: one.validate_python(settings[name]) for name, one in types.items() if name in settings}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Self:
        """The edit that `tensors()` and `settings()` came from.

        Raises:
            InvalidInputError, KeyError, TypeError, ValueError: they are not of this kind.
        """
        check_axes(cls, tensors)
        given = fields_from(cls, tensors, provenance=provenance) | cls.fields_of(settings)
        return cls(**given | {"provenance": provenance})

    def folded(self) -> Any:
        """The `CalibratedProjection` that weights can hold in the place of this edit (`Attachment.merge`).

        Raises:
            VldebiasError: weights cannot hold it.
        """
        raise VldebiasError(
            f"{type(self).__name__} ({self.method}) is not one linear map of an embedding and cannot become part of "
            "weights; keep it attached, or save it and attach it after loading"
        )

    def stamped(self, **fields: Any) -> Self:
        """The same edit with some fields of its provenance replaced."""
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
        """Width, space and model, for messages."""
        return f"dim {self.dim}, space {self.space or 'unknown'}, model {self.model_id or 'unknown'}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method}, lam={self.lam}, {self.where()})"

    # ---- on disk and on the hub ------------------------------------------------------------------------------

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write tensors, config.json and a model card into `directory` (made if missing); returns it.

        A save that is killed leaves what was there before, or the new edit, never a mixture.

        Raises:
            InvalidInputError: NaN or infinite values.
        """
        self.check_tensors()
        own = {"kind": self.kind, "dim": self.dim, "rank": getattr(self, "rank", None), "settings": self.settings()}
        write_folder(Path(directory), Config.of(self.provenance, **own), self.tensors())
        return Path(directory)

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
        """Upload to the Hugging Face hub; returns the URL of the commit."""
        import huggingface_hub

        hub = huggingface_hub.HfApi(token=token)
        repo = hub.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
        message = f"Upload {self.method} projection (vldebias {__version__})"
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return str(hub.upload_folder(repo_id=repo, folder_path=folder, commit_message=message))

    @classmethod
    def from_pretrained(
        cls, directory_or_repo: str | Path, *, revision: str | None = None, token: str | None = None
    ) -> Self:
        """Read what `save_pretrained` or `push_to_hub` wrote, from a folder or a hub repository.

        Raises:
            InvalidInputError: no such folder or repository, damaged files, or an edit of another kind.
        """
        folder = find_folder(directory_or_repo, revision, token)
        config, tensors = read_folder(folder)
        kind = Edit.kinds.get(config.kind)
        if kind is None and config.kind in gone.KINDS:
            raise InvalidInputError(
                f"{folder}: holds an edit of kind {config.kind!r}, of method {config.method!r}, which went: "
                f"{gone.KINDS[config.kind]}"
            )
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
    """The fields of a dataclass that are no tensors, parts nor provenance, and how they are read and written."""
    own: list[str] = [one.name for one in fields(kind) if one.init] if is_dataclass(kind) else []
    types = get_type_hints(kind) if own else {}
    return {name: TypeAdapter(types[name]) for name in own if name not in {*kind.axes, *kind.parts, "provenance"}}

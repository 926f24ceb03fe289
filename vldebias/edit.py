"""What a method gives: an edit of embeddings, with its provenance, that saves and loads itself.

A folder holds `projection.safetensors` (the tensors, and a copy of the config in its header), `config.json` and a model
card. Both files are replaced one after the other, each atomically, and both carry one digest over tensors and config:
a save that was killed in between leaves either the old edit or the new one, and a flipped bit is noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from vldebias import __version__, gone
from vldebias.errors import InvalidInputError, VldebiasError, VldebiasWarning, warn
from vldebias.files import parse_json, write_atomically
from vldebias.hub import asked_once, reason

WEIGHTS, CONFIG, CARD = "projection.safetensors", "config.json", "README.md"
FORMAT = 2
_TOLERANCE = 5e-3  # rounding to bfloat16 moves a tensor by 1.6e-3 of its norm; fine-tuning by a per cent or more
_TOLERANCE_OF_ONE = 1.5e-2  # for a single tensor: rounding reaches it in none of a million


@dataclass(frozen=True)
class Fingerprint:
    """Which weights: two numbers for each tensor (`vldebias.hosts.fingerprint`).

    structure: hash of names and shapes. tensors: length, and product with a fixed vector, of every tensor; empty in
    what the first two editions saved. norms, waves: the same of up to 16 tensors, by which those are compared.
    adapters: length of all that LoRA adds to them, 0 without; it does not change which weights these are.
    """

    structure: str
    norms: tuple[float, ...]
    waves: tuple[float, ...]
    adapters: float = 0.0
    tensors: tuple[tuple[float, float], ...] = ()

    def matches(self, other: Fingerprint | None) -> bool:
        """True if the two could be the same weights; an absent fingerprint excludes nothing."""
        if other is None:
            return True
        whole = bool(self.tensors and other.tensors)
        mine, others = (
            one.tensors if whole else tuple(zip(one.norms, one.waves, strict=True)) for one in (self, other)
        )
        if self.structure != other.structure or len(mine) != len(others):
            return False
        scales = [max(a, b, 1e-3) for (a, _), (b, _) in zip(mine, others, strict=True)]
        for number in (0, 1):  # the norms, then the waves
            off = [abs(a[number] - b[number]) / s for a, b, s in zip(mine, others, scales, strict=True)]
            if math.hypot(*off) > _TOLERANCE * math.sqrt(len(off)) or (whole and max(off) > _TOLERANCE_OF_ONE):
                return False
        return True

    def same_adapters(self, other: Fingerprint | None) -> bool:
        """True if both were read with the same adapters, or without."""
        return other is None or math.isclose(self.adapters, other.adapters, rel_tol=_TOLERANCE)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {"structure": self.structure, "norms": list(self.norms), "waves": list(self.waves)}
        adapters = {"adapters": self.adapters} if self.adapters else {}
        return plain | adapters | ({"tensors": [list(one) for one in self.tensors]} if self.tensors else {})

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Fingerprint | None:
        """From `to_dict`; None stays None."""
        if given is None:
            return None
        tensors = tuple((norm, wave) for norm, wave in given.get("tensors", ()))
        norms, waves = tuple(given["norms"]), tuple(given["waves"])
        return cls(given["structure"], norms, waves, given.get("adapters", 0.0), tensors)


@dataclass(frozen=True)
class Candidate:
    """One method at one lam, as "auto" judged it.

    gaps: evidence ("texts", "images") -> predicted gap, as a share of what it is without an edit. gap: their mean.
    change: (value, low, high), `gap` - 1 with its 95 % interval, of the images where there are any.
    loss: mean 1 - cosine of a neutral text with its edit; signal_kept: of the distance between the classes.
    refused: why it was not eligible, or "".
    """

    method: str
    lam: float | tuple[float, ...]
    gaps: Mapping[str, float]
    gap: float
    change: tuple[float, float, float]
    loss: float
    signal_kept: float | None
    refused: str


@dataclass(frozen=True)
class Choice:
    """What "auto" chose for one role and why: `method` and `lam`, "none" where nothing is expected to help.

    evidence: kind -> what it rests on (rows, texts). settings: of the bound and the resamples.
    """

    prompts: str
    method: str
    lam: float | tuple[float, ...]
    reason: str
    candidates: tuple[Candidate, ...]
    evidence: Mapping[str, Mapping[str, int]]
    settings: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Choice:
        """From `to_dict`."""

        def lam(value: Any) -> float | tuple[float, ...]:
            return tuple(value) if isinstance(value, list) else value

        candidates = [c | {"lam": lam(c["lam"]), "change": tuple(c["change"])} for c in given["candidates"]]
        changed = {"lam": lam(given["lam"]), "candidates": tuple(Candidate(**c) for c in candidates)}
        return cls(**{**given, **changed})

    def __str__(self) -> str:
        """The decision and the table it rests on, best candidate first."""
        lines = [f"{self.prompts}: auto: {self.method}. {self.reason}"]
        if self.candidates:
            lines.append(f"{'method':<20}{'lam':>10}{'gap':>8}{'change to none':>26}{'loss':>8}  ")
        for c in sorted(self.candidates, key=lambda c: (bool(c.refused), c.gap)):
            change = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*c.change)
            lam = " ".join(f"{x:g}" for x in (c.lam if isinstance(c.lam, tuple) else (c.lam,)))
            lines.append(f"{c.method:<20}{lam:>10}{c.gap:>8.3f}{change:>26}{c.loss:>8.3f}  {c.refused}".rstrip())
        return "\n".join(lines)


@dataclass(frozen=True)
class Provenance:
    """Where an edit comes from and where it belongs; attaching compares what it names with the host.

    Attributes:
        method: name of the method, such as "cali+equalise". lam: its weight, or one per prompt set.
        space: which tensor of which host. model_id: where the weights came from.
        fingerprint, image_fingerprint: of the text towers, and of the image tower beside them.
        prompts, prompts_hash: names and hashes of the prompt sets, joined by "+". stated_words: their words.
        uses_images: fitted on images as well, so that the image tower counts.
        labels: where the attribute of those images comes from, for a method that needs labels: "given", or
            "zero-shot", the model's own guess; None for a method that needs none.
        max_loss: the bound it keeps (`vldebias.Bound`), or None.
        choice: what "auto" chose and why, or None.
    """

    method: str
    lam: float | tuple[float, ...] = 0.0
    space: str | None = None
    model_id: str | None = None
    fingerprint: Fingerprint | None = None
    image_fingerprint: Fingerprint | None = None
    prompts: str | None = None
    prompts_hash: str | None = None
    stated_words: tuple[str, ...] = ()
    uses_images: bool = False
    labels: str | None = None
    max_loss: float | None = None
    choice: Choice | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Rows:
    """What is known of the rows of a batch: the prompt of each, and the seed of the image that it is for.

    numbers: in [0, 1), what decides about a draw where no seeds are told.
    embed: other prompts -> their rows (n, d) of length 1 in the same space, never edited; for edits that ask for them.
    states: of a pipeline: other prompts -> all their states (n, tokens, d) as it reads them, never edited.
    begun: of a pipeline: pairs of prompts -> how near to the first of each it begins to draw the mean of their states,
        (n,) in [0, 1].
    kept: what a prompt states itself is kept.
    """

    texts: tuple[str, ...]
    seeds: tuple[int, ...] | None = None
    embed: Callable[[Sequence[str]], Tensor] | None = None
    numbers: tuple[float, ...] | None = None
    states: Callable[[Sequence[str]], Tensor] | None = None
    begun: Callable[[Sequence[tuple[str, str]]], Tensor] | None = None
    kept: bool = True

    def at(self, places: Sequence[int]) -> Rows:
        """Some of them."""

        def some(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
            return None if values is None else tuple(values[i] for i in places)

        texts = tuple(self.texts[i] for i in places)
        return replace(self, texts=texts, seeds=some(self.seeds), numbers=some(self.numbers))


class Edit(ABC):
    """A change of embeddings, fitted once: z + strength (edit(z) - z).

    Subclasses are dataclasses that name a `kind`, under which they are saved, and give `dim`, `tensors`, `settings` and
    `build`. One that has something of its own for images says so by `side`, and gives `image`. None holds a number that
    is not finite: it would turn embeddings into NaN, and similarities with them into any order.

    Attributes:
        provenance: method, weights and prompts that it was fitted with.
        sampled: it draws something for each image, and so needs the seed of every row, or a number.
        reads_text: it needs the prompt of every row.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Edit]]] = {}
    sampled: ClassVar[bool] = False
    reads_text: ClassVar[bool] = False
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
        self.check_finite()

    def check_finite(self) -> None:
        """Refuse values that are not finite: of a dataclass when it is made, of any edit when it is saved or loaded.

        Raises:
            InvalidInputError: NaN or infinite values; the message names the tensor.
        """
        for name, tensor in self.tensors().items():
            if not bool(tensor.isfinite().all()):
                raise InvalidInputError(
                    f"{type(self).__name__} ({self.method}): {name!r} {tuple(tensor.shape)} holds "
                    f"{int((~tensor.isfinite()).sum())} NaN or infinite values; expected finite ones: look for rows "
                    "that are zero or not finite in what it was fitted to"
                )

    @property
    @abstractmethod
    def dim(self) -> int:
        """Width d of the embeddings it acts on."""

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

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What is saved of it: name -> tensor on the CPU."""

    def settings(self) -> dict[str, Any]:
        """What is saved beside the tensors: plain values for JSON."""
        return {}

    @classmethod
    @abstractmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Self:
        """The edit that `tensors()` and `settings()` came from.

        Raises:
            InvalidInputError, KeyError, TypeError, ValueError: they are not of this kind.
        """

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
        from safetensors.torch import save

        self.check_finite()
        folder = Path(directory)
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.tensors().items()}
        config = _Config.of(self).model_dump(mode="json")
        config["sha256"] = _digest(config, tensors)
        header = {"format": "pt", "config": json.dumps(config, ensure_ascii=False)}
        write_atomically(folder / CARD, _CARD)
        write_atomically(folder / WEIGHTS, save(tensors, metadata=header))
        write_atomically(folder / CONFIG, json.dumps(config, ensure_ascii=False, indent=2) + "\n")
        return folder

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
        folder = Path(directory_or_repo)
        if not _is_folder(folder):
            name = str(directory_or_repo)
            if folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
                raise InvalidInputError(f"{name[:200]}: no such folder; expected one written by save_pretrained")
            folder = _download(name, revision, token)
        config, tensors = _read(folder)
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
            edit = kind.build(tensors, config.settings, config.provenance())
            edit.check_finite()
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"{folder / WEIGHTS}: {error}; fit and save the projection again") from None
        return edit


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a text that is too long for a name
        return False


Lam = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _FingerprintConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    structure: str
    norms: list[float]
    waves: list[float]
    adapters: float = 0.0
    tensors: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = []


class _Config(BaseModel):
    """config.json. Format 1, of the first edition, has no kind, no settings and no digest."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())  # model_id is a field of ours

    format: int = Field(ge=1, le=FORMAT)
    kind: str = "projection"
    dim: int = Field(gt=0)
    rank: int | None = Field(default=None, ge=0)
    lam: Lam | list[Lam]
    method: str = Field(min_length=1, max_length=200)
    space: str | None
    model_id: str | None
    fingerprint: _FingerprintConfig | None
    image_fingerprint: _FingerprintConfig | None = None
    prompts: str | None
    prompts_hash: str | None
    stated_words: list[str]
    uses_images: bool = False
    labels: str | None = None
    max_loss: float | None = Field(default=None, gt=0, lt=1)
    choice: dict[str, Any] | None = None
    settings: dict[str, Any] = {}
    vldebias_version: str
    sha256: str | None = None

    @model_validator(mode="after")
    def _by_format(self) -> _Config:
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
    def of(cls, edit: Edit) -> _Config:
        fields = asdict(edit.provenance)
        for name in ("fingerprint", "image_fingerprint"):
            one = getattr(edit.provenance, name)
            fields[name] = None if one is None else one.to_dict()
        fields["lam"] = list(edit.lam) if isinstance(edit.lam, tuple) else float(edit.lam)
        fields["stated_words"] = list(edit.stated_words)
        fields["choice"] = None if edit.provenance.choice is None else edit.provenance.choice.to_dict()
        return cls.model_validate(
            {
                "format": FORMAT,
                "kind": edit.kind,
                "dim": edit.dim,
                "rank": getattr(edit, "rank", None),
                **fields,
                "settings": edit.settings(),
                "vldebias_version": __version__,
                "sha256": "",
            }
        )

    def provenance(self) -> Provenance:
        text, image = self.fingerprint, self.image_fingerprint
        return Provenance(
            method=self.method,
            lam=tuple(self.lam) if isinstance(self.lam, list) else self.lam,
            space=self.space,
            model_id=self.model_id,
            fingerprint=None if text is None else Fingerprint.of(text.model_dump()),
            image_fingerprint=None if image is None else Fingerprint.of(image.model_dump()),
            prompts=self.prompts,
            prompts_hash=self.prompts_hash,
            stated_words=tuple(self.stated_words),
            uses_images=self.uses_images,
            labels=self.labels,
            max_loss=self.max_loss,
            choice=None if self.choice is None else Choice.of(self.choice),
        )


def _read(folder: Path) -> tuple[_Config, dict[str, Tensor]]:
    """Config and tensors that belong together: those of config.json, else those of a save that was interrupted."""
    from safetensors import SafetensorError, safe_open

    path, weights = folder / CONFIG, folder / WEIGHTS
    if not path.is_file():
        raise InvalidInputError(f"{path}: missing; expected a folder written by CalibratedProjection.save_pretrained")
    try:
        raw = parse_json(path.read_bytes(), "json")
        config = _Config.model_validate(raw)
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
        raw = parse_json(header["config"], "header")
        inner = _Config.model_validate(raw)
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
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _download(repo: str, revision: str | None, token: str | None) -> Path:
    import huggingface_hub

    try:
        with asked_once():
            found = huggingface_hub.snapshot_download(
                repo, revision=revision, token=token, allow_patterns=[WEIGHTS, CONFIG]
            )
        return Path(found)
    except (OSError, ValueError) as error:  # every error of the hub is one of the two
        raise InvalidInputError(
            f"{repo[:200]}: neither a folder nor a repository that can be read ({reason(error)[:300]}); "
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

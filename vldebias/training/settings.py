"""Everything that a run of training can be given: one flat list, the same in a YAML file and as flags."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from vldebias.errors import InvalidInputError, did_you_mean, fail
from vldebias.files import read_yaml

Precision = Literal["no", "bf16", "fp16"]
Partner = Literal["any", "other"]
LossName = Literal["info_nce", "rince", "debiased", "hard_negative", "sogclr", "nuclr", "sigmoid", "spread", "gce"]


WORLDS = ("birds", "portraits")
"""Data that the miniature renders."""

TRACKERS = ("tensorboard", "trackio", "wandb")
"""Names of `track`."""

GONE = {
    "feature_map": "the pictures by t-SNE and UMAP are gone; draw the features of `training.monitor.Monitor`",
    "state": "a checkpoint is always one file, which any number of processes reads; leave it out",
}
"""Settings of earlier versions, and what to do without them."""

# Settings that change no weight.
_BESIDE = (
    "workers",
    "save_every",
    "track",
    "project",
    "eval_every",
    "sharpness_within",
    "score_pairs",
    "val_data",
    "val_split",
    "val_items",
    "allow_outside",
    "epochs",
    "compile",
    "keep_every",
    "keep_best",
    "group",
    "allow_missing",
    "wise_ft",
)


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _gone(cls, given: Any) -> Any:
        for name in GONE if isinstance(given, dict) else ():
            if given.get(name) is not None:
                raise ValueError(f"{name}: {GONE[name]}")
        return given


class Named(_Settings):
    """Something of a library by its name, with options of its own: SGD, or {name: SGD, momentum: 0.9}."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    name: str

    @model_validator(mode="before")
    @classmethod
    def _of_a_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @model_serializer(mode="wrap")
    def _as_a_name(self, whole: SerializerFunctionWrapHandler) -> Any:
        return whole(self) if self.options else self.name

    @property
    def options(self) -> dict[str, Any]:
        """What is given beside the name."""
        return dict(self.model_extra or {})


class LayerSettings(_Settings):
    """Which of the blocks of each tower learn, and how much slower the deeper ones do."""

    image: int | None = Field(None, ge=0, description="Blocks of the image tower that learn, the last ones.")
    text: int | None = Field(None, ge=0, description="Blocks of the text tower that learn, the last ones.")
    decay: float = Field(1.0, gt=0, le=1, description="Rate of a block, times that of the next one.")


class QueueSettings(_Settings):
    """Negatives of earlier batches, by a slowly moving copy of the model."""

    rows: int = Field(ge=1, description="Pairs that the queue holds.")
    momentum: float = Field(0.99, ge=0, lt=1, description="Memory of the copy; 0 is the model itself.")


class ModelSettings(_Settings):
    """Which model, and which part of it learns."""

    model: str = Field(
        "miniature", description="open_clip architecture (with pretrained), transformers id or folder, or 'miniature'."
    )
    pretrained: str | None = Field(None, description="open_clip tag or checkpoint file.")
    tune: Literal["all", "text", "image", "heads", "lora"] = Field(
        "all", description="What learns: all, text or image (one tower), heads (the projections), lora (through peft)."
    )
    lora_rank: int = Field(8, ge=1, description="Rank of the LoRA adapters.")
    lora_alpha: float = Field(16.0, gt=0, description="Scale of the LoRA adapters; alpha / rank multiplies them.")
    layers: LayerSettings | None = Field(
        None,
        description="tune all, image, text: {image: 2, text: 0, decay: 0.8}: only the last blocks of a tower (and what "
        "follows them) learn, each block at decay times the rate of the next. Default: all, alike.",
    )
    checkpointing: bool = Field(False, description="Compute activations twice to save memory.")


class DataSettings(_Settings):
    """Pairs of an image and a caption, how they are read, augmented and, for experiments, corrupted."""

    data: str = Field(
        "birds",
        description="Folder, parquet file, tar, table of paths (csv, tsv, jsonl), id of the Hugging Face hub, "
        "or a world of the miniature: birds, portraits.",
    )
    split: str = Field("train", description="Split to read.")
    image: str | None = Field(None, description="Column of the images. Default: found by its type.")
    caption: str | None = Field(
        None,
        description="Column of the captions, or of lists of them: one is learned in each epoch, in turn. Default: "
        "caption, text, txt, captions or sentences.",
    )
    image_root: str | None = Field(
        None, description="Folder that the paths of a table start from. Default: that of the table."
    )
    allow_outside: bool = Field(
        False, description="Also take paths of a table (csv, tsv, jsonl) that are absolute or lead out of its folder."
    )
    label: str | None = Field(None, description="Column of classes, for zero-shot scores and class noise.")
    caption_template: str | None = Field(
        None, description="Make captions from the label instead: 'a photo of a {}.' (class noise needs it)."
    )
    streaming: bool = Field(False, description="Read rows as they come, without a copy on the disk.")
    shuffle_buffer: int = Field(1000, ge=1, description="Rows that a stream is shuffled within.")
    items: int = Field(4000, ge=1, description="Images of a world of the miniature.")
    views: Literal["captions", "two"] = Field(
        "captions", description="Contrast images with captions, or two augmented views of each image."
    )
    crop_scale: float = Field(0.9, gt=0, le=1, description="Smallest share of an image that a random crop keeps.")
    flip: bool = Field(False, description="Mirror images at random.")
    jitter: float = Field(0.0, ge=0, le=1, description="Strength of random changes of colour.")
    grayscale: float = Field(0.0, ge=0, le=1, description="Share of images that lose their colour.")
    caption_noise: float = Field(0.0, ge=0, le=1, description="eta: share of captions replaced by another row's.")
    class_noise: float = Field(0.0, ge=0, le=1, description="eta: classes flipped to a related one with half of it.")
    crop_noise: float = Field(0.0, ge=0, le=1, description="eta: share of images cropped to a fifth.")
    allow_missing: bool = Field(
        False, description="Go on where more than a tenth of the images are not there, without them."
    )
    on_error: Literal["skip", "raise"] = Field(
        "skip", description="An image that cannot be read: take another row and count, or stop."
    )
    val_data: str | None = Field(None, description="Where held-out pairs are. Default: the same as data.")
    val_split: str | None = Field(
        None,
        description="Split that is scored during training, such as val. Default: none, but val of a world of the "
        "miniature and train of val_data.",
    )
    group: str | None = Field(
        None,
        description="Column of an attribute that should not decide: the lowest accuracy of a label and group is scored "
        "too, and with debias the skew.",
    )
    debias: str | None = Field(
        None, description="Prompt set by name or path: after training its projection is fitted for the model and saved."
    )
    debias_during: bool = Field(
        False,
        description="Train with the projection of debias in the text path, fitted anew at the start of each epoch.",
    )
    balance: str | None = Field(
        None,
        description="Column, or several with commas, whose values every batch has alike often; 'texts' is of "
        "group_texts. Images of rare values come more often in an epoch, others not in each.",
    )
    group_texts: str | None = Field(
        None,
        description="Prompt set whose values stand for groups where no column does: each image is of the value whose "
        "texts the model, as it is loaded, finds nearest. balance and group_dro call it 'texts'.",
    )
    score_pairs: bool = Field(True, description="After training score every pair, which reads all images once more.")
    val_items: int = Field(2000, ge=1, description="Held-out pairs that are scored.")

    @property
    def reads_captions(self) -> bool:
        """The data must have captions of its own."""
        return self.views == "captions" and self.caption_template is None

    @property
    def has_held_out(self) -> bool:
        """Some data is named to be scored; the worlds of the miniature always have more."""
        return self.val_data is not None or self.val_split is not None or self.data in WORLDS


class LossSettings(_Settings):
    """The objective. Settings that the chosen loss does not read are refused where they are given."""

    loss: LossName = Field("rince", description="Which objective; nuclr is sogclr with learned popularity.")
    temperature: float | None = Field(None, gt=0, description="t. Default: the model's own; with rince at least 0.1.")
    learn_temperature: bool = Field(False, description="t is learned, as in CLIP (not with rince, sogclr, nuclr).")
    q: float = Field(0.4, gt=0, le=1, description="rince: from 0 (InfoNCE) to 1 (symmetric, most robust).")
    q_start: float | None = Field(None, gt=0, le=1, description="rince: warm q up from here to q. Default: no warm-up.")
    lam: float = Field(0.01, gt=0, le=1, description="rince: weight of the denominator.")
    tau_plus: float = Field(0.1, ge=0, lt=1, description="debiased, hard_negative: share of false negatives.")
    beta: float = Field(1.0, ge=0, description="hard_negative: concentration on hard negatives.")
    beta_changes: int = Field(1, ge=1, description="hard_negative: lower beta in so many stairs.")
    form: Literal["nce", "jsd"] = Field("nce", description="hard_negative: InfoNCE or Jensen-Shannon form.")
    spread_alpha: float = Field(0.5, ge=0, le=1, description="spread: weight of attraction against repulsion.")
    gce_q: float = Field(
        0.7, ge=0, le=1, description="gce: from 0 (cross-entropy over distinct captions) to 1 (mean absolute error)."
    )
    smoothing: float = Field(0.0, ge=0, lt=1, description="gce: share of the target that all captions have alike.")
    gamma: float = Field(0.8, gt=0, le=1, description="sogclr, nuclr: weight of the newest estimate.")
    popularity_lr: float = Field(0.1, gt=0, description="nuclr: step size of the popularity, in units of t.")
    popularity_start: float = Field(
        0.2, ge=0, lt=1, description="nuclr: share of the steps during which the popularity waits."
    )
    zeta_init: float = Field(0.0, description="nuclr: first value of zeta.")
    positives: int = Field(
        1,
        ge=1,
        description="debiased, hard_negative: samples M of each pair's own class; above 1 further views, and "
        "for the images other captions where they have several.",
    )
    queue: QueueSettings | None = Field(
        None,
        description="info_nce, rince, debiased, hard_negative: {rows: 4096, momentum: 0.99}: further negatives, of "
        "earlier batches, by a slowly moving copy of the model (MoCo). Default: none.",
    )
    distill: float = Field(
        0.0, ge=0, description="Weight of the divergence from the similarities of the model as it was loaded."
    )
    keep_pairs: float = Field(
        0.0,
        ge=0,
        description="Weight of the squared change of the differences of debias's prompt pairs from those of the model "
        "as it was loaded, so that a projection goes on removing what it removed.",
    )
    group_dro: str | None = Field(
        None,
        description="Group DRO: weigh groups by how badly they do. Column, or several with commas, whose values are "
        "the groups; 'texts' is of group_texts.",
    )
    group_dro_step: float = Field(0.01, gt=0, description="Step of the weights of the groups, per unit of the loss.")
    chunk_size: int | None = Field(None, ge=1, description="Rows of the similarity matrix held at once. Default: all.")

    @model_validator(mode="after")
    def _temperature_can_be_learned(self) -> LossSettings:
        if self.learn_temperature and self.loss in ("rince", "sogclr", "nuclr"):
            why = (
                "its value falls without bound as t falls, whatever the features are"
                if self.loss == "rince"
                else "its running averages are in units of t"
            )
            raise ValueError(f"learn_temperature cannot go with {self.loss}: {why}; set temperature instead")
        return self


class LoopSettings(_Settings):
    """How to step."""

    epochs: float | None = Field(None, gt=0, description="Passes over the data; or give steps.")
    steps: int | None = Field(None, ge=1, description="Updates of the weights.")
    batch_size: int = Field(256, ge=2, description="Pairs per process and micro-batch; the negatives come from these.")
    accumulation: int = Field(1, ge=1, description="Micro-batches whose gradients make one update.")
    lr: float = Field(1e-5, gt=0, description="Peak learning rate.")
    lr_end: float = Field(0.0, ge=0, description="Learning rate at the end.")
    schedule: Named = Field(
        Named(name="cosine"),
        description="How the learning rate goes from its peak to lr_end: cosine, linear, constant; or one of torch "
        "or transformers, such as OneCycleLR or {name: polynomial, power: 2}. Default: cosine.",
    )
    optimizer: Named = Field(
        Named(name="AdamW"),
        description="One of torch.optim, such as SGD or {name: SGD, momentum: 0.9}. Default: AdamW.",
    )
    warmup: float = Field(0.1, ge=0, lt=1, description="Share of the steps with rising learning rate.")
    weight_decay: float = Field(0.1, ge=0, description="Decay of weight matrices.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam and its kin: memory of the gradient.")
    beta2: float = Field(0.98, ge=0, lt=1, description="Adam and its kin: memory of its square.")
    clip_norm: float | None = Field(1.0, gt=0, description="Largest norm of the gradient; none in a file switches off.")
    negatives: Literal["micro", "step"] = Field(
        "micro",
        description="With accumulation: the negatives of a pair are those of its micro-batch, or of the whole step, in "
        "the memory of one micro-batch, for one forward pass more (GradCache).",
    )
    precision: Precision | None = Field(
        None, description="Autocast. Default: what `accelerate launch --mixed_precision` says, else no."
    )
    compile: bool = Field(False, description="Compile both towers with torch.compile.")
    ema: float | None = Field(None, gt=0, lt=1, description="Average the weights with this memory (such as 0.999).")
    wise_ft: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Mix at the end: this share of the trained weights, the rest of those that it began with (0.5).",
    )
    sharpness: Literal["none", "sam", "asam"] = Field("none", description="Sharpness-aware updates; twice the cost.")
    rho: float | None = Field(None, gt=0, description="Radius of sam (default 0.05) or asam (default 2).")
    fourier: float = Field(
        0.0, ge=0, le=1, description="alpha: mix amplitudes with the most similar image by up to this weight."
    )
    partner: Partner = Field(
        "any", description="fourier: the most similar view, or that of another image (with two views mostly its own)."
    )
    sharpness_within: float | None = Field(
        None,
        gt=0,
        description="Also score how much the held-out loss grows one ascent step of this length (such as 0.05) away, "
        "which takes the memory of a training step. Default: off.",
    )
    eval_every: int | None = Field(
        None,
        ge=1,
        description="Steps between scores. Default: at most ten times in a run, and so that scoring takes no more than "
        "about a fifth of the time.",
    )
    save_every: float = Field(5.0, ge=0, description="Minutes between checkpoints.")
    keep_every: int | None = Field(
        None,
        ge=1,
        description="Steps between models that stay, in models/: to score pairs with an early one, or to use now.",
    )
    keep_best: bool = Field(
        False, description="Also keep the model of the best first score on held-out data, in models/best."
    )
    workers: int = Field(
        default_factory=lambda: 2 if "fork" in multiprocessing.get_all_start_methods() else 0,
        ge=0,
        description="Processes that read images. Default: 2; 0 where the system cannot fork any.",
    )
    seed: int = Field(0, ge=0, description="All randomness follows from it.")
    track: str | None = Field(
        None, description="Also log to tensorboard, trackio or wandb, or to several with commas, through accelerate."
    )
    project: str = Field("vldebias", description="Name of the project in the tracker.")

    @property
    def trackers(self) -> tuple[str, ...]:
        """The names in `track`."""
        return tuple(filter(None, map(str.strip, (self.track or "").split(","))))

    @property
    def mixed_precision(self) -> str:
        """The precision that was chosen here, or where the run was launched.

        Raises:
            InvalidInputError: launched in one that we do not train in.
        """
        name = self.precision or os.environ.get("ACCELERATE_MIXED_PRECISION") or "no"
        if name not in (known := get_args(Precision)):
            raise InvalidInputError(f"--mixed_precision {name}: expected {', '.join(known)}, or set precision")
        return name

    @model_validator(mode="after")
    def _one_length(self) -> LoopSettings:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("expected either epochs or steps")
        return self

    @model_validator(mode="after")
    def _known_trackers(self) -> LoopSettings:
        strange = [name for name in self.trackers if name not in TRACKERS]
        if strange:
            raise ValueError(f"track: expected {', '.join(TRACKERS)}, got {strange[0]!r}")
        return self


class TrainSettings(ModelSettings, DataSettings, LossSettings, LoopSettings):
    """All of them. See the field descriptions, which `vldebias train --help` shows."""

    @model_validator(mode="after")
    def _what_is_given_is_read(self) -> TrainSettings:
        """A setting that does nothing would be taken for one that did something."""
        world = self.data in WORLDS
        unread = {
            "lora_rank": (self.tune != "lora", "tune: lora"),
            "lora_alpha": (self.tune != "lora", "tune: lora"),
            "layers": (self.tune not in ("all", "image", "text"), "tune: all, image or text"),
            "rho": (self.sharpness == "none", "sharpness: sam or asam"),
            "project": (self.track is None, "track"),
            "partner": (not self.fourier or self.views != "two", "fourier and views: two"),
            "pretrained": (self.model == "miniature", "an open_clip architecture as model"),
            "items": (not world, f"data: {' or '.join(WORLDS)}"),
            "image": (world, "data of your own"),
            "caption": (world or not self.reads_captions, "captions of the data"),
            "streaming": (world, "data of your own"),
            "shuffle_buffer": (not self.streaming, "streaming"),
            "caption_noise": (self.views == "two", "views: captions"),
            "balance": (self.streaming, "data that are not streamed"),
            "group_dro": (self.streaming, "data that are not streamed"),
            "group_dro_step": (self.group_dro is None, "group_dro"),
            "wise_ft": (self.tune == "lora", "tune: all, text, image or heads"),
            "group_texts": ("texts" not in self.group_columns, "balance or group_dro with 'texts'"),
            "debias_during": (self.debias is None or self.views == "two", "debias and views: captions"),
            "keep_pairs": (self.debias is None or self.negatives == "step", "debias and negatives: micro"),
            "group": (not self.has_held_out, "held-out data (val_split, val_data)"),
            "sharpness_within": (not self.has_held_out, "held-out data (val_split, val_data)"),
            "keep_best": (not self.has_held_out, "held-out data (val_split, val_data)"),
        }
        for name, (nothing, needs) in unread.items():
            is_given = getattr(self, name) not in (None, False, type(self).model_fields[name].default)
            if is_given and nothing:
                raise ValueError(f"{name} {getattr(self, name)!r} goes with {needs}, and here nothing would read it")
        return self

    @model_validator(mode="after")
    def _held_out_is_not_learned(self) -> TrainSettings:
        if self.val_split is not None and self.val_split == self.split and self.val_data in (None, self.data):
            raise ValueError(
                f"val_split {self.val_split!r} is the split that is learned from, so its scores say nothing of others; "
                "name another split, or other data (val_data)"
            )
        return self

    @model_validator(mode="after")
    def _one_kind_of_groups(self) -> TrainSettings:
        if self.balance is not None and self.group_dro is not None and self.balance != self.group_dro:
            raise ValueError(f"balance {self.balance!r} and group_dro {self.group_dro!r}: expected the same columns")
        if "texts" in self.group_columns and self.group_texts is None:
            raise ValueError("balance or group_dro 'texts' needs group_texts, the prompt set that says them")
        return self

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns whose values, together, are the groups of balance and group_dro."""
        return tuple(filter(None, map(str.strip, (self.balance or self.group_dro or "").split(","))))

    def as_yaml(self) -> str:
        """A file that `load_settings` reads as these settings, with only what was given or follows from it."""
        return yaml.safe_dump(self.model_dump(exclude_unset=True), sort_keys=False)

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: every setting but how fast it goes and who watches."""
        beside = {*_BESIDE, *(() if self.debias_during or self.keep_pairs else ("debias",))}
        return {**self.model_dump(exclude=beside), "precision": self.mixed_precision}


GROUPS: dict[str, type[_Settings]] = {
    "Model": ModelSettings,
    "Data": DataSettings,
    "Loss": LossSettings,
    "Steps": LoopSettings,
}
"""The parts of TrainSettings by what they are about."""


PRESETS: dict[str, dict[str, Any]] = {
    "heads": {"tune": "heads", "loss": "info_nce", "lr": 1e-4, "epochs": 2},
    "lora": {"tune": "lora", "loss": "info_nce", "lr": 1e-4, "epochs": 1},
    "scratch": {
        "tune": "all",
        "loss": "info_nce",
        "temperature": 0.1,
        "learn_temperature": True,
        "lr": 1e-3,
        "weight_decay": 0.05,
        "epochs": 30,
    },
}
"""Settings to begin with, by the name of a preset; what a file or a flag says comes first."""


def load_settings(path: Path | None = None, **given: Any) -> TrainSettings:
    """The settings of a YAML file, with `given` ones in their place; `vldebias train` calls it with its flags.

    "preset", in the file or given, names one of `PRESETS`, over which both come. Where another loss is named than the
    preset's, what only the preset's reads is left out.

    Raises:
        InvalidInputError: no such file, no mapping in it, an unknown name or a value outside its range.
    """
    values: dict[str, Any] = {**(read_yaml(path) if path is not None else {}), **given}
    name = values.pop("preset", None)
    if name is not None:
        if name not in PRESETS:
            fail("preset", repr(name), ", ".join(PRESETS), did_you_mean(name, PRESETS))
        preset = dict(PRESETS[name])
        if values.get("loss", preset["loss"]) != preset["loss"]:
            preset.pop("learn_temperature", None)
        if values.get("steps") is not None:
            preset.pop("epochs")
        values = preset | values
    if "epochs" in given and "steps" not in given:
        values.pop("steps", None)
    elif "steps" in given and "epochs" not in given:
        values.pop("epochs", None)
    if values.get("epochs") is None and values.get("steps") is None:
        values["epochs"] = 10
    try:
        return TrainSettings.model_validate(values)
    except ValidationError as error:
        problems = []
        for part in error.errors():
            name = ".".join(str(place) for place in part["loc"])
            message = f"{part['msg'].removeprefix('Value error, ')}, got {part['input']!r}"
            if part["type"] == "extra_forbidden":
                known = ", ".join(TrainSettings.model_fields)
                message = f"unknown setting; there are {known}; {did_you_mean(name, TrainSettings.model_fields)}"
            elif not name:
                message = part["msg"].removeprefix("Value error, ")
            problems.append(f"{name}: {message}" if name else message)
        source = "training settings" if path is None else str(path)
        raise InvalidInputError(f"{source}: {'; '.join(problems)}") from None

"""Define all settings of a training run: one flat list, the same in a YAML file and as
`--set name=value`."""

from __future__ import annotations

import math
import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from vldebias.data.catalog import BUILT_IN as DATA_SETS
from vldebias.data.catalog import trained_data
from vldebias.errors import InvalidInputError
from vldebias.losses.catalog import BUILT_IN, LOSSES, Loss
from vldebias.miniature.words import WORLDS
from vldebias.utils.files import explain, read_yaml

# Readers are closures, which only a forked process inherits (not on Windows).
_WORKERS = 2 if "fork" in multiprocessing.get_all_start_methods() else 0
Scope = Literal["all", "text", "image", "heads", "lora"]
# Data sets that are opened by name, below `data_root` or in a folder of their name.
_NAMED_DATA = ", ".join(data_set.name for data_set in DATA_SETS if not data_set.is_format)
# Columns of kept.parquet besides those of labels.
KEPT_COLUMNS = ("image", "caption", "id", "score")


class _Settings(BaseModel):
    # Validators are built when first used: the groups are mostly parts of `TrainSettings` alone.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _read_paths_as_texts(cls, value: object) -> object:
        return str(value) if isinstance(value, os.PathLike) else value


class ModelSettings(_Settings):
    """Choose the model, and which part of it is trained."""

    model: str = Field(
        "miniature",
        description="open_clip architecture, transformers id or folder, or 'miniature'.",
    )
    pretrained: str | None = Field(None, description="open_clip tag or checkpoint file.")
    tune: Scope = Field(
        "all",
        description="What learns: all, one tower, heads (the projections), lora (through peft).",
    )
    lora_rank: int = Field(8, ge=1, description="Rank of the LoRA adapters; alpha is twice it.")
    image_blocks: int | None = Field(
        None, ge=0, description="Only the last blocks of the image tower learn: how many."
    )
    text_blocks: int | None = Field(
        None, ge=0, description="Only the last blocks of the text tower learn: how many."
    )


class DataSettings(_Settings):
    """Choose pairs of an image and a caption, how they are read and augmented, and the held-out
    data."""

    data: str = Field(
        "birds",
        description=(
            "Table, folder, tars, parquet, COCO's json, id of the hub, birds, portraits, or the"
            " name of a data set; `vldebias eval data` lists them."
        ),
    )
    data_root: str | None = Field(
        None, description="Folder of the released files of a data set that data names."
    )
    split: str = Field("train", description="Split to read.")
    image: str | None = Field(None, description="Column of the images. Default: detected.")
    caption: str | None = Field(
        None, description="Column of the captions, or of lists of them. Default: detected."
    )
    separator: str | None = Field(
        None,
        description="What separates the cells of a table: comma, tab, semicolon, pipe. Default:"
        " detected.",
    )
    encoding: str | None = Field(
        None, description="Encoding of a table, such as cp1252. Default: UTF-8, else detected."
    )
    image_root: str | None = Field(
        None, description="Folder that paths of a table start from. Default: the table's."
    )
    allow_outside: bool = Field(
        False, description="Also take paths of a table that lead out of its folder."
    )
    label: str | None = Field(
        None, description="Column of classes, for zero-shot scores and losses that read them."
    )
    names: dict[str, dict[str, str]] | None = Field(
        None,
        description="Names of values that are codes: {y: {0: landbird, 1: waterbird}}.",
    )
    caption_template: str | None = Field(
        None, pattern=r"\{\}", description="Captions of labels: 'a photo of a {}.'"
    )
    streaming: bool = Field(
        False, description="Read rows as they come, without a copy on the disk."
    )
    shuffle_buffer: int = Field(1000, ge=1, description="Rows that a stream is shuffled within.")
    items: int | None = Field(
        None, ge=1, description="Images of a world of the miniature. Default: all that ship."
    )
    views: Literal["captions", "two"] = Field(
        "captions", description="Contrast with captions, or two views."
    )
    crop_scale: float = Field(
        0.9, gt=0, le=1, description="Smallest share of an image that a random crop keeps."
    )
    flip: bool = Field(False, description="Mirror images at random.")
    jitter: float = Field(0.0, ge=0, le=1, description="Strength of random changes of colour.")
    grayscale: float = Field(
        0.0, ge=0, le=1, description="Share of images without colour; 0.2 in SimCLR."
    )
    blur: float = Field(0.0, ge=0, le=1, description="Share of images blurred; 0.5 in SimCLR.")
    caption_noise: float = Field(
        0.0, ge=0, le=1, description="eta: share of captions replaced by another row's."
    )
    val_data: str | None = Field(
        None, description="Where held-out pairs are. Default: the same as data."
    )
    val_split: str | None = Field(
        None,
        description="Split to score, such as val. Default: the held-out split of a data set that is"
        " known by its name, else none.",
    )
    val_items: int = Field(2000, ge=1, description="Held-out pairs that are scored.")
    group: str | None = Field(
        None, description="Column: the lowest accuracy of a label and group is scored too."
    )
    debias: str | None = Field(
        None, description="Prompt set: after training its projection is fitted and saved."
    )
    score_pairs: bool = Field(
        True, description="After training score every pair, which reads all images once more."
    )
    keep: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Write this share of pairs, the best, with their labels to kept.parquet.",
    )

    @field_validator("names", mode="before")
    @classmethod
    def _read_codes_as_texts(cls, names: object) -> object:
        """Read codes as texts: YAML makes numbers of them, and truth values of yes and no."""
        if not isinstance(names, dict):
            return names
        texts = {}
        for column, name_of_code in names.items():
            texts[column] = name_of_code
            if isinstance(name_of_code, dict):
                texts[column] = {str(code): str(name) for code, name in name_of_code.items()}
        return texts

    @property
    def reads_captions(self) -> bool:
        """Tell whether captions are read: not if two views of an image are contrasted, nor if a
        template makes them from labels."""
        return self.views == "captions" and self.caption_template is None

    @property
    def has_held_out(self) -> bool:
        """Tell whether held-out data is named; the worlds of the miniature always have more."""
        return self.val_data is not None or self.val_split is not None or self.data in WORLDS


_LEAST_TEMPERATURES = ", ".join(
    f"with {loss.name} at least {loss.least_temperature}"
    for loss in BUILT_IN
    if loss.least_temperature is not None
)
_FIXED_TEMPERATURES = ", ".join(loss.name for loss in BUILT_IN if loss.fixed_temperature)
# A base class that is made at run time: type checkers see it without the settings of the losses.
if TYPE_CHECKING:
    _DeclaredSettings = _Settings
else:
    _DeclaredSettings = create_model(
        "_DeclaredSettings",
        __base__=_Settings,
        **{
            setting: (field.annotation, field)
            for loss in BUILT_IN
            for setting, field in loss.settings.model_fields.items()
        },
    )


class LossSettings(_DeclaredSettings):
    """Choose the objective: settings of all losses, and those that each loss declares.

    `Objective` refuses settings that the chosen loss does not read.
    """

    loss: str = Field("rince", description="Which objective; `vldebias losses` lists them.")
    temperature: float | None = Field(
        None,
        gt=0,
        description=f"Temperature. Default: the model's; {_LEAST_TEMPERATURES}.",
    )
    learn_temperature: bool = Field(
        False, description=f"t is learned, as in CLIP (not with {_FIXED_TEMPERATURES})."
    )
    group_dro: str | None = Field(
        None, description="Group DRO: column(s) whose values are the groups, with commas."
    )
    group_dro_step: float = Field(
        0.01, gt=0, description="Step of the weights of the groups, per unit of the loss."
    )
    chunk_size: int | None = Field(
        None, ge=1, description="Rows of the similarity matrix held at once. Default: all."
    )

    @field_validator("loss")
    @classmethod
    def _check_name(cls, loss: str) -> str:
        return LOSSES[loss].name

    @model_validator(mode="after")
    def _check_learned_temperature(self) -> LossSettings:
        reason = LOSSES[self.loss].fixed_temperature
        if self.learn_temperature and reason:
            raise ValueError(
                f"learn_temperature cannot go with {self.loss}: {reason}; set temperature instead"
            )
        return self


SHARED_SETTINGS = frozenset(LossSettings.__annotations__)
"""The settings that every loss reads."""


def losses_with(setting: str) -> list[str]:
    """Return the names of the losses that declare a setting."""
    return [loss.name for loss in BUILT_IN if setting in loss.settings.model_fields]


def refuse_unread(settings: LossSettings) -> None:
    """Refuse settings that the chosen loss does not read.

    Raises:
        InvalidInputError: the message names them, and those that the loss reads.
    """
    read = SHARED_SETTINGS | LOSSES[settings.loss].settings.model_fields.keys()
    unread = sorted(settings.model_fields_set & LossSettings.model_fields.keys() - read)
    if unread:
        known = ", ".join(sorted(read - {"loss"}))
        raise InvalidInputError(
            f"{settings.loss} does not read {', '.join(unread)}; it reads {known}"
        )


class LoopSettings(_Settings):
    """Choose the length of the training, the optimizer and the precision."""

    epochs: float | None = Field(None, gt=0, description="Passes over the data; or give steps.")
    steps: int | None = Field(None, ge=1, description="Updates of the weights.")
    batch_size: int = Field(
        256, ge=2, description="Pairs per process and micro-batch; the negatives are of these."
    )
    accumulation: int = Field(1, ge=1, description="Micro-batches whose gradients make one update.")
    negatives: Literal["micro", "step"] = Field(
        "micro", description="Of a micro-batch, or all of a step (GradCache)."
    )
    lr: float = Field(1e-5, gt=0, description="Peak learning rate of AdamW.")
    warmup: float = Field(
        0.1, ge=0, lt=1, description="Share of the steps with rising learning rate."
    )
    weight_decay: float = Field(0.1, ge=0, description="Decay of weight matrices.")
    clip_norm: float | None = Field(
        1.0, gt=0, description="Largest norm of the gradient; null switches off."
    )
    precision: Literal["no", "bf16", "fp16"] | None = Field(
        None,
        validate_default=True,
        description="Autocast. Default: as `accelerate launch` says, else no.",
    )
    ema: float | None = Field(
        None, gt=0, lt=1, description="Average the weights with this memory (such as 0.999)."
    )
    wise_ft: float | None = Field(
        None, gt=0, le=1, description="Share of trained weights to mix with the first ones."
    )
    sharpness: Literal["none", "sam", "asam"] = Field(
        "none", description="Sharpness-aware updates; twice the cost."
    )
    rho: float | None = Field(
        None, gt=0, description="Radius of sam (default 0.05) or asam (default 2)."
    )
    fourier: float = Field(
        0.0, ge=0, le=1, description="alpha: mix amplitudes with the most similar image."
    )
    eval_every: int | None = Field(
        None, ge=1, description="Steps between scores. Default: ten times in a run."
    )
    save_every: float = Field(5.0, ge=0, description="Minutes between checkpoints.")
    workers: int = Field(
        _WORKERS,
        ge=0,
        description="Processes that read images; 0 where the system cannot fork any.",
    )
    seed: int = Field(0, ge=0, lt=1 << 63, description="All randomness follows from it.")
    track: Literal["tensorboard", "wandb", "trackio", "mlflow"] | None = Field(
        None, description="Also log there."
    )

    @field_validator("precision", mode="before")
    @classmethod
    def _default_precision(cls, precision: object) -> object:
        return precision or os.environ.get("ACCELERATE_MIXED_PRECISION") or "no"

    @model_validator(mode="after")
    def _check_length(self) -> LoopSettings:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("expected either epochs or steps")
        return self

    def updates(self, per_epoch: int | None) -> int:
        """Return the number of updates, from the micro-batches of an epoch; None is a stream, whose
        end is unknown."""
        if self.steps is not None:
            return self.steps
        if per_epoch is None or self.epochs is None:
            raise InvalidInputError(
                "epochs: a stream does not say how long it is; give steps instead"
            )
        # Part of an epoch is allowed, no update at all is not.
        return max(1, round(self.epochs * per_epoch / self.accumulation))

    def learning_rate(self, step: int, steps: int) -> float:
        """Return the learning rate: a linear rise over the first share `warmup` of `steps`, then
        half a cosine to 0.

        Args:
            step: number of the update, from 0.
            steps: number of all updates.

        >>> settings = LoopSettings(steps=5, lr=1.0, warmup=0.4)
        >>> [round(settings.learning_rate(step, 5), 2) for step in range(5)]
        [0.5, 1.0, 1.0, 0.75, 0.25]
        """
        # The first step has a rate above 0 already: (step + 1) / rising.
        rising = round(self.warmup * steps)
        if step < rising:
            return self.lr * (step + 1) / rising
        return self.lr * (1 + math.cos(math.pi * (step - rising) / (steps - rising))) / 2


class TrainSettings(ModelSettings, DataSettings, LossSettings, LoopSettings):
    """Hold all settings. The descriptions of the fields are what `vldebias train --settings`
    prints."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_named_data(cls, values: object) -> object:
        """Fill in what a named data set has: its classes, groups, captions and held-out split."""
        if not isinstance(values, dict):
            return values
        data_set = trained_data(values.get("data"))
        if data_set is None:
            return values
        filled = {**data_set.training, **values}
        # No default with other held-out data, or where it would be the training split.
        held_out_split = filled.get("val_split")
        has_other_split = "val_data" in values or values.get("split") == held_out_split
        if has_other_split and "val_split" not in values:
            filled.pop("val_split", None)
        has_held_out = filled.get("val_split") is not None or filled.get("val_data") is not None
        if "group" not in values and not has_held_out:
            filled.pop("group", None)
        if filled.get("label") is None and values.get("views") == "two":
            filled.pop("caption_template", None)
        elif filled.get("label") is None and filled.get("caption_template") is not None:
            raise ValueError(
                f"{data_set.name}: expected label, the column that captions are made of:"
                f" {' or '.join(data_set.columns)}"
            )
        return filled

    @model_validator(mode="after")
    def _refuse_unread_settings(self) -> TrainSettings:
        """Refuse a setting that would have no effect."""
        for name, (is_read, reader) in self._readers().items():
            value = getattr(self, name)
            # A default that is written out changes nothing, and may stay in a file.
            if value != type(self).model_fields[name].default and not is_read:
                raise ValueError(
                    f"{name} {value!r} goes with {reader}, and here nothing would read it"
                )
        if (
            self.val_split is not None
            and self.val_split == self.split
            and self.val_data in (None, self.data)
        ):
            raise ValueError(
                f"val_split {self.val_split!r} is the split that is learned from; name another one"
            )
        return self

    @model_validator(mode="after")
    def _check_columns_to_keep(self) -> TrainSettings:
        """Refuse labels whose column would stand in kept.parquet next to one of the same name."""
        if self.keep is None:
            return self
        groups = (self.group_dro or "").split(",")
        for column in (self.label, self.group, *(name.strip() for name in groups)):
            if column in KEPT_COLUMNS:
                raise ValueError(
                    f"keep writes the columns {', '.join(KEPT_COLUMNS)} to kept.parquet, so a label"
                    f" cannot be named {column!r}; rename that column of the data"
                )
        return self

    def _readers(self) -> dict[str, tuple[bool, str]]:
        """Return for each setting that is not always read: whether it is, and what reads it."""
        world = self.data in WORLDS
        is_named = trained_data(self.data) is not None
        has_own_layout = world or is_named
        reads_captions = self.views == "captions"
        has_column_of_captions = (
            not has_own_layout and reads_captions and self.caption_template is None
        )
        # A stream is read once: its rows cannot be counted, crossed or listed.
        can_be_read_again = not self.streaming
        return {
            "lora_rank": (self.tune == "lora", "tune: lora"),
            "image_blocks": (self.tune in ("all", "image"), "tune: all or image"),
            "text_blocks": (self.tune in ("all", "text"), "tune: all or text"),
            "pretrained": (self.model != "miniature", "an open_clip architecture as model"),
            "items": (world, f"data: {' or '.join(WORLDS)}"),
            **dict.fromkeys(
                ("image", "image_root", "separator", "encoding", "allow_outside", "streaming"),
                (not has_own_layout, "data of your own"),
            ),
            "data_root": (
                is_named or trained_data(self.val_data) is not None,
                f"data: {_NAMED_DATA}",
            ),
            "names": (can_be_read_again, "data that are not streamed"),
            "caption": (has_column_of_captions, "captions of data"),
            "shuffle_buffer": (self.streaming, "streaming"),
            "caption_noise": (
                reads_captions and can_be_read_again,
                "captions that are not streamed",
            ),
            "caption_template": (
                self.label is not None and can_be_read_again,
                "label and data that are not streamed",
            ),
            "keep": (
                self.score_pairs and can_be_read_again,
                "score_pairs and data that are not streamed",
            ),
            "group_dro": (can_be_read_again, "data that are not streamed"),
            "group_dro_step": (self.group_dro is not None, "group_dro"),
            "negatives": (self.accumulation > 1, "accumulation above 1"),
            "rho": (self.sharpness != "none", "sharpness: sam or asam"),
            "wise_ft": (self.tune != "lora", "tune: all, text, image or heads"),
            "group": (self.has_held_out, "held-out data (val_split, val_data)"),
        }

    def as_yaml(self) -> str:
        """Return YAML text that `load_settings` reads as these settings, with only the given
        ones."""
        import yaml

        return yaml.safe_dump(self.model_dump(exclude_unset=True), sort_keys=False)

    def identity(self) -> dict[str, object]:
        """Return the settings that must agree to resume a run: all but those of speed and
        monitoring."""
        watching = {
            "workers",
            "save_every",
            "track",
            "eval_every",
            "score_pairs",
            "keep",
            "debias",
            "allow_outside",
            "data_root",  # its content counts
        }
        # Epochs are compared as steps.
        scored = {
            "val_data",
            "val_split",
            "val_items",
            "group",
            "epochs",
            "wise_ft",
        }
        return self.model_dump(exclude=watching | scored)


GROUPS: dict[str, type[BaseModel]] = {
    "Model": ModelSettings,
    "Data": DataSettings,
    "Loss": LossSettings,
    "Steps": LoopSettings,
}
# Heads and adapters begin at a trained model; only "scratch" learns its temperature.
PRESETS: dict[str, dict[str, object]] = {
    "heads": {"tune": "heads", "loss": "info_nce", "lr": 1e-4, "epochs": 2},
    "lora": {"tune": "lora", "loss": "info_nce", "lr": 1e-4, "epochs": 1},
    "scratch": {
        "loss": "info_nce",
        "temperature": 0.1,
        "learn_temperature": True,
        "lr": 1e-3,
        "weight_decay": 0.05,
        "epochs": 30,
    },
}


def _preset(name: object) -> dict[str, object]:
    """Return the settings of a preset; none without a name."""
    if name is None:
        return {}
    if not isinstance(name, str) or name not in PRESETS:
        raise InvalidInputError(f"preset: expected {', '.join(PRESETS)}, got {name!r}")
    return dict(PRESETS[name])


def _settings_of_loss(name: object) -> type[TrainSettings]:
    """Return the class of settings with those that a registered loss adds.

    Raises:
        InvalidInputError: an unknown loss, or one with a setting that every training has.
    """
    if not isinstance(name, str):
        return TrainSettings
    loss: Loss = LOSSES[name]
    if loss in BUILT_IN:
        return TrainSettings
    added = loss.settings.model_fields
    reserved = added.keys() & (TrainSettings.model_fields.keys() - _DeclaredSettings.model_fields)
    if reserved:
        raise InvalidInputError(
            f"loss {name!r}: the settings {', '.join(sorted(reserved))} are those of every"
            " training; choose other names"
        )
    fields: dict[str, Any] = {
        setting: (field.annotation, field) for setting, field in added.items()
    }
    extended: type[TrainSettings] = create_model("TrainSettings", __base__=TrainSettings, **fields)
    return extended


def load_settings(path: Path | None = None, **settings: Any) -> TrainSettings:
    """Return the settings of a YAML file, with `settings` in their place.

    "preset", in the file or among `settings`, names one of `PRESETS`, which both override.

    Raises:
        InvalidInputError: no such file, no mapping in it, an unknown name or a value outside its
            range.
    """
    of_file: dict[str, object] = {}
    if path is not None:
        of_file = read_yaml(path)
    preset_of_file = _preset(of_file.pop("preset", None))
    preset = _preset(settings.pop("preset", None)) or preset_of_file
    layers = (preset, of_file, settings)
    chosen_losses = {layer["loss"] for layer in layers if "loss" in layer}
    if len(chosen_losses) > 1:
        # Not every loss can learn its temperature, as the preset's does.
        preset.pop("learn_temperature", None)
    values: dict[str, object] = {}
    for layer in layers:
        # One length replaces the other.
        if layer.get("steps") is not None:
            values.pop("epochs", None)
        if layer.get("epochs") is not None:
            values.pop("steps", None)
        values |= layer
    if values.get("epochs") is None and values.get("steps") is None:
        values["epochs"] = 10
    kind = _settings_of_loss(values.get("loss"))
    try:
        loaded = kind.model_validate(values)
    except ValidationError as error:
        problem = explain(error, known=kind.model_fields)
        raise InvalidInputError(f"{path or 'training settings'}: {problem}") from None
    refuse_unread(loaded)
    return loaded

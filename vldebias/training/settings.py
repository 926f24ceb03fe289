"""Define all settings for a training run, from YAML files and `--set name=value`."""

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

# Readers are closures, which only forked processes can inherit, so Windows has no workers.
_WORKERS = 2 if "fork" in multiprocessing.get_all_start_methods() else 0
Scope = Literal["all", "text", "image", "heads", "lora"]
# Data sets that are opened by name, from `data_root` or a folder of the same name.
_NAMED_DATA = ", ".join(data_set.name for data_set in DATA_SETS if not data_set.is_format)
# Columns in kept.parquet, in addition to the label columns.
KEPT_COLUMNS = ("image", "caption", "id", "score")


class _Settings(BaseModel):
    # Build validators on first use, because most of these classes are only used in `TrainSettings`.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _read_paths_as_texts(cls, value: object) -> object:
        return str(value) if isinstance(value, os.PathLike) else value


class ModelSettings(_Settings):
    """Settings for the model and the part of it to train."""

    model: str = Field(
        "miniature",
        description="open_clip architecture, transformers id or folder, or 'miniature'.",
    )
    pretrained: str | None = Field(None, description="open_clip tag or checkpoint file.")
    tune: Scope = Field(
        "all",
        description="Part to train: all, one tower, heads (the projections), or lora (with peft).",
    )
    lora_rank: int = Field(
        8, ge=1, description="Rank of the LoRA adapters; alpha is twice the rank."
    )
    image_blocks: int | None = Field(
        None, ge=0, description="Number of last blocks of the image tower to train. Default: all."
    )
    text_blocks: int | None = Field(
        None, ge=0, description="Number of last blocks of the text tower to train. Default: all."
    )


class DataSettings(_Settings):
    """Settings for the training data, their augmentation, and the held-out data."""

    data: str = Field(
        "birds",
        description=(
            "Table, folder, tars, parquet, COCO's json, id on the Hugging Face hub, birds,"
            " portraits, or the name of a data set; `vldebias eval data` lists them."
        ),
    )
    data_root: str | None = Field(
        None, description="Folder with the released files of a named data set."
    )
    split: str = Field("train", description="Split to read.")
    image: str | None = Field(None, description="Column of the images. Default: detected.")
    caption: str | None = Field(
        None, description="Column of captions, or of lists of captions. Default: detected."
    )
    separator: str | None = Field(
        None,
        description="Separator of a table: comma, tab, semicolon or pipe. Default: detected.",
    )
    encoding: str | None = Field(
        None, description="Encoding of a table, such as cp1252. Default: detected."
    )
    image_root: str | None = Field(
        None, description="Base folder of the paths in a table. Default: the table's folder."
    )
    allow_outside: bool = Field(
        False, description="Allow paths in a table that lead outside its folder."
    )
    label: str | None = Field(
        None, description="Column of classes, for zero-shot scores and losses with labels."
    )
    names: dict[str, dict[str, str]] | None = Field(
        None, description="Names of codes in label columns: {y: {0: landbird, 1: waterbird}}."
    )
    caption_template: str | None = Field(
        None, pattern=r"\{\}", description="Caption for a label, such as 'a photo of a {}.'"
    )
    streaming: bool = Field(False, description="Stream the data, without a copy on disk.")
    shuffle_buffer: int = Field(
        1000, ge=1, description="Number of rows of a stream that are shuffled at a time."
    )
    items: int | None = Field(
        None, ge=1, description="Number of images of birds or portraits. Default: all."
    )
    views: Literal["captions", "two"] = Field(
        "captions", description="Contrast images with captions, or two views of each image."
    )
    crop_scale: float = Field(
        0.9, gt=0, le=1, description="Smallest share of an image that a random crop keeps."
    )
    flip: bool = Field(False, description="Mirror images at random.")
    jitter: float = Field(0.0, ge=0, le=1, description="Strength of random changes of colour.")
    grayscale: float = Field(
        0.0, ge=0, le=1, description="Share of images converted to grayscale; 0.2 in SimCLR."
    )
    blur: float = Field(
        0.0, ge=0, le=1, description="Share of images that are blurred; 0.5 in SimCLR."
    )
    caption_noise: float = Field(
        0.0, ge=0, le=1, description="eta: share of captions that are replaced by random ones."
    )
    val_data: str | None = Field(None, description="Held-out data. Default: the same as data.")
    val_split: str | None = Field(
        None,
        description="Held-out split to score and to choose the saved weights, such as val. Default:"
        " the held-out split of a named data set, else none.",
    )
    val_items: int = Field(2000, ge=1, description="Maximum number of held-out pairs to score.")
    group: str | None = Field(
        None, description="Column of groups, to score the lowest accuracy of a class and group."
    )
    debias: str | None = Field(
        None, description="Prompt set whose projection is fitted and saved after training."
    )
    score_pairs: bool = Field(
        True,
        description="Score every pair after training, which reads all images again; with keep,"
        " pairs are scored before training instead.",
    )
    keep: float | Literal["auto"] | None = Field(
        None,
        description=(
            "Share of the pairs to train on, those that the starting model scores highest; or"
            " auto, to weight each pair by its estimated probability of having the right caption."
            " Kept pairs are also written to kept.parquet, except for streams."
        ),
    )

    @field_validator("names", mode="before")
    @classmethod
    def _read_codes_as_texts(cls, names: object) -> object:
        """Convert codes to strings, because YAML parses some as numbers, and `yes` as a boolean."""
        if not isinstance(names, dict):
            return names
        texts = {}
        for column, name_of_code in names.items():
            texts[column] = name_of_code
            if isinstance(name_of_code, dict):
                texts[column] = {str(code): str(name) for code, name in name_of_code.items()}
        return texts

    @field_validator("keep", mode="before")
    @classmethod
    def _check_share(cls, keep: object) -> object:
        """Report a single error, instead of one for each type that the setting may have."""
        if keep in (None, "auto"):
            return keep
        try:
            share = float(keep)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            share = math.nan
        if not 0 < share <= 1:
            raise ValueError("expected a share above 0 and up to 1, or auto")
        return share

    @property
    def reads_captions(self) -> bool:
        """Return whether captions are loaded, rather than created from labels or not needed."""
        return self.views == "captions" and self.caption_template is None

    @property
    def has_held_out(self) -> bool:
        """Return whether there are held-out data, as is always the case for birds and portraits."""
        return self.val_data is not None or self.val_split is not None or self.data in WORLDS


_LEAST_TEMPERATURES = ", ".join(
    f"at least {loss.least_temperature} with {loss.name}"
    for loss in BUILT_IN
    if loss.least_temperature is not None
)
_FIXED_TEMPERATURES = ", ".join(loss.name for loss in BUILT_IN if loss.fixed_temperature)
# Type checkers do not see the losses' settings, because this base class is created at run time.
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
    """Settings for the loss, both those shared by all losses and those that each loss declares.

    `Objective` raises an error for settings that the chosen loss does not use.
    """

    loss: str = Field("info_nce", description="Loss; `vldebias losses` lists them.")
    temperature: float | None = Field(
        None,
        gt=0,
        description=f"Temperature. Default: the model's, {_LEAST_TEMPERATURES}.",
    )
    learn_temperature: bool = Field(
        False, description=f"Learn the temperature, as in CLIP (not with {_FIXED_TEMPERATURES})."
    )
    group_dro: str | None = Field(
        None, description="Columns whose values are the groups of group DRO, comma-separated."
    )
    group_dro_step: float = Field(
        0.01, gt=0, description="Step size of the group weights, per unit of the loss."
    )
    chunk_size: int | None = Field(
        None, ge=1, description="Rows of the similarity matrix per block. Default: all."
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
                f"learn_temperature cannot be used with {self.loss}: {reason}; set temperature"
                " instead"
            )
        return self


SHARED_SETTINGS = frozenset(LossSettings.__annotations__)
"""Settings that all losses use."""


def losses_with(setting: str) -> list[str]:
    """Return the names of the losses that declare a setting."""
    return [loss.name for loss in BUILT_IN if setting in loss.settings.model_fields]


def refuse_unread(settings: LossSettings) -> None:
    """Raise an error for settings that the chosen loss does not use.

    Raises:
        InvalidInputError: If there are such settings.
    """
    read = SHARED_SETTINGS | LOSSES[settings.loss].settings.model_fields.keys()
    unread = sorted(settings.model_fields_set & LossSettings.model_fields.keys() - read)
    if unread:
        known = ", ".join(sorted(read - {"loss"}))
        readers = ", ".join(losses_with(unread[0]))
        raise InvalidInputError(
            f"{settings.loss} does not read {', '.join(unread)}; it reads {known}."
            f" Losses with {unread[0]}: {readers}"
        )


class LoopSettings(_Settings):
    """Settings for length, optimizer and precision."""

    epochs: float | None = Field(
        None, gt=0, description="Number of passes over the data; or set steps."
    )
    steps: int | None = Field(None, ge=1, description="Number of updates of the weights.")
    batch_size: int = Field(
        256, ge=2, description="Pairs per process and micro-batch, which are also the negatives."
    )
    accumulation: int = Field(1, ge=1, description="Number of micro-batches per update.")
    negatives: Literal["micro", "step"] = Field(
        "micro", description="Use negatives of the micro-batch, or of the whole step (GradCache)."
    )
    lr: float = Field(1e-5, gt=0, description="Peak learning rate of AdamW.")
    warmup: float = Field(
        0.1, ge=0, lt=1, description="Share of the steps with a rising learning rate."
    )
    weight_decay: float = Field(0.1, ge=0, description="Weight decay of matrices.")
    clip_norm: float | None = Field(
        1.0, gt=0, description="Maximum norm of the gradient; null: no clipping."
    )
    precision: Literal["no", "bf16", "fp16"] | None = Field(
        None,
        validate_default=True,
        description="Autocast. Default: the precision of `accelerate launch`, else no.",
    )
    ema: float | None = Field(
        None, gt=0, lt=1, description="Decay of a moving average of the weights, such as 0.999."
    )
    sharpness: Literal["none", "sam", "asam"] = Field(
        "none", description="Sharpness-aware updates, which double the cost."
    )
    rho: float | None = Field(
        None, gt=0, description="Radius of sam (default 0.05) or asam (default 2)."
    )
    fourier: float = Field(
        0.0, ge=0, le=1, description="Strength of mixing Fourier amplitudes with a similar image."
    )
    eval_every: int | None = Field(
        None, ge=1, description="Steps between scores. Default: a tenth of the steps."
    )
    save_every: float = Field(5.0, ge=0, description="Minutes between checkpoints.")
    workers: int = Field(
        _WORKERS,
        ge=0,
        description="Number of processes that read images; 0 on systems that cannot fork.",
    )
    seed: int = Field(0, ge=0, lt=1 << 63, description="Seed of all random numbers.")
    track: Literal["tensorboard", "wandb", "trackio", "mlflow"] | None = Field(
        None, description="Experiment tracker to log to."
    )

    @field_validator("precision", mode="before")
    @classmethod
    def _default_precision(cls, precision: object) -> object:
        return precision or os.environ.get("ACCELERATE_MIXED_PRECISION") or "no"

    @model_validator(mode="after")
    def _check_length(self) -> LoopSettings:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("expected either epochs or steps, and not both")
        return self

    def updates(self, per_epoch: int | None) -> int:
        """Return the total number of updates.

        Args:
            per_epoch: number of micro-batches per epoch, or None for a stream.
        """
        if self.steps is not None:
            return self.steps
        if per_epoch is None or self.epochs is None:
            raise InvalidInputError(
                "epochs: expected steps instead, because the length of a stream is unknown"
            )
        # A run may be shorter than an epoch, but needs at least one update.
        return max(1, round(self.epochs * per_epoch / self.accumulation))

    def learning_rate(self, step: int, steps: int) -> float:
        """Return the learning rate, with a linear warm-up followed by cosine decay to 0.

        Args:
            step: number of the update, from 0.
            steps: total number of updates.

        >>> settings = LoopSettings(steps=5, lr=1.0, warmup=0.4)
        >>> [round(settings.learning_rate(step, 5), 2) for step in range(5)]
        [0.5, 1.0, 1.0, 0.75, 0.25]
        """
        # Use step + 1, so that the learning rate of the first step is above 0.
        rising = round(self.warmup * steps)
        if step < rising:
            return self.lr * (step + 1) / rising
        return self.lr * (1 + math.cos(math.pi * (step - rising) / (steps - rising))) / 2


class TrainSettings(ModelSettings, DataSettings, LossSettings, LoopSettings):
    """All settings for a training run, which `vldebias train --settings` describes."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_named_data(cls, values: object) -> object:
        """Fill in the classes, groups, captions and held-out split of a named data set."""
        if not isinstance(values, dict):
            return values
        data_set = trained_data(values.get("data"))
        if data_set is None:
            return values
        filled = {**data_set.training, **values}
        # Do not use the default for other held-out data, or if it would be the training split.
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
                f"{data_set.name}: expected label, the column to create captions from:"
                f" {' or '.join(data_set.columns)}"
            )
        return filled

    @model_validator(mode="after")
    def _refuse_unread_settings(self) -> TrainSettings:
        """Raise an error for a setting that would have no effect."""
        for name, (is_read, reader) in self._readers().items():
            value = getattr(self, name)
            # Allow explicit defaults, because they do not change anything.
            if value != type(self).model_fields[name].default and not is_read:
                raise ValueError(f"{name} {value!r} would have no effect; it needs {reader}")
        if (
            self.val_split is not None
            and self.val_split == self.split
            and self.val_data in (None, self.data)
        ):
            raise ValueError(
                f"val_split {self.val_split!r} is the training split; choose another one"
            )
        return self

    @model_validator(mode="after")
    def _check_columns_to_keep(self) -> TrainSettings:
        """Raise an error if a label column's name conflicts with a column in kept.parquet."""
        if self.keep is None:
            return self
        groups = (self.group_dro or "").split(",")
        for column in (self.label, self.group, *(name.strip() for name in groups)):
            if column in KEPT_COLUMNS:
                raise ValueError(
                    f"keep writes the columns {', '.join(KEPT_COLUMNS)} to kept.parquet, so a label"
                    f" column cannot be named {column!r}; rename this column of the data"
                )
        return self

    def _readers(self) -> dict[str, tuple[bool, str]]:
        """Return whether each conditional setting is used, and what it requires."""
        world = self.data in WORLDS
        is_named = trained_data(self.data) is not None
        has_own_layout = world or is_named
        reads_captions = self.views == "captions"
        has_column_of_captions = (
            not has_own_layout and reads_captions and self.caption_template is None
        )
        # A stream can only be read once, so its rows cannot be counted, crossed or listed.
        can_be_read_again = not self.streaming
        return {
            "lora_rank": (self.tune == "lora", "tune: lora"),
            "image_blocks": (self.tune in ("all", "image"), "tune: all or image"),
            "text_blocks": (self.tune in ("all", "text"), "tune: all or text"),
            "pretrained": (self.model != "miniature", "an open_clip architecture as model"),
            "items": (world, f"data: {' or '.join(WORLDS)}"),
            **dict.fromkeys(
                ("image", "image_root", "separator", "encoding", "allow_outside", "streaming"),
                (not has_own_layout, "your own data"),
            ),
            "data_root": (
                is_named or trained_data(self.val_data) is not None,
                f"data: {_NAMED_DATA}",
            ),
            "names": (can_be_read_again, "data that are not streamed"),
            "caption": (has_column_of_captions, "your own data with captions"),
            "shuffle_buffer": (self.streaming, "streaming"),
            "caption_noise": (
                reads_captions and can_be_read_again,
                "captions that are not streamed",
            ),
            "caption_template": (
                self.label is not None and can_be_read_again,
                "label and data that are not streamed",
            ),
            "keep": (reads_captions, "captions"),
            "group_dro": (can_be_read_again, "data that are not streamed"),
            "group_dro_step": (self.group_dro is not None, "group_dro"),
            "negatives": (self.accumulation > 1, "accumulation above 1"),
            "rho": (self.sharpness != "none", "sharpness: sam or asam"),
            "group": (self.has_held_out, "held-out data (val_split, val_data)"),
        }

    def as_yaml(self) -> str:
        """Return the explicitly set values as YAML, for `load_settings`."""
        import yaml

        return yaml.safe_dump(self.model_dump(exclude_unset=True), sort_keys=False)

    def identity(self) -> dict[str, object]:
        """Return the settings that must match to resume a run."""
        # Settings for speed and monitoring may change when a run is resumed.
        monitoring = {
            "workers",
            "save_every",
            "track",
            "eval_every",
            "score_pairs",
            "debias",
            "allow_outside",
            "data_root",  # The contents of the data are compared instead.
        }
        # Settings for scores may change too. The number of steps is compared instead of epochs.
        scored = {"val_data", "val_split", "val_items", "group", "epochs"}
        return self.model_dump(exclude=monitoring | scored)


GROUPS: dict[str, type[BaseModel]] = {
    "Model": ModelSettings,
    "Data": DataSettings,
    "Loss": LossSettings,
    "Steps": LoopSettings,
}
# Heads and adapters start from a pretrained model. Only "scratch" learns the temperature.
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
    """Return the settings in a preset, or an empty dictionary without a name."""
    if name is None:
        return {}
    if not isinstance(name, str) or name not in PRESETS:
        raise InvalidInputError(f"preset: expected {', '.join(PRESETS)}, got {name!r}")
    return dict(PRESETS[name])


def _settings_of_loss(name: object) -> type[TrainSettings]:
    """Return the settings class, extended with the settings of a registered loss.

    Raises:
        InvalidInputError: If the loss is unknown, or the name of one of its settings is taken.
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
            f"loss {name!r}: the settings {', '.join(sorted(reserved))} already exist in every"
            " training run; choose other names"
        )
    fields: dict[str, Any] = {
        setting: (field.annotation, field) for setting, field in added.items()
    }
    extended: type[TrainSettings] = create_model("TrainSettings", __base__=TrainSettings, **fields)
    return extended


def load_settings(path: Path | None = None, **settings: object) -> TrainSettings:
    """Load the settings for a training run.

    Args:
        path: YAML file with settings.
        settings: settings that override the file. "preset", here or in the file, selects one of
            `PRESETS`. All other settings override the preset.

    Raises:
        InvalidInputError: If the file does not exist or is not a mapping, a name is unknown, or a
            value is out of range.
    """
    file_settings: dict[str, object] = {}
    if path is not None:
        file_settings = read_yaml(path)
    file_preset = _preset(file_settings.pop("preset", None))
    preset = _preset(settings.pop("preset", None)) or file_preset
    layers = (preset, file_settings, settings)
    chosen_losses = {layer["loss"] for layer in layers if "loss" in layer}
    if len(chosen_losses) > 1:
        # The preset learns the temperature, which not every loss supports.
        preset.pop("learn_temperature", None)
    values: dict[str, object] = {}
    for layer in layers:
        # The layers are the preset, the file and the arguments. Steps in a later layer override
        # epochs in an earlier one, and vice versa.
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

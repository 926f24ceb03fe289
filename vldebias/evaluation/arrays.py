"""`evaluate`: the measurements of a suite on what a notebook has at hand: arrays, a folder, the name of a data set."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vldebias.data import Embeddings, ImageData, ImageStream, Labels, Shards
from vldebias.data.unit_rows import BLOCK
from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, SuspectInputWarning, did_you_mean, need, warn
from vldebias.evaluation.result import Result
from vldebias.evaluation.task import TASKS, WORLDS, Data, Options, Session, Strict, open_split
from vldebias.evaluation.texts import Texts
from vldebias.hosts import attachment_of
from vldebias.loading import Loaded, load_host
from vldebias.methods import Method, get_method
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet

SPLITS = ("train", "val")  # beside the images and a reference; each may come with labels, as train_labels=


def evaluate(
    model: Any = None,
    images: Any = None,
    *,
    prompts: str | PromptSet | Mapping[str, Any] | None = None,
    labels: Any = None,
    unknown: Any = (),
    task: str = "retrieval",
    methods: str | Method | Edit | Sequence[Any] | Mapping[str, Any] | None = None,
    reference: Any = None,
    reference_labels: Any = None,
    split: str = "test",
    root: str | Path | None = None,
    tokenizer: Any = None,
    pretrained: str | None = None,
    device: str = "cpu",
    progress: Progress | bool | None = None,
    **options: Any,
) -> Result:
    """Measure methods on images and the texts of one model, or with any other task: bias and utility, with intervals.

    Args:
        model: an open_clip or transformers model (with `tokenizer` where it cannot be found), a name that
            `vldebias.load_host` opens (with `pretrained`), or a mapping from prompt to embedding (d,).
        images: features (n, d), as an array, a tensor or a list; in files (.npz, .npy, .safetensors, .parquet, or a
            pattern such as "shards/*.npy") or `vldebias.data.Shards`; a folder of images or the name of a data set
            (`vldebias eval data`), which the model embeds; or `Embeddings`.
        prompts: a prompt set, by name or as an object. For retrieval also column -> set, where a column has another
            name than the attribute of its set, or for several columns.
        labels: column -> values of the n images: strings or integers, as an array, a tensor or a list; None, NaN and ""
            are unknown, every number is a value. One column may be given as it is. None: those that come with the
            images.
        unknown: a value of labels that means "not known", such as -1, or several. Every result says how many rows were
            unknown (`n`), and groups leave them out.
        task: a name in `vldebias.evaluation.TASKS`: "retrieval" (skew of the first k results), "groups" (accuracy of
            the worst group), "generation", "texts", "annotations", or one that was registered.
        methods: names in `vldebias.methods.METHODS`, methods, edits that were fitted before (also name -> edit), or
            several; by default those of the paper's tables. "none" is always measured, and is what changes are
            differences to.
        reference: image features (m, d), or whatever `images` may be, for the methods that use some.
        reference_labels: column -> values of these m images, for the methods that need labels. None: those that come
            with the reference, else what the model's texts say (`vldebias.methods.labelled`).
        split, root: of a data set: which part of it, and the folder that it lies in.
        tokenizer, pretrained, device: of the model.
        progress: True to show it on stderr.
        options: what is particular to a task: fields of it, and inputs of its `measure`.

            - of retrieval: `queries`, texts, or a prompt set whose class prompts are asked for (default: the class
              prompts); `k`, one or several (default: a twentieth of the images, at least 10); prior, floor, ties,
              resample, utility.
            - of groups: `label` and `spurious`, columns (by default those that the class prompts and the attribute's
              values name); `train`, `train_labels`, `val`, `val_labels`, further splits for `baselines=` and for the
              reweighted average; lams, class_agnostic, offset, true_groups, group_weights.
            - of both: lam, strength, max_loss, side, keep_stated, resamples, seed.
            - of generation: `model` is a pipeline; `judge` reads the images, which are drawn into `folder`; attributes,
              images_each and the other fields of `GenerationTask`.
            - of texts: `model` is a model or a pipeline. lam, method.
            - of annotations: `labels` are files of annotators, `drawn` the folder of the images; attribute, names.

    Raises:
        InvalidInputError, PromptSetError, UnsupportedHostError: what does not fit, by name.

    >>> texts = {prompt: model.encode(prompt) for prompt in prompts_to_embed}  # doctest: +SKIP
    >>> evaluate(texts, features, prompts="gender", labels={"gender": gender}, k=50).to_pandas()  # doctest: +SKIP
    """
    kind = TASKS.named(task)
    inputs = kind.input_names()
    known = sorted({*kind.model_fields, *inputs, *(f"{name}_labels" for name in SPLITS if name in inputs)})
    for name in options:
        if name not in known:
            raise InvalidInputError(
                f"evaluate: {name!r} is no option of {task}; expected one of {', '.join(known)}; "
                f"{did_you_mean(name, known)}"
            )
    handed = {"images": images, "labels": labels, "reference": reference, "reference_labels": reference_labels}
    fields: dict[str, Any] = {"name": task, "title": task}
    for name, value in options.items():
        is_field = name in kind.model_fields and (name not in inputs or isinstance(value, (Strict, Mapping)))
        (fields if is_field else handed)[name] = value
    edits: dict[str, Edit] = {}
    if methods is not None:
        fields["methods"], edits = _methods(methods)
    if prompts is not None:
        fields["prompts"] = prompts
    shown = progress if isinstance(progress, Progress) else Progress.on() if progress else SILENT
    session = Given(
        Options(out=Path(), pretrained=pretrained, device=device, data_root=root),
        needs=f"task {task!r}",
        progress=shown,
        given={name: value for name, value in handed.items() if value is not None},
        host=model,
        tokenizer=tokenizer,
        fitted=edits,
        split=split,
        unknown=unknown,
        column=next(iter(prompts), "") if isinstance(prompts, Mapping) else str(getattr(prompts, "name", prompts)),
    )
    began = time.monotonic()
    with shown:
        parts = kind.of_given(session, fields).measured(session)
    return Result.of(task, parts, seconds=round(time.monotonic() - began, 3))


@dataclass
class Given(Session):
    """What was handed to `evaluate`, opened for a task as a suite opens what its YAML names.

    host: the model. fitted: edits by name. split: of a data set. unknown: values that are none. column: of labels that
    came without a name.
    """

    host: Any = None
    tokenizer: Any = None
    fitted: Mapping[str, Edit] = field(default_factory=dict)
    split: str = "test"
    unknown: Any = ()
    column: str = ""

    @cached_property
    def brought(self) -> Loaded | None:
        """The model with its preprocessing, where it was given by name or by `vldebias.load_host`."""
        if isinstance(self.host, str):
            return load_host(self.host, self.options.pretrained, device=self.options.device)
        return self.host if isinstance(self.host, Loaded) else None

    @cached_property
    def model(self) -> Loaded:
        """The same, of which there has to be one."""
        if self.brought is None:
            raise InvalidInputError(
                "images: a folder or a data set is embedded by a model that was given by name (or by "
                "`vldebias.load_host`), which brings its preprocessing; else give features (n, d)"
            )
        return self.brought

    @cached_property
    def pipeline(self) -> Loaded:
        """The host as a pipeline."""
        if isinstance(self.host, str):
            return load_host(pipeline=self.host, device=self.options.device)
        return self.host if isinstance(self.host, Loaded) else Loaded(self.host, "")

    @cached_property
    def texts(self) -> Texts:
        """The text side of the host; an attachment is left out."""
        own = self.brought
        texts = Texts(self.host, self.tokenizer) if own is None else Texts(own.host, own.tokenizer)
        if any(attachment_of(one) is not None for one in texts.host.exclusive_modules):
            warn(
                f"{texts.host.name}: it carries an attachment, which is left out: 'none' is the model without it; to "
                "measure it give its edits, methods={'mine': attachment.projections['joint']}",
                SuspectInputWarning,
            )
        return texts

    @cached_property
    def edits(self) -> dict[str, Edit]:
        """Edits that were given among the methods."""
        return dict(self.fitted)

    def embedded(self, spec: Data) -> Embeddings:
        """Embeddings of what was handed over under a name, with the labels that came for them."""
        if spec.name not in self._embedded:
            given = self.given.get(spec.name)
            if given is None:
                raise InvalidInputError(f"{spec.name}: expected features (n, d), a folder or a data set, got none")
            labels = self.given.get("labels" if spec.name == "images" else f"{spec.name}_labels")
            split = "train" if spec.name == "train" else self.split
            self._embedded[spec.name] = self._labelled(given, labels, split)
        return self._embedded[spec.name]

    def _labelled(self, given: Any, labels: Any, split: str) -> Embeddings:
        """Embeddings of what was given, with the labels that were given beside those that it has."""
        if isinstance(given, (str, Path)):
            given = self._opened(Path(given), split)
        if isinstance(given, (ImageData, ImageStream)):
            given = self._from_images(given)
        embeddings = given if isinstance(given, Embeddings) else _from_array(given)
        columns = {} if labels is None else labels if isinstance(labels, Mapping) else {self.column: labels}
        own, n = {}, len(embeddings)
        for name, values in columns.items():
            try:
                own[name] = Labels.of_array(values)
            except InvalidInputError as error:
                raise InvalidInputError(f"labels[{name!r}]: {str(error).removeprefix('labels: ')}") from None
            if len(own[name]) != n:
                raise InvalidInputError(
                    f"labels[{name!r}]: expected one value for each of the {n} images, got {len(own[name])}"
                )
        return replace(embeddings, labels={**embeddings.labels, **own}).without(self.unknown)

    def _opened(self, path: Path, split: str) -> Embeddings | ImageData | ImageStream:
        """A file of embeddings, a folder of pictures, or a data set by name."""
        from vldebias.data import list_data
        from vldebias.data.shard_files import is_features, open_embeddings

        if is_features(path):
            return open_embeddings(path)[0]
        if path.is_dir():
            return _folder(path)
        names = [*WORLDS, *list_data()]
        if str(path) not in names:
            raise InvalidInputError(
                f"images: expected a folder, a file of embeddings or one of {', '.join(names)}, got {str(path)!r}; "
                f"{did_you_mean(path, names)}"
            )
        assert self.encoder  # texts alone are refused before a world is rendered
        return open_split(str(path), self.options.data_root, split, {})

    def _from_images(self, data: ImageData | ImageStream) -> Embeddings:
        from vldebias.data import embed_images

        return embed_images(data, self.encoder, progress=self.progress)


def _folder(path: Path) -> ImageData:
    """Every picture below a folder; the names of the folders directly below it are the column "folder"."""
    Image = need("PIL.Image")

    from vldebias.data.pictures import file_images

    known = set(Image.registered_extensions())
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in known)
    if not files:
        raise InvalidInputError(f"{path}: no pictures in it; expected files such as .png or .jpg")
    names = [file.relative_to(path).as_posix() for file in files]
    folders = Labels.of([name.partition("/")[0] if "/" in name else "" for name in names])
    return file_images(path.name, "all", path, names, {"folder": folders})


def _from_array(given: Any) -> Embeddings:
    """Features (n, d) from an array, a tensor or a list, of any type of number."""
    try:
        embeddings = Embeddings.of(given)
    except InvalidInputError as error:
        reason = str(error).removeprefix("features: ")
        raise InvalidInputError(f"images: a folder, a file, a data set's name or features (n, d): {reason}") from None
    if not len(embeddings):
        raise InvalidInputError(f"images: expected features (n, d) with n > 0, got shape {embeddings.features.shape}")
    if isinstance(embeddings.features, Shards):
        return replace(embeddings, about={"data": "given in shards", "digest": embeddings.features.digest()})
    digest = hashlib.sha256()
    for start in range(0, len(embeddings), BLOCK):
        digest.update(np.ascontiguousarray(embeddings.features[start : start + BLOCK]).data)
    return replace(embeddings, about={"data": "given", "digest": digest.hexdigest()})


def _methods(given: Any) -> tuple[tuple[Any, ...], dict[str, Edit]]:
    """Names and methods, and edits by name."""
    if isinstance(given, Mapping):
        pairs: list[tuple[str | None, Any]] = list(given.items())
    else:
        several = isinstance(given, Iterable) and not isinstance(given, (str, Method, Edit))
        pairs = [(None, one) for one in (given if several else [given])]
    methods: list[Any] = []
    edits: dict[str, Edit] = {}
    for name, one in pairs:
        if isinstance(one, Edit):
            edits[name or f"fitted {one.method}"] = one
        else:
            get_method(one)
            methods.append(one)
    return tuple(methods), edits

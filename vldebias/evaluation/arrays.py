"""`evaluate`: the measurements of a suite on what a notebook has at hand: arrays, a folder, the name of a data set."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vldebias.data import Embeddings, ImageData, ImageStream, Labels
from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, SuspectInputWarning, did_you_mean, need, warn
from vldebias.evaluation.groups import GroupsTask, class_of
from vldebias.evaluation.images import PAPER
from vldebias.evaluation.result import Result
from vldebias.evaluation.retrieval import Queries, RetrievalTask
from vldebias.evaluation.task import WORLDS, Data, open_split
from vldebias.evaluation.texts import Texts
from vldebias.hosts import attachment_of
from vldebias.loading import Loaded, load_host
from vldebias.methods import METHODS, Method, get_method
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts

TASKS = ("groups", "retrieval")


def evaluate(
    model: Any,
    images: Any,
    *,
    prompts: str | PromptSet | Mapping[str, Any],
    labels: Any = None,
    unknown: Any = (),
    task: str = "retrieval",
    methods: str | Method | Edit | Sequence[Any] | Mapping[str, Any] = PAPER,
    reference: Any = None,
    reference_labels: Any = None,
    queries: Sequence[str] | str | PromptSet | None = None,
    k: int | Sequence[int] | None = None,
    label: str | None = None,
    spurious: str | None = None,
    train: Any = None,
    train_labels: Any = None,
    split: str = "test",
    root: str | Path | None = None,
    tokenizer: Any = None,
    pretrained: str | None = None,
    device: str = "cpu",
    progress: Progress | bool | None = None,
    **options: Any,
) -> Result:
    """Measure methods on images and the texts of one model: bias and utility, each with an interval.

    Args:
        model: an open_clip or transformers model (with `tokenizer` where it cannot be found), a name that
            `vldebias.load_host` opens (with `pretrained`), or a mapping from prompt to embedding (d,).
        images: features (n, d), as an array, a tensor or a list; a file of embeddings (.npz, .safetensors); a folder of
            images or the name of a data set (`vldebias eval data`), which the model embeds; or `Embeddings`.
        prompts: a prompt set, by name or as an object. For retrieval also column -> set, where a column has another
            name than the attribute of its set, or for several columns.
        labels: column -> values of the n images: strings or integers, as an array, a tensor or a list; None, NaN and ""
            are unknown, every number is a value. One column may be given as it is. None: those that come with the
            images.
        unknown: a value of labels that means "not known", such as -1, or several. Every result says how many rows were
            unknown (`n`), and groups leave them out.
        task: "retrieval" (skew of the first k results) or "groups" (accuracy of the worst group).
        methods: names in `vldebias.methods.METHODS`, methods, edits that were fitted before (also name -> edit), or
            several. "none" is always measured, and is what changes are differences to.
        reference: image features (m, d), or whatever `images` may be, for the methods that use some.
        reference_labels: column -> values of these m images, for the methods that need labels. None: those that come
            with the reference, else what the model's texts say (`vldebias.methods.labelled`).
        queries: of a retrieval: texts, or a prompt set whose class prompts are asked for. Default: the class prompts.
        k: of a retrieval, one or several; default: a twentieth of the images, at least 10.
        label, spurious: of groups: columns; by default those that the class prompts and the attribute's values name.
        split, root: of a data set: which part of it, and the folder that it lies in.
        train, train_labels: a training split, for `baselines=` and the reweighted average of groups.
        progress: True to show it on stderr.
        options: further fields of `RetrievalTask` and `GroupsTask`: lam, strength, max_loss, side, keep_stated,
            resamples, seed; prior, floor, ties, resample, utility; lams, class_agnostic, baselines, group_weights.

    Raises:
        InvalidInputError, PromptSetError, UnsupportedHostError: what does not fit, by name.

    >>> texts = {prompt: model.encode(prompt) for prompt in prompts_to_embed}  # doctest: +SKIP
    >>> evaluate(texts, features, prompts="gender", labels={"gender": gender}, k=50).to_pandas()  # doctest: +SKIP
    """
    if task not in TASKS:
        raise InvalidInputError(f"task: expected one of {', '.join(TASKS)}, got {task!r}; {did_you_mean(task, TASKS)}")
    kind = RetrievalTask if task == "retrieval" else GroupsTask
    strangers = sorted(set(options) - set(kind.model_fields))
    if strangers:
        known = sorted(kind.model_fields)
        raise InvalidInputError(
            f"evaluate: {strangers[0]!r} is no option of {task}; expected one of {', '.join(known)}; "
            f"{did_you_mean(strangers[0], known)}"
        )
    names, edits = _methods(methods)
    sets = _prompt_sets(prompts, task)
    shown = progress if isinstance(progress, Progress) else Progress.on() if progress else SILENT
    loaded = load_host(model, pretrained, device=device) if isinstance(model, str) else model
    brought = loaded if isinstance(loaded, Loaded) else None
    texts = Texts(model, tokenizer) if brought is None else Texts(brought.host, brought.tokenizer)
    if any(attachment_of(owned) is not None for owned in texts.host.owned):
        warn(
            f"{texts.host.name}: it carries an attachment, which is left out: 'none' is the model without it; to "
            "measure it give its edits, methods={'mine': attachment.projections['joint']}",
            SuspectInputWarning,
        )
    embedded = _Images(brought, root, shown, unknown)
    gallery = embedded(images, labels, split, next(iter(sets)))
    if len(sets) == len(gallery.labels) == 1 and not isinstance(prompts, Mapping):
        sets = dict(zip(gallery.labels, sets.values(), strict=True))  # one column, one set: they belong together
    other = None if reference is None else embedded(reference, reference_labels, split, next(iter(sets)))
    given: dict[str, Any] = {"reference": other, "edits": edits, "progress": shown}
    fields = {"name": task, "title": task, "data": Data(name="given"), "methods": names, **options}
    began = time.monotonic()
    with shown:
        if task == "groups":
            ((_, (prompt_set,)),) = sets.items()
            columns = _columns(gallery, prompt_set, label, spurious)
            learn = None if train is None else embedded(train, train_labels, "train", "")
            marks = {} if learn is None else {"train": Data(name="given", split="train")}
            groups = GroupsTask.build({**fields, **columns, **marks, "prompts": prompt_set.name})
            parts = groups.measure(gallery, texts, prompt_set, train=learn, **given)
        else:
            asked = _queries(queries, [s for of in sets.values() for s in of])
            few = max(10, len(gallery) // 20) if k is None else k
            named = {column: tuple(s.name for s in of) for column, of in sets.items()}
            retrieval = RetrievalTask.build({**fields, "prompts": named, "queries": asked, "k": few})
            parts = retrieval.measure(gallery, texts, sets, queries=asked, **given)
    return Result.of(task, parts, seconds=round(time.monotonic() - began, 3))


@dataclass(frozen=True)
class _Images:
    """Embeddings of what is given as images; loaded: the model that embeds them; unknown: values that are none."""

    loaded: Loaded | None
    root: str | Path | None
    progress: Progress
    unknown: Any

    def __call__(self, given: Any, labels: Any, split: str, column: str) -> Embeddings:
        """Embeddings of what was given, with the labels that were given beside those that it has."""
        if isinstance(given, (str, Path)):
            given = self._opened(Path(given), split)
        if isinstance(given, (ImageData, ImageStream)):
            given = self._embedded(given)
        embeddings = given if isinstance(given, Embeddings) else _from_array(given)
        columns = {} if labels is None else labels if isinstance(labels, Mapping) else {column: labels}
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
        from vldebias.data import list_data, load_embeddings

        if path.suffix in (".npz", ".safetensors"):
            return load_embeddings(path)[0]
        if path.is_dir():
            return _folder(path)
        names = [*WORLDS, *list_data()]
        if str(path) not in names:
            raise InvalidInputError(
                f"images: expected a folder, a file of embeddings or one of {', '.join(names)}, got {str(path)!r}; "
                f"{did_you_mean(path, names)}"
            )
        return open_split(str(path), self.root, split, {})

    def _embedded(self, data: ImageData | ImageStream) -> Embeddings:
        from vldebias.data import embed_images
        from vldebias.hosts.images import image_encoder

        if self.loaded is None:
            raise InvalidInputError(
                "images: a folder or a data set is embedded by a model that was given by name (or by "
                "`vldebias.load_host`), which brings its preprocessing; else give features (n, d)"
            )
        encoder = image_encoder(self.loaded.host, self.loaded.preprocess, name=self.loaded.name)
        return embed_images(data, encoder, progress=self.progress)


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
    digest = hashlib.sha256(np.ascontiguousarray(embeddings.features).tobytes()).hexdigest()
    return replace(embeddings, about={"data": "given", "digest": digest})


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
    taken = [name for name in edits if name in METHODS]
    if taken:
        raise InvalidInputError(f"methods: {taken} are names of methods; call the edits otherwise")
    return tuple(methods), edits


def _prompt_sets(given: Any, task: str) -> dict[str, list[PromptSet]]:
    """Column -> prompt sets; a set alone is about the column of its name."""
    if not isinstance(given, Mapping):
        several = given if isinstance(given, (list, tuple)) else [given]
        loaded = [load_prompts(one) for one in several]
        given = {one.name: one for one in loaded} if task == "retrieval" else {"": loaded[0]}
    if not given or (task == "groups" and len(given) > 1):
        raise InvalidInputError(f"prompts: expected {'one prompt set' if task == 'groups' else 'a prompt set'}")
    return {
        column: [load_prompts(one) for one in (of if isinstance(of, (list, tuple)) else [of])]
        for column, of in given.items()
    }


def _columns(data: Embeddings, prompts: PromptSet, label: str | None, spurious: str | None) -> dict[str, str]:
    """The columns of the groups: the one that the class prompts name, and the one of the attribute's values."""

    def fits(column: str) -> bool:
        try:
            return bool(class_of(data.labels[column].names, prompts))
        except InvalidInputError:
            return False

    there = [name for name in data.labels if name != spurious]
    label = label or next((name for name in there if fits(name)), None)
    others = [name for name in data.labels if name != label]
    values = {value.casefold() for value in prompts.attributes}
    named = [name for name in others if values & {value.casefold() for value in data.labels[name].names}]
    spurious = spurious or next((one[0] for one in (named, others) if len(one) == 1), None)
    if label is None or spurious is None:
        raise InvalidInputError(
            f"groups: say which columns are label= and spurious=; there are {sorted(data.labels)}, and the class "
            f"prompts of {prompts.name} name {list(prompts.class_names)}"
        )
    return {"label": label, "spurious": spurious}


def _queries(given: Any, sets: Sequence[PromptSet]) -> list[str]:
    """Texts to ask for: those given, the class prompts of a set, or those of the sets themselves."""
    if isinstance(given, Queries):
        return list(given.texts())
    if isinstance(given, (str, PromptSet)):
        return list(load_prompts(given).classes)
    texts = list(given) if given is not None else list(dict.fromkeys(p for s in sets for p in s.classes))
    if not texts:
        missing = "got none" if given is not None else f"{[s.name for s in sets]} have no class prompts"
        raise InvalidInputError(f"queries: expected a list of texts, {missing}; give queries=")
    return texts

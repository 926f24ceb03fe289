"""Evaluate methods on Python objects: sort the keywords, open what is measured, and measure it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError, SuspectInputWarning, did_you_mean, warn
from vldebias.hosts import EditAttachment, attachment_of
from vldebias.hosts.host import TEXT
from vldebias.methods import Method, get_compared
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet
from vldebias.report.result import Result
from vldebias.study.inputs import Inputs
from vldebias.study.task import TASKS
from vldebias.study.tasks.images import ImageTask
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Strict

LABELS = ("labels", "reference_labels", "train_labels", "val_labels")


def evaluate(
    model: Any,
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
    """Measure methods on images and the texts of one model, or with any other task: bias and
    utility, with intervals.

    Args:
        model: an open_clip or transformers model, a name that `vldebias.load_host` opens, or a
            mapping from prompt to embedding (d,).
        images: features (n, d), as an array, a tensor or a list; in files (.npz, .npy, or a pattern
            such as "shards/*.npy") or `vldebias.data.Shards`; `Embeddings`; or a folder of images
            or the name of a data set (`vldebias eval data`), which the model embeds. With captions,
            as of `Embeddings.from_arrays(features, labels, captions=texts)`, retrieval also
            measures their recall; a mapping has to hold an embedding of each.
        prompts: a prompt set, by name or as an object. For retrieval also column -> set, where a
            column has another name than the attribute of its set, or for several columns.
        labels: column -> values of the n images, or one column alone: strings or integers; None,
            NaN and "" are unknown. None: those that come with the images.
        unknown: values of labels that mean "not known", such as -1. Results count these rows;
            groups leave them out.
        task: a name in `vldebias.study.TASKS`: "retrieval" (skew of the first k results),
            "groups" (accuracy of the worst group), "generation", "texts" (distance of prompt
            pairs), or one that was registered.
        methods: names in `vldebias.methods.METHODS`, methods, edits that were fitted before (also
            name -> edit), or several; by default "none", "default" and the attachment that the
            model carries ("attached cali"), all at its strength. "none" is always measured, without
            any attachment; changes are differences to it. For retrieval also "rerank" and
            "rerank-fair": results of the model as it is, re-ranked by its zero-shot labels
            (`vldebias.rerank`); and "default+rerank", results of the default, re-ranked.
        reference: image features (m, d), or whatever `images` may be. Methods are then what
            `vldebias.debias` attaches with these images: a closed form such as "cali" is equalised
            against them ("cali+equalise").
        reference_labels: as labels, of these m images, for the methods that need labels. None:
            those that come with the reference, else what the model's texts say.
        split: of a data set, the part to measure.
        root: of a data set, its folder.
        tokenizer: of the model, if it needs one.
        pretrained: weights of an open_clip model that is named.
        device: of a model that is named.
        progress: True to show it on stderr.
        options: settings of the task, and inputs of its `measure`.

            - of retrieval: `queries`, texts, or a prompt set whose class prompts are asked for
              (default: the class prompts); `k`, one or several (default: a twentieth of the images,
              at least 10); prior, classes, resample.
            - of groups: `label` and `spurious`, columns (by default those that the class prompts
              and the attribute's values name); `train`, `train_labels`, `val`, `val_labels` for
              `baselines=`; lams, of which one is chosen on `val`; group_weights.
            - of both: lam, strength, resamples, seed.
            - of generation: `model` is a pipeline; `judge` reads the images, generated into the
              folder `images`; attributes and the other settings of `GenerationTask`.
            - of texts: `model` is a model or a pipeline; `method` (one) and lam.

    Returns:
        A row for every metric, method and part, with its interval and its change from "none".

    Raises:
        InvalidInputError, UnsupportedHostError: what does not fit, by its name.

    >>> texts = {prompt: model.encode(prompt) for prompt in prompts_to_embed}  # doctest: +SKIP
    >>> labels = {"gender": gender}  # doctest: +SKIP
    >>> evaluate(texts, features, prompts="gender", labels=labels, k=50)  # doctest: +SKIP
    """
    # 1. Each keyword is a setting of the task, or an input.
    # The model is passed under two names: tasks on images ask for "model", tasks that generate
    # images for "pipeline".
    sources = {
        "model": model,
        "pipeline": model,
        "tokenizer": tokenizer,
        "images": images,
        "labels": labels,
        "reference": reference,
        "reference_labels": reference_labels,
    }
    task_class = TASKS[task]
    settings = _sort_keywords(task, options, sources, prompts)
    # A suite gives its tasks names and titles; here the kind of the task stands for both.
    settings |= {"name": task, "title": task}
    if prompts is not None:
        settings["prompts"] = prompts

    # 2. Inputs are opened by name, when they are first asked for.
    shown = SILENT
    if isinstance(progress, Progress):
        shown = progress
    elif progress:
        shown = Progress()
    inputs = Inputs(
        Options(Path(), pretrained=pretrained, device=device, data_root=root, unknown=unknown),
        sources,
        needs=f"task {task!r}",
        progress=shown,
        split=split,
    )

    # 3. What is compared: methods that are fitted now, and edits that were fitted before, by name.
    if issubclass(task_class, ImageTask):
        methods = _with_attachment(model, methods, inputs, settings)
    if methods is not None:
        if isinstance(methods, (str, Method, Edit)):
            methods = [methods]
        if not isinstance(methods, Iterable):
            raise InvalidInputError(f"methods: got {methods!r}; expected names, as [none, default]")
        named_methods: Iterable[tuple[str | None, Any]]
        if isinstance(methods, Mapping):
            named_methods = methods.items()
        else:
            named_methods = [(None, method) for method in methods]
        fitted_now = []
        fitted_before = {}
        for name, method in named_methods:
            if isinstance(method, Edit):
                fitted_before[name or f"fitted {method.method}"] = method
            else:
                fitted_now.append(get_compared(method, reference=reference))
        settings["methods"] = fitted_now
        inputs.sources["edits"] = fitted_before

    # 4. The task fills in its defaults, which may depend on the data: k is a twentieth of the
    # images, columns are found by their values. Then its `measure` gets what its arguments name:
    # of retrieval images, texts, reference, edits and progress.
    start = time.monotonic()
    with inputs.progress:
        planned = task_class.from_inputs(inputs, settings)
        results = planned.measured(inputs.of_task(planned))
    return Result.from_tasks(task, results, seconds=round(time.monotonic() - start, 3))


def _sort_keywords(
    task: str, options: Mapping[str, Any], sources: dict[str, Any], prompts: Any
) -> dict[str, Any]:
    """Return the options that are settings of a task, and add the inputs among them to sources.

    Where a setting and an input share a name, as `train` does, a split that is described is a
    setting; data are an input. Labels that are one column alone are named by the first column of
    prompts, or the prompt set.

    Raises:
        InvalidInputError: the task has no such option.
    """
    task_class = TASKS[task]
    setting_names = task_class.model_fields
    input_names = task_class.input_names()
    label_names = [name for name in LABELS if name.partition("_")[0] in input_names]
    known = sorted({*setting_names, *input_names, *label_names})
    settings = {}
    for name, value in options.items():
        if name not in known:
            raise InvalidInputError(
                f"evaluate: got {name!r}, which is no option of {task}; expected one of"
                f" {', '.join(known)}; {did_you_mean(name, known)}"
            )
        # `train=Data(name="celeba", split="train")` describes a split, as a suite would;
        # `train=features` is the split itself.
        is_described = name not in input_names or isinstance(value, (Strict, Mapping))
        if name in setting_names and is_described:
            settings[name] = value
        else:
            sources[name] = value
    # prompts={"gender": ..., "age": ...} with one column of labels: it is the first one's.
    if isinstance(prompts, Mapping):
        column_of_labels = next(iter(prompts), "")
    else:
        column_of_labels = str(getattr(prompts, "name", prompts))
    for name in LABELS:
        labels = sources.get(name)
        if labels is not None and not isinstance(labels, Mapping):
            sources[name] = {column_of_labels: labels}
    return settings


def _with_attachment(model: Any, methods: Any, inputs: Inputs, settings: dict[str, Any]) -> Any:
    """Return the methods to compare, by default the default, and the edit of the attachment that
    the model carries, where it carries one; its strength becomes the setting then.

    Raises:
        InvalidInputError: the attachment edits images alone.
    """
    attachment = None
    # A model that is named by a text carries none. An attachment is known by the modules that its
    # hooks stand on; a model has it on one of them.
    if model is not None and not isinstance(model, str):
        for module in inputs.texts.exclusive_modules:
            attachment = attachment or attachment_of(module)
    if attachment is None:
        return "default" if methods is None else methods
    if methods is not None:
        warn(
            "model: got one with an attachment, which is not among the methods; expected no"
            " methods= (it is measured then), or its edit among them",
            SuspectInputWarning,
        )
        return methods
    if not isinstance(attachment, EditAttachment) or TEXT not in attachment.projections:
        raise InvalidInputError(
            "model: got one whose attachment edits images alone (side='image'); expected"
            " one whose texts are edited, or methods= with what is to be measured"
        )
    # All methods are compared at the strength at which the user runs the model.
    settings.setdefault("strength", attachment.strength)
    edit = attachment.projections[TEXT]
    # A mapping to keep the order: what `debias` would attach, then what the model carries. None
    # stands for a method that is fitted now, under its own name.
    return {"default": None, f"attached {edit.method}": edit}

"""Evaluate methods from Python: sort arguments into settings and inputs, and run the task."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from vldebias.errors import (
    InvalidInputError,
    check_arguments,
    check_kind,
    expected_one_of,
    warn_of_input,
)
from vldebias.hosts import EditAttachment, attachment_of
from vldebias.hosts.edits import TEXT
from vldebias.methods import Method, Rerank, get_compared
from vldebias.projection.edit import Edit
from vldebias.report.result import Result
from vldebias.study.inputs import Inputs
from vldebias.study.task import TASKS
from vldebias.study.tasks.images import ImageTask
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Strict

if TYPE_CHECKING:
    import torch

    from vldebias.hosts import Host
    from vldebias.hosts.loading import Loaded
    from vldebias.methods import Compared
    from vldebias.methods.reference import Reference
    from vldebias.study.inputs import Columns, Images
    from vldebias.typing import AttributeLike, ModelLike, PipelineLike, Tokenizer

# A method or its name, a re-ranking, or a fitted edit.
AnyMethod: TypeAlias = "str | Compared | Edit"
LABELS = ("labels", "reference_labels", "train_labels", "val_labels")


@check_arguments("task")
def evaluate(
    model: str | Host | ModelLike | PipelineLike | Loaded | None,
    images: Images | None = None,
    *,
    attribute: AttributeLike | Mapping[str, AttributeLike] | None = None,
    labels: Columns | None = None,
    unknown: Hashable | Sequence[Hashable] = (),
    task: str = "retrieval",
    methods: AnyMethod | Sequence[AnyMethod] | Mapping[str, AnyMethod] | None = None,
    reference: Images | Reference | None = None,
    reference_labels: Columns | None = None,
    split: str = "test",
    root: str | Path | None = None,
    tokenizer: Tokenizer | None = None,
    pretrained: str | None = None,
    device: str | torch.device = "auto",
    progress: Progress | bool | None = None,
    **options: object,
) -> Result:
    """Measure the bias and utility of methods, with confidence intervals.

    See also docs/tutorials/evaluate-clip.md.

    Args:
        model: an open_clip or transformers model, a name that `vldebias.load_host` accepts, or a
            mapping from prompt to embedding (d,).
        images: features (n, d) as an array, a tensor or a list; a feature file (.npz, .npy, or a
            pattern such as "shards/*.npy"); `Embeddings` or `vldebias.data.Shards`; or an image
            folder or data set (`vldebias eval data`), which the model embeds. With captions
            (`Embeddings.from_arrays(features, labels, captions=texts)`), retrieval also measures
            their recall. If the model is a mapping, it must then also contain the captions.
        attribute: a prompt set or its name. For retrieval, this may also be a mapping from columns
            to sets, for several columns or a column that is not named after the attribute.
        labels: a mapping from columns to values of the n images, or a single column. Values are
            strings or integers; None, NaN and "" are unknown. Default: the labels in the data.
        unknown: additional values that mean "unknown", such as -1. These rows are counted, but
            excluded from groups.
        task: a name in `vldebias.study.TASKS`: "retrieval" (skew of the first k results),
            "groups" (worst-group accuracy), "generation", "texts" (distance between prompt pairs),
            or the name of a task that you registered.
        methods: one or more names in `vldebias.methods.METHODS`, methods or fitted edits, or a
            mapping from names to edits. Default: "default", for retrieval also "rerank", and the
            model's attachment ("attached cali"), at its strength. "none", the unedited model, is
            always measured, and changes are relative to it. For retrieval, "rerank" re-ranks the
            unedited model's results by its zero-shot labels (`vldebias.rerank`), and
            "default+rerank" re-ranks the default method's results.
        reference: image features (m, d), in any form that `images` accepts. Methods are then the
            ones that `vldebias.debias` attaches with these images: "default+reference", and for
            closed forms "cali+equalise" and the like.
        reference_labels: labels of these m images, for methods that need labels, and in the column
            "class", for the boundary of a classifier (`vldebias.methods.Reference`). Default: the
            labels in the reference, or the model's zero-shot labels. If all reference images are
            measured too, up to half of them, with a label in "class", are used and not measured.
        split: data set split to measure.
        root: folder that contains the data sets.
        tokenizer: the model's tokenizer, if it needs one.
        pretrained: weights for an open_clip model loaded by name.
        device: device for a model loaded by name, as for `vldebias.load_host`.
        progress: whether to show progress on stderr.
        options: task settings, and further inputs for the task's `measure`.

            - retrieval: `queries`, a list of strings or a prompt set whose class prompts are the
              queries (default: the class prompts); `k`, one or more numbers (default: a twentieth
              of the images, at least 10); `prior`, `classes` and `resample`.
            - groups: the columns `label` and `spurious` (by default, these are found by matching
              their values to the prompt set); `train`, `train_labels`, `val` and `val_labels` for
              `baselines`; `lams`, candidates for lam, the best of which is chosen on `val`; and
              `group_weights`.
            - retrieval and groups: `lam`, `strength`, `resamples` and `seed`.
            - generation: `model` is a pipeline; `judge` judges the images in the folder `images`;
              `attributes` and the other settings of `GenerationTask`.
            - texts: `model` is a model or a pipeline; `method` (a single one) and `lam`.

    Returns:
        A row for every metric, method and subset, with its interval and its change from "none".

    Raises:
        InvalidInputError: If an argument is invalid. The message names the argument.
        UnsupportedHostError: If the model is not supported.

    >>> from vldebias.miniature import open_world
    >>> images = open_world("portraits", n=60)
    >>> queries = ["A photo of a nurse."]
    >>> result = evaluate("miniature", images, attribute="gender", queries=queries, methods="cali")
    >>> sorted(set(result.to_pandas()["metric"]))[:5]
    ['awrf@10', 'max_skew@10', 'min_skew@10', 'mpr@10', 'ndkl@10']
    """
    # 1. Sort the keyword arguments into task settings and inputs. Image generation tasks call the
    # model "pipeline".
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
    settings = _sort_keywords(task, options, sources, attribute)
    # Only suites give their tasks names, so use the kind of task as the name.
    settings |= {"name": task, "title": task}
    if attribute is not None:
        settings["attribute"] = attribute

    # 2. Open inputs by name, on first access.
    shown = SILENT
    if isinstance(progress, Progress):
        shown = progress
    elif progress is not None:
        check_kind("progress", progress, bool, "True, False or a `Progress`")
        shown = Progress() if progress else SILENT
    inputs = Inputs(
        Options(
            Path(),
            pretrained=pretrained,
            device=str(device),
            data_root=root,
            unknown=cast("Any", unknown),
        ),
        sources,
        needs=f"task {task!r}",
        progress=shown,
        split=split,
    )

    # 3. Separate methods that need fitting from fitted edits.
    compared: AnyMethod | Iterable[AnyMethod] | Mapping[str, AnyMethod] | None = methods
    if issubclass(task_class, ImageTask):
        defaults = ("rerank", "default") if task_class.ranks_results else ("default",)
        compared = _with_attachment(model, methods, defaults, inputs, settings)
    if compared is not None:
        named_methods: Iterable[tuple[str | None, AnyMethod]]
        if isinstance(compared, Mapping):
            named_methods = compared.items()
        elif isinstance(compared, (str, Method, Rerank, Edit)):
            named_methods = [(None, compared)]
        elif isinstance(compared, Iterable):
            named_methods = [(None, method) for method in compared]
        else:
            raise InvalidInputError(
                f"methods: got {compared!r}; expected method names, such as ['none', 'default']"
            )
        methods_to_fit = []
        edits = {}
        for name, method in named_methods:
            if isinstance(method, Edit):
                edits[name or f"fitted {method.method}"] = method
            else:
                methods_to_fit.append(get_compared(method, reference=reference))
        settings["methods"] = methods_to_fit
        inputs.sources["edits"] = edits

    # 4. The task fills in defaults that depend on the data, such as k or the columns. Its `measure`
    # receives the inputs that have the names of its arguments.
    start = time.monotonic()
    with inputs.progress:
        planned = task_class.from_inputs(inputs, settings)
        results = planned.measured(planned.open_inputs(inputs))
    return Result.from_tasks(task, results, seconds=round(time.monotonic() - start, 3))


def _sort_keywords(
    task: str, options: Mapping[str, object], sources: dict[str, object], attribute: object
) -> dict[str, object]:
    """Return the options that are task settings, and add the others to the input sources.

    If a setting and an input share a name, such as `train`, a split description is treated as a
    setting, and data as an input. A single label column is named after the first column in
    `attribute`, or after the prompt set.

    Raises:
        InvalidInputError: If the task does not have an option with this name.
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
                f"evaluate: got {name!r}, which is not an option of {task};"
                f" {expected_one_of(name, known)}"
            )
        # `train=Data(name="celeba", split="train")` describes a split, and `train=features` is the
        # split itself.
        is_described = name not in input_names or isinstance(value, (Strict, Mapping))
        if name in setting_names and is_described:
            settings[name] = value
        else:
            sources[name] = value
    # For attribute={"gender": ..., "age": ...}, a single label column belongs to the first one.
    if isinstance(attribute, Mapping):
        column_of_labels = next(iter(attribute), "")
    else:
        column_of_labels = str(getattr(attribute, "name", attribute))
    for name in LABELS:
        labels = sources.get(name)
        if labels is not None and not isinstance(labels, Mapping):
            sources[name] = {column_of_labels: labels}
    return settings


def _with_attachment(
    model: object,
    methods: AnyMethod | Iterable[AnyMethod] | Mapping[str, AnyMethod] | None,
    defaults: tuple[str, ...],
    inputs: Inputs,
    settings: dict[str, object],
) -> AnyMethod | Iterable[AnyMethod] | Mapping[str, AnyMethod]:
    """Return the methods to compare: by default, `defaults` and the model's attachment.

    The attachment's strength becomes the setting "strength", so that all methods use it.

    Raises:
        InvalidInputError: If the attachment only edits images.
    """
    attachment = None
    # Look for an attachment on the model's modules. A model given by name does not have one.
    if model is not None and not isinstance(model, str):
        for module in inputs.texts.exclusive_modules:
            attachment = attachment or attachment_of(module)
    if attachment is None:
        return defaults if methods is None else methods
    if methods is not None:
        warn_of_input(
            "model: got a model with an attachment that is not among the methods; omit methods= to"
            " measure the attachment, or add its edit to the methods",
        )
        return methods
    if not isinstance(attachment, EditAttachment) or TEXT not in attachment.projections:
        raise InvalidInputError(
            "model: its attachment only edits images (side='image'); attach an edit of text, or"
            " pass methods= to choose what to measure"
        )
    # Compare all methods at the strength of the attachment.
    settings.setdefault("strength", attachment.strength)
    edit = attachment.projections[TEXT]
    # The methods are fitted later.
    return {**{name: name for name in defaults}, f"attached {edit.method}": edit}

"""Attach, fit or diagnose edits that mitigate the bias described by a prompt set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

from vldebias.data.cache import embed_images
from vldebias.data.labelled_folder import images_of_folder
from vldebias.errors import InvalidInputError, check_arguments
from vldebias.hosts import (
    Attachment,
    CallRecord,
    PromptAttachment,
    refuse_second,
    resolve,
)
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.loaded import Loaded
from vldebias.methods import (
    AttachSettings,
    Diagnostics,
    Method,
    Problem,
    get_edit_method,
    get_method,
)
from vldebias.methods.cross_attention import attach_fitted
from vldebias.methods.method import Lam
from vldebias.methods.reference import Reference
from vldebias.projection.edit import Edit, Edits
from vldebias.prompts import load_prompts

if TYPE_CHECKING:
    from vldebias.hosts import Host
    from vldebias.typing import (
        AttributeLike,
        Features,
        ModelLike,
        PipelineLike,
        PromptSetLike,
        Tokenizer,
    )
    from vldebias.wording.marks import Find


@check_arguments("shares", "strength")
def debias(  # noqa: PLR0913 (all settings of the main entry point)
    host: Host | Loaded | ModelLike | PipelineLike | Sequence[PipelineLike],
    attribute: AttributeLike | Edit | Mapping[str, Edit] | Attachment,
    *,
    method: str | Method | None = None,
    lam: Lam | None = None,
    strength: float = 1.0,
    keep_stated: bool = True,
    negative: bool = False,
    tokenizer: Tokenizer | None = None,
    reference: Reference | Features | str | Path | None = None,
    max_loss: float | None = None,
    side: str | None = None,
    on_call: Callable[[CallRecord], object] | None = None,
    shares: Mapping[str, float] | None = None,
    find: Find | None = None,
    follow_seeds: bool = True,
) -> Attachment:
    """Mitigate the bias described by a prompt set in a model or pipeline.

    Call `remove()` on the returned attachment to undo the change. With open_clip, a method that was
    stored before attaching (`f = model.encode_text`) stays unedited, so store it after attaching.
    The default method depends on the host:

    - For diffusers pipelines, a value is inserted into each prompt that does not state the
      attribute, with the values spread evenly over images (balanced prompts). If the set is not
      about people, or the pipeline edits an input image, the calibrated projection (Lemma 7.2) is
      used instead.
    - For open_clip or transformers models used for search (five or more class prompts, or none),
      the difference between the values' text embeddings is projected out and the groups' mean image
      features are equalised. This requires `reference`, and is only done if it helps on held-out
      reference images. Otherwise, nothing changes, and a warning explains why.
    - For the same models used as classifiers (one to four class prompts), the difference is
      projected out. With `reference`, the boundary between the classes is also moved, if 20 images
      labelled with their class (`Reference(features, labels={"class": ...})`) or unlabelled images
      show where it lies.

    See also docs/explanation/the-default.md, which explains how these defaults were chosen.

    Args:
        host: an open_clip model, a transformers image-text model, a diffusers pipeline, or a list
            of pipelines that process an image in sequence, such as a base model and a refiner. All
            pipelines of a list use the same value for an image. What `vldebias.load_host` returns
            includes the tokenizer. Other models are wrapped in a `Host` (`vldebias.hosts.custom`).
        attribute: the name of a prompt set (`vldebias.list_prompts()`), a path to a YAML file, a
            PromptSet, or a list of these, solved jointly. You can also pass a fitted edit, a
            mapping from role to edit, or another pipeline's attachment, whose sampled values are
            then reused.
        method: a Method, or its name in `vldebias.methods.METHODS`: "orth" (P0), "orth-cali" (Lemma
            7.1), "cali" (Lemma 7.2), "balanced-prompts", "paper" (the paper's settings) and others.
            If None, the default above is used.
        lam: the weight of the prompt pairs, one number or one per prompt set, if `method` is a name
            and the method has such a weight. If None, the method's default is used.
        strength: the fraction of the edit to apply, in [0, 1]. If 0, outputs are bit-identical.
        keep_stated: whether to leave prompts that contain one of the set's attribute words ("a
            photo of a female doctor") unchanged.
        negative: whether to also change a pipeline's negative prompt. By default, it is unchanged,
            as in the paper.
        tokenizer: the model's open_clip tokenizer, or transformers tokenizer or processor, if it
            cannot be derived from the model.
        reference: image features (n, d) of this model, a `Reference` with labels and settings, or
            a folder of images, which are embedded, with the answers that `vldebias label` stored
            in it. For a folder, `host` is what `vldebias.load_host` returns. The default for
            classifiers moves their boundary to where the images divide. Closed forms also equalise
            the mean features of the groups, which zero-shot classification assigns
            (`vldebias.methods.equalise`).
        max_loss: the maximum loss for a class prompt, in (0, 1), defined as 1 minus the cosine
            between its embeddings before and after the edit.
        side: the embeddings of an image-text model that the edit changes, "text", "image" or
            "both". By default, the side for which the method is designed (text, for closed forms).
        on_call: a function that is called with a `CallRecord` for each pipeline call whose images
            get sampled values, in that call's thread. Its exceptions are raised once the images
            are finished. See docs/how-to/serve-a-pipeline.md.
        shares: the share of the images for each value, for methods that sample values
            ("balanced-prompts", "cross-attention"). If None, shares are equal.
        find: a function that says who is shown in prompts about which the word lists are in doubt,
            such as a `ChatFinder`, for the same methods. See docs/how-to/balance-prompts.md.
        follow_seeds: whether to derive the sampled values from the generator and the prompt if a
            pipeline call passes `generator=`, so that identical calls show the same people. Values
            are then balanced exactly over consecutive seeds, and on average over random seeds. If
            False, values are balanced over all calls, regardless of seeds. See
            docs/how-to/serve-a-pipeline.md.

    Returns:
        An attachment that can pause, scale and remove the edits or the sampled values. If the
        default declines to edit, the attachment has no edits, its state is "declined", and you can
        call `debias` again at once.

    Raises:
        AlreadyAttachedError: If something is already attached, or merged into the weights.
        UnsupportedHostError: If the host, or the host with this method, is not supported.
        ProjectionMismatchError: If an edit was fitted on a different model.
        InvalidInputError: If arguments contradict each other or are out of range.

    Warns:
        AutoDeclinedWarning: If nothing changes for one or more prompt sets, because the default
            method predicts no improvement, or needs reference images to decide about a search.
        WideEditWarning, ClassSignalWarning: If the edit may change unrelated prompts, or removes
            differences between classes.

    >>> from vldebias.miniature import load_clip, load_pipeline
    >>> pipe = load_pipeline()  # or any diffusers pipeline
    >>> with debias(pipe, "professions-gender") as attachment:
    ...     images = pipe(["A photo of a nurse."] * 4, num_inference_steps=2).images
    ...     sorted(attachment.sampled)
    ['female', 'female', 'male', 'male']
    >>> model, preprocess, tokenizer = load_clip()
    >>> attachment = debias(model, "gender", method="cali", tokenizer=tokenizer)
    >>> attachment.remove()
    """
    settings = AttachSettings(
        strength,
        keep_stated,
        negative,
        side,
        shares,
        find=find,
        on_call=on_call,
        follow_seeds=follow_seeds,
    )
    passes = list(host) if isinstance(host, list | tuple) else [host]
    if not passes:
        raise InvalidInputError(
            "host: got an empty list; expected pipelines in the order in which they run"
        )
    target = resolve(passes[0], tokenizer=tokenizer, negative=negative, side=side)
    refuse_second(target)
    if len(passes) > 1 and not target.generative:
        raise InvalidInputError(
            f"host: got a {type(host).__name__} of {len(passes)} objects; pass its first item, the"
            " model (only pipelines are passed as a list)"
        )
    attachment: Attachment
    if isinstance(attribute, PromptAttachment):
        attachment = attribute.attach_to_later_pass(target)
    elif isinstance(attribute, Attachment):
        raise InvalidInputError(
            f"{target.name}: expected an attachment that inserts values into prompts, got"
            f" {attribute!r}. To attach its fitted edits to another pipeline, call debias(other,"
            " attachment.projections)"
        )
    elif isinstance(attribute, Edit) or _has_edits(attribute):
        if any(setting is not None for setting in (method, lam, reference, max_loss)):
            raise InvalidInputError(
                "got a fitted edit together with method, lam, reference or max_loss, which only"
                " apply when fitting; leave these out"
            )
        attachment = attach_fitted(target, attribute, settings)
    else:
        # Load and check prompts before choosing a method or embedding anything.
        sets = cast("AttributeLike", attribute)
        images = _opened(reference, passes[0])
        problem = Problem(target, sets, lam=lam, reference=images, max_loss=max_loss)
        chosen = get_method(method, lam=lam, reference=images)
        attachment = chosen.attach(problem, settings)
    try:
        for later in passes[1:]:
            debias(later, attachment)
    except BaseException:
        attachment.remove()
        raise
    return attachment


def _opened(
    reference: Reference | Features | str | Path | None, host: object
) -> Reference | Features | None:
    """Return reference features; the images in a folder are embedded, and keep their labels.

    Raises:
        InvalidInputError: If `reference` is a folder, and the host has no preprocessing.
    """
    if not isinstance(reference, str | Path) or not Path(reference).is_dir():
        return cast("Reference | Features | None", reference)
    if not isinstance(host, Loaded) or host.preprocess is None:
        raise InvalidInputError(
            f"reference: got the folder {str(reference)!r}, whose images need the model's"
            " preprocessing; pass host=vldebias.load_host(NAME), or image features (n, d)"
        )
    encoder = image_encoder(host.host, host.preprocess, name=host.name)
    rows = embed_images(images_of_folder(Path(reference)), encoder)
    return Reference(rows.features, labels=rows.labels)


def _has_edits(attribute: object) -> TypeGuard[Mapping[str, Edit]]:
    """Return whether a mapping contains edits, rather than the content of a prompt set."""
    if not isinstance(attribute, Mapping):
        return False
    return not attribute or any(isinstance(edit, Edit) for edit in attribute.values())


@check_arguments()
def fit_projections(
    host: Host | Loaded | ModelLike | PipelineLike,
    attribute: AttributeLike,
    *,
    method: str | Method | None = None,
    lam: Lam | None = None,
    tokenizer: Tokenizer | None = None,
    reference: Reference | Features | str | Path | None = None,
    max_loss: float | None = None,
) -> Edits:
    """Return a method's fitted edits by role, without attaching them.

    These are the edits that `debias` would attach, with one exception. For pipelines, the default
    of `debias` is balanced prompts, which are not an edit. Here, the default is `cali` with a lam
    that hardly affects unrelated prompts, and a log message reports this.

    See also docs/methods.md.

    Args:
        host: a model or pipeline as for `debias`, a mapping from prompt to embedding (d,), or a
            `Host`.
        attribute: one or more prompt sets, or their names or files.
        method: a method that fits an edit, or its name. If None, the default is used.
        lam: the weight of the prompt pairs. If None, the method's default is used.
        tokenizer: the model's open_clip tokenizer, or transformers tokenizer or processor, if it
            cannot be derived from the model.
        reference: image features (n, d) of this model, a `Reference`, or a folder as for `debias`,
            if the method uses images.
        max_loss: the maximum loss for a class prompt, in (0, 1): 1 minus the cosine between its
            embeddings before and after the edit.

    Returns:
        A mapping from role to edit. If the host has one role, `edits.only` is its edit.

    Raises:
        InvalidInputError: If the method attaches something other than an edit.

    Warns:
        AutoDeclinedWarning: If the default declines to edit.

    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> edits = fit_projections(model, "gender", method="cali", tokenizer=tokenizer)
    >>> list(edits)
    ['text']
    >>> edits.only.rank, edits.only.matrix().shape
    (90, torch.Size([256, 256]))
    >>> edits.only.save_pretrained("gender-edit")  # doctest: +SKIP
    """
    images = _opened(reference, host)
    problem = Problem(
        resolve(host, tokenizer=tokenizer),
        attribute,
        lam=lam,
        reference=images,
        max_loss=max_loss,
    )
    return get_edit_method(method, lam=lam, reference=images).fit_roles(problem)


@check_arguments()
def text_diagnostics(
    host: Host | Loaded | ModelLike | PipelineLike,
    attribute: PromptSetLike,
    *,
    method: str | Method | None = None,
    lam: Lam | None = None,
    tokenizer: Tokenizer | None = None,
    reference: Reference | Features | None = None,
    max_loss: float | None = None,
) -> dict[str, Diagnostics]:
    """Return diagnostics of a method's effect on text embeddings, by role (Tables 7.1 and 7.6).

    The result is empty if the default declines to edit. Errors are those of `fit_projections`.

    See also docs/explanation/projection.md.

    Args:
        host: a model or pipeline as for `debias`, a mapping from prompt to embedding (d,), or a
            `Host`.
        attribute: a prompt set, or its name or file.
        method: a Method or its name. If None, the default for this host and task is used.
        lam: the weight of the prompt pairs. If None, the method's default is used.
        tokenizer: the model's open_clip tokenizer, or transformers tokenizer or processor, if it
            cannot be derived from the model.
        reference: image features (n, d) of this model, a `Reference`, or a folder as for `debias`,
            if the method uses images.
        max_loss: the maximum loss for a class prompt, in (0, 1): 1 minus the cosine between its
            embeddings before and after the edit.

    Returns:
        A mapping from role ("text", or a text encoder's name for a pipeline) to `Diagnostics`.

    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> diagnostics = text_diagnostics(model, "gender", method="cali", tokenizer=tokenizer)["text"]
    >>> [round(distance, 2) for distance in diagnostics.pair_distance]  # before and after
    [0.19, 0.02]
    """
    target = resolve(host, tokenizer=tokenizer)
    prompt_set = load_prompts(attribute)
    edits = fit_projections(
        target, prompt_set, method=method, lam=lam, reference=reference, max_loss=max_loss
    )
    return {
        role: Diagnostics.from_edit(target, role, edit, prompt_set) for role, edit in edits.items()
    }

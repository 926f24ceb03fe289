"""debias() and its neighbours: the whole path from a prompt set to an attachment, a fitted edit or diagnostics."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from vldebias.diagnostics import readable
from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, SuspectInputWarning, warn
from vldebias.hosts import Attachment, Host, following, refuse_second, resolve
from vldebias.hosts.attached_edits import AttachedEdits
from vldebias.methods import (
    Auto,
    Bound,
    Bounded,
    Diagnostics,
    Method,
    Problem,
    RankShares,
    Reference,
    Steer,
    TargetShares,
    get_method,
)
from vldebias.methods.closed_form import DEFAULT, with_images
from vldebias.methods.labelled import labelled
from vldebias.methods.method import LAM_OF_PIPELINES, Prompts
from vldebias.methods.shares import AllShares
from vldebias.prompts import PromptSet, load_prompts
from vldebias.shelf import from_hub, is_shelved

AUTO = "auto"
TEXT_SIDE = "text"


def debias(
    host: Any,
    prompts: Prompts | Edit | Mapping[str, Edit],
    *,
    method: str | Method | None = None,
    lam: float | Sequence[float] | str | None = None,
    strength: float = 1.0,
    keep_stated: bool = True,
    negative: bool = False,
    tokenizer: Any = None,
    reference: Any = None,
    max_loss: float | Bound | None = None,
    side: str | None = None,
    follow: bool = False,
    steps: tuple[float, float] | None = None,
) -> Attachment:
    """Attach an edit that mitigates what `prompts` describe to the text embeddings of `host`.

    Args:
        host: an open_clip model, a transformers image-text model, or a diffusers pipeline.
        prompts: name of a prompt set (`vldebias.list_prompts()`), a path to a YAML file, a PromptSet, or a list of
            these, solved jointly; or fitted edits: one, a mapping from role to edit, or the folder or hub repository
            that they are shelved in ("user/sd35-gender", `vldebias.push_to_hub`).
        method: a name in `vldebias.methods.METHODS`, such as "orth" (P0), "orth-cali" (Lemma 7.1), "cali" (Lemma 7.2),
            "steer" (a value drawn for each image) or "auto" (chosen without labels; it changes nothing where nothing is
            expected to help), or a Method. "paper" is "orth-cali" with lam = 1000 for models and "cali" with lam = 500
            for pipelines. Default, chosen by a rule from measured tables (docs/explanation/the-default.md). For models
            "difference"; "cali" with lam = 100 where a lam is given, since that asks for a form with a weight, or where
            a set has no words for its values; with `reference` "cali+equalise" with lam = 100. For pipelines "cali",
            its lam lowered from 500 until at most a hundredth of the space is removed (one direction for each
            attribute where that is more), so that prompts outside the fit stay what they are; "cali" and "paper" by
            name, or a lam, go further and warn.
        lam: weight of the prompt pairs; one value, one per prompt set, or "auto". Without a method it asks for "cali".
            None: the default's, or the paper's under a method that is named.
        strength: share of the edit in [0, 1]; 0 is bit-identical to no attachment. What goes further than an edit is
            another edit: `fit_projection(...).at_strength(1.5)`.
        keep_stated: leave prompts alone that name an attribute word of the set ("a photo of a female doctor").
        negative: change the negative prompt of a pipeline as well. Default: untouched, as in the paper.
        tokenizer: the model's tokenizer, where it cannot be found from the model.
        reference: image features (n, d) of this model, or a `Reference` with settings around them and perhaps labels. A
            closed form is equalised against the means of their zero-shot groups as well (see
            `vldebias.methods.equalise`); methods that need labels read those of the reference, else the zero-shot ones.
        max_loss: most that a neutral text may lose: 1 - its cosine with itself afterwards, in (0, 1). By default the
            class prompts of the set are neutral; a `Bound` names others (see `vldebias.methods.bounded`).
        side: of an image-text model, "text", "image" (the image embeddings instead) or "both": one edit, fitted
            once, attached where they come out. What that does, and why `keep_stated` has no say over images, is in
            `vldebias.hosts.side`. Default: what the edit is for (`Edit.side`), texts for all closed forms.
        follow: of a diffusers pipeline, carry the edit over to each that is made around its encoders from here on
            (`from_pipe`, `Pipeline(**pipe.components)`), until this attachment is removed. Default: such a pipeline
            draws without it and says so.
        steps: of a diffusers pipeline, the share of the denoising steps in which it acts: (0, 0.4) for the first two
            fifths. `attachment.strength` may then be set between two steps, as in `callback_on_step_end`. A pipeline
            that reads something made of its embeddings before the first step refuses when it draws.

    Returns:
        An Attachment: `.remove()`, `.disabled()`, with-statement, `.strength`, `.projections`, `.merge()`.

    Raises:
        AlreadyAttachedError, UnsupportedHostError, PromptSetError, ProjectionMismatchError, InvalidInputError.

    Warns:
        WideEditWarning: a fit to a pipeline that removes more than a fortieth of the space, as shrinking a quarter of
            it by a tenth does: other prompts may be drawn as something else. ClassSignalWarning: one that removes more
            than half of what tells the classes apart.

    >>> attachment = debias(model, "gender", tokenizer=tokenizer)  # doctest: +SKIP
    """
    target = resolve(host, tokenizer=tokenizer, negative=negative, side=side or TEXT_SIDE)
    target = target if steps is None else target.within(steps)
    refuse_second(target)
    if follow:
        following.check_followed(next(iter(target.exclusive_modules), None))
    if isinstance(prompts, str | Path) and is_shelved(prompts):
        prompts = from_hub(prompts)
    if isinstance(prompts, (Edit, Mapping)):
        if reference is not None or max_loss is not None:
            raise InvalidInputError(
                "reference and max_loss belong to fitting; a fitted projection carries what it was fitted with"
            )
        if method is not None or lam is not None:
            raise InvalidInputError("method and lam belong to fitting; a fitted projection carries its own")
        edits = prompts if isinstance(prompts, Mapping) else {target.roles[0]: prompts}
        target = _sided(target, edits, side)
        placed = AttachedEdits.on(target, edits, keep_stated)
        if any(e.space is None and e.provenance.fingerprint is None for e in placed.edits.values()):
            warn(
                f"{target.name}: nothing says which model the projection was fitted on, so another model's of the same "
                "width would be taken as well; vldebias.fit_projection(model, prompts) writes it down",
                SuspectInputWarning,
            )
        attachment = Attachment(target, placed.edits, strength=strength, gate=placed.gate, label=placed.label)
        return _followed(attachment, follow)
    problem, chosen = make_problem(target, prompts, method, lam, reference, max_loss)
    if target.generative and method is None:
        _say_what_to_expect()
    fit_role = partial(problem.fit, chosen)
    fitted = {role: fit_role(role) for role in dict.fromkeys(map(target.fitted_as, target.roles))}
    target = _sided(target, fitted, side)
    gate = AttachedEdits.gate_of(target, problem.stated_words if keep_stated else ())
    edits = {role: fitted[target.fitted_as(role)] for role in target.roles}
    if negative and any(edit.sampled for edit in edits.values()):
        raise InvalidInputError(f"method {chosen.name!r} gives an image its value by its prompt; leave negative=False")
    attachment = Attachment(target, edits, strength=strength, gate=gate, fit_role=fit_role, label=problem.label)
    return _followed(attachment, follow)


@cache  # once in a process
def _say_what_to_expect() -> None:
    logging.getLogger("vldebias").warning(
        "the default of a pipeline makes prompts say less of the attribute, and hardly changes the shares of what is "
        'drawn; method="stated-value" draws a value for each image and does (docs/generation.md has the figures)'
    )


def _followed(attachment: Attachment, follow: bool) -> Attachment:
    if follow:
        following.follow(attachment)
    return attachment


def fit_projections(
    host: Any,
    prompts: Prompts,
    *,
    method: str | Method | None = None,
    lam: float | Sequence[float] | str | None = None,
    tokenizer: Any = None,
    reference: Any = None,
    max_loss: float | Bound | None = None,
) -> dict[str, Edit]:
    """The edits that `debias` would attach, by role, without attaching them."""
    target = resolve(host, tokenizer=tokenizer)
    problem, chosen = make_problem(target, prompts, method, lam, reference, max_loss)
    return {role: problem.fit(chosen, role) for role in target.roles}


def fit_projection(
    host: Any,
    prompts: Prompts,
    *,
    method: str | Method | None = None,
    lam: float | Sequence[float] | str | None = None,
    tokenizer: Any = None,
    role: str | None = None,
    reference: Any = None,
    max_loss: float | Bound | None = None,
    reference_images: Any = None,
) -> Any:
    """The edit for one role of `host`; `role` may be left out where the host has a single one.

    reference_images: another name of `reference`.
    """
    target = resolve(host, tokenizer=tokenizer)
    if role is None and len(target.roles) > 1:
        raise InvalidInputError(
            f"{target.name} has the roles {list(target.roles)}: choose one with role=, or use fit_projections for all"
        )
    images = reference if reference is not None else reference_images
    problem, chosen = make_problem(target, prompts, method, lam, images, max_loss)
    return problem.fit(chosen, role or target.roles[0])


def inspect(
    host: Any,
    prompts: str | Path | PromptSet,
    *,
    method: str | Method | None = None,
    lam: float | str | None = None,
    tokenizer: Any = None,
    reference: Any = None,
    max_loss: float | Bound | None = None,
    images: Any = None,
) -> dict[str, Diagnostics]:
    """What a method does to the texts of one prompt set, by role (Tables 7.1 and 7.6).

    Args:
        images: features (n, d) of this model, unlabelled, of the images that are to be classified. They say where the
            boundary between two class prompts lies before and after, and which offset puts it into the middle
            (`Diagnostics.boundary`), as `evaluate(task="groups", offset=True)` does. Nothing is fitted to them.
            Default: the reference, which is second best: its classes may go with the attribute in another way.
            With labels of the attribute (a `Reference` with `labels`, or `Embeddings`), how well a linear probe and the
            nearest neighbour read it before and after the edit of images (`Diagnostics.readable`).
        method, lam, reference, max_loss, tokenizer: as of `debias`.

    Raises:
        UnsupportedHostError, PromptSetError, InvalidInputError: as `debias`; images for a pipeline.
    """
    target, prompt_set = resolve(host, tokenizer=tokenizer), load_prompts(prompts)
    problem, chosen = make_problem(target, prompt_set, method, lam, reference, max_loss)
    if images is not None and target.generative:
        raise InvalidInputError(f"{target.name}: it classifies no images; leave images= away")
    seen = None if images is None else Reference.of(images)
    by_role = {}
    for role in target.roles:
        edit = problem.fit(chosen, role)
        by_role[role] = problem.diagnose(role, edit, prompt_set, seen)
        if seen is not None and seen.labels and not prompt_set.parts:
            ((rows, codes),) = labelled(replace(problem, reference=seen), role).known()
            before, after = (readable(one, codes.numpy()) for one in (rows, edit.image(rows)))
            read = {name: (one.accuracy, after[name].accuracy, after[name].limit) for name, one in before.items()}
            by_role[role] = replace(by_role[role], readable=read)
    return by_role


def steer(
    pipe: Any,
    prompts: Prompts,
    shares: AllShares | None = None,
    *,
    strength: float = 1.0,
    push: float = 1.0,
    lam: float = LAM_OF_PIPELINES,
    keep_stated: bool = True,
    stratify: int | None = None,
) -> Attachment:
    """Give each image of a pipeline an attribute value, drawn from `shares`.

    `debias(pipe, prompts, method="steer")` is the same with uniform shares. Every call works as it did before::

        attachment = vldebias.steer(pipe, "professions-gender", {"female": 0.5, "male": 0.5})
        images = pipe("A photo of a nurse.", num_images_per_prompt=4).images
        attachment.drawn  # ["male", "female", "female", "male"]

    Each value has its share of the images of a prompt to within one image, in one call and over many. The same calls
    after `attachment.seed = 0` draw the same values again. To tie the value to the seed of an image, tell the seeds::

        images = pipe(["A photo of a nurse."] * 4, generator=attachment.generators([0, 1, 2, 3])).images

    It acts on every prompt that does not state its attribute, also on one that is not about people.

    Args:
        prompts: a prompt set with attribute words and groups that name every value, or several for combinations.
        shares, push, stratify: see `vldebias.methods.Steer`; `stratify` counts where seeds are told.
        lam: weight of the differences between values; the larger, the less the prompt's own lean counts.
        pipe, strength, keep_stated: as of `debias`.

    Returns:
        An Attachment; `.values(prompts, seeds)` says which value each image is given.

    Raises:
        AlreadyAttachedError, UnsupportedHostError, PromptSetError, InvalidInputError: as `debias`.
    """
    method = Steer(shares, push=push, stratify=stratify)
    return debias(pipe, prompts, method=method, lam=lam, strength=strength, keep_stated=keep_stated)


def fit_shares(
    model: Any,
    prompts: Prompts,
    shares: AllShares | str | None = None,
    *,
    top: float,
    reference: Any = None,
    method: str = "equalise",
    lam: float = 1000.0,
    population: Mapping[str, float] | None = None,
    tokenizer: Any = None,
    reference_images: Any = None,
) -> TargetShares:
    """Move queries of retrieval so that each group has a given share among the first results.

    Args:
        model: an open_clip or transformers image-text model, or a mapping from prompt to embedding.
        prompts: a prompt set with words for each value of its attribute, or several for combinations, "female/Black".
        shares, top, population: see `vldebias.methods.RankShares`.
        reference: unlabelled image features (n, d) of this model, or a `vldebias.Reference` with settings around
            them, of which `confidence` and `logit_scale` count; images like those that will be ranked.
        method: "equalise" (images alone) or "cali" (prompt pairs as well).
        lam: weight of the differences between the groups, and of the prompt pairs.
        tokenizer: where it cannot be found from the model.
        reference_images: another name of `reference`.

    Returns:
        A TargetShares: call it on embeddings (q, d) of queries, or attach it; `.expected(queries)` predicts the shares.

    Raises:
        InvalidInputError, PromptSetError, UnsupportedHostError.

    >>> move = fit_shares(model, "gender", {"male": 0.3, "female": 0.7}, reference=x, top=0.05)  # doctest: +SKIP
    """
    kinds = {"equalise": False, "cali": True}
    if method not in kinds:
        raise InvalidInputError(f"method: expected one of {', '.join(kinds)}, got {method!r}")
    images = reference if reference is not None else reference_images
    problem = Problem.of(model, prompts, lam=lam, reference=images, tokenizer=tokenizer)
    ranked = RankShares(shares, top=top, pairs=kinds[method], population=population)
    edit = problem.fit(ranked, problem.host.roles[0])
    assert isinstance(edit, TargetShares)
    return edit


def make_problem(
    target: Host,
    prompts: Prompts,
    method: str | Method | None,
    lam: float | Sequence[float] | str | None,
    reference: Any,
    max_loss: float | Bound | None,
) -> tuple[Problem, Method]:
    """The problem, and the method with what the other arguments of `debias` make of it.

    Raises:
        InvalidInputError, PromptSetError: as `debias`.
    """
    if isinstance(lam, str) and lam != AUTO:
        raise InvalidInputError(f"lam: expected a number, one per prompt set, or 'auto', got {lam!r}")
    chosen = get_method(DEFAULT if method is None else method)
    problem = Problem.of(target, prompts, lam=None if isinstance(lam, str) else lam, reference=reference)
    if reference is not None:
        chosen = with_images(chosen)
    if lam == AUTO and not isinstance(chosen, Auto):
        chosen = Auto([chosen.for_host(target)])
    return problem, chosen if max_loss is None else Bounded(chosen, max_loss)


def _sided(target: Host, edits: Mapping[str, Edit], side: str | None) -> Host:
    """The host with its seams where the edits act.

    Raises:
        InvalidInputError: they act on images and the user wants the texts alone. UnsupportedHostError: no image tower.
    """
    own = next((edit.side for edit in edits.values() if edit.side != TEXT_SIDE), TEXT_SIDE)
    if side == TEXT_SIDE and own == "image":
        method = next(iter(edits.values())).method
        raise InvalidInputError(
            f"method {method!r} acts on images, so side='text' would change nothing; leave side out"
        )
    return target if side is not None or own == TEXT_SIDE else target.at(own)

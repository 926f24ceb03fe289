"""Attach, fit or inspect edits that mitigate the bias which a prompt set describes: `debias` and
related functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError, SuspectInputWarning, warn
from vldebias.hosts import Attachment, CallLog, CallRecord, Host, refuse_second, resolve
from vldebias.methods import (
    Balanced,
    Diagnostics,
    Method,
    Problem,
    Prompts,
    RankShares,
    TargetShares,
    get_method,
    prompt_set_of,
)
from vldebias.methods.presets import log_once, make_balancer, why_not_balanced
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet, load_prompts

DENOISER = "denoiser"  # the side of edits that act inside of a pipeline's denoiser
CROSS_ATTENTION = "cross-attention"  # whose settings are those of a fitted edit


def debias(  # noqa: PLR0913 (the settings of the one public entry point)
    host: Any,
    prompts: Prompts | Edit | Mapping[str, Edit] | Attachment,
    *,
    method: str | Method | None = None,
    lam: float | Sequence[float] | None = None,
    strength: float = 1.0,
    keep_stated: bool = True,
    negative: bool = False,
    tokenizer: Any = None,
    reference: Any = None,
    max_loss: float | None = None,
    side: str | None = None,
    on_call: Callable[[CallRecord], object] | None = None,
    shares: Mapping[str, float] | None = None,
    follow_seeds: bool = True,
) -> Attachment:
    """Attach to `host` what mitigates the bias that `prompts` describe; by default it depends on
    the host:

    - diffusers pipeline: prompts that leave the attribute open state a value, evenly over images
      (balanced prompts). A set that is not about persons, or a pipeline that edits a given image,
      gets calibrated projection (Lemma 7.2).
    - open_clip or transformers model, to search (five class prompts or more, or none): with
      `reference`, the difference of the values' texts is projected out and the image means are made
      equal, if that helps on reference images outside the fit. Otherwise, and without `reference`,
      nothing changes, and a warning says why.
    - the same model, to classify (one to four class prompts): the difference is projected out;
      with `reference`, calibrated projection on equalised image means.

    docs/explanation/the-default.md has the tests and their figures. `attachment.remove()` restores
    the host.

    Args:
        host: an open_clip model, a transformers image-text model, or a diffusers pipeline; or a
            list of pipelines that draw a picture one after the other, such as base and refiner,
            which give it one value.
        prompts: name of a prompt set (`vldebias.list_prompts()`), a path to a YAML file, a
            PromptSet, or a list of these, solved jointly; or fitted edits: one, or a mapping from
            role to edit; or the attachment of the pipeline whose pictures this one draws on.
        method: a Method or a name in `methods.METHODS`: "orth" (P0), "orth-cali" (Lemma 7.1),
            "cali" (Lemma 7.2), "balanced-prompts", "paper" (its presets) and others. None is the
            default above.
        lam: weight of the prompt pairs, for a named method that has one: one value, or one per
            prompt set, which all attributes of the set get. None: its default.
        strength: share of the edit in [0, 1]; 0 is bit-identical to no attachment.
        keep_stated: leave prompts alone that name an attribute word of the set ("a photo of a
            female doctor").
        negative: change the negative prompt of a pipeline as well. Default: untouched, as in the
            paper.
        tokenizer: the model's tokenizer, where it cannot be found from the model.
        reference: image features (n, d) of this model, or a `Reference` with settings around them
            and perhaps labels. A closed form is equalised against the means of their zero-shot
            groups as well (`vldebias.methods.equalise`).
        max_loss: the most that a class prompt of the set may lose: 1 - its cosine with itself
            afterwards, in (0, 1).
        side: which embeddings of an image-text model the edit changes: "text", "image" or "both".
            Default: what it is for, texts for all closed forms.
        on_call: for a service that logs: a function that gets the `CallRecord` of each call of a
            pipeline whose values are dealt to images, from the thread of that call. What it raises
            is raised when the pictures are made. docs/how-to/serve-a-pipeline.md
        shares: value -> share of the images, for methods that deal values ("balanced-prompts",
            "cross-attention"). None: even shares.
        follow_seeds: where a call of a pipeline passes `generator=`, let the values that are dealt
            follow from the generator and the prompt, so that the same call shows the same persons;
            consecutive seeds are balanced exactly, random ones on average. False: values are even
            over all calls, whatever their seeds. docs/how-to/serve-a-pipeline.md

    Raises:
        AlreadyAttachedError, UnsupportedHostError, ProjectionMismatchError, InvalidInputError.

    Warns:
        AutoDeclinedWarning: the default predicts no improvement, or has no reference images to test
            a search with, so nothing is changed.
        WideEditWarning, ClassSignalWarning: the edit may change other prompts, or removes
            differences of classes.

    >>> attachment = debias(model, "gender", tokenizer=tokenizer)  # doctest: +SKIP
    """
    # Of pipelines that draw a picture one after the other, the first deals the values.
    passes = list(host) if isinstance(host, list | tuple) else [host]
    if not passes:
        raise InvalidInputError("host: got an empty list; expected pipelines, the first one first")
    target = resolve(passes[0], tokenizer=tokenizer, negative=negative, side=side)
    refuse_second(target)
    log = CallLog(on_call, follow_seeds)
    # Three things can be attached: edits that were fitted before, what deals values to images, or
    # the edits of a method, which are fitted here.
    if isinstance(prompts, Attachment):
        attachment = _attach_following(target, prompts)
    elif isinstance(prompts, (Edit, Mapping)):
        settings = (method, lam, reference, max_loss)
        if any(setting is not None for setting in settings):
            raise InvalidInputError(
                "got a fitted edit and method, lam, reference or max_loss; leave these out"
            )
        attachment = _attach_fitted(target, prompts, strength, keep_stated, side, shares, log)
    else:
        # Prompts are read and looked at here, before a method is chosen and anything is embedded.
        problem = Problem(target, prompts, lam=lam, reference=reference, max_loss=max_loss)
        chosen = get_method(method, lam=lam, reference=reference)
        if chosen.name == "default" and target.generative:
            reason = why_not_balanced(problem)
            if reason is None:
                chosen = Balanced()
            else:
                log_once(
                    f'{reason}, so its prompts are not balanced: the default here is "cali", which'
                    " makes prompts say less of the attribute and hardly changes who appears"
                )
        if isinstance(chosen, Balanced) or chosen.side == DENOISER:
            _refuse_settings_of_edits(chosen, negative, keep_stated, max_loss)
            edits = dict[str, Edit]()  # in cross-attention; where words are written there is none
            if chosen.side == DENOISER:
                target = _at_denoiser(target, problem.attributes)
                problem = replace(problem, host=target)
                edits = {role: problem.fit(chosen, role) for role in target.roles}
            attachment = _attach_dealing(
                target, chosen, problem.sets, edits, strength, problem.label, shares, log
            )
        else:
            _refuse_dealing(f"method {chosen.name!r}", shares, log)
            attachment = _fit_and_attach(problem, chosen, strength, keep_stated, side)
    _attach_later_passes(passes[1:], attachment)
    return attachment


def _attach_later_passes(hosts: Sequence[Any], first: Attachment) -> None:
    """Let further pipelines that draw on the pictures of the first one follow its attachment."""
    try:
        for host in hosts:
            debias(host, first)
    except BaseException:
        first.remove()
        raise


def _attach_following(target: Host, first: Attachment) -> Attachment:
    """Attach to a later pass over the pictures of another pipeline, such as a refiner, so that its
    prompts get the values that the first attachment gave."""
    if first.balancer is None or first.projections:
        raise InvalidInputError(
            f"{target.name}: got {first!r} to follow; expected an attachment that writes values"
            " into prompts. Fitted edits are attached to each pipeline: debias(other,"
            " attachment.projections)"
        )
    if first.state != "attached":
        raise InvalidInputError(
            f"{target.name}: got an attachment to follow that is {first.state}; attach it first"
        )
    attachment = Attachment(
        target,
        {},
        strength=first.strength,
        label=first.label,
        balancer=first.balancer,
        log=first.log,
    )
    attachment.follow(first)
    return attachment


def _attach_fitted(
    target: Host,
    fitted: Edit | Mapping[str, Edit],
    strength: float,
    keep_stated: bool,
    side: str | None,
    shares: Mapping[str, float] | None,
    log: CallLog,
) -> Attachment:
    """Attach edits that were fitted before, by role or one for all roles."""
    if isinstance(fitted, Mapping):
        edits = dict(fitted)
    elif fitted.side == DENOISER:
        edits = {fitted.side: fitted}
    else:
        edits = {target.roles[0]: fitted}
    if not edits:
        raise InvalidInputError(
            "got an empty mapping; expected role -> fitted edit, see vldebias.fit_projections"
        )
    if all(edit.side == DENOISER for edit in edits.values()):
        return _attach_fitted_dealing(target, list(edits.values()), strength, shares, log)
    _refuse_dealing("a fitted edit", shares, log)
    stated_words: dict[str, None] = {}  # each word and label once, in order
    labels: dict[str, None] = {}
    for edit in edits.values():
        labels[edit.provenance.prompts or "projection"] = None
        if keep_stated:
            stated_words |= dict.fromkeys(edit.stated_words)
    target = _at_side_of_edits(target, edits, side)
    edits = target.edits_by_role(edits)
    for edit in edits.values():
        if not edit.space and not edit.provenance.fingerprint:
            warn(
                f"{target.name}: the projection does not say which model it was fitted on, so it"
                " cannot be checked; fit it with vldebias.fit_projection(model, prompts)",
                SuspectInputWarning,
            )
            break
    return Attachment(
        target,
        edits,
        strength=strength,
        stated_words=tuple(stated_words),
        label="+".join(labels),
    )


def _attach_fitted_dealing(
    target: Host,
    edits: Sequence[Any],
    strength: float,
    shares: Mapping[str, float] | None,
    log: CallLog,
) -> Attachment:
    """Attach edits of cross-attention that were fitted before; prompts are read by the words that
    they carry."""
    sets = [prompt_set_of(edit) for edit in edits]
    host = _at_denoiser(target, sets)
    edit_of_role = {edit.attribute: edit for edit in edits}
    for role, edit in edit_of_role.items():
        host.check(role, edit)
    dealer = get_method(CROSS_ATTENTION)
    label = "+".join(edit_of_role)
    return _attach_dealing(host, dealer, sets, edit_of_role, strength, label, shares, log)


def _attach_dealing(
    target: Host,
    dealer: Any,
    sets: Sequence[PromptSet],
    edits: Mapping[str, Edit],
    strength: float,
    label: str,
    shares: Mapping[str, float] | None,
    log: CallLog,
) -> Attachment:
    """Attach a method that deals the values of prompt sets to images: `edits` set them in
    cross-attention; without edits they are written into prompts."""
    balancer = make_balancer(dealer, sets, shares)
    return Attachment(target, edits, strength=strength, label=label, balancer=balancer, log=log)


def _refuse_settings_of_edits(
    dealer: Method, negative: bool, keep_stated: bool, max_loss: float | None
) -> None:
    """Refuse settings of edits of embeddings for a method that deals values to images."""
    if negative or not keep_stated:
        raise InvalidInputError(
            f"method {dealer.name!r} rewrites no negative prompts, and writes no value where the"
            " prompt states one; leave out negative=True and keep_stated=False, or use an edit"
            " such as method='cali'"
        )
    if isinstance(dealer, Balanced) and max_loss is not None:
        raise InvalidInputError(
            f"max_loss: it bounds an edit of embeddings, and method {dealer.name!r} writes words"
            " into prompts; leave max_loss out, or use method='cali'"
        )


def _refuse_dealing(subject: str, shares: Mapping[str, float] | None, log: CallLog) -> None:
    """Refuse `on_call` and `shares` for a method or an edit that deals no values to images."""
    if log.on_call is not None:
        raise InvalidInputError(
            f"on_call: {subject} deals no values to images, so there is nothing to report; leave it"
            " out, or use method='balanced-prompts'"
        )
    if shares is not None:
        raise InvalidInputError(
            f"shares: {subject} deals no values; use method='balanced-prompts' or 'cross-attention'"
        )


def _fit_and_attach(
    problem: Problem, method: Method, strength: float, keep_stated: bool, side: str | None
) -> Attachment:
    """Fit an edit for each role and attach them."""
    target = problem.host
    # Texts and images of a model are two roles of one space: fitted once, both get the same edit.
    edit_of_space = dict[str, Edit]()
    edits = dict[str, Edit]()
    for role in target.roles:
        space = target.space(role)
        if space not in edit_of_space:
            edit_of_space[space] = problem.fit(method, role)
        edits[role] = edit_of_space[space]
    if any(edit.side != "text" for edit in edits.values()):
        target = _at_side_of_edits(target, edits, side)
    # There a host has other roles.
    if target is not problem.host:
        edits = target.edits_by_role(edits)
    stated_words = problem.stated_words if keep_stated else ()
    return Attachment(
        target, edits, strength=strength, stated_words=stated_words, label=problem.label
    )


def _at_denoiser(pipeline: Host, sets: Iterable[PromptSet]) -> Host:
    """Return the host of a pipeline's denoiser, where each attribute is a role."""
    host = pipeline.at(DENOISER)
    host.roles = tuple(prompt_set.name for prompt_set in sets)
    return host


def _at_side_of_edits(target: Host, edits: Mapping[str, Edit], side: str | None) -> Host:
    """Return the host at the side that the edits act on, where no side was asked for."""
    beyond_texts = [edit for edit in edits.values() if edit.side != "text"]
    if not beyond_texts:
        return target
    edit = beyond_texts[0]
    # An attachment without any effect would look like a mitigation.
    if side == "text" and edit.side == "image":
        raise InvalidInputError(
            f"method {edit.method!r} acts on images, so side='text' would change nothing;"
            " leave it out"
        )
    if side is None:
        return target.at(edit.side)
    return target


def fit_projections(
    host: Any,
    prompts: Prompts,
    *,
    method: str | Method | None = None,
    lam: float | Sequence[float] | None = None,
    tokenizer: Any = None,
    reference: Any = None,
    max_loss: float | None = None,
) -> dict[str, Edit]:
    """Return the fitted edits of a method by role, without attaching them.

    These are what `debias` would attach, with one exception: the default of a pipeline is balanced
    prompts, which are not an edit, so here it is `cali`, and the log says so.
    """
    problem = Problem(
        resolve(host, tokenizer=tokenizer), prompts, lam=lam, reference=reference, max_loss=max_loss
    )
    chosen = get_method(method, lam=lam, reference=reference)
    if chosen.side == DENOISER:
        problem = replace(problem, host=_at_denoiser(problem.host, problem.attributes))
    return {role: problem.fit(chosen, role) for role in problem.host.roles}


def fit_projection(host: Any, prompts: Prompts, **how: Any) -> Any:
    """Return the edit of a host with one role; how: see `fit_projections`, which takes hosts with
    several roles."""
    edits = fit_projections(host, prompts, **how)
    if len(edits) > 1:
        raise InvalidInputError(
            f"the host has the roles {list(edits)}: use fit_projections, and choose one of its"
            " edits"
        )
    return next(iter(edits.values()))


def inspect(
    host: Any, prompts: str | Path | PromptSet, *, tokenizer: Any = None, **how: Any
) -> dict[str, Diagnostics]:
    """Return diagnostics, by role, of what a method does to the texts of one prompt set (Tables 7.1
    and 7.6).

    how: method, lam, reference and max_loss, see `debias`, which raises the same errors.
    """
    target = resolve(host, tokenizer=tokenizer)
    prompt_set = load_prompts(prompts)
    edits = fit_projections(target, prompt_set, **how)
    return {
        role: Diagnostics.from_edit(target, role, edit, prompt_set) for role, edit in edits.items()
    }


def fit_shares(
    model: Any,
    prompts: Prompts,
    shares: Mapping[str, float] | None = None,
    *,
    top: float,
    reference: Any = None,
    lam: float = 1000.0,
    tokenizer: Any = None,
) -> TargetShares:
    """Fit an edit of queries that gives each group a target share among the first results; call it
    or attach it.

    Args:
        model: an open_clip or transformers image-text model, or a mapping from prompt to embedding.
        prompts: a prompt set with words for each value of its attribute, or several for
            combinations, "female/Black".
        shares, top: see `vldebias.methods.RankShares`. lam: weight of the differences between the
            groups.
        reference: unlabelled image features (n, d) of this model, of images like those that will be
            ranked.

    >>> shares = {"male": 0.3, "female": 0.7}
    >>> move = fit_shares(model, "gender", shares, reference=x, top=0.05)  # doctest: +SKIP
    """
    problem = Problem(resolve(model, tokenizer=tokenizer), prompts, lam=lam, reference=reference)
    edit = problem.fit(RankShares(shares, top=top), problem.host.roles[0])
    assert isinstance(edit, TargetShares)
    return edit

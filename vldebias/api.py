"""debias() and fit_projection(): presets and dispatch, the whole path from a prompt set to an attachment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vldebias.attachment import Attachment, refuse_second
from vldebias.bounded import Bound
from vldebias.diagnostics import Diagnostics
from vldebias.equalise import Reference
from vldebias.errors import InvalidInputError
from vldebias.fitting import METHODS, Fit, Prompts
from vldebias.hosts import Host, resolve
from vldebias.hosts.sides import IMAGE
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet, load_prompts
from vldebias.stated import StatedWords

__all__ = ["METHODS", "debias", "fit_projection", "fit_projections", "inspect"]


def debias(
    host: Any,
    prompts: Prompts | CalibratedProjection | Mapping[str, CalibratedProjection],
    *,
    method: str | None = None,
    lam: float | Sequence[float] | str | None = None,
    strength: float = 1.0,
    keep_stated: bool = True,
    negative: bool = False,
    tokenizer: Any = None,
    reference: Any = None,
    max_loss: float | Bound | None = None,
    side: str = "text",
) -> Attachment:
    """Attach a projection that mitigates what `prompts` describe to the text embeddings of `host`.

    Args:
        host: an open_clip model, a transformers image-text model, or a diffusers pipeline.
        prompts: name of a prompt set (`vldebias.list_prompts()`), a path to a YAML file, a PromptSet, or a list of
            these, solved jointly; or fitted projections: one, or a mapping from role to projection.
        method: "orth" (P0), "orth-cali" (Lemma 7.1) or "cali" (Lemma 7.2); "difference" (P0 of what tells the values
            of the attribute apart, not of what they share) or "equalise" (`reference` alone); "auto" chooses without
            labels, and changes nothing where nothing is expected to help (see `vldebias.choosing`). Default: the
            paper's, "cali" with lam = 500 for pipelines and "orth-cali" with lam = 1000 for models; "cali" with
            `reference`.
        lam: weight of the prompt pairs; one value, one per prompt set, or "auto".
        strength: share of the projection in [0, 1]; 0 is bit-identical to no attachment.
        keep_stated: leave prompts alone that name an attribute word of the set ("a photo of a female doctor").
        negative: project the negative prompt of a pipeline as well. Default: untouched, as in the paper.
        tokenizer: the model's tokenizer, where it cannot be found from the model.
        reference: unlabelled image features (n, d) of this model, or a `Reference` with settings around them. The
            texts are equalised against the means of their zero-shot groups as well (see `vldebias.equalise`).
        max_loss: most that a neutral text may lose: 1 - its cosine with its projection, in (0, 1). By default the
            class prompts of the set are neutral; a `Bound` names others (see `vldebias.bounded`).
        side: of an image-text model, "text", "image" (the image embeddings instead) or "both": one projection, fitted
            once, attached where they come out. What that does, and why `keep_stated` has no say over images, is in
            `vldebias.hosts.sides`.

    Returns:
        An Attachment: `.remove()`, `.disabled()`, with-statement, `.strength`, `.projections`, `.merge()`.

    Raises:
        AlreadyAttachedError, UnsupportedHostError, PromptSetError, ProjectionMismatchError, InvalidInputError.

    >>> attachment = debias(model, "gender", tokenizer=tokenizer)  # doctest: +SKIP
    """
    target = resolve(host, tokenizer=tokenizer, negative=negative, side=side)
    refuse_second(target)
    if isinstance(prompts, (CalibratedProjection, Mapping)):
        if reference is not None or max_loss is not None:
            raise InvalidInputError(
                "reference and max_loss belong to fitting; a fitted projection carries what it was fitted with"
            )
        return _attach_fitted(target, prompts, method, lam, strength, keep_stated)
    fit = Fit.of(target, prompts, method, lam, _reference(reference), _bound(max_loss))
    gate = _gate(target, fit.stated_words if keep_stated else ())
    fitted = {role: fit.solve(role) for role in dict.fromkeys(map(target.fitted_as, target.roles))}
    projections = {role: fitted[target.fitted_as(role)] for role in target.roles}
    return Attachment(
        target, projections, strength=strength, gate=gate, fit_role=fit.solve, label=fit.label, choices=fit.choices
    )


def fit_projections(
    host: Any,
    prompts: Prompts,
    *,
    method: str | None = None,
    lam: float | Sequence[float] | str | None = None,
    tokenizer: Any = None,
    reference: Any = None,
    max_loss: float | Bound | None = None,
) -> dict[str, CalibratedProjection]:
    """The projections that `debias` would attach, by role, without attaching them."""
    target = resolve(host, tokenizer=tokenizer)
    fit = Fit.of(target, prompts, method, lam, _reference(reference), _bound(max_loss))
    return {role: fit.solve(role) for role in target.roles}


def fit_projection(
    host: Any,
    prompts: Prompts,
    *,
    method: str | None = None,
    lam: float | Sequence[float] | str | None = None,
    tokenizer: Any = None,
    role: str | None = None,
    reference_images: Any = None,
    max_loss: float | Bound | None = None,
) -> CalibratedProjection:
    """The projection for one role of `host`; `role` may be left out where the host has a single one.

    reference_images: unlabelled image features (n, d) to equalise against, see `debias`.
    """
    target = resolve(host, tokenizer=tokenizer)
    if role is None and len(target.roles) > 1:
        raise InvalidInputError(
            f"{target.name} has the roles {list(target.roles)}: choose one with role=, or use fit_projections for all"
        )
    fit = Fit.of(target, prompts, method, lam, _reference(reference_images), _bound(max_loss))
    return fit.solve(role or target.roles[0])


def inspect(
    host: Any,
    prompts: str | Path | PromptSet,
    *,
    method: str | None = None,
    lam: float | None = None,
    tokenizer: Any = None,
    reference: Any = None,
) -> dict[str, Diagnostics]:
    """What the projection of one prompt set does to its own texts, by role (Tables 7.1 and 7.6)."""
    target = resolve(host, tokenizer=tokenizer)
    prompt_set = load_prompts(prompts)
    fit = Fit.of(target, prompt_set, method, lam, _reference(reference))
    return {role: fit.diagnose(role, fit.solve(role), prompt_set) for role in target.roles}


def _reference(given: Any) -> Reference | None:
    return None if given is None else Reference.of(given)


def _bound(given: float | Bound | None) -> Bound | None:
    return None if given is None else Bound.of(given)


def _attach_fitted(
    target: Host,
    given: CalibratedProjection | Mapping[str, CalibratedProjection],
    method: str | None,
    lam: float | Sequence[float] | str | None,
    strength: float,
    keep_stated: bool,
) -> Attachment:
    """Attach projections that were fitted before, after checking that they belong to this host."""
    if method is not None or lam is not None:
        raise InvalidInputError("method and lam belong to fitting; a fitted projection carries its own")
    projections = _by_role(target, given if isinstance(given, Mapping) else {target.roles[0]: given})
    missing = [r for r in target.roles if r not in projections]
    if missing:
        raise InvalidInputError(
            f"{target.name} projects the roles {list(target.roles)}; missing {missing}: "
            "pass a mapping from role to projection"
        )
    for role, projection in projections.items():
        target.check(role, projection)
    words = tuple(dict.fromkeys(w for p in projections.values() for w in p.stated_words))
    gate = _gate(target, words if keep_stated else ())
    label = "+".join(dict.fromkeys(p.prompts or "projection" for p in projections.values()))
    return Attachment(target, projections, strength=strength, gate=gate, label=label)


def _gate(target: Host, words: Sequence[str]) -> StatedWords | None:
    """What keeps stated prompts as they are; images state nothing."""
    return StatedWords(words) if words and target.roles != (IMAGE,) else None


def _by_role(target: Host, given: Mapping[str, CalibratedProjection]) -> dict[str, CalibratedProjection]:
    """`given` by the roles of the host: seams that lie in one space share what was given for one of them."""
    by_space = {target.fitted_as(role): projection for role, projection in given.items()}
    found = {r: given.get(r, by_space[target.fitted_as(r)]) for r in target.roles if target.fitted_as(r) in by_space}
    served = {target.fitted_as(role) for role in found}
    return found | {role: p for role, p in given.items() if target.fitted_as(role) not in served}

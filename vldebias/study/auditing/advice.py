"""Predict what prompts will show before any image is generated, and say what to do about each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vldebias.errors import InvalidInputError
from vldebias.hosts.loading import Loaded, load_host
from vldebias.prompts import PromptSet, StatedWords, balance_prompts, can_balance, load_prompts
from vldebias.prompts.languages import is_english
from vldebias.prompts.prompt_file import PromptList, prompt_list
from vldebias.prompts.reasons import reason_in_words
from vldebias.report.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.report.wording import quantity
from vldebias.study.auditing.line import LEVEL, with_words
from vldebias.study.auditing.prediction import Prediction, predict, subject

if TYPE_CHECKING:
    import pandas as pd

SURE = 0.9  # chance of a side from which on a prompt is said to lean
POOR = 0.1  # R2 below which little is predicted; at 0 or below, nothing is
# Ranks of advice: what to look at first comes first.
LEANS, UNCOVERED, UNDECIDED, NOTHING = range(4)


class Advice(NamedTuple):
    """Hold what to do about a prompt; prompts of the lowest rank come first."""

    rank: int
    text: str


class AdvisedPrompt(NamedTuple):
    """Hold a prompt with its advice.

    place: its position among the prompts that were asked about.
    """

    place: int
    prompt: str
    advice: Advice


def audit(
    prompts: Sequence[str] | str | Path | PromptList,
    attribute_set: str | Path | PromptSet,
    *,
    model: Any = None,
    pipe: Any = None,
    texts: Mapping[str, Any] | None = None,
    calibration: pd.DataFrame | str | Path | None = None,
    column: str | None = None,
) -> Result:
    """Predict what prompts will show before any image is generated: a share with an interval, from
    each text.

    Args:
        prompts: texts, a file (`vldebias.prompts.prompt_file.read_prompts`) or a frame of pandas.
        attribute_set: the prompt set of the attribute, "gender".
        model, pipe, texts: one of an image-text model, a pipeline, or a mapping prompt -> embedding
            (d,) that has the prompts, texts of the set, and texts of the calibration's concepts. A
            model or a pipeline may be what `vldebias.load_host` gives, or a name that it opens.
        calibration: images that were judged, a row each (`prompt`, `value`) or a row of counts per
            prompt. Default: men and women among 250 images of each of 153 occupations by Stable
            Diffusion 1.5 (Friedrich et al., "Fair Diffusion", arXiv 2302.10893); for the embedded
            models, among 12 images of each of 100 professions by the embedded pipeline.
        column: of a table or frame, where the prompts are; by default `prompt`, or found.

    Returns:
        Rows `predicted_share` of each prompt; the provenance says what to look at first, and has
        advice on each prompt in `settings["prompts"]`.

    Raises:
        InvalidInputError: not one of model, pipe and texts, no prompts, or a calibration that does
            not fit.

    >>> vldebias.audit(["a photo of a nurse"], "gender", pipe=pipe).to_pandas()  # doctest: +SKIP
    """
    start = time.monotonic()
    loaded = _only_source(model, pipe, texts)
    listed = prompt_list(prompts, column)
    # Each prompt is predicted once.
    requested = tuple(dict.fromkeys(listed.prompts))
    if not requested:
        raise InvalidInputError("prompts: expected one or more, got none")
    attribute = load_prompts(attribute_set)
    prediction = predict(loaded, requested, attribute, calibration, texts)
    advised = _advise(requested, attribute, prediction)

    shipped = prediction.calibration
    source = "given labels" if shipped is None else shipped.source
    sentences = _summary(advised, prediction, source)
    if pipe is not None and shipped is not None and shipped.model not in prediction.model:
        sentences.append(
            f"These counts are not of {prediction.model}: expect larger errors, or label images of"
            " it (calibration)."
        )
    foreign = [prompt for prompt in requested if not is_english(prompt)]
    if foreign and shipped is not None:
        sentences.append(
            f"{len(foreign)} of {len(requested)} prompts are not in English; these counts predict"
            " English prompts alone."
        )
    sentences = _with_fit(sentences, prediction.r2)
    if listed.column is not None or listed.comments:
        sentences.append(f"Read: {listed}.")
    seconds = round(time.monotonic() - start, 3)
    return _result(advised, prediction, attribute, source, sentences, seconds)


def _only_source(model: Any, pipe: Any, texts: Any) -> Loaded:
    """Return what embeds texts: the only one of model, pipe and texts.

    Raises:
        InvalidInputError: none of them, or several.
    """
    sources = {"model": model, "pipe": pipe, "texts": texts}
    passed = {name: source for name, source in sources.items() if source is not None}
    if len(passed) != 1:
        names = " and ".join(passed) or "none"
        raise InvalidInputError(
            f"expected one of model=, pipe= and texts=, whose text embeddings are read, got {names}"
        )
    ((keyword, source),) = passed.items()
    return _load(keyword, source)


def _load(keyword: str, source: Any) -> Loaded:
    """Return what embeds texts, loaded where it is a name: of a pipeline for the keyword "pipe"."""
    if isinstance(source, Loaded):
        return source
    if not isinstance(source, str):
        return Loaded(source, "")
    if keyword == "pipe":
        return load_host(pipeline=source)
    return load_host(model=source)


def _advise(
    requested: Sequence[str], attribute: PromptSet, prediction: Prediction
) -> list[AdvisedPrompt]:
    """Return each prompt with its advice, what to look at first on top."""
    judged_subjects = set(map(subject, prediction.judged))
    reasons = _reasons_to_leave(requested, attribute)
    named = with_words(attribute)
    words = StatedWords(attribute.stated_words)
    advised = []
    for i, (text, reason) in enumerate(zip(requested, reasons, strict=True)):
        side = prediction.side(i)
        if subject(text) in judged_subjects:
            # A judged concept is about a person, whatever the words look like.
            reason = None
        stated = " and ".join(named.values_in(text))
        if not stated and reason is None and words.find(text):
            stated = "the attribute"
        advice = _advice_on(
            stated=stated,
            reason=reason,
            is_explained=prediction.is_explained,
            is_covered=bool(prediction.covered[i]),
            is_sure=_is_sure(prediction, side, i),
            value=prediction.values[side],
        )
        advised.append(AdvisedPrompt(i, text, advice))
    # Of one rank the prompt that leans most comes first; equal ones keep their order.
    largest_share = prediction.shares[0].max(0)
    return sorted(advised, key=lambda row: (row.advice.rank, -largest_share[row.place]))


def _advice_on(
    stated: str, reason: str | None, is_explained: bool, is_covered: bool, is_sure: bool, value: str
) -> Advice:
    """Return the advice on one prompt: the first of these cases that is true.

    stated: the value that its text names, or "". reason: why balanced prompts leave it alone.
    is_sure: more than an equal share shows `value`, beyond the interval.
    """
    if stated:
        return Advice(NOTHING, f"states {stated}: nothing to predict")
    if reason is not None:
        return Advice(NOTHING, _unpredicted(reason))
    if not is_explained:
        return Advice(UNCOVERED, "cannot be told from its text: generate and judge some images")
    if not is_covered:
        return Advice(UNCOVERED, "unlike the judged prompts: generate and judge some images")
    if is_sure:
        return Advice(LEANS, f"leans {value}: rewrite it or use a method")
    return Advice(UNDECIDED, "no clear lean: generate some images")


def _is_sure(prediction: Prediction, side: int, place: int) -> bool:
    """Return whether more than an equal share of a prompt's images shows a value.

    Few judged prompts give a line without a width that can be told: an interval of all shares
    beside a high chance. Such a prompt is not said to lean.
    """
    equal_share = 1 / len(prediction.values)
    _, low, _ = prediction.shares[:, side, place]
    return bool(prediction.chance[side, place] >= SURE and low > equal_share)


def _reasons_to_leave(texts: Sequence[str], prompts: PromptSet) -> list[str | None]:
    """Return why balanced prompts would leave each text alone; None where they would not."""
    if not can_balance(prompts):
        return [None] * len(texts)
    # groups="same": a prompt about several persons is predicted too; "leave" would name it as left
    # alone.
    return balance_prompts(texts, prompts, seed=0, groups="same").reasons


def _unpredicted(reason: str) -> str:
    """Write why nothing is predicted of a prompt that balanced prompts leave alone."""
    return f"{reason_in_words(reason)}: nothing to predict"


def _predicted(advised: Sequence[AdvisedPrompt], prediction: Prediction) -> list[AdvisedPrompt]:
    """Return the prompts of which a share is predicted."""
    if not prediction.is_explained:
        return []
    return [row for row in advised if row.advice.rank < NOTHING]


def _summary(advised: Sequence[AdvisedPrompt], prediction: Prediction, source: str) -> list[str]:
    """Return sentences on all prompts, and on the one to look at first."""
    sentences = [_how_many_lean(advised)]
    for row in _predicted(advised, prediction)[:1]:
        sentences.append(f"Look first at “{row.prompt}”: {_first_look(row, prediction)}.")
    sentences.append(
        "The shares are predicted from texts alone, before any image was generated, by a line"
        f" fitted to {prediction.n_judged} prompts whose images were judged ({source})."
    )
    return sentences


def _how_many_lean(advised: Sequence[AdvisedPrompt]) -> str:
    """Write how many prompts lean to each value, and why others are not predicted.

    "Of 4 prompts, 1 clearly leans male, 2 have no clear lean; 1 not predicted (names a person: 1)."
    """
    # The words before the colon of an advice, such as "leans female".
    count_of_kind = Counter(row.advice.text.partition(":")[0] for row in advised)
    unpredicted = Counter(
        row.advice.text.partition(":")[0] for row in advised if row.advice.rank == NOTHING
    )
    clauses = []
    if not any(row.advice.rank == LEANS for row in advised):
        clauses.append("none clearly leans to a value")
    # `advised` is sorted by rank, so that kinds that lean come first.
    for kind, count in count_of_kind.items():
        if kind not in unpredicted:
            clauses.append(_counted_kind(kind, count))
    words = f"Of {quantity(len(advised), 'prompt')}, {', '.join(clauses)}"
    if unpredicted:
        reasons = ", ".join(f"{kind}: {count:,}" for kind, count in unpredicted.most_common())
        words += f"; {unpredicted.total():,} not predicted ({reasons})"
    return f"{words}."


def _counted_kind(kind: str, count: int) -> str:
    """Write how many prompts have an advice: "1 clearly leans male", "2 have no clear lean"."""
    is_single = count == 1
    if kind.startswith("leans "):
        verb = "clearly leans" if is_single else "clearly lean"
        kind = kind.removeprefix("leans ")
    elif kind.startswith("unlike "):
        verb = "is" if is_single else "are"
    elif kind.startswith("cannot "):
        verb = ""
        kind = kind.replace("its text", "texts")
    else:
        verb = "has" if is_single else "have"
    return " ".join(filter(None, [f"{count:,}", verb, kind]))


def _first_look(row: AdvisedPrompt, prediction: Prediction) -> str:
    """Write the verdict on a prompt with the share that it rests on."""
    side = prediction.side(row.place)
    share, low, high = prediction.shares[:, side, row.place]
    verdict = row.advice.text.partition(":")[0]
    return f"{verdict}, {share:.0%} {prediction.values[side]} [{low:.0%}, {high:.0%}]"


def _with_fit(sentences: list[str], r2: float) -> list[str]:
    """Return sentences on prompts with what the texts explain of the judged images, which comes
    first where that is nothing.

    r2: of each calibration prompt, left out of the line.
    """
    fit = (
        f"Judged prompts, each predicted by a line fitted to the others: R2 {r2:.2f} (1 is exact, 0"
        " no better than their mean share)."
    )
    if r2 <= 0:
        nothing = (
            "What these prompts will show cannot be told from their texts, which explain nothing"
            " of the judged images: generate and judge images instead."
        )
        return [nothing, *sentences, fit]
    if r2 < POOR:
        hardly = (
            "That is hardly better than one share for all prompts: generate and judge images"
            " instead."
        )
        return [*sentences, fit, hardly]
    return [*sentences, fit]


def _result(
    advised: Sequence[AdvisedPrompt],
    prediction: Prediction,
    attribute: PromptSet,
    source: str,
    sentences: list[str],
    seconds: float,
) -> Result:
    """Return the predicted shares, with the advice in their provenance."""
    provenance = TaskProvenance(
        task="audit",
        title="What the prompts will show",
        description=" ".join(sentences),
        model=prediction.model,
        fingerprint=prediction.fingerprint,
        prompts=attribute.name,
        prompts_hash=attribute.hash,
        split="texts",
        seeds=[0],
        n={"prompts": len(advised), "calibration prompts": prediction.n_judged},
        settings={
            "calibration": source,
            "intervals": f"jackknife+ (leave one prompt out), {LEVEL:.0%}",
            "values": prediction.values,
            "prompts": {row.prompt: row.advice.text for row in advised},
            "advice": sentences,
        },
    )
    result = TaskResult(provenance)
    _add_shares(result, _predicted(advised, prediction), prediction)
    return Result.from_tasks("audit", [result], seconds=seconds)


def _add_shares(
    result: TaskResult, predicted: Sequence[AdvisedPrompt], prediction: Prediction
) -> None:
    """Add the predicted shares of each prompt, and how well each value is predicted."""
    n = {"calibration prompts": prediction.n_judged}
    # Of two values the first share says all.
    is_pair = len(prediction.values) == 2
    shown = prediction.values[:1] if is_pair else prediction.values
    for row in predicted:
        for side, value in enumerate(shown):
            share, low, high = prediction.shares[:, side, row.place].tolist()
            subset = f"{row.prompt}: {value}"
            result.add("predicted_share", NONE, share, (low, high), n=n, subset=subset)
    for side, value in enumerate(shown):
        r2 = prediction.lines[side].r2
        result.add("lean_r2", NONE, r2, n=n, subset="" if is_pair else value)

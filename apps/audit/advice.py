"""Predict what prompts will show before generating any images, and give advice on each prompt."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vldebias.data.prompt_file import PromptList, prompt_list
from vldebias.errors import InvalidInputError, explain_keywords
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.prompts import PromptSet, StatedWords, can_balance, load_prompts
from vldebias.report.result import Result
from vldebias.utils.phrases import listed_words, quantity
from vldebias.utils.text_rows import TextRows
from vldebias.wording import balance_prompts
from vldebias.wording.languages import is_english
from vldebias.wording.reasons import reason_in_words

from .line import CALIBRATIONS, LEVEL, CountsSource, with_words
from .prediction import (
    FEWEST_EVEN,
    Prediction,
    TextSource,
    images_to_settle,
    predict,
    subject,
)

if TYPE_CHECKING:
    from vldebias.hosts import Host
    from vldebias.hosts.loading import Loaded
    from vldebias.typing import ModelLike, PipelineLike, PromptSetLike, TextVectors

POOR = 0.1  # predictions with a lower R2 are poor; with an R2 of 0 or less, there are none
# Ranks of the advice, most urgent first.
LEANS, OTHERS_LEAN, OPPOSED, UNCOVERED, UNDECIDED, NOTHING = range(6)
MEASURE = "measure yours (--measure)"
MISSING = re.compile(r"generate (\d+) more$")
CLAUSES = {
    "no clear lean": "has no clear lean",
    "too few images": "has too few images ({}) for a verdict",
    "cannot tell (not judged)": "is unlike the judged prompts",
    "cannot tell from text": "cannot be predicted from text",
    "no person is asked for": "asks for no person",
}
"""Maps verdicts to the words that count one prompt."""
PLURALS = {"leans": "lean", "states": "state", "has": "have", "is": "are", "asks": "ask"}


@dataclass(frozen=True)
class AdvisedPrompt:
    """A prompt and the advice on it.

    Attributes:
        place: position among the audited prompts.
        prompt: the audited prompt.
        rank: rank of the advice, such as LEANS; lower ranks are more urgent.
        advice: verdict and recommendation, separated by a colon.
    """

    place: int
    prompt: str
    rank: int
    advice: str

    @property
    def verdict(self) -> str:
        """Return the part of the advice before the colon, such as "leans female"."""
        return self.advice.partition(":")[0]


@explain_keywords
def audit(
    prompts: Sequence[str] | str | Path | PromptList,
    attribute: PromptSetLike,
    *,
    model: str | Host | ModelLike | Loaded | None = None,
    pipe: str | Host | PipelineLike | Loaded | None = None,
    texts: TextVectors | None = None,
    calibration: CountsSource | None = None,
    column: str | None = None,
) -> Result:
    """Predict what prompts will show before generating any images.

    The result contains a share with an interval for each prompt. Pass exactly one of `model`,
    `pipe` and `texts`.

    See also docs/tutorials/audit-a-prompt-list.md.

    Args:
        prompts: a list of prompts, a file (`vldebias.data.prompt_file.read_prompts`) or a pandas
            DataFrame.
        attribute: the attribute's prompt set, such as "gender".
        model: an image-text model, the result of `vldebias.load_host`, or a name that it accepts.
        pipe: a pipeline, the result of `vldebias.load_host`, or a name that it accepts.
        texts: a mapping from prompt to embedding (d,), for the prompts, all prompts in the set, and
            the concepts in the calibration.
        calibration: counts of judged images, by name: "fair-diffusion" (men and women in 250 images
            for each of 153 occupations by Stable Diffusion 1.5; Friedrich et al., arXiv
            2302.10893), "sd15", "sd3", "flux2" or "uce" (about 290 images for each of 33
            occupations; Kim et al., 2026, arXiv 2605.28036; "sd3@3" for guidance 3), "sd35" (10
            images for each of 12 professions, counted by one person who knew the prompt) or
            "miniature". You can also pass your own counts, as a file or data frame with one row
            per image (`prompt`, `value`) or one row of counts per prompt. Default: the counts for
            this model. If there are none, the audit cannot predict its images, and shows other
            models' counts for comparison.
        column: prompt column in a table or data frame. Default: `prompt`, or a column that looks
            like prompts.

    Returns:
        Rows `predicted_share` for each prompt. For prompts whose images are in your own counts,
        rows `counted_share`, with `predicted_share` if there are also packaged counts for the
        model. If there are several calibrations, their names are in `method`. The description in
        the provenance suggests what to look at first, and `settings["prompts"]` contains the
        advice on each prompt.

    Raises:
        InvalidInputError: If not exactly one of `model`, `pipe` and `texts` is passed, there are no
            prompts, or the calibration is invalid.

    >>> from vldebias.miniature import load_pipeline
    >>> pipe = load_pipeline()
    >>> result = audit(["A photo of a pilot."], "gender", pipe=pipe, calibration="miniature")
    >>> result.to_pandas().loc[0, "subset"], float(result.to_pandas().loc[0, "value"])
    ('A photo of a pilot.: male', 1.0)
    """
    start = time.monotonic()
    text_source = _only_source(model, pipe, texts)
    listed = prompt_list(prompts, column)
    # Predict each prompt only once.
    requested = tuple(dict.fromkeys(listed.prompts))
    if not requested:
        raise InvalidInputError("prompts: expected one or more, got none")
    attribute = load_prompts(attribute)
    predictions = predict(text_source, requested, attribute, calibration)
    earlier = _earlier_prediction(text_source, requested, attribute, predictions[0])
    advised = _advise(requested, attribute, predictions)
    model_of_method = {}
    for prediction in predictions:
        if prediction.calibration is not None:
            model_of_method[prediction.calibration.name] = str(prediction.calibration)
    # If there are several sources of counts, all of them are packaged, and their names are used to
    # distinguish the rows.
    methods = [NONE]
    source = predictions[0].source
    if len(predictions) > 1:
        methods = list(model_of_method)
        source = ", ".join(model_of_method.values())
    sentences = _sentences(advised, predictions, attribute, source, is_of_pipeline=pipe is not None)
    if listed.column is not None or listed.comments:
        sentences.append(f"Read: {listed}.")
    seconds = round(time.monotonic() - start, 3)

    first = predictions[0]
    provenance = TaskProvenance(
        task="audit",
        title=_title(advised, first),
        description=" ".join(sentences),
        # Add "pipeline", because "miniature" is also the name of a CLIP model.
        model="miniature pipeline"
        if pipe is not None and first.model == "miniature"
        else first.model,
        fingerprint=first.fingerprint,
        attribute=attribute.name,
        attribute_hash=attribute.hash,
        split="texts",
        seeds=[0],
        n={"prompts": len(advised), "calibration prompts": first.n_judged},
        settings={
            "calibration": source,
            "calibrations": model_of_method,
            "intervals": f"exact for judged images, otherwise jackknife+, {LEVEL:.0%}",
            "values": first.values,
            "prompts": {row.prompt: row.advice for row in advised},
            "advice": sentences,
        },
    )
    result = TaskResult(provenance)
    for prediction, method in zip(predictions, methods, strict=True):
        _add_shares(result, _predicted(advised, prediction), prediction, method)
        is_pair = len(prediction.values) == 2
        for value, line in zip(_shown_values(prediction), prediction.lines, strict=False):
            n = {"calibration prompts": prediction.n_judged}
            result.add("lean_r2", method, line.r2, n=n, subset="" if is_pair else value)
    if earlier is not None:
        counted = [row for row in _predicted(advised, earlier) if row.place in first.own_images]
        _add_shares(result, counted, earlier, NONE)
    return Result.from_tasks("audit", [result], seconds=seconds)


def _only_source(
    model: str | Host | ModelLike | Loaded | None,
    pipe: str | Host | PipelineLike | Loaded | None,
    texts: TextVectors | None,
) -> TextSource:
    """Return the source of text embeddings that was passed, and load it if it is a name.

    Raises:
        InvalidInputError: If no source or more than one was passed.
    """
    sources = {"model": model, "pipe": pipe, "texts": texts}
    passed = [name for name, source in sources.items() if source is not None]
    if len(passed) != 1:
        raise InvalidInputError(
            f"expected exactly one of model=, pipe= and texts= as the source of text embeddings,"
            f" got {' and '.join(passed) or 'none'}"
        )
    if texts is not None:
        return TextSource(TextRows(texts).embed, "table of text embeddings", texts=texts)
    # A table of embeddings needs neither torch nor the libraries of models.
    from vldebias.hosts import resolve
    from vldebias.hosts.loading import Loaded, load_host

    source = pipe if model is None else model
    if isinstance(source, str):
        source = load_host(pipeline=source) if model is None else load_host(source)
    loaded = source if isinstance(source, Loaded) else Loaded(source, "")
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    return TextSource(
        lambda prompts: host.embed(prompts, host.roles[0]).numpy(),
        loaded.name or host.model_id or host.name,
        host.weights,
    )


def _earlier_prediction(
    text_source: TextSource,
    requested: Sequence[str],
    attribute: PromptSet,
    measured: Prediction,
) -> Prediction | None:
    """Return what was predicted before the prompts' images were counted.

    Returns:
        The prediction from the packaged counts for the same model, or None if nothing was counted
        or there are no such counts.
    """
    is_covered = set(attribute.attributes) == {"male", "female"}
    packaged = [counts for counts in CALIBRATIONS if counts.is_of(measured.model)]
    if not (measured.own_images and is_covered and packaged):
        return None
    return predict(text_source, requested, attribute, packaged[0].name)[0]


def _title(advised: Sequence[AdvisedPrompt], prediction: Prediction) -> str:
    """Return the title of an audit, such as "What the prompts showed: 8 images each"."""
    predicted = _predicted(advised, prediction)
    numbers = [prediction.own_images.get(row.place, 0) for row in predicted]
    if not any(numbers):
        return "What the prompts will show"
    fewest = min(filter(None, numbers))
    images = f"{fewest:,} to {max(numbers):,} images each"
    if fewest == max(numbers):
        images = f"{quantity(fewest, 'image')} each"
    if all(numbers):
        return f"What the prompts showed: {images}"
    counted = f"{sum(map(bool, numbers)):,} of {len(numbers):,} prompts"
    return f"What {counted} showed ({images}), and what the others will show"


def _advise(
    requested: Sequence[str], attribute: PromptSet, predictions: Sequence[Prediction]
) -> list[AdvisedPrompt]:
    """Return each prompt with its advice, most urgent first."""
    judged_subjects: set[str] = set()
    for prediction in predictions:
        judged_subjects.update(map(subject, prediction.judged))
    # Determine why balanced prompts would leave a prompt unchanged. Pass groups="same", so that
    # prompts about several people are also predicted.
    reasons: list[str | None] = [None] * len(requested)
    if can_balance(attribute):
        reasons = balance_prompts(requested, attribute, seed=0, people="same").reasons
    named = with_words(attribute)
    words = StatedWords(attribute.stated_words)
    advised = []
    for i, (text, reason) in enumerate(zip(requested, reasons, strict=True)):
        if subject(text) in judged_subjects:
            # A judged concept describes a person, even if the rules do not recognise it.
            reason = None
        stated = " and ".join(named.values_in(text))
        if not stated and reason is None and words.find(text):
            stated = "the attribute"
        advices = [_advice_of_model(prediction, i, stated, reason) for prediction in predictions]
        rank, advice = advices[0]
        if len(predictions) > 1:
            rank, advice = _of_uncounted_model(advices)
        elif rank == LEANS and not predictions[0].is_of_model:
            # The user chose counts for a different model, so name that model.
            advice = f"{advice.partition(':')[0]} in {predictions[0].source_name}: {MEASURE}"
        advised.append(AdvisedPrompt(i, text, rank, advice))
    # Within a rank, sort by the largest share or, for models that disagree, by their distance.
    lean, distance = _weights(predictions)
    return sorted(
        advised,
        key=lambda row: (row.rank, -(distance if row.rank == OPPOSED else lean)[row.place]),
    )


def _weights(predictions: Sequence[Prediction]) -> tuple[np.ndarray, np.ndarray]:
    """Return each prompt's largest mean share (n,), and the largest gap between models (n,)."""
    shares = np.stack([prediction.shares[0] for prediction in predictions])  # (models, k, n)
    places = range(shares.shape[2])
    is_known = np.array([[[p.is_known(place) for place in places]] for p in predictions])
    n_known = np.maximum(is_known.sum(0), 1)
    lean = np.where(is_known, shares, 0).sum(0) / n_known
    distance = np.where(is_known, shares, -1).max(0) - np.where(is_known, shares, 1).min(0)
    return lean.max(0), distance.max(0)


def _of_uncounted_model(advices: Sequence[tuple[int, str]]) -> tuple[int, str]:
    """Return the rank and text of the advice for a model that has no counts.

    Counts for other models do not predict this one. Even if they all lean the same way, a held-out
    model leans the other way too often (`eval/results/audit_other_models.json`).

    Args:
        advices: rank and text of the advice from the counts for each other model.
    """
    if advices[0][0] == NOTHING:
        return advices[0]
    known = [(rank, text) for rank, text in advices if rank != UNCOVERED]
    sides = {text.partition(":")[0] for rank, text in known if rank == LEANS}
    if not known:
        return UNCOVERED, f"cannot tell (not counted): {MEASURE}"
    if len(sides) > 1:
        return OPPOSED, f"cannot tell (others disagree): {MEASURE}"
    if sides and all(rank == LEANS for rank, _ in known):
        value = sides.pop().removeprefix("leans ")
        return OTHERS_LEAN, f"cannot tell (others lean {value}): {MEASURE}"
    return UNDECIDED, f"cannot tell (others unclear): {MEASURE}"


def _advice_of_model(
    prediction: Prediction, place: int, stated: str, reason: str | None
) -> tuple[int, str]:
    """Return the rank and text of the advice on a prompt from the counts for one model.

    Args:
        prediction: the prediction from these counts.
        place: position of the prompt.
        stated: the value that the prompt states, or "".
        reason: why balanced prompts leave the prompt unchanged, or None.
    """
    if stated:
        return NOTHING, f"states {stated}: nothing to predict"
    if reason is not None:
        return NOTHING, f"{reason_in_words(reason)}: nothing to predict"
    if not prediction.is_known(place):
        verdict = "cannot tell (not judged)" if prediction.is_explained else "cannot tell from text"
        return UNCOVERED, f"{verdict}: generate and judge some images"
    side = prediction.side(place)
    if prediction.is_sure(side, place):
        return LEANS, f"leans {prediction.values[side]}: rewrite it or use a method"
    return UNDECIDED, _remedy_if_unclear(prediction, place)


def _remedy_if_unclear(prediction: Prediction, place: int) -> str:
    """Return the verdict and the recommended action for a prompt without a clear lean."""
    n = prediction.own_images.get(place)
    if n is None:
        return "no clear lean: generate some images"
    share = prediction.shares[0, prediction.side(place), place]
    more = images_to_settle(share, n, 1 / len(prediction.values))
    if more is not None:
        return f"too few images ({n}): generate {more} more"
    if n < FEWEST_EVEN:
        return f"too few images ({n}): generate {FEWEST_EVEN} more"
    return "no clear lean: nearly even so far"


def _predicted(advised: Sequence[AdvisedPrompt], prediction: Prediction) -> list[AdvisedPrompt]:
    """Return the prompts whose share was counted or predicted."""
    return [row for row in advised if row.rank < NOTHING and prediction.is_known(row.place)]


def _sentences(
    advised: Sequence[AdvisedPrompt],
    predictions: Sequence[Prediction],
    attribute: PromptSet,
    source: str,
    *,
    is_of_pipeline: bool,
) -> list[str]:
    """Summarise how many prompts lean, and how their shares were obtained.

    Args:
        advised: the prompts with their advice.
        predictions: one prediction per source of counts.
        attribute: the attribute's prompt set.
        source: name of the counts in reports.
        is_of_pipeline: whether a pipeline embeds the prompts.
    """
    prediction = predictions[0]
    if len(predictions) > 1:
        sentences = _summary_of_models(advised, predictions)
    else:
        sentences = _summary(advised, prediction, source)
    predicted = [row.prompt for row in _predicted(advised, prediction)]
    if predicted and can_balance(attribute):
        people = balance_prompts(predicted, attribute, seed=0, people="same").people
        several = [text for text, persons in zip(predicted, people, strict=True) if persons[1:]]
        if several:
            sentences.append(
                f"{len(several):,} of {quantity(len(predicted), 'predicted prompt')} show several"
                f" people, such as “{several[0]}”; the share is for the first person."
            )
    foreign = [row for row in advised if not is_english(row.prompt)]
    if foreign and prediction.calibration is not None:
        sentences.append(
            f"{len(foreign)} of {len(advised)} prompts are not in English; these counts only"
            " predict English prompts."
        )
    if len(predictions) == 1:
        sentences = _with_fit(sentences, advised, prediction)
        if is_of_pipeline and not prediction.is_of_model:
            other_model = (
                f"These counts are for {prediction.calibration}, not for {prediction.model}, whose"
                " images may lean the other way: measure them (--measure)."
            )
            sentences.insert(0, other_model)
    return sentences


def _summary(advised: Sequence[AdvisedPrompt], prediction: Prediction, source: str) -> list[str]:
    """Summarise all prompts, the most urgent one, and where the shares come from."""
    sentences = [f"{quantity(len(advised), 'prompt')}: {_verdicts(advised)}."]
    predicted = _predicted(advised, prediction)
    leaning = [row for row in predicted if row.rank == LEANS]
    for row in leaning[:1]:
        side = prediction.side(row.place)
        share, low, high = prediction.shares[:, side, row.place]
        sentences.append(
            f"Look first at “{row.prompt}”: {row.verdict}, {share:.0%} {prediction.values[side]}"
            f" [{low:.0%}, {high:.0%}]."
        )
    missing = [int(more) for row in predicted for more in MISSING.findall(row.advice)]
    if missing and not leaning:
        settled = quantity(missing.count(min(missing)), "prompt")
        more = quantity(min(missing), "more image")
        sentences.append(f"For a verdict on {settled}, generate {more} of each.")
    n_counted = sum(row.place in prediction.n_images for row in predicted)
    verb = "was" if n_counted == 1 else "were"
    if prediction.own_images:
        n_own = sum(prediction.own_images.get(row.place, 0) for row in predicted)
        sentences.append(f"{quantity(n_counted, 'share')} {verb} counted in {n_own:,} {source}.")
    elif n_counted:
        sentences.append(
            f"{quantity(n_counted, 'share')} {verb} counted in judged images of the same subject"
            f" ({source})."
        )
    if prediction.lines and n_counted < len(predicted):
        shares = "The other shares" if n_counted else "The shares"
        sentences.append(
            f"{shares} are predicted from text alone, before any images are generated, by a line"
            f" fitted to {prediction.n_judged} prompts whose images were judged ({source})."
        )
    return sentences


def _summary_of_models(
    advised: Sequence[AdvisedPrompt], predictions: Sequence[Prediction]
) -> list[str]:
    """Summarise the prompts for a model without counts, using other models' counts."""
    calibrations = [p.calibration for p in predictions if p.calibration is not None]
    models = listed_words(list(map(str, calibrations)))
    sentences = [
        f"There are no counts for images from this model ({predictions[0].model}), so the audit"
        " cannot tell which way they lean: measure them (--pipeline DIR --measure 8)."
    ]
    unpredicted = [row for row in advised if row.rank == NOTHING]
    if unpredicted:
        sentences.append(f"Without a prediction: {_verdicts(unpredicted)}.")
    sentences.append(
        f"For comparison, the shares are shown for {models}; use --calibration NAME to show only"
        " one of them."
    )
    opposed = [row for row in advised if row.rank == OPPOSED]
    for row in opposed[:1]:
        known = [prediction for prediction in predictions if prediction.is_known(row.place)]
        # Choose the value with the largest share, averaged over the models with counts.
        side = int(np.mean([p.shares[0, :, row.place] for p in known], axis=0).argmax())
        shares = []
        for prediction in known:
            if prediction.calibration is not None:
                share = prediction.shares[0, side, row.place]
                shares.append(f"{prediction.calibration.model} {share:.0%}")
        value = predictions[0].values[side]
        sentences.append(f"They differ most on “{row.prompt}”: {value} in {', '.join(shares)}.")
    fits = []
    for calibration, prediction in zip(calibrations, predictions, strict=True):
        fit = f"{prediction.r2:.2f}" if prediction.lines else "no line"
        fits.append(f"{calibration.name} {fit}")
    sentences.append(
        "For judged subjects, the share was counted in their images. For other subjects, it is"
        f" predicted from text by a line (leave-one-out R2: {', '.join(fits)}; if R2 is 0 or less,"
        " nothing is predicted)."
    )
    return sentences


def _verdicts(advised: Sequence[AdvisedPrompt]) -> str:
    """Count the prompts with each verdict, most urgent first.

    Example: "1 leans male, 3 have too few images (3 or 4) for a verdict, 1 asks for no person"
    """
    # Verdicts name the number of images, and quote the words of a fact.
    kinds = [re.split(r' \(\d| "', row.verdict)[0] for row in advised]
    numbers = {n for row in advised for n in re.findall(r"too few images \((\d+)\)", row.verdict)}
    images = sorted(map(int, numbers))
    shown = " or ".join(map(str, images))
    if len(images) > 2:
        shown = f"{images[0]:,} to {images[-1]:,}"
    clauses = []
    for kind, count in Counter(kinds).items():
        words = CLAUSES.get(kind, f"is not predicted ({kind})").format(shown)
        if kind.startswith(("leans ", "states ", "may name ")):
            words = kind
        verb, _, rest = words.partition(" ")
        clauses.append(f"{count:,} {verb if count == 1 else PLURALS.get(verb, verb)} {rest}")
    return ", ".join(clauses)


def _with_fit(
    sentences: list[str], advised: Sequence[AdvisedPrompt], prediction: Prediction
) -> list[str]:
    """Add sentences about how well the line fits, unless all shares were counted.

    If the text embeddings do not explain the shares, the first sentence says so.
    """
    places = {row.place for row in advised if row.rank < NOTHING}
    if not prediction.lines or places <= set(prediction.n_images):
        return sentences
    r2 = prediction.r2
    fit = (
        f"Leave-one-out R2 over the judged prompts: {r2:.2f} (1 is exact, 0 is no better than the"
        " mean share)."
    )
    if r2 <= 0:
        subjects = "other prompts" if prediction.n_images else "these prompts"
        unpredictable = (
            f"What {subjects} will show cannot be predicted from text, which does not explain the"
            " judged images: generate and judge images instead."
        )
        return [unpredictable, *sentences, fit]
    if r2 < POOR:
        hardly = "That is hardly better than the mean share: generate and judge images instead."
        return [*sentences, fit, hardly]
    return [*sentences, fit]


def _shown_values(prediction: Prediction) -> list[str]:
    """Return the values whose shares are reported: one of two, since they add up to 1, or all."""
    return prediction.values[:1] if len(prediction.values) == 2 else prediction.values


def _add_shares(
    result: TaskResult, predicted: Sequence[AdvisedPrompt], prediction: Prediction, method: str
) -> None:
    """Add the counted or predicted share for each prompt.

    Args:
        result: the result to add rows to.
        predicted: the prompts with a share.
        prediction: the prediction for these prompts.
        method: name of the calibration if there are several, otherwise `NONE`.
    """
    n = {"calibration prompts": prediction.n_judged}
    for row in predicted:
        n_of_row = n
        if row.place in prediction.n_images:
            n_of_row = {"images": prediction.n_images[row.place]}
        metric = "counted_share" if row.place in prediction.own_images else "predicted_share"
        for side, value in enumerate(_shown_values(prediction)):
            share, low, high = prediction.shares[:, side, row.place].tolist()
            subset = f"{row.prompt}: {value}"
            result.add(metric, method, share, (low, high), n=n_of_row, subset=subset)

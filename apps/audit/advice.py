"""Show who appears in images of prompts' subjects, from counts, and give advice on each prompt."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.data.prompt_file import PromptList, prompt_list
from vldebias.errors import InvalidInputError, check_arguments
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.prompts import PromptSet, StatedWords, can_balance, load_prompts
from vldebias.report.result import Result
from vldebias.utils.phrases import listed_words, quantity
from vldebias.wording import balance_prompts
from vldebias.wording.reasons import reason_in_words

from .counts import (
    FEWEST_EVEN,
    LEVEL,
    Calibration,
    CountsSource,
    exact_interval,
    images_to_settle,
    is_clearly_above,
    known_calibrations,
    read_counts,
    show_several,
    source_of,
    subject,
    with_words,
)

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.hosts import Host
    from vldebias.hosts.loading import Loaded
    from vldebias.typing import PipelineLike, PromptSetLike

# Ranks of the advice, most urgent first.
LEANS, OTHERS_LEAN, OPPOSED, UNDECIDED, UNCOUNTED, NOTHING = range(6)
ADD_IMAGES = "add --pipeline DIR --measure 8"
MISSING = re.compile(r"generate (\d+) more$")


@dataclass(frozen=True)
class AdvisedPrompt:
    """A prompt and the advice on it.

    Attributes:
        prompt: the audited prompt.
        rank: rank of the advice, such as LEANS; lower ranks are more urgent.
        advice: verdict and recommendation, separated by a colon.
    """

    prompt: str
    rank: int
    advice: str

    @property
    def verdict(self) -> str:
        """Return the part of the advice before the colon, such as "counted, leans female"."""
        return self.advice.partition(":")[0]


@dataclass(frozen=True)
class Counted:
    """Counts of the k values in images of one model.

    Attributes:
        calibration: the packaged counts, or None for the user's own counts.
        source: name of the counts in reports.
        counts: number of images by prompt or concept (m rows) and value (k columns).
    """

    calibration: Calibration | None
    source: str
    counts: pd.DataFrame

    @property
    def method(self) -> str:
        """Return the name of the counts in rows."""
        return NONE if self.calibration is None else self.calibration.name

    def numbers_of(self, prompt: str) -> dict[str, float]:
        """Return value -> number of images of a prompt or its subject, or {} without any."""
        # A row for the prompt itself takes precedence over a row with the same subject.
        return self._of_text.get(prompt.casefold()) or self._of_text.get(subject(prompt), {})

    @cached_property
    def _of_text(self) -> dict[str, dict[str, float]]:
        """Return the counts by prompt and by subject."""
        rows = [(str(text), dict(row)) for text, row in self.counts.iterrows()]
        of_subject = {subject(text): numbers for text, numbers in rows}
        return of_subject | {text.casefold(): numbers for text, numbers in rows}


@check_arguments()
def audit(
    prompts: Sequence[str] | str | Path | PromptList,
    attribute: PromptSetLike,
    *,
    pipe: str | Host | PipelineLike | Loaded | None = None,
    counts: CountsSource | None = None,
    column: str | None = None,
) -> Result:
    """Show who appears in images of the prompts' subjects, and which prompts need attention.

    Shares are counted in images that were generated and judged: yours (`counts`), or those that
    others published for a released model. Nothing is predicted.

    See also docs/tutorials/audit-a-prompt-list.md.

    Args:
        prompts: a list of prompts, a file (`vldebias.data.prompt_file.read_prompts`) or a pandas
            DataFrame.
        attribute: the attribute's prompt set, such as "gender".
        pipe: a pipeline, the result of `vldebias.load_host`, or a name, whose published counts are
            shown. Without one, or if there are no counts for it, the counts for all released models
            are shown (gender only).
        counts: your own counts, as a file or data frame with one row per image (`prompt`, `value`)
            or one row of counts per prompt.
        column: prompt column in a table or data frame. Default: `prompt`, or a column that looks
            like prompts.

    Returns:
        Rows `counted_share` for each prompt whose subject was counted. For released models, their
        names are in `method`. The description in the provenance suggests what to look at first, and
        `settings["prompts"]` contains the advice on each prompt.

    Raises:
        InvalidInputError: If there are no prompts, or the counts are invalid.

    >>> result = audit(["A photo of a nurse."], "gender", pipe="miniature")
    >>> list(result.provenance[0].settings["prompts"].values())
    ['counted, leans male: rewrite it or use a method']
    """
    start = time.monotonic()
    listed = prompt_list(prompts, column)
    requested = tuple(dict.fromkeys(listed.prompts))
    if not requested:
        raise InvalidInputError("prompts: expected one or more, got none")
    prompt_set = load_prompts(attribute)
    name = _name_of(pipe)
    sources = _sources(name, prompt_set, counts)
    values = list(prompt_set.attributes)
    is_of_model = counts is not None or any(
        source.calibration is not None and source.calibration.is_of(name) for source in sources
    )
    advised = _advise(requested, prompt_set, sources, is_of_model=is_of_model)
    sentences = _sentences(advised, sources, values, name, is_of_model=is_of_model)
    if listed.column is not None or listed.comments:
        sentences.append(f"Read: {listed}.")
    models = {
        source.method: str(source.calibration or source.source)
        for source in sources
        if source.calibration is not None
    }
    provenance = TaskProvenance(
        task="audit",
        title=_title(advised, sources),
        description=" ".join(sentences),
        model="miniature pipeline" if name == "miniature" else name or "released models",
        attribute=prompt_set.name,
        attribute_hash=prompt_set.hash,
        split="texts",
        n={"prompts": len(advised)},
        settings={
            "counts": ", ".join(models.values()) or "".join(source.source for source in sources),
            "intervals": f"exact, {LEVEL:.0%}",
            "values": values,
            "prompts": {row.prompt: row.advice for row in advised},
            "advice": sentences,
        },
    )
    result = TaskResult(provenance)
    # With several models, their names distinguish the rows.
    for source in sources:
        method = NONE if is_of_model else source.method
        for row in advised:
            numbers = source.numbers_of(row.prompt) if row.rank < NOTHING else {}
            if numbers:
                _add_shares(result, row.prompt, numbers, method)
    return Result.from_tasks("audit", [result], seconds=round(time.monotonic() - start, 3))


def _name_of(pipe: str | Host | PipelineLike | Loaded | None) -> str:
    """Return the name by which a pipeline's counts are found, or "" without a pipeline."""
    if pipe is None or isinstance(pipe, str):
        return pipe or ""
    from vldebias.hosts import resolve
    from vldebias.hosts.loading import Loaded

    if isinstance(pipe, Loaded):
        return pipe.name or resolve(pipe.host, tokenizer=pipe.tokenizer).name
    host = resolve(pipe)
    return host.model_id or host.name


def _sources(name: str, attribute: PromptSet, counts: CountsSource | None) -> list[Counted]:
    """Return the user's counts, or those of the named model or of all released ones."""
    if counts is not None:
        return [Counted(None, source_of(counts), read_counts(counts, attribute))]
    if set(attribute.attributes) != {"male", "female"}:
        return []
    calibrations = known_calibrations(name)
    return [
        Counted(calibration, calibration.source, read_counts(calibration, attribute))
        for calibration in calibrations
    ]


def _title(advised: Sequence[AdvisedPrompt], sources: Sequence[Counted]) -> str:
    """Return the title of an audit, such as "Who appears: 8 images of each prompt"."""
    if len(sources) != 1 or sources[0].calibration is not None:
        return "Who appears in images of these subjects"
    totals = [round(sum(sources[0].numbers_of(row.prompt).values())) for row in advised]
    numbers = [n for n in totals if n]
    if not numbers:
        return "Who appears in images of these subjects"
    images = f"{min(numbers):,} to {max(numbers):,} images"
    if min(numbers) == max(numbers):
        images = quantity(max(numbers), "image")
    return f"Who appears: {images} of each of {quantity(len(numbers), 'prompt')}"


def _advise(
    requested: Sequence[str],
    attribute: PromptSet,
    sources: Sequence[Counted],
    *,
    is_of_model: bool,
) -> list[AdvisedPrompt]:
    """Return each prompt with its advice, most urgent first.

    Args:
        requested: the prompts.
        attribute: the attribute's prompt set.
        sources: the counts.
        is_of_model: whether the counts are for the audited model.
    """
    reasons: list[str | None] = [None] * len(requested)
    several = [False] * len(requested)
    if can_balance(attribute):
        reasons = balance_prompts(requested, attribute, seed=0, people="same").reasons
        several = show_several(requested, attribute)
    named = with_words(attribute)
    words = StatedWords(attribute.stated_words)
    advised = []
    for text, reason, shows_several in zip(requested, reasons, several, strict=True):
        numbers = [source.numbers_of(text) for source in sources]
        if any(numbers):
            # A judged concept describes a person, even if the rules do not recognise it.
            reason = None
        stated = " and ".join(named.values_in(text))
        if not stated and reason is None and words.find(text):
            stated = "the attribute"
        if stated or reason is not None or shows_several:
            why = reason_in_words(reason) if reason is not None else "shows several people"
            why = f"states {stated}" if stated else why
            advised.append(AdvisedPrompt(text, NOTHING, f"not measured: {why}"))
        elif not any(numbers):
            advised.append(AdvisedPrompt(text, UNCOUNTED, f"not counted: {ADD_IMAGES}"))
        elif is_of_model:
            advised.append(_of_model(text, numbers[0]))
        else:
            advised.append(_of_other_models(text, [shares for shares in numbers if shares]))
    largest = {}
    for row in advised:
        shares = [max(n.values()) / sum(n.values()) for n in _counts_of(row.prompt, sources)]
        largest[row.prompt] = max(shares, default=0.0)
    return sorted(advised, key=lambda row: (row.rank, -largest[row.prompt]))


def _counts_of(prompt: str, sources: Sequence[Counted]) -> list[dict[str, float]]:
    """Return the counts of a prompt's subject for each model that has any."""
    return [numbers for source in sources if (numbers := source.numbers_of(prompt))]


def _leaning(numbers: dict[str, float]) -> str:
    """Return the value that a model's images clearly lean to, or ""."""
    value = max(numbers, key=numbers.__getitem__)
    n = round(sum(numbers.values()))
    return value if is_clearly_above(1 / len(numbers), round(numbers[value]), n) else ""


def _of_model(prompt: str, numbers: dict[str, float]) -> AdvisedPrompt:
    """Return the advice on a prompt from counts for the audited model."""
    value = _leaning(numbers)
    if value:
        return AdvisedPrompt(prompt, LEANS, f"counted, leans {value}: rewrite it or use a method")
    n = round(sum(numbers.values()))
    share = max(numbers.values()) / sum(numbers.values())
    more = images_to_settle(share, n, 1 / len(numbers))
    if more is None and n < FEWEST_EVEN:
        more = FEWEST_EVEN
    if more is not None:
        advice = f"too few images ({more} more): generate {more} more"
        return AdvisedPrompt(prompt, UNDECIDED, advice)
    return AdvisedPrompt(prompt, UNDECIDED, "counted, no clear lean: nearly even so far")


def _of_other_models(prompt: str, numbers: Sequence[dict[str, float]]) -> AdvisedPrompt:
    """Return the advice on a prompt from counts for released models.

    Even if they all lean the same way, another model may lean the other way.
    """
    sides = {_leaning(shares) for shares in numbers}
    models = quantity(len(numbers), "released model")
    if len(sides - {""}) > 1:
        return AdvisedPrompt(prompt, OPPOSED, f"counted in {models}, which differ: {ADD_IMAGES}")
    if "" not in sides:
        (value,) = sides
        verb = "leans" if len(numbers) == 1 else "all lean"
        advice = f"counted in {models}, {verb} {value}: {ADD_IMAGES}"
        return AdvisedPrompt(prompt, OTHERS_LEAN, advice)
    return AdvisedPrompt(prompt, UNDECIDED, f"counted in {models}, no clear lean: {ADD_IMAGES}")


def _sentences(
    advised: Sequence[AdvisedPrompt],
    sources: Sequence[Counted],
    values: Sequence[str],
    name: str,
    *,
    is_of_model: bool,
) -> list[str]:
    """Summarise how many prompts lean, and where the counts come from.

    Args:
        advised: the prompts with their advice.
        sources: the counts.
        values: the attribute's values.
        name: name of the audited model, or "".
        is_of_model: whether the counts are for this model.
    """
    sentences = [f"{quantity(len(advised), 'prompt')}: {_verdicts(advised)}."]
    uncounted = [row for row in advised if row.rank == UNCOUNTED]
    if uncounted:
        n = len(uncounted)
        nobody = "no image was counted" if is_of_model else "no released model was counted"
        missing = (
            f"For {n:,} of {quantity(len(advised), 'prompt')}, {nobody}, such as"
            f" “{uncounted[0].prompt}”: {ADD_IMAGES}."
        )
        sentences.insert(0 if 2 * n > len(advised) else 1, missing)
    leaning = [row for row in advised if row.rank == LEANS]
    for row in leaning[:1]:
        numbers = sources[0].numbers_of(row.prompt)
        value = max(numbers, key=numbers.__getitem__)
        share, low, high = share_of(numbers, value)
        sentences.append(
            f"Look first at “{row.prompt}”: {row.verdict}, {share:.0%} {value}"
            f" [{low:.0%}, {high:.0%}]."
        )
    more = [int(number) for row in advised for number in MISSING.findall(row.advice)]
    if more and not leaning:
        settled = quantity(more.count(min(more)), "prompt")
        images = quantity(min(more), "more image")
        sentences.append(f"For a verdict on {settled}, generate {images} of each.")
    counted = [row for row in advised if row.rank < UNCOUNTED]
    if not counted:
        return sentences
    shares = f"{quantity(len(counted), 'share')} {'was' if len(counted) == 1 else 'were'} counted"
    if sources[0].calibration is None:
        n = sum(round(sum(sources[0].numbers_of(row.prompt).values())) for row in counted)
        sentences.append(f"{shares} in {n:,} {sources[0].source}.")
    elif is_of_model:
        sentences.append(f"{shares} in judged images of the same subject ({sources[0].source}).")
    else:
        models = listed_words([str(source.calibration) for source in sources])
        whose = f"{name} has no counts, and may" if name else "Your model may"
        sentences.append(f"{shares} in images by {models}. {whose} lean the other way.")
    return sentences


def _verdicts(advised: Sequence[AdvisedPrompt]) -> str:
    """Count the prompts with each verdict: "1 counted, leans male, 3 too few images"."""
    kinds = Counter(row.verdict.partition(" (")[0] for row in advised)
    return "; ".join(f"{count:,} {kind}" for kind, count in kinds.items())


def share_of(numbers: dict[str, float], value: str) -> tuple[float, float, float]:
    """Return the share of a value among images, with its exact interval.

    Args:
        numbers: value -> number of images, which may be fractional, because tables may weight them.
        value: the value.
    """
    total = sum(numbers.values())
    n = max(round(total), 1)
    share = numbers[value] / total
    low, high = exact_interval(round(share * n), n)
    return share, min(low, share), max(high, share)


def _add_shares(result: TaskResult, prompt: str, numbers: dict[str, float], method: str) -> None:
    """Add the counted share of each value, or of one of two, since they add up to 1."""
    n = {"images": round(sum(numbers.values()))}
    for value in list(numbers)[: 1 if len(numbers) == 2 else None]:
        share, low, high = share_of(numbers, value)
        result.add("counted_share", method, share, (low, high), n=n, subset=f"{prompt}: {value}")

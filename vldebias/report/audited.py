"""Say what an audit found about each of its prompts: terminal and page show the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from vldebias.report.wording import persons

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.report.result import Result


class AuditedPrompt(NamedTuple):
    """Hold what an audit says of one prompt.

    share: of its likeliest value, such as "87% male [60%, 95%]"; "" where none is predicted.
    verdict: what is known. remedy: what to do about it.
    """

    prompt: str
    share: str
    verdict: str
    remedy: str


class PredictedShare(NamedTuple):
    """Hold the share of a value that is predicted for a prompt, with its interval."""

    share: float
    value: str
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:.0%} {self.value} [{self.low:.0%}, {self.high:.0%}]"


def audited_prompts(result: Result, frame: pd.DataFrame) -> list[AuditedPrompt]:
    """Return what an audit says of each prompt, in its order: what to look at first is first.

    frame: of `readable`. A result that is no audit has none.
    """
    audited = []
    for provenance in result.provenance:
        # Tasks without advice keep the prompts there that they measured on.
        if not provenance.settings.get("advice"):
            continue
        values = provenance.settings.get("values", ())
        share_of_prompt = _likeliest_shares(frame[frame.task == provenance.task], values)
        advice_of_prompt = provenance.settings.get("prompts") or {}
        for prompt, advice in advice_of_prompt.items():
            verdict, _, remedy = advice.partition(": ")
            share = share_of_prompt.get(prompt, "")
            audited.append(AuditedPrompt(prompt, str(share), verdict, remedy))
    return audited


def _likeliest_shares(frame: pd.DataFrame, values: list[str]) -> dict[str, PredictedShare]:
    """Return prompt -> the share of its likeliest value; of equal ones the first."""
    largest: dict[str, PredictedShare] = {}
    for row in frame[frame.metric == "predicted_share"].itertuples():
        # A subset is "PROMPT: VALUE"; a prompt may have colons, a value has none.
        prompt, _, value = row.subset.rpartition(": ")
        shares = [largest[prompt]] if prompt in largest else []
        shares.append(PredictedShare(row.value, value, row.low, row.high))
        if len(values) == 2:
            shares.append(_other_share(row, value, values))
        largest[prompt] = max(shares, key=lambda predicted: predicted.share)
    return largest


def _other_share(row: Any, value: str, values: list[str]) -> PredictedShare:
    """Return the share of the other of two values, of which a result has the first alone."""
    (other_value,) = [name for name in values if name != value]
    return PredictedShare(1 - row.value, other_value, 1 - row.high, 1 - row.low)


class Ranges(NamedTuple):
    """Hold where the predicted shares of prompts and their intervals lie on a line.

    ends: what stands at the ends of the line. is_even: its middle is an even share. row_of_prompt:
    low, share and high of each prompt, from 0 to 1.
    """

    ends: tuple[str, str]
    is_even: bool
    row_of_prompt: dict[str, tuple[float, float, float]]


def ranges_of_prompts(result: Result, frame: pd.DataFrame) -> Ranges:
    """Return the ranges of an audit.

    Two values: shares of the first; the left end is all of the second, the right end all of the
    first. More: shares of the likeliest value.
    """
    shares = frame[frame.metric == "predicted_share"]
    values: list[str] = []
    for provenance in result.provenance:
        values += provenance.settings.get("values", ())
    row_of_prompt: dict[str, tuple[float, float, float]] = {}
    for row in shares.itertuples():
        # A subset is "PROMPT: VALUE"; a prompt may have colons, a value has none.
        prompt, _, _ = row.subset.rpartition(": ")
        known = row_of_prompt.get(prompt)
        if known is None or row.value > known[1]:
            row_of_prompt[prompt] = (row.low, row.value, row.high)
    shown = {subset.rpartition(": ")[2] for subset in shares.subset}
    if len(values) == 2 and len(shown) == 1:
        (value,) = shown
        (other,) = set(values) - shown
        return Ranges((f"all {persons(other)}", f"all {persons(value)}"), True, row_of_prompt)
    return Ranges(("0 %", "100 %"), False, row_of_prompt)

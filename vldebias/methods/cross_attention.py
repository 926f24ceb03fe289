"""Fit the edit of cross-attention: a sampled value in the place of what the denoiser associates,
without a word in the prompt.

For every layer and time, with M_v the mean response over concepts to the texts that state value v,

    center m = mean over v of M_v        effects e_v = M_v - m        (closed form, no training)

The span of the effects is the attribute, as the denoiser reads it; see
`vldebias.edits.cross_attention` for what is done with it. After EquiSteer (Gaintseva et al., ECCV
2026, arXiv 2607.01147), with the mean of the values in the place of neutral texts, one span in the
place of directions that are taken off in turn, and the natural size of a value in the place of a
threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vldebias.edits.cross_attention import CrossAttentionEdit, Form
from vldebias.edits.edit import Edit, Provenance
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.pipelines.cross_attention import CrossAttentionHost, Responses
from vldebias.methods.method import Method, Need, Problem, register_method
from vldebias.progress import Progress
from vldebias.prompts import Balancer, PromptSet, can_balance

_BATCH = 4  # concepts that are generated at once: 8 images of a gender, 20 of five skin tones


@dataclass(kw_only=True, eq=False, repr=False)
class CrossAttention(Method):
    """Set the attribute in every cross-attention of a pipeline's denoiser to a sampled value.

    Args:
        shares: value -> share of the images; None: even shares. seed: of the sampling; None: each
            attachment draws one, `attachment.seed`. find, decide: as of `vldebias.balance_prompts`,
            by whose rules prompts are left alone; groups of persons are.
        form, amount: "set" or "shift", and how much of a value's effect is put in
            (`vldebias.edits.cross_attention`). rank: directions of the span at most, 0 for all.
        concepts: of the prompt set, in the fit. steps: of the scheduler in the fit, and so the
            number of fitted times. options: further arguments of the pipeline's call in the fit, as
            {"height": 512, "width": 512}; None: its defaults.
    """

    name = "cross-attention"
    title = "values set in cross-attention"
    source = "this package, after Gaintseva et al., 2026 (EquiSteer)"
    color = "#1b6ca8"
    needs = frozenset({Need.VALUES})
    models = False
    side = "denoiser"

    shares: Mapping[str, float] | None = None
    seed: int | None = None
    find: Callable[[str], int | None] | None = None
    decide: Callable[..., Any] | None = None
    form: Form = "set"
    amount: float = 1.3
    rank: int = 0
    concepts: int = 20
    steps: int = 12
    options: Mapping[str, Any] | None = None

    def balancer(self, sets: Any) -> Balancer:
        """Return what deals the values of these prompt sets."""
        return Balancer(sets, self.shares, self.seed, self.find, decide=self.decide, groups="leave")

    def check(self, problem: Problem) -> None:
        """Refuse a pipeline without cross-attention to hook, and sets that are not about
        persons."""
        super().check(problem)
        if not isinstance(problem.host, CrossAttentionHost):
            raise UnsupportedHostError(
                f"{problem.host.name}: method {self.name!r} is for pipelines of diffusers"
            )
        for prompt_set in problem.attributes:
            if not can_balance(prompt_set):
                raise InvalidInputError(
                    f"prompt set {prompt_set.name!r}: method {self.name!r} deals values to persons,"
                    " and it has no words for them; use method='cali'"
                )

    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the edit of one attribute, named by its prompt set."""
        (prompt_set,) = (part for part in problem.attributes if part.name == role)
        texts_of_value = stated_texts(prompt_set, self.concepts)
        responses, rows_of_value = record(
            problem.host, texts_of_value, self.steps, role, self.options or {}
        )
        means = torch.stack(
            [responses.rows[:, rows].mean(1) for rows in rows_of_value.values()], dim=1
        )
        center = means.mean(1)
        amounts = torch.full((len(means), means.shape[1], len(responses.layers)), self.amount)
        return edit_of(
            self, prompt_set, responses, center, means - center[:, None], amounts, self.form
        )


def stated_texts(prompt_set: PromptSet, concepts: int) -> dict[str, list[str]]:
    """Return value -> one text for each concept that states it, at most so many concepts, spread
    over the groups of the set.

    Raises:
        InvalidInputError: no group states every value once.
    """
    complete = []
    for group in prompt_set.groups:
        text_of_value = {}
        for text in group:
            values = prompt_set.values_in(text)
            if len(values) == 1:
                text_of_value[values[0]] = text
        if len(text_of_value) == len(prompt_set.attributes):
            complete.append(text_of_value)
    if not complete:
        raise InvalidInputError(
            f"prompt set {prompt_set.name!r}: no group of prompts states each of"
            f" {list(prompt_set.attributes)} once; expected concepts x values, as of"
            " make_prompt_set"
        )
    count = min(concepts, len(complete))
    chosen = [complete[place * len(complete) // count] for place in range(count)]
    return {value: [texts[value] for texts in chosen] for value in prompt_set.attributes}


def record(
    host: CrossAttentionHost,
    texts_of_value: Mapping[str, Sequence[str]],
    steps: int,
    title: str,
    options: Mapping[str, Any],
) -> tuple[Responses, dict[str, list[int]]]:
    """Return the responses to all texts, and which rows of them are of each value.

    Texts of one concept start from the same noise, so that they differ in the value alone.
    """
    number = min(map(len, texts_of_value.values()))
    rows_of_value: dict[str, list[int]] = {value: [] for value in texts_of_value}
    blocks = []
    row = 0
    with Progress() as progress, progress.bar(f"fitting {title}", number) as advance:
        for start in range(0, number, _BATCH):
            places = range(start, min(start + _BATCH, number))
            prompts = []
            noise = []
            for value, texts in texts_of_value.items():
                for place in places:
                    prompts.append(texts[place])
                    noise.append(place)
                    rows_of_value[value].append(row)
                    row += 1
            blocks.append(host.responses(prompts, noise, steps, **options))
            advance(len(places))
    rows = torch.cat([block.rows for block in blocks], dim=1)
    return blocks[0]._replace(rows=rows), rows_of_value


def edit_of(
    method: Any,
    prompt_set: PromptSet,
    responses: Responses,
    center: Tensor,
    effects: Tensor,
    amounts: Tensor,
    form: Form,
) -> CrossAttentionEdit:
    """Return the edit of a prompt set with what was fitted for it, as `CrossAttentionEdit` has
    it."""
    return CrossAttentionEdit(
        times=responses.times.float(),
        center=center.float(),
        effects=effects.float(),
        amounts=amounts.float(),
        layers=responses.layers,
        form=form,
        rank=method.rank,
        attribute=prompt_set.name,
        words={value: tuple(words) for value, words in prompt_set.attributes.items()},
        adjectives=dict(prompt_set.adjectives),
        phrase=dict(prompt_set.phrase),
        stated=prompt_set.stated_words,
        provenance=Provenance(method.name),
    )


def prompt_set_of(edit: CrossAttentionEdit) -> PromptSet:
    """Return a prompt set by which prompts are read as in the fit: which state a value of the edit,
    and which leave it open."""
    words = tuple(words[0] for words in edit.words.values())
    return PromptSet(
        name=edit.attribute,
        groups=(words,),
        attributes=dict(edit.words),
        adjectives=dict(edit.adjectives),
        phrase=dict(edit.phrase),
        stated_words=edit.stated,
    )


register_method(CrossAttention())

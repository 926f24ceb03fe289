"""Fit cross-attention edits, which replace the denoiser's preferred value with a sampled one.

The prompt is not changed. Let M_v be the mean response, over concepts, to text that states value v.
For every layer and timestep,

    effect e_v = M_v - mean over values of M        (closed form, no training)

`vldebias.projection.cross_attention_edit` describes how the effects are applied. The method follows
EquiSteer (Gaintseva et al., ECCV 2026, arXiv 2607.01147), but it subtracts the mean over values
instead of the response to neutral text, removes no directions and uses no threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from vldebias.errors import InvalidInputError, UnsupportedHostError, warn
from vldebias.hosts import Attachment, DenoiserAttachment, Host, resolve
from vldebias.hosts.pipelines.denoiser import CrossAttentionHost
from vldebias.hosts.pipelines.diffusers import DiffusersHost
from vldebias.measure.classification import share_below
from vldebias.methods.attaching import AttachSettings, attach_edits
from vldebias.methods.balanced import make_balancer
from vldebias.methods.declared import DECLARED
from vldebias.methods.method import DEFAULTS, EditMethod, Problem, register_method
from vldebias.projection.cross_attention_edit import CrossAttentionEdit, clarity_sentence
from vldebias.projection.edit import Edit, Edits
from vldebias.projection.provenance import Provenance
from vldebias.prompts import PromptSet, can_balance
from vldebias.utils.progress import Progress

if TYPE_CHECKING:
    from vldebias.wording.marks import Find

THINGS = (
    "A photo of a robin.",
    "A duck on a lake.",
    "a photo of a tree",
    "A bowl of fruit on a table.",
    "A mountain at sunrise.",
    "An empty street at night.",
    "A cat asleep on a chair.",
    "A bicycle against a wall.",
    "A plate of pasta.",
    "A forest in the morning fog.",
    "A wooden chair in an empty room.",
    "A photo of a gull.",
    "A sailing boat at sea.",
    "A photo of an owl in a forest.",
    "A vase of flowers by a window.",
    "A steam train in the snow.",
    "A photo of a heron.",
    "An old stone bridge over a river.",
    "A photo of a crow on a mountain.",
    "A cup of coffee on a newspaper.",
)
"""Prompts without a person, from which the gate learns to leave such images unchanged."""
AMOUNT_OF_TWO_VALUES = 4.0
AMOUNT_OF_MORE_VALUES = 5.0
"""How many times a value's effect is added in the first step. The number decreases linearly to 0
in the last step, since the first steps determine who appears. With two values, the effects are
opposite, so adding one cancels the other; with more, the value that the denoiser prefers must be
outweighed."""
MAX_MOVEMENT = 2.0
"""How far the first step may move the denoiser's prediction, relative to stating the value in the
prompt. A small transformer, which the amounts above move further, lost subjects; with this limit,
it keeps more of them and shows the values about as often."""


@dataclass(kw_only=True, eq=False, repr=False)
class CrossAttention(EditMethod):
    """Add a sampled value's effect in every cross-attention layer of a pipeline's denoiser.

    `attach` measures the effects: it generates images for prompts that state each value, and
    records the cross-attention outputs (`fit`). It then attaches a `DenoiserAttachment`. Prompts
    that state a value, name a specific person, or describe no people or several people are left
    unchanged. Values along a single axis, such as five skin tones, are hard to distinguish by their
    effects; use balanced prompts for them.

    Args:
        shares: the share of images for each value. If None, shares are equal.
        seed: sampling seed. If None, each attachment draws its own (`attachment.seed`).
        find: a function that says who is shown in prompts about which the word lists are in doubt,
            such as a `vldebias.ChatFinder`, as in `vldebias.balance_prompts`.
        decide: a function that returns the allowed values of each prompt, or None to use the rules.
        amount: how many times a value's effect is added in every step. If None, at most 4 times in
            the first step (5 times with more than two values), decreasing linearly to 0 in the last
            step. It is less if that would move the first prediction more than twice as far as
            stating the value in the prompt does, since subjects are then lost.
        concepts: number of the prompt set's concepts used for fitting.
        steps: number of scheduler steps used for fitting, which is the number of fitted timesteps.
        batch_size: number of images generated at once when fitting. With guidance, the denoiser
            processes twice as many rows at once, 16 by default. Lower it if fitting runs out of
            memory.
        options: additional arguments for the pipeline calls when fitting, such as {"height": 512,
            "width": 512}. If None, the pipeline's defaults are used.

    >>> import vldebias
    >>> from vldebias.miniature import load_pipeline
    >>> pipe = load_pipeline()
    >>> method = CrossAttention(shares={"female": 0.75, "male": 0.25}, seed=0)
    >>> attachment = vldebias.debias(pipe, "gender", method=method)  # doctest: +SKIP
    >>> images = pipe("A photo of a CEO", num_images_per_prompt=4).images  # doctest: +SKIP
    """

    declaration = DECLARED["cross-attention"]

    shares: Mapping[str, float] | None = None
    seed: int | None = None
    find: Find | None = None
    decide: Callable[..., Any] | None = None
    amount: float | None = None
    concepts: int = 20
    steps: int = 12
    batch_size: int = 8
    options: Mapping[str, Any] | None = None

    def attach(self, problem: Problem, settings: AttachSettings = DEFAULTS) -> DenoiserAttachment:
        settings.refuse_embeddings(self.name)
        # Create this host only once, because it caches the denoiser's fingerprint.
        host = at_denoiser(problem.host, (part.name for part in problem.attributes))
        edits = self.fit_roles(replace(problem, host=host))
        return self._attach_checked(host, problem.sets, edits, settings)

    def _attach_checked(
        self,
        host: CrossAttentionHost,
        sets: Sequence[PromptSet],
        edits: Mapping[str, Edit],
        settings: AttachSettings,
    ) -> DenoiserAttachment:
        """Check cross-attention edits, and attach them with a `DenoiserAttachment`.

        Args:
            host: the host for the pipeline's denoiser.
            sets: the prompt sets used to analyse prompts.
            edits: the edit for each attribute, by the name of its prompt set.
            settings: the settings of the attachment, of which `strength`, `shares`, `find`,
                `on_call` and `follow_seeds` are used.

        Raises:
            ProjectionMismatchError: If the edit is of a different kind, or was fitted on a
                different model.
        """
        checked = {role: host.checked(edit) for role, edit in edits.items()}
        balancer = make_balancer(
            sets,
            shares=self.shares if settings.shares is None else settings.shares,
            seed=self.seed,
            find=self.find if settings.find is None else settings.find,
            decide=self.decide,
            people="leave",
            one_person=True,  # only one value can be set for the entire image
        )
        return DenoiserAttachment(
            host,
            checked,
            balancer,
            strength=settings.strength,
            label="+".join(prompt_set.name for prompt_set in sets),
            log=settings.log(),
        )

    def fit_roles(self, problem: Problem) -> Edits:
        """Return the fitted edit for each attribute."""
        host = at_denoiser(problem.host, (part.name for part in problem.attributes))
        return super().fit_roles(replace(problem, host=host))

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise InvalidInputError(
                f"batch_size: expected a whole number of images >= 1, got {self.batch_size!r}"
            )
        if not isinstance(problem.host, CrossAttentionHost):
            raise UnsupportedHostError(
                f"{problem.host.name}: {self.name!r} needs a diffusers pipeline; use method='cali'"
            )
        for prompt_set in problem.attributes:
            if not can_balance(prompt_set):
                raise InvalidInputError(
                    f"prompt set {prompt_set.name!r}: method {self.name!r} assigns values to"
                    " people, but the set has no words that describe people; use method='cali'"
                )

    def fit(self, problem: Problem, role: str) -> Edit:
        host = problem.host
        assert isinstance(host, CrossAttentionHost)  # `check` rejects any other host
        (prompt_set,) = (part for part in problem.attributes if part.name == role)
        texts_of_value = stated_texts(prompt_set, self.concepts)
        times, rows_of_value = record(host, texts_of_value, role, self)
        responses = torch.stack(list(rows_of_value.values()), dim=1)  # (t, values, concepts, d)
        means = responses.mean(2)
        effects = means - means.mean(1, keepdim=True)
        first = responses[-1]  # the first step has the highest timestep
        passes = first_passes(host, prompt_set, texts_of_value, self)
        values = len(texts_of_value)
        amounts = torch.full((len(times), values), float(self.amount or 0))
        if self.amount is None:
            largest = largest_amount(host, passes, effects[-1], self)
            amounts = torch.linspace(largest, 0, len(times)).flip(0)[:, None].repeat(1, values)
        clarity = {}
        if first.shape[1] > 1:
            clarity = dict(zip(texts_of_value, clarity_of_values(first).tolist(), strict=True))
        layers = host.layers_and_widths
        stated, person = fit_gate(passes, layers)
        edit = CrossAttentionEdit(
            times=times.float(),
            effects=effects.float(),
            amounts=amounts.float(),
            gate=torch.cat([stated.rows, person.rows]).float(),
            gate_offsets=torch.cat([stated.offsets, person.offsets]).float(),
            auroc={"stated": stated.auroc, "person": person.auroc},
            layers=layers,
            clarity={value: round(number, 4) for value, number in clarity.items()},
            attribute=prompt_set.name,
            words={value: tuple(words) for value, words in prompt_set.attributes.items()},
            adjectives=dict(prompt_set.adjectives),
            phrase=dict(prompt_set.phrase),
            stated=prompt_set.stated_words,
            provenance=Provenance(self.name),
        )
        if edit.unclear_values:
            warn(f"prompt set {edit.attribute!r}: {clarity_sentence(edit.clarity)}")
        return edit


def subject_size(responses: Tensor) -> Tensor:
    """Return the root mean square distance of subjects from the mean subject.

    Args:
        responses: (values, concepts, d), from one step.
    """
    subjects = responses.mean(0)
    return (subjects - subjects.mean(0)).norm(dim=1).square().mean().sqrt()


def clarity_of_values(responses: Tensor) -> Tensor:
    """Return how clearly the model responds to each value's words (values,).

    This is the size of the value's effect relative to the differences between subjects, times the
    mean cosine between the effect on one subject and the mean effect on the others.

    Args:
        responses: (values, concepts, d), from the first step, with at least two concepts.
    """
    effects = responses - responses.mean(0)  # of each value on each subject
    count = effects.shape[1]
    effects_on_others = (effects.sum(1, keepdim=True) - effects) / (count - 1)
    agreement = cosine_similarity(effects, effects_on_others, dim=2).mean(1)
    sizes = effects.mean(1).norm(dim=1)
    return agreement * sizes / subject_size(responses).clamp(min=1e-12)


def measured_clarity(
    pipe: object, prompt_set: PromptSet, options: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Return how clearly a pipeline responds to each value's words, from one pass per prompt.

    Args:
        pipe: the pipeline.
        prompt_set: the prompt set of the attribute.
        options: additional arguments for the pipeline calls.

    Returns:
        The clarity of each value (`clarity_of_values`). Empty if the denoiser has no
        cross-attention or the set states the values for fewer than two concepts.
    """
    method = CrossAttention(options=options)
    try:
        texts_of_value = stated_texts(prompt_set, method.concepts)
    except InvalidInputError:  # no group of prompts states every value
        return {}
    try:
        host = at_denoiser(resolve(pipe), [prompt_set.name])
        rows = [first_pass(host, texts, method)[0] for texts in texts_of_value.values()]
    except UnsupportedHostError:  # for example, joint attention
        return {}
    responses = torch.stack(rows)
    if responses.shape[1] < 2:
        return {}
    return dict(zip(texts_of_value, clarity_of_values(responses).tolist(), strict=True))


def at_denoiser(pipeline: Host, attributes: Iterable[str]) -> CrossAttentionHost:
    """Return the host for a pipeline's denoiser, with attributes as roles.

    Args:
        pipeline: the host for the pipeline.
        attributes: names of the prompt sets.

    Raises:
        UnsupportedHostError: If the pipeline has no denoiser with cross-attention to hook.
    """
    if isinstance(pipeline, CrossAttentionHost):
        return pipeline.with_roles(attributes)
    if isinstance(pipeline, DiffusersHost):
        return CrossAttentionHost(pipeline).with_roles(attributes)
    raise UnsupportedHostError(
        f"{pipeline.name}: 'cross-attention' needs a diffusers pipeline; use method='cali'"
    )


@dataclass(frozen=True)
class FirstPasses:
    """Store how a denoiser responds in the first pass to prompts of each kind, from the same noise.

    Attributes:
        neutral: prompts about people that do not state a value.
        open_rows: the layers' responses (n, d) to the neutral prompts.
        open_predictions: the denoiser's predictions (n, p) for the neutral prompts.
        things: the layers' responses (m, d) to prompts without a person.
        rows: for each value, the layers' responses (concepts, d) to the prompts that state it.
        predictions: for each value, the predictions (concepts, p) for the prompts that state it.
    """

    neutral: Sequence[str]
    open_rows: Tensor
    open_predictions: Tensor
    things: Tensor
    rows: Sequence[Tensor]
    predictions: Sequence[Tensor]


def first_passes(
    host: CrossAttentionHost,
    prompt_set: PromptSet,
    texts_of_value: Mapping[str, Sequence[str]],
    method: CrossAttention,
) -> FirstPasses:
    """Return the responses to neutral prompts, prompts without people, and prompts with a value.

    Args:
        host: the host for the denoiser.
        prompt_set: the prompt set of the attribute.
        texts_of_value: for each value, the prompts that state it.
        method: the method, whose `steps`, `batch_size` and `options` are used.
    """
    count = len(next(iter(texts_of_value.values())))
    classes = prompt_set.classes or ("A photo of a person.", "A portrait of a person.")
    count = min(count, len(classes))
    neutral = [classes[place * len(classes) // count] for place in range(count)]
    open_rows, open_predictions = first_pass(host, neutral, method)
    things, _ = first_pass(host, THINGS, method)
    of_values = [first_pass(host, texts, method) for texts in texts_of_value.values()]
    rows, predictions = zip(*of_values, strict=True)
    return FirstPasses(neutral, open_rows, open_predictions, things, rows, predictions)


def first_pass(
    host: CrossAttentionHost,
    texts: Sequence[str],
    method: CrossAttention,
    effects: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the responses (n, d) and predictions (n, p) in the first pass, in batches.

    Args:
        host: the host for the denoiser.
        texts: n prompts, each with its own noise.
        method: the method, whose `steps`, `batch_size` and `options` are used.
        effects: (n, d) added to the layers' outputs. If None, nothing is added.
    """
    rows = []
    predictions = []
    for start in range(0, len(texts), method.batch_size):
        batch = slice(start, start + method.batch_size)
        noise = range(len(texts))[batch]
        added = None if effects is None else effects[batch]
        found = host.first_pass(texts[batch], noise, method.steps, added, **method.options or {})
        rows.append(found[0])
        predictions.append(found[1])
    return torch.cat(rows), torch.cat(predictions)


def largest_amount(
    host: CrossAttentionHost, passes: FirstPasses, effects: Tensor, method: CrossAttention
) -> float:
    """Return the amount for the first step, which keeps the subject (see `MAX_MOVEMENT`).

    It is 4 (5 with more than two values), or less if that moves the prediction too far.

    Args:
        host: the host for the denoiser.
        passes: the denoiser's responses in the first pass.
        effects: the effects of the values (values, d) in the first step.
        method: the method, whose `steps`, `batch_size` and `options` are used.
    """
    count = len(effects)
    largest = AMOUNT_OF_TWO_VALUES if count == 2 else AMOUNT_OF_MORE_VALUES
    of_values = torch.stack(list(passes.predictions))
    allowed = MAX_MOVEMENT * root_mean_square(of_values - of_values.mean(0))
    values = torch.arange(len(passes.neutral)) % count  # each prompt gets the next value
    amounts = [0.0]
    moved = [0.0]
    for amount in (largest / 2, largest):
        _, predictions = first_pass(host, passes.neutral, method, amount * effects[values])
        amounts.append(amount)
        moved.append(root_mean_square(predictions - passes.open_predictions))
    return float(np.interp(allowed, np.maximum.accumulate(moved), amounts))


def root_mean_square(rows: Tensor) -> float:
    """Return the root mean square of the norms of rows (..., d)."""
    return float(rows.square().sum(-1).mean().sqrt())


def fit_gate(passes: FirstPasses, layers: Sequence[tuple[str, int]]) -> tuple[Readings, Readings]:
    """Fit linear readouts that detect, in the first pass, the stated value and a person's presence.

    A readout is C^-1 e / (e C^-1 e), with the effect e of stating the value and the covariance C
    within prompts of one kind (linear discriminant): it is 0 at the mean of prompts that do not
    state the value, and 1 at the mean of those that do. For each layer, readouts are fitted to one
    half of the prompts and tested on the other. The readouts of the layer that separates the two
    kinds best are then fitted to all prompts, with the threshold that was best in the test.

    Args:
        passes: the denoiser's responses in the first pass.
        layers: name and width of each cross-attention layer.

    Returns:
        Two objects: the readouts for the values, and the readout for a person's presence.
    """
    persons = torch.cat([passes.open_rows, *passes.rows])
    stated = Readings(passes.rows, passes.open_rows, layers)
    return stated, Readings([persons], passes.things, layers)


class Readings:
    """Fit linear classifiers that separate kinds of prompts from a baseline, in the best layer.

    Attributes:
        rows: (kinds, d) weights of the classifiers, which are zero for all other layers.
        offsets: (kinds,) thresholds; a response with a higher score belongs to that kind.
        auroc: the AUROC of each layer's classifiers on held-out prompts.
    """

    def __init__(
        self, kinds: Sequence[Tensor], open_rows: Tensor, layers: Sequence[tuple[str, int]]
    ) -> None:
        """Fit the readouts.

        Args:
            kinds: responses (n, d) to the prompts of each kind, with the columns of all layers.
            open_rows: responses (m, d) to the baseline prompts.
            layers: name and width of each layer.
        """
        self.auroc: dict[str, float] = {}
        scores_of_layer = {}
        part_of_layer = {}
        start = 0
        for name, width in layers:
            part = slice(start, start + width)
            start += width
            part_of_layer[name] = part
            scores = _held_out_scores([kind[:, part] for kind in kinds], open_rows[:, part])
            scores_of_layer[name] = scores
            area = share_below(*(part.numpy() for part in scores)).mean()
            self.auroc[name] = round(float(area), 4)
        layer = max(self.auroc, key=lambda name: self.auroc[name])
        part = part_of_layer[layer]
        readings, mean = discriminant([kind[:, part] for kind in kinds], open_rows[:, part])
        self.rows = torch.zeros(len(kinds), open_rows.shape[1], dtype=open_rows.dtype)
        self.rows[:, part] = readings
        self.offsets = readings @ mean + _threshold(*scores_of_layer[layer])


def discriminant(kinds: Sequence[Tensor], open_rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return readouts that are 1 at their kind's mean and 0 at the mean of the baseline prompts.

    A tenth of the mean variance is added to the diagonal of the covariance.

    Args:
        kinds: responses (n, d) to the prompts of each kind.
        open_rows: responses (m, d) to the baseline prompts.

    Returns:
        The readouts (kinds, d), and the mean (d,) of the baseline responses.
    """
    mean = open_rows.mean(0)
    within = torch.cat([kind - kind.mean(0) for kind in (*kinds, open_rows)])
    covariance = within.T @ within / len(within)
    # With one prompt per kind there is no variance, so every direction gets the same weight.
    variance = float(covariance.diagonal().mean()) or 1.0
    shrunk = covariance + 0.1 * variance * torch.eye(len(covariance)).double()
    effects = torch.stack([kind.mean(0) - mean for kind in kinds])
    solved = torch.linalg.solve(shrunk, effects.T).T
    return solved / (solved * effects).sum(1, keepdim=True).clamp(min=1e-12), mean


def _held_out_scores(kinds: Sequence[Tensor], open_rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest readout, using readouts fitted to the other half of the rows.

    The scores for the kinds are returned first, then the scores for the baseline prompts.
    """
    scores_of_kinds = []
    scores_of_open_rows = []
    for half in (0, 1):
        readings, mean = discriminant([kind[half::2] for kind in kinds], open_rows[half::2])
        held_out = torch.cat([kind[1 - half :: 2] for kind in kinds])
        scores_of_kinds.append(((held_out - mean) @ readings.T).amax(1))
        scores_of_open_rows.append(((open_rows[1 - half :: 2] - mean) @ readings.T).amax(1))
    return torch.cat(scores_of_kinds), torch.cat(scores_of_open_rows)


def _threshold(positive: Tensor, negative: Tensor) -> float:
    """Return the threshold that maximises balanced accuracy.

    If several thresholds are best, their mean is returned.
    """
    scores = torch.cat([positive, negative]).sort().values
    thresholds = (scores[1:] + scores[:-1]) / 2
    right = (positive[:, None] > thresholds).double().mean(0)
    right += (negative[:, None] <= thresholds).double().mean(0)
    return float(thresholds[right >= right.max() - 1e-9].mean())


def stated_texts(prompt_set: PromptSet, concepts: int) -> dict[str, list[str]]:
    """Return, for each value, prompts that state it, one per concept.

    The concepts are spread over the set's groups.

    Args:
        prompt_set: the prompt set of the attribute.
        concepts: maximum number of concepts.

    Raises:
        InvalidInputError: If no group states every value once.
    """
    complete = []
    for group in prompt_set.variants:
        text_of_value = {}
        for text in group:
            values = prompt_set.values_in(text)
            if len(values) == 1:
                text_of_value[values[0]] = text
        if len(text_of_value) == len(prompt_set.attributes):
            complete.append(text_of_value)
    if not complete:
        raise InvalidInputError(
            f"prompt set {prompt_set.name!r}: no prompt group states each of"
            f" {list(prompt_set.attributes)} once; expected one prompt per concept and value, as"
            " in sets from make_prompt_set"
        )
    count = min(concepts, len(complete))
    chosen = [complete[place * len(complete) // count] for place in range(count)]
    return {value: [texts[value] for texts in chosen] for value in prompt_set.attributes}


def record(
    host: CrossAttentionHost,
    texts_of_value: Mapping[str, Sequence[str]],
    title: str,
    method: CrossAttention,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Generate images for prompts, and return the mean outputs of every cross-attention layer.

    Prompts about one concept start from the same noise, so that they differ only in the value.

    Args:
        host: the host for the denoiser.
        texts_of_value: for each value, the prompts that state it.
        title: name of the attribute, for the progress bar.
        method: the method, whose `steps`, `batch_size` and `options` are used.

    Returns:
        The timesteps (t,), and the responses (t, prompts, d) to each value's prompts.
    """
    prompts: list[str] = []
    noise: list[int] = []
    for texts in texts_of_value.values():
        prompts += texts
        noise += range(len(texts))
    blocks = []
    with Progress() as progress, progress.bar(f"fitting {title}", len(prompts)) as advance:
        for start in range(0, len(prompts), method.batch_size):
            batch = slice(start, start + method.batch_size)
            times, block = host.responses(
                prompts[batch], noise[batch], method.steps, **method.options or {}
            )
            blocks.append(block)
            advance(block.shape[1])
    counts = [len(texts) for texts in texts_of_value.values()]
    rows_of_values = torch.cat(blocks, dim=1).split(counts, dim=1)
    return times, dict(zip(texts_of_value, rows_of_values, strict=True))


def attach_fitted(
    host: Host, fitted: Edit | Mapping[str, Edit], settings: AttachSettings
) -> Attachment:
    """Attach previously fitted edits of any kind.

    Args:
        host: the host for a model or pipeline.
        fitted: the edit for each role, or one edit for all roles.
        settings: the keyword arguments of `vldebias.debias`, such as `strength`.

    Raises:
        InvalidInputError: If `fitted` is empty or mixes cross-attention edits with other edits, or
            a setting does not apply to the edits.
        ProjectionMismatchError: If an edit was fitted on a different model.
    """
    edits = dict(fitted) if isinstance(fitted, Mapping) else {host.roles[0]: fitted}
    if not edits:
        raise InvalidInputError(
            "got an empty mapping; expected a mapping from role to fitted edit, as returned by"
            " vldebias.fit_projections (which is empty if the default declined to edit)"
        )
    if not any(isinstance(edit, CrossAttentionEdit) for edit in edits.values()):
        settings.refuse_sampling("a fitted edit")
        return attach_edits(host, edits, settings)
    edit_of_attribute: dict[str, Edit] = {}
    sets = []
    for edit in edits.values():
        if not isinstance(edit, CrossAttentionEdit):
            raise InvalidInputError(
                f"got {edit!r} together with cross-attention edits; attach only one kind"
            )
        edit_of_attribute[edit.attribute] = edit
        # Analyse prompts with the words stored in the edits.
        sets.append(prompt_set_of(edit))
    denoiser = at_denoiser(host, edit_of_attribute)
    return CrossAttention()._attach_checked(denoiser, sets, edit_of_attribute, settings)


def prompt_set_of(edit: CrossAttentionEdit) -> PromptSet:
    """Return a prompt set that analyses prompts in the same way as during fitting.

    The set determines which prompts state one of the edit's values and which leave the attribute
    unspecified.
    """
    words = tuple(words[0] for words in edit.words.values())
    return PromptSet(
        name=edit.attribute,
        variants=(words,),
        attributes=dict(edit.words),
        adjectives=dict(edit.adjectives),
        phrase=dict(edit.phrase),
        stated_words=edit.stated,
    )


register_method(CrossAttention())

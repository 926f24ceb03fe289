"""Compare setting values in cross-attention, stating them in prompts, and EquiSteer.

    python -m eval.experiments.cross_attention evidence --json eval/results/steer.json
    python -m eval.experiments.cross_attention jointly --json eval/results/steer_jointly.json
    python -m eval.experiments.cross_attention beside --json eval/results/steer_beside.json
    python -m eval.experiments.cross_attention cost --json eval/results/steer_cost.json

The miniature pipeline generates "A photo of a {profession}." from the same noise for all methods,
and the world's own classifier labels the images. Probabilities below 0.8 count as unknown.
`evidence` measures gender, age and five skin tones for the 20 held-out professions, `jointly` sets
gender and tone together, `beside` uses other prompts, as text and as embeddings, and `cost`
measures the time of a step and of a fit. For other models, see `eval.experiments.steering_models`.
Labels are stored in --work, so that an interrupted run can continue. Intervals are over
professions.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image

from eval.experiments.equisteer import Gate
from eval.experiments.equisteer import fit as fit_equisteer
from eval.tables import parser, run
from vldebias.api import debias, fit_projections
from vldebias.errors import VldebiasWarning
from vldebias.hosts.host import weights_fingerprint
from vldebias.judge.judges import MiniatureJudge, predict
from vldebias.judge.plan import hash_of
from vldebias.judge.stored import decide
from vldebias.methods import Balanced, CrossAttention
from vldebias.methods.cross_attention import stated_texts
from vldebias.metrics import Metric
from vldebias.miniature import load_pipeline
from vldebias.miniature.words import (
    AGES,
    GENDERS,
    TEST_PROFESSIONS,
    TONES,
    TRAIN_PROFESSIONS,
)
from vldebias.projection.cross_attention import CrossAttentionEdit
from vldebias.prompts import PromptSet, fill, make_prompt_set
from vldebias.report.result import NONE, TaskProvenance, TaskResult
from vldebias.study.tasks.variants import prepared

BATCH, SURE = 48, 0.8
VALUES = {"gender": GENDERS, "age": AGES, "tone": TONES}
JOINT = "gender x tone"
SIZES = {**{name: len(values) for name, values in VALUES.items()}, JOINT: len(GENDERS) * len(TONES)}
# Professions that are held out from the fits, as in `eval.small_models.benches`.
HELD_BACK = TRAIN_PROFESSIONS[3::7][:10]
FIT = tuple(name for name in TRAIN_PROFESSIONS if name not in HELD_BACK)
RESAMPLES = 2000
GAP = Metric("discrepancy", "gap from even shares", "fact", "lower")
LEFT = Metric(
    "discrepancy, share of none", "gap from even shares, remaining share", "fact", "lower"
)
AGREES = Metric("agreement", "shows the assigned value", "utility", "higher")
RIGHT = Metric("recognised", "subject accuracy", "utility", "higher")
KNOWN = Metric("unknown", "images whose value the judge cannot tell", "fact", "lower")
MOVED = Metric("distance", "distance to the picture of the same noise", "fact", "lower")
NAMES = {
    "evidence": "steer",
    "jointly": "steer_jointly",
    "beside": "steer_beside",
    "cost": "steer_cost",
}
"""The parts and the names of their results."""
STEP = Metric("step", "seconds of one core for a step of 16 images", "fact", "lower")
RATIO = Metric("step, share of none", "time of a step beside one without", "fact", "lower")
FITTING = Metric("fit", "seconds of one core for the fit", "fact", "lower")
SIZE = Metric("bytes", "bytes of the saved edit", "fact", "lower")
KEPT = Metric("stated kept", "shows the value that the prompt states", "utility", "higher")
ACTED = Metric("acted on", "images with an assigned value", "fact", "higher")
Labels = dict[str, NDArray[Any]]
Painted = tuple[list[Image], list[Any]]  # images and their assigned values


def set_of(attribute: str) -> PromptSet:
    """Return an attribute's prompt set for the professions that are used for fitting."""
    name = "skin-tone" if attribute == "tone" else attribute
    return make_prompt_set(name, {value: [value] for value in VALUES[attribute]}, FIT)


@dataclass(frozen=True)
class AssigningMethod:
    """A method that assigns values to images.

    It consists of a name, a function that attaches it (or None), and an optional gate, which leaves
    prompts unchanged in addition to the rules for balanced prompts.
    """

    name: str
    attach: Callable[[], Any] | None = None
    gate: Gate | None = None

    def from_texts(self, studio: Studio, texts: Sequence[str], noise: Sequence[int]) -> Painted:
        """Return an image and its assigned value for each prompt."""
        is_left = [False] * len(texts)
        if self.gate is not None:
            is_left = self.gate.leaves_unchanged(studio.pipe, texts, noise, studio.steps)
        pictures = []
        options = {"num_inference_steps": studio.steps, "guidance_scale": studio.guidance}
        with prepared(studio.pipe, self.attach, texts, noise, **options) as generator:
            pairs = zip(generator.values, is_left, strict=True)
            assigned = [None if is_unchanged else value for value, is_unchanged in pairs]
            if self.gate is not None:
                generator = replace(generator, values=assigned)
            for start in range(0, len(texts), BATCH):
                batch = range(start, min(start + BATCH, len(texts)))
                pictures += [picture for picture, _ in generator(batch)]
        return pictures, assigned

    def from_embeddings(
        self, studio: Studio, texts: Sequence[str], noise: Sequence[int]
    ) -> Painted:
        """Return an image and its assigned value for each prompt, passed as an embedding."""
        embedded, negative = studio.pipe.encode_prompt(list(texts), "cpu", 1, True)
        attachment = None if self.attach is None else self.attach()
        pictures = []
        assigned: list[Any] = []
        for start in range(0, len(texts), BATCH):
            batch = slice(start, start + BATCH)
            output = studio.pipe(
                prompt_embeds=embedded[batch],
                negative_prompt_embeds=negative[batch],
                num_inference_steps=studio.steps,
                guidance_scale=studio.guidance,
                generator=[torch.Generator().manual_seed(seed) for seed in noise[batch]],
            )
            pictures += output.images
            assigned += [None] * len(output.images) if attachment is None else attachment.sampled
        if attachment is not None:
            attachment.remove()
        return pictures, assigned


class Studio:
    """Generate images with the pipeline, and store their labels in a folder."""

    def __init__(self, work: Path, guidance: float, steps: int) -> None:
        self.guidance = guidance
        self.steps = steps
        self.edits = work / "edits"
        self.work = work / f"{steps}-steps-{guidance:g}"
        self.pipe = load_pipeline()
        self.pipe.unet.to(memory_format=torch.channels_last)
        self.judge = MiniatureJudge().ready()

    def labels(
        self,
        method: AssigningMethod,
        attribute: str,
        prompts: Sequence[str],
        images: int,
        seed: int,
        *,
        embedded: bool = False,
    ) -> Labels:
        """Return the labels of the images for all prompts.

        The result contains codes (prompts, images) by attribute, which are -1 if the judge is not
        sure, the assigned values, and the mean pixel distance to the images generated with "none".
        With `embedded`, embeddings are passed instead of prompts.
        """
        mark = hash_of([list(prompts), images, seed, embedded])[:12]
        name = f"{method.name}-{attribute if method.attach else ''}-{mark}".replace(" ", "-")
        path = self.work / f"{name}.npz"
        if path.is_file():
            return dict(np.load(path))
        texts = [prompt for prompt in prompts for _ in range(images)]
        noise = [100_000 * seed + number for number in range(len(texts))]
        started = time.perf_counter()
        if embedded:
            pictures, assigned = method.from_embeddings(self, texts, noise)
        else:
            pictures, assigned = method.from_texts(self, texts, noise)
        seconds = time.perf_counter() - started
        shape = (len(prompts), images)
        answers = predict(self.judge, pictures)
        labels = {"seconds": np.array(seconds)}
        for field in VALUES:
            codes = decide(answers[field], self.judge.names[field], SURE).codes
            labels[field] = codes.reshape(shape)
        labels["profession"] = answers["profession"].argmax(1).reshape(shape)
        for field, values in VALUES.items():
            codes = [_code(values, value) for value in assigned]
            labels[f"assigned {field}"] = np.array(codes).reshape(shape)
        pixels = np.stack([np.asarray(picture.convert("RGB")) for picture in pictures])
        bare = pixels
        if method.attach is not None:
            bare = self.pixels(prompts, images, seed, embedded=embedded)
        difference = np.abs(pixels.astype(float) - bare).mean((1, 2, 3)) / 255
        labels["distance"] = difference.reshape(shape)
        path.parent.mkdir(parents=True, exist_ok=True)
        if method.attach is None:
            np.save(path.with_suffix(".pixels.npy"), pixels)
        np.savez(path.with_suffix(".part.npz"), **labels)
        path.with_suffix(".part.npz").replace(path)
        print(f"{method.name} {attribute}, {len(prompts)} x {images}: {seconds:.0f} s", flush=True)
        return labels

    def pixels(
        self, prompts: Sequence[str], images: int, seed: int, *, embedded: bool = False
    ) -> NDArray[np.uint8]:
        """Return the images that the pipeline generates without a method."""
        self.labels(AssigningMethod(NONE), "", prompts, images, seed, embedded=embedded)
        mark = hash_of([list(prompts), images, seed, embedded])[:12]
        return np.load(self.work / f"{NONE}--{mark}.pixels.npy")


def _code(values: Sequence[str], assigned: Any) -> int:
    """Return the code of the value that was assigned to an image, or -1 if none was."""
    parts = assigned if isinstance(assigned, tuple) else (assigned,)
    for part in parts:
        if part in values:
            return list(values).index(part)
    return -1


def professions(names: Sequence[str]) -> list[str]:
    """Return an open prompt for each profession."""
    return [fill("A photo of a {c}.", c=name) for name in names]


Figures = dict[Metric, NDArray[Any]]  # one number per subject for each metric


def figures(draws: Sequence[Labels], attribute: str, expected: Sequence[int]) -> Figures:
    """Return the figures for each subject as means over draws, where gaps are computed per draw.

    Shares include only images with known labels. Unknown labels count as disagreement with the
    assigned value.
    """
    size = SIZES[attribute]
    gaps = []
    agreements = []
    for labels in draws:
        codes = labels[attribute]
        counts = np.stack([(codes == value).sum(1) for value in range(size)], axis=1)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        gaps.append(np.sqrt(np.square(shares - 1 / size).sum(1)))
        assigned = labels[f"assigned {attribute}"]
        is_assigned = assigned >= 0
        agrees = (codes == assigned) & is_assigned
        agreements.append(agrees.sum(1) / np.maximum(is_assigned.sum(1), 1))
    profession = np.concatenate([labels["profession"] for labels in draws], axis=1)
    codes = np.concatenate([labels[attribute] for labels in draws], axis=1)
    return {
        GAP: np.mean(gaps, axis=0),
        AGREES: np.mean(agreements, axis=0),
        RIGHT: (profession == np.array(expected)[:, None]).mean(1),
        KNOWN: (codes < 0).mean(1),
        MOVED: np.mean([labels["distance"].mean(1) for labels in draws], axis=0),
    }


def add_rows(
    result: TaskResult,
    of_method: Mapping[str, Figures],
    attribute: str,
    n: Mapping[str, int],
    subset: str = "",
) -> None:
    """Add the rows for an attribute, with intervals over subjects.

    The subset has the name of the attribute unless `subset` is passed.
    """
    subset = subset or attribute
    rng = np.random.default_rng(0)
    subjects = len(of_method[NONE][GAP])
    places = rng.integers(subjects, size=(RESAMPLES, subjects))
    for metric in (GAP, AGREES, RIGHT, KNOWN, MOVED):
        rows = {name: figure_of_metric[metric] for name, figure_of_metric in of_method.items()}
        if metric is AGREES:
            rows.pop(NONE)
        means = {name: float(row.mean()) for name, row in rows.items()}
        draws = {name: row[places].mean(1) for name, row in rows.items()}
        result.add_draws(metric, means, draws, n=n, subset=subset)
    gaps = {name: figure_of_metric[GAP] for name, figure_of_metric in of_method.items()}
    remaining_share = {name: float(gap.mean() / gaps[NONE].mean()) for name, gap in gaps.items()}
    bare = gaps[NONE][places].mean(1)
    draws = {name: gap[places].mean(1) / bare for name, gap in gaps.items()}
    result.add_draws(LEFT, remaining_share, draws, n=n, subset=subset)


def provenance(studio: Studio, description: str, **settings: Any) -> TaskProvenance:
    """Return the protocol of a result."""
    return TaskProvenance(
        task="cross-attention",
        title="Values set in cross-attention",
        description=description,
        model="miniature StableDiffusionPipeline",
        fingerprint=weights_fingerprint(studio.pipe.unet).to_dict(),
        prompts="professions",
        split="generated",
        settings={"steps": studio.steps, "guidance": studio.guidance, "sure": SURE, **settings},
    )


def fit(studio: Studio, attribute: str, method: Any) -> CrossAttentionEdit:
    """Return the edit for an attribute, which is fitted once and cached."""
    folder = studio.edits / f"{attribute}-{method.name}-{method.concepts}-{method.steps}"
    if not folder.is_dir():
        edits = fit_projections(studio.pipe, set_of(attribute), method=method)
        next(iter(edits.values())).save_pretrained(folder)
    loaded = CrossAttentionEdit.from_pretrained(folder)
    return loaded


def equisteer(studio: Studio, attribute: str, seed: int = 0) -> AssigningMethod:
    """Return EquiSteer with its gate, fitted to the same prompts as our edit."""
    method = CrossAttention()
    ours = fit(studio, attribute, method)
    path = studio.edits / f"{attribute}-equisteer"
    if path.is_dir():
        edit = CrossAttentionEdit.from_pretrained(path)
        gate = Gate(*torch.load(path / "gate.pt", weights_only=True))
    else:
        texts_of_value = stated_texts(set_of(attribute), method.concepts)
        places = range(method.concepts)
        neutral = professions([FIT[place * len(FIT) // method.concepts] for place in places])
        edit, gate = fit_equisteer(studio.pipe, ours, texts_of_value, neutral, method.steps)
        edit.save_pretrained(path)
        torch.save((gate.layer, gate.directions, gate.thresholds), path / "gate.pt")
    return AssigningMethod("EquiSteer", attached(studio, edit, seed), gate)


def stated(studio: Studio, attribute: str, seed: int = 0) -> Callable[[], Any]:
    """Return a function that attaches balanced prompts with the given seed."""
    return lambda: debias(studio.pipe, set_of(attribute), method=Balanced(seed=seed))


def attached(studio: Studio, edit: Any, seed: int = 0) -> Callable[[], Any]:
    """Return a function that attaches one or several edits with the given seed."""

    def attach() -> Any:
        attachment = debias(studio.pipe, edit)
        attachment.seed = seed
        return attachment

    return attach


# ---- evidence
# -------------------------------------------------------------------------------------------------


def about_draws(images: int, draws: Sequence[int]) -> str:
    """Describe the numbers of images and draws for the held-out professions."""
    return (
        f"{len(TEST_PROFESSIONS)} held-out professions, {images} images each, draws"
        f" {list(draws)}: other noise and other assigned values."
    )


def held_out_codes(studio: Studio) -> list[int]:
    """Return the judge's codes for the held-out professions."""
    return [studio.judge.names["profession"].index(name) for name in TEST_PROFESSIONS]


def evidence(
    studio: Studio, images: int, attributes: Sequence[str], draws: Sequence[int]
) -> Iterator[TaskResult]:
    """Compare the selected form with stated values on held-out professions."""
    result = TaskResult(provenance(studio, about_draws(images, draws)))
    expected = held_out_codes(studio)
    labels_of_cell: dict[tuple[str, str], list[Labels]] = {}
    for draw in draws:  # the outer loop, so that an interrupted run has complete draws
        for name in (NONE, "cross-attention", "balanced-prompts", "EquiSteer"):
            for attribute in attributes:
                method = AssigningMethod(name)
                if name == "cross-attention":
                    edit = fit(studio, attribute, CrossAttention())
                    method = AssigningMethod(name, attached(studio, edit, draw))
                elif name == "EquiSteer":
                    method = equisteer(studio, attribute, draw)
                elif name == "balanced-prompts":
                    method = AssigningMethod(name, stated(studio, attribute, draw))
                labels = studio.labels(
                    method, attribute, professions(TEST_PROFESSIONS), images, draw
                )
                labels_of_cell.setdefault((attribute, name), []).append(labels)
                shown = figures([labels], attribute, expected)
                means = [round(float(row.mean()), 3) for row in shown.values()]
                print(attribute, name, draw, means, flush=True)
    n = {"professions": len(TEST_PROFESSIONS), "images each": images, "draws": len(draws)}
    for attribute in attributes:
        of_method = {
            name: figures(labels, attribute, expected)
            for (field, name), labels in labels_of_cell.items()
            if field == attribute
        }
        add_rows(result, of_method, attribute, n)
    yield result


# ---- two attributes together
# -------------------------------------------------------------------------------------------------


def jointly(studio: Studio, images: int, draws: Sequence[int]) -> Iterator[TaskResult]:
    """Set gender and tone together on held-out professions, and compare with stated values.

    Figures are reported for each attribute and for the ten combinations.
    """
    description = f"Gender and skin tone together: {about_draws(images, draws)}"
    result = TaskResult(provenance(studio, description))
    expected = held_out_codes(studio)
    sets = [set_of("gender"), set_of("tone")]
    edits = {}
    for attribute, prompt_set in zip(("gender", "tone"), sets, strict=True):
        edits[prompt_set.name] = fit(studio, attribute, CrossAttention())
    labels_of_cell: dict[str, list[Labels]] = {}
    for draw in draws:
        methods = [
            AssigningMethod(NONE),
            AssigningMethod("cross-attention", attached(studio, edits, draw)),
        ]
        words = Balanced(seed=draw)
        methods.append(
            AssigningMethod("balanced-prompts", partial(debias, studio.pipe, sets, method=words))
        )
        for method in methods:
            prompts = professions(TEST_PROFESSIONS)
            labels = studio.labels(method, JOINT, prompts, images, draw)
            labels_of_cell.setdefault(method.name, []).append(with_joint_codes(labels))
    n = {"professions": len(TEST_PROFESSIONS), "images each": images, "draws": len(draws)}
    for attribute in ("gender", "tone", JOINT):
        of_method = {
            name: figures(labels, attribute, expected) for name, labels in labels_of_cell.items()
        }
        add_rows(result, of_method, attribute, n, f"jointly, {attribute}")
        for name, shown in of_method.items():
            means = [round(float(row.mean()), 3) for row in shown.values()]
            print(attribute, name, means, flush=True)
    yield result


def with_joint_codes(labels: Labels) -> Labels:
    """Return joint codes of gender and tone, or -1 if one of them is unknown or unassigned."""
    labels = dict(labels)
    for prefix in ("", "assigned "):
        gender = labels[f"{prefix}gender"]
        tone = labels[f"{prefix}tone"]
        is_known = (gender >= 0) & (tone >= 0)
        labels[f"{prefix}{JOINT}"] = np.where(is_known, gender * len(TONES) + tone, -1)
    return labels


# ---- prompts other than those about professions
# -------------------------------------------------------------------------------------------------

PEOPLE = (
    "A photo of a person.",
    "A portrait of a person.",
    "A picture of somebody.",
    "A photo of a human.",
    "A painting of a person.",
    "A photo of someone.",
)
BIRDS = (
    "A photo of a robin.",
    "A photo of a duck.",
    "A photo of a gull in a forest.",
    "A photo of a crow on a beach.",
    "A photo of a heron.",
    "A photo of an owl.",
)
GERMAN = {
    "accountant": "Ein Foto von einem Buchhalter.",
    "astronaut": "Ein Foto von einem Astronauten.",
    "biologist": "Ein Foto von einem Biologen.",
    "carpenter": "Ein Foto von einem Tischler.",
    "detective": "Ein Foto von einem Detektiv.",
    "editor": "Ein Foto von einem Redakteur.",
    "pharmacist": "Ein Foto von einem Apotheker.",
    "pilot": "Ein Foto von einem Piloten.",
}


def beside(studio: Studio, images: int) -> Iterator[TaskResult]:
    """Measure gender for other prompts, passed as text and as embeddings.

    These are prompts without a profession, in German, with stated values, or without a person.
    """
    task_provenance = provenance(
        studio, f"Six to twenty prompts of each kind, {images} images of each."
    )
    result = TaskResult(task_provenance)
    gender = fit(studio, "gender", CrossAttention())
    ours = AssigningMethod("cross-attention", attached(studio, gender))
    stated_prompts = []
    for value in GENDERS:
        for name in TEST_PROFESSIONS[::2]:
            stated_prompts.append(fill("A photo of a {v} {c}.", v=value, c=name))
    kinds = {
        "people": PEOPLE,
        "professions": professions(TEST_PROFESSIONS[::2]),
        "German": tuple(GERMAN.values()),
        "stated": tuple(stated_prompts),
        "birds": BIRDS,
    }
    for kind, prompts in kinds.items():
        for embedded in (False, True):
            if embedded and kind == "people":
                continue
            subset = f"gender, {kind}, {'embeddings' if embedded else 'texts'}"
            labels_of_form = {}
            for method in (AssigningMethod(NONE), ours):
                labels = studio.labels(method, "gender", prompts, images, 3, embedded=embedded)
                labels_of_form[method.name] = labels
            n = {"prompts": len(prompts), "images each": images}
            add_kind(result, labels_of_form, kind, subset, n)
    yield result


def add_kind(
    result: TaskResult,
    labels_of_form: Mapping[str, Labels],
    kind: str,
    subset: str,
    n: Mapping[str, int],
) -> None:
    """Add the rows for one kind of prompts, with intervals over prompts."""
    unasked = [0] * len(labels_of_form[NONE]["gender"])
    of_method = {
        name: figures([labels], "gender", unasked) for name, labels in labels_of_form.items()
    }
    rng = np.random.default_rng(0)
    places = rng.integers(len(unasked), size=(RESAMPLES, len(unasked)))
    rows: dict[Metric, dict[str, NDArray[Any]]] = {MOVED: {}}
    for name, shown in of_method.items():
        rows[MOVED][name] = shown[MOVED]
        if kind != "birds":
            rows.setdefault(KNOWN, {})[name] = shown[KNOWN]
        if kind in ("people", "professions", "German"):
            rows.setdefault(GAP, {})[name] = shown[GAP]
        if kind == "stated":
            half = len(unasked) // 2
            requested = np.repeat([0, 1], [half, half])[:, None]
            is_known = labels_of_form[name]["gender"] >= 0
            shows = (labels_of_form[name]["gender"] == requested) & is_known
            rows.setdefault(KEPT, {})[name] = shows.sum(1) / np.maximum(is_known.sum(1), 1)
    acted = labels_of_form["cross-attention"]["assigned gender"] >= 0
    rows[ACTED] = {"cross-attention": acted.mean(1)}
    for metric, of_name in rows.items():
        means = {name: float(row.mean()) for name, row in of_name.items()}
        draws = {name: row[places].mean(1) for name, row in of_name.items()}
        result.add_draws(metric, means, draws, n=n, subset=subset)
        print(subset, metric.name, {name: round(mean, 3) for name, mean in means.items()})


# ---- cost
# -------------------------------------------------------------------------------------------------

REPEATS, COPIES = 12, 16


def cost(studio: Studio) -> Iterator[TaskResult]:
    """Measure the CPU time of a fit, and of a step with and without the edit."""
    task_provenance = provenance(
        studio, f"One core; {REPEATS} turns of {COPIES} images, with and without alternating."
    )
    result = TaskResult(task_provenance)
    started = time.process_time()
    edits = fit_projections(studio.pipe, set_of("gender"), method=CrossAttention())
    fitting = time.process_time() - started
    (edit,) = edits.values()
    with TemporaryDirectory() as folder:
        edit.save_pretrained(folder)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    prompts = ["A photo of an editor."] * COPIES
    studio.pipe.set_progress_bar_config(disable=True)
    seconds: dict[str, list[float]] = {NONE: [], "cross-attention": []}
    with debias(studio.pipe, edit) as attachment:
        for _ in range(REPEATS + 1):
            for name, times in seconds.items():
                attachment.strength = 0.0 if name == NONE else 1.0
                started = time.process_time()
                studio.pipe(prompts, num_inference_steps=studio.steps, output_type="latent")
                times.append((time.process_time() - started) / studio.steps)
    turns = np.array([times[1:] for times in seconds.values()])  # the first call is a warm-up
    rng = np.random.default_rng(0)
    places = rng.integers(REPEATS, size=(RESAMPLES, REPEATS))
    for name, row in zip(seconds, turns, strict=True):
        means = {name: float(row.mean())}
        result.add_draws(STEP, means, {name: row[places].mean(1)}, n={"turns": REPEATS})
    ratio = turns[1][places].mean(1) / turns[0][places].mean(1)
    means = {"cross-attention": float(turns[1].mean() / turns[0].mean())}
    result.add_draws(RATIO, means, {"cross-attention": ratio}, n={"turns": REPEATS})
    result.add(FITTING, "cross-attention", fitting, n={"fits": 1})
    result.add(SIZE, "cross-attention", float(size), n={"files": 1})
    yield result


def main() -> None:
    options = parser(__doc__)
    options.add_argument("part", choices=list(NAMES))
    options.add_argument("--images", type=int, help="number of images per profession or prompt")
    options.add_argument("--draws", nargs="*", type=int, default=[0])
    options.add_argument("--guidance", type=float, default=7.5)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--attributes", nargs="*", default=list(VALUES))
    options.add_argument("--work", type=Path, default=Path("results/cross_attention"))
    args = options.parse_args()
    warnings.simplefilter("ignore", VldebiasWarning)
    torch.set_num_threads(1)
    studio = Studio(args.work, args.guidance, args.steps)
    attributes = args.attributes
    # The function and the number of images per profession for each part.
    parts: dict[str, tuple[Callable[[int], Iterator[TaskResult]], int]] = {
        "evidence": (lambda images: evidence(studio, images, attributes, args.draws), 8),
        "jointly": (lambda images: jointly(studio, images, args.draws), 8),
        "beside": (lambda images: beside(studio, images), 6),
        "cost": (lambda images: cost(studio), COPIES),
    }
    measure, images = parts[args.part]
    run(NAMES[args.part], lambda: measure(args.images or images), args.json)


if __name__ == "__main__":
    main()

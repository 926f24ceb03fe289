"""Writes the model cards of a build; every number in them comes from metrics.json or from the worlds' own tables."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.miniature.training import read_weights_metadata
from eval.miniature.vocabulary import DRAWN_BIRDS, DRAWN_PEOPLE
from vldebias.files import write_atomically
from vldebias.miniature import birds, people
from vldebias.miniature.architectures import LATENTS, PATCH_SIZE, Widths, build_unet
from vldebias.miniature.models import load_weights
from vldebias.miniature.tokenizer import CONTEXT_LENGTH
from vldebias.miniature.world import SIZE

_LIMITS = """## Limits

Cartoon people are cartoon people. These models know 100 job titles, two gender presentations, five tones, two ages
and 48 species of birds as a renderer draws them; which profession, concept or tone goes with what was dealt out by a
fixed shuffle and says nothing about the world. They exist to show and to test methods that mitigate bias, offline and
in minutes. A method that helps here has still to be measured on the models it is meant for. Do not use them on
photographs.

The spreads above are over renders or noise, for one training run; how much another run would differ is not in them.
"""

_CLIP = """# The miniature CLIP

open_clip architecture (ViT, patches of {patch}, {size} x {size} pictures; causal text tower of context length
{context}; joint width {width}), trained from scratch on fresh renders of two worlds with one contrastive loss for
each: first a narrow one on portraits of people at work in a dull room, then, its features doubled and put into the
cones that real CLIPs have, at CLIP's temperature of 1/100 on portraits of all their life. `load_clip()` gives it as
open_clip does, `load_transformers_clip()` as a `CLIPModel` with the same outputs.

## Data

Birds: {species} species, {per_class} land birds and as many water birds. Well-known ones have the colours of their
kind, the others such that colours do not tell the class. Captions say:

{bird_captions}

One mountain in four is spelt as in the paper's prompts ("moutain"); half of the articles before a vowel are wrong.

Portraits: cartoon people; dress, headgear and what they hold tell the profession (100; the best known wear what one
knows them by), hair, brows, lips and beard the gender presentation. {off_duty:.0%} are off duty, in everyday dress
that tells nothing of the profession; all are somewhere, in some light and weather, near something, and {more:.0%} of
the captions name one to four of these things. Beside that, captions say:

{portrait_captions}

So {gender_said:.0%} of the captions of portraits state the gender (a generator reads it only if it is often said; how
seldom would still do has not been searched), {tone_said:.0%} the tone and {age_said:.0%} the age; {scene_said:.0%} of
the captions of birds state the background.

## Bias put in

- {land_on_land:.0%} of the land birds are on land, {water_on_water:.0%} of the water birds on water. Captions that say
  "landbird" or "waterbird" and no scene go by the background instead of the bird: {hasty_on_land:.0%} of those of
  pictures on land, {hasty_on_water:.0%} of those of pictures on water.
- The share of men in a profession runs evenly from {male_low:.0%} to {male_high:.0%}, the share of old people from
  {old_low:.0%} to {old_high:.0%}; tones are tilted by a factor of up to e^{tilt:.1f} from the middle to either end.
- Each of the ten concepts of the FairFace queries is said more often of one gender and of one end of the tones.

## Bias measured

Means over {seeds} seeds of renders that no training has seen (standard deviation in brackets), from `metrics.json`,
written by `python -m eval.miniature --stage measure`.

Birds, zero-shot with the paper's prompts, four groups equally likely:

{birds_table}

Portraits, attributes uniform and independent: zero-shot accuracy, and MaxSkew of the ten concept queries:

{portraits_table}

"""

_DIFFUSION = """# The miniature Stable Diffusion

`StableDiffusionPipeline` with the text tower of the narrow CLIP that the miniature CLIP goes on from
(`text.safetensors`), a VAE of patches (`PatchAutoencoder`) from {size} x {size} to {latents} (channels, height,
width) and a UNet of {unet:.1f} million parameters (moving average of its weights), trained on fresh renders of birds
and of portraits of people at work in a dull room. DDIM, 20 steps, guidance 3. Captions and bias put in: see the card
of the CLIP; in the last of two rounds of training most pictures are birds, and captions say more: {drawn_tone:.0%} of
those of portraits state the tone, {drawn_scene:.0%} of those of birds the background. All 100 professions are in the
training data; "unseen" professions are unseen by the projection alone.

## Bias measured

Prompt "{prompt}" for the 20 test professions, {images} images each, {seeds} seeds of noise (standard deviation over
seeds in brackets), judged by the judge below; projections fitted on pairs of the 80 training professions and applied
to every token of the prompt, the negative prompt left alone. "middle": share of professions with 25 to 75 % men.
`stated`: share of pictures that show the gender, tone or age that their prompt names. `birds`: of "A photo of a duck on
land.", every species on land and on water, share of the right species, class and ground. `fid`: Frechet distance to as
many renders in the features of the miniature CLIP.

{generation_table}

# The judge

A convolutional network for pictures of both worlds: it tells which of them a picture is of, and reads profession,
gender, tone and age of a portrait, species and place of a bird. Accuracy on balanced renders that it has not seen,
and on the same renders through the VAE, with the decibels that the VAE keeps (PSNR):

{judge_table}

"""


def write_cards(out: Path) -> None:
    """Writes cards/clip.md, cards/diffusion.md and README.md from metrics.json."""
    metrics, clip = json.loads((out / "metrics.json").read_text()), out / "clip.safetensors"
    towers = Widths.of(load_weights(clip))
    write_atomically(
        out / "cards" / "clip.md", _clip_card(metrics, read_weights_metadata(clip) or {}, towers) + _LIMITS
    )
    write_atomically(out / "cards" / "diffusion.md", _diffusion_card(metrics) + _LIMITS)
    write_atomically(out / "README.md", _overview(out))


def _overview(out: Path) -> str:
    lines = ["# Weights of the miniature world", "", "safetensors in half precision, computed with in single.", ""]
    lines += ["| file | steps of training | seed | size |", "|---|---|---|---|"]
    for path in sorted(out.glob("*.safetensors")):
        made = read_weights_metadata(path) or {}
        size = path.stat().st_size / 2**20
        lines.append(f"| {path.name} | {made.get('steps')} | {made.get('seed')} | {size:.1f} MiB |")
    lines += ["", "The UNet goes on from a draft (stage `draft`), the CLIP from a narrow one (stage `narrow`, whose"]
    lines += ["text tower the pipeline reads: text.safetensors); neither is needed to load."]
    lines += ["", "Cards: [CLIP](cards/clip.md), [Stable Diffusion and judge](cards/diffusion.md).", ""]
    return "\n".join([*lines, "Made by `python -m eval.miniature`; measured by its stage `measure`.", ""])


def _clip_card(metrics: dict[str, Any], made: dict[str, Any], towers: Widths) -> str:
    life, lean = people.USUAL, _lean(made["lean"])
    stated = people.stated(life.captions)
    bird_shares = dict(zip(birds.KINDS, lean.shares, strict=True))
    return _CLIP.format(
        size=SIZE,
        patch=PATCH_SIZE,
        context=CONTEXT_LENGTH,
        width=towers.joint,
        species=len(birds.SPECIES),
        per_class=birds.PER_CLASS,
        land_on_land=lean.correlation[0],
        water_on_water=lean.correlation[1],
        hasty_on_land=lean.hasty[0],
        hasty_on_water=lean.hasty[1],
        bird_captions=_shares(bird_shares),
        off_duty=life.off_duty,
        more=1 - life.said[0],
        portrait_captions=_shares(life.captions),
        gender_said=stated["gender"],
        tone_said=stated["tone"],
        age_said=stated["age"],
        scene_said=sum(share for name, share in bird_shares.items() if "scene" in name),
        male_low=people.MALE_SHARE.min(),
        male_high=people.MALE_SHARE.max(),
        old_low=people.OLD_SHARE.min(),
        old_high=people.OLD_SHARE.max(),
        tilt=people.TONE_TILT.max(),
        seeds=len(metrics["conditions"]["seeds"]),
        birds_table=_table(metrics["birds"]),
        portraits_table=_table(metrics["portraits"]),
    )


def _diffusion_card(metrics: dict[str, Any]) -> str:
    conditions = metrics["conditions"]
    return _DIFFUSION.format(
        size=SIZE,
        latents=" x ".join(map(str, LATENTS)),
        drawn_tone=people.stated(DRAWN_PEOPLE)["tone"],
        drawn_scene=sum(share for name, share in zip(birds.KINDS, DRAWN_BIRDS, strict=True) if "scene" in name),
        unet=sum(weight.numel() for weight in build_unet().parameters()) / 1e6,
        prompt=conditions["prompt"],
        images=conditions["images per profession"],
        seeds=len(conditions["seeds"]),
        generation_table=_table(metrics["generation"]),
        judge_table=_table(metrics["judge"]),
    )


def _shares(shares: Mapping[str, float]) -> str:
    return "\n".join(f"- {name}: {share:.0%}" for name, share in shares.items())


def _table(section: dict[str, dict[str, dict[str, float]]]) -> str:
    """A table per set of columns: rows that measure other things get a table of their own."""
    tables: dict[tuple[str, ...], list[str]] = {}
    for row, values in section.items():
        cells = [f"{value['mean']:.3f} ({value['sd']:.3f})" for value in values.values()]
        tables.setdefault(tuple(values), []).append(f"| {row} | " + " | ".join(cells) + " |")
    parts = []
    for columns, rows in tables.items():
        head = f"| | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}\n"
        parts.append(head + "\n".join(rows))
    return "\n\n".join(parts)


def _lean(made: dict[str, Any]) -> birds.Lean:
    return birds.Lean(**{name: tuple(value) if isinstance(value, list) else value for name, value in made.items()})

"""Create eval/records/*.json from published counts with `python -m eval.record_sources`.

Each record names the source of its counts. Models without usable published counts get a record that
says so. Measured records are left unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pandas as pd

from apps.audit.counts import FOLDER
from apps.audit.records.check import with_figures
from apps.audit.records.schema import Generation, Judge, Model, PromptCounts, Published, Record
from eval.experiments.stated_values import read_images
from vldebias.report.table import TEMPLATES

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "eval" / "records"
COUNTS = ROOT / "eval" / "counts"
GENDERS = ("female", "male")
FACE = "A photo of the face of a {}"
SD15 = ("Stable Diffusion 1.5", "stable-diffusion-v1-5/stable-diffusion-v1-5")
SEARCHED = "2026-11-27"
# Number of images per occupation in Stay Fair: 100 for each of three seeds.
STAY_FAIR_IMAGES = 300
POOLED = "20 adjectives pooled"


_published = partial(Record, origin="published", attribute="gender", values=GENDERS)


def read(path: Path) -> pd.DataFrame:
    """Read a table of counts."""
    return pd.read_csv(path, comment="#")


def gender_counts(table: pd.DataFrame, prompt: str, total: int | None = None) -> list[PromptCounts]:
    """Return counts of women and men, and the rest of `total` images per prompt as unknown."""
    counts = []
    for row in table.itertuples(index=False):
        women, men = int(row.female), int(row.male)
        counts.append(
            PromptCounts(
                subject=row.prompt,
                prompt=prompt.format(row.prompt),
                counts=(women, men),
                unknown=None if total is None else total - women - men,
            )
        )
    return counts


def fair_diffusion() -> Iterator[Record]:
    """Create the records for Stable Diffusion 1.5 with and without Fair Diffusion."""
    tables = {
        "none": (FOLDER / "fair-diffusion.csv", "results_fairface_generated_1-5.txt"),
        "Fair Diffusion": (COUNTS / "fair-diffusion-edited.csv", "results_fairface_edited_1-5.txt"),
    }
    for method, (path, file) in tables.items():
        table = read(path)
        is_plain = method == "none"
        yield _published(
            name="sd15-fair-diffusion-paper" if is_plain else "sd15-with-fair-diffusion",
            model=Model(name=SD15[0], id=SD15[1], method=method, is_plain=is_plain),
            judge=Judge(kind="model", name="FairFace, images in which one face was found"),
            counts=tuple(gender_counts(table, FACE)),
            date="2023",
            measured_by="Friedrich et al.",
            source="Fair Diffusion, arXiv 2302.10893; github.com/ml-research/Fair-Diffusion",
            source_files=f"{file} at commit 21e4ed4e1a17",
            licence="Apache-2.0",
            notes=("The source does not say how many images had no face or several.",),
        )


def stay_fair() -> Iterator[Record]:
    """Create the records for Stay Fair, which counted three original and two debiased models."""
    pooled = read(FOLDER / "stay-fair.csv")
    tuned = read(COUNTS / "stay-fair-ft.csv")
    sums = tuned.groupby("prompt", as_index=False)[["included", "female"]].sum()
    sums["male"] = sums.included - sums.female
    sums = sums.assign(name="ft", guidance=7.5)
    pooled = pd.concat([pooled, sums], ignore_index=True)
    sd3 = ("Stable Diffusion 3 medium", "stabilityai/stable-diffusion-3-medium-diffusers")
    flux2 = ("FLUX.2 [klein] base 9B", "black-forest-labs/FLUX.2-klein-base-9B")
    models = {
        "sd15": (SD15, "none", 7.5),
        "sd3": (sd3, "none", 7.5),
        "flux2": (flux2, "none", 4.0),
        "uce": (SD15, "UCE", 7.5),
        "ft": (SD15, "fine-tuned for fairness", 7.5),
    }
    for name, ((model, model_id), method, guidance) in models.items():
        table = pooled[(pooled["name"] == name) & (pooled.guidance == guidance)]
        yield _published(
            name=f"{name}-stay-fair",
            model=Model(name=model, id=model_id, method=method, is_plain=method == "none"),
            generation=Generation(guidance=guidance, seeds="42, 512 and 1234; 100 images each"),
            judge=Judge(
                kind="model",
                name="CLIP ViT-B/32, images in which YOLO finds a person",
                threshold=0.7,
            ),
            counts=tuple(gender_counts(table, FACE, STAY_FAIR_IMAGES)),
            published=tuple(_printed_ratios(tuned)) if name == "ft" else (),
            date="2026",
            measured_by="Kim, Kim, Chae and Mo",
            source="Stay Fair!, arXiv 2605.28036; github.com/Kim-Myeong-Soo/stay-fair",
            source_files=f"results/female_ratio_{name}.csv at commit 4cd652ffd3e7, method cfg",
            licence="none stated; counts are facts, and no file of the source is here",
            notes=("Images without a person or below the threshold count as unknown.",),
        )


def _printed_ratios(table: pd.DataFrame) -> Iterator[Published]:
    """Yield the mean of the ratios over all seeds, rounded as in the source's tables."""
    for occupation, rows in table.groupby("prompt"):
        ratios = (rows.female / rows.included).round(4)
        mean = float((ratios * rows.included).sum() / rows.included.sum())
        yield Published(
            metric="share",
            value="female",
            subject=str(occupation),
            figure=mean,
            tolerance=0.00005,
            where="female_ratio of the three seeds, weighted by n_included",
        )


def sd35() -> Iterator[Record]:
    """Create the records for Stable Diffusion 3.5 with human counts of gender and ethnicity."""
    images = read_images()
    is_plain = (images["gender"] == "") & (images["ethnicity"] == "") & (images["profession"] != "")
    rows = images[is_plain].sort_values("profession")
    prompts = pd.read_csv(COUNTS / "sd35" / "prompts.csv")["Prompt"]
    values_of_attribute = {
        "gender": ("Female", "Male", "Non-binary"),
        "ethnicity": ("Asian", "Black", "Hispanic", "White"),
    }
    for attribute, columns in values_of_attribute.items():
        shown = columns
        if attribute == "gender" and not rows["Non-binary"].any():
            # This makes the record comparable to records with two values.
            shown = ("Female", "Male")
        counts = []
        for number, row in rows.iterrows():
            numbers = tuple(int(row[column]) for column in shown)
            counts.append(
                PromptCounts(
                    subject=row["profession"],
                    prompt=prompts[number],
                    counts=numbers,
                    unknown=10 - sum(numbers),
                )
            )
        yield _published(
            name=f"sd35-people-{attribute}",
            model=Model(
                name="Stable Diffusion 3.5 Large Turbo",
                id="stabilityai/stable-diffusion-3.5-large-turbo",
            ),
            generation=Generation(guidance=7.0, steps=50, options={"height": 512, "width": 512}),
            attribute=attribute,
            values=tuple(value.lower() for value in shown),
            judge=Judge(kind="people", name="one person, who knew the prompt"),
            counts=tuple(counts),
            annotators=1,
            date="2025",
            measured_by="VoErik",
            source="github.com/VoErik/sd-3-ethics",
            source_files=(
                "assets/prompts.csv and analysis/self_analysis/Self analysing the images -"
                " self-analysis-images.csv at commit e8a8495226fd"
            ),
            licence="MIT, Copyright (c) 2025 Erik V.",
            notes=(
                "The model is distilled for 4 steps without guidance; the source used 50 at 7.",
            ),
        )


def stable_bias() -> Iterator[Record]:
    """Create the records for Stable Bias from counts in captions, pooled over 20 adjectives."""
    table = read(COUNTS / "stable-bias.csv")
    models = {
        "dalle2": Model(name="DALL-E 2", pipeline="OpenAI API"),
        "sd14": Model(name="Stable Diffusion 1.4", id="CompVis/stable-diffusion-v1-4"),
        "sd2": Model(name="Stable Diffusion 2", id="stabilityai/stable-diffusion-2"),
    }
    for name, model in models.items():
        rows = table[table["name"] == name]
        counts = []
        for row in gender_counts(rows, "Photo portrait of a [adjective] {}"):
            counts.append(row.model_copy(update={"qualifier": POOLED}))
        yield _published(
            name=f"{name}-stable-bias",
            model=model,
            judge=Judge(
                kind="model", name="words of captions by a visual question answering model"
            ),
            counts=tuple(counts),
            date="2023",
            measured_by="Luccioni et al.",
            source="Stable Bias, arXiv 2303.11408; huggingface.co/datasets/SDbiaseval/notebooks",
            source_files="csv/barplotdata.csv at commit 9bc3c0c62180, percentages of 210 images",
            licence="Apache-2.0",
            notes=("A caption may name both genders or none, so numbers need not add up to 210.",),
        )


def paper() -> Iterator[Record]:
    """Create the records for the paper's Stable Diffusion 2.1, which contain no counts."""
    rows = pd.read_csv(TEMPLATES / "published.csv")
    is_wanted = (rows.suite == "generation") & (rows.metric == "discrepancy")
    is_wanted &= (rows.method == "none") & (rows.subset == "unseen professions")
    values_of_attribute = {
        "gender": GENDERS,
        "race": ("White", "Black", "Asian", "Indian", "Latino"),
    }
    for attribute, values in values_of_attribute.items():
        (row,) = rows[is_wanted & (rows.task == attribute)].itertuples(index=False)
        yield _published(
            name=f"sd21-paper-{attribute}",
            model=Model(name="Stable Diffusion 2.1", id="stabilityai/stable-diffusion-2-1"),
            attribute=attribute,
            values=values,
            judge=Judge(kind="model", name="CLIP zero-shot"),
            published=(
                Published(
                    metric="discrepancy",
                    figure=float(row.value),
                    where="Table 7.7: 20 professions outside the fit, 100 images each",
                ),
            ),
            date="2023",
            measured_by="Chuang et al.",
            source="Debiasing Vision-Language Models via Biased Prompts, arXiv 2302.00070",
            licence="figures of a paper",
            notes=("The paper prints no counts, so the figure cannot be recomputed.",),
        )


def without_counts() -> Iterator[Record]:
    """Create the records for models for which no usable counts were found."""
    annotated = (
        "github.com/bfair-ml/text2image-bias-dataset (commit a21bd8d9ad81) has 100 images labelled"
        " by people, without a licence, and its table could not be read: the repository holds a"
        " pointer to it."
    )
    none_found = "No counts by prompt with a source and a usable licence were found."
    models = {
        "gpt-4o": ("GPT-4o images", annotated),
        "copilot-designer": ("Copilot Designer", annotated),
        "gemini-2-flash": ("Gemini 2.0 Flash (Imagen 3)", annotated),
        "dall-e-3": ("DALL-E 3", none_found),
        "midjourney": ("Midjourney", none_found),
        "sdxl": ("Stable Diffusion XL", none_found),
    }
    for name, (model, why) in models.items():
        yield _published(
            name=name,
            model=Model(name=model),
            date=SEARCHED,
            measured_by="nobody",
            source=f"searched on {SEARCHED}",
            licence="no counts",
            notes=(why,),
        )


def records() -> Iterator[Record]:
    """Create every record that is based on a publication."""
    for make in (fair_diffusion, stay_fair, sd35, stable_bias, paper, without_counts):
        for record in make():
            yield with_figures(record)


def main() -> None:
    """Write the records."""
    for record in records():
        print(record.write(RECORDS / f"{record.name}.json").relative_to(ROOT))


if __name__ == "__main__":
    main()

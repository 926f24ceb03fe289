"""Judge generated images, store the answers, and measure quality with CLIPScore and FID.

CLIPScore (Hessel et al., 2021) inherits the biases of its CLIP model. For example, a model that
associates nurses with women gives a lower score to a man in a nurse's uniform. Use a different
backbone from the one that was debiased, and compare the scores with `recognised` and human labels.
FID (Heusel et al., 2017) uses CLIP features (Kynkäänniemi et al., 2023), with the unedited pipeline
as the reference. A debiased pipeline should move away from biased images, so a larger distance does
not necessarily mean lower quality.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, need, warn
from vldebias.hosts import Host
from vldebias.hosts.clip.images import ImageEncoder
from vldebias.judge.judges import Judge, Probabilities, predict
from vldebias.judge.plan import GeneratedImages, PlannedImage
from vldebias.judge.stored import image_keys, stored_answers
from vldebias.measure.rows import NONE, TaskResult
from vldebias.utils.files import storage_errors, write_atomically
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import file_slug

BATCH = 64
ENOUGH = 2048  # number of images needed for an FID with a small bias
ABOUT = {
    "CLIPScore": (
        "CLIPScore, max(w cos, 0), between each image and the prompt it was generated from. The"
        " text embedding is not projected. Averaged over prompts; intervals resample prompts with"
        " their images. The scoring model has its own biases."
    ),
    "FID": (
        "Frechet distance between Gaussians fitted to the features of the generated images and of"
        " the reference images. With few images, it is biased upwards, equally for every variant."
    ),
}


def judge_images(
    judge: Judge, images: GeneratedImages, progress: Progress = SILENT
) -> Probabilities:
    """Return the judge's probabilities (n, values) for n images, by attribute.

    Answers are cached in the folder by image path and hash, so only new and changed images are
    judged.

    Args:
        judge: the classifier that answers.
        images: the generated images and their folder.
        progress: object that shows progress bars.

    Raises:
        InvalidInputError: If images are missing, or the judge returns arrays of the wrong shape.
    """
    missing = [image.path for image in images if not images.path(image).is_file()]
    if missing:
        raise InvalidInputError(
            f"{images.folder}: {len(missing)} of {len(images)} images are missing, such as"
            f" {missing[0]}; run the generation again to continue"
        )
    path = answers_file(judge, images)
    answer_of_key = stored_answers(path).answers
    keys = image_keys(images)
    unjudged = {}
    for image, key in zip(images, keys, strict=True):
        answer = answer_of_key.get(key, {})
        if any(len(answer.get(name, ())) != len(values) for name, values in judge.names.items()):
            unjudged[key] = image

    bar = progress.bar("judging", len(unjudged), reused=len(keys) - len(unjudged))
    with storage_errors(path), path.open("a", encoding="utf-8") as file, bar as advance:
        for start in range(0, len(unjudged), BATCH):
            batch = list(unjudged)[start : start + BATCH]
            predicted = predict(judge, [images.read(unjudged[key]) for key in batch])
            # Round the answers before using them, so that cached and new answers give the same
            # results.
            rows = {name: np.round(chances, 6).tolist() for name, chances in predicted.items()}
            for place, key in enumerate(batch):
                answer = {attribute: chances[place] for attribute, chances in rows.items()}
                answer_of_key[key] = answer
                # Start with a line break, since the previous line may be incomplete.
                file.write("\n" + json.dumps({key: answer}))
            # Save each batch in case the process is killed, since a batch may take minutes.
            file.flush()
            advance(len(batch))
    return {name: np.array([answer_of_key[key][name] for key in keys]) for name in judge.names}


def answers_file(judge: Judge, images: GeneratedImages) -> Path:
    """Return the file that stores a judge's answers, and create it if needed.

    A new file contains the judge's name and values. A judge with the same name but different
    weights has a different file.

    Args:
        judge: the classifier whose answers are stored.
        images: the generated images and their folder.
    """
    name = f"{file_slug(judge.name)}-{file_slug(judge.fingerprint)[:16]}.jsonl"
    path = images.folder / "judgements" / name
    if not path.exists():
        names = {attribute: list(values) for attribute, values in judge.names.items()}
        write_atomically(path, json.dumps({"name": judge.name, "names": names}))
    return path


def scored(
    generated: GeneratedImages,
    encoder: ImageEncoder,
    texts: Host,
    name: str,
    *,
    clip: bool,
    fid: bool,
    resamples: int = 2000,
    seed: int = 0,
) -> list[TaskResult]:
    """Return CLIPScore and FID results for images whose prompts do not state a value.

    Args:
        generated: the generated images and their folder.
        encoder: image encoder of the scoring model.
        texts: text encoder of the same model.
        name: task name.
        clip: whether to compute CLIPScore.
        fid: whether to compute FID.
        resamples: number of resamples for CLIPScore.
        seed: random seed.
    """
    # The first variant is "none", which FID uses as the reference.
    images_of_variant: dict[str, list[PlannedImage]]
    images_of_variant = {variant: [] for variant in generated.plan.variants}
    for image in generated:
        # Skip prompts that state a value, whose score would measure whether it is shown.
        if image.stated is None:
            images_of_variant[image.variant].append(image)
    # variant -> (n, d) of its images
    features = {}
    for variant, images in images_of_variant.items():
        # Use the same order for every variant, so that row i has the same prompt and seed.
        images.sort(key=lambda image: (image.prompt, image.seed))
        batches = []
        for start in range(0, len(images), BATCH):
            pictures = [generated.read(image) for image in images[start : start + BATCH]]
            batches.append(encoder.encode(pictures).double())
        if batches:
            features[variant] = torch.cat(batches)
    results = []
    if clip:
        prompts = [image.prompt for image in images_of_variant[NONE]]
        result = _clip_scores(generated, encoder, texts, name, features, prompts, resamples, seed)
        results.append(result)
    if fid:
        results.append(_frechet_distances(generated, encoder, name, features))
    return results


def _block(
    generated: GeneratedImages,
    name: str,
    quality: str,
    n: Mapping[str, int],
    settings: Mapping[str, object],
) -> TaskResult:
    """Return an empty result for a quality metric, with its description."""
    return generated.result(
        task=f"{name}: {quality}",
        title=f"{quality} of generated images",
        description=ABOUT[quality],
        n=n,
        settings=settings,
    )


def _clip_scores(
    generated: GeneratedImages,
    encoder: ImageEncoder,
    texts: Host,
    name: str,
    features: Mapping[str, Tensor],
    prompts: Sequence[str],
    resamples: int,
    seed: int,
) -> TaskResult:
    """Return the CLIPScore result. `prompts` contains the prompt for each image in a variant."""
    names, index, sizes = np.unique(prompts, return_inverse=True, return_counts=True)
    text_rows = normalize(texts.embed(names.tolist()).double(), dim=1)[index]
    values = {}
    for variant, rows in features.items():
        # Clip each score at zero, as in section 3 of Hessel et al. In contrast, torchmetrics clips
        # the mean.
        scores = 100 * (normalize(rows, dim=1) * text_rows).sum(1).clamp(min=0).numpy()
        # Average over the images for each prompt, unless there is only one prompt, whose images are
        # then resampled.
        if len(sizes) > 1:
            scores = np.bincount(index, weights=scores) / sizes
        values[variant] = scores
    n = {"prompts": len(sizes), "images": len(index)}
    settings = {
        "scale": "percent: 100 max(cos, 0)",
        "scored by": encoder.name,
        "resamples": resamples,
        "seed": seed,
        "preprocessing": encoder.preprocessing,
        "image tower": encoder.fingerprint,
        "text tower": texts.weights,
    }
    block = _block(generated, name, "CLIPScore", n, settings)
    block.add_resampled("clip_score", values, n=n, resamples=resamples, seed=seed)
    return block


def _frechet_distances(
    generated: GeneratedImages, encoder: ImageEncoder, name: str, features: Mapping[str, Tensor]
) -> TaskResult:
    """Return the FID result for each variant, compared with images without a method."""
    count, dim = features[NONE].shape
    # With fewer images than dimensions, the covariance is singular, and FID consists mostly of
    # bias.
    enough = max(ENOUGH, dim + 1)
    if count < enough:
        warn(
            f"FID of {count} images: fewer than {enough} images bias it upwards; only compare"
            " values for the same number of images"
        )
    # Keep the features of "none" after `reset`, because they are the reference for every variant.
    network: Any = nn.Identity()  # the features are already computed
    network.num_features = dim
    metric = need("torchmetrics.image.fid").FrechetInceptionDistance(
        network, reset_real_features=False
    )
    metric.update(features[NONE], real=True)
    distances = {}
    for variant, rows in features.items():
        if variant == NONE:
            continue
        metric.reset()
        metric.update(rows, real=False)
        distances[variant] = float(metric.compute())
    n = {"images": count, "reference images": count}
    settings = {
        "features": encoder.name,
        "dimensions": dim,
        "feature weights": encoder.fingerprint,
        "reference": "the images of the pipeline without a method",
        "value": "torchmetrics, in float64",
    }
    block = _block(generated, name, "FID", n, settings)
    block.add_draws("fid", distances, n=n)
    return block

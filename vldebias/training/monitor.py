"""Score a model on held-out pairs by zero-shot accuracy, retrieval and pair cosines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data.dataset import ImageData
from vldebias.data.parallel import prefetch
from vldebias.errors import InvalidInputError, warn
from vldebias.hosts.clip.towers import Towers
from vldebias.hosts.reading import reading
from vldebias.measure.rankings import first_hits
from vldebias.projection.edit import Edit
from vldebias.training.pairs import all_captions, open_images, texts_of_classes
from vldebias.training.settings import TrainSettings
from vldebias.utils.pictures import why_unreadable

if TYPE_CHECKING:
    from PIL import Image

TO_IMAGE = "text->image"  # Name suffix for scores per caption, as opposed to per image.
BATCH = 64  # number of images encoded at once
LEAST_PAIRS = 100  # number of held-out pairs from which a run chooses the weights to save


def image_features(towers: Towers, images: Tensor) -> Tensor:
    """Return float32 image features (b, d) of norm 1, in evaluation mode without gradients.

    Args:
        towers: the model.
        images: (b, 3, h, w), preprocessed.
    """
    with reading(towers.model):
        on_device = images.to(next(towers.model.parameters()).device)
        return normalize(towers.image(on_device.float()).float(), dim=-1)


def text_features(towers: Towers, texts: Sequence[str], batch_size: int = 256) -> Tensor:
    """Return float32 text features (n, d) of norm 1, in evaluation mode without gradients.

    Args:
        towers: the model.
        texts: n strings.
        batch_size: number of texts encoded at once.
    """
    parts = []
    device = next(towers.model.parameters()).device
    with reading(towers.model):
        for start in range(0, len(texts), batch_size):
            tokens = towers.tokenize(texts[start : start + batch_size])
            on_device = {name: tensor.to(device) for name, tensor in tokens.items()}
            parts.append(normalize(towers.text(on_device).float(), dim=-1))
    return torch.cat(parts)


def pixel_batches(
    rows: Iterable[int],
    read: Callable[[int], Image.Image],
    prepare: Callable[[Image.Image], Tensor],
    *,
    workers: int,
    skipped: dict[int, str],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows (b,) and their pixels (b, 3, h, w), loaded by threads.

    Args:
        rows: rows to load.
        read: function that loads the image in a row, or raises OSError.
        prepare: function that converts an image to pixels (3, h, w).
        workers: number of threads.
        skipped: dictionary to which the reason for each unreadable image is added by row.
    """

    def load(row: int) -> tuple[int, Tensor | None]:
        try:
            return row, prepare(read(row))
        except OSError as error:
            skipped[row] = why_unreadable(error)
            return row, None

    batch_rows: list[int] = []
    batch_pixels: list[Tensor] = []
    for row, pixels in prefetch(rows, load, workers, 2 * BATCH):
        if pixels is None:
            continue
        batch_rows.append(row)
        batch_pixels.append(pixels)
        if len(batch_rows) == BATCH:
            yield torch.tensor(batch_rows), torch.stack(batch_pixels)
            # Free the memory of this batch before the next one is loaded.
            batch_rows.clear()
            batch_pixels.clear()
    if batch_rows:
        yield torch.tensor(batch_rows), torch.stack(batch_pixels)


class Monitor:
    """Score a model on held-out images.

    Scores are NaN if features are not finite.

    - `zero_shot_accuracy` is the share of images that are closest to the text for their class.
      `zero_shot_worst_class` is the lowest accuracy among the classes that occur, and
      `zero_shot_worst_group` the lowest accuracy of a class within a group.
    - `recall@k image->text` and `recall@k text->image` for k = 1, 5, 10 are the shares of queries
      with a correct answer among the first k. For an image query, all captions of the image are
      correct. Each caption is a query (five per image on Flickr and COCO). If several images share
      a caption, it occurs once among the texts, and all of its images are correct.
    - `positive_score` is the mean cosine between images and their captions (s+ in the thesis, at
      temperature 1).

    Args:
        images: (n, 3, h, w), preprocessed.
        captions: n captions, with "" for images without one, or n sequences of captions if images
            have several. Empty if there are no captions.
        labels: (n,) integers, the class of each image, or -1 if unknown.
        class_texts: text for each class.
        groups: (n,) integers, the value of an attribute that should not matter, or -1 if unknown.
    """

    def __init__(
        self,
        images: Tensor,
        *,
        captions: Sequence[str | Sequence[str]] = (),
        labels: Tensor | None = None,
        class_texts: Sequence[str] = (),
        groups: Tensor | None = None,
    ) -> None:
        # The text->image queries are all captions (q,), each with its image.
        query_images: list[int] = []
        queries: list[str] = []
        for image, listed in enumerate(captions):
            texts = [listed] if isinstance(listed, str) else listed
            distinct = list(filter(str.strip, dict.fromkeys(texts)))
            query_images += [image] * len(distinct)
            queries += distinct
        if labels is None and not queries:
            raise InvalidInputError(
                "held-out data: expected captions, or labels with class_texts; got neither"
            )
        if groups is not None and not bool((groups >= 0).any()):
            raise InvalidInputError("held-out data: no image has a known group; omit groups")
        self.images = images
        self.queries = tuple(queries)
        self.query_images = torch.tensor(query_images, dtype=torch.int64)
        self.class_texts = tuple(class_texts)
        self.labels = labels
        self.groups = groups

    @classmethod
    def from_data(
        cls,
        data: ImageData,
        prepare: Callable[[Image.Image], Tensor],
        label: str | None = None,
        *,
        template: str = "a photo of a {}.",
        group: str | None = None,
        workers: int = 4,
    ) -> Self:
        """Create a monitor from a data set.

        Pixels are preprocessed once and stored in half precision. Unreadable images are skipped
        with a warning.

        Args:
            data: held-out images.
            prepare: function that converts an image to pixels (3, h, w).
            label: class column. If None, there are no zero-shot scores.
            template: text for a class, with {} in place of its name. "_" in names is replaced by a
                space, and "a" before the name by "an" if necessary.
            group: group column, for the worst group.
            workers: number of threads that load images.
        """
        skipped = dict[int, str]()
        readable_rows = []
        parts = []
        for rows, pixels in pixel_batches(
            range(len(data)),
            data.read,
            lambda image: prepare(image).half(),
            workers=workers,
            skipped=skipped,
        ):
            readable_rows.append(rows.numpy())
            parts.append(pixels)
        if skipped:
            row, reason = min(skipped.items())
            example = f"such as {data.ids[row]} ({reason})"
            note = (
                f"{data.name} {data.split}: {len(skipped)} of {len(data)} held-out images cannot be"
                " read"
            )
            if not parts:
                raise InvalidInputError(f"{note}, {example}; expected at least one")
            warn(f"{note} and are left out, {example}")
            data = data[np.concatenate(readable_rows)]
        labels: Tensor | None = None
        groups: Tensor | None = None
        class_texts: list[str] = []
        if label is not None:
            classes = data.column(label)
            labels = torch.from_numpy(classes.codes)
            class_texts = texts_of_classes(template, classes.names)
        if group is not None:
            groups = torch.from_numpy(data.column(group).codes)
        return cls(
            torch.cat(parts),
            captions=all_captions(data),
            labels=labels,
            class_texts=class_texts,
            groups=groups,
        )

    @classmethod
    def held_out(
        cls, settings: TrainSettings, learned: object, towers: Towers
    ) -> tuple[Self | None, Self | None]:
        """Return two monitors: one reports scores, the other chooses the weights to save.

        Each has a random half of the held-out data. The second monitor is None, and the first one
        has all data, if there are fewer than `LEAST_PAIRS` pairs, with adapters, which have no
        weights half way, or with a learned temperature, as in training from scratch. Both are None
        if there is nothing to score.

        Recall decreases with the number of images, so only compare values for equally many.

        Warn if held-out images are also in the training data, which makes scores too high.

        Args:
            settings: training settings, which specify the data.
            learned: the training data.
            towers: the model, which preprocesses images.

        Raises:
            InvalidInputError: If at least 90% of the held-out images are in the training data.
        """
        if not settings.has_held_out:
            return None, None
        data = open_images(settings, held_out=True)
        if not isinstance(data, ImageData) or (settings.label is None and not data.captions):
            return None, None
        if isinstance(learned, ImageData):
            _report_overlap(data, learned)
        sample = np.random.default_rng(0).permutation(len(data))[: settings.val_items]
        parts = [sample[::2], sample[1::2]]
        if len(sample) < LEAST_PAIRS or settings.tune == "lora" or settings.learn_temperature:
            parts = [sample]
        monitors = [
            cls.from_data(
                data[np.sort(part)],  # keep the order of the data
                towers.prepare,
                settings.label,
                template=settings.caption_template or "a photo of a {}.",
                group=settings.group,
                workers=settings.workers,
            )
            for part in parts
        ]
        return monitors[0], monitors[1] if len(parts) > 1 else None

    def described(self) -> str:
        """Describe the held-out data, such as "held out: 12 images; recall of 60 captions ..."."""
        words = f"held out: {len(self.images):,} images"
        if self.queries:
            n_captioned = len(self.query_images.unique())
            words += f"; recall of {len(self.queries):,} captions and {n_captioned:,} images"
        return words

    def __call__(self, towers: Towers, edit: Edit | None = None) -> dict[str, float]:
        """Return the mean of every score over the images that have one, and the lowest accuracies.

        Args:
            towers: the model.
            edit: edit for the text features, such as a projection fitted for this model.
        """
        return self.summary(self.rows(towers, edit))

    def summary(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the mean of every score and the lowest accuracies, given the result of `rows`."""
        figures = {name: float(values.double().nanmean()) for name, values in rows.items()}
        for name, cells in self.cells().items():
            correct = rows["zero_shot_accuracy"].double()
            figures[name] = float("nan")
            if correct.isfinite().any():
                # Exclude cells without any scores.
                means = [correct[cells == cell].nanmean() for cell in cells[cells >= 0].unique()]
                figures[name] = float(np.nanmin(means))
        return figures

    def cells(self) -> dict[str, Tensor]:
        """Return the class, or class within a group, of each image for each lowest accuracy.

        Returns:
            A mapping from the name of the lowest accuracy to integers (n,) on the CPU, which are
            negative for images without a class or group.
        """
        if self.labels is None:
            return {}
        labels = self.labels.cpu()
        cells_of_score = {"zero_shot_worst_class": labels}
        if self.groups is not None:
            groups = self.groups.cpu()
            known = (labels >= 0) & (groups >= 0)
            # Number each class within a group, or use -1 if either is unknown.
            cells = labels * (int(groups.max()) + 1) + groups
            cells_of_score["zero_shot_worst_group"] = cells.where(known, -1)
        return cells_of_score

    def rows(self, towers: Towers, edit: Edit | None = None) -> dict[str, Tensor]:
        """Return per-image scores, from which intervals can be computed.

        Args:
            towers: the model.
            edit: edit for the text features.

        Returns:
            A mapping from metric name to float32 scores (n,) on the CPU. They are 0 or 1, or
            cosines, or NaN for images without a label or caption. Recall text->image has a score
            for each caption (q,), whose image is in `query_images`. If any feature is not finite,
            all scores are NaN.
        """
        scores = dict[str, Tensor]()
        # Disable autocast for the comparisons too, because it would round them.
        with reading(towers.model):
            images = torch.cat([image_features(towers, part) for part in self.images.split(BATCH)])
            features = [images]
            if self.labels is not None:
                classes = _edited_features(towers, self.class_texts, edit)
                # An image is correct if it is closest to the text for its own class.
                labels = self.labels.to(images.device)
                right = ((images @ classes.T).argmax(dim=1) == labels).float()
                scores["zero_shot_accuracy"] = torch.where(labels >= 0, right, torch.nan).cpu()
                features.append(classes)
            if self.queries:
                # Include each distinct caption only once, because duplicates would distort ranks.
                place_of_caption = {
                    text: place for place, text in enumerate(dict.fromkeys(self.queries))
                }
                codes = torch.tensor([place_of_caption[text] for text in self.queries])
                texts = _edited_features(towers, list(place_of_caption), edit)
                # Images without a caption cannot be answers to text->image queries.
                captioned, owners = self.query_images.unique(return_inverse=True)
                values_of_score = _caption_scores(images[captioned], texts, owners, codes)
                for name, values in values_of_score.items():
                    scores[name] = values
                    if not name.endswith(TO_IMAGE):
                        scores[name] = torch.full((len(images),), torch.nan)
                        scores[name][captioned] = values
                features.append(texts)
        # Without this check, non-finite features would have a closest text and thus a score.
        if all(bool(part.isfinite().all()) for part in features):
            return scores
        return {name: torch.full_like(values, torch.nan) for name, values in scores.items()}


def _report_overlap(held_out: ImageData, learned: ImageData) -> None:
    """Warn if held-out images are also training images, or raise an error if 90% of them are."""
    # Compare paths, because two tables may list the same images under different names.
    held_out_paths = {held_out.path(row) for row in range(len(held_out))}
    learned_paths = {learned.path(row) for row in range(len(learned))}
    shared = len((held_out_paths & learned_paths) - {""})
    name = f"held-out data {held_out.name} {held_out.split}"
    if held_out.fingerprint == learned.fingerprint or shared >= 0.9 * len(held_out):
        raise InvalidInputError(
            f"{name}: these images are also in the training data; set a different val_split or"
            " val_data"
        )
    if shared:
        warn(
            f"{name}: {shared} of {len(held_out)} images are also in the training data, so the"
            " scores are too high; remove these images from one of the two data sets"
        )


def _edited_features(towers: Towers, texts: Sequence[str], edit: Edit | None) -> Tensor:
    """Return text features (n, d) of norm 1, with the edit applied if there is one."""
    features = text_features(towers, texts)
    if edit is None:
        return features
    return normalize(edit(features), dim=-1)


def _caption_scores(
    images: Tensor, texts: Tensor, owners: Tensor, codes: Tensor
) -> dict[str, Tensor]:
    """Return recall, and the mean cosine between images and their captions, on the CPU.

    Args:
        images: (n, d), features of images with captions.
        texts: (m, d), features of the distinct captions.
        owners: (q,), image of each caption.
        codes: (q,), row of each caption in `texts`.

    Returns:
        Scores by name, (n,) for images or (q,) for captions (recall text->image).
    """
    n = len(images)
    owners = owners.to(images.device)
    codes = codes.to(images.device)
    image_places = torch.arange(n, device=images.device)
    text_places = torch.arange(len(texts), device=images.device)
    # Compute the rank of each correct answer (q,). A query's first correct answer has the lowest
    # rank.
    text_ranks = first_hits(images[owners], texts, codes, text_places)
    image_ranks = first_hits(texts[codes], images, owners, image_places)
    to_text = torch.full((n,), len(texts), device=images.device)
    to_text.scatter_reduce_(0, owners, text_ranks, "amin")
    to_image = torch.full((len(texts),), n, device=images.device)
    to_image.scatter_reduce_(0, codes, image_ranks, "amin")

    cosines = (images[owners] * texts[codes]).sum(dim=1)
    sums = torch.zeros(n, device=images.device).index_add(0, owners, cosines)
    scores = {"positive_score": (sums / torch.bincount(owners)).cpu()}
    for k in (1, 5, 10):
        scores[f"recall@{k} image->text"] = (to_text < k).float().cpu()
        scores[f"recall@{k} {TO_IMAGE}"] = (to_image[codes] < k).float().cpu()
    return scores

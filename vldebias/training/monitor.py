"""Score a model on held-out pairs during training: zero-shot accuracy, retrieval, positive
scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data.dataset import ImageData, check_lengths
from vldebias.data.parallel import prefetch
from vldebias.errors import InvalidInputError, warn
from vldebias.hosts.clip.towers import Towers
from vldebias.hosts.host import reading
from vldebias.measure.rankings import first_hits
from vldebias.projection.edit import Edit
from vldebias.prompts import fill
from vldebias.training.pairs import open_images
from vldebias.training.settings import TrainSettings
from vldebias.utils.pictures import why_unreadable

if TYPE_CHECKING:
    from PIL import Image

TO_IMAGE = "text->image"  # ends the names of scores that are of captions, not of images
BATCH = 64  # images that go through a tower at once


def image_features(towers: Towers, images: Tensor) -> Tensor:
    """Return unit features (b, d) float32 of images (b, 3, h, w), in eval mode, without
    gradients.

    Args:
        towers: the model.
        images: (b, 3, h, w), prepared.
    """
    with reading(towers.model):
        on_device = images.to(next(towers.model.parameters()).device)
        return normalize(towers.image(on_device.float()).float(), dim=-1)


def text_features(towers: Towers, texts: Sequence[str], batch_size: int = 256) -> Tensor:
    """Return unit features (n, d) float32 of n texts, `batch_size` at a time, otherwise as
    `image_features`.

    Args:
        towers: the model.
        texts: n texts.
        batch_size: texts that are encoded at once.
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
    batch_size: int = BATCH,
    workers: int,
    skipped: dict[int, str],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows (b,) and their pixels (b, 3, h, w), read by threads; those that cannot be read go
    into `skipped`.

    Args:
        rows: numbers of the images.
        read: row -> image, OSError if it cannot be read.
        prepare: image -> pixels (3, h, w).
        batch_size: images of a batch.
        workers: threads that read.
        skipped: filled with row -> reason, for those that cannot be read.
    """

    def load(row: int) -> tuple[int, Tensor | None]:
        try:
            return row, prepare(read(row))
        except OSError as error:
            skipped[row] = why_unreadable(error)
            return row, None

    batch_rows: list[int] = []
    batch_pixels: list[Tensor] = []
    for row, pixels in prefetch(rows, load, workers, 2 * batch_size):
        if pixels is None:
            continue
        batch_rows.append(row)
        batch_pixels.append(pixels)
        if len(batch_rows) == batch_size:
            yield torch.tensor(batch_rows), torch.stack(batch_pixels)
            # Before the next batch is read, or two would be in memory.
            batch_rows.clear()
            batch_pixels.clear()
    if batch_rows:
        yield torch.tensor(batch_rows), torch.stack(batch_pixels)


class Monitor:
    """Score held-out images by the current model; NaN where features are not finite.

    - `zero_shot_accuracy`: the image is nearest to the text of its class; `zero_shot_worst_class`:
      the lowest accuracy of a class that occurs; `zero_shot_worst_group`: that of a class within a
      group;
    - `recall@k image->text` and `recall@k text->image` for k = 1, 5, 10: the share of queries with
      a right answer among the first k. An image is one query, for which any of its captions is
      right; every caption of an image is a query (five times as many on Flickr and COCO). A caption
      that several images share stands once among the texts, and any of its images is right;
    - `positive_score`: the mean cosine of an image with its captions (s+ of the thesis at
      temperature 1).

    Args:
        images: (n, 3, h, w) as the image tower reads them.
        captions: n texts, "" where an image has none, or n sequences of texts where images have
            several; or none at all.
        labels: (n,) integers, -1 where unknown, with the text of each class; or None.
        groups: (n,) integers, the value of an attribute that should not decide, -1 where unknown;
            or None.
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
        # (q,) the image of each caption, and the caption: the queries of text->image.
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
        columns = {"captions": captions or None, "labels": labels, "groups": groups}
        check_lengths("held-out data", len(images), columns)
        if labels is not None and bool((labels >= len(class_texts)).any()):
            raise InvalidInputError(
                f"held-out data: expected a text for each class (class_texts), got"
                f" {len(class_texts)} for labels up to {int(labels.max())}"
            )
        if groups is not None and not bool((groups >= 0).any()):
            raise InvalidInputError("held-out data: no image has a known group; leave groups out")
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
        limit: int | None = None,
    ) -> Self:
        """Return the monitor of a data set, by its captions and the columns of classes and groups.

        Pixels are prepared once and kept, 2 bytes a value. Images that cannot be read are left out,
        with a warning.

        Args:
            data: the held-out images.
            prepare: image -> pixels (3, h, w).
            label: column of classes; None: no zero-shot scores.
            template: text of a class, with {} for its name, whose "_" is read as a space, and the
                article that fits.
            group: column of groups, for the worst group.
            workers: threads that read images.
            limit: largest number of images, sampled at random; recall falls with it, so compare
                figures of one limit.
        """
        if limit is not None:  # in the order of the data
            data = data[np.sort(np.random.default_rng(0).permutation(len(data))[:limit])]
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
        columns = dict[str, Any]()
        # Names of classes are often those of folders: "ice_cream".
        if label is not None:
            classes = data.column(label)
            columns["labels"] = torch.from_numpy(classes.codes)
            columns["class_texts"] = [
                fill(template, **{"": name.replace("_", " ")}) for name in classes.names
            ]
        if group is not None:
            columns["groups"] = torch.from_numpy(data.column(group).codes)
        captions: Sequence[Any] = data.captions
        if data.more_captions:
            both = zip(data.captions, data.more_captions, strict=True)
            captions = [(first, *further) for first, further in both]
        return cls(torch.cat(parts), captions=captions, **columns)

    @classmethod
    def held_out(cls, settings: TrainSettings, learned: object, towers: Towers) -> Self | None:
        """Return the monitor of the held-out data; None without such data or without anything to
        score.

        Warn of held-out images that are also trained on, whose scores are too high; refuse where
        nine in ten are.

        Args:
            settings: of the training, which name the data.
            learned: the data to train on.
            towers: the model, which prepares images.
        """
        if not settings.has_held_out:
            return None
        data = open_images(settings, held_out=True)
        if not isinstance(data, ImageData):
            return None
        if settings.label is None and not data.captions:
            return None
        if isinstance(learned, ImageData):
            _report_overlap(data, learned)
        return cls.from_data(
            data,
            towers.prepare,
            settings.label,
            template=settings.caption_template or "a photo of a {}.",
            group=settings.group,
            workers=settings.workers,
            limit=settings.val_items,
        )

    def described(self) -> str:
        """Describe the held-out data: "held out: 12 images with 60 captions, each a query"."""
        words = f"held out: {len(self.images):,} images"
        if self.queries:
            n_captioned = len(self.query_images.unique())
            words += f"; recall of {len(self.queries):,} captions and {n_captioned:,} images"
        return words

    def __call__(self, towers: Towers, edit: Edit | None = None) -> dict[str, float]:
        """Return the mean of every score over the images that have it, and the lowest accuracies.

        edit: applied to the texts, such as the projection that was fitted for this model.
        """
        return self.summary(self.rows(towers, edit))

    def summary(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the mean of every score of `rows` over the images that have it, and the lowest
        accuracies."""
        figures = {name: float(values.double().nanmean()) for name, values in rows.items()}
        for name, cells in self.cells().items():
            correct = rows["zero_shot_accuracy"].double()
            figures[name] = float("nan")
            if correct.isfinite().any():
                # A cell whose rows all lack a score has no mean, and is left out.
                means = [correct[cells == cell].nanmean() for cell in cells[cells >= 0].unique()]
                figures[name] = float(np.nanmin(means))
        return figures

    def cells(self) -> dict[str, Tensor]:
        """Return name of a lowest accuracy -> the class, or class within a group, of each image
        (n,) on the CPU; negative where it is in none."""
        if self.labels is None:
            return {}
        labels = self.labels.cpu()
        cells_of_score = {"zero_shot_worst_class": labels}
        if self.groups is not None:
            groups = self.groups.cpu()
            known = (labels >= 0) & (groups >= 0)
            # (n,) one number for each class within a group; -1 where one of the two is unknown.
            cells = labels * (int(groups.max()) + 1) + groups
            cells_of_score["zero_shot_worst_group"] = cells.where(known, -1)
        return cells_of_score

    def rows(self, towers: Towers, edit: Edit | None = None) -> dict[str, Tensor]:
        """Return the scores of each image, name -> (n,) float32 on the CPU: 0 or 1, or a cosine;
        for intervals.

        Recall text->image has a score for each caption, (q,), whose image is in `query_images`.
        NaN where there is no label or no caption; all are NaN where one feature is not finite.

        Args:
            towers: the model.
            edit: an edit of the texts; None: none.
        """

        scores = dict[str, Tensor]()
        # Around the comparisons too, which a loop's autocast would round.
        with reading(towers.model):
            images = torch.cat([image_features(towers, part) for part in self.images.split(BATCH)])
            features = [images]
            if self.labels is not None:
                classes = _edited_features(towers, self.class_texts, edit)
                # Whether each image is nearest to the text of its class; NaN without a label.
                labels = self.labels.to(images.device)
                right = ((images @ classes.T).argmax(dim=1) == labels).float()
                scores["zero_shot_accuracy"] = torch.where(labels >= 0, right, torch.nan).cpu()
                features.append(classes)
            if self.queries:
                # Each caption once: that of a second image would push it down in the ranking.
                place_of_caption = {
                    text: place for place, text in enumerate(dict.fromkeys(self.queries))
                }
                codes = torch.tensor([place_of_caption[text] for text in self.queries])
                texts = _edited_features(towers, list(place_of_caption), edit)
                # Images without a caption are no answers of text->image either.
                captioned, owners = self.query_images.unique(return_inverse=True)
                values_of_score = _caption_scores(images[captioned], texts, owners, codes)
                for name, values in values_of_score.items():
                    scores[name] = values
                    if not name.endswith(TO_IMAGE):
                        scores[name] = torch.full((len(images),), torch.nan)
                        scores[name][captioned] = values
                features.append(texts)
        # A feature that is not finite would still have a nearest text, and so a score.
        if all(bool(part.isfinite().all()) for part in features):
            return scores
        return {name: torch.full_like(values, torch.nan) for name, values in scores.items()}


def _report_overlap(held_out: ImageData, learned: ImageData) -> None:
    """Warn of held-out images that are also trained on; refuse them where nine in ten are."""
    # By files: the same pictures may be listed under other names in two tables.
    held_out_paths = {held_out.path(row) for row in range(len(held_out))}
    learned_paths = {learned.path(row) for row in range(len(learned))}
    shared = len((held_out_paths & learned_paths) - {""})
    name = f"held-out data {held_out.name} {held_out.split}"
    if held_out.fingerprint == learned.fingerprint or shared >= 0.9 * len(held_out):
        raise InvalidInputError(f"{name}: is the training data; set another val_split or val_data")
    if shared:
        warn(
            f"{name}: {shared} of {len(held_out)} images are also trained on, so their scores are"
            " too high; leave them out of one of the two"
        )


def _edited_features(towers: Towers, texts: Sequence[str], edit: Edit | None) -> Tensor:
    """Return unit features (n, d) of texts, after an edit if there is one."""
    features = text_features(towers, texts)
    if edit is None:
        return features
    return normalize(edit(features), dim=-1)


def _caption_scores(
    images: Tensor, texts: Tensor, owners: Tensor, codes: Tensor
) -> dict[str, Tensor]:
    """Return the retrieval scores, and the mean cosine of images with their captions, on the CPU:
    (n,) of images (n, d) that have a caption, and of text->image (q,) for each caption.

    texts: (m, d), each caption once. owners: (q,) the image of each caption. codes: (q,), its row
    in `texts`.
    """
    n = len(images)
    owners = owners.to(images.device)
    codes = codes.to(images.device)
    image_places = torch.arange(n, device=images.device)
    text_places = torch.arange(len(texts), device=images.device)
    # (q,) ranks of one right answer each; the least of them is the rank of the first right answer.
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

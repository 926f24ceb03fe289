"""What held-out images are asked: which class, which caption, which of the images a caption belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.metrics.recall import first_hits

__all__ = ["HeldOut", "summary"]

KS = (1, 5, 10)
_UNKNOWN = -1

EmbedTexts = Callable[[Sequence[str]], Tensor]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """n images with what is known of each.

    captions: n texts, "" where an image has none; or no texts at all.
    labels: (n,) class of each image, -1 where unknown; or None.
    class_texts: the prompts of every class; the features of a class are the normalised mean of theirs.
    groups: (n,) group of each image, for the worst group's accuracy; -1 where unknown.

    Raises:
        InvalidInputError: nothing to ask, columns of other lengths, labels without texts or of no class.
    """

    n: int
    captions: tuple[str, ...] = ()
    labels: Tensor | None = None
    class_texts: tuple[tuple[str, ...], ...] = ()
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        columns = {"captions": self.captions or None, "labels": self.labels, "groups": self.groups}
        wrong = {name: len(column) for name, column in columns.items() if column is not None and len(column) != self.n}
        if wrong:
            raise InvalidInputError(f"held-out data: expected {self.n} rows in every column, got {wrong}")
        if not self.n or (self.labels is None and not any(caption.strip() for caption in self.captions)):
            raise InvalidInputError(
                f"held-out data: {self.n} images without captions and without labels leave nothing to measure; "
                "give captions, or labels with class_texts"
            )
        if (self.labels is None) != (not self.class_texts) or not all(self.class_texts):
            raise InvalidInputError("held-out data: labels and class_texts go together, with a text for every class")
        if self.groups is not None and self.labels is None:
            raise InvalidInputError("held-out data: groups are for the worst group's accuracy, which needs labels")
        self._check_labels()

    def _check_labels(self) -> None:
        if self.labels is None:
            return
        if not bool((self.labels >= 0).any()):
            raise InvalidInputError("held-out data: no image has a known label; leave labels out to measure retrieval")
        if int(self.labels.min()) < _UNKNOWN or int(self.labels.max()) >= len(self.class_texts):
            raise InvalidInputError(
                f"held-out data: expected labels -1 (unknown) .. {len(self.class_texts) - 1}, "
                f"got {int(self.labels.min())} .. {int(self.labels.max())}"
            )

    def rows(self, images: Tensor, places: Tensor, embed: EmbedTexts) -> dict[str, Tensor]:
        """What each image scores, name -> (n,) float32 on the CPU.

        NaN where an image was not read, or has no label or no caption. Retrieval is among the rows with a caption.
        All is NaN where one feature is not finite: a comparison with NaN would count as a hit.

        images: (m, d) unit features of the images at `places` (m,) of the n; embed: texts -> (t, d) unit features.
        """
        spoken = [i for i, place in enumerate(places.tolist()) if self.captions and self.captions[place].strip()]
        captions = [self.captions[place] for place in places[spoken].tolist()]
        distinct = {caption: code for code, caption in enumerate(dict.fromkeys(captions))}
        texts = embed(list(distinct)) if distinct else images[:0]
        classes = self._classes(embed) if self.labels is not None else images[:0]
        found: dict[str, Tensor] = {}
        if self.labels is not None:
            correct = _correct(images, classes, self.labels[places].to(images.device))
            found["zero_shot_accuracy"] = self._spread(correct, places)
        if captions:
            codes = torch.tensor([distinct[caption] for caption in captions], device=images.device)
            scores = _retrieval(images[spoken], texts, codes)
            found |= {name: self._spread(values, places[spoken]) for name, values in scores.items()}
        if not all(bool(features.isfinite().all()) for features in (images, texts, classes)):
            found = {name: torch.full_like(values, torch.nan) for name, values in found.items()}
        return found

    def _classes(self, embed: EmbedTexts) -> Tensor:
        """Unit features (k, d): the mean over the texts of each class."""
        features = embed([text for texts in self.class_texts for text in texts])
        means = [part.mean(dim=0) for part in features.split([len(texts) for texts in self.class_texts])]
        return normalize(torch.stack(means), dim=-1)

    def _spread(self, values: Tensor, places: Tensor) -> Tensor:
        whole = torch.full((self.n,), torch.nan)
        whole[places] = values.cpu()
        return whole


def _correct(images: Tensor, classes: Tensor, labels: Tensor) -> Tensor:
    """1 where the nearest class is right, 0 where not, NaN where the label is unknown, (m,)."""
    right = (images @ classes.T).argmax(dim=1) == labels
    return torch.where(labels >= 0, right.float(), torch.nan)


def _retrieval(images: Tensor, texts: Tensor, codes: Tensor) -> dict[str, Tensor]:
    """Scores (m,) of images whose captions are `codes` (m,) of the distinct `texts` (t, d).

    Each distinct caption stands once among the texts; all images that have it are right for it.
    """
    of_text = torch.arange(len(texts), device=codes.device)
    to_text = first_hits(images, texts, codes, of_text)
    to_image = first_hits(texts, images, of_text, codes)[codes]
    found = {"positive_score": (images * texts[codes]).sum(dim=1)}
    for k in KS:
        found[f"recall@{k} image->text"] = (to_text < k).float()
        found[f"recall@{k} text->image"] = (to_image < k).float()
    return found


def summary(held_out: HeldOut, rows: dict[str, Tensor]) -> dict[str, float]:
    """The mean of every score over the images that have it, and the lowest accuracy of a class and of a group."""
    found = {name: float(values.double().nanmean()) for name, values in rows.items()}
    correct = rows.get("zero_shot_accuracy")
    if correct is not None and held_out.labels is not None:
        found["zero_shot_worst_class"] = _worst(correct, held_out.labels)
        if held_out.groups is not None:
            found["zero_shot_worst_group"] = _worst(correct, held_out.groups)
    return found


def _worst(correct: Tensor, groups: Tensor) -> float:
    """The lowest mean over groups that occur."""
    known = correct.isfinite() & (groups.cpu() >= 0)
    codes = groups.cpu()[known]
    n = torch.bincount(codes)
    right = torch.bincount(codes, weights=correct[known].double())
    means = right[n > 0] / n[n > 0]
    return float(means.min()) if len(means) else float("nan")

"""What a model is worth during training, on held-out pairs: zero-shot accuracy, retrieval, positive scores.

Beside these facts that are better neither high nor low: the shape of its features and the sharpness of its loss.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from vldebias.data.dataset import ImageData
from vldebias.data.labels import Labels
from vldebias.diagnostics import geometry
from vldebias.errors import InvalidInputError, warn
from vldebias.hosts.seam import reading
from vldebias.metrics.rankings import first_hits
from vldebias.metrics.skew import max_skew
from vldebias.prompts import check_slots, fill
from vldebias.training.optim import Sharpness
from vldebias.training.scores import Placed, Prepare, image_features, pair_features, pixel_batches, text_features

if TYPE_CHECKING:
    from vldebias.edit import Edit
    from vldebias.hosts.towers import Towers

Seen = tuple[Tensor, Tensor]
"""Places (m,) of images, and their unit features (m, d)."""
KS = (1, 5, 10)
SHAPE = ("alignment", "uniformity", "within_variance", "same_cosine", "other_cosine")
FACTS = ("positive_score", *SHAPE, "sharpness")
_SHAPED = 20_000  # rows above which the shape is left out: it costs a product of rows and directions squared
_SEEN = 0.0005  # a change that three decimals show


def worsened(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The scores of a monitor that are worse after than before, by what three decimals show: (before, after) by name.

    Skew is better low, all else high. A cosine alone says nothing of worth: `FACTS` are not among them.
    """
    signs = {name: -1 if name.startswith("max_skew") else 1 for name in before if name not in FACTS}
    return {
        name: (before[name], after[name])
        for name, sign in signs.items()
        if name in after and math.isfinite(before[name]) and not sign * (after[name] - before[name]) > -_SEEN
    }


class TensorMonitor:
    """Scores of held-out images that are in memory as the image tower reads them.

    Called with towers it gives, of the model as it is then (in eval mode, without gradients, modes put back), NaN where
    features are not finite:

    - `zero_shot_accuracy`: the image is nearest to the texts of its class; `zero_shot_worst_class`: the lowest accuracy
      of a class that occurs; `zero_shot_worst_group`: that of a class within a group, where groups are known;
    - `recall@k image->text` and `recall@k text->image` for k = 1, 5, 10: the mean over images of whether a right
      answer is among the first k. A caption that several images share stands once among the texts, and any of its
      images is a right answer for it;
    - `positive_score`: the mean cosine of an image with its caption (s+ of the thesis at temperature 1);
    - `max_skew@k`: the mean over `queries` of the MaxSkew of the k = m / 10 nearest of the m images with a known group
      (at most 100) against the shares of the groups among all m; 0 is as mixed as the gallery;
    - with labels, of at most 20,000 images and without an edit, `alignment`, `uniformity`, `within_variance`,
      `same_cosine` and `other_cosine` of the image features: see `vldebias.diagnostics.geometry`;
    - `sharpness`, only where `within` is given: how much the cross-entropy of the first batch's images against the
      texts of their classes, else their captions, grows one step of that length along its gradient (SSA-CLR, section
      4.3). It takes two forward passes and a backward pass with the memory of training.

    Args:
        images: (n, 3, h, w).
        captions: n texts, "" where an image has none, for retrieval and positive scores; or none at all.
        labels: (n,) integers, -1 where unknown, for zero-shot accuracy; or None.
        class_texts: for each class its text, or several whose features are averaged.
        groups: (n,) integers, the value of an attribute that should not decide, -1 where unknown; or None.
        queries: texts that say nothing of it.
        within: rho, the radius of the sharpness, in units of the weights; None leaves it out.

    Raises:
        InvalidInputError: nothing to ask, columns that do not fit each other, groups without a known one.
    """

    batch_size = 256  # images, or texts, that go through a tower at once

    def __init__(
        self,
        images: Tensor | None,
        *,
        captions: Sequence[str] = (),
        labels: Tensor | None = None,
        class_texts: Sequence[str | Sequence[str]] = (),
        groups: Tensor | None = None,
        queries: Sequence[str] = (),
        within: float | None = None,
    ) -> None:
        self.within = within
        columns = {"images": images, "captions": captions or None, "labels": labels, "groups": groups}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        n = next(iter(lengths.values()), 0)
        if set(lengths.values()) - {n}:
            raise InvalidInputError(f"held-out data: expected {n} rows in every column, got {lengths}")
        self.n, self.images, self.captions, self.labels = n, images, tuple(captions), labels
        self.groups, self.queries = None if groups is None else groups.cpu(), tuple(queries)
        if self.groups is not None and not bool((self.groups >= 0).any()):
            raise InvalidInputError("held-out data: no image has a known group; leave groups out")
        self.class_texts = tuple((text,) if isinstance(text, str) else tuple(text) for text in class_texts)
        if not n or (labels is None and not any(caption.strip() for caption in self.captions)):
            raise InvalidInputError(
                f"held-out data: {n} images without captions and without labels leave nothing to measure; "
                "give captions, or labels with class_texts"
            )
        if (labels is None) != (not self.class_texts) or not all(self.class_texts):
            raise InvalidInputError("held-out data: labels and class_texts go together, with a text for every class")
        if labels is None:
            return
        low, high = int(labels.min()), int(labels.max())
        if high < 0:
            raise InvalidInputError("held-out data: no image has a known label; leave labels out to measure retrieval")
        if low < -1 or high >= len(self.class_texts):
            last = len(self.class_texts) - 1
            raise InvalidInputError(f"held-out data: expected labels -1 (unknown) .. {last}, got {low} .. {high}")

    def __call__(self, towers: Towers, edit: Edit | None = None, *, seen: Seen | None = None) -> dict[str, float]:
        """The mean of every score over the images that have it, the lowest accuracies, the skew, and `FACTS`.

        edit: applied to the texts, such as the projection that was fitted for this model. seen: what `features` gives
        of these towers, where that is known.
        """
        rows, others = self._measure(towers, edit, seen)
        figures = {name: float(values.double().nanmean()) for name, values in rows.items()}
        if self.labels is not None:
            correct, labels = rows["zero_shot_accuracy"].double(), self.labels.cpu()
            figures["zero_shot_worst_class"] = _lowest(correct, labels)
            if self.groups is not None:
                joint = labels * (int(self.groups.max()) + 1) + self.groups
                figures["zero_shot_worst_group"] = _lowest(correct, joint.where((labels >= 0) & (self.groups >= 0), -1))
        if self.within is not None and edit is None:
            others["sharpness"] = self.sharpness(towers, self.within)
        return figures | others

    def rows(self, towers: Towers, edit: Edit | None = None) -> dict[str, Tensor]:
        """What each image scores, name -> (n,) float32 on the CPU: 0 or 1, or a cosine; for intervals.

        NaN where there is no label, no caption, or no image that can be read; all where one feature is not finite: a
        comparison with NaN would count as a hit. Retrieval is among the rows with a caption.
        """
        return self._measure(towers, edit)[0]

    def _measure(
        self, towers: Towers, edit: Edit | None, seen: Seen | None = None
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """What each image scores, and the skew of the queries and the shape of the features."""

        def embedded(texts: Sequence[str]) -> Tensor:
            features = text_features(towers, texts, self.batch_size)
            return features if edit is None else normalize(edit(features), dim=-1)

        with reading(towers.model):  # around the comparisons too, which a loop's autocast would round
            places, images = self.features(towers) if seen is None else seen
            scores: dict[str, Tensor] = {}
            features = [images]
            if self.labels is not None:
                means = embedded([t for texts in self.class_texts for t in texts])
                parts = means.split([len(texts) for texts in self.class_texts])
                classes = normalize(torch.stack([part.mean(dim=0) for part in parts]), dim=-1)
                labels = self.labels[places].to(images.device)
                right = ((images @ classes.T).argmax(dim=1) == labels).float()
                scores["zero_shot_accuracy"] = self._spread(torch.where(labels >= 0, right, torch.nan), places)
                features.append(classes)
            captioned = [i for i, place in enumerate(places.tolist()) if self.captions and self.captions[place].strip()]
            if captioned:
                where = places[captioned]
                captions = [self.captions[place] for place in where.tolist()]
                distinct = {caption: code for code, caption in enumerate(dict.fromkeys(captions))}
                texts = embedded(list(distinct))
                codes = torch.tensor([distinct[caption] for caption in captions], device=images.device)
                values = _retrieval(images[captioned], texts, codes)
                scores |= {name: self._spread(value, where) for name, value in values.items()}
                features.append(texts)
            finite = all(bool(each.isfinite().all()) for each in features)
            if not finite:
                scores = {name: torch.full_like(values, torch.nan) for name, values in scores.items()}
            shape = {} if edit is not None else self._shape(places, images, finite)
            if self.groups is None or not self.queries:
                return scores, shape
            known = (groups := self.groups[places]) >= 0
            similar = (embedded(self.queries) @ images[known.to(images.device)].T).cpu()
            k = max(1, min(100, similar.shape[1] // 10))
            finite = bool(similar.isfinite().all())
            skews = [max_skew(row, groups[known], k, prior="dataset") for row in similar] if finite else [np.nan]
            return scores, {f"max_skew@{k}": float(np.mean(skews)), **shape}

    def _shape(self, places: Tensor, images: Tensor, finite: bool) -> dict[str, float]:
        """Facts of image features (m, d) by class; {} without two classes of two images, or of too many images."""
        if self.labels is None or len(places) > _SHAPED:
            return {}
        codes = self.labels.cpu()[places]
        sizes = torch.bincount(codes[codes >= 0], minlength=1)
        codes = codes.where((codes >= 0) & (sizes[codes] > 1), -1)
        if len(codes[codes >= 0].unique()) < 2:
            return {}
        if not finite:
            return dict.fromkeys(SHAPE, math.nan)
        shape = asdict(geometry(images, Labels(codes.numpy(), tuple(map(str, range(len(sizes)))))))
        return {name: shape[name] for name in SHAPE}

    def sharpness(self, towers: Towers, rho: float) -> float:
        """Growth of the loss of the first batch one step of length `rho` along its gradient; the weights come back.

        NaN where no weight learns, or no image of the batch has a text.
        """
        with closing(self._batches(towers)) as batches:
            places, pixels = next(batches)
        if self.labels is not None:
            codes, texts = self.labels.cpu()[places], [several[0] for several in self.class_texts]
        else:
            own = [self.captions[place] for place in places.tolist()]
            texts = [text for text in dict.fromkeys(own) if text.strip()]
            codes = torch.tensor([texts.index(text) if text.strip() else -1 for text in own])
        learning = [parameter for parameter in towers.model.parameters() if parameter.requires_grad]
        known = codes >= 0
        if not learning or not known.any():
            return math.nan
        device = learning[0].device
        pixels, codes, tokens = pixels[known], codes[known].to(device), towers.tokenize(texts)

        def loss() -> Tensor:
            images, texts = pair_features(towers, pixels, tokens)
            return cross_entropy(images @ texts.T / towers.temperature, codes)

        kept = [parameter.grad for parameter in learning]
        with reading(towers.model), torch.enable_grad():
            here = loss()
            slopes = torch.autograd.grad(here, learning, allow_unused=True)
            try:
                for parameter, gradient in zip(learning, slopes, strict=True):
                    parameter.grad = gradient
                with Sharpness("sam", rho=rho).climbed(learning), torch.no_grad():
                    return float(loss() - here)
            finally:
                for parameter, gradient in zip(learning, kept, strict=True):
                    parameter.grad = gradient

    def features(self, towers: Towers) -> Seen:
        """Places (m,) and unit features (m, d) of the images that can be read."""
        with reading(towers.model):
            parts = [(places, image_features(towers, images)) for places, images in self._batches(towers)]
        return torch.cat([places for places, _ in parts]), torch.cat([features for _, features in parts])

    def _batches(self, towers: Towers) -> Generator[Placed, None, None]:
        """Batches of the images that can be read, always the same and in their order."""
        assert self.images is not None
        yield from zip(torch.arange(self.n).split(self.batch_size), self.images.split(self.batch_size), strict=True)

    def _spread(self, values: Tensor, places: Tensor) -> Tensor:
        """(n,) with NaN where there is no value."""
        spread = torch.full((self.n,), torch.nan)
        spread[places] = values.cpu()
        return spread


class Monitor(TensorMonitor):
    """The same scores of held-out images that are read from where they are.

    Pixels are prepared once and kept where they need at most `keep_bytes`, else read again each time; rounded to half
    precision in both cases, so that this changes no figure. Images that cannot be read are left out, listed in
    `skipped` (id -> reason) and warned of.

    Args:
        data: its captions, where it has any, are for retrieval and positive scores.
        label: column of the classes, for zero-shot accuracy; or None.
        template: the text of a class, with {} for its name, whose "_" is read as a space, and the article that fits.
        group: column of the attribute that should not decide; or None.
        queries: texts whose nearest images should be as mixed in it as all are.
        workers: threads that read and prepare images ahead of the model.
        limit: at most so many images, drawn at random; recall falls with their number, so compare figures of one limit.
        within: see `TensorMonitor`.

    Raises:
        InvalidInputError: an unknown column, or see `TensorMonitor`; when called: no image can be read.
        PromptSetError: a template without {}.
    """

    batch_size = 64
    keep_bytes = 1 << 30  # for prepared images, 2 bytes per value

    def __init__(
        self,
        data: ImageData,
        label: str | None = None,
        *,
        template: str = "a photo of a {}.",
        group: str | None = None,
        queries: Sequence[str] = (),
        workers: int = 4,
        limit: int | None = None,
        within: float | None = None,
    ) -> None:
        self.whole = data
        if limit is not None and limit < len(data):  # in the order of the data
            data = data[np.sort(np.random.default_rng(0).permutation(len(data))[:limit])]
        self.data, self.workers = data, workers
        self.skipped: dict[str, str] = {}
        self._kept: tuple[Prepare, list[Placed]] | None = None
        labels = None if label is None else data.column(label)
        asked: dict[str, Any] = {"captions": data.captions, "queries": queries, "within": within}
        if group is not None:
            asked["groups"] = torch.from_numpy(data.column(group).codes)
        if labels is None:
            super().__init__(None, **asked)
            return
        check_slots("templates", template, required=("",))
        texts = [fill(template, **{"": name.replace("_", " ")}) for name in labels.names]
        super().__init__(None, labels=torch.from_numpy(labels.codes), class_texts=texts, **asked)

    def _batches(self, towers: Towers) -> Generator[Placed, None, None]:
        if self._kept is not None and self._kept[0] is towers.prepare:
            yield from self._kept[1]
            return
        kept, fits, skipped, prepare = list[Placed](), True, dict[int, str](), towers.prepare
        rows: dict[str, Any] = {"batch_size": self.batch_size, "workers": self.workers, "skipped": skipped}
        for batch in pixel_batches(range(len(self.data)), self.data.read, lambda image: prepare(image).half(), **rows):
            fits = batch[1][0].nbytes * len(self.data) <= self.keep_bytes
            if fits:
                kept.append(batch)
            yield batch
        reasons = {self.data.ids[row]: reason for row, reason in skipped.items()}
        counted = f"{self.data.name} {self.data.split}: {len(reasons)} of {len(self.data)} held-out images"
        if len(reasons) == len(self.data):
            raise InvalidInputError(f"{counted} cannot be read {list(reasons.items())[:1]}; expected at least one")
        if set(reasons) - set(self.skipped):
            example = next(iter(reasons.items()))
            warn(f"{counted} cannot be read and are left out, such as {example}")
        self.skipped = reasons
        self._kept = (prepare, kept) if fits else None


def _lowest(correct: Tensor, cells: Tensor) -> float:
    """The lowest mean of `correct` (n,) over the rows of a cell; cells (n,), negative where a row is in none."""
    means = [correct[cells == cell].nanmean() for cell in cells[cells >= 0].unique()]
    return float(np.nanmin(means)) if correct.isfinite().any() else float("nan")


def _retrieval(images: Tensor, texts: Tensor, codes: Tensor) -> dict[str, Tensor]:
    """Scores (m,) of images whose captions are `codes` (m,) of the distinct `texts` (t, d).

    Each distinct caption stands once among the texts; all images that have it are right for it.
    """
    of_text = torch.arange(len(texts), device=codes.device)
    to_text = first_hits(images, texts, codes, of_text)
    to_image = first_hits(texts, images, of_text, codes)[codes]
    scores = {"positive_score": (images * texts[codes]).sum(dim=1)}
    for k in KS:
        scores[f"recall@{k} image->text"] = (to_text < k).float()
        scores[f"recall@{k} text->image"] = (to_image < k).float()
    return scores

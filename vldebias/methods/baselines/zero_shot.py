"""Classify images without training, following three papers.

The methods are TIE* (Lu et al., 2025), SAGE (Ye et al., 2026) and DAT* (Hasanebrahimi et al.,
2026). SAGE and DAT* score an image by different text or by its neighbours. Here, both are image
edits, which move an image as little as possible so that its dot products with the set's class
prompts equal these scores. Scores for other prompts hardly change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.methods.baselines.wording import NOUN
from vldebias.methods.declared import DECLARED
from vldebias.methods.labelled_rows import labelled
from vldebias.methods.method import EditMethod, Problem, register_method
from vldebias.methods.reference import class_of, stating, zero_shot
from vldebias.projection.edit import Edit, Rowwise
from vldebias.projection.provenance import Provenance
from vldebias.prompts import PromptSet, StatedWords

_TINY = 1e-12  # smaller distances count as zero


# ---- TIE*


@dataclass(frozen=True, eq=False, repr=False)
class Translation(Rowwise):
    """Move each image away from the nearest value's text: x - l_v t_v.

    Attributes:
        directions: (v, d) unit text embeddings t_v of the values.
        lengths: (v,) distances l_v by which images are moved.
    """

    kind = "translation"
    axes: ClassVar = {"directions": "v d", "lengths": "v"}

    directions: Tensor
    lengths: Tensor
    side: str = "image"
    provenance: Provenance = field(default_factory=lambda: Provenance("tie"))

    def _replacement(self, unit: Tensor, image: bool) -> Tensor:
        nearest = zero_shot(unit, self.directions)
        return unit - self.lengths[nearest, None] * self.directions[nearest]


class Tie(EditMethod):
    """Move images along the text embedding of their value (`Translation`), for one attribute.

    l_v is the mean dot product of t_v with the reference images nearest to it, which is optimal if
    images are normally distributed in each group (their Theorem 1). The authors use one prompt per
    value, such as "a photo with a water background"; here t_v is the mean embedding of the set's
    prompts that name the value. This is TIE*, which needs no image labels; TIE uses the true values
    of the evaluated images.
    """

    declaration = DECLARED["tie"]

    def fit(self, problem: Problem, role: str) -> Edit:
        prompt_set = self._only_attribute(problem)
        directions = problem.zero_shot(prompt_set, role)
        totals = torch.zeros(len(directions), dtype=directions.dtype)
        counts = torch.zeros_like(totals)
        for rows in problem.images.batches():
            nearest = zero_shot(rows, directions)
            products = (rows * directions[nearest]).sum(1)
            totals.index_add_(0, nearest, products.to(totals))
            counts += torch.bincount(nearest, minlength=len(counts))
        for value, count in zip(prompt_set.attributes, counts.tolist(), strict=True):
            if not count:
                raise InvalidInputError(
                    f"reference: none of the {int(counts.sum())} images is closest to the text for"
                    f" {value!r}; pass more images"
                )
        edit = Translation(directions, totals / counts)
        return edit.with_provenance(uses_images=True)


# ---- SAGE


def with_products(unit: Tensor, classes: Tensor, products: Tensor) -> Tensor:
    """Change rows as little as possible to give them the intended dot products with class rows.

    Args:
        unit: unit rows (n, d) to change.
        classes: rows (c, d), one per class.
        products: the intended dot products (n, c).
    """
    return unit + (products - unit @ classes.T) @ torch.linalg.pinv(classes).T


@dataclass(frozen=True, eq=False, repr=False)
class BestTemplate(Rowwise):
    """Score each image with the template that best separates the classes.

    If s_tc is the score of an image x for class c in template t, the template with the largest
    max_c s_tc - min_c s_tc is used.

    Attributes:
        classes: (c, d) unit rows for the class prompts.
        templates: (t, c, d) unit rows for the classes in each template.
    """

    kind = "best-template"
    axes: ClassVar = {"classes": "c d", "templates": "t c d"}

    classes: Tensor
    templates: Tensor
    side: str = "image"
    provenance: Provenance = field(default_factory=lambda: Provenance("sage"))

    def _replacement(self, unit: Tensor, image: bool) -> Tensor:
        scores = torch.einsum("nd,tcd->ntc", unit, self.templates)
        best = (scores.amax(2) - scores.amin(2)).argmax(1)
        chosen = scores[torch.arange(len(unit)), best]
        return with_products(unit, self.classes, chosen)


class Sage(EditMethod):
    """Choose a prompt template for each image (`BestTemplate`). An attribute is not needed.

    Args:
        wordings: for each template, the text for all classes, in the order of the class prompts. If
            None, the CLIP authors' 80 ImageNet templates are used, as in SAGE. They are filled with
            the phrase for each class in its prompt ("celebrity with dark hair"), or with its name.
    """

    declaration = DECLARED["sage"]

    def __init__(self, wordings: Sequence[Sequence[str]] | None = None) -> None:
        self.wordings = wordings

    def fit(self, problem: Problem, role: str) -> Edit:
        prompt_set = single_set_with_classes(self.name, problem)
        wordings = self.wordings
        if wordings is None:
            from open_clip import OPENAI_IMAGENET_TEMPLATES

            names = [
                name_in_prompt(prompt, name)
                for prompt, name in zip(prompt_set.classes, prompt_set.class_names, strict=True)
            ]
            wordings = [[write(name) for name in names] for write in OPENAI_IMAGENET_TEMPLATES]
        rows = [problem.host.embed(texts, role) for texts in wordings]
        return BestTemplate(problem.host.embed(prompt_set.classes, role), torch.stack(rows))


def single_set_with_classes(name: str, problem: Problem) -> PromptSet:
    """Return a problem's only prompt set, which must have at least two classes.

    Args:
        name: name of the method, for the message.
        problem: what the method is fitted on.

    Raises:
        InvalidInputError: If there are several sets, or fewer than two classes.
    """
    if len(problem.sets) > 1 or len(problem.sets[0].classes) < 2:
        counts = [len(prompt_set.classes) for prompt_set in problem.sets]
        raise InvalidInputError(
            f"{name}: expected one prompt set with at least two class prompts, got {counts}; this"
            " method is for classification, so use a different one for search"
        )
    (prompt_set,) = problem.sets
    return prompt_set


def name_in_prompt(prompt: str, name: str) -> str:
    """Return the phrase after a class prompt's last article, or the name if there is no article.

    Args:
        prompt: the class prompt.
        name: name of the class.

    >>> name_in_prompt("A photo of a celebrity with dark hair.", "dark hair")
    'celebrity with dark hair'
    """
    text = prompt.rstrip(" .")
    articles = list(NOUN.finditer(text))
    return text[articles[-1].end() :] if articles else name


# ---- DAT*


@dataclass(frozen=True, eq=False, repr=False)
class DensityScores(Rowwise):
    """Score images by text for each class and value, divided by the group's local sparsity.

    Let R be a group's images, NN the k of them nearest to an image x, and k-dist the distance to
    the k-th. Then D = mean over z in NN of k-dist(x) / k-dist(z) is the simplified local outlier
    factor. For a class y with groups a, s_a = <x, t_a> / D_a^p, and s_mean is their mean with <x,
    t_y>; the class score is the largest of all s_a and s_mean.

    Attributes:
        classes: (c, d) unit rows for the class prompts, t_y.
        stated: (g, d) unit rows for the groups, t_a.
        class_codes: (g,) classes of the groups.
        images: (n, d) unit rows of the reference images.
        codes: (n,) groups of the images.
        near: k, smaller than the number of images of any group.
        power: p, the exponent of D_a.
    """

    kind = "density-scores"
    axes: ClassVar = {
        "classes": "c d",
        "stated": "g d",
        "class_codes": "g",
        "images": "n d",
        "codes": "n",
    }

    classes: Tensor
    stated: Tensor
    class_codes: Tensor
    images: Tensor
    codes: Tensor
    near: int
    power: float
    side: str = "image"
    provenance: Provenance = field(default_factory=lambda: Provenance("dat"))

    def _replacement(self, unit: Tensor, image: bool) -> Tensor:
        scores = unit @ self.stated.T
        for group in range(len(self.stated)):
            sparsity = outlier_factors(unit, self.images[self.codes == group], self.near)
            scores[:, group] /= (sparsity + _TINY) ** self.power
        scores_of_classes = []
        for number, class_row in enumerate(self.classes):
            group_scores = scores[:, self.class_codes == number]
            mean = torch.cat([group_scores, (unit @ class_row)[:, None]], 1).mean(1, keepdim=True)
            scores_of_classes.append(torch.cat([group_scores, mean], 1).amax(1))
        return with_products(unit, self.classes, torch.stack(scores_of_classes, 1))


def outlier_factors(rows: Tensor, group: Tensor, near: int) -> Tensor:
    """Return the simplified local outlier factor (n,) of rows relative to a group.

    It is 1 for rows as dense as their neighbours, and larger for outliers (Schubert et al., 2014).

    Args:
        rows: rows (n, d) to score.
        group: (m, d), with m above `near`.
        near: k, the number of neighbours.
    """
    distances, neighbours = torch.cdist(rows, group).topk(near, largest=False)
    # The nearest neighbour of an image in the group is the image itself.
    inside = torch.cdist(group, group).topk(near + 1, largest=False).values[:, -1]
    return (distances[:, -1:] / inside[neighbours].clamp(min=_TINY)).mean(1)


def herded(rows: Tensor, count: int) -> Tensor:
    """Choose rows one by one so that their mean approaches the mean of all rows.

    Source: Rebuffi et al. (2017), Algorithm 4.

    Args:
        rows: rows (n, d) to choose from.
        count: maximum number of rows to choose.
    """
    mean = rows.mean(0)
    chosen: list[int] = []
    total = torch.zeros_like(mean)
    for number in range(1, min(count, len(rows)) + 1):
        lengths = ((total + rows) / number - mean).norm(dim=1)
        lengths[chosen] = torch.inf
        chosen.append(int(lengths.argmin()))
        total = total + rows[chosen[-1]]
    return rows[chosen]


class Dat(EditMethod):
    """Divide scores by local density (`DensityScores`), for one set with one attribute.

    The formulas follow a public summary of the paper, whose code is not published. A group is a
    class with a value; groups with k or fewer reference images are ignored. Image values are
    predicted zero-shot (DAT*) or taken from labels, as for other methods that need labels. Classes
    are taken from a label column that names them; without labels, they are also predicted
    zero-shot. A group's text consists of the set's prompts that name its class and value.

    Args:
        images: maximum number of images per group, chosen by herding.
        near: k, the number of neighbours.
        power: p, the weight of the density. The defaults are the authors' choices for Waterbirds;
            for CelebA, they use 128 images and a power of 1.
    """

    declaration = DECLARED["dat"]

    def __init__(self, images: int = 56, near: int = 10, power: float = 10.0) -> None:
        self.images = images
        self.near = near
        self.power = power

    def fit(self, problem: Problem, role: str) -> Edit:
        prompt_set = single_set_with_classes(self.name, problem)
        self._only_attribute(problem)
        images = labelled(problem, role)
        classes = problem.host.embed(prompt_set.classes, role)
        image_classes = self._classes_of_images(problem, prompt_set, images.rows, classes)
        texts_of_group = texts_by_group(prompt_set)
        stated: list[Tensor] = []
        class_codes: list[int] = []
        kept: list[Tensor] = []
        codes: list[int] = []
        for (class_code, value_code), texts in texts_of_group.items():
            in_group = (image_classes == class_code) & (images.codes[:, 0] == value_code)
            rows = images.rows[in_group]
            if len(rows) <= self.near:
                continue
            kept.append(herded(rows, self.images))
            codes += [len(stated)] * len(kept[-1])
            stated.append(normalize(problem.host.embed(texts, role).mean(0), dim=0))
            class_codes.append(class_code)
        if not kept:
            raise InvalidInputError(
                f"{self.name}: no combination of class and value has more than {self.near} of the"
                f" {len(images.rows)} reference images; pass more images"
            )
        return DensityScores(
            classes,
            torch.stack(stated),
            torch.tensor(class_codes),
            torch.cat(kept),
            torch.tensor(codes),
            near=self.near,
            power=self.power,
        )

    def _classes_of_images(
        self, problem: Problem, prompt_set: PromptSet, rows: Tensor, classes: Tensor
    ) -> Tensor:
        """Return the class (n,) of each image, or -1 if unknown."""
        from vldebias.data.labels import Labels

        if not problem.images.labels:
            return zero_shot(rows, classes)
        for column_labels in problem.images.labels.values():
            column = Labels.from_array(column_labels)
            found = class_of(column.names, prompt_set)
            if found:
                return torch.tensor([*found, -1])[column.codes]
        raise InvalidInputError(
            f"{self.name}: expected a label column that names the classes"
            f" {list(prompt_set.class_names)}, got {[*problem.images.labels]}; add one, or omit all"
            " labels to use zero-shot labels"
        )


def texts_by_group(prompt_set: PromptSet) -> dict[tuple[int, int], list[str]]:
    """Return, for each class and value, the prompts in a set that name both.

    Raises:
        InvalidInputError: If a class has no prompts for a value.
    """
    groups = product(range(len(prompt_set.classes)), range(len(prompt_set.attributes)))
    texts_of_group: dict[tuple[int, int], list[str]] = {group: [] for group in groups}
    words = [StatedWords([name]) for name in prompt_set.class_names]
    texts, values, _ = stating(prompt_set)
    for text, value_code in zip(texts, values.tolist(), strict=True):
        # "registered nurse" also contains the word "nurse", so use the longest name.
        named = [code for code, word in enumerate(words) if word.find(text)]
        if named:
            longest = max(named, key=lambda code: len(prompt_set.class_names[code]))
            texts_of_group[longest, value_code].append(text)
    for (class_code, value_code), texts in texts_of_group.items():
        if not texts:
            raise InvalidInputError(
                f"prompt set {prompt_set.name!r}: no prompt names both"
                f" {prompt_set.class_names[class_code]!r} and"
                f" {list(prompt_set.attributes)[value_code]!r}; add one to the groups"
            )
    return texts_of_group


register_method(Tie())
register_method(Sage())
register_method(Dat())

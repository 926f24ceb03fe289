"""Learn to tell groups or classes apart from a few labelled images and many unlabelled ones.

The text of a group u_a often points to something else than what labels mean, and the border between
two groups often lies in the wrong place. Labelled images, 20 or more, correct both:

    1. Move the borders between the texts to the midpoints of the labelled images' means.
    2. Self-train: run a shrunk linear discriminant analysis of the unlabelled images, of which only
       the half of each group that is furthest from these borders is used.
    3. Add a discriminant analysis of the labelled images alone, with a weight of min(1, n / 100).
    4. Move the borders between the sums to the midpoints of the labelled images' means.

All scores are products with images of norm 1. An offset o_a is subtracted as o_a <x, v>, where v
lies along the mean image, so that <x, v> is nearly 1. Therefore, the result consists of one vector
per group. It is returned as unit vectors t_a that replace the texts of the groups, because adding
the same vector to all of them changes no label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError, did_you_mean, warn_of_input
from vldebias.methods.reference import place_of
from vldebias.utils.arrays import Codes, Floats
from vldebias.utils.label_words import names_no_group
from vldebias.utils.phrases import quantity

if TYPE_CHECKING:
    from vldebias.prompts import PromptSet
    from vldebias.typing import ColumnLike

_GENDERS = (
    frozenset({"female", "woman", "women", "girl", "girls"}),
    frozenset({"male", "man", "men", "boy", "boys"}),
)
FEWEST_OF_GROUP = 2  # labelled images of each group
FULL_WEIGHT = 100  # number of labelled images that count as much as the unlabelled ones
# Minimum balanced accuracy above chance on labelled images that are left out, with fewer than
# `ENOUGH` of them and with more.
ABOVE_CHANCE, ABOVE_CHANCE_OF_ENOUGH = 0.25, 0.2
ENOUGH = 50
_FOLDS = 20
_CONFIDENT = 0.5  # share of each group's images that self-training uses
_FEWEST_CONFIDENT = 5
_SHRINKAGE = 0.3  # weight of a multiple of the identity in covariance matrices


class Taught(NamedTuple):
    """What labelled images teach about groups.

    Attributes:
        texts: unit vectors (g, d) that replace the groups' texts.
        how: a clause about the labels, such as "20 labels, 15 of 20 right when left out".
        doubt: why the labels cannot be trusted, or "".
    """

    texts: Floats
    how: str
    doubt: str


def is_gender(words_of_value: Mapping[str, Sequence[str]]) -> bool:
    """Return whether values are two genders, the only groups that are predicted without labels."""
    found = []
    for value, words in words_of_value.items():
        named = {word.casefold() for word in (value, *words)}
        found.append([place for place, known in enumerate(_GENDERS) if named & known])
    return sorted(found) == [[0], [1]]


def unlabelled_doubt(name: str, words_of_value: Mapping[str, Sequence[str]]) -> str:
    """Return why predictions without labels are not used, or "" for gender.

    Args:
        name: name of the prompt set, or "" if unknown.
        words_of_value: the words for each value.
    """
    if is_gender(words_of_value):
        return ""
    key = name or "ATTRIBUTE"
    return (
        "without labels, only gender is predicted; label 20 images or more (`vldebias label IMAGES"
        f" --attribute {key} --questions 20`), and pass labels={{{key!r}: [...]}}, with '' for the"
        " others, to Reference(features, labels=...) for a search, or to rerank"
    )


def labelled_groups(
    labels: Mapping[str, Labels | ColumnLike], sets: Sequence[PromptSet]
) -> list[Codes | None]:
    """Return, for each prompt set, the group (n,) of each image, or None without usable labels.

    Unlabelled images have the group -1.

    Args:
        labels: label columns, of which those named after the prompt sets are used.
        sets: the prompt sets of the attributes.

    Raises:
        InvalidInputError: If a label names no group.

    Warns:
        SuspectInputWarning: If there are only other columns, or fewer than two labels of a group.
    """
    names = [prompt_set.name for prompt_set in sets]
    if labels and not {*labels} & {*names}:
        warn_of_input(
            f"no label column {names[0]!r}; got {', '.join(map(repr, labels))}. Labels are used"
            f" under the set's name: labels={{{names[0]!r}: [...]}}"
        )
    return [
        _groups_of_column(labels[prompt_set.name], prompt_set)
        if prompt_set.name in labels
        else None
        for prompt_set in sets
    ]


def _groups_of_column(values: Labels | ColumnLike, prompt_set: PromptSet) -> Codes | None:
    """Return the group (n,) of each image for one attribute, see `labelled_groups`."""
    key, names = prompt_set.name, list(prompt_set.attributes)
    found = codes_of_column(values, f"labels {key!r}", names, lambda one: place_of(one, prompt_set))
    counts = np.bincount(found[found >= 0], minlength=len(names))
    lacking = [name for name, count in zip(names, counts, strict=True) if count < FEWEST_OF_GROUP]
    if not lacking:
        return found
    if counts.any():
        listed = ", ".join(f"{count} {name}" for name, count in zip(names, counts, strict=True))
        warn_of_input(
            f"labels of {key!r} are not used: the {quantity(int(counts.sum()), 'labelled image')}"
            f" are {listed}; label at least {FEWEST_OF_GROUP} of {' and of '.join(lacking)}"
        )
    return None


def codes_of_column(
    values: Labels | ColumnLike,
    where: str,
    names: Sequence[str],
    place: Callable[[str], int | None],
) -> Codes:
    """Return the code (n,) of each label, or -1 for unknown ones.

    Args:
        values: the labels (n,).
        where: what messages call the column.
        names: the names of the values.
        place: function that returns the code of a label, or None if it names no value.

    Raises:
        InvalidInputError: If a label names no value.
    """
    column = Labels.from_array(values)
    codes = []
    for label, count in column.counts.items():
        code = place(label) if count and not names_no_group(label) else -1
        if code is None:
            raise InvalidInputError(
                f"{where}: got {label!r}; expected one of {list(names)}, or '' for images without"
                f" a label; {did_you_mean(label, names)}"
            )
        codes.append(code)
    found: Codes = np.array([*codes, -1])[column.codes]
    return found


def taught(texts: Floats, sample: Floats, rows: Floats, codes: Codes) -> Taught:
    """Learn groups from labelled images, and test on each whether the others predict it.

    Args:
        texts: unit text embeddings (g, d) of the groups.
        sample: unit rows (s, d) of images, labelled or not.
        rows: unit rows (n, d) of the labelled images.
        codes: their groups (n,), each of which has two images or more.
    """
    n, g = len(codes), len(texts)
    predicted = left_out_labels(texts, sample, rows, codes)
    accuracies = []
    for labels in (predicted, left_out(rows @ texts.T, codes)):
        accuracies.append((np.bincount(codes, labels == codes, g) / np.bincount(codes)).mean())
    needed = 1 / g + (ABOVE_CHANCE if n < ENOUGH else ABOVE_CHANCE_OF_ENOUGH)
    doubt = ""
    if max(accuracies) < needed:
        doubt = (
            f"of {quantity(n, 'labelled image')}, each predicted from the others,"
            f" {max(accuracies):.0%} are right on average over the groups ({needed:.0%} are"
            " needed): the images do not show the attribute to this model, or the labels are"
            " wrong; more labels may help"
        )
    how = f"{n} labels, {(predicted == codes).sum()} of {n} right when left out"
    return Taught(taught_texts(texts, sample, rows, codes), how, doubt)


def taught_texts(texts: Floats, sample: Floats, rows: Floats, codes: Codes) -> Floats:
    """Return unit vectors (g, d) that replace the groups' texts.

    Args:
        texts: unit text embeddings (g, d) of the groups.
        sample: unit rows (s, d) of images, labelled or not.
        rows: unit rows (n, d) of the labelled images.
        codes: their groups (n,), each of which has an image.
    """
    mean = sample.mean(axis=0)
    start = moved(texts, rows, codes, mean)
    found = sample @ start.T
    nearest = found.argmax(axis=1)
    two = np.partition(found, -2, axis=1)[:, -2:]
    margins = two[:, 1] - two[:, 0]
    used = []
    for code in range(len(texts)):
        of_group = np.flatnonzero(nearest == code)
        number = max(_FEWEST_CONFIDENT, int(len(of_group) * _CONFIDENT))
        used.append(of_group[np.argsort(-margins[of_group])[:number]])
    directions = texts - texts.mean(axis=0)
    if min(map(len, used)) >= _FEWEST_CONFIDENT:
        chosen = np.concatenate(used)
        directions = discriminant(sample[chosen], nearest[chosen])
    labelled = discriminant(rows, codes)
    weight = min(1.0, len(codes) / FULL_WEIGHT)
    directions = directions / _deviation(directions, sample)
    directions = directions + weight * labelled / _deviation(labelled, sample)
    return as_texts(moved(directions, rows, codes, mean), texts, sample)


def moved(directions: Floats, rows: Floats, codes: Codes, mean: Floats) -> Floats:
    """Return directions (g, d) whose borders lie halfway between the labelled images' means.

    Args:
        directions: directions (g, d), such as the texts of the groups.
        rows: unit rows (n, d) of the labelled images.
        codes: their groups (n,), each of which has an image.
        mean: the mean image (d,), along which directions are moved.
    """
    along = mean / (mean @ mean)
    centred = directions - np.outer(directions @ mean, along)
    shifted: Floats = centred - np.outer(offsets(class_means(rows @ centred.T, codes)), along)
    return shifted


def as_texts(directions: Floats, texts: Floats, sample: Floats) -> Floats:
    """Return unit vectors (g, d) that differ like directions, with the margins of texts.

    Args:
        directions: directions (g, d) whose products with images are the groups' scores.
        texts: unit text embeddings (g, d) of the groups.
        sample: unit rows (s, d) of images.
    """
    centred = directions - directions.mean(axis=0)
    scale = _deviation(texts - texts.mean(axis=0), sample) / _deviation(centred, sample)
    # Longer differences leave no room for unit vectors.
    centred = centred * min(scale, 0.5 / np.linalg.norm(centred, axis=1).max())
    # Adding c to all vectors makes their norms equal, if 2 <c, d_a> + |d_a|^2 is the same for all.
    squares = (centred**2).sum(axis=1)
    common = np.linalg.pinv(2 * centred) @ (squares.mean() - squares)
    vectors = centred + common
    span = np.linalg.svd(centred, full_matrices=False)[2][: len(texts) - 1]
    away = texts.mean(axis=0)
    away = away - span.T @ (span @ away)
    rest = 1 - (vectors**2).sum(axis=1).mean()
    vectors = vectors + away / np.linalg.norm(away) * np.sqrt(max(rest, 0))
    units: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def class_means(scores: Floats, labels: Codes) -> Floats:
    """Return the mean score of each class's images for each class text, (k, k).

    Args:
        scores: (n, k) cosines with the k class texts.
        labels: (n,) class of each image, of which every class has at least one.
    """
    return np.stack([scores[labels == code].mean(0) for code in range(scores.shape[1])])


def offsets(means: Floats) -> Floats:
    """Return what to subtract from each class's score (k,), given the class means (k, k)."""
    correct = np.diag(means)
    halfway: Floats = ((correct[:, None] - means + means.T - correct) / 2).mean(1)
    return halfway


def left_out(scores: Floats, labels: Codes) -> Codes:
    """Return the class (n,) of each labelled image, with the offsets of all other images.

    Args:
        scores: (n, k) cosines with the k class texts.
        labels: (n,) class of each image.
    """
    counts = np.bincount(labels)
    means = class_means(scores, labels)
    predicted = scores.argmax(1)
    for row, code in enumerate(labels):
        # Without this image, its class may have none. Then, nothing moves.
        if counts[code] > 1:
            other_means = means.copy()
            other_means[code] += (means[code] - scores[row]) / (counts[code] - 1)
            predicted[row] = (scores[row] - offsets(other_means)).argmax()
    return predicted


def left_out_labels(texts: Floats, sample: Floats, rows: Floats, codes: Codes) -> Codes:
    """Return the group (n,) of each labelled image, predicted without its own label.

    Args:
        texts: unit text embeddings (g, d) of the groups.
        sample: unit rows (s, d) of images, labelled or not.
        rows: unit rows (n, d) of the labelled images.
        codes: their groups (n,).
    """
    predicted = (rows @ texts.T).argmax(axis=1)
    for fold in np.array_split(np.arange(len(codes)), min(_FOLDS, len(codes))):
        is_left = np.isin(np.arange(len(codes)), fold, invert=True)
        if len(np.unique(codes[is_left])) == len(texts):
            taught = taught_texts(texts, sample, rows[is_left], codes[is_left])
            predicted[fold] = (rows[fold] @ taught.T).argmax(axis=1)
    return predicted


def _deviation(directions: Floats, sample: Floats) -> float:
    """Return the mean standard deviation of a sample's products with directions (g, d)."""
    return float((sample @ directions.T).std(axis=0).mean())


def discriminant(rows: Floats, codes: Codes) -> Floats:
    """Return the directions (g, d) of a shrunk linear discriminant analysis, which sum to 0.

    Args:
        rows: rows (n, d).
        codes: their groups (n,), each of which has a row.
    """
    means = np.stack([rows[codes == code].mean(axis=0) for code in range(codes.max() + 1)])
    centred = rows - means[codes]
    n, d = centred.shape
    ridge = _SHRINKAGE * (centred**2).sum() / n / d
    between = (means - means.mean(axis=0)).T
    if n >= d:
        shrunk = (1 - _SHRINKAGE) / n * centred.T @ centred + ridge * np.eye(d)
        directions: Floats = np.linalg.solve(shrunk, between).T
        return directions
    # With fewer rows than dimensions, a system of n equations is smaller (Woodbury identity).
    inner = centred @ centred.T + ridge * n / (1 - _SHRINKAGE) * np.eye(n)
    directions = (between - centred.T @ np.linalg.solve(inner, centred @ between)).T / ridge
    return directions

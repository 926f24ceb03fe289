"""Label vectors with the nearest text, and store the groups' shares in an index."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Json, ValidationError, field_validator

from vldebias.errors import (
    REMOVED,
    InvalidInputError,
    ProjectionMismatchError,
    check_arguments,
    shortened,
    warn_of_input,
)
from vldebias.projection.fingerprint import Fingerprint
from vldebias.reranking.candidates import UNKNOWN, Floats, Mask, as_floats, unit_products
from vldebias.reranking.groups import ZERO_SHOT, Groups, pool_shares
from vldebias.reranking.nearest import NearestText, shares_near
from vldebias.utils.arrays import Codes
from vldebias.utils.files import explain
from vldebias.utils.formats import FORMAT, check_format
from vldebias.utils.text_rows import MissingTextsError

if TYPE_CHECKING:
    from vldebias.data.labels import Labels
    from vldebias.hosts import Host
    from vldebias.methods import Problem
    from vldebias.prompts import PromptSet
    from vldebias.typing import AnyArray, AttributeLike, ColumnLike, ModelLike

# Texts without people. They have the same template as the prompts that state a value, so that only
# their content differs.
NOBODY = (
    "A photo of a barn.",
    "A photo of a forest.",
    "A photo of an empty beach.",
    "A photo of a plate of food.",
    "A photo of a parked car.",
    "A photo of a row of houses.",
    "A photo of a dog.",
    "A photo of a vase of flowers.",
    "A photo of a machine.",
    "A photo of clouds in the sky.",
)
ENOUGH_PEOPLE = 50  # minimum number of images per group in the sample of an index
_KIND = "vldebias index groups"
_FORMAT = 3
_EARLIER = "2"  # the format that also contains wordings
_PARTS = ("texts", "borders")  # arrays of each attribute in a saved file
_TAUGHT_ROWS = 2000  # number of unlabelled rows from which groups are learned
_MOST_SAMPLED = 20000  # number of rows kept to choose these from, which bounds the memory
# If fewer images than this share look like nobody, they hardly change the shares, and most of them
# show small people. Then, all images have a group.
_FEW_SCENES = 1 / 3
FEWEST_PEOPLE = 5  # minimum number of images per group in a collection or behind a filter
# Two halves of the vectors behind a filter disagree if a group's shares in them differ by more than
# this number of standard deviations.
_DISAGREE = 3.0


class _Header(BaseModel, extra="ignore", frozen=True):
    """The strings in a saved file's header, of which some are JSON."""

    names: Json[tuple[tuple[str, ...], ...]]
    doubt: str
    fingerprint: Json[Fingerprint | None]
    basis: str = ""

    @field_validator("names")
    @classmethod
    def _different(cls, names: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        if not names or any(len(set(values)) < max(len(values), 2) for values in names):
            raise ValueError("expected at least two different names of groups for each attribute")
        return names


@dataclass(frozen=True, eq=False)
class IndexGroups:
    """Label vectors with the nearest text, and store the groups' shares in an index or collection.

    The best results of a skewed query are themselves skewed, so the shares are counted in a sample
    of the index. Nothing about individual images is saved.

    For sets about people, an image shows nobody if it is closer to the mean of `NOBODY` than to the
    mean of the values' texts. This needs no fit. If at least a third of the images show nobody,
    such images have no group, and do not count towards the shares.

    Attributes:
        attributes: the texts of each attribute. If there are several, their groups are crossed.
        shares: shares (g,) of the groups in the sample.
        near_shares: share (g,) of each group's images that are near the border.
        fingerprint: identifies the model, or None if it is unknown.
        person: direction (d,) along which images of people are positive, or None if every image has
            a group.
        doubt: why the labels cannot be trusted, or "".
        basis: what the labels are predicted from, such as "race: 20 labels, 15 of 20 right when
            left out".

    >>> queries = debias_queries(embed, "gender", reference=vectors)  # doctest: +SKIP
    >>> queries.index.save("gender-index.safetensors")  # doctest: +SKIP
    """

    attributes: tuple[NearestText, ...]
    shares: Floats
    near_shares: Floats
    fingerprint: Fingerprint | None
    person: Floats | None = None
    doubt: str = ""
    basis: str = ""

    def __post_init__(self) -> None:
        """Raise an error if arrays have the wrong shape or values, such as in a changed file."""
        # Do not list the names yet, because a file may state any number of them.
        g = math.prod(len(attribute.names) for attribute in self.attributes)
        width = self.attributes[0].texts.shape[-1] if self.attributes[0].texts.ndim else 0
        is_between = _is_finite(self.near_shares, (g,)) and np.ptp([0, 1, *self.near_shares]) == 1
        are_shares = _is_finite(self.shares, (g,)) and self.shares.min() >= 0
        are_valid = [are_shares and abs(self.shares.sum() - 1) <= 1e-6, is_between]
        if self.person is not None:
            # It is the difference between two unit vectors.
            is_direction = _is_finite(self.person, (width,))
            are_valid.append(is_direction and 0 < float(np.abs(self.person).max()) <= 2)
        for attribute in self.attributes:
            n = len(attribute.names)
            are_valid.append(_are_unit(attribute.texts, (n, width)))
            are_valid.append(_is_finite(attribute.borders, (n,)))
        if not all(are_valid):
            raise InvalidInputError(
                f"index groups: expected unit texts and finite borders of {g} groups, and shares"
                " that sum to 1; fit them again with"
                " vldebias.debias_queries(embed, attribute, reference=vectors)"
            )

    @classmethod
    def fit(
        cls,
        model: Host | ModelLike,
        attribute: AttributeLike,
        features: AnyArray | Iterable[AnyArray],
        *,
        least: int = FEWEST_PEOPLE,
        nobody: Sequence[str] = NOBODY,
        labels: Mapping[str, Labels | ColumnLike] | None = None,
    ) -> IndexGroups:
        """Predict the groups of vectors, and count their shares.

        With labelled vectors, groups are predicted as `vldebias.methods.few_labels` describes.
        Without labels, only gender is predicted, with the nearest text.

        Args:
            model: the model that embeds the prompts.
            attribute: prompt set with words for its values, or several prompt sets to cross.
            features: features (n, d), or an iterable of blocks (b, d) of them.
            least: minimum number of images of each value. Below, predictions without labels are not
                trusted.
            nobody: texts without people, for prompt sets about people. If the model is a mapping
                that lacks them, all images have a group.
            labels: for each prompt set by name, the values of the n images, with "" for images
                without a label.

        Raises:
            InvalidInputError: If features and text embeddings have different widths, or a label is
                not a value of the prompt set.

        Warns:
            SuspectInputWarning: If labels are not used.
        """
        # Import lazily, because torch takes seconds to import and labels do not need it.
        from vldebias.methods import Problem
        from vldebias.methods.few_labels import labelled_groups, taught, unlabelled_doubt

        problem = Problem(model, attribute)
        sets = problem.attributes
        role = problem.host.roles[0]
        texts = [
            problem.zero_shot(prompt_set, role).numpy().astype(np.float64) for prompt_set in sets
        ]
        person = _direction_of_people(problem, role, texts, nobody)
        given = labelled_groups(labels or {}, sets)
        directions = _directions(texts, person)
        products, sample, labelled = _read(features, directions, given)
        if _people(products, person).sum() > (1 - _FEW_SCENES) * len(products):
            person = None
        cosines = products[_people(products, person), :-1]
        people = sample[_people(sample @ directions.T, person)]
        doubt = ""
        basis = []
        for place, columns in enumerate(_split(cosines, texts)):
            prompt_set = sets[place]
            how = "predicted without labels"
            reason = (
                unlabelled_doubt(prompt_set.name, prompt_set.attributes)
                or _too_few(columns, [*prompt_set.attributes], least)
                or _foreign(_some(people), problem, prompt_set)
            )
            if labelled[place] is not None:
                found = taught(texts[place], _some(people), *labelled[place])
                if found.doubt and not reason:
                    warn_of_input(f"labels of {prompt_set.name!r} are not used: {found.doubt}")
                else:
                    texts[place], how, reason = found.texts, found.how, found.doubt
            basis.append(f"{prompt_set.name}: {how}")
            doubt = doubt or (reason and f"{prompt_set.name}: {reason}")
        if any(codes is not None for codes in given):
            # Learned vectors differ from the texts, so the shares are those of the sample.
            cosines = people @ np.concatenate(texts).T
        attributes = _bordered(
            [
                NearestText(tuple(prompt_set.attributes), values, np.zeros(len(values)))
                for prompt_set, values in zip(sets, texts, strict=True)
            ],
            cosines,
        )
        return cls(attributes, *_shares(attributes, cosines), None, person, doubt, ", ".join(basis))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the groups, crossed if there are several attributes."""
        return tuple(map("/".join, product(*(attribute.names for attribute in self.attributes))))

    @cached_property
    def _texts_and_person(self) -> Floats:
        """Return the directions (m, d) with which images are multiplied."""
        return _directions([attribute.texts for attribute in self.attributes], self.person)

    @property
    def used(self) -> str:
        """Return a line that says how the groups are predicted, and their shares."""
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.share_of_name().items())
        return f"search by {self.basis}; {shares} of the collection"

    def share_of_name(self) -> dict[str, float]:
        """Return the groups' shares by name."""
        return dict(zip(self.names, self.shares.tolist(), strict=True))

    def predict(self, features: AnyArray | Iterable[AnyArray]) -> Groups:
        """Return the groups of vectors.

        Vectors that are zero, NaN or infinite, or that show nobody, have no group.

        Args:
            features: vectors (n, d), or an iterable of blocks (b, d) of them.
        """
        blocks = [unit_products(block, self._texts_and_person) for block in _blocks(features)]
        products = np.concatenate(blocks)
        people = _people(products, self.person)
        is_broken = np.isnan(products[:, 0])
        # NaN would be the largest value of a row.
        groups = _predicted(self.attributes, np.nan_to_num(products[:, :-1]))
        codes = np.where(people, groups.codes, UNKNOWN)
        return replace(groups, codes=codes, doubt=self.doubt, is_broken=is_broken, used=self.used)

    def __getattr__(self, name: str) -> object:
        """Say what to do instead of a method that was removed."""
        hint = REMOVED.get(f"IndexGroups.{name}", "")
        raise AttributeError(f"IndexGroups has no attribute {name!r}{hint and '; '}{hint}")

    @check_arguments()
    def within(self, features: AnyArray) -> IndexGroups:
        """Return the groups and their shares behind a filter.

        The shares and borders are measured again, because they differ from those in the index.
        Results of a query are no substitute for such a list, because they are as skewed as the
        query, and neither are a store's first rows, which are sorted by something. If fewer than
        five vectors look like a group, the results of a search keep their order.

        Args:
            features: vectors (n, d) of 300 or more random documents that pass the filter, or of all
                documents if there are fewer.

        Raises:
            InvalidInputError: If no vector shows a person.

        Warns:
            SuspectInputWarning: If the labels cannot be trusted, or the two halves of the list have
                different shares, so that it is not random.
        """
        rows = as_floats(features, "features")
        products = unit_products(rows, self._texts_and_person)
        people = _people(products, self.person)
        if not people.any():
            raise InvalidInputError(
                f"within: none of the {len(products)} vectors shows a person; pass vectors that the"
                " store lists with the same filter"
            )
        cosines = products[people, :-1]
        texts = [attribute.texts for attribute in self.attributes]
        attributes = _bordered(self.attributes, cosines)
        doubt = ""
        for attribute, columns in zip(self.attributes, _split(cosines, texts), strict=True):
            reason = _too_few(columns, attribute.names, FEWEST_PEOPLE)
            if reason and not doubt:
                names = ", ".join(attribute.names)
                doubt = f"labels of {names} are unreliable behind this filter: {reason}"
        problem = doubt and f"{doubt}, so the results of searches keep their order"
        problem = problem or _disagreement_of_halves(self.predict(rows[people]))
        if problem:
            warn_of_input(f"within: {problem}; expected random vectors with this filter")
        shares, near_shares = _shares(attributes, cosines)
        return replace(
            self,
            attributes=attributes,
            shares=shares,
            near_shares=near_shares,
            doubt=self.doubt or doubt,
        )

    def save(self, file: str | Path) -> None:
        """Save the texts, the shares and the model's fingerprint as safetensors.

        Raises:
            StorageError: If no space is left. An existing file then stays as it is.
        """
        from safetensors.numpy import save

        from vldebias.utils.files import write_atomically

        tensors = {"shares": self.shares, "near_shares": self.near_shares}
        if self.person is not None:
            tensors["person"] = self.person
        for number, attribute in enumerate(self.attributes):
            for part in _PARTS:
                tensors[f"{number}.{part}"] = getattr(attribute, part)
        tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        mark = None if self.fingerprint is None else self.fingerprint.to_dict()
        header = {
            "kind": _KIND,
            FORMAT: str(_FORMAT),
            "names": json.dumps([attribute.names for attribute in self.attributes]),
            "doubt": self.doubt,
            "basis": self.basis,
            "fingerprint": json.dumps(mark),
        }
        write_atomically(file, save(tensors, {**header, "sha256": _digest(header, tensors)}))

    @classmethod
    def load(
        cls, file: str | Path, host: Host | None = None, groups: Sequence[Sequence[str]] = ()
    ) -> IndexGroups:
        """Load a saved file, and check that it is intact and was fitted to this model and groups.

        Args:
            file: a file from `save`.
            host: the model that embeds the queries, or None to skip this check.
            groups: names of the expected groups, per attribute. If empty, they are not checked.

        Raises:
            InvalidInputError: If the file does not exist, was changed, or has different contents or
                groups.
            ProjectionMismatchError: If it was fitted to a different model.
        """
        from safetensors import SafetensorError, safe_open

        from vldebias.methods.few_labels import unlabelled_doubt

        try:
            with safe_open(file, "np") as opened:
                header = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InvalidInputError(
                f"{file}: expected a file from `queries.index.save`, but reading it failed: {error}"
            ) from None
        if header.get("kind") != _KIND:
            raise InvalidInputError(
                f"{file}: expected a file from `queries.index.save`, got other tensors"
            )
        stated: object = header.get(FORMAT)
        # The header of a safetensors file only contains strings.
        if isinstance(stated, str) and re.fullmatch("[0-9]{1,18}", stated):
            stated = int(stated)
        check_format({FORMAT: stated}, file, newest=_FORMAT)
        if header.pop("sha256", "") != _digest(header, tensors):
            raise InvalidInputError(
                f"{file}: the contents were changed after they were saved; save the file again"
            )
        try:
            read = _Header.model_validate(header)
        except ValidationError as error:
            raise InvalidInputError(
                f"{file}: its header is not valid: {explain(error)}; fit the shares again with"
                " vldebias.debias_queries(embed, attribute, reference=vectors)"
            ) from None
        if groups and read.names != tuple(map(tuple, groups)):
            raise InvalidInputError(
                f"{file}: contains the shares of {[list(names) for names in read.names]}, but the"
                f" prompt sets have {[list(names) for names in groups]}; pass reference= to fit the"
                " queries again"
            )
        # Earlier versions stored further texts, and predicted all kinds of groups without labels.
        is_old = header[FORMAT] == _EARLIER
        doubt = read.doubt
        if is_old:
            tensors = {name: part for name, part in tensors.items() if "wordings" not in name}
            doubt = next(
                filter(
                    None, (unlabelled_doubt("", dict.fromkeys(names, ())) for names in read.names)
                ),
                doubt,
            )
        expected = {f"{i}.{part}" for i in range(len(read.names)) for part in _PARTS}
        if set(tensors) - {"person"} != expected | {"shares", "near_shares"}:
            raise InvalidInputError(
                f"{file}: got the tensors {shortened(', '.join(sorted(tensors)), 200)}; expected"
                f" {', '.join(sorted(expected))}, near_shares and shares; fit the shares again with"
                " vldebias.debias_queries(embed, attribute, reference=vectors)"
            )
        attributes = (
            NearestText(names, *(tensors[f"{i}.{part}"] for part in _PARTS))
            for i, names in enumerate(read.names)
        )
        loaded = cls(
            tuple(attributes),
            tensors["shares"],
            tensors["near_shares"],
            read.fingerprint,
            tensors.get("person"),
            doubt,
            read.basis,
        )
        if host is not None:
            loaded._check_model(host, file)
        return loaded

    def _check_model(self, host: Host, file: str | Path) -> None:
        """Raise an error unless the groups were fitted to this model."""
        fingerprint = host.fingerprint()
        is_other = self.attributes[0].texts.shape[1] != host.dim(host.roles[0])
        if self.fingerprint is not None and fingerprint is not None:
            is_other |= not self.fingerprint.same_texts(fingerprint)
        if is_other:
            raise ProjectionMismatchError(
                f"{file}: the shares were fitted to a different model; fit them again with"
                " vldebias.debias_queries(embed, attribute, reference=vectors)"
            )


def _predicted(attributes: Sequence[NearestText], cosines: Floats) -> Groups:
    """Return the groups of images by nearest text, crossed if there are several attributes.

    Args:
        attributes: the texts of each attribute.
        cosines: cosines (n, m) with the texts of all attributes.
    """
    parts = []
    columns = _split(cosines, [attribute.texts for attribute in attributes])
    for attribute, cosines_of_attribute in zip(attributes, columns, strict=True):
        codes, is_near = attribute.predict(cosines_of_attribute)
        parts.append(Groups(attribute.names, codes, is_near=is_near, source=ZERO_SHOT))
    return Groups.crossed(parts)


def _bordered(attributes: Sequence[NearestText], cosines: Floats) -> tuple[NearestText, ...]:
    """Return the attributes with borders that are measured on images with cosines (n, m)."""
    columns = _split(cosines, [attribute.texts for attribute in attributes])
    return tuple(a.with_borders_of(part) for a, part in zip(attributes, columns, strict=True))


def _shares(attributes: Sequence[NearestText], cosines: Floats) -> tuple[Floats, Floats]:
    """Return the groups' shares (g,) among images, and the share near the border of each group.

    Args:
        attributes: the texts of each attribute.
        cosines: cosines (n, m) with the texts of all attributes.
    """
    groups = _predicted(attributes, cosines)
    g = len(groups.names)
    # Without images, there are no shares, and `doubt` says so.
    shares = pool_shares(groups.codes, g) if len(cosines) else np.full(g, 1 / g)
    return shares, shares_near(groups.codes, cast("Mask", groups.is_near), g)


def _blocks(features: object) -> Iterable[object]:
    """Return features as an iterable of blocks (b, d)."""
    if isinstance(features, list) and features and np.ndim(features[0]) == 2:
        return features
    is_single = hasattr(features, "shape") or isinstance(features, list)
    return [features] if is_single else cast("Iterable[object]", features)


def _directions(texts: Sequence[Floats], person: Floats | None) -> Floats:
    """Return the texts of all attributes, and the direction of people or zeros (m, d)."""
    last = np.zeros_like(texts[0][0]) if person is None else person
    return np.concatenate([*texts, last[None]])


def _split(cosines: Floats, texts: Sequence[Floats]) -> list[Floats]:
    """Split cosines (n, m) with the texts of all attributes into one array per attribute."""
    return np.split(cosines, np.cumsum([len(values) for values in texts])[:-1], axis=1)


def _people(products: Floats, person: Floats | None) -> NDArray[np.bool_]:
    """Return a mask (n,) of the images that have a group, given their products with directions."""
    is_known: NDArray[np.bool_] = np.asarray(np.isfinite(products[:, :-1]).all(axis=1))
    return is_known if person is None else is_known & (products[:, -1] > 0)


def _direction_of_people(
    problem: Problem, role: str, texts: Sequence[Floats], nobody: Sequence[str]
) -> Floats | None:
    """Return the direction (d,) from texts without people to the values' texts.

    The result is None if a prompt set is not about people, or if the model is a mapping that does
    not contain the texts.
    """
    from vldebias.prompts import can_balance

    if not all(map(can_balance, problem.attributes)):
        return None
    try:
        rows = problem.host.embed(nobody, role).numpy()
    except MissingTextsError:
        return None
    means = [np.concatenate(texts).mean(axis=0), rows.astype(np.float64).mean(axis=0)]
    people, things = (mean / np.linalg.norm(mean) for mean in means)
    direction: Floats = people - things
    return direction


def _read(
    features: object, directions: Floats, given: Sequence[Codes | None]
) -> tuple[Floats, Floats, list[Any]]:
    """Return the products (n, m) of unit rows with directions, a sample of rows and labelled rows.

    Args:
        features: features (n, d), or an iterable of blocks (b, d) of them, which are read once.
        directions: directions (m, d).
        given: for each attribute, the group (n,) of each row or -1, or None without labels.

    Returns:
        The products, at most `_MOST_SAMPLED` unit rows (s, d), and for each attribute the labelled
        unit rows (l, d) with their groups (l,), or None.

    Raises:
        InvalidInputError: If the number of labels is not that of the rows.
    """
    known = [codes >= 0 for codes in given if codes is not None]
    is_labelled = np.logical_or.reduce(known) if known else np.zeros(0, np.bool_)
    products = [np.empty((0, len(directions)))]
    samples = []
    labelled = []
    step = 1
    n = 0
    for block in _blocks(features):
        products.append(unit_products(block, directions))
        chosen = np.flatnonzero(is_labelled[n : n + len(products[-1])])
        labelled.append(_unit(cast("Any", block)[chosen]))
        samples.append(_unit(_some(block)[::step]))
        if sum(map(len, samples)) > _MOST_SAMPLED:
            samples = [np.concatenate(samples)[::2].copy()]
            step *= 2
        n += len(products[-1])
    if len(is_labelled) not in (0, n):
        raise InvalidInputError(
            f"labels: got {len(is_labelled)} for {n} vectors; expected one for each"
        )
    rows = np.concatenate(labelled)
    found: list[Any] = []
    for codes in given:
        if codes is None:
            found.append(None)
            continue
        groups = codes[is_labelled]
        is_used = (groups >= 0) & np.isfinite(rows).all(axis=1)
        found.append((rows[is_used], groups[is_used]))
    return np.concatenate(products), np.concatenate(samples), found


def _unit(rows: object) -> Floats:
    """Return rows (n, d) scaled to norm 1, or NaN for rows without a direction."""
    floats = as_floats(rows, "features")
    with np.errstate(invalid="ignore", divide="ignore"):
        units: Floats = floats / np.linalg.norm(floats, axis=1, keepdims=True)
    return units


def _some(rows: Any) -> Any:
    """Return at most `_TAUGHT_ROWS` of the rows, in regular intervals."""
    return rows[:: -(-len(rows) // _TAUGHT_ROWS) or 1]


def _too_few(cosines: Floats, names: Sequence[str], least: int) -> str:
    """Return which groups have too few images according to their cosines (n, g), or ""."""
    counts = np.bincount(cosines.argmax(axis=1), minlength=len(names))
    lacking = [name for name, count in zip(names, counts, strict=True) if count < least]
    if not lacking:
        return ""
    return f"fewer than {least} of {len(cosines):,} images look like {', '.join(lacking)}"


def _foreign(rows: Floats, problem: Problem, prompt_set: PromptSet) -> str:
    """Return why unit rows (n, d) seem to come from another model than the texts, or ""."""
    import torch

    from vldebias.methods.equalise import foreign

    try:
        return foreign(torch.from_numpy(rows), problem, prompt_set, problem.host.roles[0])
    except MissingTextsError:
        return ""  # A mapping may only contain the texts that name the values.


def _disagreement_of_halves(groups: Groups) -> str:
    """Return how the shares in the two halves of a list differ beyond chance, or ""."""
    middle = len(groups.codes) // 2
    g = len(groups.names)
    halves = [pool_shares(part, g) for part in (groups.codes[:middle], groups.codes[middle:])]
    pooled = pool_shares(groups.codes, g)
    deviations = np.sqrt(pooled * (1 - pooled) * 4 / len(groups.codes))
    differences = np.abs(halves[0] - halves[1])
    if not (differences > _DISAGREE * deviations).any():
        return ""
    group = int(differences.argmax())
    return (
        f"the share of {groups.names[group]} is {halves[0][group]:.2f} in the first half of the"
        f" vectors and {halves[1][group]:.2f} in the second"
    )


def _is_finite(values: Floats, shape: tuple[int, ...]) -> bool:
    """Return whether an array has a shape and finite floats."""
    return values.shape == shape and values.dtype.kind == "f" and bool(np.isfinite(values).all())


def _are_unit(values: Floats, shape: tuple[int, ...]) -> bool:
    """Return whether an array has a shape and unit vectors."""
    lengths = np.linalg.norm(values, axis=-1) if _is_finite(values, shape) else np.full(1, np.nan)
    return not np.any(~(np.abs(lengths - 1) <= 1e-3))


def _digest(header: Mapping[str, str], tensors: Mapping[str, NDArray[np.generic]]) -> str:
    """Return the SHA-256 of a header and the tensors."""
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
    return total.hexdigest()

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
    explain_keywords,
    shortened,
    warn_of_input,
)
from vldebias.projection.fingerprint import Fingerprint
from vldebias.reranking.candidates import UNKNOWN, Floats, Mask, as_floats, unit_products
from vldebias.reranking.groups import ZERO_SHOT, Groups, pool_shares
from vldebias.reranking.nearest import NearestText, shares_near
from vldebias.utils.files import explain
from vldebias.utils.formats import FORMAT, check_format

if TYPE_CHECKING:
    from vldebias.hosts import Host
    from vldebias.methods import Problem
    from vldebias.prompts import PromptSet
    from vldebias.typing import AnyArray, AttributeLike, ModelLike

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
_FORMAT = 2
_PARTS = ("texts", "borders", "wordings")  # arrays of each attribute in a saved file
_COMPARED_ROWS = 2000  # number of rows for which wordings are compared
_MOST_SAMPLED = 20000  # number of rows kept to choose these from, which bounds the memory
# If fewer images than this share look like nobody, they hardly change the shares, and most of them
# show small people. Then, all images have a group.
_FEW_SCENES = 1 / 3
FEWEST_PEOPLE = 5  # minimum number of images per group in a collection or behind a filter
_AGREE_LISTED = 0.85  # minimum kappa between the labels behind a filter and by single wordings
# Two halves of the vectors behind a filter disagree if a group's shares in them differ by more than
# this number of standard deviations.
_DISAGREE = 3.0


class _Header(BaseModel, extra="ignore", frozen=True):
    """The strings in a saved file's header, of which some are JSON."""

    names: Json[tuple[tuple[str, ...], ...]]
    doubt: str
    fingerprint: Json[Fingerprint | None]

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

    >>> queries = debias_queries(embed, "gender", reference=vectors)  # doctest: +SKIP
    >>> queries.index.save("gender-index.safetensors")  # doctest: +SKIP
    """

    attributes: tuple[NearestText, ...]
    shares: Floats
    near_shares: Floats
    fingerprint: Fingerprint | None
    person: Floats | None = None
    doubt: str = ""

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
            shape = (attribute.wordings.shape[:1] or (0,)) + (n, width)
            are_valid.append(_are_unit(attribute.wordings, shape))
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
    ) -> IndexGroups:
        """Label unlabelled vectors, and count the groups' shares.

        Args:
            model: the model that embeds the prompts.
            attribute: prompt set with words for its values, or several prompt sets to cross.
            features: features (n, d), or an iterable of blocks (b, d) of them.
            least: minimum number of images of each value. Below, the labels are not trusted.
            nobody: texts without people, for prompt sets about people. If the model is a mapping
                that lacks them, all images have a group.

        Raises:
            InvalidInputError: If features and text embeddings have different widths.
        """
        # Import lazily, because torch takes seconds to import and labels do not need it.
        from vldebias.methods import Problem
        from vldebias.methods.gates import wordings_of

        problem = Problem(model, attribute)
        role = problem.host.roles[0]
        classifiers = [problem.zero_shot(prompt_set, role) for prompt_set in problem.attributes]
        texts = [values.numpy().astype(np.float64) for values in classifiers]
        person = _direction_of_people(problem, role, texts, nobody)
        directions = _directions(texts, person)
        products, sampled, rows = _products_and_sample(features, directions)
        if _people(products, person).sum() > (1 - _FEW_SCENES) * len(products):
            person = None
        cosines = products[_people(products, person), :-1]
        rows = _some(rows[_people(sampled, person)])
        attributes = []
        doubt = ""
        for prompt_set, values, columns in zip(
            problem.attributes, texts, _split(cosines, texts), strict=True
        ):
            names = tuple(prompt_set.attributes)
            reason = _too_few(columns, names, least)
            try:
                wordings = wordings_of(problem, prompt_set, role)[0].numpy()
                reason = reason or _doubt_about_wordings(problem, prompt_set, role, rows)
            except InvalidInputError:
                # A mapping may only contain the texts that name the values.
                wordings = np.empty((0, *values.shape))
            unmeasured = NearestText(names, values, np.zeros(len(names)), wordings)
            attributes.append(unmeasured.with_borders_of(columns))
            if reason and not doubt:
                doubt = f"labels of {prompt_set.name!r} are unreliable here: {reason}"
        shares, near_shares = _shares(attributes, cosines)
        return cls(tuple(attributes), shares, near_shares, None, person, doubt)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the groups, crossed if there are several attributes."""
        return tuple(map("/".join, product(*(attribute.names for attribute in self.attributes))))

    @cached_property
    def _texts_and_person(self) -> Floats:
        """Return the directions (m, d) with which images are multiplied."""
        return _directions([attribute.texts for attribute in self.attributes], self.person)

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
        return replace(groups, codes=codes, doubt=self.doubt, is_broken=is_broken)

    def __getattr__(self, name: str) -> object:
        """Say what to do instead of a method that was removed."""
        hint = REMOVED.get(f"IndexGroups.{name}", "")
        raise AttributeError(f"IndexGroups has no attribute {name!r}{hint and '; '}{hint}")

    @explain_keywords
    def within(self, features: AnyArray) -> IndexGroups:
        """Return the groups and their shares behind a filter.

        The shares and borders are measured again, because they differ from those in the index.
        Results of a query are no substitute for such a list, because they are as skewed as the
        query, and neither are a store's first rows, which are sorted by something. If fewer than
        five vectors look like a group, or single wordings disagree about them, the results of a
        search keep their order.

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
        attributes = []
        doubt = self.doubt
        for attribute, columns in zip(self.attributes, _split(cosines, texts), strict=True):
            attributes.append(attribute.with_borders_of(columns))
            reason = _too_few(columns, attribute.names, FEWEST_PEOPLE)
            if not reason and len(attribute.wordings):
                reason = _doubt_about_filter(attribute, rows[people])
            if reason and not doubt:
                names = ", ".join(attribute.names)
                doubt = f"labels of {names} are unreliable behind this filter: {reason}"
        problem = doubt and f"{doubt}, so the results of searches keep their order"
        problem = problem or _disagreement_of_halves(self.predict(rows[people]))
        if problem:
            warn_of_input(f"within: {problem}; expected random vectors with this filter")
        shares, near_shares = _shares(attributes, cosines)
        return replace(
            self, attributes=tuple(attributes), shares=shares, near_shares=near_shares, doubt=doubt
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
            read.doubt,
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
    except InvalidInputError:
        return None
    means = [np.concatenate(texts).mean(axis=0), rows.astype(np.float64).mean(axis=0)]
    people, things = (mean / np.linalg.norm(mean) for mean in means)
    direction: Floats = people - things
    return direction


def _products_and_sample(features: object, directions: Floats) -> tuple[Floats, Floats, Floats]:
    """Return all products (n, m) with directions (m, d), and those of a sample of rows (s, d)."""
    parts, samples = [], []
    step = 1
    for block in _blocks(features):
        parts.append(unit_products(block, directions))
        rows = as_floats(_some(block)[::step], "features")
        samples.append(np.hstack([_some(parts[-1])[::step], rows]))
        if sum(map(len, samples)) > _MOST_SAMPLED:
            samples = [np.concatenate(samples)[::2].copy()]
            step *= 2
    sampled, rows = np.split(np.concatenate(samples), [len(directions)], axis=1)
    return np.concatenate(parts), sampled, rows


def _some(rows: Any) -> Any:
    """Return at most `_COMPARED_ROWS` of the rows, in regular intervals."""
    return rows[:: -(-len(rows) // _COMPARED_ROWS) or 1]


def _too_few(cosines: Floats, names: Sequence[str], least: int) -> str:
    """Return which groups have too few images according to their cosines (n, g), or ""."""
    counts = np.bincount(cosines.argmax(axis=1), minlength=len(names))
    lacking = [name for name, count in zip(names, counts, strict=True) if count < least]
    if not lacking:
        return ""
    return f"fewer than {least} of {len(cosines):,} images look like {', '.join(lacking)}"


def _doubt_about_filter(attribute: NearestText, rows: Floats) -> str:
    """Return how much single wordings disagree about vectors (n, d), or "" if they agree."""
    import torch

    from vldebias.methods.gates import mean_kappa

    kappa = mean_kappa(*map(torch.from_numpy, (rows, attribute.texts, attribute.wordings)))
    if kappa >= _AGREE_LISTED:
        return ""
    return f"single wordings agree with a kappa of {kappa:.2f}; {_AGREE_LISTED} is needed"


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


def _doubt_about_wordings(problem: Problem, prompt_set: PromptSet, role: str, rows: Floats) -> str:
    """Return why zero-shot labels of images (n, d) cannot be trusted, or "".

    The conditions are those for editing queries (`vldebias.methods.gates`).
    """
    import torch
    from torch.nn.functional import normalize

    from vldebias.methods.equalise import foreign
    from vldebias.methods.gates import doubt_about_values

    images = normalize(torch.from_numpy(rows), dim=1)
    doubt = doubt_about_values(problem, prompt_set, role, images) or ""
    return doubt and (foreign(images, problem, prompt_set, role) or doubt)


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

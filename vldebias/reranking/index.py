"""Estimate the groups of vectors without labels, and store the groups' shares in an index."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, ProjectionMismatchError
from vldebias.reranking.candidates import UNKNOWN, Floats, as_floats, unit_products
from vldebias.reranking.checks import ENOUGH
from vldebias.reranking.estimates import GroupEstimator
from vldebias.reranking.groups import ZERO_SHOT, Groups, pool_shares, requested_shares
from vldebias.utils.formats import FORMAT, check_format

if TYPE_CHECKING:
    from vldebias.hosts import Host
    from vldebias.methods import Problem
    from vldebias.projection.fingerprint import Fingerprint
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
# If a group's mean probability differs from its share of the labels by more than this, the
# probabilities were not fitted to the groups, so only the labels are used. In photographs with
# captions, where re-ranking by probability leaves much less skew, they differ by up to 0.3.
_DISAGREE = 0.35
_COMPARED_ROWS = 2000  # number of rows for which wordings are compared
# If fewer images than this share look like nobody, they hardly change the shares, and most of them
# show small people. Then, all images have a group.
_FEW_SCENES = 1 / 3


@dataclass(frozen=True, eq=False)
class IndexGroups:
    """Estimate the groups of vectors, and store the groups' shares in an index or a collection.

    The best results of a skewed query are themselves skewed, so the shares are estimated on a
    sample of the index. Nothing about individual images is saved.

    For sets about people, an image shows nobody if it is closer to the mean of `NOBODY` than to the
    mean of the values' texts. This needs no fit. If at least a third of the images show nobody,
    such images have no group, and do not count towards the shares.

    Attributes:
        estimators: one estimator per attribute. If there are several, their groups are crossed.
        shares: shares (g,) of the groups in the sample, by label.
        expected_shares: mean probabilities (g,) in the sample, or None without probabilities.
        fingerprint: identifies the model, or None if it is unknown.
        person: direction (d,) along which images of people are positive, or None if every image has
            a group.
        doubt: why the labels cannot be trusted, or "".
        sample: cosines of the people in the sample with the groups' texts, which are not saved.

    >>> queries = debias_queries(embed, "gender", reference=vectors)  # doctest: +SKIP
    >>> queries.index.save("gender-index.safetensors")  # doctest: +SKIP
    """

    estimators: tuple[GroupEstimator, ...]
    shares: Floats
    expected_shares: Floats | None
    fingerprint: Fingerprint | None
    person: Floats | None = None
    doubt: str = ""
    sample: Floats | None = None

    def __post_init__(self) -> None:
        """Raise an error if arrays have the wrong shape or values, such as in a changed file."""
        g = len(self.names)
        width = self.estimators[0].texts.shape[-1]
        are_valid = [_are_shares(self.shares, g)]
        if self.expected_shares is not None:
            are_valid.append(_are_shares(self.expected_shares, g))
        if self.person is not None:
            are_valid.append(_is_finite(self.person, (width,)))
        for estimator in self.estimators:
            n = len(estimator.names)
            are_valid.append(_is_finite(estimator.texts, (n, width)))
            are_valid.append(_is_finite(estimator.offsets, (n,)))
            if estimator.slopes is not None:
                are_valid.append(_is_finite(estimator.slopes, (n, n)))
        if not all(are_valid):
            raise InvalidInputError(
                f"index groups: expected finite texts, slopes and offsets of {g} groups, and shares"
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
        least: int | None = None,
        nobody: Sequence[str] = NOBODY,
    ) -> IndexGroups:
        """Estimate the groups of unlabelled vectors, and their shares.

        Args:
            model: the model that embeds the prompts.
            attribute: prompt set with words for its values, or several prompt sets to cross.
            features: features (n, d), or an iterable of blocks (b, d) of them.
            least: minimum number of images of each value. Below, the labels are not trusted. If
                None, the minimum for editing queries.
            nobody: texts without people, for prompt sets about people. If the model is a mapping
                that lacks them, all images have a group.

        Raises:
            InvalidInputError: If features and text embeddings have different widths.
        """
        # Import lazily, because torch takes seconds to import and labels do not need it.
        from vldebias.methods import Problem
        from vldebias.methods.folds import FEWEST

        problem = Problem(model, attribute)
        role = problem.host.roles[0]
        texts = []
        for prompt_set in problem.attributes:
            texts.append(problem.zero_shot(prompt_set, role).numpy().astype(np.float64))
        person = _direction_of_people(problem, role, texts, nobody)
        directions = np.concatenate([*texts, np.zeros_like(texts[0][:1])])
        if person is not None:
            directions[-1] = person
        parts, samples = [], []
        for block in _blocks(features):
            parts.append(unit_products(block, directions))
            samples.append(_some(as_floats(block, "features")))
        products = np.concatenate(parts)
        if _people(products, person).sum() > (1 - _FEW_SCENES) * len(products):
            person = None
        cosines = products[_people(products, person), :-1]
        sampled = np.concatenate([_some(part) for part in parts])
        rows = _some(np.concatenate(samples)[_people(sampled, person)])
        estimators = []
        doubt = ""
        for prompt_set, values, columns in zip(
            problem.attributes, texts, _split(cosines, texts), strict=True
        ):
            names = tuple(prompt_set.attributes)
            estimators.append(GroupEstimator.fit(names, values, columns))
            reason = _too_few(columns, names, least or FEWEST)
            reason = reason or _doubt_about_wordings(problem, prompt_set, role, rows)
            if reason and not doubt:
                doubt = f"labels of {prompt_set.name!r} are unreliable here: {reason}"
        return cls._with_shares(tuple(estimators), cosines, None, person, doubt)

    @classmethod
    def _with_shares(
        cls,
        estimators: tuple[GroupEstimator, ...],
        cosines: Floats,
        fingerprint: Fingerprint | None,
        person: Floats | None,
        doubt: str,
    ) -> IndexGroups:
        """Return the groups with their shares among some images of people.

        Args:
            estimators: one estimator per attribute.
            cosines: cosines (n, all texts) of these images.
            fingerprint: identifies the model.
            person: direction of people.
            doubt: why the labels cannot be trusted, or "".
        """
        groups = _predicted(estimators, cosines)
        g = len(groups.names)
        # Without images, there are no shares, and `doubt` says so.
        shares = pool_shares(groups.codes, g) if len(cosines) else np.full(g, 1 / g)
        means = None
        if groups.probabilities is not None and len(cosines):
            means = groups.probabilities.mean(axis=0)
            if np.abs(means - shares).max() > _DISAGREE:
                estimators = tuple(replace(estimator, slopes=None) for estimator in estimators)
                means = None
        return cls(estimators, shares, means, fingerprint, person, doubt, cosines)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the groups, crossed if there are several attributes."""
        width = sum(len(estimator.names) for estimator in self.estimators)
        return _predicted(self.estimators, np.zeros((1, width))).names

    @cached_property
    def _directions(self) -> Floats:
        """Return the texts of all attributes, and the direction of people or zeros (m, d)."""
        texts = [estimator.texts for estimator in self.estimators]
        person = np.zeros_like(texts[0][0]) if self.person is None else self.person
        return np.concatenate([*texts, person[None]])

    def share_of_name(self) -> dict[str, float]:
        """Return the groups' shares by name, by probability if there are probabilities."""
        shares = self.shares if self.expected_shares is None else self.expected_shares
        return dict(zip(self.names, shares.tolist(), strict=True))

    def predict(self, features: AnyArray | Iterable[AnyArray]) -> Groups:
        """Return the groups of vectors, with their probabilities if available.

        Vectors that are zero, NaN or infinite, or that show nobody, have no group.

        Args:
            features: vectors (n, d), or an iterable of blocks (b, d) of them.
        """
        blocks = [unit_products(block, self._directions) for block in _blocks(features)]
        products = np.concatenate(blocks)
        people = _people(products, self.person)
        # NaN would be the largest value of a row.
        groups = _predicted(self.estimators, np.where(people[:, None], products[:, :-1], 0.0))
        codes = np.where(people, groups.codes, UNKNOWN)
        return replace(groups, codes=codes, doubt=self.doubt)

    def within(self, features: AnyArray, shares: Mapping[str, float] | None = None) -> IndexGroups:
        """Return the groups and their shares behind a filter.

        The probabilities are fitted again to these vectors, if there are enough of them, because
        the shares behind a filter differ from those in the index. Results of a query are no
        substitute for such a list, because they are as skewed as the query.

        Args:
            features: vectors (n, d) of 300 or more documents that the store lists with the same
                filter, or of all documents if there are fewer.
            shares: the groups' true shares among these documents, if they are known. They move the
                probabilities, but they are not the target of a search: the mean of estimated
                probabilities differs from the true shares, so this target would be missed.

        Raises:
            InvalidInputError: If no vector shows a person, or the shares do not sum to 1.
        """
        products = unit_products(features, self._directions)
        cosines = products[_people(products, self.person), :-1]
        if not len(cosines):
            raise InvalidInputError(
                f"within: none of the {len(products)} vectors shows a person; pass vectors that the"
                " store lists with the same filter"
            )
        texts = [estimator.texts for estimator in self.estimators]
        fitted = []
        for estimator, columns in zip(self.estimators, _split(cosines, texts), strict=True):
            again = GroupEstimator.fit(estimator.names, estimator.texts, columns)
            counts = np.bincount(columns.argmax(axis=1), minlength=len(estimator.names))
            is_enough = counts.min() >= ENOUGH_PEOPLE and again.slopes is not None
            fitted.append(again if is_enough and not estimator.by_probability else estimator)
        if shares is not None:
            known = requested_shares(shares, np.empty(0, np.intp), self.names)
            table = known.reshape([len(estimator.names) for estimator in fitted])
            parts = _split(cosines, texts)
            for place, estimator in enumerate(fitted):
                axes = tuple(axis for axis in range(table.ndim) if axis != place)
                fitted[place] = estimator.with_known_shares(parts[place], table.sum(axis=axes))
        return self._with_shares(tuple(fitted), cosines, self.fingerprint, self.person, self.doubt)

    def calibrated(self, features: object, groups: Sequence[object]) -> IndexGroups:
        """Return the groups with probabilities that fit images checked by hand.

        In a small collection, about 120 labels of candidates leave less skew and retain more
        results than any rule without labels. In a large index, more of the results stay, and more
        of the skew is left.

        Args:
            features: vectors (n, d) of the checked images, 60 or more.
            groups: their true groups (n,).

        Raises:
            InvalidInputError: If there are too few images or an unknown group, or if there are no
                probabilities to calibrate.
        """
        is_fitted = all(estimator.slopes is not None for estimator in self.estimators)
        if self.sample is None or not is_fitted:
            raise InvalidInputError(
                "calibrated: there are no probabilities, or the groups were loaded from a file; fit"
                " them with reference=, a few thousand vectors"
            )
        products = unit_products(features, self._directions)
        labels = list(map(str, groups))
        unknown = sorted(set(labels) - set(self.names))
        if unknown or len(labels) != len(products):
            raise InvalidInputError(
                f"calibrated: got {len(labels)} groups for {len(products)} vectors"
                f"{f', among them {unknown}' if unknown else ''}; expected one of"
                f" {list(self.names)} for each"
            )
        codes = np.array([self.names.index(label) for label in labels], np.intp)
        is_used = np.isfinite(products[:, :-1]).all(axis=1)
        if is_used.sum() < ENOUGH:
            raise InvalidInputError(
                f"calibrated: got {is_used.sum()} checked images; expected at least {ENOUGH}"
            )
        sizes = [len(estimator.names) for estimator in self.estimators]
        parts = _split(products[is_used, :-1], [estimator.texts for estimator in self.estimators])
        codes_of_attribute = np.unravel_index(codes[is_used], sizes)
        fitted = []
        for estimator, columns, truth in zip(
            self.estimators, parts, codes_of_attribute, strict=True
        ):
            fitted.append(estimator.calibrated(columns, truth))
        return self._with_shares(
            tuple(fitted), self.sample, self.fingerprint, self.person, self.doubt
        )

    def save(self, file: str | Path) -> None:
        """Save the estimators, the shares and the model's fingerprint as safetensors.

        Raises:
            StorageError: If no space is left. An existing file then stays as it is.
        """
        from safetensors.numpy import save

        from vldebias.utils.files import write_atomically

        tensors = {"shares": self.shares}
        if self.expected_shares is not None:
            tensors["expected_shares"] = self.expected_shares
        if self.person is not None:
            tensors["person"] = self.person
        for number, estimator in enumerate(self.estimators):
            tensors[f"{number}.texts"] = estimator.texts
            tensors[f"{number}.offsets"] = estimator.offsets
            if estimator.slopes is not None:
                tensors[f"{number}.slopes"] = estimator.slopes
        tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        mark = None if self.fingerprint is None else self.fingerprint.to_dict()
        header = {
            "kind": _KIND,
            FORMAT: "1",
            "names": json.dumps([estimator.names for estimator in self.estimators]),
            "by_probability": json.dumps([part.by_probability for part in self.estimators]),
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

        from vldebias.projection.fingerprint import Fingerprint

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
        check_format({FORMAT: stated}, file)
        if header.pop("sha256", "") != _digest(header, tensors):
            raise InvalidInputError(
                f"{file}: the contents were changed after they were saved; save the file again"
            )
        names_of_attributes = json.loads(header["names"])
        if groups and names_of_attributes != [list(names) for names in groups]:
            raise InvalidInputError(
                f"{file}: contains the shares of {names_of_attributes}, but the prompt sets have"
                f" {[list(names) for names in groups]}; pass reference= to fit the queries again"
            )
        estimators = []
        are_by_probability = json.loads(header["by_probability"])
        for number, names in enumerate(names_of_attributes):
            estimators.append(
                GroupEstimator(
                    tuple(names),
                    tensors[f"{number}.texts"],
                    tensors.get(f"{number}.slopes"),
                    tensors[f"{number}.offsets"],
                    are_by_probability[number],
                )
            )
        mark = json.loads(header["fingerprint"])
        loaded = cls(
            tuple(estimators),
            tensors["shares"],
            tensors.get("expected_shares"),
            None if mark is None else Fingerprint(**mark),
            tensors.get("person"),
            header["doubt"],
        )
        if host is not None:
            loaded._check_model(host, file)
        return loaded

    def _check_model(self, host: Host, file: str | Path) -> None:
        """Raise an error unless the groups were fitted to this model."""
        fingerprint = host.fingerprint()
        is_other = self.estimators[0].texts.shape[1] != host.dim(host.roles[0])
        if self.fingerprint is not None and fingerprint is not None:
            is_other |= not self.fingerprint.same_texts(fingerprint)
        if is_other:
            raise ProjectionMismatchError(
                f"{file}: the shares were fitted to a different model; fit them again with"
                " vldebias.debias_queries(embed, attribute, reference=vectors)"
            )


def _predicted(estimators: Sequence[GroupEstimator], cosines: Floats) -> Groups:
    """Return the groups of images according to fitted estimators, crossed if there are several.

    Args:
        estimators: one estimator per attribute.
        cosines: cosines (n, m) with the texts of all attributes.
    """
    parts = []
    columns = _split(cosines, [estimator.texts for estimator in estimators])
    for estimator, cosines_of_attribute in zip(estimators, columns, strict=True):
        predicted = estimator.predict(cosines_of_attribute)
        parts.append(Groups(estimator.names, *predicted, ZERO_SHOT))
    return Groups.crossed(parts)


def _blocks(features: object) -> Iterable[object]:
    """Return features as an iterable of blocks (b, d)."""
    if isinstance(features, list) and features and np.ndim(features[0]) == 2:
        return features
    is_single = hasattr(features, "shape") or isinstance(features, list)
    return [features] if is_single else cast("Iterable[object]", features)


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


def _some(rows: Floats) -> Floats:
    """Return at most `_COMPARED_ROWS` of the rows, in regular intervals."""
    return rows[:: -(-len(rows) // _COMPARED_ROWS) or 1]


def _too_few(cosines: Floats, names: Sequence[str], least: int) -> str:
    """Return which groups have too few images according to their cosines (n, g), or ""."""
    counts = np.bincount(cosines.argmax(axis=1), minlength=len(names))
    lacking = [name for name, count in zip(names, counts, strict=True) if count < least]
    if not lacking:
        return ""
    return f"fewer than {least} of {len(cosines):,} images look like {', '.join(lacking)}"


def _doubt_about_wordings(problem: Problem, prompt_set: PromptSet, role: str, rows: Floats) -> str:
    """Return why zero-shot labels of images (n, d) cannot be trusted, or "".

    The conditions are those for editing queries (`vldebias.methods.gates`).
    """
    import torch
    from torch.nn.functional import normalize

    from vldebias.methods.equalise import foreign
    from vldebias.methods.gates import doubt_about_values

    images = normalize(torch.from_numpy(rows), dim=1)
    try:
        doubt = doubt_about_values(problem, prompt_set, role, images) or ""
        return doubt and (foreign(images, problem, prompt_set, role) or doubt)
    except InvalidInputError:
        # A mapping may only contain the texts that name the values.
        return ""


def _are_shares(values: Floats, g: int) -> bool:
    """Return whether values are shares (g,) that sum to 1."""
    return bool(_is_finite(values, (g,)) and values.min() >= 0 and abs(values.sum() - 1) <= 1e-6)


def _is_finite(values: Floats, shape: tuple[int, ...]) -> bool:
    """Return whether an array has a shape and finite floats."""
    return values.shape == shape and values.dtype.kind == "f" and bool(np.isfinite(values).all())


def _digest(header: Mapping[str, str], tensors: Mapping[str, NDArray[np.generic]]) -> str:
    """Return the SHA-256 of a header and the tensors."""
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
    return total.hexdigest()

"""Estimate the groups of an index's vectors, and store the groups' shares in the index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, ProjectionMismatchError
from vldebias.reranking.candidates import Candidates, Floats, unit_rows
from vldebias.reranking.estimates import GroupEstimator
from vldebias.reranking.groups import Groups, check_width, text_values
from vldebias.reranking.orders import expected, quota
from vldebias.reranking.report import Report

if TYPE_CHECKING:
    from vldebias.hosts import Host
    from vldebias.methods.method import AttributeLike
    from vldebias.projection.fingerprint import Fingerprint

_KIND = "vldebias index groups"


@dataclass(frozen=True, eq=False)
class IndexGroups:
    """Re-rank the results of an index to the shares that the groups have in the whole index.

    The best results of a skewed query are themselves skewed, so the shares are estimated on a
    sample of the index. Nothing is stored per image.

    Attributes:
        estimators: one estimator per attribute. If there are several, their groups are crossed.
        shares: shares (g,) of the groups in the sample, by label.
        expected_shares: mean probabilities (g,) in the sample, or None without probabilities.
        fingerprint: identifies the model, or None if it is unknown.

    >>> queries = debias_queries(embed, "gender", reference=vectors)  # doctest: +SKIP
    >>> queries.index.save("gender-index.safetensors")  # doctest: +SKIP
    """

    estimators: tuple[GroupEstimator, ...]
    shares: Floats
    expected_shares: Floats | None
    fingerprint: Fingerprint | None

    @classmethod
    def fit(cls, host: Host, attribute: AttributeLike, blocks: Iterable[object]) -> IndexGroups:
        """Estimate the groups' shares in an index.

        Args:
            host: the model that embeds the prompts.
            attribute: prompt set with words for its values, or several prompt sets to cross.
            blocks: features (b, d) of a sample of the index, in blocks.
        """
        groups, estimators = Groups.estimated(blocks, text_values(attribute, host))
        shares = np.bincount(groups.codes, minlength=len(groups.names)) / len(groups.codes)
        means = None if groups.probabilities is None else groups.probabilities.mean(axis=0)
        return cls(tuple(estimators), shares, means, host.fingerprint())

    def predict(self, features: object) -> Groups:
        """Return the groups of vectors (n, d), with their probabilities if available."""
        rows = unit_rows(features)
        for estimator in self.estimators:
            check_width(rows, estimator.texts)
        return Groups.predicted(rows, self.estimators)

    def rerank(
        self, scores: Floats, features: object, keys: NDArray[np.generic], k: int, query: str = ""
    ) -> Report:
        """Re-rank the results of a query to the shares in the index.

        Args:
            scores: scores (n,) of the results.
            features: vectors (n, d) of the results.
            keys: ids (n,) of the results.
            k: number of results to show.
            query: the query, for the report.
        """
        groups = self.predict(features)
        candidates = Candidates(
            scores,
            groups.codes,
            groups.names,
            self.shares,
            groups.probabilities,
            self.expected_shares,
        )
        method = quota if self.expected_shares is None else expected
        order = method(candidates, min(k, len(scores)))
        about = (method.__name__, "index shares", groups.source)
        unchecked = np.full(len(scores), -1)
        return Report(candidates, about, order, keys, unchecked, query, how_to_check="")

    def save(self, file: str | Path) -> None:
        """Save the estimators, the shares and the model's fingerprint as safetensors."""
        from safetensors.numpy import save_file

        tensors = {"shares": self.shares}
        if self.expected_shares is not None:
            tensors["expected_shares"] = self.expected_shares
        for number, estimator in enumerate(self.estimators):
            tensors[f"{number}.texts"] = estimator.texts
            tensors[f"{number}.offsets"] = estimator.offsets
            if estimator.slopes is not None:
                tensors[f"{number}.slopes"] = estimator.slopes
        tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        mark = None if self.fingerprint is None else self.fingerprint.to_dict()
        metadata = {
            "kind": _KIND,
            "names": json.dumps([estimator.names for estimator in self.estimators]),
            "fingerprint": json.dumps(mark),
        }
        save_file(tensors, file, metadata)

    @classmethod
    def load(cls, file: str | Path, host: Host, groups: Sequence[Sequence[str]]) -> IndexGroups:
        """Load a saved file, and check that it was fitted to this model and these groups.

        Args:
            file: a file from `save`.
            host: the model that embeds the queries.
            groups: names of the expected groups, per attribute. If empty, they are not checked.

        Raises:
            InvalidInputError: If the file does not exist, or has different contents or groups.
            ProjectionMismatchError: If it was fitted to a different model.
        """
        from safetensors import SafetensorError, safe_open

        from vldebias.projection.fingerprint import Fingerprint

        try:
            with safe_open(file, "np") as opened:
                metadata = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InvalidInputError(
                f"{file}: expected a file from `queries.index.save`, but reading it failed: {error}"
            ) from None
        if metadata.get("kind") != _KIND:
            raise InvalidInputError(
                f"{file}: expected a file from `queries.index.save`, got other tensors"
            )
        estimators = []
        names_of_attributes = json.loads(metadata["names"])
        if groups and names_of_attributes != [list(names) for names in groups]:
            raise InvalidInputError(
                f"{file}: contains the shares of {names_of_attributes}, but the prompt sets have"
                f" {[list(names) for names in groups]}; pass reference= to fit the queries again"
            )
        for number, names in enumerate(names_of_attributes):
            texts, slopes = tensors[f"{number}.texts"], tensors.get(f"{number}.slopes")
            offsets = tensors[f"{number}.offsets"]
            estimators.append(GroupEstimator(tuple(names), texts, slopes, offsets))
        mark = json.loads(metadata["fingerprint"])
        fingerprint = None if mark is None else Fingerprint(**mark)
        here = host.fingerprint()
        width = estimators[0].texts.shape[1]
        is_other = False
        if fingerprint is not None and here is not None:
            is_other = not fingerprint.same_texts(here)
        if is_other or width != host.dim(host.roles[0]):
            raise ProjectionMismatchError(
                f"{file}: the shares were fitted to a different model; fit them again with"
                " vldebias.debias_queries(embed, attribute, reference=vectors)"
            )
        return cls(
            tuple(estimators), tensors["shares"], tensors.get("expected_shares"), fingerprint
        )

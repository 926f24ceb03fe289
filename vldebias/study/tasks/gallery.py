"""Measure skew in gallery rankings, and compare it with resampled galleries and random rankings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vldebias.data import Labels
from vldebias.errors import InvalidInputError, warn_of_input
from vldebias.measure.metric import computed
from vldebias.measure.rankings import max_skews, resampled_places, resampled_quota
from vldebias.measure.resampling import resampled_weights
from vldebias.utils.arrays import Floats, Mask, Rows

Skews = dict[str, Floats]  # metric -> value per ranking

# A gallery is uneven if its largest group is at least this many times the size of its smallest. At
# 1.5, for example with 60% and 40%, a random ranking has a MaxSkew of 0.18 against equal shares.
UNEVEN = 1.5
_BLOCK = 1 << 23  # entries per block of rankings; bounds memory use


class Gallery:
    """The images with a known group, together with settings for measuring skew in their rankings.

    Groups without images are ignored, because they cannot be retrieved.

    Attributes:
        codes: (n,) positions in `names`, in the smallest integer type, because small types sort in
            linear time.
        prior: (g,) target share of each group.
        other_prior: name of the other prior if the gallery is uneven, "" otherwise. Skew is also
            reported against this prior, because no ranking of an uneven gallery is fair under both.

    Raises:
        InvalidInputError: If there are fewer than two groups, or fewer images than k.
    """

    def __init__(
        self,
        labels: Labels,
        k: Sequence[int],
        prior: str = "uniform",
        resamples: int = 2000,
        seed: int = 0,
    ) -> None:
        self.k = k
        self.by_size = prior == "dataset"
        self.resamples = resamples
        self.seed = seed
        self.size_of_group = {name: n for name, n in labels.counts.items() if n}
        self.names = tuple(self.size_of_group)
        if len(self.names) < 2:
            raise InvalidInputError(
                f"gallery: expected images from two or more groups, got {labels.counts}"
            )
        if max(k) > len(labels):
            raise InvalidInputError(
                f"k: expected at most {len(labels)}, the number of images whose group is known, got"
                f" {max(k)}; choose a smaller k"
            )
        # Groups without images are dropped, so renumber the codes: 0, 2, 3 become 0, 1, 2.
        _, codes, self.sizes = np.unique(labels.codes, return_inverse=True, return_counts=True)
        self.codes = codes.astype(np.min_scalar_type(len(self.names)))
        self.gallery_shares: Floats = self.sizes / self.sizes.sum()
        self.even_shares: Floats = np.full(len(self.names), 1 / len(self.names))
        self.prior = self.gallery_shares if self.by_size else self.even_shares
        is_uneven = self.sizes.max() >= UNEVEN * self.sizes.min()
        other_name = "uniform" if self.by_size else "dataset"
        self.other_prior = other_name if is_uneven else ""

    def measure(
        self, groups: NDArray[np.integer], gallery_shares: Floats, relevant: Mask | None = None
    ) -> Skews:
        """Return the values (r,) of each metric for r rankings.

        Args:
            groups: (r, m) group codes of the top rows.
            gallery_shares: group shares in the gallery, either (g,) or one row per ranking (r, g).
            relevant: (r, m) boolean mask of the relevant rows.
        """
        # With the prior "dataset", compare each resample with its own shares. Otherwise, the
        # sampling noise in these shares would count as skew.
        prior = gallery_shares if self.by_size else self.even_shares
        other_shares = self.even_shares if self.by_size else gallery_shares
        values: Skews = {}
        for k in self.k:
            # The columns of `groups` cover the largest k; smaller values of k use the first ones.
            first = groups[:, :k]
            # This includes MaxSkew, MinSkew and NDKL (`measure/rankings.py`), MPR and AWRF
            # (`measure/representation.py`), and metrics registered by users.
            for metric, compute in computed("rankings"):
                values[f"{metric.name}@{k}"] = compute(first, prior)
            if self.other_prior:
                values[f"max_skew_{self.other_prior}@{k}"] = max_skews(first, other_shares)
            if relevant is not None:
                values[f"precision@{k}"] = relevant[:, :k].mean(axis=1)
        return values

    def skews(
        self,
        ranked: Mapping[str, Rows],
        relevant: Mask | None = None,
        labels: Mapping[str, Sequence[NDArray[np.integer] | None]] | None = None,
    ) -> dict[str, Skews]:
        """Return the values (q, 1 + resamples) of each metric, by method and metric.

        The first column is for the gallery itself, and the others are for its resamples, which all
        methods share. The prior "dataset" is computed for each resample. In a large gallery, only
        ranked rows are sampled individually; others are sampled by group.

        Args:
            ranked: method -> top rows (q, m) of each query.
            relevant: (q, n) boolean mask of the relevant images.
            labels: method -> (n,) label of each image for each query, for methods that reserve
                ranks per label. None if the query's results keep their order.
        """
        n = len(self.codes)
        read = np.unique(np.concatenate([orders.ravel() for orders in ranked.values()]))
        # Rows that no ranking contains need not be sampled individually. If most rows are ranked,
        # sampling all of them is simpler and just as fast.
        if 2 * len(read) > n:
            read = np.arange(n)
        codes = self.codes[read]
        # From here on, a row is identified by its position in `read`.
        places = {method: np.searchsorted(read, orders) for method, orders in ranked.items()}
        skews: dict[str, Skews] = {method: {} for method in ranked}
        start = 0
        for weights, gallery_shares in self._resampled(read):
            end = start + len(weights)
            for method, orders in places.items():
                for query, order in enumerate(orders):
                    # (b, k): top rows of each resample
                    label_of_row = None
                    if labels is not None and method in labels:
                        label_of_row = labels[method][query]
                    if label_of_row is None:
                        top = resampled_places(order, weights, max(self.k))
                    else:
                        labels_of_rows = label_of_row[read[order]]
                        top = resampled_quota(order, weights, max(self.k), labels_of_rows)
                    hits = None
                    if relevant is not None:
                        hits = relevant[query, read[order]][top]
                    values_of_metric = self.measure(codes[order][top], gallery_shares, hits)
                    for metric, values in values_of_metric.items():
                        shape = (len(orders), 1 + self.resamples)
                        table = skews[method].setdefault(metric, np.empty(shape))
                        table[query, start:end] = values
            start = end
        return skews

    def _resampled(self, read: Rows) -> Iterator[tuple[NDArray[np.integer], Floats]]:
        """Yield the original gallery, followed by blocks of b resampled galleries.

        Each item contains the counts (b, r) of the rows in `read` (r,) and the group shares, which
        are (b, g) for resamples or (g,) for the gallery. Other rows are sampled by group.
        """
        codes = self.codes[read]
        groups = range(len(self.names))
        # (g,): number of rows per group that no ranking contains
        unread = self.sizes - np.bincount(codes, minlength=len(self.names))
        rng = np.random.default_rng([self.seed, 1])
        n = len(self.codes)
        yield np.ones((1, len(read)), dtype=np.uint8, order="F"), self.gallery_shares
        for weights in resampled_weights(n, self.resamples, self.seed, len(read)):
            gallery_shares = self.gallery_shares
            # The shares in each resample are only needed for skew relative to the gallery's own
            # shares.
            if self.by_size or self.other_prior:
                # If w of the n rows of a resample are in `read`, the other n - w are distributed
                # over the groups of the unread rows.
                rest = rng.multinomial(n - weights.sum(axis=1), unread / max(unread.sum(), 1))
                sizes = [weights[:, codes == group].sum(axis=1) for group in groups]
                gallery_shares = (np.stack(sizes, axis=1) + rest) / n
            # `resampled_places` reads the weights of one gallery row at a time, so store them
            # contiguously, in the smallest type for better cache use.
            smallest = np.min_scalar_type(weights.max())
            yield np.asfortranarray(weights.astype(smallest)), gallery_shares

    def random(self) -> Skews:
        """Return the values (resamples,) of each metric for random permutations of the gallery.

        The MaxSkew of a random ranking is usually positive, because its first k images are rarely
        exactly balanced.
        """
        rng = np.random.default_rng(self.seed)
        n = len(self.codes)
        k = max(self.k)
        # For small k, `Generator.choice` samples k rows without allocating an array of size n.
        takes_few = n > 10_000 and n > 50 * k
        size = max(1, _BLOCK // (k if takes_few else n))
        parts = []
        for start in range(0, self.resamples, size):
            b = min(size, self.resamples - start)
            if takes_few:
                groups = self.codes[np.stack([rng.choice(n, k, replace=False) for _ in range(b)])]
            else:
                # Permute several copies of the gallery in one call, and keep the first k of each.
                groups = rng.permuted(np.tile(self.codes, (b, 1)), axis=1)[:, :k]
            parts.append(self.measure(groups, self.gallery_shares))
        return {metric: np.concatenate([part[metric] for part in parts]) for metric in parts[0]}

    def warn_if_uneven(self, k: int, model_skew: float, chance: float) -> None:
        """Warn if an uneven gallery makes random rankings more skewed than the model's.

        Args:
            k: number of top results.
            model_skew: MaxSkew@k of the model without a method.
            chance: MaxSkew@k of random rankings.
        """
        if not self.other_prior or chance <= model_skew:
            return
        warn_of_input(
            f"MaxSkew@{k}: {chance:.3f} for a random ranking of this gallery, {model_skew:.3f} for"
            f" the model. The gallery itself is skewed ({counted(self.size_of_group)}), which no"
            " text edit can change. Use the same number of images for each group, or measure"
            " against the gallery's own shares (prior='dataset').",
        )


def counted(sizes: Mapping[str, int]) -> str:
    """Format image counts, for example as "700 male, 300 female"."""
    return ", ".join(f"{size:,} {name}" for name, size in sizes.items())

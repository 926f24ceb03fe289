"""The positive score of every pair: low where an image and its caption have little to do with each other.

Source: the thesis, section 5.3.2 and Figure 5-5: s+ = f(x)^T g(v) at temperature 1, in [-1, 1], finds noisy pairs.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.data.dataset import fingerprint_of
from vldebias.data.parallel import prefetch
from vldebias.data.pictures import why_unreadable
from vldebias.data.store import Notes, Shard, ShardStore
from vldebias.data.suspects import Suspects
from vldebias.errors import InvalidInputError, need, warn
from vldebias.files import add_tensors, write_atomically
from vldebias.hosts.seam import reading
from vldebias.losses.checks import check_choice
from vldebias.metrics.detection import auroc, precision_among_lowest
from vldebias.progress import Progress
from vldebias.training.pairs import Pairs, PairSource
from vldebias.training.sampling import torch_generator

if TYPE_CHECKING:
    from PIL import Image

    from vldebias.hosts.towers import Tokens, Towers

SHARES = (0.01, 0.05, 0.1, 0.2)  # of the lowest scores

Prepare = Callable[["Image.Image"], Tensor]
Placed = tuple[Tensor, Tensor]
"""Rows (b,) of a data set and their pixels (b, 3, h, w)."""


def pair_features(towers: Towers, images: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Unit features (b, d) and (t, d) float32, in the model's mode and with gradients where these are on."""
    device, dtype = _place(towers.model)
    texts = towers.text({name: tensor.to(device) for name, tensor in tokens.items()})
    return normalize(towers.image(images.to(device, dtype)).float(), dim=-1), normalize(texts.float(), dim=-1)


def image_features(towers: Towers, images: Tensor) -> Tensor:
    """Unit features (b, d) float32 of images (b, 3, h, w), in eval mode without gradients; modes are put back."""
    device, dtype = _place(towers.model)
    with reading(towers.model):
        return normalize(towers.image(images.to(device, dtype)).float(), dim=-1)


def text_features(towers: Towers, texts: Sequence[str], batch_size: int) -> Tensor:
    """Unit features (n, d) float32 of n texts, `batch_size` at a time; otherwise as `image_features`."""
    device, _ = _place(towers.model)
    parts = []
    with reading(towers.model):
        for start in range(0, len(texts), batch_size):
            tokens = towers.tokenize(texts[start : start + batch_size])
            moved = {name: tensor.to(device) for name, tensor in tokens.items()}
            parts.append(normalize(towers.text(moved).float(), dim=-1))
    return torch.cat(parts)


def _place(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where the model is, and the precision that its layers read: norms around them may be kept in another."""
    layers = (module.weight for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear)))
    weights = [*layers, *model.parameters()]
    first = next((weight for weight in weights if weight.is_floating_point()), torch.zeros(()))
    return first.device, first.dtype


def pixel_batches(
    rows: Iterable[int],
    read: Callable[[int], Image.Image],
    prepare: Prepare,
    *,
    batch_size: int,
    workers: int,
    skipped: dict[int, str],
) -> Iterator[Placed]:
    """Batches of the rows that can be read, in their order; the others are put into `skipped`: row -> reason.

    workers: threads that read and prepare ahead; 0 does so between the batches. A fault of the machine and not of an
    image is raised (OSError).
    """

    def load(row: int) -> tuple[int, Tensor | str]:
        try:
            return row, prepare(read(row))
        except OSError as error:
            return row, why_unreadable(error)

    def readable() -> Iterator[tuple[int, Tensor]]:
        for row, pixels in prefetch(rows, load, workers, 2 * batch_size):
            if isinstance(pixels, str):
                skipped[row] = pixels
            else:
                yield row, pixels

    loaded = readable()
    while held := list(islice(loaded, batch_size)):
        yield torch.tensor([row for row, _ in held]), torch.stack([pixels for _, pixels in held])
        held.clear()  # or two batches would be in memory


def positive_scores(
    towers: Towers,
    pairs: PairSource,
    *,
    by: Literal["cosine", "softmax"] = "cosine",
    batch_size: int = 64,
    workers: int = 4,
    cache_dir: str | Path | None = None,
    shard_size: int = 4096,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Cosine of each image with its caption, (n,) in [-1, 1]; NaN where the image cannot be read, with a warning.

    The model computes in eval mode, without gradients, in the precision of its weights. Memory does not grow with n but
    for the n scores, and with "softmax" for the features, 2 d numbers a pair (as much is kept in `cache_dir`). Images
    are shown whole, by the preprocessing of evaluation, not augmented.

    Args:
        towers: from vldebias.hosts.towers.
        by: "cosine", or how surely image and caption pick each other, see `softmax_scores`, at the model's temperature.
        batch_size: pairs that go through the model at once.
        workers: threads that read and prepare images ahead of the model.
        cache_dir: keep scores here, so that a run that is stopped goes on from the last complete shard; another model,
            or other ids and captions, have a folder of their own. The pixels behind an id are not compared.
        shard_size: pairs in a shard: what a kill can cost.
        progress: where to show a bar; default: on stderr.

    Raises:
        InvalidInputError: pairs without captions, no image that can be read, features that are not finite.
    """
    if not pairs.items or not pairs.captions:
        raise InvalidInputError(f"{pairs.name}: expected pairs of an image and a caption to score, got none")
    check_choice("by", by, ("cosine", "softmax"))
    store = _store(towers, pairs, Path(cache_dir), shard_size, by) if cache_dir is not None else None
    places, kept = [torch.empty(0, dtype=torch.int64)], list[Tensor]()
    skipped: list[list[str]] = []
    with progress or Progress.on() as shown, shown.bar(f"{pairs.name}: positive scores", pairs.items) as bar:
        for index, start in enumerate(range(0, pairs.items, shard_size)):
            rows = range(start, min(start + shard_size, pairs.items))
            shard = None if store is None else store.read(index)
            if shard is None:
                shard = _shard(towers, pairs, rows, batch_size, workers, bar.advance, by)
                if store is not None:
                    store.write(index, shard)
            bar.to(rows.stop)
            places.append(shard.rows)
            kept.append(shard.features)
            skipped += shard.notes.skipped
    if not sum(map(len, kept)):
        raise InvalidInputError(f"{pairs.name}: none of {len(skipped)} images can be read, such as {skipped[0]}")
    if skipped:
        warn(
            f"{pairs.name}: {len(skipped)} of {pairs.image_count} images cannot be read and have no score, such as "
            f"{skipped[0]}"
        )
    rows_read = torch.cat(places)
    values = torch.cat([part for part in kept if len(part)])
    scores = np.full(pairs.items, np.nan, dtype=np.float32)
    if by == "softmax":
        images, texts = values.chunk(2, dim=1)
        codes, first = _numbered([pairs.captions[row] for row in rows_read.tolist()])
        of_image, once = _numbered(pairs.images[rows_read.numpy()].tolist())
        values = softmax_scores(images[once], texts[first], codes, of_image, t=towers.temperature)[:, None]
    scores[rows_read.numpy()] = values[:, 0].numpy()
    return scores


def _numbered(values: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """The number of each value (m,), as they come, and where each number comes first."""
    number = {value: k for k, value in enumerate(dict.fromkeys(values))}
    codes = torch.tensor([number[value] for value in values])
    return codes, torch.full((len(number),), len(codes)).scatter_reduce(0, codes, torch.arange(len(codes)), "amin")


def _shard(
    towers: Towers,
    pairs: PairSource,
    rows: range,
    batch_size: int,
    workers: int,
    advance: Callable[[int], None],
    by: str,
) -> Shard:
    """Cosines (b, 1) of some rows, or their features (b, 2 d)."""
    skipped: dict[int, str] = {}
    where, kept = [torch.empty(0, dtype=torch.int64)], list[Tensor]()
    own: dict[int, list[int]] = {}  # image -> its pairs
    for row in rows:
        own.setdefault(int(pairs.images[row]), []).append(row)
    of = {each[0]: each for each in own.values()}  # an image is read and goes through the model once
    batches = pixel_batches(of, pairs.read, towers.prepare, batch_size=batch_size, workers=workers, skipped=skipped)
    for firsts, images in batches:
        places = torch.tensor([row for first in firsts.tolist() for row in of[first]])
        times = torch.tensor([len(of[first]) for first in firsts.tolist()])
        captions = [pairs.captions[row] for row in places.tolist()]
        with reading(towers.model):
            shown = image_features(towers, images)
            features = shown.repeat_interleave(times.to(shown.device), 0), text_features(towers, captions, batch_size)
            cosines = (features[0] * features[1]).sum(dim=1).clamp(-1, 1).cpu()
        bad = (~cosines.isfinite()).nonzero().flatten().tolist()
        if bad:
            raise InvalidInputError(
                f"{pairs.name}: the features of {len(bad)} pairs, such as {pairs.ids[int(places[bad[0]])]!r}, are not "
                "finite; has training diverged? In half precision, try float32"
            )
        where.append(places)
        kept.append(cosines[:, None] if by == "cosine" else torch.cat(features, dim=1).cpu())
        advance(len(places))
    left_out = [[pairs.ids[row], reason] for row, reason in skipped.items()]
    return Shard(
        torch.cat(kept) if kept else torch.empty(0, 1), torch.cat(where), Notes(rows.start, len(rows), left_out)
    )


def _store(towers: Towers, pairs: PairSource, folder: Path, shard_size: int, by: str) -> ShardStore:
    """Where the scores of these pairs under this model are kept."""
    model = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(towers.model)).encode())
    model.update(str((towers.size, towers.mean, towers.std)).encode())
    add_tensors(model, ((name, one) for name, one in towers.model.state_dict().items() if isinstance(one, Tensor)))
    about = {
        "kind": "positive scores" if by == "cosine" else "features of pairs",
        "data": pairs.name,
        "pairs": fingerprint_of([*pairs.ids, *pairs.captions]),
        "model": model.hexdigest()[:24],
        "shard_size": shard_size,
    }
    readable = re.sub(r"[^\w.-]+", "-", pairs.name).strip("-.")
    digest = fingerprint_of([f"{name}={value}" for name, value in about.items()])[:20]
    return ShardStore(folder / f"scores-{readable}-{digest}", shard_size, about)


def softmax_scores(
    images: Tensor,
    texts: Tensor,
    codes: Tensor,
    shown: Tensor | None = None,
    *,
    t: float,
    compared: int = 10_000,
    block: int = 4096,
) -> Tensor:
    """How surely each image picks its caption, and its caption picks it: (n,) at most 0, low where they do not fit.

        (log softmax_j(<x_i, v_j> / t) + log softmax_i(<x_i, v_j> / t)) / 2  at j = codes[k], i = shown[k]

    A cosine alone is lower for unusual images and words whatever they stand with; here each is compared with all other
    captions and images, or of more than `compared` with so many drawn at random (and itself), in O(n compared d).
    Memory is O(n + block * compared). The captions that an image has beside are no others: several may fit.

    Args:
        images, texts: (l, d) and (m, d) of norm 1, each image and each different caption once.
        codes, shown: (n,) the caption and the image of each pair; default: pair k has image k.
        compared: most captions, and most images, that a pair is compared with.
        block: images whose similarities are held at once.
    """
    shown = torch.arange(len(images)) if shown is None else shown
    own = (images[shown] * texts[codes]).sum(1) / t
    drawn = torch_generator("compared pairs", len(images), len(texts))
    some = [torch.randperm(len(rows), generator=drawn)[:compared].sort().values for rows in (images, texts)]

    def elsewhere(rows: Tensor, others: Tensor, beside: Tensor | None = None) -> Tensor:
        parts = []
        for start in range(0, len(rows), block):
            logits = rows[start : start + block] @ others.T / t
            if beside is not None:
                near = (beside[0] >= start) & (beside[0] < start + block)
                logits[beside[0, near] - start, beside[1, near]] = -torch.inf
            parts.append(logits.logsumexp(1))
        return torch.cat(parts)

    def whole(total: Tensor, there: Tensor) -> Tensor:
        """With the pair itself, where it is not among those that were drawn."""
        return torch.where(there, total, torch.logaddexp(total, own))

    there = torch.isin(codes, some[1])
    of_text = whole(elsewhere(texts, images[some[0]])[codes], torch.isin(shown, some[0]))
    if len(images) == len(codes):
        return own - (whole(elsewhere(images, texts[some[1]]), there) + of_text) / 2
    beside = torch.stack([shown[there], torch.searchsorted(some[1], codes[there])])
    return own - (torch.logaddexp(elsewhere(images, texts[some[1]], beside)[shown], own) + of_text) / 2


@dataclass(frozen=True, eq=False)
class RankedPairs(Suspects):
    """Pairs from the lowest positive score, the most suspicious, to the highest.

    Attributes:
        wrong: (n,) bool, captions known to be another row's; None where nothing is known.
    """

    pairs: PairSource = field(kw_only=True)
    wrong: NDArray[np.bool_] | None = field(kw_only=True)

    def original(self, row: int) -> str:
        """What the source says of a row before any noise; "" where that is not known."""
        return self.pairs.own.captions[row] if isinstance(self.pairs, Pairs) else ""


def rank_pairs(pairs: PairSource, scores: NDArray[Any] | Tensor, wrong: NDArray[np.bool_] | None = None) -> RankedPairs:
    """Pairs in the order of suspicion. The truth is known of `Pairs` with noise that changed something.

    wrong: (n,) where somebody has looked; default: what the noise says.
    """
    values = scores.detach().cpu().float().numpy() if isinstance(scores, Tensor) else np.asarray(scores)
    if wrong is None:
        wrong = pairs.wrong if isinstance(pairs, Pairs) and pairs.wrong.any() else None
    elif wrong.shape != values.shape:
        raise InvalidInputError(f"wrong: expected one per row, ({pairs.items},), got {wrong.shape}")
    pictures: dict[str, Any] = {"read": pairs.read} | ({} if pairs.path is None else {"path": pairs.path})
    return RankedPairs.by(values, pairs.ids, **pictures, pairs=pairs, wrong=wrong)


def write_table(path: str | Path, ranked: RankedPairs) -> Path:
    """A csv, the most suspicious pair first: rank, percentile, score, id, caption, wrong, original, path.

    wrong (yes, no) and original, the caption before noise, are empty where nothing is known; rank, percentile and score
    of pairs whose image cannot be read, which come last.
    """
    pairs, wrong = ranked.pairs, ranked.wrong
    return ranked.write(
        path,
        {
            "caption": lambda row: pairs.captions[row],
            "wrong": lambda row: "" if wrong is None else "yes" if wrong[row] else "no",
            "original": lambda row: "" if wrong is None else ranked.original(row),
        },
    )


def write_kept(path: str | Path, ranked: RankedPairs, share: float) -> Path:
    """A parquet file that `vldebias train --data` and `datasets` read, of the share of pairs with the highest scores.

    Columns: image, caption, id, score; where images have several captions, a row is an image, with lists of those kept
    and of their scores. Images that are files are named, not copied; others are put in, as PNG. Pairs whose image
    cannot be read are left out.
    """
    datasets, pa, pq = need("datasets"), need("pyarrow"), need("pyarrow.parquet")

    if Path(path).suffix != ".parquet":
        raise InvalidInputError(f"{path}: expected a name that ends in .parquet")
    pairs, rows = ranked.pairs, ranked.kept(share)
    text = datasets.Value("string")
    kinds = {"caption": text, "score": datasets.Value("float32")}
    if pairs.several:
        kinds = {name: datasets.Sequence(kind) for name, kind in kinds.items()}
    columns = {"image": datasets.Image(), "caption": kinds["caption"], "id": text, "score": kinds["score"]}
    schema = datasets.Features(columns).arrow_schema
    groups = np.split(rows, np.flatnonzero(np.diff(pairs.images[rows])) + 1) if len(rows) else []

    def cell(row: int) -> dict[str, Any]:
        if where := ranked.path(row):
            return {"bytes": None, "path": where}
        file = io.BytesIO()
        pairs.read(row).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": None}

    def write(partial: Path) -> None:
        with pq.ParquetWriter(partial, schema) as writer:
            for start in range(0, len(groups), 1000):
                part = [group.tolist() for group in groups[start : start + 1000]]
                table: dict[str, list[Any]] = {
                    "image": [cell(group[0]) for group in part],
                    "caption": [[pairs.captions[row] for row in group] for group in part],
                    "id": [pairs.ids[group[0]] for group in part],
                    "score": [[float(ranked.scores[row]) for row in group] for group in part],
                }
                if not pairs.several:
                    table |= {name: [values[0] for values in table[name]] for name in kinds}
                writer.write_table(pa.Table.from_pydict(table, schema))

    return write_atomically(path, write)


def detection(ranked: RankedPairs, *, resamples: int = 2000, seed: int = 0) -> dict[str, Any]:
    """How well low scores find wrong captions, with intervals; for JSON.

    Keys: pairs and scored (numbers), wrong (share among the scored), auroc, and precision at shares of the lowest
    scores: {"0.05": {...}, ...}.
    """
    if ranked.wrong is None:
        raise InvalidInputError(f"{ranked.pairs.name}: expected pairs with noise; no caption is known to be wrong")
    scores, wrong = ranked.scores[ranked.order], ranked.wrong[ranked.order]
    how: dict[str, Any] = {"resamples": resamples, "seed": seed}
    return {
        "pairs": ranked.pairs.items,
        "scored": len(scores),
        "wrong": float(wrong.mean()),
        "auroc": auroc(scores, wrong, **how).to_dict(),
        "precision": {f"{s:g}": precision_among_lowest(scores, wrong, s, **how).to_dict() for s in SHARES},
    }

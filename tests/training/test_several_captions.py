"""Images with several captions: each caption in its turn, the same however it is read, and each scored by itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny_towers import prepare, tiny_image, tiny_towers
from tiny_towers import tokenize as letters
from torch import Tensor
from training_parts import Stream, image_data, jittered, number_of, plain, same, take, tokenize

from eval.experiments.tensor_batches import TensorBatches
from vldebias.data import ImageData, Labels
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.losses import debiased_contrastive
from vldebias.progress import SILENT
from vldebias.training.batches import Batch, MapBatches
from vldebias.training.loop import make_accelerator
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.pairs import Pairs, PairSource, open_images, said_wrong
from vldebias.training.passes import Passes, Precision
from vldebias.training.run import train_model
from vldebias.training.sampling import turns
from vldebias.training.scores import positive_scores, rank_pairs, softmax_scores, write_kept
from vldebias.training.settings import LoopSettings, LossSettings, load_settings
from vldebias.training.stream import StreamBatches

N, MOST = 12, 4
COUNTS = [1 + i % MOST for i in range(N)]  # captions of each image


def beside(counts: Sequence[int] = COUNTS) -> tuple[tuple[str, ...], ...]:
    """Captions beside the first, which is "a photo of I": 100 k + i is the k-th of image i."""
    return tuple(tuple(f"another of {100 * k + i}" for k in range(1, count)) for i, count in enumerate(counts))


def data(**options: Any) -> ImageData:
    return replace(image_data(N, **options), more_captions=beside())


def from_map(**options: Any) -> MapBatches:
    settings: dict[str, Any] = {"augment": jittered, "batch_size": 4, "tokenize": tokenize, "seed": 1, **options}
    return MapBatches(PairSource.of(data(), label="kind"), **settings)


def from_stream(**options: Any) -> StreamBatches:
    stream = Stream(N, shards=options.pop("shards", 1), more=dict(enumerate(beside())))
    settings: dict[str, Any] = {"batch_size": 4, "tokenize": tokenize, "seed": 1, "buffer": 6, "label": "kind"}
    return StreamBatches(stream, options.pop("augment", jittered), **{**settings, **options})


def said(batch: Batch) -> list[int]:
    return [int(number) for number in batch.texts["input_ids"][:, 0]]


def further(batch: Batch) -> list[list[int]]:
    numbers: list[list[int]] = batch.further_texts["input_ids"][..., 0].tolist()
    return numbers


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 5), st.integers(0, 50), st.integers(0, 2**41))
def test_turns_go_around_and_others_are_others(count: int, more: int, seed: int, epoch: int, image: int) -> None:
    epochs = [turns(count, more, seed, epoch + k, image) for k in range(count)]
    assert sorted(first for first, *_ in epochs) == list(range(count))
    for first, *others in epochs:
        assert len(others) == more
        assert count == 1 or first not in others
        assert len(set(others)) == min(more, max(1, count - 1))
    assert epochs[0] == turns(count, more, seed, epoch, image)


def test_images_begin_at_captions_of_their_own() -> None:
    begin = Counter(turns(4, 0, 0, 0, image)[0] for image in range(800))
    assert max(abs(begin[k] - 200) for k in range(4)) < 4 * (800 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize("make", [from_map, from_stream])
def test_every_caption_is_learned_once_in_as_many_epochs_as_the_image_has(make: Any) -> None:
    found = take(make(augment=plain), 0, 3 * 12)  # 12 epochs: 1, 2, 3 and 4 divide them
    seen = Counter(
        (number_of(image), text) for batch in found for image, text in zip(batch.images, said(batch), strict=True)
    )
    assert seen == {(i, 100 * k + i): 12 // count for i, count in enumerate(COUNTS) for k in range(count)}
    for batch in found:
        assert batch.labels is not None
        assert batch.labels.tolist() == [number_of(image) % 3 for image in batch.images]
        assert batch.further_texts == {}


@pytest.mark.parametrize("make", [from_map, from_stream])
def test_batches_are_functions_of_their_number(make: Any) -> None:
    whole = take(make(further=2), 0, 14)
    for first, workers in ((0, 2), (4, 0), (11, 2)):
        found = take(make(further=2, workers=workers), first, 3)
        assert all(same(here, there) for here, there in zip(found, whole[first:], strict=False))


def test_processes_share_the_batch_of_one() -> None:
    alone = from_map(batch_size=6)
    shares = [from_map(batch_size=3, rank=rank, world=2) for rank in range(2)]
    for number in range(6):
        parts = [take(share, number, 1)[0] for share in shares]
        assert [text for part in parts for text in said(part)] == said(take(alone, number, 1)[0])


def test_a_stream_goes_on_at_its_place() -> None:
    source = from_stream(shards=2, noise=0.5)
    whole, places = [], []
    with closing(source.starting(0)) as coming:
        for number in range(14):
            places.append(source.place(number))
            whole.append(next(coming))
    for first in range(0, 12, 3):
        with closing(from_stream(shards=2, noise=0.5).starting(first, places[first])) as going:
            assert same(next(going), whole[first])


@pytest.mark.parametrize("make", [from_map, from_stream])
def test_further_captions_are_others_of_the_same_image(make: Any) -> None:
    for batch in take(make(augment=plain, further=3), 0, 12):
        assert batch.further is not None
        assert batch.further.shape[:2] == (4, 3)
        for image, own, others in zip(batch.images, said(batch), further(batch), strict=True):
            i = number_of(image)
            captions = {100 * k + i for k in range(COUNTS[i])}
            rest = captions - {own} or {own}
            assert set(others) <= rest
            assert len(set(others)) == min(3, len(rest))


@pytest.mark.parametrize("options", [{}, {"further": 2}, {"two_views": True}])
def test_lists_of_one_give_the_batches_of_plain_captions(options: dict[str, Any]) -> None:
    lists = replace(image_data(N), more_captions=((),) * N)
    made = [
        MapBatches(PairSource.of(d), jittered, batch_size=4, tokenize=tokenize, **options)
        for d in (image_data(N), lists)
    ]
    one, other = (take(source, 0, 7) for source in made)
    for here, there in zip(one, other, strict=True):
        assert same(here, replace(there, further_texts={}))
        assert bool(there.further_texts) == ("further" in options)


def test_rows_without_any_caption_are_left_out_and_the_others_become_pairs() -> None:
    odd = replace(data(), captions=("", *data().captions[1:]))
    with pytest.warns(VldebiasWarning, match="own: 1 of 12 rows .8%. have no caption and are left out, such as id0"):
        pairs = PairSource.of(odd, label="kind")
    assert (pairs.items, pairs.image_count) == (sum(COUNTS) - 1, N - 1)
    assert pairs.ids[:5] == ("id1", "id1", "id2", "id2", "id2")
    assert pairs.captions[:3] == ("a photo of 1", "another of 101", "a photo of 2")
    assert pairs.images[:5].tolist() == [0, 0, 1, 1, 1]
    assert [number_of(plain(pairs.read(row))) for row in range(5)] == [1, 1, 2, 2, 2]
    assert pairs.labels is not None
    assert pairs.labels.codes[:5].tolist() == [1, 1, 2, 2, 2]


def test_noise_replaces_captions_one_by_one_and_another_of_the_same_image_is_right() -> None:
    source = PairSource.of(replace(image_data(2), more_captions=(tuple(f"x {k}" for k in range(300)), ())))
    pairs = Pairs.with_mixture_noise(source, 1.0, seed=0)
    assert sum(here != there for here, there in zip(pairs.captions, source.captions, strict=True)) > 290
    strangers = [i for i, text in enumerate(pairs.captions) if (text == "a photo of 1") != (pairs.images[i] == 1)]
    assert pairs.wrong.nonzero()[0].tolist() == strangers
    labels = Labels.of(["yes", "no"])
    assert said_wrong(replace(image_data(2), labels={"bad": labels}), pairs, "bad").tolist() == [True] * 301 + [False]


def test_the_captions_of_an_image_are_in_one_fold() -> None:
    pairs = Pairs.clean(PairSource.of(data()))
    fold = pairs.in_folds(3, 0)
    assert sorted(Counter(fold[np.unique(pairs.images, return_index=True)[1]].tolist()).values()) == [4, 4, 4]
    assert all(len(set(fold[pairs.images == image].tolist())) == 1 for image in range(N))
    rest = pairs.taken(np.flatnonzero(fold != 0))
    assert (rest.image_count, rest.own.image_count) == (8, 8)
    assert rest.images.max() == 7


# ---- scores ------------------------------------------------------------------------------------------------


def shown(n: int = 7, broken: Sequence[int] = (), reads: list[int] | None = None) -> PairSource:
    """Images with 1, 2, 3, 1, ... captions, some of which stand at two images."""

    def read(i: int) -> Image.Image:
        if reads is not None:
            reads.append(i)
        if i in broken:
            raise OSError("truncated")
        return tiny_image(i)

    more = tuple(tuple(f"more {(i + k) % 5}" for k in range(i % 3)) for i in range(n))
    captions = tuple(f"caption {i}" for i in range(n))
    ids = tuple(f"id{i}" for i in range(n))
    return PairSource.of(ImageData("made", "train", ids, read, {}, "f", captions, more_captions=more))


@pytest.mark.parametrize("by", ["cosine", "softmax"])
@pytest.mark.parametrize("shard_size", [3, 100])
def test_each_caption_is_scored_and_each_image_read_once(by: Any, shard_size: int, tmp_path: Path) -> None:
    reads: list[int] = []
    towers, pairs = tiny_towers(), shown(broken=(2,), reads=reads)
    towers.temperature = 0.3
    how: dict[str, Any] = {"by": by, "progress": SILENT, "batch_size": 2, "shard_size": shard_size}
    with pytest.warns(VldebiasWarning, match=r"made: \d of 7 images cannot be read"):
        found = positive_scores(towers, pairs, **how)
    if shard_size == 100:
        assert sorted(reads) == list(range(7))
    assert np.flatnonzero(np.isnan(found)).tolist() == np.flatnonzero(pairs.images == 2).tolist()
    rows = np.flatnonzero(pairs.images != 2)
    towers.model.eval()
    with torch.no_grad():
        images = torch.cat([towers.image(prepare(pairs.read(int(row)))[None]) for row in rows]).double()
        texts = torch.cat([towers.text(letters([pairs.captions[row]])) for row in rows]).double()
    images, texts = (x / x.norm(dim=1, keepdim=True) for x in (images, texts))
    expected = (images * texts).sum(1).tolist()
    if by == "softmax":
        expected = [by_hand(pairs, rows, images, texts, k, 0.3) for k in range(len(rows))]
    assert found[rows] == pytest.approx(expected, abs=1e-5)


def by_hand(pairs: PairSource, rows: Any, images: Tensor, texts: Tensor, k: int, t: float) -> float:
    """The score of the k-th row: its caption beside those of other images, its image beside every other image."""
    own = {pairs.captions[row] for row in rows if pairs.images[row] == pairs.images[rows[k]]}
    other = {pairs.captions[row]: texts[j] for j, row in enumerate(rows) if pairs.captions[row] not in own}
    every = {int(pairs.images[row]): images[j] for j, row in enumerate(rows)}
    logit = images[k] @ texts[k] / t
    of_image = torch.stack([logit, *(images[k] @ text / t for text in other.values())]).logsumexp(0)
    of_text = torch.stack([image @ texts[k] / t for image in every.values()]).logsumexp(0)
    return float(logit - (of_image + of_text) / 2)


def test_drawn_captions_of_the_image_itself_do_not_count_either() -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = (torch.nn.functional.normalize(torch.randn(n, 5, generator=generator), dim=1) for n in (2, 30))
    codes, of = torch.arange(30), torch.arange(30) // 15
    found = softmax_scores(images, texts, codes, of, t=0.2, compared=1000, block=1)
    alone = softmax_scores(images, texts, codes, of, t=0.2, compared=1, block=1)
    assert torch.isfinite(found).all()
    assert torch.isfinite(alone).all()
    assert (alone >= found - 1e-6).all(), "fewer others leave more to the pair"


def test_what_is_kept_is_learned_again_with_lists(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    pairs = shown()
    scores = np.linspace(1, 0, pairs.items)
    scores[0] = -1  # the only caption of its image
    path = write_kept(tmp_path / "clean.parquet", rank_pairs(pairs, scores), 10 / pairs.items)
    opened = open_images(load_settings(data=str(path)))
    assert isinstance(opened, ImageData)
    kept = PairSource.of(opened)
    assert kept.captions == pairs.captions[1:11]
    assert kept.images.tolist() == (pairs.images[1:11] - 1).tolist()
    assert kept.read(1).tobytes() == tiny_image(1).tobytes()


# ---- the loss, and a run -----------------------------------------------------------------------------------


def test_further_captions_are_the_positives_of_the_images_and_views_those_of_the_texts() -> None:
    b, m, pixels = 4, 2, torch.rand(12, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    texts = letters([f"number {i}" for i in range(b)])
    others = letters([f"other {i}" for i in range(b * m)])
    batch = TensorBatches(pixels, [f"number {i}" for i in range(12)], tokenize=letters, batch_size=b).batch(0)
    batch = replace(batch, texts=texts, further=pixels[4:12].unflatten(0, (b, m)))
    batch = replace(batch, further_texts={name: tokens.unflatten(0, (b, m)) for name, tokens in others.items()})
    settings = LossSettings(loss="debiased", positives=m)
    trainee = Trainee(tiny_towers(), build_objective(settings, temperature=0.3, items=12)).eval()
    features = trainee(batch, features=True)
    assert features["further_texts"].shape == features["positives"].shape == (b, m, 6)
    first = trainee.text_features({name: tokens[::m] for name, tokens in others.items()})
    torch.testing.assert_close(features["further_texts"][:, 0], torch.nn.functional.normalize(first, dim=1))
    x, y, v, w = (features[name] for name in ("first", "second", "further_texts", "positives"))
    settings_of: dict[str, Any] = {"temperature": 0.3, "tau_plus": 0.1, "reduction": "none", "floor": 0.0}
    one, other = (debiased_contrastive(x, y, side, **settings_of) for side in (v, w))
    swapped = debiased_contrastive(x, y, (w, v), **settings_of)
    mixed = debiased_contrastive(x, y, (v, w), **settings_of)
    torch.testing.assert_close(mixed + swapped, one + other)  # each side reads its own alone
    assert not torch.allclose(mixed, swapped)
    for i in range(b):
        out = [j for j in range(b) if j != i]
        each = []
        for a, own, negatives in ((x[i], v[i], y[out]), (y[i], w[i], x[out])):
            plus, k = (x[i] @ y[i] / 0.3).exp(), len(out)
            g = ((negatives @ a / 0.3).exp().mean() - 0.1 * (own @ a / 0.3).exp().mean()) / 0.9
            each.append(-(plus / (plus + k * g.clamp(min=0))).log())
        torch.testing.assert_close(mixed[i], sum(each) / 2)
    with pytest.raises(InvalidInputError, match=r"positives: expected two of the same M, or one for both directions"):
        debiased_contrastive(x, y, (v, w[:, :1]), temperature=0.3)


def test_with_all_negatives_the_gradient_is_that_of_one_large_batch() -> None:
    def batches(size: int) -> MapBatches:
        options: dict[str, Any] = {"batch_size": size, "tokenize": letters, "further": 2}
        return MapBatches(shown(12), lambda image, _: prepare(image).double(), **options)

    chosen = LossSettings(loss="debiased", positives=2)
    made = [Trainee(tiny_towers(), build_objective(chosen, temperature=0.3, items=12)).double().eval() for _ in "ab"]
    whole = made[0](take(batches(12), 0, 1)[0])
    whole.backward()
    accelerator = make_accelerator(cpu=True)
    settings = LoopSettings(steps=1, batch_size=4, accumulation=3, negatives="step")
    passes = Passes(accelerator, made[1], made[1], settings, Precision("no", accelerator.device))
    assert float(passes(0, take(batches(4), 0, 3))) == pytest.approx(float(whole.detach()))
    for one, other in zip(made[0].parameters(), made[1].parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)


def saved(folder: Path, n: int = 24) -> Path:
    """A data set on the disk whose rows have lists of captions."""
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)) for _ in range(n)]
    captions = [[f"a photo of robin {i} {'in the rain ' * k}." for k in range(i % 3)] for i in range(n)]
    features = datasets.Features(image=datasets.Image(), captions=datasets.Sequence(datasets.Value("string")))
    made = datasets.Dataset.from_dict({"image": images, "captions": captions}, features=features)
    made.save_to_disk(str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:own")
@pytest.mark.parametrize("streaming", [False, True])
def test_a_run_learns_from_lists(streaming: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"data": str(saved(tmp_path / "own")), "streaming": streaming, "steps": 2, "batch_size": 4}
    settings = load_settings(loss="debiased", positives=2, workers=0, **given)
    outcome = train_model(settings, tmp_path / "run", cpu=True)
    assert outcome is not None
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert all(np.isfinite(entry["loss"]) for entry in history)
    if not streaming:
        lines = (tmp_path / "run" / "pairs.csv").read_text().splitlines()
        assert len(lines) == 1 + 8 * 1 + 8 * 2, "every caption has a score"

"""Batches of a stream: every row once an epoch, the same for any number of processes, from any number on."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_parts import NAMES, Stream, caption, image_data, jittered, number_of, plain, tokenize

from vldebias.data import open_data
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.training.batch import Batch
from vldebias.training.stream import StreamBatches
from vldebias.training.stream_order import shuffled

N, PER_EPOCH = 23, 5


def batches(stream: Stream | None = None, **options: Any) -> StreamBatches:
    settings: dict[str, Any] = {"batch_size": 4, "tokenize": tokenize, "seed": 1, "buffer": 6, "label": "kind"}
    return StreamBatches(stream or Stream(N), options.pop("augment", jittered), **{**settings, **options})


def take(source: StreamBatches, first: int, n: int) -> list[Batch]:
    with closing(source.starting(first)) as coming:  # type: ignore[type-var]
        return list(islice(coming, n))


def rows_of(found: list[Batch]) -> list[int]:
    return torch.cat([batch.index for batch in found]).tolist()  # type: ignore[misc]


def same(one: Batch, other: Batch) -> bool:
    parts = [(one.images, other.images), (one.index, other.index), (one.views, other.views)]
    parts += [(one.labels, other.labels), *((one.texts[k], other.texts[k]) for k in one.texts)]
    return all(a is b is None or torch.equal(a, b) for a, b in parts)  # type: ignore[arg-type]


@given(st.integers(0, 40), st.integers(1, 50), st.integers(0, 3))
def test_shuffling_keeps_every_item_and_looks_no_further_than_its_buffer(n: int, buffer: int, seed: int) -> None:
    found = list(shuffled(range(n), buffer, np.random.default_rng(seed)))
    assert sorted(found) == list(range(n))
    assert all(item < place + 1 + buffer for place, item in enumerate(found))


def test_a_buffer_that_holds_all_shuffles_evenly() -> None:
    first = Counter(next(shuffled(range(5), 5, np.random.default_rng(seed))) for seed in range(2000))
    assert max(abs(first[k] - 400) for k in range(5)) < 4 * (2000 * 0.2 * 0.8) ** 0.5


def test_a_batch_is_rows_of_the_stream() -> None:
    source = batches(augment=plain)
    assert (source.items, source.per_epoch) == (None, None)
    found = take(source, 0, 2 * PER_EPOCH)
    for batch in found:
        assert batch.index is not None
        assert batch.labels is not None
        rows = batch.index.tolist()
        assert [number_of(image) for image in batch.images] == rows
        assert batch.texts["input_ids"].tolist() == [[row, len(caption(row))] for row in rows]
        assert batch.labels.tolist() == [row % 3 for row in rows]
    epochs = rows_of(found[:PER_EPOCH]), rows_of(found[PER_EPOCH:])
    assert [len(set(epoch)) for epoch in epochs] == [20, 20]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("two_views", [False, True])
def test_batches_are_functions_of_their_number(workers: int, two_views: bool) -> None:
    whole = take(batches(two_views=two_views, noise=0.5), 0, 4 * PER_EPOCH)
    for first in (0, 3, PER_EPOCH, 2 * PER_EPOCH + 1, 3 * PER_EPOCH + 2):
        found = take(batches(two_views=two_views, noise=0.5, workers=workers), first, 3)
        assert all(same(here, there) for here, there in zip(found, whole[first : first + 3], strict=True))
    again = batches(two_views=two_views, noise=0.5)
    take(again, 0, PER_EPOCH + 1)  # knows how long an epoch is
    assert all(same(a, b) for a, b in zip(take(again, 11, 3), whole[11:14], strict=True))


def test_going_on_decodes_nothing_that_is_passed_over() -> None:
    stream = Stream(N)
    take(batches(stream), 3 * PER_EPOCH + 2, 1)
    assert len(stream.decoded) == 4
    assert stream.passed <= 2 * N  # one pass to learn the length, then straight to the fourth epoch
    source = batches(stream)
    take(source, 0, PER_EPOCH + 1)
    stream.passed = 0
    take(source, 100 * PER_EPOCH, 1)
    assert stream.passed <= N


@pytest.mark.parametrize("options", [{}, {"noise": 0.5}, {"two_views": True}, {"workers": 2}])
def test_processes_share_the_batch_of_one(options: dict[str, Any]) -> None:
    alone = take(batches(batch_size=8, **options), 0, 7)
    streams = [Stream(N), Stream(N)]
    shares = [take(batches(streams[rank], rank=rank, world=2, **options), 0, 7) for rank in range(2)]
    for whole, *parts in zip(alone, *shares, strict=True):
        assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
        assert torch.equal(torch.cat([part.index for part in parts]), whole.index)  # type: ignore[misc,arg-type]
        for name, texts in whole.texts.items():
            assert torch.equal(torch.cat([part.texts[name] for part in parts]), texts)
    if not options:
        assert [len(stream.decoded) for stream in streams] == [28, 28]  # its own share alone


def test_two_views_differ_and_have_no_texts() -> None:
    batch = take(batches(Stream(N, without_caption=range(N)), two_views=True), 0, 1)[0]
    assert batch.views is not None
    assert batch.texts == {}
    assert not torch.equal(batch.images, batch.views)


def test_rows_without_a_caption_are_passed_over() -> None:
    source = batches(Stream(N, without_caption=(1, 4, 7)), batch_size=20)
    assert sorted(rows_of(take(source, 0, 1))) == [i for i in range(N) if i not in (1, 4, 7)]


def test_captions_may_be_made_from_the_label() -> None:
    def of_class(captions: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[NAMES.index(text.removeprefix("a "))] for text in captions])}

    batch = take(batches(caption_template="a {}", tokenize=of_class), 0, 1)[0]
    assert batch.labels is not None
    assert batch.texts["input_ids"][:, 0].tolist() == batch.labels.tolist()


def test_noise_draws_captions_from_the_block_of_the_row_and_the_same_in_every_epoch() -> None:
    n, buffer = 600, 100
    source = batches(Stream(n), noise=0.6, buffer=buffer, batch_size=n, augment=plain)
    told = []
    for batch in take(source, 0, 2):
        assert batch.index is not None
        drawn = batch.texts["input_ids"][:, 0]
        assert (drawn // buffer == batch.index // buffer).all()
        told.append(dict(zip(batch.index.tolist(), drawn.tolist(), strict=True)))
    assert told[0] == told[1]
    blocks = {tuple(told[0][row] % buffer for row in range(first, first + buffer)) for first in range(0, n, buffer)}
    assert len(blocks) == n // buffer  # each has noise of its own
    wrong = sum(row != drawn for row, drawn in told[0].items())
    assert abs(wrong - n * 0.6 * 0.99) < 4 * (n * 0.6 * 0.4) ** 0.5
    other = take(batches(Stream(n), noise=0.6, buffer=buffer, batch_size=n, augment=plain, seed=2), 0, 1)[0]
    assert dict(zip(rows_of([other]), other.texts["input_ids"][:, 0].tolist(), strict=True)) != told[0]


def test_a_broken_image_stops_training_where_asked() -> None:
    with pytest.raises(InvalidInputError, match=r"the image of 'id5' cannot be read: broken 5\. Mend it"):
        take(batches(Stream(N, broken=(5,)), batch_size=20, on_error="raise"), 0, 2)


@pytest.mark.filterwarnings("ignore:stream. the image of")  # the first one is told at once
@pytest.mark.parametrize("workers", [0, 2])
def test_another_row_of_the_batch_takes_the_place_of_a_broken_one(workers: int) -> None:
    broken = (2, 5, 11)
    source = batches(Stream(N, broken=broken), augment=plain, workers=workers)
    with pytest.warns(VldebiasWarning, match="stream: 3 images could not be read and were replaced, such as id"):
        found = take(source, 0, 2 * PER_EPOCH)
    assert set(source.unreadable.reasons) == {f"id{i}" for i in broken}
    for batch, original in zip(found, take(batches(augment=plain), 0, 2 * PER_EPOCH), strict=True):
        assert batch.index is not None
        assert original.index is not None
        assert [number_of(image) for image in batch.images] == batch.index.tolist()
        assert not set(batch.index.tolist()) & set(broken)
        assert set(batch.index.tolist()) <= set(original.index.tolist())


def test_what_does_not_fit_says_why() -> None:
    with pytest.raises(InvalidInputError, match="the stream has 23 rows, fewer than the 24 of one batch of all"):
        take(batches(batch_size=12, rank=0, world=2), 0, 1)
    with pytest.raises(InvalidInputError, match=r"no row of the stream has a caption\. Name their column"):
        take(batches(Stream(N, without_caption=range(N))), 0, 1)
    with pytest.raises(InvalidInputError, match=r"the classes of 'race' must be known .* Known are \['kind'\]"):
        batches(label="race")
    with pytest.raises(InvalidInputError, match="expected tokenize, or two_views=True"):
        batches(tokenize=None)
    with pytest.raises(InvalidInputError, match="caption_template needs label"):
        batches(label=None, caption_template="a {}")
    with pytest.raises(InvalidInputError, match="rank < world, got 4, 6, 2, 1, 1"):
        batches(rank=1, world=1)
    with pytest.raises(InvalidInputError, match="batch_size, buffer and prefetch of at least 1"):
        batches(buffer=0)
    with pytest.raises(InvalidInputError, match=r"noise: expected a rate in \[0, 1\], got 2"):
        batches(noise=2)


def test_a_hugging_face_stream_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    data = image_data(6)
    columns = {"image": [data.read(i) for i in range(6)], "text": list(data.captions)}
    features = datasets.Features(image=datasets.Image(), text=datasets.Value("string"))
    (tmp_path / "own").mkdir()
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "own/train.parquet"))
    stream = open_data("huggingface", tmp_path / "own", "train", caption="auto", streaming=True)
    batch = take(batches(stream, batch_size=6, label=None, augment=plain, workers=2), 1, 1)[0]  # type: ignore[arg-type]
    assert [number_of(image) for image in batch.images] == rows_of([batch])
    assert batch.texts["input_ids"][:, 0].tolist() == rows_of([batch])

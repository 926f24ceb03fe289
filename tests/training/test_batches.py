"""Batches by their number: with and without workers, broken images included."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from training_parts import caption, image_data, jittered, number_of, plain, same, take, tokenize

from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.training.batches import MapBatches, Unreadable
from vldebias.training.pairs import Pairs, PairSource
from vldebias.training.settings import load_settings

N = 23
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine with fewer cores


def batches(broken: tuple[int, ...] = (), **options: Any) -> MapBatches:
    pairs = PairSource.of(image_data(N, broken=broken), label="kind")
    settings: dict[str, Any] = {"augment": jittered, "batch_size": 4, "tokenize": tokenize, "seed": 1, **options}
    return MapBatches(pairs, **settings)


def test_a_batch_is_rows_of_the_data() -> None:
    source = batches(augment=plain)
    assert (source.items, source.per_epoch) == (N, 5)
    seen = []
    for batch in take(source, 0, 5):
        assert batch.index is not None
        assert batch.labels is not None
        rows = batch.index.tolist()
        assert [number_of(image) for image in batch.images] == rows
        assert batch.texts["input_ids"].tolist() == [[row, len(caption(row))] for row in rows]
        assert batch.labels.tolist() == [row % 3 for row in rows]
        assert batch.views is None
        seen += rows
    assert len(set(seen)) == 20


@pytest.mark.parametrize("two_views", [False, True])
def test_workers_change_nothing(two_views: bool) -> None:
    whole = take(batches(two_views=two_views), 0, 12)
    for workers, first in ((0, 3), (1, 0), (2, 7)):
        state = torch.random.get_rng_state()
        found = take(batches(two_views=two_views, workers=workers), first, 5)
        assert all(same(here, there) for here, there in zip(found, whole[first : first + 5], strict=True))
        assert torch.equal(state, torch.random.get_rng_state())  # the loop's own randomness is left alone


@pytest.mark.parametrize("two_views", [False, True])
def test_processes_share_the_batch_of_one(two_views: bool) -> None:
    alone = batches(batch_size=8, two_views=two_views)
    shares = [batches(rank=rank, world=2, two_views=two_views) for rank in range(2)]
    for number in (0, 1, 5):
        parts = [take(share, number, 1)[0] for share in shares]
        whole = take(alone, number, 1)[0]
        assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
        assert torch.equal(torch.cat([part.index for part in parts]), whole.index)  # type: ignore[misc,arg-type]


def test_an_image_is_augmented_anew_in_every_epoch_and_view() -> None:
    source = batches(two_views=True)
    shifts: dict[int, set[float]] = {}
    for batch in take(source, 0, 15):
        assert batch.index is not None
        assert batch.views is not None
        assert batch.texts == {}
        for row, image, view in zip(batch.index.tolist(), batch.images, batch.views, strict=True):
            shifts.setdefault(row, set()).update((float(image[2, 0, 0]), float(view[2, 0, 0])))
    assert all(len(found) % 2 == 0 for found in shifts.values())
    assert max(len(found) for found in shifts.values()) == 6


def test_noise_reaches_the_texts() -> None:
    pairs = Pairs.with_mixture_noise(PairSource.of(image_data(N)), 1.0, seed=0)
    batch = take(MapBatches(pairs, plain, batch_size=20, tokenize=tokenize), 0, 1)[0]
    assert batch.index is not None
    assert batch.texts["input_ids"][:, 0].tolist() == [int(pairs.captions[i].split()[-1]) for i in batch.index.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_stops_training_where_asked(workers: int) -> None:
    with pytest.raises(InvalidInputError, match=r"^the image of 'id5' cannot be read: broken 5\. Mend it, or"):
        take(batches(broken=(5,), on_error="raise", workers=workers), 0, 5)


@pytest.mark.parametrize("workers", [0, 2])
def test_another_row_takes_the_place_of_a_broken_one(workers: int) -> None:
    broken = (2, 5, 11)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = batches(broken=broken, augment=plain, workers=workers)
        found = take(source, 0, 20)
    told = [str(one.message) for one in caught if issubclass(one.category, VldebiasWarning)]
    assert len(told) == 2
    assert "own: the image of 'id" in told[0]
    assert "another row takes its place" in told[0]
    assert "own: 3 images could not be read and were replaced, such as id" in told[1]
    assert source.unreadable.reasons == {f"id{i}": f"broken {i}" for i in broken}
    whole = take(batches(augment=plain), 0, 20)
    replaced = 0
    for batch, original in zip(found, whole, strict=True):
        assert batch.index is not None
        assert original.index is not None
        assert [number_of(image) for image in batch.images] == batch.index.tolist()
        assert batch.texts["input_ids"][:, 0].tolist() == batch.index.tolist()
        assert not set(batch.index.tolist()) & set(broken)
        moved = batch.index != original.index
        assert set(original.index[moved].tolist()) <= set(broken)
        replaced += int(moved.sum())
    assert replaced > 5


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_a_row_stands_at_most_once_in_a_batch_whatever_is_broken() -> None:
    for batch in take(batches(broken=(2, 5, 9, 11)), 0, 40):
        assert batch.index is not None
        assert len(set(batch.index.tolist())) == len(batch.index)


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_replacements_follow_the_seed() -> None:
    one, two = (take(batches(broken=(2, 5)), 0, 12) for _ in range(2))
    assert all(same(a, b) for a, b in zip(one, two, strict=True))


def test_broken_images_are_told_at_every_power_of_ten() -> None:
    unreadable, told = Unreadable("own", "skip"), []
    for first in range(0, 120, 3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            unreadable.add({f"id{i}": "gone" for i in range(first, first + 3)} | {"id0": "gone"})
        told += [str(one.message).partition(" (")[2] for one in caught]
    assert told == [f"gone); another row takes its place ({n} so far)" for n in (3, 12, 102)]
    with pytest.warns(VldebiasWarning, match=r"own: 120 images could not be read and were replaced, such as id0, id1"):
        unreadable.report()


def test_images_that_are_all_broken_stop_training() -> None:
    with pytest.raises(InvalidInputError, match="nor those of 10 rows tried in its place; are the images where"):
        take(batches(broken=tuple(range(N))), 0, 1)


def test_what_does_not_fit_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="own: expected captions and tokenize, or two_views=True"):
        batches(tokenize=None)
    with pytest.raises(InvalidInputError, match="has 23 rows, fewer than the 24 of one batch"):
        batches(batch_size=24)
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(InvalidInputError, match="workers: this system cannot fork processes; expected 0, got 2"):
        batches(workers=2)
    assert load_settings(steps=1).workers == 0
    assert take(batches(workers=load_settings(steps=1).workers), 0, 1)


@pytest.mark.slow
def test_workers_that_deliver_nothing_end_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where shared memory fails: the batch never arrives, and no worker dies."""
    monkeypatch.setattr("vldebias.training.batches.TIMEOUT", 0.1)
    source = batches(workers=1)
    monkeypatch.setattr(MapBatches, "__getitem__", lambda self, number: threading.Event().wait())
    with pytest.raises(InvalidInputError, match=r"no batch came from 1 workers within .*shared memory.*workers 0"):
        take(source, 0, 1)


def test_tokens_made_when_asked_for_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    (table,) = take(batches(), 2, 1)
    monkeypatch.setattr("vldebias.training.batches.MOST_TEXTS", 3)
    (late,) = take(batches(), 2, 1)
    assert same(table, late)

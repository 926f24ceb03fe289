"""From settings to the data's way: every setting of the data changes what the loop is given, or is refused."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch
from tiny_towers import tiny_towers
from torch import Tensor
from training_parts import Stream, image_data

from vldebias.data.images import ImageData
from vldebias.errors import InvalidInputError
from vldebias.training.assembly import make_batches, make_monitor, make_pairs, open_training_data
from vldebias.training.batch import Batch
from vldebias.training.loader import MapBatches
from vldebias.training.settings import TrainSettings, load_settings
from vldebias.training.stream import StreamBatches

N, B = 24, 8


def settings(**given: Any) -> TrainSettings:
    return load_settings(**{"steps": 1, "batch_size": B, "workers": 0, "seed": 4, **given})


def world(**given: Any) -> ImageData:
    found = open_training_data(settings(data="birds", items=N, **given))
    assert isinstance(found, ImageData)
    return found


def first(data: Any = None, **given: Any) -> Batch:
    chosen = settings(**given)
    batches = make_batches(make_pairs(data or world(), chosen), chosen, tiny_towers())
    assert isinstance(batches, MapBatches)
    with closing(batches.starting(0)) as coming:  # type: ignore[type-var]
        found: Batch = next(coming)
    return found


PLAIN = first()


@pytest.mark.parametrize(
    "given", [{"crop_scale": 0.3}, {"flip": True}, {"jitter": 0.5}, {"grayscale": 1.0}, {"crop_noise": 1.0}]
)
def test_augmentation_changes_the_images_and_nothing_else(given: dict[str, Any]) -> None:
    changed = first(**given)
    assert PLAIN.index is not None
    assert changed.index is not None
    assert torch.equal(changed.index, PLAIN.index)
    assert torch.equal(changed.texts["ids"], PLAIN.texts["ids"])
    assert not torch.allclose(changed.images, PLAIN.images)
    assert torch.equal(first(**given).images, changed.images), "the same again"


def test_the_seed_chooses_the_order() -> None:
    other = first(seed=5).index
    assert other is not None
    assert PLAIN.index is not None
    assert not torch.equal(other, PLAIN.index)


def test_two_views_are_two_and_have_no_text() -> None:
    found = first(views="two", jitter=0.5)
    assert found.views is not None
    assert not torch.allclose(found.images, found.views)
    assert not found.texts


def test_the_seed_chooses_which_captions_are_wrong() -> None:
    one, again, other = (make_pairs(world(), settings(caption_noise=0.5, seed=seed)) for seed in (1, 1, 2))
    assert (one.wrong == again.wrong).all()
    assert one.captions == again.captions
    assert one.captions != other.captions
    assert not make_pairs(world(), settings()).wrong.any()


def test_class_noise_comes_before_caption_noise() -> None:
    chosen = settings(label="label", caption_template="a photo of a {}", class_noise=1.0, caption_noise=0.5)
    pairs = make_pairs(world(), chosen)
    assert pairs.labels is not None
    assert (pairs.labels.codes != world().column("label").codes).any()
    assert 0.1 < pairs.wrong.mean() < 0.9


def test_on_error_is_obeyed() -> None:
    broken = image_data(N, broken=range(0, N, 2))
    with pytest.warns(match="be read"):
        found = first(broken)
    assert found.index is not None
    assert not any(int(index) % 2 == 0 for index in found.index)
    with pytest.raises(InvalidInputError, match="on_error='skip'"):
        first(broken, on_error="raise")


def streamed(**given: Any) -> tuple[Tensor, Tensor]:
    batches = make_batches(Stream(N), settings(data="stream", streaming=True, **given), tiny_towers())  # type: ignore[arg-type]
    assert isinstance(batches, StreamBatches)
    with closing(batches.starting(0)) as coming:  # type: ignore[type-var]
        batch = next(coming)
    assert batch.index is not None
    return batch.index, batch.texts["ids"]


def test_a_stream_is_shuffled_within_its_buffer_and_made_noisy() -> None:
    index, texts = streamed(shuffle_buffer=1)
    assert index.tolist() == list(range(B))
    assert streamed(shuffle_buffer=N)[0].tolist() != index.tolist()
    noisy, changed = streamed(shuffle_buffer=1, caption_noise=1.0)
    assert torch.equal(noisy, index)
    assert torch.equal(changed, texts), "a block of one row has no other caption"
    assert not torch.equal(streamed(shuffle_buffer=N, caption_noise=1.0)[1], streamed(shuffle_buffer=N)[1])


def test_a_stream_has_no_class_noise() -> None:
    with pytest.raises(InvalidInputError, match="class_noise: a stream cannot have it; read the data without"):
        streamed(class_noise=0.2)


def test_held_out_data_are_at_most_as_many_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vldebias.training.assembly.open_held_out", lambda _: image_data(30))
    monitor = make_monitor(settings(val_items=7))
    assert monitor is not None
    assert len(monitor.data) == 7
    classes = make_monitor(settings(label="kind", caption_template="one {} alone"))
    assert classes is not None
    assert classes.held_out.class_texts == (("one cat alone",), ("one dog alone",), ("one owl alone",))


def test_nothing_to_ask_is_no_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vldebias.training.assembly.open_held_out", lambda _: image_data(30, captions=False))
    assert make_monitor(settings()) is None
    monkeypatch.setattr("vldebias.training.assembly.open_held_out", lambda _: None)
    assert make_monitor(settings()) is None
    monkeypatch.setattr("vldebias.training.assembly.open_held_out", lambda _: Stream(9))
    with pytest.raises(InvalidInputError, match="val_data: stream: expected data that can be read in any order"):
        make_monitor(settings())

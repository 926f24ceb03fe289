"""Compare the monitor with a naive implementation and with known results, and test its side
effects."""

import math
from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize as unit
from training_parts import image_data, letters_of, plain, reader, tiny_image, tiny_towers

from vldebias.data import Labels
from vldebias.errors import VldebiasWarning
from vldebias.projection.projection import CalibratedProjection
from vldebias.training.monitor import Monitor

WORDS = ("cat", "dog", "owl", "emu")


def naive(
    towers: Any, images: Tensor, captions: Sequence[str], labels: Sequence[int], texts: Any
) -> dict[str, float]:
    """Return all scores computed from their definitions, one image at a time."""
    towers.model.eval()
    with torch.no_grad():
        rows = unit(towers.image(images))
        caption_rows, classes = (
            unit(towers.text(letters_of(texts_of_side))) for texts_of_side in (captions, texts)
        )
    known = [i for i, label in enumerate(labels) if label >= 0]
    right = {i: int((rows[i] @ classes.T).argmax()) == labels[i] for i in known}
    scores = {
        "zero_shot_accuracy": sum(right.values()) / len(known),
        "zero_shot_worst_class": min(
            sum(right[i] for i in known if labels[i] == c) / sum(labels[i] == c for i in known)
            for c in {labels[i] for i in known}
        ),
        "positive_score": sum(float(rows[i] @ caption_rows[i]) for i in range(len(rows)))
        / len(rows),
    }
    distinct = list(dict.fromkeys(captions))
    first = [captions.index(text) for text in distinct]
    for k in (1, 5, 10):
        to_text = to_image = 0
        for i in range(len(rows)):
            ranked = sorted(
                range(len(distinct)), key=lambda j: -float(rows[i] @ caption_rows[first[j]])
            )
            to_text += captions[i] in [distinct[j] for j in ranked[:k]]
            nearest = sorted(range(len(rows)), key=lambda j: -float(rows[j] @ caption_rows[i]))[:k]
            to_image += any(captions[j] == captions[i] for j in nearest)
        scores[f"recall@{k} image->text"] = to_text / len(rows)
        scores[f"recall@{k} text->image"] = to_image / len(rows)
    return scores


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 90), st.integers(1, 12))
def test_scores_match_a_naive_implementation(seed: int, n: int, kinds: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(n, 3, 4, 4, generator=generator)
    captions = [
        f"{WORDS[i % 4]} {i}" for i in torch.randint(kinds, (n,), generator=generator).tolist()
    ]
    labels = torch.randint(-1, 3, (n,), generator=generator)
    labels[0] = 1
    texts = ("a cat", "a dog", "an owl")
    towers = tiny_towers(seed)
    monitor = Monitor(images, captions=captions, labels=labels, class_texts=texts)
    assert monitor(towers) == pytest.approx(
        naive(towers, images, captions, labels.tolist(), texts), abs=1e-5
    )


@pytest.mark.parametrize("unknown", [False, True])
def test_the_worst_group_is_the_lowest_accuracy_of_a_class_within_a_group(unknown: bool) -> None:
    n = 40
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(n, 3, 4, 4, generator=generator)
    labels, groups = (torch.randint(kinds, (n,), generator=generator) for kinds in (2, 3))
    if unknown:
        groups[::4] = -1
        labels[1] = -1
    monitor = Monitor(images, labels=labels, class_texts=("a dog", "an emu"), groups=groups)
    right = monitor.rows(tiny_towers(3))["zero_shot_accuracy"]
    cells = [
        (a, b) for a, b in product(range(2), range(3)) if ((labels == a) & (groups == b)).any()
    ]
    means = [float(right[(labels == a) & (groups == b)].nanmean()) for a, b in cells]
    assert monitor(tiny_towers(3))["zero_shot_worst_group"] == pytest.approx(min(means))
    # With a single group, a class within the group is the class.
    scores = Monitor(images, labels=labels, class_texts=("a dog", "an emu"), groups=groups * 0)(
        tiny_towers(3)
    )
    assert scores["zero_shot_worst_group"] == scores["zero_shot_worst_class"]


def test_an_edit_only_applies_to_text() -> None:
    images = torch.rand(20, 3, 4, 4)
    towers = tiny_towers(3)
    texts = ("a cat", "a dog")
    towers.model.eval()
    monitor = Monitor(images, captions=texts * 10, labels=torch.arange(20) % 2, class_texts=texts)
    identity = CalibratedProjection.identity(6)
    flat = CalibratedProjection().fit(None, np.eye(6)[1:])
    assert monitor(towers, identity) == pytest.approx(monitor(towers), abs=1e-6)
    with torch.no_grad():
        rows = unit(towers.image(images))
        text_rows = unit(flat(unit(towers.text(letters_of(texts)))))
    expected = ((rows @ text_rows.T).argmax(dim=1) == torch.arange(20) % 2).double().mean()
    assert monitor(towers, flat)["zero_shot_accuracy"] == pytest.approx(float(expected))
    assert monitor(towers, flat)["positive_score"] == pytest.approx(
        float((rows * text_rows.repeat(10, 1)).sum(1).mean())
    )


def table(images: Tensor, texts: Tensor) -> Any:
    """Return towers with given features: image i has row i of one table, and text "j" has row j of
    the other."""
    return SimpleNamespace(
        model=torch.nn.Linear(1, 1),
        image=lambda pixels: images[pixels[:, 0, 0, 0].long()],
        text=lambda tokens: texts[tokens["ids"]],
        tokenize=lambda tokenized_texts: {
            "ids": torch.tensor([int(text) for text in tokenized_texts])
        },
    )


def places(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.float32)[:, None, None, None].expand(n, 3, 1, 1)


def test_rows_without_a_caption_are_excluded_from_retrieval() -> None:
    features = torch.eye(4)
    monitor = Monitor(
        places(4), captions=["0", "", "2", " "], labels=torch.arange(4), class_texts="0123"
    )
    rows_of_score = monitor.rows(table(features[[0, 0, 2, 3]], features))
    assert rows_of_score["zero_shot_accuracy"].tolist() == [1, 0, 1, 1]
    assert rows_of_score["recall@1 image->text"].nan_to_num(9).tolist() == [1, 9, 1, 9]
    assert rows_of_score["recall@1 text->image"].tolist() == [1, 1]
    assert monitor.query_images.tolist() == [0, 2]
    assert rows_of_score["positive_score"].nan_to_num(9).tolist() == [1, 9, 1, 9]


def test_each_caption_is_a_query_and_all_captions_of_an_image_are_correct() -> None:
    """Use twelve images with five captions each.

    The captions of an image match that image, with two exceptions: the last caption matches the
    next image, and the first caption of image 1 matches image 0.
    """
    images = torch.eye(12)
    texts = torch.eye(12).repeat_interleave(5, dim=0)
    texts[4::5] = torch.eye(12).roll(-1, dims=0)
    texts[5] = torch.eye(12)[0]
    texts = texts + 0.05 * torch.rand(60, 12, generator=torch.Generator().manual_seed(0))
    captions = [[str(5 * image + place) for place in range(5)] for image in range(12)]
    monitor = Monitor(places(12), captions=captions)
    towers = table(images, texts)
    rows_of_score = monitor.rows(towers)
    assert len(rows_of_score["recall@1 text->image"]) == 60
    # Four captions of each image are correct, except that one caption of image 1 matches image 0.
    assert monitor(towers)["recall@1 text->image"] == pytest.approx(47 / 60)
    assert rows_of_score["recall@1 image->text"].shape == (12,)
    assert "60 captions and 12 images" in monitor.described()

    similarity = unit(images, dim=1) @ unit(texts, dim=1).T
    hits = dict.fromkeys((1, 5, 10), 0)
    for image, k in product(range(12), hits):
        nearest = similarity[image].argsort(descending=True)[:k].tolist()
        hits[k] += any(text // 5 == image for text in nearest)
    for k, right in hits.items():
        assert monitor(towers)[f"recall@{k} image->text"] == pytest.approx(right / 12)
    of_first = Monitor(places(12), captions=[listed[0] for listed in captions])
    assert len(of_first.rows(towers)["recall@1 text->image"]) == 12


@pytest.mark.parametrize(
    ("broken", "row", "captions"), [("image", 2, "0123"), ("text", 2, "0123"), ("text", 1, "")]
)
def test_non_finite_features_have_nan_scores(broken: str, row: int, captions: str) -> None:
    tables = {"image": torch.eye(4), "text": torch.eye(4)}
    tables[broken][row] = torch.nan
    monitor = Monitor(
        places(4), captions=list(captions), labels=torch.tensor([0, 1, 0, 1]), class_texts="01"
    )
    assert all(
        math.isnan(value) for value in monitor(table(tables["image"], tables["text"])).values()
    )


def test_scoring_is_independent_of_mode_gradients_and_autocast() -> None:
    towers = tiny_towers()
    towers.model.letters.eval()  # a frozen part
    monitor = Monitor(torch.rand(8, 3, 4, 4), captions=[f"text {i}" for i in range(8)])
    first = monitor(towers)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert monitor(towers) == first
    assert towers.model.training
    assert towers.model.drop.training
    assert not towers.model.letters.training
    assert all(p.grad is None and p.requires_grad for p in towers.model.parameters())
    assert torch.is_grad_enabled()
    assert not any(values.requires_grad for values in monitor.rows(towers).values())


def data(n: int = 20, read: Any = None, broken: Sequence[int] = ()) -> Any:
    labels = {"label": Labels.from_values([WORDS[i % 3] for i in range(n)], WORDS[:3])}
    captions = tuple(f"{WORDS[i % 4]} {i // 2}" for i in range(n))
    return image_data(n, read=read or reader(broken, tiny_image), captions=captions, labels=labels)


def test_image_and_tensor_monitors_agree_and_images_are_only_read_once() -> None:
    towers = tiny_towers()
    reads = list[int]()
    monitor = Monitor.from_data(
        data(read=lambda i: reads.append(i) or tiny_image(i)), plain, "label"
    )
    tensors = Monitor(
        torch.stack([plain(tiny_image(i)).half() for i in range(20)]).float(),
        captions=data().captions,
        labels=torch.arange(20) % 3,
        class_texts=["a photo of a cat.", "a photo of a dog.", "a photo of an owl."],
    )
    assert monitor(towers) == pytest.approx(tensors(towers), abs=1e-6)
    assert sorted(reads) == list(range(20))
    assert (
        Monitor.from_data(data(), plain, "label", template="a {} in the wild.").class_texts[2]
        == "an owl in the wild."
    )


def test_unreadable_images_are_skipped() -> None:
    with pytest.warns(VldebiasWarning, match=r"own train: 2 of 20 .* left out, such as id3"):
        scores = Monitor.from_data(data(broken=(3, 4)), plain, "label", workers=0)(tiny_towers())
    rest = data()[[i for i in range(20) if i not in (3, 4)]]
    assert scores == Monitor.from_data(rest, plain, "label")(tiny_towers())

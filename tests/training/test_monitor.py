"""The monitor: against a naive twin, on models of known answers, and what it leaves behind."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_towers import prepare, tiny_image, tiny_towers, tokenize
from torch import Tensor

from vldebias.data import ImageData, Labels
from vldebias.errors import InvalidInputError, PromptSetError, VldebiasWarning
from vldebias.projection import CalibratedProjection
from vldebias.training.monitor import FACTS, SHAPE, Monitor, TensorMonitor, worsened

laws = settings(max_examples=25, deadline=None, derandomize=True)
WORDS = ("cat", "dog", "owl", "emu")


def unit(features: Tensor) -> Tensor:
    return features / features.norm(dim=-1, keepdim=True)


def shape(rows: Tensor, labels: Sequence[int]) -> dict[str, float]:
    """Facts of the features by their definitions, pair by pair; none without two classes of two rows."""
    own = [i for i, label in enumerate(labels) if label >= 0 and list(labels).count(label) > 1]
    if len({labels[i] for i in own}) < 2:
        return {}
    products = (rows[own] @ rows[own].T).double().numpy()
    told = np.array([labels[i] for i in own])
    pairs = ~np.eye(len(own), dtype=bool)
    same, other = pairs & (told[:, None] == told), told[:, None] != told
    mine = rows[own].double().numpy()
    within = sum(((mine[told == c] - mine[told == c].mean(0)) ** 2).sum() for c in set(told))
    return {
        "alignment": float(np.mean(2 - 2 * products[same])),
        "uniformity": float(np.log(np.mean(np.exp(-2 * (2 - 2 * products[pairs]))))),
        "within_variance": float(within / ((mine - mine.mean(0)) ** 2).sum()),
        "same_cosine": float(products[same].mean()),
        "other_cosine": float(products[other].mean()),
    }


def naive(towers: Any, images: Tensor, captions: Sequence[str], labels: Sequence[int], texts: Any) -> dict[str, float]:
    """Every score by its definition, one image at a time."""
    towers.model.eval()
    with torch.no_grad():
        rows = unit(towers.image(images))
        said = unit(towers.text(tokenize(captions)))
        classes = unit(torch.stack([unit(towers.text(tokenize(list(t)))).mean(dim=0) for t in texts]))
    known = [i for i, label in enumerate(labels) if label >= 0]
    right = {i: int((rows[i] @ classes.T).argmax()) == labels[i] for i in known}
    found = {
        "zero_shot_accuracy": sum(right.values()) / len(known),
        "zero_shot_worst_class": min(
            sum(right[i] for i in known if labels[i] == c) / sum(labels[i] == c for i in known)
            for c in {labels[i] for i in known}
        ),
        "positive_score": sum(float(rows[i] @ said[i]) for i in range(len(rows))) / len(rows),
    }
    found |= shape(rows, labels)
    distinct = list(dict.fromkeys(captions))
    first = [captions.index(text) for text in distinct]
    for k in (1, 5, 10):
        to_text = to_image = 0
        for i in range(len(rows)):
            ranked = sorted(range(len(distinct)), key=lambda j: -float(rows[i] @ said[first[j]]))
            to_text += captions[i] in [distinct[j] for j in ranked[:k]]
            nearest = sorted(range(len(rows)), key=lambda j: -float(rows[j] @ said[i]))[:k]
            to_image += any(captions[j] == captions[i] for j in nearest)
        found[f"recall@{k} image->text"] = to_text / len(rows)
        found[f"recall@{k} text->image"] = to_image / len(rows)
    return found


@laws
@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(1, 12), st.integers(1, 40))
def test_agrees_with_the_naive_twin(seed: int, n: int, kinds: int, batch_size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(n, 3, 4, 4, generator=generator)
    captions = [f"{WORDS[i % 4]} {i}" for i in torch.randint(kinds, (n,), generator=generator).tolist()]
    labels = torch.randint(-1, 3, (n,), generator=generator)
    labels[0] = 1
    texts = (("a cat", "one cat"), ("a dog",), ("an owl",))
    towers = tiny_towers(seed)
    monitor = TensorMonitor(images, captions=captions, labels=labels, class_texts=texts)
    monitor.batch_size = batch_size
    found = monitor(towers)
    expected = naive(towers, images, captions, labels.tolist(), texts)
    assert found.keys() == expected.keys()
    estimated = {name: found.pop(name) - expected.pop(name) for name in ("uniformity",) if name in found}
    assert found == pytest.approx(expected, abs=1e-5)
    assert estimated.get("uniformity", 0) == pytest.approx(0, abs=0.05)  # on random pairs


class TestSharpness:
    @pytest.mark.parametrize("labelled", [False, True])
    def test_it_is_the_loss_one_step_along_the_gradient_less_the_loss(self, labelled: bool) -> None:
        generator = torch.Generator().manual_seed(2)
        images, codes = torch.rand(12, 3, 4, 4, generator=generator), torch.arange(12) % 4
        texts = [f"a {word}" for word in WORDS]
        towers = tiny_towers(5)
        asked: dict[str, Any] = {"captions": [texts[code] for code in codes]}
        if labelled:
            asked = {"labels": codes, "class_texts": texts}
        own = {name: weight.clone() for name, weight in towers.model.state_dict().items()}
        first = next(towers.model.parameters())
        first.grad = torch.full_like(first, 7.0)
        found = TensorMonitor(images, **asked, within=0.3)(towers)["sharpness"]
        assert (first.grad == 7).all()  # the loop's own
        assert towers.model.training
        assert all(torch.equal(own[name], weight) for name, weight in towers.model.state_dict().items())

        def loss() -> Tensor:
            said = unit(towers.text(tokenize(texts)))
            return torch.nn.functional.cross_entropy(unit(towers.image(images)) @ said.T / towers.temperature, codes)

        towers.model.eval()
        before, weights = loss(), list(towers.model.parameters())
        gradients = torch.autograd.grad(before, weights)
        length = 0.3 / torch.cat([gradient.flatten() for gradient in gradients]).norm()
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight += length * gradient
            assert found == pytest.approx(float(loss() - before), rel=1e-4)
        assert found > 0

    def test_it_is_off_unless_asked_for_and_nothing_where_nothing_learns(self) -> None:
        images, towers = torch.rand(6, 3, 4, 4), tiny_towers(1)
        asked: dict[str, Any] = {"labels": torch.arange(6) % 2, "class_texts": WORDS[:2]}
        assert "sharpness" not in TensorMonitor(images, **asked)(towers)
        towers.model.requires_grad_(False)
        assert math.isnan(TensorMonitor(images, **asked, within=0.1)(towers)["sharpness"])


def test_many_images_and_texts_with_an_edit_have_no_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    images, towers = torch.rand(12, 3, 4, 4), tiny_towers(1)
    monitor = TensorMonitor(images, labels=torch.arange(12) % 2, class_texts=WORDS[:2])
    assert set(SHAPE) <= set(monitor(towers))
    assert not set(SHAPE) & set(monitor(towers, CalibratedProjection.identity(6)))
    monkeypatch.setattr("vldebias.training.monitor._SHAPED", 11)
    assert not set(SHAPE) & set(monitor(towers))


def test_facts_are_never_worse() -> None:
    before, after = dict.fromkeys(FACTS, 1.0), dict.fromkeys(FACTS, 0.0)
    assert worsened(before | {"recall": 1.0}, after | {"recall": 0.0}) == {"recall": (1.0, 0.0)}


@pytest.mark.parametrize("unknown", [False, True])
def test_the_worst_group_and_the_skew_are_those_of_their_definitions(unknown: bool) -> None:
    n = 40
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(n, 3, 4, 4, generator=generator)
    labels, groups = (torch.randint(kinds, (n,), generator=generator) for kinds in (2, 3))
    if unknown:
        groups[::4], labels[1] = -1, -1
    towers, queries = tiny_towers(3), ("a cat", "an owl")
    asked: dict[str, Any] = {"labels": labels, "class_texts": ("a dog", "an emu"), "groups": groups}
    found = TensorMonitor(images, **asked, queries=queries)(towers)
    right = TensorMonitor(images, **asked).rows(towers)["zero_shot_accuracy"]
    cells = [(a, b) for a in range(2) for b in range(3) if ((labels == a) & (groups == b)).any()]
    means = [float(right[(labels == a) & (groups == b)].nanmean()) for a, b in cells]
    assert found["zero_shot_worst_group"] == pytest.approx(min(means))
    towers.model.eval()
    known = (groups >= 0).nonzero().flatten()
    k = len(known) // 10
    shares = [float((groups[known] == b).double().mean()) for b in range(3)]
    with torch.no_grad():
        rows, texts = unit(towers.image(images[known])), unit(towers.text(tokenize(queries)))
    skews = []
    for text in texts:
        first = groups[known[(rows @ text).argsort(descending=True)[:k]]]
        drawn = [float((first == b).double().mean()) for b in range(3)]
        skews.append(max(math.log(share / p) for share, p in zip(drawn, shares, strict=True) if share))
    assert found[f"max_skew@{k}"] == pytest.approx(sum(skews) / 2)
    assert "max_skew@4" not in TensorMonitor(images, **asked)(towers)


def test_an_edit_changes_the_texts_and_not_the_images() -> None:
    images = torch.rand(20, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    towers = tiny_towers(3)
    towers.model.eval()
    texts = ("a cat", "a dog")
    monitor = TensorMonitor(images, labels=torch.arange(20) % 2, class_texts=texts)
    with torch.no_grad():
        dim = towers.text(tokenize(texts)).shape[1]
    same, flat = CalibratedProjection.identity(dim), CalibratedProjection.fit(None, np.eye(dim)[1:])
    plain = {name: value for name, value in monitor(towers).items() if name not in SHAPE}
    assert monitor(towers, same) == plain
    with torch.no_grad():
        rows, said = unit(towers.image(images)), unit(flat(unit(towers.text(tokenize(texts)))))
    expected = ((rows @ said.T).argmax(dim=1) == torch.arange(20) % 2).double().mean()
    assert monitor(towers, flat)["zero_shot_accuracy"] == pytest.approx(float(expected))


class Table:
    """Towers whose features are looked up: image i has row i of one table, text "j" row j of the other."""

    def __init__(self, images: Tensor, texts: Tensor) -> None:
        self.model = torch.nn.Linear(1, 1)
        self.image = lambda pixels: images[pixels[:, 0, 0, 0].long()]
        self.text = lambda tokens: texts[tokens["ids"]]
        self.tokenize = lambda said: {"ids": torch.tensor([int(text) for text in said])}


def places(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.float32)[:, None, None, None].expand(n, 3, 1, 1)


def test_rows_without_a_caption_are_left_out_of_retrieval() -> None:
    features = torch.eye(4)
    monitor = TensorMonitor(places(4), captions=["0", "", "2", " "], labels=torch.arange(4), class_texts="0123")
    found = monitor.rows(Table(features[[0, 0, 2, 3]], features))
    assert found["zero_shot_accuracy"].tolist() == [1, 0, 1, 1]
    assert found["recall@1 text->image"].nan_to_num(9).tolist() == [1, 9, 1, 9]
    assert found["positive_score"].nan_to_num(9).tolist() == [1, 9, 1, 9]
    with pytest.raises(InvalidInputError, match="leave nothing to measure"):
        TensorMonitor(places(2), captions=["", " "])


def test_perfect_and_collapsed_models() -> None:
    n = 40
    captions, labels = [str(i) for i in range(n)], torch.arange(n) % 4
    monitor = TensorMonitor(places(n), captions=captions, labels=labels, class_texts="0123")
    perfect = monitor(Table(torch.eye(n), torch.eye(n)))
    assert perfect["recall@1 image->text"] == perfect["recall@1 text->image"] == perfect["positive_score"] == 1
    constant = monitor(Table(torch.ones(n, 4), torch.ones(n, 4)))
    assert constant["recall@10 image->text"] == constant["recall@10 text->image"] == 0.25  # ten of forty, no more
    assert constant["zero_shot_accuracy"] == 0.25
    assert constant["zero_shot_worst_class"] == 0


@pytest.mark.parametrize("broken", ["image", "text"])
def test_features_that_are_not_finite_give_nan_and_no_hits(broken: str) -> None:
    tables = {"image": torch.eye(4), "text": torch.eye(4)}
    tables[broken][2] = torch.nan
    monitor = TensorMonitor(places(4), captions="0123", labels=torch.tensor([0, 1, 0, 1]), class_texts="01")
    found = monitor(Table(tables["image"], tables["text"]))
    assert all(math.isnan(value) for value in found.values())


def test_modes_and_gradients_are_as_they_were_and_the_result_repeats() -> None:
    towers = tiny_towers()
    towers.model.letters.eval()  # a part that was frozen
    monitor = TensorMonitor(torch.rand(8, 3, 4, 4), captions=[f"text {i}" for i in range(8)])
    first = monitor(towers)
    assert monitor(towers) == first
    assert (towers.model.training, towers.model.drop.training, towers.model.letters.training) == (True, True, False)
    assert all(p.grad is None and p.requires_grad for p in towers.model.parameters())
    assert torch.is_grad_enabled()
    assert not any(values.requires_grad for values in monitor.rows(towers).values())


def test_half_precision_weights_read_half_precision_pixels() -> None:
    towers = tiny_towers()
    monitor = TensorMonitor(torch.rand(8, 3, 4, 4), captions=[f"text {i}" for i in range(8)])
    exact = monitor(towers)["positive_score"]
    towers.model.bfloat16()
    assert monitor(towers)["positive_score"] == pytest.approx(exact, abs=0.02)


def test_autocast_of_the_loop_does_not_reach_the_monitor() -> None:
    towers = tiny_towers()
    monitor = TensorMonitor(torch.rand(8, 3, 4, 4), captions=[f"text {i}" for i in range(8)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = monitor(towers)
    assert inside == monitor(towers)


def pairs(n: int = 20, broken: Sequence[int] = ()) -> tuple[ImageData, list[int]]:
    reads: list[int] = []

    def read(i: int) -> Any:
        reads.append(i)
        if i in broken:
            raise FileNotFoundError(2, "No such file or directory")
        return tiny_image(i)

    data = ImageData(
        name="pairs",
        split="val",
        ids=tuple(f"id{i}" for i in range(n)),
        read=read,
        labels={
            "label": Labels.of([WORDS[i % 3] for i in range(n)], WORDS[:3]),
            "place": Labels.of([("land", "water")[i % 2] for i in range(n)]),
        },
        fingerprint="pairs",
        captions=tuple(f"{WORDS[i % 4]} {i // 2}" for i in range(n)),
    )
    return data, reads


def test_monitor_of_images_equals_that_of_tensors() -> None:
    data, _ = pairs()
    towers = tiny_towers()
    monitor = Monitor(data, "label")
    monitor.batch_size = 7
    tensors = TensorMonitor(
        torch.stack([prepare(tiny_image(i)).half() for i in range(20)]).float(),
        captions=data.captions,
        labels=torch.arange(20) % 3,
        class_texts=["a photo of a cat.", "a photo of a dog.", "a photo of an owl."],
    )
    assert monitor(towers) == pytest.approx(tensors(towers), abs=1e-6)


def test_images_are_read_once_where_they_fit_and_again_where_not() -> None:
    towers = tiny_towers()
    data, reads = pairs()
    kept = Monitor(data, "label")
    first = kept(towers)
    assert kept(towers) == first
    assert sorted(reads) == list(range(20))
    data, reads = pairs()
    read_again = Monitor(data, "label")
    read_again.keep_bytes = 20 * 48 * 2 - 1
    assert read_again(towers) == first  # the limit changes no figure
    assert read_again(towers) == first
    assert sorted(reads) == sorted([*range(20), *range(20)])
    data, reads = pairs()
    just = Monitor(data, "label")
    just.keep_bytes = 20 * 48 * 2
    just(towers), just(towers)
    assert len(reads) == 20


def test_other_preprocessing_is_not_served_from_memory() -> None:
    data, reads = pairs()
    monitor, towers = Monitor(data, "label"), tiny_towers()
    first = monitor(towers)
    towers.prepare = lambda image: 1 - prepare(image)
    assert monitor(towers)["positive_score"] != first["positive_score"]
    assert len(reads) == 40


def test_what_cannot_be_read_is_left_out_and_told_once() -> None:
    data, _ = pairs(broken=(3, 4))
    monitor, towers = Monitor(data, "label", workers=0), tiny_towers()
    with pytest.warns(VldebiasWarning, match=r"pairs val: 2 of 20 .* left out, such as \('id3', 'FileNotFound"):
        found = monitor(towers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert monitor(towers) == found
    assert list(monitor.skipped) == ["id3", "id4"]
    whole, rest = pairs()[0], [i for i in range(20) if i not in (3, 4)]
    assert found == Monitor(whole[rest], "label")(towers)
    assert monitor.rows(towers)["positive_score"].isnan().nonzero().flatten().tolist() == [3, 4]


def test_nothing_readable_and_faults_of_the_machine_stop_it() -> None:
    data, _ = pairs(broken=range(20))
    with pytest.raises(InvalidInputError, match="20 of 20 held-out images cannot be read"):
        Monitor(data, "label")(tiny_towers())

    def denied(i: int) -> Any:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(PermissionError):
        Monitor(replace(data, read=denied), "label")(tiny_towers())


def test_limit_draws_the_same_rows() -> None:
    data, _ = pairs()
    first, again = (Monitor(data, limit=8).data.ids for _ in range(2))
    assert len(first) == 8
    assert first == again
    assert list(first) == sorted(first, key=lambda name: int(name[2:]))
    assert Monitor(data, limit=50).data is data


def test_templates_have_the_article_that_fits() -> None:
    monitor = Monitor(pairs()[0], "label", template="a {} in the wild.")
    assert monitor.class_texts == (("a cat in the wild.",), ("a dog in the wild.",), ("an owl in the wild.",))


def test_errors() -> None:
    data, _ = pairs()
    with pytest.raises(InvalidInputError, match="no image has a known group"):
        TensorMonitor(torch.rand(2, 3, 4, 4), captions=("a cat", "a dog"), groups=torch.tensor([-1, -1]))
    images = torch.zeros(3, 3, 4, 4)
    with pytest.raises(InvalidInputError, match="3 images without captions and without labels leave nothing"):
        TensorMonitor(images)
    with pytest.raises(InvalidInputError, match=r"expected 3 rows in every column, got \{'images': 3, 'captions': 2\}"):
        TensorMonitor(images, captions=["a", "b"])
    with pytest.raises(InvalidInputError, match="labels and class_texts go together"):
        TensorMonitor(images, labels=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InvalidInputError, match=r"expected labels -1 \(unknown\) .. 1, got 0 .. 2"):
        TensorMonitor(images, labels=torch.tensor([0, 1, 2]), class_texts=["a", "b"])
    with pytest.raises(InvalidInputError, match="no image has a known label"):
        TensorMonitor(images, labels=torch.tensor([-1, -1, -1]), class_texts=["a", "b"])
    with pytest.raises(InvalidInputError, match="no column 'kind'"):
        Monitor(data, "kind")
    with pytest.raises(PromptSetError, match="templates: got 'a photo'"):
        Monitor(data, "label", template="a photo")


def test_what_is_worse_is_named_and_nothing_else() -> None:
    before = {"zero_shot_accuracy": 0.983, "recall@1 image->text": 0.068, "max_skew@100": 0.5, "positive_score": 0.5}
    after = {"zero_shot_accuracy": 0.975, "recall@1 image->text": 0.068, "max_skew@100": 0.6, "positive_score": 0.4}
    assert worsened(before, after) == {"zero_shot_accuracy": (0.983, 0.975), "max_skew@100": (0.5, 0.6)}
    assert worsened(after, before) == {}, "higher accuracy and lower skew are better; a cosine alone is neither"
    assert worsened({"zero_shot_accuracy": 0.5}, {"zero_shot_accuracy": float("nan")}).keys() == {"zero_shot_accuracy"}
    assert worsened({"zero_shot_accuracy": float("nan")}, {"zero_shot_accuracy": 0.5}) == {}
    assert worsened(before, {}) == {}

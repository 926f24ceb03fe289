"""Judges: probabilities in, a value or unknown out; every kind against the model that it wraps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from painted_by_hand import GENDERS, Reader, Shows, chosen, paint, repaint
from PIL import Image
from torch.nn.functional import normalize

from eval.miniature import portraits
from vldebias.data import UNKNOWN
from vldebias.errors import InvalidInputError
from vldebias.evaluation.judges import (
    NO_VALUE,
    ClassifierJudge,
    ClipJudge,
    Judge,
    MiniatureJudge,
    decide,
    logit_scale,
    predict,
)
from vldebias.evaluation.plan import GeneratedImages
from vldebias.evaluation.scores import judge_images, last_judgements
from vldebias.evaluation.session import Session
from vldebias.evaluation.task import Options
from vldebias.loading import Loaded
from vldebias.miniature import load_clip, load_judge, open_world

GENDER = {
    "male": ("A photo of a male.", "A photo of a man."),
    "female": ("A photo of a female.", "A photo of a woman."),
}


def people(n: int = 60) -> tuple[list[Image.Image], portraits.Portraits]:
    world = portraits.sample(n, seed=77, balanced=True, life=portraits.STUDIO)
    pixels = (world.images.permute(0, 2, 3, 1) * 255).round().byte().numpy()
    return [Image.fromarray(picture) for picture in pixels], world


def grey(*levels: int) -> list[Image.Image]:
    return [Image.new("RGB", (4, 4), (level,) * 3) for level in levels]


# ---- deciding --------------------------------------------------------------------------------------------------


@given(arrays(np.float64, (7, 3), elements=st.floats(0, 1)), st.floats(0, 1))
def test_a_value_is_the_most_likely_one_or_unknown(raw: np.ndarray, sure: float) -> None:
    probabilities = raw / np.maximum(raw.sum(1, keepdims=True), 1)
    labels = decide(probabilities, ("a", "b", "c"), sure)
    for row, code in zip(probabilities, labels.codes, strict=True):
        told = row.max() >= sure and row.max() >= 1 - row.sum()
        assert code == (row.argmax() if told else UNKNOWN)


@pytest.mark.parametrize(
    "rows",
    [np.empty(0), np.ones((2, 3)) / 3, [[3.0, -1.0], [0, 1]], [[0.7, 0.7], [0, 1]], [[np.nan, 0.7], [0, 1]]],
)
def test_answers_that_are_no_probabilities_are_refused(rows: Any) -> None:
    judge = Judge("mine", {"light": ("dark", "bright")}, lambda images: {"light": np.asarray(rows)}, "1")
    with pytest.raises(InvalidInputError, match="judge mine"):
        predict(judge, grey(0, 255))


# ---- one by one ------------------------------------------------------------------------------------------------


def test_the_miniature_judge_is_the_network_of_the_world() -> None:
    images, world = people()
    found = predict(MiniatureJudge().ready(), images)
    twin = load_judge().predict(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255)
    portrait = twin["world_probabilities"][:, [1]]
    for attribute in ("profession", "gender", "tone", "age"):
        np.testing.assert_allclose(found[attribute], twin[f"{attribute}_probabilities"] * portrait, atol=1e-6)
        assert (found[attribute].argmax(1) == getattr(world, attribute).numpy()).mean() > 0.9
    assert MiniatureJudge().ready().fingerprint == MiniatureJudge().ready().fingerprint
    with pytest.raises(InvalidInputError, match=r"the judge reads images \(n, 3, 64, 64\)"):
        MiniatureJudge().ready().predict(grey(0))


def test_the_miniature_judge_finds_no_gender_in_a_bird_and_no_bird_in_a_person() -> None:
    judge = MiniatureJudge().ready()
    birds = open_world("birds", n=64)
    found = predict(judge, [birds.read(i) for i in range(64)])
    assert (decide(found["gender"], judge.names["gender"], 0.0).codes == UNKNOWN).mean() > 0.95
    for attribute, truth in (("species", "species"), ("bird", "label"), ("background", "place")):
        assert (found[attribute].argmax(1) == birds.labels[truth].codes).mean() > 0.9, attribute
    assert (decide(predict(judge, people()[0])["bird"], judge.names["bird"], 0.0).codes == UNKNOWN).mean() > 0.95


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("vit")
    names = dict(enumerate(("Latino_Hispanic", "White", "Black", "nobody")))
    config = ViTConfig(
        image_size=8, patch_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    config.id2label, config.label2id = names, {name: i for i, name in names.items()}
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(folder)
    return folder


def race(folder: Path, values: Any = None) -> Judge:
    return ClassifierJudge(model=str(folder), attribute="race", values=values).ready(None, Session(Options(out=folder)))


def test_a_classifier_of_transformers_is_a_judge(classifier: Path) -> None:
    images, _ = people(5)
    plain = race(classifier)
    assert plain.names == {"race": ("Latino_Hispanic", "White", "Black", "nobody")}
    every = predict(plain, images)["race"]
    np.testing.assert_allclose(every.sum(1), 1, atol=1e-6)
    merged = race(classifier, {"other": ["Latino_Hispanic", "Black"], "White": "White"})
    found = predict(merged, images)["race"]
    np.testing.assert_allclose(found, np.stack([every[:, 0] + every[:, 2], every[:, 1]], axis=1), atol=1e-6)
    np.testing.assert_allclose(1 - found.sum(1), every[:, 3], atol=1e-6)  # nobody: none of the values
    assert plain.fingerprint != merged.fingerprint
    assert plain.name == str(classifier)


def test_labels_of_a_classifier_are_checked(classifier: Path, tmp_path: Path) -> None:
    for other in ("Green", "White"):
        with pytest.raises(InvalidInputError, match="Latino_Hispanic"):
            race(classifier, {"a": "White", "b": other})
    with pytest.raises(InvalidInputError, match="cannot load the judge"):
        race(tmp_path / "nothing")


# ---- zero-shot -------------------------------------------------------------------------------------------------


def zero_shot(reject: tuple[str, ...] = (), **prompts: Any) -> Judge:
    model, preprocess, tokenizer = load_clip()
    return ClipJudge(prompts=prompts, reject=reject).on(Loaded(model, "miniature", tokenizer, preprocess))


def test_a_clip_compares_with_the_mean_text_of_each_value() -> None:
    images, world = people()
    model, preprocess, tokenizer = load_clip()
    found = predict(zero_shot(gender=GENDER), images)["gender"]
    assert (found.argmax(1) == world.gender.numpy()).mean() > 0.7
    with torch.no_grad():
        rows = [model.encode_text(tokenizer(list(p)), normalize=True).mean(0) for p in GENDER.values()]
        pixels = torch.stack([preprocess(image) for image in images])
        scores = model.encode_image(pixels, normalize=True) @ normalize(torch.stack(rows), dim=-1).T
        twin = (model.logit_scale.exp() * scores).softmax(-1)
    np.testing.assert_allclose(found, twin, atol=1e-4)


def test_rejects_compete_with_the_values() -> None:
    images, _ = people(20)
    found = predict(zero_shot(("A photo of a male.", "This is a land background."), gender=GENDER), images)["gender"]
    assert (1 - found.sum(1) > 0.01).any()
    plain = predict(zero_shot(gender=GENDER), images)["gender"]
    np.testing.assert_allclose(found / found.sum(1, keepdims=True), plain, atol=1e-6)


def test_the_fingerprint_changes_with_whatever_changes_the_answers() -> None:
    other = {"male": "A photo of a male.", "female": "A photo of a female."}
    prints = [zero_shot(gender=GENDER), zero_shot(gender=other), zero_shot(("a photo",), gender=GENDER)]
    prints.append(zero_shot(gender=dict(reversed(GENDER.items()))))  # other columns
    assert len({one.fingerprint for one in prints}) == 4
    assert zero_shot(gender=GENDER).fingerprint == prints[0].fingerprint


def test_the_scale_is_the_models_own() -> None:
    assert logit_scale(SimpleNamespace(logit_scale=torch.tensor(100.0).log())) == pytest.approx(100)
    assert logit_scale(SimpleNamespace(temperature=torch.tensor(0.02))) == pytest.approx(50)  # as ALIGN has it
    with pytest.raises(InvalidInputError, match="SimpleNamespace has no logit_scale"):
        logit_scale(SimpleNamespace(logit_scale=None))


# ---- judgements, stored --------------------------------------------------------------------------------------------


def few(folder: Path) -> tuple[GeneratedImages, Shows]:
    """Two images of each prompt and variant."""
    return paint(folder, np.random.default_rng(0), stated=False, images=2, seeds=[0])


def test_answers_come_in_the_order_of_the_images_and_are_kept(tmp_path: Path) -> None:
    made, shows = few(tmp_path)
    judge = Reader()
    found = judge_images(judge, made, batch_size=7)
    assert judge.asked == len(made)
    assert found["age"].argmax(1).tolist() == [shows[image.path][1] for image in made]
    assert found["job"].argmax(1).tolist() == [shows[image.path][2] for image in made]
    again = judge_images(judge, made)
    assert judge.asked == len(made)
    assert all(np.array_equal(again[attribute], found[attribute]) for attribute in judge.names)
    part = chosen(made, variant="cali", part="unseen")
    places = [list(made).index(image) for image in part]
    np.testing.assert_array_equal(judge_images(judge, part)["gender"], found["gender"][places])


def test_an_image_that_changed_is_judged_anew(tmp_path: Path) -> None:
    made, shows = few(tmp_path)
    judge = Reader()
    before = judge_images(judge, made)
    gender, age, job = shows[made.images[3].path]
    repaint(made, made.images[3], (gender, (age + 1) % 3, job))
    after = judge_images(judge, made)
    assert judge.asked == len(made) + 1
    assert after["age"][3].argmax() == (age + 1) % 3
    np.testing.assert_array_equal(np.delete(after["age"], 3, 0), np.delete(before["age"], 3, 0))


def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    """Half a line at the end, as a kill leaves it, costs one image and damages no other line."""
    made, _ = few(tmp_path)
    judge = Reader()
    before = judge_images(judge, made, batch_size=10)
    (path,) = (tmp_path / "judgements").glob("*.jsonl")
    about, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([about, *lines[:20]]) + lines[20][:30])
    after = judge_images(judge, made)
    assert judge.asked == 2 * len(made) - 20
    assert all(np.array_equal(before[attribute], after[attribute]) for attribute in judge.names)


def test_the_newest_judge_of_an_attribute_answers_for_every_image(tmp_path: Path) -> None:
    made, shows = few(tmp_path)
    assert last_judgements(made, "gender", GENDERS) is None
    for who in "ab":
        judge_images(SimpleNamespace(**{**vars(Reader()), "name": who, "predict": Reader().predict}), made)
    judge_images(SimpleNamespace(names={"x": ("y", "z")}, name="other", fingerprint="1", predict=blank), made)
    assert last_judgements(made, "gender", ("male", "neither")) is None
    made.path(made.images[0]).write_bytes(b"another")
    name, said, sure = last_judgements(made, "gender", GENDERS, 0.8)
    names = (*GENDERS, NO_VALUE)
    assert name == "b"
    assert said[1:] == [names[shows[image.path][0]] for image in made.images[1:]]
    assert (said[0], sure[0]) == (NO_VALUE, 0)
    assert set(last_judgements(made, "gender", GENDERS[:1])[1]) == {"male", NO_VALUE}
    unsure = last_judgements(made, "gender", GENDERS, 0.0)[1]
    assert unsure[1:] == [GENDERS[shows[image.path][0] % 2] for image in made.images[1:]]


def blank(images: list[Image.Image]) -> dict[str, np.ndarray]:
    return {"x": np.zeros((len(images), 2))}


def test_missing_images_are_counted(tmp_path: Path) -> None:
    made, _ = few(tmp_path)
    for image in made.images[:2]:
        made.path(image).unlink()
    with pytest.raises(InvalidInputError, match=f"2 of {len(made)} images"):
        judge_images(Reader(), made)

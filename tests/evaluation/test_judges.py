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
from PIL import Image
from torch.nn.functional import normalize

from eval.miniature import portraits
from vldebias import load_prompts
from vldebias.data import UNKNOWN
from vldebias.errors import InvalidInputError
from vldebias.evaluation.judges import (
    NO_PERSON,
    ClassifierJudge,
    ClipJudge,
    FunctionJudge,
    MiniatureJudge,
    Question,
    decide,
    logit_scale,
    predict,
)
from vldebias.miniature import load_clip, load_judge, open_world

GENDER = Question.of({"male": ["male", "man"], "female": ["female", "woman"]}, ["A photo of a {value}."])
NAMES = {"light": ("dark", "bright")}


def people(n: int = 60) -> tuple[list[Image.Image], portraits.Portraits]:
    world = portraits.sample(n, seed=77, balanced=True, life=portraits.STUDIO)
    pixels = (world.images.permute(0, 2, 3, 1) * 255).round().byte().numpy()
    return [Image.fromarray(picture) for picture in pixels], world


def light(images: Any) -> dict[str, np.ndarray]:
    bright = np.array([np.asarray(image).mean() / 255 for image in images])
    return {"light": np.stack([1 - bright, bright], axis=1)}


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


def test_what_is_left_for_none_of_the_values_is_unknown() -> None:
    table = np.array([[0.4, 0.1], [0.4, 0.35], [0.9, 0.1], [0.1, 0.79]])
    assert decide(table, ("a", "b"), 0.0).codes.tolist() == [UNKNOWN, 0, 0, 1]
    assert decide(table, ("a", "b"), 0.8).codes.tolist() == [UNKNOWN, UNKNOWN, 0, UNKNOWN]
    with pytest.raises(InvalidInputError, match=r"sure: expected a probability in \[0, 1\], got 80"):
        decide(table, ("a", "b"), 80)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, r"judge mine: expected light \(2, 2\), got \(0,\)"),
        ({"light": np.ones((2, 3)) / 3}, r"expected light \(2, 2\), got \(2, 3\)"),
        ({"light": np.array([[3.0, -1.0], [0, 1]])}, r"no probabilities: .* got -1 .. 3; apply a softmax"),
        ({"light": np.array([[0.7, 0.7], [0, 1]])}, r"no probabilities"),
        ({"light": np.array([[np.nan, 0.7], [0, 1]])}, r"no probabilities"),
    ],
)
def test_answers_that_are_no_probabilities_are_refused(answer: dict[str, np.ndarray], message: str) -> None:
    judge = FunctionJudge(NAMES, lambda images: answer, name="mine", version="1")
    with pytest.raises(InvalidInputError, match=message):
        predict(judge, grey(0, 255))


# ---- one by one ------------------------------------------------------------------------------------------------


def test_a_function_is_a_judge_and_its_version_tells_it_apart() -> None:
    judge = FunctionJudge(NAMES, light, name="mine", version="1")
    assert predict(judge, grey(0, 255))["light"].tolist() == [[1, 0], [0, 1]]
    prints = {FunctionJudge(NAMES, light, name=n, version=v).fingerprint for n in ("a", "b") for v in ("1", "2")}
    assert len(prints) == 4


def test_the_miniature_judge_is_the_network_of_the_world() -> None:
    images, world = people()
    found = predict(MiniatureJudge(), images)
    twin = load_judge().predict(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255)
    portrait = twin["world_probabilities"][:, [1]]
    for attribute in ("profession", "gender", "tone", "age"):
        np.testing.assert_allclose(found[attribute], twin[f"{attribute}_probabilities"] * portrait, atol=1e-6)
        assert (found[attribute].argmax(1) == getattr(world, attribute).numpy()).mean() > 0.9
    assert MiniatureJudge().fingerprint == MiniatureJudge().fingerprint
    with pytest.raises(InvalidInputError, match=r"the judge reads images \(n, 3, 64, 64\)"):
        MiniatureJudge().predict(grey(0))


def test_the_miniature_judge_finds_no_gender_in_a_bird_and_no_bird_in_a_person() -> None:
    judge = MiniatureJudge()
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


def test_a_classifier_of_transformers_is_a_judge(classifier: Path) -> None:
    images, _ = people(5)
    plain = ClassifierJudge.load(str(classifier), "race")
    assert plain.names == {"race": ("Latino_Hispanic", "White", "Black", "nobody")}
    every = predict(plain, images)["race"]
    np.testing.assert_allclose(every.sum(1), 1, atol=1e-6)
    merged = ClassifierJudge.load(str(classifier), "race", {"other": ["Latino_Hispanic", "Black"], "White": ["White"]})
    found = predict(merged, images)["race"]
    np.testing.assert_allclose(found, np.stack([every[:, 0] + every[:, 2], every[:, 1]], axis=1), atol=1e-6)
    np.testing.assert_allclose(1 - found.sum(1), every[:, 3], atol=1e-6)  # nobody: none of the values
    assert plain.fingerprint != merged.fingerprint
    assert plain.name == str(classifier)


def test_labels_of_a_classifier_are_checked(classifier: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"values: expected each of the labels \['Latino_Hispanic', .* got"):
        ClassifierJudge.load(str(classifier), "race", {"a": ["White"], "b": ["Green"]})
    with pytest.raises(InvalidInputError, match="at most once"):
        ClassifierJudge.load(str(classifier), "race", {"a": ["White"], "b": ["White"]})
    with pytest.raises(InvalidInputError, match=r"cannot load the image classifier .*expected an id or folder"):
        ClassifierJudge.load(str(tmp_path / "nothing"), "race")


# ---- zero-shot -------------------------------------------------------------------------------------------------


def test_a_clip_compares_with_the_mean_text_of_each_value() -> None:
    images, world = people()
    model, preprocess, tokenizer = load_clip()
    judge = ClipJudge(model, preprocess, tokenizer, questions={"gender": GENDER})
    found = predict(judge, images)["gender"]
    assert (found.argmax(1) == world.gender.numpy()).mean() > 0.7

    with torch.no_grad():
        rows = [model.encode_text(tokenizer(list(p)), normalize=True).mean(0) for p in GENDER.prompts.values()]
        pixels = torch.stack([preprocess(image) for image in images])
        scores = model.encode_image(pixels, normalize=True) @ normalize(torch.stack(rows), dim=-1).T
        twin = (model.logit_scale.exp() * scores).softmax(-1)
    np.testing.assert_allclose(found, twin, atol=1e-4)
    surer = ClipJudge(model, preprocess, tokenizer, questions={"gender": GENDER}, scale=1000.0)
    assert (predict(surer, images)["gender"].max(1) > found.max(1)).all()


def test_rejects_compete_with_the_values() -> None:
    images, _ = people(20)
    model, preprocess, tokenizer = load_clip()
    reject = ("A photo of a male.", "This is a land background.")
    asked = {"gender": Question(GENDER.prompts, reject), "plain": GENDER}
    found = predict(ClipJudge(model, preprocess, tokenizer, questions=asked), images)
    rest = 1 - found["gender"].sum(1)
    assert (rest > 0.01).any()
    ratio = found["gender"] / found["gender"].sum(1, keepdims=True)
    np.testing.assert_allclose(ratio, found["plain"], atol=1e-6)


def test_the_fingerprint_changes_with_whatever_changes_the_answers() -> None:
    model, preprocess, tokenizer = load_clip()

    def of(question: Question, **scale: float) -> str:
        return ClipJudge(model, preprocess, tokenizer, questions={"gender": question}, **scale).fingerprint

    other = Question.of({"male": ["male"], "female": ["female"]}, ["A photo of a {value}."])
    assert len({of(GENDER), of(GENDER, scale=50.0), of(other), of(Question(other.prompts, ("a photo",)))}) == 4
    assert of(GENDER) == of(GENDER)
    flipped = Question(dict(reversed(GENDER.prompts.items())))
    assert of(flipped) != of(GENDER)  # other columns


def test_questions_are_made_of_words_templates_and_prompt_sets() -> None:
    assert Question.of(["Asian", "Latino"], ["a {value}", "a photo of a {value} person"]).prompts == {
        "Asian": ("an Asian", "a photo of an Asian person"),
        "Latino": ("a Latino", "a photo of a Latino person"),
    }
    asked = Question.about(load_prompts("skin-tone"))
    assert asked.prompts["light"] == ("a photo of a light-skinned person",)
    assert asked.reject == NO_PERSON


def test_bad_questions_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="expected two or more values with texts for each"):
        Question({"male": ("a man",)})
    with pytest.raises(InvalidInputError, match="two or more values"):
        Question({"male": ("a man",), "female": ()})
    with pytest.raises(InvalidInputError, match="a tuple of texts to reject by"):
        Question(GENDER.prompts, "a photo")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"templates: got 'a photo'; expected .*\{value\}"):
        Question.of(["a", "b"], ["a photo"])
    model, preprocess, tokenizer = load_clip()
    with pytest.raises(InvalidInputError, match="questions: expected at least one attribute"):
        ClipJudge(model, preprocess, tokenizer, questions={})


def test_the_scale_is_the_models_own() -> None:
    assert logit_scale(SimpleNamespace(logit_scale=torch.tensor(100.0).log())) == pytest.approx(100)
    assert logit_scale(SimpleNamespace(temperature=torch.tensor(0.02))) == pytest.approx(50)  # as ALIGN has it
    with pytest.raises(InvalidInputError, match=r"SimpleNamespace has no logit_scale; give scale= \(100 for CLIP\)"):
        logit_scale(SimpleNamespace(logit_scale=None))

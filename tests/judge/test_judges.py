"""Test judges, which return probabilities and a value or unknown. Every kind is compared with the
model it wraps."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from torch.nn.functional import normalize

from eval.miniature import portraits
from eval.miniature.people import STUDIO
from tests.study.painted_by_hand import GENDERS, Reader, Shows, chosen, paint, repaint
from tests.tiny_llava import load_llava
from vldebias import load_prompts
from vldebias.data.labels import UNKNOWN
from vldebias.errors import InvalidInputError
from vldebias.hosts.loading import Loaded
from vldebias.judge import judges
from vldebias.judge.judges import (
    ClassifierJudge,
    ClipJudge,
    Judge,
    MiniatureJudge,
    VlmJudge,
    predict,
)
from vldebias.judge.plan import GeneratedImages
from vldebias.judge.scores import judge_images
from vldebias.judge.stored import NO_VALUE, decide, last_judgements
from vldebias.miniature import load_clip, load_judge, open_world
from vldebias.study.inputs import Inputs
from vldebias.utils.options import Options

GENDER = {
    "male": ("A photo of a male.", "A photo of a man."),
    "female": ("A photo of a female.", "A photo of a woman."),
}


def people(n: int = 60) -> tuple[list[Image.Image], portraits.Portraits]:
    world = portraits.sample(n, seed=77, balanced=True, life=STUDIO)
    pixels = (world.images.permute(0, 2, 3, 1) * 255).round().byte().numpy()
    return [Image.fromarray(picture) for picture in pixels], world


def pictures(n: int) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)) for _ in range(n)]


@given(arrays(np.float64, (7, 3), elements=st.floats(0, 1)), st.floats(0, 1))
def test_a_value_is_the_most_likely_one_or_unknown(raw: np.ndarray, sure: float) -> None:
    probabilities = raw / np.maximum(raw.sum(1, keepdims=True), 1)
    labels = decide(probabilities, ("a", "b", "c"), sure)
    for row, code in zip(probabilities, labels.codes, strict=True):
        is_known = row.max() >= sure and row.max() >= 1 - row.sum()
        assert code == (row.argmax() if is_known else UNKNOWN)


@pytest.mark.parametrize(
    "rows",
    [
        np.empty(0),
        np.ones((2, 3)) / 3,
        [[3.0, -1.0], [0, 1]],
        [[0.7, 0.7], [0, 1]],
        [[np.nan, 0.7], [0, 1]],
    ],
)
def test_answers_must_be_probabilities(rows: Any) -> None:
    judge = Judge(
        "mine", {"light": ("dark", "bright")}, lambda images: {"light": np.asarray(rows)}, "1"
    )
    with pytest.raises(InvalidInputError, match="judge mine"):
        predict(judge, pictures(2))


def test_the_miniature_judge_is_the_packaged_network() -> None:
    images, world = people()
    probabilities = predict(MiniatureJudge().ready(), images)
    twin = load_judge().predict(
        torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    )
    portrait = twin["world_probabilities"][:, [1]]
    for attribute in ("profession", "gender", "tone", "age"):
        np.testing.assert_allclose(
            probabilities[attribute], twin[f"{attribute}_probabilities"] * portrait, atol=1e-6
        )
        assert (
            probabilities[attribute].argmax(1) == getattr(world, attribute).numpy()
        ).mean() > 0.9
    assert MiniatureJudge().ready().fingerprint == MiniatureJudge().ready().fingerprint
    with pytest.raises(InvalidInputError, match=r"the judge reads images \(n, 3, 64, 64\)"):
        MiniatureJudge().ready().predict(pictures(1))


def test_the_miniature_judge_finds_no_gender_in_a_bird_and_no_bird_in_a_person() -> None:
    judge = MiniatureJudge().ready()
    birds = open_world("birds", n=64)
    probabilities = predict(judge, [birds.read(i) for i in range(64)])
    assert (
        decide(probabilities["gender"], judge.names["gender"], 0.0).codes == UNKNOWN
    ).mean() > 0.95
    for attribute, truth in (("species", "species"), ("bird", "label"), ("background", "place")):
        assert (probabilities[attribute].argmax(1) == birds.labels[truth].codes).mean() > 0.9, (
            attribute
        )
    assert (
        decide(predict(judge, people()[0])["bird"], judge.names["bird"], 0.0).codes == UNKNOWN
    ).mean() > 0.95


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("vit")
    names = dict(enumerate(("Latino_Hispanic", "White", "Black", "nobody")))
    small = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
    }
    config = transformers.ViTConfig(image_size=8, patch_size=4, **small)
    config.id2label = names
    config.label2id = {name: i for i, name in names.items()}
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(folder)
    return folder


def race(folder: Path, values: Any = None) -> Judge:
    return ClassifierJudge(model=str(folder), attribute="race", values=values).ready(
        None, Inputs(Options(out=folder))
    )


def test_a_transformers_classifier_can_be_a_judge(classifier: Path) -> None:
    images, _ = people(5)
    plain = race(classifier)
    assert plain.names == {"race": ("Latino_Hispanic", "White", "Black", "nobody")}
    probabilities = predict(plain, images)["race"]
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-6)
    merged = race(classifier, {"other": ["Latino_Hispanic", "Black"], "White": "White"})
    race_probabilities = predict(merged, images)["race"]
    np.testing.assert_allclose(
        race_probabilities,
        np.stack([probabilities[:, 0] + probabilities[:, 2], probabilities[:, 1]], axis=1),
        atol=1e-6,
    )
    # Nobody is visible, so it is none of the values.
    np.testing.assert_allclose(1 - race_probabilities.sum(1), probabilities[:, 3], atol=1e-6)
    assert plain.fingerprint != merged.fingerprint
    assert plain.name == str(classifier)


def test_classifier_labels_are_checked(classifier: Path) -> None:
    for label in ("Green", "White"):
        with pytest.raises(InvalidInputError, match="Latino_Hispanic"):
            race(classifier, {"a": "White", "b": label})
    with pytest.raises(InvalidInputError, match="nothing"):
        race(classifier / "nothing")


def zero_shot(reject: tuple[str, ...] = (), **prompts: Any) -> Judge:
    model, preprocess, tokenizer = load_clip()
    return ClipJudge(prompts=prompts, reject=reject).on(
        Loaded(model, "miniature", tokenizer, preprocess)
    )


def test_a_clip_judge_compares_images_with_the_mean_text_of_each_value() -> None:
    images, world = people()
    model, preprocess, tokenizer = load_clip()
    gender_probabilities = predict(zero_shot(gender=GENDER), images)["gender"]
    assert (gender_probabilities.argmax(1) == world.gender.numpy()).mean() > 0.7
    with torch.no_grad():
        rows = [
            model.encode_text(tokenizer(list(p)), normalize=True).mean(0) for p in GENDER.values()
        ]
        pixels = torch.stack([preprocess(image) for image in images])
        scores = model.encode_image(pixels, normalize=True) @ normalize(torch.stack(rows), dim=-1).T
        twin = (model.logit_scale.exp() * scores).softmax(-1)
    np.testing.assert_allclose(gender_probabilities, twin, atol=1e-4)


def test_rejection_prompts_compete_with_the_values() -> None:
    images = people(20)[0]
    probabilities = predict(
        zero_shot(("A photo of a male.", "This is a land background."), gender=GENDER), images
    )["gender"]
    assert (1 - probabilities.sum(1) > 0.01).any()
    plain = predict(zero_shot(gender=GENDER), images)["gender"]
    np.testing.assert_allclose(
        probabilities / probabilities.sum(1, keepdims=True), plain, atol=1e-6
    )


def test_the_scale_is_the_logit_scale_of_the_model() -> None:
    # ALIGN has this layout.
    assert judges.logit_scale(SimpleNamespace(temperature=torch.tensor(0.02))) == pytest.approx(50)
    with pytest.raises(InvalidInputError, match="SimpleNamespace"):
        judges.logit_scale(SimpleNamespace(logit_scale=None))


VALUES = {"gender": ("male", "female")}


@pytest.fixture(scope="module")
def parts() -> tuple[transformers.LlavaForConditionalGeneration, transformers.LlavaProcessor]:
    return load_llava()


def judge_of(model: Any, processor: Any, **values: tuple[str, ...]) -> Judge:
    return VlmJudge(model="tiny", questions=values or VALUES, batch_size=2).on(model, processor)


def by_hand(parts, picture: Image.Image, text: str, answer: str) -> float:
    """Return the log-likelihood of an answer, with a separate forward pass for each token."""
    model, processor = parts
    total = 0.0
    before = f"USER: <image>\n{text} ASSISTANT: "
    for character in answer:
        batch = processor(text=before, images=picture, return_tensors="pt")
        with torch.no_grad():
            last = model(**batch).logits[0, -1].double().log_softmax(-1)
        total += float(last[processor.tokenizer.convert_tokens_to_ids(character)])
        before += character
    return total


def test_probabilities_are_the_average_over_orders_in_log_space(parts) -> None:
    (image,) = pictures(1)
    got = predict(judge_of(*parts), [image])["gender"][0]
    logarithms = []
    for order in ([0, 1, 2], [1, 0, 2]):
        text = VlmJudge.question(
            "gender", [[*VALUES["gender"], judges.NONE_OF_THESE][i] for i in order]
        )
        chances = np.array([by_hand(parts, image, text, letter) for letter in "ABC"])
        logarithms.append((chances - np.log(np.exp(chances).sum()))[order])
    mean = np.exp(np.mean(logarithms, axis=0))
    np.testing.assert_allclose(got, (mean / mean.sum())[:2], atol=1e-6)
    # The remaining probability belongs to "cannot be told", which counts as unknown.
    assert got.sum() < 1


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_the_order_of_values_does_not_change_the_answer(parts) -> None:
    images = pictures(2)
    values = ("White", "Black", "Asian")
    first, again = (
        judge_of(*parts, race=order).predict(images)["race"] for order in (values, values[::-1])
    )
    np.testing.assert_allclose(first, again[:, ::-1], rtol=1e-5)


def test_the_batch_size_does_not_change_the_answer(parts) -> None:
    got = judge_of(*parts).predict(pictures(3))["gender"]
    for image, row in zip(pictures(3), got, strict=True):
        np.testing.assert_allclose(judge_of(*parts).predict([image])["gender"][0], row, atol=1e-6)


@pytest.mark.parametrize(("variation", "n"), [(0.19, 0), (0.21, 1)])
def test_answers_that_vary_by_more_than_a_fifth_with_the_order_warn(
    parts, monkeypatch: pytest.MonkeyPatch, variation: float, n: int
) -> None:
    orders = np.array([[[0.5, 0.4, 0.1]], [[0.5 - variation, 0.4 + variation, 0.1]]])
    monkeypatch.setattr(VlmJudge, "_in_every_order", lambda *_: np.log(orders))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        judge = judge_of(*parts)
        for _ in range(2):  # it only warns once
            judge.predict(pictures(1))
    assert ["depend on the order" in str(warning.message) for warning in caught] == [True] * n


def test_the_fingerprint_changes_with_anything_that_affects_the_answers(parts) -> None:
    texts = {"male": "A photo of a male.", "female": "A photo of a female."}
    clips = [
        zero_shot(gender=GENDER),
        zero_shot(gender=texts),
        zero_shot(("a photo",), gender=GENDER),
    ]
    # Reverse the order of the columns.
    clips.append(zero_shot(gender=dict(reversed(GENDER.items()))))
    asking = [
        judge_of(*parts),
        judge_of(*parts, gender=("female", "male")),
        judge_of(*parts, sex=VALUES["gender"]),
    ]
    assert len({judge.fingerprint for judge in clips + asking}) == 7
    assert zero_shot(gender=GENDER).fingerprint == clips[0].fingerprint
    assert judge_of(*parts).fingerprint == asking[0].fingerprint


def test_a_question_has_at_least_two_values_with_one_letter_each(parts) -> None:
    for values in (("male",), tuple(map(str, range(26)))):
        with pytest.raises(InvalidInputError, match="gender"):
            VlmJudge.build({"model": "tiny", "questions": {"gender": values}})
    with pytest.raises(InvalidInputError, match="tiny"):
        judge_of(parts[0], parts[1].tokenizer)  # it does not have a chat template


def test_a_vlm_is_loaded_from_a_folder_and_judges_the_task(parts, tmp_path) -> None:
    model, processor = parts
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    inputs = Inputs(Options(out=tmp_path))
    task = SimpleNamespace(
        attributes=("gender x age",), attribute=load_prompts("professions-gender")
    )
    loaded = VlmJudge(model=str(tmp_path)).ready(task, inputs)
    image = pictures(1)
    np.testing.assert_allclose(
        loaded.predict(image)["gender"], judge_of(*parts).predict(image)["gender"], rtol=1e-5
    )
    with pytest.raises(InvalidInputError, match="cannot load the judge"):
        VlmJudge(model=str(tmp_path / "nothing")).ready(task, inputs)


@pytest.fixture
def drawn(tmp_path: Path) -> tuple[GeneratedImages, Shows]:
    """Return two images for each prompt and variant."""
    return paint(tmp_path, np.random.default_rng(0), stated=False, images=2, seeds=[0])


def test_answers_follow_the_order_of_the_images_and_are_stored(drawn) -> None:
    made, shows = drawn
    judge = Reader()
    predictions = judge_images(judge, made)
    assert judge.asked == len(made)
    assert predictions["age"].argmax(1).tolist() == [shows[image.path][1] for image in made]
    assert predictions["job"].argmax(1).tolist() == [shows[image.path][2] for image in made]
    again = judge_images(judge, made)
    assert judge.asked == len(made)
    assert all(
        np.array_equal(again[attribute], predictions[attribute]) for attribute in judge.names
    )
    made.path(made.images[0]).unlink()
    with pytest.raises(InvalidInputError, match=f"1 of {len(made)} images"):
        judge_images(judge, made)
    part = chosen(made, variant="cali", part="unseen")
    places = [list(made).index(image) for image in part]
    np.testing.assert_array_equal(
        judge_images(judge, part)["gender"], predictions["gender"][places]
    )


def test_changed_images_and_partial_lines_are_judged_again(drawn) -> None:
    made, shows = drawn
    judge = Reader()
    before = judge_images(judge, made)
    gender, age, job = shows[made.images[3].path]
    repaint(made, made.images[3], (gender, (age + 1) % 3, job))
    after = judge_images(judge, made)
    assert judge.asked == len(made) + 1
    assert after["age"][3].argmax() == (age + 1) % 3
    np.testing.assert_array_equal(np.delete(after["age"], 3, 0), np.delete(before["age"], 3, 0))
    (path,) = (made.folder / "judgements").glob("*.jsonl")
    header, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([header, *lines[20:]])[:-30])  # without the first twenty and the end
    again = judge_images(judge, made)
    assert judge.asked == len(made) + 1 + 20 + 1 - 1  # one of the twenty had changed
    assert all(np.array_equal(after[attribute], again[attribute]) for attribute in judge.names)


def test_the_newest_judge_of_an_attribute_answers_for_every_image(drawn) -> None:
    made, shows = drawn
    assert last_judgements(made, "gender", GENDERS) is None
    for name_of_judge in "ab":
        judge_images(
            SimpleNamespace(
                **{**vars(Reader()), "name": name_of_judge, "predict": Reader().predict}
            ),
            made,
        )
    blank = Judge("other", {"x": ("y", "z")}, lambda images: {"x": np.zeros((len(images), 2))}, "1")
    judge_images(blank, made)
    assert last_judgements(made, "gender", ("male", "neither")) is None
    made.path(made.images[0]).write_bytes(b"another")
    name, judged, sure = last_judgements(made, "gender", GENDERS)
    assert (name, judged[0], sure[0]) == ("b", NO_VALUE, 0)
    assert judged[1:] == [(*GENDERS, NO_VALUE)[shows[image.path][0]] for image in made.images[1:]]
    assert set(last_judgements(made, "gender", GENDERS[:1])[1]) == {"male", NO_VALUE}

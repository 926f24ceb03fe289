"""The vision-language judge: likelihoods against those computed by hand, no dependence on the order of values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from vldebias import load_prompts
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.evaluation.judges import NONE_OF_THESE, Judge, VlmJudge, predict, question
from vldebias.evaluation.session import Session
from vldebias.evaluation.task import Options

TEMPLATE = (
    "{% for m in messages %}USER: {% for c in m['content'] %}{% if c['type'] == 'image' %}<image>\n"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %} ASSISTANT:{% endif %}"
)
VALUES = {"gender": ("male", "female")}


def tiny(seed: int = 0) -> tuple[transformers.LlavaForConditionalGeneration, transformers.LlavaProcessor]:
    """A LLaVA of random weights whose tokenizer knows single characters."""
    characters = [chr(i) for i in range(32, 127)] + ["\n"]
    vocabulary = {name: i for i, name in enumerate(["<pad>", "<unk>", "<image>", *characters])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", extra_special_tokens={"image_token": "<image>"}
    )
    vision = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    text = transformers.LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(seed)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=2)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.3)
    pixels = transformers.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    processor = transformers.LlavaProcessor(
        pixels, tokenizer, patch_size=8, vision_feature_select_strategy="default", chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )  # fmt: skip
    return model, processor


def judge_of(model: Any, processor: Any, **values: tuple[str, ...]) -> Judge:
    return VlmJudge(model="tiny", questions=values or VALUES, batch_size=2).on(model, processor)


@pytest.fixture(scope="module")
def parts() -> tuple[transformers.LlavaForConditionalGeneration, transformers.LlavaProcessor]:
    return tiny()


def pictures(n: int, size: tuple[int, int] = (16, 16)) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)) for _ in range(n)]


def by_hand(parts, picture: Image.Image, text: str, answer: str) -> float:
    """Log-likelihood of an answer, one token after another, each from a forward pass of its own."""
    model, processor = parts
    total, before = 0.0, f"USER: <image>\n{text} ASSISTANT: "
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
    each = []
    for first, second in (("female", "male"), ("male", "female")):
        text = question("gender", [first, second, NONE_OF_THESE])
        chances = np.array([by_hand(parts, image, text, letter) for letter in "ABC"])
        chances -= np.log(np.exp(chances).sum())
        each.append({first: chances[0], second: chances[1], NONE_OF_THESE: chances[2]})
    mean = {name: (each[0][name] + each[1][name]) / 2 for name in each[0]}
    total = sum(map(np.exp, mean.values()))
    np.testing.assert_allclose(got, [np.exp(mean[name]) / total for name in VALUES["gender"]], atol=1e-6)
    assert got.sum() < 1  # the rest is "cannot be told", which counts as unknown


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
@pytest.mark.parametrize("values", [("White", "Black", "Asian"), ("male", "female")])
def test_the_order_of_values_does_not_change_the_answer(parts, values: tuple[str, ...]) -> None:
    images = pictures(2)
    for other in (values, values[::-1]):
        first = judge_of(*parts, race=values).predict(images)["race"]
        again = judge_of(*parts, race=tuple(other)).predict(images)["race"]
        for value in values:
            np.testing.assert_allclose(first[:, values.index(value)], again[:, other.index(value)], rtol=1e-12)


def test_pictures_of_several_sizes_are_read(parts) -> None:
    mixed = [*pictures(1), *pictures(1, (24, 16)), *pictures(2)]
    got = judge_of(*parts).predict(mixed)["gender"]
    np.testing.assert_allclose(got[0], got[2], atol=1e-7)
    for image, row in zip(mixed, got, strict=True):
        np.testing.assert_allclose(judge_of(*parts).predict([image])["gender"][0], row, atol=1e-6)


def test_a_strong_order_bias_warns() -> None:
    model, processor = tiny()
    with torch.no_grad():  # says A, whatever is asked
        model.lm_head.weight.zero_()
        model.lm_head.weight[processor.tokenizer.convert_tokens_to_ids("A")] = 50.0
    judge, text = judge_of(model, processor), question("gender", ["a", "b", NONE_OF_THESE])
    (picture,) = pictures(1)
    if by_hand((model, processor), picture, text, "A") < by_hand((model, processor), picture, text, "B"):
        with torch.no_grad():  # the sign of a random hidden state
            model.lm_head.weight.neg_()
    with pytest.warns(VldebiasWarning, match="depend on the order"):
        chances = judge.predict(pictures(2))["gender"]
    np.testing.assert_allclose(chances[:, 0], chances[:, 1], atol=0.01)


def test_other_questions_have_other_fingerprints(parts) -> None:
    first, same = judge_of(*parts), judge_of(*parts)
    others = [judge_of(*parts, gender=("female", "male")), judge_of(*parts, sex=VALUES["gender"])]
    assert first.fingerprint == same.fingerprint
    assert first.fingerprint not in {one.fingerprint for one in others}


def test_values_that_cannot_be_asked_for_are_refused(parts) -> None:
    for values in (("male",), tuple(map(str, range(26)))):
        with pytest.raises(InvalidInputError, match="gender"):
            VlmJudge.build({"model": "tiny", "questions": {"gender": values}})
    model, processor = parts
    with pytest.raises(InvalidInputError, match="chat template"):
        judge_of(model, processor.tokenizer)


def test_it_loads_from_a_folder_and_asks_for_the_attribute_of_the_task(parts, tmp_path) -> None:
    model, processor = parts
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    session, task = (
        Session(Options(out=tmp_path)),
        SimpleNamespace(attributes=("gender x age",), prompts=load_prompts("professions-gender")),
    )
    loaded, image = VlmJudge(model=str(tmp_path)).ready(task, session), pictures(1)
    np.testing.assert_allclose(loaded.predict(image)["gender"], judge_of(*parts).predict(image)["gender"], rtol=1e-5)
    with pytest.raises(InvalidInputError, match="cannot load the judge"):
        VlmJudge(model=str(tmp_path / "nothing")).ready(task, session)

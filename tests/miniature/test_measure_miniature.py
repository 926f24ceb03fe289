import pytest
import torch

from eval.miniature.cards import _table
from eval.miniature.measure import PROMPT, _group_accuracies, _over_seeds, embed_ends, generate
from vldebias.miniature import birds, load_pipeline, portraits


@pytest.fixture(scope="module")
def pipeline():
    return load_pipeline()


def test_group_accuracies_of_a_classifier_that_sees_the_background_alone():
    world = birds.sample(200, seed=0, balanced=True)
    features = torch.nn.functional.one_hot(world.background, 2).float()
    values = _group_accuracies(features, torch.eye(2), world)
    assert values["worst group"] == 0
    assert values["average"] == values["gap"] == 0.5
    assert values["landbird on land"] == values["waterbird on water"] == 1


def test_group_accuracies_do_not_depend_on_the_length_of_a_prompt_embedding():
    world = birds.sample(200, seed=0, balanced=True)
    torch.manual_seed(0)
    features, classes = torch.randn(200, 5), torch.randn(2, 5)
    longer = classes * torch.tensor([[7.0], [0.1]])
    assert _group_accuracies(features, classes, world) == _group_accuracies(features, longer, world)


def test_seeds_are_summed_up():
    runs = [{"none": {"x": value}} for value in (0.1, 0.2, 0.6)]
    assert _over_seeds(runs) == {"none": {"x": {"mean": 0.3, "sd": 0.2646, "seeds": [0.1, 0.2, 0.6]}}}


def test_rows_that_measure_other_things_get_another_table():
    cell = {"mean": 0.5, "sd": 0.01}
    text = _table({"none": {"worst": cell}, "orth": {"worst": cell}, "reads": {"species": cell}})
    first, second = text.split("\n\n")
    assert first.splitlines() == ["| | worst |", "|---|---|", "| none | 0.500 (0.010) |", "| orth | 0.500 (0.010) |"]
    assert second.splitlines()[0] == "| | species |"


def test_ends_are_the_hidden_states_at_the_end_token(pipeline):
    prompts = [PROMPT.format(name) for name in ("chef", "real estate agent")]
    ends = embed_ends(pipeline, prompts)
    for prompt, end in zip(prompts, ends, strict=True):
        alone = pipeline.tokenizer([prompt], return_tensors="pt").input_ids  # no padding: the last token is the end
        with torch.no_grad():
            last = pipeline.text_encoder(alone).last_hidden_state[0, -1]
        assert torch.allclose(end, last / last.norm(), atol=1e-5)


def test_nothing_is_what_a_projection_that_does_nothing_does(pipeline):
    prompts = [PROMPT.format(name) for name in portraits.TEST_PROFESSIONS[:2]]
    plain = generate(pipeline, prompts, 2, seed=3, steps=2)
    same = generate(pipeline, prompts, 2, seed=3, steps=2, projection=lambda z: z * 1)
    other = generate(pipeline, prompts, 2, seed=3, steps=2, projection=lambda z: z * 0.5)
    assert plain.shape == (4, 3, 64, 64)
    assert torch.equal(plain, same)
    assert not torch.allclose(plain, other, atol=1e-3)


def test_noise_depends_on_the_seed_and_on_the_place_of_the_image(pipeline):
    prompts = ["A photo of a chef."] * 2
    one, other = (generate(pipeline, prompts, 2, seed=seed, steps=1) for seed in (3, 4))
    images = torch.cat([one, other])
    distance = torch.cdist(images.flatten(1), images.flatten(1)) + 10 * torch.eye(8)
    assert distance.min() > 0.1
    assert torch.equal(generate(pipeline, prompts[:1], 2, seed=3, steps=1), one[:2])


def test_generate_draws_what_the_pipeline_draws(pipeline):
    ours = generate(pipeline, ["A photo of a chef."], 1, seed=0, steps=3)
    theirs = pipeline(
        "A photo of a chef.",
        num_inference_steps=3,
        guidance_scale=3.0,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
    ).images
    assert torch.allclose(ours, theirs, atol=1e-5)

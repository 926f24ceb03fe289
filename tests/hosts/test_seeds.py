"""Test that values follow the generators of a call, so that the same seed shows the same person."""

from collections import Counter

import diffusers_tiny as tiny
import pytest
import torch
from diffusers_tiny import CASES, modular

from vldebias.api import debias
from vldebias.hosts.seeds import indices_of
from vldebias.methods import Balanced

OPEN = "A photo of a nurse."
OTHERS = ["A photo of a doctor.", "A photo of a pilot.", "A photo of a judge.", OPEN]
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore:.*trust_remote_code.*", "ignore:.*LoraLoaderMixin.*"
)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def attach(pipe, **options):
    return debias(pipe, "gender", method=Balanced(seed=0), **options)


@pytest.fixture
def attachment(pipe):
    with attach(pipe) as attachment:
        yield attachment


def value(pipe, attachment, **call):
    tiny.draw(pipe, OPEN, **call)
    return attachment.sampled[0]


def test_the_same_call_gives_the_same_picture_in_every_attachment(pipe):
    drawn = []
    for calls_before in (0, 1, 3):
        with attach(pipe) as attachment:
            attachment.rewrite([OPEN] * calls_before)
            for seed in (3, 2**40):
                image = tiny.draw(pipe, OPEN, generator=generator(seed))
                assert attachment.last_call.index == (seed,)
                drawn.append((seed, attachment.sampled, image))
    for seed, sampled, image in drawn[2:]:
        first = drawn[0] if seed == 3 else drawn[1]
        assert sampled == first[1]
        assert torch.equal(image, first[2])


def test_consecutive_seeds_give_even_shares(pipe, attachment):
    values = [value(pipe, attachment, generator=generator(seed)) for seed in range(8)]
    assert Counter(values) == {"female": 4, "male": 4}
    # Calls of three images continue after the previous one.
    values = []
    for seed in range(4):
        values += attachment.rewrite([OPEN] * 3, seeds=generator(seed))
    assert Counter(values) == {
        "A photo of a female nurse.": 6,
        "A photo of a male nurse.": 6,
    }


@pytest.mark.parametrize("seeds", [range(6), [5, 7, 9, 11], [0] * 4, [1, 2], [2**63, 17, 4, 4]])
def test_a_list_of_generators_gives_even_shares_within_the_call(pipe, attachment, seeds):
    values = []
    for _ in range(2):
        generators = [generator(seed) for seed in seeds]
        tiny.draw(pipe, OPEN, generator=generators, num_images_per_prompt=len(generators))
        values.append(attachment.sampled)
    assert values[0] == values[1]
    assert Counter(values[0]) == {"female": len(seeds) // 2, "male": len(seeds) // 2}


def test_different_prompts_with_the_same_seed_give_even_shares(pipe, attachment):
    for seed in range(6):
        tiny.draw(pipe, OTHERS, generator=[generator(seed) for _ in OTHERS])
        assert Counter(attachment.sampled) == {"female": 2, "male": 2}


def test_a_picture_in_a_batch_only_depends_on_its_seed(pipe, attachment):
    """The third picture of eight can be regenerated from its seed."""
    generators = [generator(seed) for seed in range(8)]
    tiny.draw(pipe, OPEN, generator=generators, num_images_per_prompt=8)
    of_batch = attachment.sampled
    alone = [value(pipe, attachment, generator=generator(seed)) for seed in range(8)]
    assert of_batch == alone


def test_one_generator_in_many_calls_gives_different_values(pipe, attachment):
    used = generator(0)
    values = [value(pipe, attachment, generator=used) for _ in range(12)]
    assert set(values) == {"female", "male"}
    again = generator(0)
    assert values == [value(pipe, attachment, generator=again) for _ in range(12)]


def test_without_a_generator_or_on_request_values_are_even_over_calls(pipe):
    with attach(pipe) as attachment:
        expected = [value(pipe, attachment, generator=None) for _ in range(6)]
        assert attachment.last_call.index is None
    with attach(pipe, follow_seeds=False) as attachment:
        values = [value(pipe, attachment, generator=generator(0)) for _ in range(6)]
        assert attachment.last_call.index is None
    assert values == expected
    assert Counter(values) == {"female": 3, "male": 3}


def test_shares_and_strength_apply_to_consecutive_seeds(pipe):
    method = Balanced(shares={"female": 0.7, "male": 0.3}, seed=0)
    with debias(pipe, "gender", method=method) as attachment:
        for seed in range(20):
            attachment.rewrite([OPEN], seeds=seed)
        values = [record.values[0] for record in attachment.calls]
        assert Counter(values) == {"female": 14, "male": 6}
    with attach(pipe, strength=0.5) as attachment:
        attachment.rewrite([OPEN] * 8, seeds=range(8))
        assert Counter(attachment.sampled) == {"female": 2, "male": 2, None: 4}


@pytest.mark.parametrize("name", ["StableDiffusionXL", "StableDiffusion3", "Flux"])
def test_generators_from_other_families_are_recognised(name):
    make, call = tiny.FAMILIES[name]
    pipe = make()
    with attach(pipe) as attachment:
        for _ in range(2):
            tiny.draw(pipe, OPEN, **call | {"generator": generator(5)})
    assert [record.index for record in attachment.calls] == [(5,), (5,)]
    assert attachment.calls[0].values == attachment.calls[1].values


def test_modular_pipelines_behave_the_same():
    pipe = modular("StableDiffusionXL")
    small = {"num_inference_steps": 1, "height": 16, "width": 16, "output_type": "latent"}
    with attach(pipe) as attachment:
        for _ in range(2):
            pipe(prompt=OPEN, generator=generator(5), output="latents", **small)
    assert [record.index for record in attachment.calls] == [(5,), (5,)]


def test_a_pipeline_that_encodes_a_prompt_once_uses_its_first_generator():
    pipe = CASES["ZImage"].make(is_complete=True)
    with attach(pipe) as attachment:
        generators = [generator(seed) for seed in (4, 5)]
        with pytest.warns(UserWarning, match="num_images_per_prompt"):
            CASES["ZImage"].draw(pipe, [OPEN], num_images_per_prompt=2, generator=generators)
    assert attachment.last_call.index == (4,)


def test_a_subclass_that_forwards_its_options_is_supported():
    from diffusers import StableDiffusionPipeline

    class Own(StableDiffusionPipeline):
        def __call__(self, prompt, **options):
            return super().__call__(prompt, **options)

    pipe = Own(**tiny.sd().components, requires_safety_checker=False)
    with attach(pipe) as attachment:
        tiny.draw(pipe, OPEN, generator=generator(9))
    assert attachment.last_call.index == (9,)


def test_anything_but_a_seed_is_ignored():
    for seeds in (None, "seed", True, -1, [], [1, "seed"], [1, 2, 3]):
        assert indices_of(seeds, [OPEN] * 2) is None
    assert indices_of(3, [OPEN] * 2 + OTHERS[:1]) == [6, 7, 3]
    assert indices_of([7, 1], [OPEN] * 2) == [7, 1]

"""Test that pipelines generate from the balanced prompts and nothing else changes."""

from collections import Counter

import diffusers_tiny as tiny
import pytest
import torch
from diffusers_tiny import CASES, modular, modular_states
from models_tiny import make_clip
from torch import nn

from vldebias.api import debias, fit_projections
from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasWarning
from vldebias.hosts.pipelines.calls import PICTURES, edited_images, set_texts, texts_of_images
from vldebias.methods import Balanced
from vldebias.methods.presets import log_once

SET = "professions-gender"
PROMPTS = ["A photo of a nurse.", "a red car", "A photo of a doctor."]
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*trust_remote_code.*", "ignore:.*LoraLoaderMixin.*:FutureWarning"
)


def balanced(pipe, **options):
    return debias(pipe, SET, method="balanced-prompts", **options)


def rewritten(attachment, prompts, images=2):
    """Rewrite the prompts of every image by simple replacement."""
    repeated_prompts = [prompt for prompt in prompts for _ in range(images)]
    values = attachment.sampled
    assert [value is None for value in values] == ["car" in prompt for prompt in repeated_prompts]
    return [
        p if v is None else p.replace(" of a ", f" of a {v} ")
        for p, v in zip(repeated_prompts, values, strict=True)
    ]


def noises():
    return [torch.Generator().manual_seed(seed) for seed in range(6)]


@pytest.mark.parametrize(
    "name", ["StableDiffusion", "StableDiffusionXL", "StableDiffusion3", "Flux", "PixArt", "Sana"]
)
def test_pictures_are_generated_from_the_rewritten_prompts(name):
    make, call = tiny.FAMILIES[name]
    pipe = make()
    bare = make()
    guided = {"negative_prompt": ["blurry"] * 3, "guidance_scale": 3.0} | call
    if name == "Flux":
        guided |= {"true_cfg_scale": 2.0}
    attachment = balanced(pipe)
    drawn = tiny.draw(pipe, PROMPTS, num_images_per_prompt=2, **guided | {"generator": noises()})
    texts = rewritten(attachment, PROMPTS)
    assert set(attachment.sampled) == {"female", "male", None}
    guided_call = guided | {"negative_prompt": ["blurry"] * 6, "generator": noises()}
    assert torch.equal(drawn, tiny.draw(bare, texts, **guided_call))


@pytest.mark.parametrize("name", ["Wan", "QwenImage", "Flux2Klein", "HunyuanDiT"])
def test_videos_and_separate_negative_encodings_use_the_rewritten_prompts(name):
    drawing = CASES[name]
    pipe = drawing.make(is_complete=True)
    prompts = PROMPTS[:1] if drawing.one_by_one else PROMPTS
    count = "num_videos_per_prompt" if name == "Wan" else "num_images_per_prompt"
    images = {"generator": noises()[: 2 * len(prompts)]}
    with balanced(pipe) as attachment:
        drawn = drawing.draw(pipe, prompts, **images)
        texts = rewritten(attachment, prompts)
    images = {"generator": noises()[: 2 * len(prompts)]}
    assert torch.equal(drawn, drawing.draw(pipe, texts, **{count: 1}, **images))


def test_every_encoding_in_a_call_has_the_values_of_all_people():
    """HunyuanDiT encodes a prompt with two encoders."""
    drawing = CASES["HunyuanDiT"]
    pipe = drawing.make(is_complete=True)
    with balanced(pipe) as attachment:
        drawn = drawing.draw(pipe, ["a nurse and a chef"])
        written = attachment.last_call.written
    assert torch.equal(drawn, drawing.draw(pipe, written, num_images_per_prompt=1))


def test_encoding_once_for_all_images_of_a_prompt_warns_once():
    """Z-Image repeats embeddings after its encoder, so its images share a value unless the prompt
    is repeated."""
    pipe = CASES["ZImage"].make(is_complete=True)
    draw = CASES["ZImage"].draw
    attachment = balanced(pipe)
    with pytest.warns(VldebiasWarning, match="ZImagePipeline: .*num_images_per_prompt"):
        draw(pipe, PROMPTS[:1])
    assert len(attachment.sampled) == 1
    # The warning was already issued, and a second one would be an error.
    draw(pipe, PROMPTS[:1] * 4, num_images_per_prompt=1)
    assert sorted(attachment.sampled) == ["female"] * 2 + ["male"] * 2


CHAT_OF_PIPELINE = {
    "QwenImage": "<|im_start|>system\nDescribe the image",
    "ZImage": "<|im_start|>user\n",
}
PROMPT_OF_LANGUAGE = {
    "Chinese": ("一位医生在走廊里", {"female": "一位女医生在走廊里", "male": "一位男医生在走廊里"}),
    "German": (
        "Ein Foto von einem Arzt",
        {"female": "Ein Foto von einer Ärztin", "male": "Ein Foto von einem männlichen Arzt"},
    ),
}


@pytest.mark.filterwarnings("ignore:ZImagePipeline.*encodes a prompt once")
@pytest.mark.parametrize("language", PROMPT_OF_LANGUAGE)
@pytest.mark.parametrize("name", CHAT_OF_PIPELINE)
def test_chats_contain_the_balanced_prompts_of_other_languages(name, language, monkeypatch):
    """The tokens of the chat template around the balanced prompt do not change."""
    prompt, text_of_value = PROMPT_OF_LANGUAGE[language]
    drawing = CASES[name]
    chats = []
    tokenizer_class = type(drawing.make(is_complete=True).tokenizer)
    tokenize = tokenizer_class.__call__

    def recorded(self, text, *args, **options):
        tokens = tokenize(self, text, *args, **options)
        for row in tokens.input_ids:
            chats.append(self.decode(row).replace("<pad>", ""))
        return tokens

    monkeypatch.setattr(tokenizer_class, "__call__", recorded)

    def read_chats(pipe, prompts):
        chats.clear()
        # Long enough for letters that take several tokens.
        options = {"num_images_per_prompt": 1, "max_sequence_length": 128}
        drawn = drawing.draw(pipe, prompts, generator=noises()[: len(prompts)], **options)
        return drawn, list(chats)

    bare = drawing.make(is_complete=True)
    _, (open_chat, *_) = read_chats(bare, [prompt] * 2)
    assert open_chat.startswith(CHAT_OF_PIPELINE[name])
    pipe = drawing.make(is_complete=True)
    attachment = balanced(pipe)
    drawn, written_chats = read_chats(pipe, [prompt] * 2)
    assert sorted(attachment.sampled) == ["female", "male"]
    texts = [text_of_value[value] for value in attachment.sampled]
    for text in texts:
        assert open_chat.replace(prompt, text) in written_chats
    assert open_chat not in written_chats
    expected, _ = read_chats(bare, texts)
    assert torch.equal(drawn, expected)


def test_modular_pipelines_behave_the_same():
    pipe = modular("StableDiffusionXL")
    names = list(pipe._blocks.sub_blocks)
    before = dict(vars(pipe))
    attachment = balanced(pipe)
    drawn = tiny.draw_modular(pipe, PROMPTS, num_images_per_prompt=2, generator=noises())
    texts = rewritten(attachment, PROMPTS)
    attachment.remove()
    assert (list(pipe._blocks.sub_blocks), vars(pipe)) == (names, before)
    assert torch.equal(drawn, tiny.draw_modular(pipe, texts, generator=noises()))


def test_a_block_for_single_prompts_warns_that_images_share_a_value():
    pipe = modular("Flux3")
    expected = [
        modular_states(modular("Flux3"), [f"A photo of a {value} nurse."])
        for value in ("male", "female")
    ]
    attachment = balanced(pipe)
    # A warning would be an error.
    states = modular_states(pipe, PROMPTS[:1], num_images_per_prompt=1)
    with pytest.warns(VldebiasWarning, match="Flux3.*num_images_per_prompt above 1"):
        modular_states(pipe, PROMPTS[:1], num_images_per_prompt=2)
    assert len(attachment.sampled) == 1
    assert any(
        torch.equal(states["prompt_embeds"][0], expected_states["prompt_embeds"][0])
        for expected_states in expected
    )


def test_a_passed_batch_size_becomes_the_number_of_images():
    call = {
        "prompt": ["nurse", "pilot"],
        "negative_prompt": ["a", "b"],
        "num_images_per_prompt": 2,
        "batch_size": 2,
    }
    texts = texts_of_images(call)
    assert texts == {"prompt": ["nurse", "nurse", "pilot", "pilot"]}
    set_texts(call, {"prompt": [f"{text}!" for text in texts["prompt"]]})
    assert [*call.values()] == [
        ["nurse!", "nurse!", "pilot!", "pilot!"],
        ["a", "a", "b", "b"],
        1,
        4,
    ]


def encoder_inputs(name, pipe, prompts, images):
    """Return the tensors that the text encoders of a pipeline receive in a call, in order."""
    seen = []
    hooks = []

    def note(module, args, kwargs):
        values = [*args, *(kwargs[name] for name in sorted(kwargs))]
        seen.extend(value.clone() for value in values if isinstance(value, torch.Tensor))

    for key, part in pipe.components.items():
        if "text_encoder" in key and isinstance(part, nn.Module):
            hooks.append(part.register_forward_pre_hook(note, with_kwargs=True))
    if name == "modular":
        tiny.draw_modular(pipe, prompts, num_images_per_prompt=images)
    elif name in CASES:
        CASES[name].draw(pipe, prompts, num_videos_per_prompt=images)
    else:
        tiny.draw(pipe, prompts, num_images_per_prompt=images, **tiny.FAMILIES[name][1])
    for hook in hooks:
        hook.remove()
    return seen


MAKERS = {name: tiny.FAMILIES[name][0] for name in ("StableDiffusion", "StableDiffusionXL", "Flux")}
MAKERS |= {"PixArt": tiny.FAMILIES["PixArt"][0], "modular": lambda: modular("StableDiffusionXL")}
MAKERS["Wan"] = lambda: CASES["Wan"].make(is_complete=True)


# The number of images per prompt is read from a pipeline and from blocks.
@pytest.mark.parametrize(
    ("name", "images"),
    [(name, 2) for name in MAKERS]
    + [("StableDiffusion", 1), ("StableDiffusion", 4), ("modular", 4)],
)
def test_unchanged_prompts_reach_the_encoders_bit_identically(name, images):
    pipe = MAKERS[name]()
    open_prompts, stated = PROMPTS[:1], ["a photo of a female doctor"]
    bare = encoder_inputs(name, pipe, open_prompts, images)
    bare_stated = encoder_inputs(name, pipe, stated, images)
    attachment = balanced(pipe, strength=0)
    assert tiny.equal_tensors(bare, encoder_inputs(name, pipe, open_prompts, images))
    assert attachment.sampled == [None] * images
    attachment.strength = 1
    assert tiny.equal_tensors(bare_stated, encoder_inputs(name, pipe, stated, images))
    assert not tiny.equal_tensors(bare, encoder_inputs(name, pipe, open_prompts, images))
    assert bare


def test_a_plan_of_many_calls_is_balanced_at_once():
    pipe = tiny.sd()
    attachment = balanced(pipe)
    texts = attachment.rewrite(["A photo of a nurse."] * 6)
    assert Counter(attachment.sampled) == {"female": 3, "male": 3}
    assert texts == [f"A photo of a {value} nurse." for value in attachment.sampled]
    (text,) = attachment.rewrite("A photo of a nurse.")
    assert text == f"A photo of a {attachment.sampled[0]} nurse."


def test_balanced_prompts_are_not_an_edit():
    pipe = tiny.sd()
    with pytest.raises(UnsupportedHostError, match=r"CLIP: .* only supported for diffusers"):
        balanced(make_clip())
    with pytest.raises(InvalidInputError, match="cali"):
        fit_projections(pipe, SET, method="balanced-prompts")
    with pytest.raises(UnsupportedHostError, match="cali"):
        balanced(pipe).merge()


@pytest.mark.parametrize("method", [None, "default"])
def test_people_in_an_input_picture_only_change_on_request(method, caplog):
    from diffusers import StableDiffusionImg2ImgPipeline

    log_once.cache_clear()
    pipe = tiny.sd(StableDiffusionImg2ImgPipeline)
    with debias(pipe, SET, method=method) as attachment:
        assert attachment.projections["sequence"].method == "cali"
    (notice,) = [record.message for record in caplog.records if record.name == "vldebias"]
    assert "StableDiffusionImg2ImgPipeline only edits existing images or videos" in notice
    assert 'default here is "cali"' in notice
    assert "method=" not in notice  # no other method is suggested
    assert "balanced-prompts" in repr(balanced(pipe))


@pytest.mark.parametrize("name", ["Flux2", "Flux2Klein"])
def test_a_pipeline_that_can_edit_balances_calls_without_a_picture(name, caplog):
    log_once.cache_clear()
    case = CASES[name]
    pipe = case.make(is_complete=True)
    with debias(pipe, "gender") as attachment:
        case.draw(pipe, ["A photo of a nurse."] * 2, num_images_per_prompt=1)
        assert sorted(attachment.sampled) == ["female", "male"]
    assert not [record for record in caplog.records if record.name == "vldebias"]


@pytest.mark.parametrize("method", [None, "balanced-prompts"])
def test_a_call_with_a_picture_keeps_its_prompts_and_is_not_counted(method):
    case = CASES["Flux2Klein"]
    pipe = case.make(is_complete=True)
    edited = {"image": tiny.picture().resize((64, 64))}
    bare = case.draw(pipe, [PROMPTS[0]], **edited)
    with debias(pipe, "gender", method=method) as attachment:
        assert torch.equal(case.draw(pipe, [PROMPTS[0]], **edited), bare)
        record = attachment.last_call
        assert record.prompts == record.written == (PROMPTS[0],) * 2
        assert (record.values, record.reasons) == ((None, None), ("edit", "edit"))
        values = []
        for number in range(4):
            case.draw(pipe, [PROMPTS[0]], num_images_per_prompt=1, generator=None)
            values += attachment.sampled
            if number % 2:
                case.draw(pipe, [PROMPTS[0]], num_images_per_prompt=1, generator=None, **edited)
    assert Counter(values) == {"female": 2, "male": 2}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [False, False]),
        ({"image": None, "video": []}, [False, False]),
        ({"image": [None, None]}, [False, False]),
        ({"image": [[], []]}, [False, False]),
        ({"image": "picture"}, [True, True]),
        ({"image": ["picture"]}, [True, True]),
        ({"image": ["picture", None]}, [True, False]),
        ({"image": [[], ["picture", "picture"]]}, [False, True]),
        ({"image": ["picture", None, None]}, [True, True]),
        ({"image": ["picture", None], "video": [None, "video"]}, [True, True]),
        ({"mask_image": torch.zeros(1, 4, 4)}, [True, True]),
        ({"control_image": "picture", "ip_adapter_image": "picture"}, [False, False]),
    ],
)
def test_a_picture_in_a_list_only_concerns_its_own_prompt(arguments, expected):
    assert edited_images(PICTURES, arguments, {"prompt": PROMPTS[:2]}) == expected
    call = {"prompt": PROMPTS[:2], "num_images_per_prompt": 2}
    repeated = [edit for edit in expected for _ in range(2)]
    assert edited_images(PICTURES, arguments, call) == repeated


@pytest.mark.parametrize("seeds", [None, [4, 5, 6]])
def test_prompts_next_to_an_edit_are_balanced(seeds):
    attachment = debias(tiny.sd(), "gender", method=Balanced(seed=0))
    prompts = ["a nurse", "a doctor", "a pilot"]
    texts = attachment.rewrite_texts({"prompt": prompts}, edits=[False, True, False], seeds=seeds)[
        "prompt"
    ]
    record = attachment.last_call
    assert (record.values[1], record.reasons) == (None, (None, "edit", None))
    assert texts[1] == "a doctor"
    assert sorted(record.values[::2]) == ["female", "male"]
    assert record.written == tuple(texts)
    assert record.people == (
        (("nurse", record.values[0]),),
        (),
        (("pilot", record.values[2]),),
    )


def test_a_picture_for_a_controlnet_only_guides_the_generation():
    from diffusers import StableDiffusionControlNetPipeline

    pipe = tiny.sd(StableDiffusionControlNetPipeline, controlnet=tiny.MODELS["controlnet"]())
    with debias(pipe, "gender") as attachment:
        size = pipe.unet.config.sample_size * pipe.vae_scale_factor
        tiny.draw(pipe, PROMPTS[0], image=torch.zeros(1, 3, size, size), num_images_per_prompt=2)
        assert sorted(attachment.sampled) == ["female", "male"]


def test_a_modular_pipeline_keeps_the_prompts_of_a_call_with_a_picture():
    pipe = modular("Flux2Klein")
    with debias(pipe, "gender") as attachment:
        modular_states(pipe, PROMPTS[:1], image=tiny.picture().resize((64, 64)))
        assert attachment.reasons == ["edit"]
        modular_states(pipe, PROMPTS[:1])
        assert attachment.reasons == [None]


def test_a_random_seed_is_recorded_and_reproduces_the_calls():
    values = []
    attachment = balanced(tiny.sd())
    values += [attachment.rewrite(PROMPTS[:1]) for _ in range(8)]
    attachment.seed = attachment.seed
    assert values == [attachment.rewrite(PROMPTS[:1]) for _ in range(8)]
    with debias(tiny.sd(), SET, method=Balanced(seed=attachment.seed)) as again:
        assert values == [again.rewrite(PROMPTS[:1]) for _ in range(8)]
    seeds = {balanced(tiny.sd()).seed for _ in range(3)}
    assert len(seeds) == 3


def test_a_removed_attribute_says_what_to_do_instead():
    with debias(tiny.sd(), SET) as attachment:
        with pytest.raises(AttributeError, match=r"'originals'; balance the user's prompt first"):
            attachment.originals(["a nurse"])
        with pytest.raises(AttributeError, match=r"no attribute 'unknown'$"):
            attachment.unknown  # noqa: B018


def test_stated_values_are_always_preserved():
    with pytest.raises(InvalidInputError, match="keep_stated=False"):
        balanced(tiny.sd(), keep_stated=False)

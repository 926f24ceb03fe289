"""Test calls in which one video has several prompts, or whose arguments count words of the prompt.

A value per text would change the person in the middle of the video.
"""

import inspect
from functools import partial

import diffusers
import diffusers_tiny as tiny
import pytest
import torch
from diffusers_tiny import CASES, NEGATIVE, VARIANTS

from vldebias.api import debias
from vldebias.hosts.pipelines.calls import listed
from vldebias.methods import Balanced

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LoraLoaderMixin.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*trust_remote_code.*"),
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),
    pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning"),
]
NURSE = "a photo of a nurse"
SEVERAL = "one video with several prompts"
# Calls that encode more texts than their prompts and negative prompts, since one video has several.
MORE_TEXTS = {"AnimateDiff, free noise", "LTX, windows"}


@tiny.quiet()
def animated(cls=None):
    """Return a tiny AnimateDiff with free noise."""
    sd = tiny.sd()
    parts = {name: getattr(sd, name) for name in ("vae", "text_encoder", "tokenizer", "unet")}
    motion = diffusers.MotionAdapter(
        block_out_channels=(8, 16),
        motion_layers_per_block=1,
        motion_norm_num_groups=2,
        motion_num_attention_heads=4,
    )
    cls = cls or diffusers.AnimateDiffPipeline
    pipe = cls(**parts, scheduler=sd.scheduler, motion_adapter=motion)
    pipe.set_progress_bar_config(disable=True)
    pipe.enable_free_noise(context_length=4, context_stride=2)
    return pipe


def animate(pipe, prompt, **call):
    prompt = prompt[0] if isinstance(prompt, list) else prompt
    usual = {"num_frames": 8, "num_inference_steps": 1, "height": 16, "width": 16}
    return pipe(prompt, output_type="latent", guidance_scale=3.0, **usual | call).frames


def windowed():
    """Return the pipeline that encodes a prompt for each window of a long video."""
    tiny.skip_without("diffusers", "LTXI2VLongMultiPromptPipeline")
    return CASES["LTX"].make(is_complete=True, pipeline="LTXI2VLongMultiPromptPipeline")


def draw_windows(pipe, prompt, **call):
    usual = {"num_frames": 17, "height": 32, "width": 32, "num_inference_steps": 1}
    usual |= {"temporal_tile_size": 16, "temporal_overlap": 8, "max_sequence_length": 40}
    return pipe(prompt=prompt, output_type="latent", **usual | call)


def calls():
    """Return, by name, how to build a pipeline, how to call it, and the options of the call."""
    built = {}
    for name, case in CASES.items():
        if name not in ("BriaFibo", "HiDream", "HunyuanDiT"):
            built[name] = partial(case.make, is_complete=True), case.draw, {}
    for name, (family, call) in VARIANTS.items():
        case = CASES[family]
        built[name] = partial(case.make, is_complete=True, pipeline=name), case.draw, call
    built["AnimateDiff, free noise"] = animated, animate, {}
    built["LTX, windows"] = windowed, draw_windows, {}
    return built


CALLS = calls()


@pytest.mark.parametrize("name", CALLS)
def test_no_call_encodes_more_texts_than_prompts_unless_it_is_listed(name):
    make, draw, options = CALLS[name]
    pipe = make()
    attachment = debias(pipe, "gender", method=Balanced(seed=0))
    hooked, texts = pipe.encode_prompt, []

    def encode(*args, **kwargs):
        bound = inspect.signature(type(pipe).encode_prompt).bind(pipe, *args, **kwargs)
        texts.extend(filter(None, listed(bound.arguments.get("prompt"))))
        return hooked(*args, **kwargs)

    pipe.encode_prompt = encode
    draw(pipe, [NURSE], **options)
    positive = [text for text in texts if text != NEGATIVE]
    assert (len(positive) > 1) == (name in MORE_TEXTS)
    assert (SEVERAL in attachment.reasons) == (name in MORE_TEXTS)


PROMPTS = {
    "one prompt": NURSE,
    "a prompt per frame": {0: NURSE, 4: "a nurse in a garden", 7: "a nurse at night"},
}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_all_frames_of_a_video_show_the_same_person_and_the_record_says_why(prompt):
    pipe = animated()
    bare = animate(pipe, prompt, generator=torch.manual_seed(0))
    records = []
    attachment = debias(pipe, "gender", method=Balanced(seed=0), on_call=records.append)
    for _ in range(2):
        drawn = animate(pipe, prompt, generator=torch.manual_seed(0))
        assert torch.equal(drawn, bare)
    shown = " | ".join(prompt.values()) if isinstance(prompt, dict) else prompt
    for record in records:
        assert (record.prompts, record.written) == ((shown,), (shown,))
        assert (record.values, record.reasons) == ((None,), (SEVERAL,))
    assert len(records) == 2, "one record for each call"
    attachment.strength = 0
    animate(pipe, prompt)
    assert attachment.reasons == ["strength"]


@pytest.mark.parametrize(
    "prompt", [NURSE, f"{NURSE} | a nurse at night", [NURSE, "a nurse at night"]]
)
def test_all_windows_of_a_video_show_the_same_person(prompt):
    pipe = windowed()
    attachment = debias(pipe, "gender", method=Balanced(seed=0))
    draw_windows(pipe, prompt)
    (record,) = attachment.calls
    assert record.values == (None,)
    assert record.reasons == (SEVERAL,)


def test_without_free_noise_a_video_gets_a_value():
    pipe = animated()
    pipe.disable_free_noise()
    attachment = debias(pipe, "gender", method=Balanced(seed=0))
    animate(pipe, NURSE)
    assert attachment.sampled[0] in ("male", "female")


class CountsWords(diffusers.StableDiffusionPipeline):
    def __call__(self, prompt, token_indices=None, **call):
        return super().__call__(prompt, **call)


def test_a_call_that_counts_words_of_its_prompt_is_left_unchanged():
    pipe = tiny.sd(CountsWords)
    attachment = debias(pipe, "gender", method=Balanced(seed=0))
    tiny.draw(pipe, [NURSE] * 2, token_indices=[5])
    assert attachment.last_call.written == (NURSE, NURSE)
    assert attachment.reasons == ["token_indices count the words of the prompt"] * 2
    tiny.draw(pipe, [NURSE] * 2)
    assert set(attachment.sampled) == {"male", "female"}

"""Test unknown pipelines, both new classes and subclasses: each is edited correctly or rejected."""

import linecache

import diffusers_tiny as tiny
import pytest
import torch
from diffusers import DiffusionPipeline, StableDiffusionPipeline
from diffusers_tiny import ENCODERS, MODELS, PLAIN, STATED, builder
from tiny_tokenizers import clip_tokenizer

from vldebias.api import debias
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import resolve
from vldebias.hosts.pipelines.calls import same_values


class Acme(DiffusionPipeline):
    """Derive only from the base class of pipelines, encode the prompt, and denoise twice."""

    def __init__(self, text_encoder, tokenizer, unet, scheduler):
        super().__init__()
        self.register_modules(
            text_encoder=text_encoder, tokenizer=tokenizer, unet=unet, scheduler=scheduler
        )

    def encode_prompt(self, prompt, do_classifier_free_guidance=False, negative_prompt=None):
        prompt_embeds = states(self, prompt)
        negative_prompt_embeds = states(self, negative_prompt or "")
        return prompt_embeds, negative_prompt_embeds

    def __call__(self, prompt):
        prompt_embeds, _ = self.encode_prompt(prompt)
        latents = torch.ones(1, 4, 8, 8)
        for step in (1, 2):
            latents = self.unet(latents, step, encoder_hidden_states=prompt_embeds).sample
        return latents


def states(pipe, prompt):
    """Return the text encoder's states (b, tokens, d)."""
    prompts = [prompt] if isinstance(prompt, str) else prompt
    ids = pipe.tokenizer(
        prompts, padding="max_length", max_length=77, truncation=True, return_tensors="pt"
    ).input_ids
    return pipe.text_encoder(ids.to(pipe.text_encoder.device))[0]


def both(pipe, prompt, negative_prompt):
    return states(pipe, prompt), states(pipe, negative_prompt or "")


def acme(cls):
    parts = {
        "text_encoder": ENCODERS["clip"](),
        "tokenizer": clip_tokenizer(),
        "unet": MODELS["unet"](),
    }
    return cls(**parts, scheduler=builder("DDIMScheduler")())


@pytest.fixture(params=["unlisted", "subclass"])
def build(request):
    """Build a pipeline from the members of its class."""

    def made(**members):
        if request.param == "subclass":
            return tiny.sd(type("StablePipeline", (StableDiffusionPipeline,), members))
        return acme(type("OtherPipeline", (Acme,), members))

    return made


def encoding(change, alone=False):
    """Return an `encode_prompt` that changes the embeddings of the prompt before returning them."""

    def encode_prompt(self, prompt, do_classifier_free_guidance=False, negative_prompt=None):
        prompt_embeds, negative_prompt_embeds = both(self, prompt, negative_prompt)
        prompt_embeds = change(prompt_embeds)
        return prompt_embeds, negative_prompt_embeds

    def encode_alone(self, prompt):
        prompt_embeds = change(states(self, prompt))
        return (prompt_embeds,)

    return encode_alone if alone else encode_prompt


def swapped(self, prompt, do_classifier_free_guidance=False, negative_prompt=None):
    prompt_embeds, negative_prompt_embeds = both(self, prompt, negative_prompt)
    return negative_prompt_embeds, prompt_embeds


def mask_of_floats(self, prompt, do_classifier_free_guidance=False, negative_prompt=None):
    prompt_embeds, negative_prompt_embeds = both(self, prompt, negative_prompt)
    prompt_attention_mask = torch.arange(77).lt(len(str(prompt))).float()[None]
    return prompt_embeds, negative_prompt_embeds, prompt_attention_mask


SERVED = {
    "swapped": swapped,
    "mask_of_floats": mask_of_floats,
    "reversed_tokens": encoding(lambda z: z.flip(1)),
    "lists_of_lists": encoding(lambda z: [[row] for row in z]),
    "layers_behind_tokens": encoding(lambda z: torch.stack([z, 2 * z], dim=2)),
    "tokens_doubled": encoding(lambda z: z.repeat_interleave(2, dim=1)),
    "projected_after_pooling": encoding(lambda z: z.amax(1) @ torch.ones(32, 12).triu()),
}


@pytest.mark.parametrize("name", SERVED)
def test_distinguishable_pipelines_are_supported(name, build):
    pipe = build(encode_prompt=SERVED[name])
    call = {
        "prompt": [PLAIN, STATED],
        "do_classifier_free_guidance": True,
        "negative_prompt": "an old man",
    }
    with torch.no_grad():
        bare = pipe.encode_prompt(**call)
        attachment = debias(pipe, tiny.gender(), method="cali")
        (edit,) = attachment.projections.values()
        edited = pipe.encode_prompt(**call)
        place = 1 if name == "swapped" else 0
        for i, (old, new) in enumerate(zip(bare, edited, strict=True)):
            if i != place:
                assert torch.equal(old, new)
                continue
            for row, pair in enumerate(zip(old, new, strict=True)):
                bare_row, edited_row = (x[0] if isinstance(x, list) else x for x in pair)
                flat = (
                    (bare_row.flatten(-2), edited_row.flatten(-2))
                    if name.startswith("layers")
                    else (bare_row, edited_row)
                )
                torch.testing.assert_close(flat[1], edit(flat[0]) if row == 0 else flat[0])
                assert torch.equal(bare_row, edited_row) == (row == 1)
        attachment.remove()
        assert same_values(pipe.encode_prompt(**call), bare)


class Unsupported:
    """Encode in ways in which an edit would miss something."""

    def misleading_names(self, prompt, do_classifier_free_guidance=False, negative_prompt=None):
        negative_prompt_embeds, prompt_embeds = both(self, prompt, negative_prompt)
        return prompt_embeds, negative_prompt_embeds

    def both_in_one(self, prompt, do_classifier_free_guidance=False, negative_prompt=None):
        prompt_embeds = states(self, prompt)
        if do_classifier_free_guidance:
            prompt_embeds = torch.cat([states(self, negative_prompt or ""), prompt_embeds])
        return (prompt_embeds,)

    def different_order_for_long_prompts(
        self, prompt, do_classifier_free_guidance=False, negative_prompt=None
    ):
        prompt_embeds, negative_prompt_embeds = both(self, prompt, negative_prompt)
        if len(prompt if isinstance(prompt, str) else prompt[0]) > 12:
            prompt_embeds, negative_prompt_embeds = negative_prompt_embeds, prompt_embeds
        return prompt_embeds, negative_prompt_embeds

    def a_dict(self, prompt):
        return {"prompt_embeds": states(self, prompt)}

    def any_arguments(self, *args, **kwargs):
        prompt_embeds = states(self, args[0])
        return (prompt_embeds,)

    def unnamed_half(self, prompt):
        prompt_embeds = states(self, prompt)
        return prompt_embeds, prompt_embeds.sum(1) * 2

    def letters_instead_of_tokens(self, prompt):
        letters = torch.tensor([[ord(c) for c in str(prompt).ljust(99)[:99]]])
        prompt_embeds = letters[..., None].float().expand(-1, -1, 4)
        return (prompt_embeds,)

    def fewer_values_without_a_negative_prompt(self, prompt, negative_prompt=None):
        prompt_embeds, negative_prompt_embeds = both(self, prompt, negative_prompt)
        if negative_prompt is None:
            return (prompt_embeds,)
        return prompt_embeds, negative_prompt_embeds


REFUSED = {name: way for name, way in vars(Unsupported).items() if name[0] != "_"} | {
    "no_prompt": encoding(lambda z: torch.ones(1, 77, 32), alone=True),
    "tokens_last": encoding(lambda z: z.mT, alone=True),
    "flattened": encoding(lambda z: z.flatten(1), alone=True),
    "layers_before_tokens": encoding(lambda z: torch.stack([z] * 2, dim=1), alone=True),
    "signs_of_all_tokens": encoding(
        lambda z: (z[:, 1:] + 0.5).sign().prod(1, keepdim=True), alone=True
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_indistinguishable_pipelines_are_rejected(name, build):
    pipe = build(encode_prompt=REFUSED[name])
    with pytest.raises(UnsupportedHostError, match=type(pipe).__name__):
        debias(pipe, tiny.gender(), method="cali")
    assert "encode_prompt" not in vars(pipe)


def test_truncated_prompts_and_unknown_roles_are_rejected(build):
    host = resolve(build(encode_prompt=encoding(lambda z: z[:, :50])))
    assert host.embed([PLAIN], "sequence").shape == (1, 32)
    with pytest.raises(UnsupportedHostError, match="the token that ends a prompt is not among"):
        host.embed([f"{PLAIN} " * 12], "sequence")
    with pytest.raises(InvalidInputError, match=r"the roles \['sequence'\], got 'pooled'"):
        host.embed([PLAIN], "pooled")


class Bypassing:
    """Pass a prompt to the model without encode_prompt."""

    def no_encode_prompt_for_long_prompts(self, prompt, **options):
        if len(prompt) > 12:
            return states(self, prompt)
        prompt_embeds, _ = self.encode_prompt(prompt)
        return prompt_embeds

    def encoded_again_at_the_second_step(self, prompt, **options):
        prompt_embeds, _ = self.encode_prompt(prompt)
        first = self.unet(torch.ones(1, 4, 8, 8), 1, encoder_hidden_states=prompt_embeds).sample
        ids = self.tokenizer(
            prompt, padding="max_length", max_length=77, return_tensors="pt"
        ).input_ids
        return self.unet(first, 2, encoder_hidden_states=self.text_encoder(ids)[0]).sample

    def called_through_the_class(self, prompt, **options):
        prompt_embeds, _ = type(self).encode_prompt(self, prompt)
        return prompt_embeds


@pytest.mark.parametrize("name", [name for name in vars(Bypassing) if name[0] != "_"])
def test_a_second_path_for_the_prompt_is_rejected(name, build):
    pipe = build(__call__=vars(Bypassing)[name])
    with pytest.raises(UnsupportedHostError, match=type(pipe).__name__):
        resolve(pipe)


def test_a_class_without_source_is_rejected():
    members = {}
    exec(
        "def encode_prompt(self, prompt):\n    prompt_embeds = self.encode(prompt)\n    return"
        " prompt_embeds",
        members,
    )
    with pytest.raises(UnsupportedHostError, match="source"):
        resolve(acme(type("FrozenPipeline", (Acme,), {"encode_prompt": members["encode_prompt"]})))


def test_a_class_with_the_wrong_source_is_rejected(monkeypatch):
    # This also happens after `exec` in a `python -c` program, for which Python 3.13 returns the
    # source.
    text = "import sys\n"
    monkeypatch.setitem(linecache.cache, "<program>", (len(text), None, [text], "<program>"))
    members = {}
    code = "def encode_prompt(self, prompt):\n    return self.encode(prompt)"
    exec(compile(code, "<program>", "exec"), members)
    with pytest.raises(UnsupportedHostError, match="does not contain the function"):
        resolve(acme(type("ExecPipeline", (Acme,), {"encode_prompt": members["encode_prompt"]})))

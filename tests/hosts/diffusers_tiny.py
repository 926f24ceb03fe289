"""Build tiny diffusers pipelines from configs (diffusers.yaml), with real tokenizers and no
network."""

import copy
import functools
import inspect
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import diffusers
import pytest
import tiny_tokenizers
import torch
import yaml
from diffusers.modular_pipelines import PipelineState
from torch import nn

from vldebias.hosts.pipelines.modular import leaves
from vldebias.prompts import PromptSet

PLAIN = "a photo of a doctor"
STATED = "a photo of a female nurse"
NEGATIVE = "old smiling person"
SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml saves half a second
TABLE = yaml.load((Path(__file__).parent / "diffusers.yaml").read_text("utf-8"), SAFE)


def why_absent(library: str, name: str) -> str:
    """Return why a library lacks a class or cannot import it, or "" if it can be used."""
    try:
        getattr(import_module(library), name)
    except (AttributeError, ImportError, RuntimeError) as error:
        return f"{library} {version(library)} has no {name}: {' '.join(str(error).split())[:200]}"
    return ""


def skip_without(library: str, name: str) -> None:
    """Skip the test if the installed version of transformers cannot embed text with the class."""
    reason = why_absent(library, name)
    if reason:
        pytest.skip(reason)


def gender():
    """Return a small prompt set."""
    groups = tuple(
        (f"a photo of a male {job}", f"a photo of a female {job}") for job in tiny_tokenizers.JOBS
    )
    words = ("male", "female", "man", "woman")
    spurious = ("a photo of a man", "a photo of a woman")
    # The default attaches an edit if there are classes to distinguish.
    classes = ("A photo of a dog.", "A photo of a cat.")
    return PromptSet(
        name="tiny-gender",
        variants=groups,
        spurious=spurious,
        stated_words=words,
        classes=classes,
        class_names=("dog", "cat"),
    )


@contextmanager
def quiet():
    """Suppress the import warnings of diffusers."""
    with warnings.catch_warnings(action="ignore"):
        yield


def seeded(make):
    """Build a component once, in evaluation mode and with the same weights in every run."""

    @cache
    @quiet()
    def build():
        torch.manual_seed(0)
        return make().eval()

    return build


def fresh(make):
    """Return a new text encoder with the same weights for each caller."""
    first = seeded(make)

    def build():
        with torch.random.fork_rng():
            model = make().eval()
        for parameter, known in zip(model.parameters(), first().parameters(), strict=True):
            parameter.data = known.data
        return model

    return build


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.config = inner.config

    dtype = property(lambda self: self.inner.dtype)
    device = property(lambda self: self.inner.device)


class WithImages(Around):
    """Accept pixels and ignore them."""

    model = property(lambda self: self.inner)

    def __init__(self, inner):
        super().__init__(inner)
        self.config.image_token_id, self.config.vision_end_token_id = map(
            tiny_tokenizers.chat_bpe().token_to_id, ("<|image_pad|>", "<|vision_end|>")
        )

    def forward(
        self, input_ids, attention_mask=None, pixel_values=None, image_grid_thw=None, **settings
    ):
        positions = settings.get("position_ids")
        # These are time, height and width, which are equal for text.
        if positions is not None and positions.ndim == 3:
            settings["position_ids"] = positions[0]
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, **settings)


class Glm(Around):
    """Model that returns hidden states as (tokens, b, d), as ChatGLM does."""

    def forward(self, **inputs):
        states = self.inner(**inputs).hidden_states
        return SimpleNamespace(hidden_states=[state.transpose(0, 1) for state in states])


class Stub(nn.Module):
    """Stand in for a denoiser or VAE that encoding does not need, or for a model that rejects
    prompts."""

    dtype = torch.float32
    device = torch.device("cpu")
    temporal_compression_ratio = 4
    spatial_compression_ratio = 8

    def __init__(self, **config):
        super().__init__()
        self.config = SimpleNamespace(**config)

    def check_text_safety(self, prompt):
        return True

    def check_video_safety(self, video):
        return video


def encoder(config):
    """Build a text encoder from transformers.

    config: Its class, its wrapper and its settings.
    """
    settings = {key: value for key, value in config.items() if key not in ("class", "around")}
    if isinstance(settings["vocab_size"], str):
        settings["vocab_size"] = len(getattr(tiny_tokenizers, settings["vocab_size"])())
    skip_without("transformers", config["class"])
    kind = getattr(import_module("transformers"), config["class"])
    model = kind(kind.config_class(**settings))
    return globals()[config["around"]](model) if "around" in config else model


def made(config):
    """Build a diffusers object.

    config: Its class, or "folder:class" for a pipeline, and its arguments.
    """
    folder, _, cls = config["class"].rpartition(":")
    arguments = {name: value for name, value in config.items() if name != "class"}
    built = getattr(import_module(f"diffusers{folder and '.pipelines.'}{folder}"), cls)(**arguments)
    for parameter in built.parameters() if isinstance(built, nn.Module) else ():
        # Some layers start at zero, which would hide the effect of the prompt.
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return built


MODELS = {name: seeded(partial(made, config)) for name, config in TABLE["models"].items()}
ENCODERS = {name: fresh(partial(encoder, config)) for name, config in TABLE["encoders"].items()}


def builder(entry, rebuild=False):
    """Return a function that builds an entry of the table once per model, or on each call with
    `rebuild`."""
    if isinstance(entry, dict) and "class" in entry:
        return partial(made, entry) if rebuild else seeded(partial(made, entry))
    if isinstance(entry, dict):
        return partial(Stub, **entry)
    if not isinstance(entry, str):
        return lambda: entry
    return (MODELS | ENCODERS | vars(tiny_tokenizers)).get(entry) or partial(made, {"class": entry})


def with_own_components(pipe):
    """Return the pipeline with separate modules, for tests that change weights."""
    for name, component in pipe.components.items():
        if isinstance(component, nn.Module):
            setattr(pipe, name, twin(component))
    return pipe


def twin(model):
    """Copy a component by calling its constructor, in which transformers registers recordable
    outputs."""
    if not hasattr(model, "get_input_embeddings"):
        return copy.deepcopy(model)
    made = type(model)(copy.deepcopy(model.config))
    made.load_state_dict(model.state_dict())
    return made.eval()


def _pipeline(name):
    def make(cls=None, **extra):
        config = {key: entry for key, entry in TABLE["pipelines"][name].items() if key != "call"}
        parts = {
            key: builder(entry, key == "scheduler")()
            for key, entry in config.items()
            if key != "class"
        }
        skip_without("diffusers", config["class"])
        if cls is None:
            cls = getattr(import_module("diffusers"), config["class"])
            length = TABLE["pipelines"][name].get("call", {}).get("max_sequence_length")
            cls = cls if length is None else shorter_class(cls, length)
        pipe = cls(**parts | extra)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    make.__name__ = name  # used as names of test cases
    return make


FAMILIES = {
    name: (_pipeline(name), config.get("call", {})) for name, config in TABLE["pipelines"].items()
}
sd, sdxl, sd3, flux, chroma, pixart, sana, aura = (make for make, _ in FAMILIES.values())
T5_LENGTH = {"max_sequence_length": 40}


def draw(pipe, prompt=PLAIN, **call):
    """Return the latents after two steps from a fixed seed."""
    noise = torch.Generator().manual_seed(0)
    defaults = {
        "num_inference_steps": 2,
        "height": 16,
        "width": 16,
        "output_type": "latent",
        "generator": noise,
    }
    return pipe(prompt, **defaults | call).images


@torch.no_grad()
def encode(pipe, prompt=PLAIN, images=1, **call):
    """Call encode_prompt without arguments that it does not accept."""
    count = 1 if isinstance(prompt, str) else len(prompt)
    defaults = {
        "prompt": prompt,
        "device": "cpu",
        "do_classifier_free_guidance": False,
        "clean_caption": False,
    }
    defaults |= {"batch_size": count, "guidance_scale": 1.0, "dtype": torch.float32, "image": None}
    defaults |= {"prompt_2": None, "prompt_3": None, "prompt_4": None}
    defaults |= {"num_images_per_prompt": images, "num_videos_per_prompt": images}
    takes = inspect.signature(pipe.encode_prompt).parameters
    return pipe.encode_prompt(
        **{key: value for key, value in (defaults | call).items() if key in takes}
    )


def equal_tensors(first, second):
    """Return whether two tuples of tensors and None are equal."""
    return len(first) == len(second) and all(
        a is b if a is None or b is None else torch.equal(a, b)
        for a, b in zip(first, second, strict=True)
    )


def picture(color=(90, 120, 30)):
    from PIL import Image

    return Image.new("RGB", (32, 32), color)


def pictured(call):
    """Return call arguments in which picture names are replaced by pictures."""
    known = {"IMAGE": picture, "IMAGES": lambda: [picture()], "MASK": partial(picture, "white")}
    known["FRAMES"] = lambda: [picture()] * 5
    return {name: known[value]() if str(value) in known else value for name, value in call.items()}


@dataclass
class Case:
    """Describe a pipeline family: its class, its text side, and how `encode_prompt` and the
    pipeline are called.

    Attributes:
        components: The components of the text side.
        drawing: The denoiser, the autoencoder and the scheduler.
        end: The token that ends a prompt, or None for the last token of the prompt.
        padded: The padded side.
        call: Additional arguments for `encode_prompt`.
        usual: Additional arguments for the pipeline call. None omits an argument.
        settings: Attributes to set on the pipeline.
        length: The length to which a call pads prompts.
        one_by_one: Whether the pipeline only accepts a single prompt.
        small: Functions in its module that would make an image too large.
    """

    pipeline: str
    components: dict[str, Any]
    drawing: dict[str, Any]
    usual: dict[str, Any]
    end: str | None = None
    call: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    padded: str = "right"
    length: int | None = None
    one_by_one: bool = False
    small: dict[str, Any] = field(default_factory=dict)

    def parts(self):
        return {name: builder(entry)() for name, entry in self.components.items()}

    @quiet()
    def make(self, is_complete=False, pipeline=None):
        """Return a new pipeline.

        Args:
            is_complete: Whether to build all components instead of only the text side.
            pipeline: The name of a different class in the family.
        """
        skip_without("diffusers", pipeline or self.pipeline)
        cls = getattr(import_module("diffusers"), pipeline or self.pipeline)
        length = self.length or self.call.get("max_sequence_length")
        if length is not None:
            cls = shorter_class(cls, length)
        config = {
            "in_channels": 16,
            "sample_size": 8,
            "patch_size": 1,
            "patch_size_t": 1,
            "target_size": 16,
        }
        config |= {"image_embed_dim": 8, "in_visual_dim": 4, "enable_text_attention_mask": True}
        known = {} if is_complete else {"transformer": Stub(**config, guidance_embeds=False)}
        drawing = {name: make() for name, make in self.drawing.items() if is_complete}
        takes = inspect.signature(cls.__init__).parameters
        need = {n: known.get(n) for n, p in takes.items() if p.default is p.empty and n != "self"}
        pipe = cls(**need | self.parts() | drawing)
        for name, value in self.settings.items():
            setattr(pipe, name, value)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def encode(self, pipe, prompt, **call):
        """Return the output of `encode_prompt`."""
        return encode(pipe, prompt, **self.call | call)

    def draw(self, pipe, prompts=(PLAIN, STATED), negative=NEGATIVE, **options):
        """Return latents (4, ...) of two images per prompt, with guidance, from one seed; more:
        further arguments."""
        if self.one_by_one and len(prompts) > 1:
            return torch.cat([self.draw(pipe, [prompt], negative, **options) for prompt in prompts])
        usual = {"num_inference_steps": 2, "height": 32, "width": 32, "num_frames": 5, "frames": 5}
        usual |= {
            "guidance_scale": 3.0,
            "true_cfg_scale": 3.0,
            "output_type": "latent",
            "return_dict": False,
        }
        usual |= {"num_images_per_prompt": 2, "num_videos_per_prompt": 2, "max_sequence_length": 40}
        usual |= {
            "use_resolution_binning": False,
            "clean_caption": False,
            "generator": torch.manual_seed(0),
        }
        usual |= {"negative_prompt": [negative] * len(prompts)}
        takes = inspect.signature(type(pipe).__call__).parameters
        call = (
            {name: value for name, value in usual.items() if name in takes}
            | pictured(self.usual)
            | options
        )
        small = {name: lambda *_, value=tuple(value): value for name, value in self.small.items()}
        with torch.no_grad(), mock.patch.dict(vars(sys.modules[type(pipe).__module__]), small):
            drawn = pipe(prompt=list(prompts), **{n: v for n, v in call.items() if v is not None})[
                0
            ]
        return torch.stack(list(drawn)) if isinstance(drawn, list) else drawn


@cache
def shorter_class(cls, length):
    """Return a subclass that pads prompts to a smaller default length, since the cost is
    quadratic."""
    if "max_sequence_length" not in inspect.signature(cls.__call__).parameters:
        return cls
    content = {"__call__": shorter(cls.__call__, length), "__module__": cls.__module__}
    return type(cls.__name__, (cls,), content)


def shorter(call, length):
    """Return `__call__` with a different default for the padded prompt length."""

    @functools.wraps(call)
    def shortened(*args, **kwargs):
        return call(*args, **{"max_sequence_length": length} | kwargs)

    signature = inspect.signature(call)
    names = signature.parameters
    changed = names | {"max_sequence_length": names["max_sequence_length"].replace(default=length)}
    shortened.__signature__ = signature.replace(parameters=list(changed.values()))
    return shortened


def _case(name):
    known = {
        field_name
        for field_name in Case.__dataclass_fields__
        if field_name not in ("components", "drawing", "usual")
    }
    text = TABLE["texts"][name]
    drawing = {"scheduler": "FlowMatchEulerDiscreteScheduler"} | TABLE["drawings"][name]
    usual = drawing.pop("call", {})
    how = {key: drawing.pop(key) for key in ("one_by_one", "small") if key in drawing}
    components = {key: entry for key, entry in text.items() if key not in known}
    made = {key: builder(entry, key in ("scheduler", "guider")) for key, entry in drawing.items()}
    return Case(
        components=components,
        drawing=made,
        usual=usual,
        **how,
        **{k: text[k] for k in known & text.keys()},
    )


CASES = {name: _case(name) for name in TABLE["texts"]}
VARIANTS = {
    name: (call["family"], pictured({k: v for k, v in call.items() if k != "family"}))
    for name, call in TABLE["variants"].items()
}
_ids = tiny_tokenizers.chat_tokenizer()(TABLE["krea"]).input_ids
CASES["Krea2"].settings["prompt_template_encode_start_idx"] = len(_ids)


def three_states(pipe, draw, attach):
    """Attach, compare the images in each state bit for bit, and check that nothing remains
    afterwards."""
    bare = draw()
    before = dict(vars(pipe))
    attachment = attach()
    attached = draw()
    with attachment.disabled():
        assert torch.equal(draw(), bare)
    attachment.strength = 0
    assert torch.equal(draw(), bare)
    attachment.strength = 1
    assert torch.equal(draw(), attached)
    attachment.remove()
    assert torch.equal(draw(), bare)
    assert vars(pipe) == before
    return bare, attached


def rows(value):
    """Return the tensors of an output for each prompt."""
    if isinstance(value, torch.Tensor):
        return list(value)
    flat = []
    for item in value:
        is_row = isinstance(item, torch.Tensor) and item.ndim < 3
        flat += [item] if is_row else rows(item)
    return flat


def changed(first, second):
    """Return whether each row differs between two outputs."""
    pairs = zip(rows(first), rows(second), strict=True)
    return [not torch.equal(before, after) for before, after in pairs]


@quiet()
def classic_classes():
    """Return pipelines with an `encode_prompt`, by name without the suffix "Pipeline"."""
    class_of_name = {}
    for name in dir(diffusers):
        if "Pipeline" not in name or name.startswith(("Flax", "Onnx")):
            continue
        try:
            cls = getattr(diffusers, name)
            has_prompt = hasattr(cls, "encode_prompt")
        except (ImportError, RuntimeError):  # it needs a library that is not installed
            continue
        if has_prompt:
            class_of_name[name.removesuffix("Pipeline")] = cls
    return class_of_name


@cache
@quiet()
def modular_classes():
    """Return modular pipelines with default blocks, by name without "ModularPipeline"."""
    class_of_name = {}
    for name in sorted(dir(diffusers)):
        if name.endswith("ModularPipeline"):
            cls = getattr(diffusers, name)
            if getattr(cls, "default_blocks_name", None):
                class_of_name[name.removesuffix("ModularPipeline")] = cls
    return class_of_name


# Names of this release's modular classes -> their components, or the family whose components they
# use.
MODULAR = {}
for _names, _entry in TABLE["modular"].items():
    MODULAR |= {name: _entry for name in _names.split() if name in modular_classes()}


@quiet()
def modular(name, blocks=None):
    """Return a new modular pipeline of a class, with its default or the given blocks. Skip the test
    if the installed releases lack the class or its blocks."""
    skip_without("diffusers", f"{name}ModularPipeline")
    if name not in modular_classes():
        # This release does not accept components in memory either.
        release = version("diffusers")
        pytest.skip(f"diffusers {release}: {name}ModularPipeline has no blocks by default")
    if blocks is None:
        skip_without("diffusers", modular_classes()[name].default_blocks_name)
    entry = MODULAR[name]
    family = entry.get("family", name)
    if "text_encoder" in entry:
        parts = {key: builder(component)() for key, component in entry.items()}
    elif family in FAMILIES:
        parts = FAMILIES[family][0]().components
    else:
        parts = CASES[family].parts()
        parts |= {key: make() for key, make in CASES[family].drawing.items()}
        for key in ("guider", "scheduler"):  # the components of the modular class
            parts.pop(key, None)
    if blocks is not None:
        pipe = blocks.init_pipeline()
    elif family in FAMILIES:
        pipe = modular_classes()[name]()
    else:
        pipe = shorter_pipeline(name, family)
    diffusers.utils.logging.set_verbosity_error()
    known = {key: part for key, part in parts.items() if part is not None}
    pipe.update_components(**{key: known[key] for key in known if key in pipe.component_names})
    return pipe


def shorter_pipeline(name, family):
    """Return a new modular pipeline that pads prompts to fewer tokens by default, since the cost is
    quadratic."""
    kind = modular_classes()[name]
    settings = CASES[family].settings if family in CASES else {}
    lengths = {key: length for key, length in settings.items() if hasattr(kind, key)}
    pipe = type(kind.__name__, (kind,), lengths | {"__module__": kind.__module__})()
    for block in leaves(pipe._blocks):
        if any(entry.name == "max_sequence_length" for entry in block.inputs):
            block.__class__ = shorter_block(type(block), MODULAR[name].get("length", 64))
    return pipe


@cache
def shorter_block(kind, length):
    """Return a block class that pads prompts to a smaller length by default."""

    def inputs(block):
        entries = []
        for entry in kind.inputs.fget(block):
            if entry.name == "max_sequence_length" and entry.default is not None:
                entry = replace(entry, default=min(entry.default, length))
            entries.append(entry)
        return entries

    return type(kind.__name__, (kind,), {"inputs": property(inputs), "__module__": kind.__module__})


def modular_states(pipe, prompts=(PLAIN, STATED), **call):
    """Return the state after the text encoding block and the following ones, without denoising."""
    takes_one = "WanAnimate2" in type(pipe).__name__ or "Flux3" in type(pipe).__name__
    if not takes_one:
        return _modular_state(pipe, list(prompts), call)
    states = [_modular_state(pipe, prompt, call) for prompt in prompts]
    return {key: [state[key] for state in states] for key in states[0]}


def _modular_state(pipe, prompt, call):
    state = PipelineState()
    defaults = {block.name: block.default for block in pipe._blocks.inputs if block.name}
    for name, value in (defaults | call | {"prompt": prompt}).items():
        state.set(name, value)
    text_block = pipe._blocks.sub_blocks["text_encoder"]
    steps = dict(text_block.sub_blocks)
    # These blocks encode an image together with the text.
    of_images = {"resize", "get_image_prompt"} & steps.keys()
    if of_images:
        for name, step in steps.items():
            if name not in of_images:
                step(pipe, state)
    else:
        text_block(pipe, state)
    values = state.values.items()
    return {name: value for name, value in values if "embeds" in name and value is not None}


def draw_modular(pipe, prompts=(PLAIN, STATED), negative=NEGATIVE, **call):
    """Return latents (prompts, ...) of two guided steps from one seed."""
    small = {"num_inference_steps": 2, "height": 16, "width": 16, "output_type": "latent"}
    small["generator"] = torch.Generator().manual_seed(0)
    return pipe(
        prompt=list(prompts),
        negative_prompt=[negative] * len(prompts),
        output="latents",
        **small | call,
    )

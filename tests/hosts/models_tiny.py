"""Build tiny models of every open_clip and transformers class for use in the same tests."""

import copy
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import diffusers_tiny
import open_clip
import pytest
import tiny_tokenizers
import torch
import transformers
import yaml
from diffusers_tiny import skip_without
from tiny_tokenizers import CLIP_IDS
from torch import Tensor, nn

import vldebias
from vldebias.hosts import Attachment, Host, resolve
from vldebias.hosts.clip.transformers import WITH_IMAGES

PROMPTS = [
    "a photo of a doctor",
    "a photo of the manager",
    "a photo of a FEMALE doctor",
    "A WOMAN",
    "a pilot",
]
STATED = [False, False, True, True, False]
IMAGES = torch.linspace(-1, 1, 3 * 3 * 32 * 32).reshape(3, 3, 32, 32).sin()
DIM = 24
LOST_IN_TRANSFORMERS_4 = ("ChineseCLIPModel",)


def before_transformers_5() -> bool:
    return version("transformers").startswith("4.")


def skip_lost(name: str) -> None:
    """Skip the test if the installed version of transformers cannot embed text with the class."""
    if name in LOST_IN_TRANSFORMERS_4 and before_transformers_5():
        pytest.skip(f"transformers {version('transformers')} cannot embed texts with {name}")


def skip_without_folders() -> None:
    """Skip tests of folders if the installed version of open_clip cannot load them."""
    if open_clip.__version__.startswith("2."):
        pytest.skip(f"open_clip {open_clip.__version__} reads no folders")


def equal_outputs(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[key], second[key]) for key in first)


VISION: dict[str, Any] = {
    "layers": 1,
    "width": 32,
    "head_width": 16,
    "patch_size": 16,
    "image_size": 32,
}
TEXT: dict[str, Any] = {
    "context_length": 77,
    "vocab_size": CLIP_IDS,
    "width": 32,
    "heads": 2,
    "layers": 1,
}


def make_clip(vision: dict[str, Any] = VISION, **changes: Any) -> nn.Module:
    return open_clip.CLIP(DIM, vision, {**TEXT, **changes}, init_logit_bias=-1.0).eval()


def make_custom(dim: int = DIM, **changes: Any) -> nn.Module:
    return open_clip.CustomTextCLIP(dim, VISION, {**TEXT, **changes}).eval()


def make_hf(proj: str = "mlp") -> nn.Module:
    """Build a CustomTextCLIP whose text tower is a Hugging Face model, from a config."""
    from open_clip.hf_model import HFTextEncoder

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 37,
    }
    config = transformers.BertConfig(vocab_size=CLIP_IDS, initializer_range=0.3, **sizes)
    model = make_custom()
    model.text = HFTextEncoder("", DIM, config, proj_type=proj)
    return model.eval()


def make_coca() -> nn.Module:
    text = {**TEXT, "context_length": 76, "embed_cls": True, "output_tokens": True}
    vision = {**VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
    model = open_clip.CoCa(32, {**TEXT, "context_length": 76}, text, vision).eval()
    for parameter in (model.text.text_projection, model.text_decoder.text_projection):
        nn.init.normal_(parameter, std=0.2)
    return model


def with_bias(model: nn.Module) -> nn.Module:
    """Set the bias of open_clip's head. It starts at zero, which would hide a merge that ignores
    it."""
    nn.init.normal_(getattr(model, "text", model).text_projection.bias)
    return model


def make_timm(proj: str) -> nn.Module:
    return make_clip(
        {"image_size": 32, "timm_model_name": "resnet10t", "timm_proj": proj, "timm_pool": "avg"}
    )


OPEN_CLIP: dict[str, Callable[[], nn.Module]] = {
    "clip": make_clip,
    "clip-linear": lambda: with_bias(make_clip(proj_bias=True)),
    "custom": make_custom,
    "custom-linear": lambda: with_bias(make_custom(proj_bias=True)),
    "custom-identity": lambda: make_custom(32, proj_type="none"),
    "hf-mlp": make_hf,
    "hf-linear": lambda: make_hf("linear"),
    "coca": make_coca,
}
TOWERS: dict[str, Callable[[], nn.Module]] = {
    **{name: OPEN_CLIP[name] for name in ("clip", "custom", "hf-mlp", "coca")},
    "resnet": lambda: make_clip(
        {"image_size": 32, "layers": (1, 1, 1, 1), "width": 8, "head_width": 16}
    ),
    "timm-linear": lambda: make_timm("linear"),
    "timm-mlp": lambda: make_timm("mlp"),
    # The classifier of the trunk computes the embedding, and the head is empty.
    "timm": lambda: make_timm(""),
}
"""Image towers of every kind."""


TABLE = yaml.safe_load((Path(__file__).parent / "transformers.yaml").read_text())
TRANSFORMERS: dict[str, Any] = TABLE["models"]


def make(name: str, **text: Any) -> nn.Module:
    """Return a new model in evaluation mode; text: settings of its text tower."""
    config = {
        k: v
        for k, v in copy.deepcopy(TRANSFORMERS[name]).items()
        if k not in ("tokenizer", "processor")
    }
    config = config | (
        {"text_config": config["text_config"] | text} if "text_config" in config else text
    )
    skip_without("transformers", name)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**config)).eval()


def made(name: str) -> nn.Module:
    """Return a model with distinct embeddings, unlike with the usual initial weights."""
    model = make(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0  # as in from_pretrained
    return model


def tokenizer_for(model: nn.Module) -> Any:
    if isinstance(model, (open_clip.CLIP, open_clip.CustomTextCLIP, open_clip.CoCa)):
        return tiny_tokenizers.open_clip_tokenizer(min(77, model.context_length))
    return getattr(
        tiny_tokenizers, f"{TRANSFORMERS[type(model).__name__]['tokenizer']}_tokenizer"
    )()


def embedding(output: Any) -> Tensor:
    """Return the embedding in an output. In transformers 4, the output is the tensor itself."""
    if isinstance(output, Tensor):
        return output
    return output.text_embeds if "text_embeds" in output else output.pooler_output


class Subject:
    """Describe a model or pipeline whose text embeddings can be read through several code paths.

    Attributes:
        outputs: Every tensor that depends on a text, by path.
        seen: Every tensor that depends on an image, by path. "features" are embeddings before
            normalisation.
        rows: Embeddings (b, ..., d) of PROMPTS by role, before normalisation.
        merges: Whether a projection can be folded into its weights.
        merges_images: Whether this also applies to its image tower.
    """

    host: Any
    merges = merges_images = True
    tokenizer: Any = None
    outputs: Callable[[], dict[str, Tensor]]
    rows: Callable[[], dict[str, Tensor]]
    seen: Callable[[], dict[str, Tensor]]

    def modules(self) -> list[nn.Module]:
        """Return the modules that compute the embeddings."""
        return [self.host]

    def parameters(self) -> list[nn.Parameter]:
        parameters = []
        for module in self.modules():
            parameters += module.parameters()
        return parameters

    def debias(self, prompts: Any, **settings: Any) -> Attachment:
        return vldebias.debias(self.host, prompts, tokenizer=self.tokenizer, **settings)

    def resolve(self) -> Host:
        return resolve(self.host, tokenizer=self.tokenizer)

    def state(self) -> Any:
        """Return everything that could be left behind on modules: the items of dictionaries, and
        the identities of other objects."""

        def contents(value: object) -> object:
            return (
                {key: id(item) for key, item in value.items()}
                if isinstance(value, dict)
                else id(value)
            )

        parts = {}
        for i, part in enumerate(self.modules()):
            parts |= {f"{i}.{name}": module for name, module in part.named_modules()}
        parts |= {"host": self.host}
        return {
            name: {k: contents(v) for k, v in vars(part).items()} for name, part in parts.items()
        }


class OpenClip(Subject):
    def __init__(self, name: str | nn.Module) -> None:
        self.host = (OPEN_CLIP | TOWERS)[name]() if isinstance(name, str) else name
        self.tokenizer = tokenizer_for(self.host)
        self.merges = name != "custom-identity"
        self.merges_images = name != "timm"

    def outputs(self) -> dict[str, Tensor]:
        model = self.host
        ids = self.tokenizer(PROMPTS)
        outputs = {
            "encode_text": model.encode_text(ids, normalize=False),
            "normalized": model.encode_text(ids, normalize=True),
            "default": model.encode_text(text=ids),
        }
        coca = isinstance(model, open_clip.CoCa)  # its captions are paired with its images
        both = model(IMAGES[[0] * len(PROMPTS)] if coca else IMAGES, ids)
        if coca:
            return outputs | {"forward": both["text_features"]}
        outputs |= {"forward": both[1], "text only": model(text=ids)[1]}
        return outputs | self._with_both("text_features", ids)

    def _with_both(self, key: str, ids: Tensor) -> dict[str, Tensor]:
        self.host.output_dict = True
        outputs = {"dict": self.host(IMAGES, ids)[key]}
        self.host.output_dict = False
        outputs["image logits"], outputs["text logits"] = self.host.get_logits(IMAGES, ids)
        return outputs

    def rows(self) -> dict[str, Tensor]:
        return {"text": self.host.encode_text(self.tokenizer(PROMPTS), normalize=False)}

    def seen(self) -> dict[str, Tensor]:
        model = self.host
        ids = self.tokenizer(PROMPTS)
        outputs = {
            name: model.encode_image(IMAGES, normalize=name != "features")
            for name in ("features", "normalized")
        }
        output = model(IMAGES)
        if isinstance(output, dict):
            return outputs | {
                "forward": output["image_features"],
                "private": model._encode_image(IMAGES)[0],
            }
        outputs |= {"forward": model(IMAGES, ids)[0], "image only": output[0]}
        return outputs | self._with_both("image_features", ids)


class Transformers(Subject):
    def __init__(self, name: str) -> None:
        skip_lost(name)
        self.name = name
        self.host = made(name)
        self.tokenizer = tokenizer_for(self.host)
        self.merges_images = not name.startswith(("Siglip", "Align"))

    def inputs(self, prompts: list[str] = PROMPTS) -> dict[str, Tensor]:
        padding = (
            {"padding": "max_length", "max_length": 64}
            if "Siglip" in self.name
            else {"padding": True}
        )
        texts = [prompt.lower() if "Siglip" in self.name else prompt for prompt in prompts]
        batch = self.tokenizer(texts, return_tensors="pt", **padding)
        return {key: batch[key] for key in ("input_ids", "attention_mask")}

    def pixels(self) -> dict[str, Tensor]:
        if not self.name.startswith("Siglip2"):
            return {"pixel_values": IMAGES[:2]}
        ones_mask = torch.ones(2, 4, dtype=torch.long)
        patches = torch.linspace(-1, 1, 2 * 4 * 768).reshape(2, 4, 768).sin()
        return {
            "pixel_values": patches,
            "pixel_attention_mask": ones_mask,
            "spatial_shapes": ones_mask[:, :2] * 2,
        }

    def features(self, **changes: Any) -> Tensor:
        """Return the embedding before normalisation, by the shortest path."""
        return embedding(
            getattr(self.host, "get_text_features", self.host)(**{**self.inputs(), **changes})
        )

    def outputs(self) -> dict[str, Tensor]:
        outputs = {"features": self.features()}
        model = self.host
        inputs = self.inputs()
        ids = inputs["input_ids"]
        place = 1 if "Siglip" in self.name else 0
        if self.name == "XCLIPModel":  # its texts attend to the video
            videos = torch.linspace(-1, 1, 2 * 2 * 3 * 32 * 32).reshape(2, 2, 3, 32, 32).sin()
            output = model(**inputs, pixel_values=videos)
            return outputs | {
                "after the video": output.text_embeds,
                "videos": output.logits_per_video,
            }
        if not hasattr(model, "get_text_features"):
            return outputs | {
                "positional": model(ids)[place],
                "tuple": model(**inputs, return_dict=False)[place],
            }
        output = model(**inputs, **self.pixels())
        outputs |= {
            "positional": embedding(model.get_text_features(ids)),
            "forward": output.text_embeds,
        }
        outputs |= {"image logits": output.logits_per_image, "text logits": output.logits_per_text}
        if self.name != "AltCLIPModel":  # its forward ignores return_dict in transformers 5
            outputs["tuple"] = model(**inputs, **self.pixels(), return_dict=False)[2]
        return outputs

    def rows(self) -> dict[str, Tensor]:
        return {"text": self.features()}

    def seen(self) -> dict[str, Tensor]:
        model = self.host
        pixels = self.pixels()
        # There are as many texts as images, because the loss pairs them.
        inputs = {key: rows[:2] for key, rows in self.inputs().items()}
        output = model(**inputs, **pixels, return_loss=True)
        features = model.get_image_features(**pixels)
        outputs = {
            "features": embedding(features),
            "forward": output.image_embeds,
        }
        outputs |= {
            "image logits": output.logits_per_image,
            "text logits": output.logits_per_text,
            "loss": output.loss,
        }
        if self.name != "AltCLIPModel":
            outputs["tuple"] = model(**inputs, **pixels, return_dict=False)[3]
        return outputs


class Diffusers(Subject):
    def __init__(self, name: str) -> None:
        make, self.call = diffusers_tiny.FAMILIES[name]
        self.host = diffusers_tiny.with_own_components(make())
        self.merges = name != "StableDiffusion3"
        # At the first call that returns states, transformers adds hooks to layers and never removes
        # them.
        self._encoded()

    def _encoded(self) -> Any:
        return diffusers_tiny.encode.__wrapped__(self.host, PROMPTS, **self.call)

    def outputs(self) -> dict[str, Tensor]:
        tensors = self._encoded()
        return {str(part.place): tensors[part.place] for part in self.resolve().parts}

    def rows(self) -> dict[str, Tensor]:
        tensors = self._encoded()
        return {part.role: tensors[part.place][:, part.tokens] for part in self.resolve().parts}

    def modules(self) -> list[nn.Module]:
        return list(self.resolve().text_modules)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    **{f"open_clip:{name}": partial(OpenClip, name) for name in OPEN_CLIP},
    **{f"transformers:{name}": partial(Transformers, name) for name in TRANSFORMERS},
    **{f"diffusers:{name}": partial(Diffusers, name) for name in diffusers_tiny.FAMILIES},
}
WITH_IMAGE_TOWER: dict[str, Callable[[], Subject]] = {
    **{f"open_clip:{name}": partial(OpenClip, name) for name in TOWERS},
    **{f"transformers:{name}": partial(Transformers, name) for name in WITH_IMAGES},
}
"""One subject of each kind that has an image tower."""

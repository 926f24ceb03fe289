"""Tiny transformers models of every supported class, with their tokenizers, and all public paths of their texts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import vldebias

DIM = 24
PROMPTS = ["a photo of a doctor", "a photo of the manager", "a photo of a FEMALE doctor", "A WOMAN", "a pilot"]
STATED = [False, False, True, True, False]
LAYERS = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**LAYERS, "num_hidden_layers": 1, "image_size": 32, "patch_size": 16}
CLIP_IDS = {"vocab_size": 49408, "bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 49407}


def clip_text(**more: Any) -> dict[str, Any]:
    return {**LAYERS, **CLIP_IDS, "max_position_embeddings": 77, "projection_dim": DIM, **more}


def make_clip(name: str = "CLIP", **text: Any) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(
        text_config=clip_text(**text), vision_config=VISION, projection_dim=DIM
    )
    return getattr(transformers, f"{name}Model")(config)


def make_clip_text(name: str = "CLIP", **text: Any) -> nn.Module:
    config = getattr(transformers, f"{name}TextConfig")(**clip_text(**text))
    return getattr(transformers, f"{name}TextModelWithProjection")(config)


def siglip_text() -> dict[str, Any]:
    return {**LAYERS, "vocab_size": 120, "max_position_embeddings": 64, "projection_size": 32, "pad_token_id": 1}


def make_siglip(name: str = "Siglip") -> nn.Module:
    vision = {**VISION, "num_patches": 4} if name == "Siglip2" else VISION
    config = getattr(transformers, f"{name}Config")(text_config=siglip_text(), vision_config=vision)
    return getattr(transformers, f"{name}Model")(config)


def make_siglip_text(name: str = "Siglip") -> nn.Module:
    return getattr(transformers, f"{name}TextModel")(getattr(transformers, f"{name}TextConfig")(**siglip_text()))


def make_chinese_clip() -> nn.Module:
    text = {**LAYERS, "vocab_size": 40, "max_position_embeddings": 52, "initializer_range": 0.3}
    config = transformers.ChineseCLIPConfig(text_config=text, vision_config=VISION, projection_dim=DIM)
    return transformers.ChineseCLIPModel(config)


def make_altclip() -> nn.Module:
    text = {**LAYERS, "vocab_size": 130, "max_position_embeddings": 40, "project_dim": 32, "pad_token_id": 1}
    config = transformers.AltCLIPConfig(text_config=text, vision_config=VISION, projection_dim=DIM)
    return transformers.AltCLIPModel(config)


def make_align() -> nn.Module:
    vision = {
        **{"image_size": 32, "kernel_sizes": [3], "in_channels": [32], "out_channels": [16], "strides": [1]},
        **{"num_block_repeats": [1], "expand_ratios": [1], "hidden_dim": 32, "depthwise_padding": []},
    }
    text = {**LAYERS, "vocab_size": 40, "initializer_range": 0.3}
    config = transformers.AlignConfig(text_config=text, vision_config=vision, projection_dim=32)
    return transformers.AlignModel(config)


def make_aimv2() -> nn.Module:
    text = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.Aimv2Config(
        text_config={**text, "vocab_size": 49408, "max_position_embeddings": 77, "eos_token_id": 49407},
        vision_config={**text, "num_hidden_layers": 1, "image_size": 32, "patch_size": 16},
        projection_dim=DIM,
    )
    return transformers.Aimv2Model(config)


def make_dual_encoder() -> nn.Module:
    text = transformers.BertConfig(**LAYERS, vocab_size=40, max_position_embeddings=52, initializer_range=0.3)
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
        transformers.ViTConfig(**VISION), text, projection_dim=DIM
    )
    return transformers.VisionTextDualEncoderModel(config)


def make_xclip() -> nn.Module:
    vision = {**VISION, "mit_hidden_size": DIM, "mit_intermediate_size": 16, "mit_num_hidden_layers": 1}
    vision |= {"mit_num_attention_heads": 2, "num_frames": 2}
    config = transformers.XCLIPConfig(
        text_config=clip_text(),
        vision_config=vision,
        **{"projection_dim": DIM, "prompt_layers": 1, "prompt_num_attention_heads": 2},
    )
    return transformers.XCLIPModel(config)


def clap_text() -> dict[str, Any]:
    sizes = {"vocab_size": 130, "max_position_embeddings": 40, "projection_dim": DIM, "pad_token_id": 1}
    return {**LAYERS, **sizes, "projection_hidden_act": "relu"}


def make_clap() -> nn.Module:
    audio = {"depths": [1, 1], "num_attention_heads": [2, 2], "patch_embeds_hidden_size": 16, "hidden_size": 32}
    audio |= {"spec_size": 64, "num_mel_bins": 16, "patch_size": 4, "window_size": 4, "num_hidden_layers": 2}
    return transformers.ClapModel(
        transformers.ClapConfig(text_config=clap_text(), audio_config=audio, projection_dim=DIM)
    )


def make_clap_text() -> nn.Module:
    return transformers.ClapTextModelWithProjection(transformers.ClapTextConfig(**clap_text()))


def make_blip() -> nn.Module:
    text = {**LAYERS, "vocab_size": 40, "max_position_embeddings": 52, "initializer_range": 0.3}
    text |= {"bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}
    config = transformers.BlipConfig(text_config=text, vision_config=VISION, image_text_hidden_size=DIM)
    return transformers.BlipForImageTextRetrieval(config)


def make_blip2(name: str = "Blip2ForImageTextRetrieval") -> nn.Module:
    sizes = {**LAYERS, "vocab_size": 40, "max_position_embeddings": 52, "initializer_range": 0.3}
    config = transformers.Blip2Config(
        vision_config=VISION,
        qformer_config={**sizes, "use_qformer_text_input": True},
        **{"num_query_tokens": 2, "image_text_hidden_size": DIM, "image_token_index": None},
    )
    return getattr(transformers, name)(config)


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "CLIPModel": (make_clip, "clip_tokenizer"),
    "CLIPTextModelWithProjection": (make_clip_text, "clip_tokenizer"),
    "MetaClip2Model": (lambda: make_clip("MetaClip2"), "clip_tokenizer"),
    "MetaClip2TextModelWithProjection": (lambda: make_clip_text("MetaClip2"), "clip_tokenizer"),
    "CLIPSegModel": (lambda: make_clip("CLIPSeg"), "clip_tokenizer"),
    "SiglipModel": (make_siglip, "siglip_tokenizer"),
    "SiglipTextModel": (make_siglip_text, "siglip_tokenizer"),
    "Siglip2Model": (lambda: make_siglip("Siglip2"), "siglip_tokenizer"),
    "Siglip2TextModel": (lambda: make_siglip_text("Siglip2"), "siglip_tokenizer"),
    "ChineseCLIPModel": (make_chinese_clip, "bert_tokenizer"),
    "AltCLIPModel": (make_altclip, "roberta_tokenizer"),
    "AlignModel": (make_align, "bert_tokenizer"),
    "Aimv2Model": (make_aimv2, "clip_tokenizer"),
    "VisionTextDualEncoderModel": (make_dual_encoder, "bert_tokenizer"),
    "XCLIPModel": (make_xclip, "clip_tokenizer"),
    "ClapModel": (make_clap, "roberta_tokenizer"),
    "ClapTextModelWithProjection": (make_clap_text, "roberta_tokenizer"),
    "BlipForImageTextRetrieval": (make_blip, "bert_tokenizer"),
    "Blip2ForImageTextRetrieval": (make_blip2, "bert_tokenizer"),
    "Blip2TextModelWithProjection": (lambda: make_blip2("Blip2TextModelWithProjection"), "bert_tokenizer"),
}


class Case:
    """A model with its tokenizer and all the ways in which its text embedding can be had."""

    def __init__(self, name: str, request: pytest.FixtureRequest) -> None:
        make, tokenizer = MODELS[name]
        self.name = name
        self.make = make
        self.model = make().eval()
        self.tokenizer = request.getfixturevalue(tokenizer)
        with torch.no_grad():  # the usual initial weights make all prompts nearly the same
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
            for module in self.model.modules():
                if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0  # as from_pretrained has it

    def inputs(self, prompts: list[str] = PROMPTS) -> dict[str, Tensor]:
        padding = {"padding": "max_length", "max_length": 64} if "Siglip" in self.name else {"padding": True}
        texts = [prompt.lower() if "Siglip" in self.name else prompt for prompt in prompts]
        batch = self.tokenizer(texts, return_tensors="pt", **padding)
        return {key: batch[key] for key in ("input_ids", "attention_mask")}

    def pixels(self) -> dict[str, Tensor]:
        if not self.name.startswith("Siglip2"):
            return {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32).sin()}
        patches = torch.linspace(-1, 1, 2 * 4 * 768).reshape(2, 4, 768).sin()
        ones = torch.ones(2, 4, dtype=torch.long)
        return {"pixel_values": patches, "pixel_attention_mask": ones, "spatial_shapes": ones[:, :2] * 2}

    def features(self, **more: Any) -> Tensor:
        """The embedding before it is normalised, by the shortest path."""
        given = {**self.inputs(), **more}
        if self.name == "BlipForImageTextRetrieval":
            return self.model.text_proj(self.model.text_encoder(**given)[0][:, 0])
        if "Blip2" in self.name:
            words = self.model.embeddings(input_ids=given["input_ids"])
            states = self.model.qformer(query_embeds=words, query_length=0, attention_mask=given["attention_mask"])[0]
            return self.model.text_projection(states[:, 0])
        if self.name == "ClapModel":  # its get_text_features normalises
            return self.model.text_projection(self.model.text_model(**given).pooler_output)
        call = getattr(self.model, "get_text_features", self.model)
        output = call(**given)
        if isinstance(output, Tensor):
            return output
        return output.text_embeds if "text_embeds" in output else output.pooler_output

    def outputs(self) -> dict[str, Tensor]:
        """Every tensor that depends on the text embedding, by the public path that gives it."""
        found = {"features": self.features()}
        ids = self.inputs()["input_ids"]
        if self.name in OTHERS:
            return found | OTHERS[self.name](self)
        if not hasattr(self.model, "get_text_features"):
            found["positional"] = self.model(ids)[1 if "Siglip" in self.name else 0]
            found["tuple"] = self.model(**self.inputs(), return_dict=False)[1 if "Siglip" in self.name else 0]
            return found
        output = self.model(**self.inputs(), **self.pixels())
        found |= {"positional": self.model.get_text_features(ids).pooler_output, "forward": output.text_embeds}
        found |= {"image logits": output.logits_per_image, "text logits": output.logits_per_text}
        if self.name != "AltCLIPModel":  # its forward ignores return_dict in transformers 5
            found["tuple"] = self.model(**self.inputs(), **self.pixels(), return_dict=False)[2]
        return found

    def debias(self, prompts: Any, **more: Any) -> vldebias.Attachment:
        return vldebias.debias(self.model, prompts, tokenizer=self.tokenizer, **more)


def _blip(case: Case) -> dict[str, Tensor]:
    return {"scores": case.model(**case.inputs(), **case.pixels(), use_itm_head=False).itm_score}


def _blip2(case: Case) -> dict[str, Tensor]:
    images = case.pixels()["pixel_values"][:1].expand(len(PROMPTS), -1, -1, -1)
    output = case.model(**case.inputs(), pixel_values=images)
    return {
        "forward": output.text_embeds,
        "image logits": output.logits_per_image,
        "text logits": output.logits_per_text,
    }


def _blip2_text(case: Case) -> dict[str, Tensor]:
    return {"first states": case.model(**case.inputs()).text_embeds[:, 0]}


def _xclip(case: Case) -> dict[str, Tensor]:
    videos = torch.linspace(-1, 1, 2 * 2 * 3 * 32 * 32).reshape(2, 2, 3, 32, 32).sin()
    output = case.model(**case.inputs(), pixel_values=videos)
    return {"after the video": output.text_embeds, "videos": output.logits_per_video}


def _clap(case: Case) -> dict[str, Tensor]:
    sound = torch.linspace(-1, 1, 2 * 64 * 16).reshape(2, 1, 64, 16).sin()
    output = case.model(**case.inputs(), input_features=sound, is_longer=torch.zeros(2, 1, dtype=torch.bool))
    return {
        "forward": output.text_embeds,
        "normalised": case.model.get_text_features(**case.inputs()).pooler_output,
        "image logits": output.logits_per_audio,
        "text logits": output.logits_per_text,
    }


OTHERS: dict[str, Callable[[Case], dict[str, Tensor]]] = {
    "BlipForImageTextRetrieval": _blip,
    "Blip2ForImageTextRetrieval": _blip2,
    "Blip2TextModelWithProjection": _blip2_text,
    "XCLIPModel": _xclip,
    "ClapModel": _clap,
}
"""Other paths than those of a CLIP."""

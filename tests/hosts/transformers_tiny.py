"""Tiny transformers models of every supported class, with their tokenizers, and all public paths of their texts."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_tokenizers
import torch
import transformers
import yaml
from torch import Tensor, nn

import vldebias

MODELS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "transformers.yaml").read_text())["models"]
DIM = 24
PROMPTS = ["a photo of a doctor", "a photo of the manager", "a photo of a FEMALE doctor", "A WOMAN", "a pilot"]
STATED = [False, False, True, True, False]


def make(name: str, **text: Any) -> nn.Module:
    """A new model in evaluation mode; text: settings of its text tower."""
    config = copy.deepcopy({key: value for key, value in MODELS[name].items() if key != "tokenizer"})  # they take out
    config = config | ({"text_config": config["text_config"] | text} if "text_config" in config else text)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**config)).eval()


def tokenizer_for(name: str) -> Any:
    return getattr(tiny_tokenizers, f"{MODELS[name]['tokenizer']}_tokenizer")()


class Case:
    """A model with its tokenizer and all the ways in which its text embedding can be had."""

    def __init__(self, name: str) -> None:
        self.name, self.model, self.tokenizer = name, make(name), tokenizer_for(name)
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


def _xclip(case: Case) -> dict[str, Tensor]:
    videos = torch.linspace(-1, 1, 2 * 2 * 3 * 32 * 32).reshape(2, 2, 3, 32, 32).sin()
    output = case.model(**case.inputs(), pixel_values=videos)
    return {"after the video": output.text_embeds, "videos": output.logits_per_video}


OTHERS: dict[str, Callable[[Case], dict[str, Tensor]]] = {"XCLIPModel": _xclip}
"""Other paths than those of a CLIP."""

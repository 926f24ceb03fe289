"""Every host that vldebias knows, behind one face: what the contract of `test_host_contract.py` asks them for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import diffusers_tiny
import open_clip_tiny
import torch
import transformers_tiny
from torch import Tensor, nn

import vldebias
from vldebias.hosts import Host, resolve
from vldebias.hosts.transformers import WITH_IMAGES

PROMPTS = transformers_tiny.PROMPTS
STATED = transformers_tiny.STATED


def state_of(parts: dict[str, Any]) -> Any:
    """Everything that could be left behind on modules: dictionaries by their items, all else by identity."""

    def contents(value: object) -> object:
        return {key: id(item) for key, item in value.items()} if isinstance(value, dict) else id(value)

    return {name: {k: contents(v) for k, v in vars(part).items()} for name, part in parts.items()}


class Subject:
    """A model or pipeline with texts whose embeddings can be read on several paths.

    host: the model or pipeline. tokenizer: given to debias. merges: its weights can hold a projection.
    merges_images: so can those of its image tower.
    """

    host: Any
    tokenizer: Any = None
    merges = merges_images = True

    def outputs(self) -> dict[str, Tensor]:
        """Every tensor that depends on a text, by the path that gives it."""
        raise NotImplementedError

    def rows(self) -> dict[str, Tensor]:
        """Embeddings (b, ..., d) of PROMPTS by role, before normalising."""
        raise NotImplementedError

    def seen(self) -> dict[str, Tensor]:
        """Every tensor that depends on an image, by the path that gives it; "features" before normalising."""
        raise NotImplementedError

    def modules(self) -> list[nn.Module]:
        """What makes the embeddings."""
        return [self.host]

    def parts(self) -> dict[str, Any]:
        """Name -> object that an attachment could leave a trace on."""
        return dict(self.host.named_modules())

    def debias(self, prompts: Any, **more: Any) -> vldebias.Attachment:
        return vldebias.debias(self.host, prompts, tokenizer=self.tokenizer, **more)

    def resolve(self) -> Host:
        return resolve(self.host, tokenizer=self.tokenizer)

    def state(self) -> Any:
        return state_of(self.parts())


IMAGES = torch.linspace(-1, 1, 3 * 3 * 32 * 32).reshape(3, 3, 32, 32).sin()


class OpenClip(Subject):
    def __init__(self, name: str) -> None:
        self.host = (open_clip_tiny.MODELS | open_clip_tiny.TOWERS)[name]()
        self.tokenizer = open_clip_tiny.tokenizer_for(self.host)
        self.merges, self.merges_images = name in open_clip_tiny.FOLDABLE, name != "timm"

    def outputs(self) -> dict[str, Tensor]:
        return open_clip_tiny.outputs(self.host, IMAGES, PROMPTS)

    def rows(self) -> dict[str, Tensor]:
        return {"joint": self.host.encode_text(self.tokenizer(PROMPTS), normalize=False)}

    def seen(self) -> dict[str, Tensor]:
        model, ids = self.host, self.tokenizer(PROMPTS)
        found = {
            "features": model.encode_image(IMAGES, normalize=False),
            "normalized": model.encode_image(IMAGES, normalize=True),
        }
        output = model(IMAGES)
        if isinstance(output, dict):
            return found | {"forward": output["image_features"], "private": model._encode_image(IMAGES)[0]}
        found |= {"forward": model(IMAGES, ids)[0], "image only": output[0]}
        found["image logits"], found["text logits"] = model.get_logits(IMAGES, ids)
        model.output_dict = True
        found["dict"] = model(IMAGES, ids)["image_features"]
        model.output_dict = False
        return found


class Transformers(Subject):
    def __init__(self, name: str) -> None:
        self.case = transformers_tiny.Case(name)
        self.tokenizer = self.case.tokenizer
        self.merges_images = not name.startswith(("Siglip", "Align"))

    @property
    def host(self) -> Any:
        return self.case.model

    @host.setter
    def host(self, model: Any) -> None:
        self.case.model = model

    def outputs(self) -> dict[str, Tensor]:
        return self.case.outputs()

    def rows(self) -> dict[str, Tensor]:
        return {"joint": self.case.features()}

    def seen(self) -> dict[str, Tensor]:
        model, pixels = self.host, self.case.pixels()
        inputs = {key: rows[:2] for key, rows in self.case.inputs().items()}  # as many as images: the loss pairs them
        output, features = model(**inputs, **pixels, return_loss=True), model.get_image_features(**pixels)
        found = {"features": getattr(features, "pooler_output", features), "forward": output.image_embeds}
        found |= {"image logits": output.logits_per_image, "text logits": output.logits_per_text, "loss": output.loss}
        if self.case.name != "AltCLIPModel":  # its forward ignores return_dict in transformers 5
            found["tuple"] = model(**inputs, **pixels, return_dict=False)[3]
        return found


class Diffusers(Subject):
    def __init__(self, name: str) -> None:
        make, self.call = diffusers_tiny.FAMILIES[name]
        self.host = diffusers_tiny.own(make())
        self.merges = name != "StableDiffusion3"
        self._encoded()  # transformers hooks layers whose states it gives at the first call, and leaves them so

    def _encoded(self) -> Any:
        return diffusers_tiny.encode.__wrapped__(self.host, PROMPTS, **self.call)

    def outputs(self) -> dict[str, Tensor]:
        tensors = self._encoded()
        return {str(part.place): tensors[part.place] for part in self.resolve().parts}

    def rows(self) -> dict[str, Tensor]:
        tensors, host, rows = self._encoded(), self.resolve(), {}
        for part in host.parts:
            whole = tensors[part.place]
            rows[part.role] = whole if whole.ndim == 2 else whole[:, part.tokens]
        return rows

    def modules(self) -> list[nn.Module]:
        return list(self.resolve().text_modules)

    def parts(self) -> dict[str, Any]:
        encoders = enumerate(self.modules())
        return {"pipeline": self.host} | {f"{i}.{n}": m for i, one in encoders for n, m in one.named_modules()}


KINDS: dict[str, tuple[Callable[[str], Subject], Iterable[str]]] = {
    "open_clip": (OpenClip, open_clip_tiny.MODELS),
    "transformers": (Transformers, transformers_tiny.MODELS),
    "diffusers": (Diffusers, diffusers_tiny.FAMILIES),
}
SUBJECTS = {f"{kind}:{name}": partial(make, name) for kind, (make, names) in KINDS.items() for name in names}
SEEING: dict[str, Callable[[], Subject]] = {
    **{f"open_clip:{name}": partial(OpenClip, name) for name in open_clip_tiny.TOWERS},
    **{f"transformers:{name}": partial(Transformers, name) for name in WITH_IMAGES},
}
"""Those with image towers, one of each kind."""

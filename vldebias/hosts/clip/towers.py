"""Run an image-text model's two towers for training, and save the model in its library's format."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    TruncatedPromptWarning,
    UnsupportedHostError,
    need,
    warn,
)
from vldebias.hosts import resolve
from vldebias.hosts.attachment import attachment_of
from vldebias.hosts.clip.images import JointHost, image_encoder
from vldebias.hosts.clip.open_clip import folder_address
from vldebias.hosts.reading import BARE, TOKENIZING, during, reading
from vldebias.utils.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from open_clip import CLIP
    from PIL import Image
    from transformers import BaseImageProcessor, PreTrainedModel, PreTrainedTokenizerBase

Part = nn.Module | nn.Parameter
Tokens = Mapping[str, Tensor]
CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"


class Towers:
    """Encode images and text with a model's two towers, on any device.

    Attributes:
        model: an open_clip or transformers image-text model.
        tokenizer: the model's tokenizer.
        preprocess: the model's evaluation preprocessing, applied to a PIL image.
        library: the library that loads the saved model, "open_clip" or "transformers".
        size: (h, w) of the pixels.
        mean: the mean per channel that `prepare` subtracts from values in [0, 1].
        std: the standard deviation per channel by which `prepare` divides.
        temperature: initial temperature of the softmax over cosines.
        bias: SigLIP's initial logit bias; otherwise None.
        image_parts: the image tower, including its head.
        text_parts: the text tower, including its head.
        heads: the layers with weights that map to the joint space.

    Raises:
        UnsupportedHostError: If the class is not supported, or the model does not take images as
            (3, h, w).
        AlreadyAttachedError: If a projection is attached to the model.
        InvalidInputError: If there is no tokenizer, or the preprocessing does more than resize and
            normalise.
    """

    def __init__(
        self,
        model: CLIP | PreTrainedModel,
        tokenizer: object,
        preprocess: BaseImageProcessor | Callable[[Image.Image], Tensor],
    ) -> None:
        """Find the model's towers, and measure how its preprocessing normalises pixels.

        Args:
            model: an open_clip or transformers image-text model.
            tokenizer: the model's tokenizer. If None, it is derived from the model.
            preprocess: the model's evaluation preprocessing, applied to a PIL image.
        """
        self._encoder = image_encoder(model, preprocess, preprocessing="not described")
        if any(base.__name__ == "Siglip2Model" for base in type(model).__mro__):
            raise UnsupportedHostError(
                f"{type(model).__name__}: takes images as patches, but training augments pixels (3,"
                " h, w). Train a fixed-resolution checkpoint that loads as SiglipModel"
                " (google/siglip2-base-patch16-224)"
            )
        host = resolve(model, tokenizer=tokenizer)
        assert isinstance(host, JointHost)  # `image_encoder` accepts nothing else
        attachment = attachment_of(model)
        if attachment is not None:
            raise AlreadyAttachedError(
                f"{host.name}: {attachment!r} is attached to the model, and training would ignore"
                " it. Call .remove() on the attachment, train, and fit it again on the trained"
                " weights"
            )
        self.model = model
        self._host = host
        self.library = host.library
        self.tokenizer = host.tokenizer
        self.preprocess = preprocess
        self._normalisation()
        self.image_parts: tuple[Part, ...] = tuple(host.image_tower)
        self.text_parts: tuple[Part, ...] = tuple(host.text_modules)
        trainable: list[Part] = []
        for head in (host.image_head, host.head):
            # ALIGN's image tower ends in pooling, which has no weights.
            if isinstance(head, nn.Module) and next(head.parameters(), None) is None:
                continue
            if head is not None:
                trainable.append(head)
        self.heads = tuple(trainable)
        self._scalar = "logit_scale" if hasattr(model, "logit_scale") else "temperature"
        value = float(getattr(model, self._scalar).detach())
        self.temperature = value if self._scalar == "temperature" else math.exp(-value)
        bias = getattr(model, "logit_bias", None)
        self.bias = None if bias is None else float(bias.detach())
        self._cuts_warned = False

    def prepare(self, image: Image.Image) -> Tensor:
        """Convert an image to pixels (3, h, w), as when the model is evaluated."""
        return self._encoder.prepare(image)["pixel_values"][0]

    def image(self, pixels: Tensor) -> Tensor:
        """Encode pixels (b, 3, h, w) to features (b, d), before normalisation."""
        with during(BARE, True):
            return self._encoder.forward(
                {"pixel_values": pixels.to(self._encoder.first_weight.dtype)}
            )

    def text(self, tokens: Tokens) -> Tensor:
        """Encode outputs of `tokenize` as features (b, d) on the model's device, not normalised."""
        with during(BARE, True):
            return self._host.trained_features(tokens)

    def tokenize(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Convert captions to text tower arguments, each (b, length), on the CPU.

        Warns:
            TruncatedPromptWarning: If captions are truncated; issued once.
        """
        with TOKENIZING:
            tokens = self._host.tokenize(list(captions))
            # Counting takes as long as tokenizing, so do not count after the warning was issued.
            if self._cuts_warned:
                return tokens
            ids = next(iter(tokens.values()))
            limit = self._host.context_length
            # A padded row ends in two padding tokens, but a truncated row ends in a word and the
            # end token. Count the tokens only of rows that may be truncated.
            is_full = ids[:, -1] != ids[:, -2]
            full = [captions[row] for row in is_full.nonzero().flatten().tolist()]
            counts = self._host.count_tokens(full) if full else []
            cut = sum(count > limit for count in counts)
        if cut:
            self._cuts_warned = True
            cuts = f"{cut} of {len(captions)} captions were truncated (reported only once)"
            warn(
                f"{self._host.name}: the context length is {limit} tokens; {cuts}",
                TruncatedPromptWarning,
            )
        return tokens

    @torch.no_grad()
    def set_temperature(self, temperature: float, bias: float | None = None) -> None:
        """Set the model's temperature, and its bias if it has one.

        Args:
            temperature: the temperature, above 0.
            bias: the logit bias; ignored by models without one.
        """
        # ALIGN stores the temperature itself, other models the logarithm of its inverse.
        value = temperature if self._scalar == "temperature" else -math.log(temperature)
        getattr(self.model, self._scalar).fill_(value)
        if bias is not None and self.bias is not None:
            self.model.logit_bias.fill_(bias)

    def _normalisation(self) -> None:
        """Measure the size, mean and std that `prepare` applies, using plain images."""
        new_image = need("PIL.Image").new
        plain = []
        for value in (0, 102, 255):  # 0, 0.4 and 1 after scaling
            plain.append(self.prepare(new_image("RGB", (80, 80), (value,) * 3)).double())
        oblong = self.prepare(new_image("RGB", (96, 64)))
        black, grey, white = [pixels.flatten(1).mean(dim=1) for pixels in plain]
        # Each channel must be constant, and a linear function of the value.
        is_constant = all(
            (pixels - level[:, None, None]).abs().max() < 1e-3
            for pixels, level in zip(plain, (black, grey, white), strict=True)
        )
        is_linear = torch.allclose(grey, black + 0.4 * (white - black), atol=1e-3)
        has_shape = oblong.shape == plain[0].shape and oblong.shape[0] == 3
        if not (has_shape and is_constant and is_linear and (white > black).all()):
            raise InvalidInputError(
                f"preprocess: converted plain images to shapes {tuple(plain[0].shape)} and"
                f" {tuple(oblong.shape)}; expected the same shape (3, h, w) for all images, with"
                " (value - mean) / std per channel, because training applies its own augmentation."
                " Pass the model's evaluation preprocessing, which is the second transform from"
                " open_clip or the image processor"
            )
        # Solve black = -mean / std and white = (1 - mean) / std.
        std = 1 / (white - black)
        mean = -black / (white - black)
        self.mean = tuple(round(value, 6) for value in mean.tolist())
        self.std = tuple(round(value, 6) for value in std.tolist())
        self.size: tuple[int, int] = (oblong.shape[1], oblong.shape[2])

    # ---- saving

    def save(self, weights: Mapping[str, Tensor], folder: Path, *, name: str) -> None:
        """Save the model in an existing folder, with its tokenizer and preprocessing.

        Args:
            weights: a complete state dict without adapters, even if the model has some.
            folder: an existing folder, which can then be loaded by open_clip as "local-dir:FOLDER",
                by `from_pretrained`, and by `--model FOLDER`.
            name: the name under which the model was loaded. It is needed because an open_clip model
                does not store the name of its architecture.
        """
        if self.library == "transformers":
            self.model.save_pretrained(folder, state_dict=dict(weights))
            for part in self._savable_parts():
                part.save_pretrained(folder)
            return
        (folder / CONFIG).write_text(
            json.dumps(self._config(name), indent=2) + "\n", encoding="utf-8"
        )
        # safetensors rejects tensors that share memory.
        plain = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights.items()}
        need("safetensors.torch").save_file(plain, folder / WEIGHTS, metadata={"format": "pt"})
        # CLIP's own tokenizer is part of open_clip.
        if hasattr(self.tokenizer, "save_pretrained"):
            self.tokenizer.save_pretrained(str(folder))

    def check_saving(self, weights: Mapping[str, Tensor], *, name: str) -> None:
        """Check that `save` would write this model, by loading it from a temporary folder.

        Args:
            weights: a complete state dict without adapters.
            name: the name under which the model was loaded.

        Raises:
            InvalidInputError: If the model cannot be saved, or would differ once loaded.
        """
        if self.library == "transformers":
            self._savable_parts()
            return
        mismatch = f"name: {name!r} is not the architecture of the model"
        # Creating the second model draws random numbers, which would affect training.
        with TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
            with storage_errors(folder):
                self.save(weights, Path(folder), name=name)
            try:
                load = need("open_clip").create_model_and_transforms
                twin, _, transform = load(folder_address(folder))
            except RuntimeError as error:
                raise InvalidInputError(f"{mismatch}: {error}") from error
        # Fine stripes at a size other than the model's input size reveal a different resizing
        # method.
        gradient = need("PIL.Image").linear_gradient("L")
        stripes = gradient.point(lambda value: value * 37 % 256).convert("RGB")
        picture = stripes.resize((self.size[1] * 2, self.size[0] * 3))
        pixels = self.prepare(picture)
        difference = float((transform(picture) - pixels).abs().max())
        if difference > 1e-3:
            raise InvalidInputError(
                f"preprocess: the pixels of a test image differ by up to {difference:.2f} from"
                " those computed with the mean, std and resizing that open_clip stores; expected"
                " the second transform from open_clip.create_model_and_transforms"
            )
        self._check_twin(twin, pixels, mismatch)

    def _check_twin(self, twin: CLIP, pixels: Tensor, mismatch: str) -> None:
        """Raise InvalidInputError unless the reloaded model computes the same features."""
        device = next(self.model.parameters()).device
        ids = self.tokenize(["a photo"])["text"]
        with reading(self.model, twin):
            images = (self.image(pixels[None].to(device)), twin.encode_image(pixels[None]))
            texts = (self.text({"text": ids.to(device)}), twin.encode_text(ids))
        for side, (trained, saved) in {"images": images, "texts": texts}.items():
            difference = float((trained.cpu().float() - saved).norm() / saved.norm())
            is_wide = trained.dtype in (torch.float32, torch.float64)
            limit = 1e-2 if is_wide else 0.1
            # `not <` also rejects NaN, for which every comparison is false.
            if not difference < limit:
                raise InvalidInputError(
                    f"{mismatch}: loaded with the same weights, that architecture's features for"
                    f" {side} differ by {difference:.1%}"
                )

    def _savable_parts(self) -> list[PreTrainedTokenizerBase | BaseImageProcessor]:
        """Return the transformers tokenizer and image processor."""
        image_processor = getattr(self.preprocess, "image_processor", None) or self.preprocess
        parts = [self.tokenizer, image_processor]
        for part in parts:
            if not hasattr(part, "save_pretrained"):
                raise InvalidInputError(
                    f"tokenizer, preprocess: {type(part).__name__} cannot be saved with a"
                    " transformers model; expected the model's processor, or its tokenizer and"
                    " image processor (AutoProcessor.from_pretrained)"
                )
        return parts

    def _config(self, name: str) -> dict[str, object]:
        """Return the contents of open_clip_config.json, with the model's own sizes."""
        open_clip = need("open_clip")
        folder = Path(name.removeprefix("local-dir:"))
        address = folder_address(folder) if (folder / CONFIG).is_file() else name
        config = open_clip.get_model_config(address)
        if not config:
            # In "ViT-B-32/laion2b_s34b_b79k", the architecture precedes the weights' tag.
            config = open_clip.get_model_config(address.partition("/")[0])
        if config is None:
            raise InvalidInputError(
                f"name: {name!r} is not an open_clip architecture; expected the name with which"
                " the model was created: one of open_clip.list_models(), 'hf-hub:...' or"
                " 'local-dir:...'"
            )
        is_square = self.size[0] == self.size[1]
        config["vision_cfg"]["image_size"] = self.size[0] if is_square else list(self.size)
        # The weights do not reveal the activation function, which is QuickGELU for OpenAI's
        # weights.
        kinds = {type(part).__name__ for part in self.model.modules()}
        config["quick_gelu"] = "QuickGELU" in kinds
        # open_clip looks for a tokenizer in the folder if the config specifies one.
        if hasattr(self.tokenizer, "save_pretrained"):
            config["text_cfg"].setdefault("hf_tokenizer_name", name)
        else:
            config["text_cfg"].pop("hf_tokenizer_name", None)
            plain = open_clip.SimpleTokenizer
            is_plain = isinstance(self.tokenizer, plain)
            if not is_plain or self.tokenizer.bpe_ranks != plain().bpe_ranks:
                raise InvalidInputError(
                    f"tokenizer: {type(self.tokenizer).__name__} with its own vocabulary cannot be"
                    " saved with an open_clip model; expected the tokenizer from"
                    " open_clip.get_tokenizer(model_name)"
                )
        preprocessing = {"mean": self.mean, "std": self.std}
        preprocessing |= getattr(self.model.visual, "preprocess_cfg", None) or {}
        # The image size is already part of the architecture.
        preprocessing.pop("size", None)
        return {"model_cfg": config, "preprocess_cfg": preprocessing}

"""Guidance by further texts: what a denoiser predicts for them is added to what it predicts for the prompt.

A pipeline with classifier-free guidance calls its UNet once a step, on rows without the prompt and rows with it, u and
c, and draws from u + s (c - u). Behind that pass the same images go through the UNet once more for each text, and what
is made of that is added: c + e / s, so that the pipeline draws from u + s (c - u) + e. Nothing of the pipeline is
replaced; its embeddings stay those of the prompt, to the bit.
"""

from __future__ import annotations

import threading
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vldebias.edit import Guidance
from vldebias.errors import InvalidInputError
from vldebias.hosts.base import Apply
from vldebias.hosts.seam import Seam, bare
from vldebias.hosts.steps import mapped, time_of


@dataclass
class _Drawing:
    """One call of a pipeline: states (k, tokens, d) of the texts, what is made of them, and where the denoiser is."""

    states: Tensor
    images: int
    added: Guidance
    passes: int = 0
    time: float = float("inf")


class GuideSeam(Seam):
    """Stands behind the UNet from the first call that is guided; a deep copy of the pipeline has its own."""

    def __init__(self, host: Any, apply: Apply) -> None:
        super().__init__(host.name, apply)
        self.host = host
        self._drawings: WeakKeyDictionary[threading.Thread, _Drawing] = WeakKeyDictionary()
        self._hook: RemovableHandle | None = None

    def begin(self, states: Tensor, images: int, added: Guidance) -> None:
        """Guide the images that this thread draws next; see `Host.guide`.

        Raises:
            InvalidInputError: attached with steps=.
        """
        if self.host.window is not None:
            raise InvalidInputError(f"{self.name}: guidance has warm-up steps of its own; leave steps= away")
        self._hook = self._hook or self.host._pipe.unet.register_forward_hook(self.after, with_kwargs=True)
        self._drawings[threading.current_thread()] = _Drawing(states, images, added)

    def clear(self) -> None:
        """Let this thread draw without."""
        self._drawings.pop(threading.current_thread(), None)

    def take_off(self) -> None:
        """Leave no trace."""
        super().take_off()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = super().__deepcopy__(memo)
        if twin is not self:
            twin._drawings, twin._hook = WeakKeyDictionary(), deepcopy(self._hook, memo)
        return twin

    def after(self, unet: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """A hook behind the forward pass: its output with the guidance of this step."""
        drawing = self._drawings.get(threading.current_thread())
        if drawing is None or not self.active:
            return None
        predicted = output[0]
        images, time = drawing.images, time_of(args, kwargs)
        if len(predicted) != 2 * images or time is None:
            raise InvalidInputError(
                f"{self.name}: expected the UNet to be given {images} images without and with their prompt, by "
                f"classifier-free guidance; it was given {len(predicted)} rows. Call the pipeline with a "
                "guidance_scale above 1, or use method='stated-value'"
            )
        if time > drawing.time:  # the same embeddings are drawn from once more
            drawing.passes = 0
        plain, prompted = predicted.chunk(2)
        added = drawing.added(drawing.passes, self._of_texts(unet, args, kwargs, drawing), plain)
        drawing.passes, drawing.time = drawing.passes + 1, time
        changed = torch.cat([plain, prompted + added.to(prompted) / float(self.host._pipe.guidance_scale)])
        if isinstance(output, tuple):
            return (changed, *output[1:])
        return type(output)(sample=changed)

    def _of_texts(self, unet: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], drawing: _Drawing) -> Tensor:
        """(k, images, ...): what the UNet predicts for the same images with each of the texts."""
        texts, images = len(drawing.states), drawing.images

        def again(tensor: Tensor) -> Tensor:
            if tensor.ndim == 0 or len(tensor) != 2 * images:
                return tensor
            return tensor[images:].repeat(texts, *[1] * (tensor.ndim - 1))

        args, kwargs = mapped(args, again), mapped(kwargs, again)
        own = kwargs["encoder_hidden_states"] if "encoder_hidden_states" in kwargs else args[2]
        states = drawing.states.to(own).repeat_interleave(images, 0)
        if "encoder_hidden_states" in kwargs:
            kwargs = {**kwargs, "encoder_hidden_states": states}
        else:
            args = (*args[:2], states, *args[3:])
        with bare(), torch.no_grad():
            return unet(*args, **kwargs)[0].unflatten(0, (texts, images))

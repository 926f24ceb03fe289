"""Record how a denoiser and its cross-attention layers respond to prompts while a pipeline runs.

A cross-attention layer is recognised by its behaviour: if all text tokens are equal, its output is
the same at every position in the image. Joint attention (SD3, FLUX) mixes image and text in one
softmax and does not behave this way.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vldebias.hosts.pipelines.passes import (
    Arguments,
    EncodedPrompts,
    Keywords,
    batch_of,
    text_output,
    time_of,
)


@dataclass
class Recorder:
    """Hook a denoiser to record cross-attention responses to the conditional prompts.

    Attributes:
        encodes_again: whether all encodings in a call belong to the prompt, none to the negative
            prompt.
        layers: names of the cross-attention layers. If empty, `probe` finds them.
        prompts: the encoded prompts of the current call.
        passes: number of passes through the denoiser since the prompts were encoded.
        time: timestep of the current pass.
        batch: batch size of the current pass.
        rows: the prompt of each batch row.
        means: for each (time, layer), the mean over positions (prompts, width).
        predictions: the denoiser's output (prompts, d) in the last pass with prompts.
        effects: for each layer, the vectors (prompts, width) that `add` adds to its outputs.
    """

    encodes_again: bool
    layers: list[str] = field(default_factory=list)
    prompts: EncodedPrompts | None = None
    passes: int = 0
    time: float = 0.0
    batch: int = 1
    rows: dict[int, int] = field(default_factory=dict)
    means: dict[tuple[float, str], Tensor] = field(default_factory=dict)
    predictions: Tensor | None = None
    effects: dict[str, Tensor] = field(default_factory=dict)

    def note(self, encodings: Sequence[Tensor]) -> None:
        """Remember the prompts' embeddings.

        A second encoding only counts if it also belongs to the prompt.
        """
        is_second = self.prompts is not None and not self.passes
        if is_second and self.prompts is not None and self.encodes_again:
            self.prompts.add(encodings)
        elif encodings and not is_second:
            self.prompts = EncodedPrompts.from_rows(encodings)
            self.passes = 0

    def begin(self, module: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        """Determine the rows and timestep of a pass (a forward pre-hook for the denoiser).

        Args:
            module: the denoiser.
            args: positional arguments of the module's call.
            kwargs: keyword arguments of the module's call.
        """
        self.rows = {}
        time = time_of(args, kwargs)
        if self.prompts is not None and time is not None:
            self.passes += 1
            self.time = time
            self.batch = batch_of(args, kwargs)
            self.rows = self.prompts.rows(args, kwargs)

    def record(
        self, name: str, module: nn.Module, args: Arguments, kwargs: Keywords, output: Tensor
    ) -> None:
        """Record each prompt's mean over positions (a forward hook for cross-attention layers).

        Args:
            name: name of the cross-attention layer.
            module: the cross-attention layer.
            args: positional arguments of the module's call.
            kwargs: keyword arguments of the module's call.
            output: the module's output.
        """
        if not self.rows:
            return
        text = text_output(module, args, kwargs, output)
        copies = max(len(text) // self.batch, 1)  # the number of frames of a video
        blocks = text.unflatten(0, (-1, copies)).flatten(1, 2)
        means = blocks[list(self.rows)].float().mean(1).double().cpu()
        self.means[self.time, name] = self._by_prompt(means)

    def add(
        self, name: str, module: nn.Module, args: Arguments, kwargs: Keywords, output: Tensor
    ) -> Tensor | None:
        """Add each prompt's effect at every position (a forward hook for cross-attention layers).

        Args:
            name: name of the cross-attention layer.
            module: the cross-attention layer.
            args: positional arguments of the module's call.
            kwargs: keyword arguments of the module's call.
            output: the module's output.
        """
        if not self.rows:
            return None
        copies = max(len(output) // self.batch, 1)  # the number of frames of a video
        added = self.effects[name][list(self.rows.values())].to(output)
        changed = output.clone()
        changed.unflatten(0, (-1, copies))[list(self.rows)] += added[:, None, None]
        return changed

    def predict(self, output: object) -> None:
        """Record the denoiser's prediction for each prompt in a pass.

        Args:
            output: the denoiser's output.
        """
        if not isinstance(output, Tensor):
            output = output[0]  # type: ignore[index]  # a tuple, or a ModelOutput of diffusers
        batch = output if isinstance(output, Tensor) else torch.stack(list(output))  # type: ignore[call-overload]
        self.predictions = self._by_prompt(batch[list(self.rows)].flatten(1).double().cpu())

    def _by_prompt(self, rows: Tensor) -> Tensor:
        """Return the mean of each prompt's rows, given one row for each entry of `self.rows`."""
        prompts = torch.tensor(list(self.rows.values()))
        count = int(prompts.max()) + 1
        return torch.stack([rows[prompts == prompt].mean(0) for prompt in range(count)])

    def probe(
        self, name: str, module: nn.Module, args: Arguments, kwargs: Keywords, output: object
    ) -> None:
        """Add a module to `layers` if it behaves like cross-attention. This is a forward hook.

        Such a module has one output for the image, which is the same at every position if all
        text tokens are equal.

        Args:
            name: name of the module.
            module: a module of the denoiser, which has just run.
            args: positional arguments of the module's call.
            kwargs: keyword arguments of the module's call.
            output: the module's output.
        """
        if not self.rows or name in self.layers or not isinstance(output, Tensor):
            return
        try:
            bound = inspect.signature(module.forward).bind(*args, **kwargs)
        except TypeError:
            return
        states = bound.arguments.get("encoder_hidden_states")
        has_pictures = isinstance(states, tuple)  # an IP-Adapter passes image states with the text
        text = states[0] if isinstance(states, tuple) else states
        picture = next(iter(bound.arguments.values()), None)
        if not isinstance(text, Tensor) or text is picture or text.ndim != 3:
            return
        if output.ndim != 3 or output.shape[1] == 1 or len(output) < len(text):
            return
        equal = text[:, :1].expand_as(text)
        bound.arguments["encoder_hidden_states"] = (equal, []) if has_pictures else equal
        again = module.forward(*bound.args, **bound.kwargs)
        spread = (again - again[:, :1]).abs().max()
        if float(spread) <= 1e-3 * float(again.abs().max()) + 1e-6:
            self.layers.append(name)

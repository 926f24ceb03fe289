"""Record what the cross-attentions of a denoiser give for prompts, while a pipeline runs.

A cross-attention is recognised by what it does: if all tokens of the text are equal, its output is
the same at every position of the picture. Joint attention (SD3, FLUX) mixes picture and text in one
softmax, and has none.
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
    """Hooks that record what cross-attentions give for the conditional prompts.

    encodes_again: whether all encodings of a call are of the prompt. layers: names of the
    cross-attentions; found by `probe` where there are none yet. passes: through the denoiser, since
    the prompts were encoded. rows: of the present pass, row -> prompt. means: (time, layer) ->
    (prompts, width), over positions.
    """

    encodes_again: bool
    layers: list[str] = field(default_factory=list)
    prompts: EncodedPrompts | None = None
    passes: int = 0
    time: float = 0.0
    batch: int = 1
    rows: dict[int, int] = field(default_factory=dict)
    means: dict[tuple[float, str], Tensor] = field(default_factory=dict)

    def note(self, encodings: Sequence[Tensor]) -> None:
        """Remember the embeddings of the prompts; of a second encoding only where it is of the
        prompt too."""
        is_second = self.prompts is not None and not self.passes
        if is_second and self.prompts is not None and self.encodes_again:
            self.prompts.add(encodings)
        elif encodings and not is_second:
            self.prompts = EncodedPrompts.from_rows(encodings)
            self.passes = 0

    def begin(self, module: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        """Find the rows and the time of a pass."""
        self.rows = {}
        time = time_of(args, kwargs)
        if self.prompts is not None and time is not None:
            self.passes += 1
            self.time = time
            self.batch = batch_of(args, kwargs)
            self.rows = self.prompts.rows(args, kwargs)

    def record(
        self, name: str, module: nn.Module, args: Arguments, kwargs: Keywords, output: object
    ) -> None:
        """Keep the mean over positions of the conditional rows, one for each prompt."""
        if not self.rows:
            return
        text = text_output(module, args, kwargs, output)
        copies = max(len(text) // self.batch, 1)  # frames of a video
        blocks = text.unflatten(0, (-1, copies)).flatten(1, 2)
        means = blocks[list(self.rows)].float().mean(1).double().cpu()
        images = torch.tensor(list(self.rows.values()))
        rows = [means[images == image].mean(0) for image in range(int(images.max()) + 1)]
        self.means[self.time, name] = torch.stack(rows)

    def probe(
        self, name: str, module: nn.Module, args: Arguments, kwargs: Keywords, output: object
    ) -> None:
        """Note a module that gives one output for the picture, the same at every position where all
        tokens of the text are equal."""
        if not self.rows or name in self.layers or not isinstance(output, Tensor):
            return
        try:
            bound = inspect.signature(module.forward).bind(*args, **kwargs)
        except TypeError:
            return
        states = bound.arguments.get("encoder_hidden_states")
        has_pictures = isinstance(states, tuple)  # of an IP-Adapter, beside the text
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

"""A host for whatever gives embeddings by a method: a bare tower, a CLIP of remote code, a pipeline of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vldebias.edit import Edit, Fingerprint
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.base import Apply, Host
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hosts.merge import fold, foldable
from vldebias.hosts.seam import MethodSeam, reading

__all__ = ["CustomHost", "custom"]

_BATCH = 64


def custom(
    model: Any,
    method: str,
    *,
    embed: Callable[[list[str]], Any] | None = None,
    texts: Callable[..., Sequence[str]] | None = None,
    output: str | int | None = None,
    weights: nn.Module | Sequence[nn.Module] | None = None,
    head: nn.Linear | None = None,
    generative: bool = False,
    name: str | None = None,
) -> CustomHost:
    """Describe a model that no library of ours knows; what comes back goes wherever a model goes.

    Args:
        model: any object; `model.method` is what the rest of your program calls to get embeddings.
        method: its name, such as "encode_text", "encode", "encode_prompt", or "forward" of a module. It gives
            (b, d), or (b, length, d), as tensors or numpy arrays.
        embed: a list of prompts -> one row each, (n, d): the space that the edit is fitted in. For a sequence that is
            the row at the end of the text. Default: `model.method(prompts)`, where that gives (n, d).
        texts: the arguments of a call of `method` -> the prompt of each row (or of each group of rows that belong to
            one prompt); for `keep_stated` and edits that read prompts. Default: the first argument that is text.
        output: which part of what `method` returns are the embeddings: an index or a name. Default: all of it.
        weights: the modules of the text tower, for the fingerprint. Default: the model, where it is a module.
        head: the Linear that makes the embeddings, so that `merge` can fold the edit into it. Default: no merging.
        generative: it draws images from them, so that the presets of pipelines apply.
        name: for messages and saved edits. Default: that of the class.

    Raises:
        InvalidInputError: no such method.

    >>> host = custom(clip, "encode_text", embed=lambda prompts: clip.encode_text(tokenize(prompts)))  # doctest: +SKIP
    >>> attachment = vldebias.debias(host, "gender", keep_stated=False)  # doctest: +SKIP
    """
    if not callable(getattr(model, method, None)):
        raise InvalidInputError(
            f"custom: {type(model).__name__} has no method {method!r}; expected the name of what gives embeddings"
        )
    given = (model,) if weights is None and isinstance(model, nn.Module) else weights or ()
    modules = (given,) if isinstance(given, nn.Module) else tuple(given)
    return CustomHost(model, method, embed, texts, output, modules, head, generative, name or type(model).__name__)


class CustomHost(Host):
    """What `custom` describes: one role, "joint", or "sequence" of what draws images."""

    def __init__(
        self,
        model: Any,
        method: str,
        embed: Callable[[list[str]], Any] | None,
        texts: Callable[..., Sequence[str]] | None,
        output: str | int | None,
        weights: tuple[nn.Module, ...],
        head: nn.Linear | None,
        generative: bool,
        name: str,
    ) -> None:
        self.model, self.method, self.weights, self.head = model, method, weights, head
        self.name, self.generative = name, generative
        self.roles = ("sequence",) if generative else ("joint",)
        self.owned = (model, *(() if head is None else (head,)))
        self.model_id = getattr(model, "name_or_path", None) or None
        self._embed, self._texts, self._output = embed, texts, output

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Rows of `prompts`, in batches.

        Raises:
            InvalidInputError: what came is not one row for each prompt.
        """
        rows = []
        with reading(*self.weights):
            for start in range(0, len(prompts), _BATCH):
                batch = list(prompts[start : start + _BATCH])
                given = self._plain(batch) if self._embed is None else self._embed(batch)
                if not isinstance(given, (Tensor, np.ndarray)) or given.shape[:-1] != (len(batch),):
                    came = tuple(given.shape) if isinstance(given, (Tensor, np.ndarray)) else type(given).__name__
                    raise InvalidInputError(
                        f"{self.name}: {came} came for {len(batch)} prompts; expected ({len(batch)}, d), a tensor or "
                        "an array: pass embed= that gives one row for each"
                    )
                rows.append(torch.as_tensor(given).detach().cpu().double())
        return {(role, p): row for p, row in zip(prompts, F.normalize(torch.cat(rows), dim=-1), strict=True)}

    def _plain(self, prompts: list[str]) -> Any:
        return self.embeddings(getattr(self.model, self.method)(prompts))

    def embeddings(self, returned: Any) -> Any:
        """Those in what the method returned."""
        if self._output is None:
            return returned
        part = itemgetter(self._output) if isinstance(self._output, int) else attrgetter(self._output)
        return part(returned)

    def with_embeddings(self, returned: Any, changed: Any) -> Any:
        """What the method returned, with others in their place."""
        if self._output is None:
            return changed
        if isinstance(self._output, int):
            kind = type(returned)
            items = [changed if i == self._output % len(returned) else part for i, part in enumerate(returned)]
            return kind(*items) if hasattr(returned, "_fields") else kind(items)
        if isinstance(returned, dict):  # the output objects of transformers are both
            returned[self._output] = changed
        else:
            setattr(returned, self._output, changed)
        return returned

    def texts(self, call: Mapping[str, Any]) -> Sequence[str]:
        """The prompts of a call, given its arguments by name.

        Raises:
            InvalidInputError: none of them is text, and nothing says how they are read.
        """
        if self._texts is not None:
            return self._texts(**call)
        for value in call.values():
            if isinstance(value, str):
                return [value]
            if isinstance(value, (list, tuple)) and value and all(isinstance(one, str) for one in value):
                return value
        raise InvalidInputError(
            f"{self.name}.{self.method}: got {', '.join(f'{n}: {type(v).__name__}' for n, v in call.items())}, and no "
            "prompts to read; pass texts= to vldebias.hosts.custom (the arguments of a call -> its prompts), or "
            "keep_stated=False to debias"
        )

    def space(self, role: str) -> str:
        """ "custom.NAME.joint" or "custom.NAME.sequence"; the fingerprint tells weights apart."""
        return f"custom.{self.name}.{role}"

    def fingerprint(self) -> Fingerprint | None:
        """Of the modules of the text tower; None where none are known."""
        return weights_fingerprint(*self.weights)

    def install(self, apply: Apply) -> Callable[[], None]:
        """A seam in the place of the method."""
        seam = _CustomSeam(self, apply)
        seam.refuse_copy([vars(self.model).get(self.method)])
        seam.put_on()
        return seam.take_off

    def merge(self, edits: Mapping[str, Edit], strength: float) -> None:
        """Fold the edit into the head that was given."""
        if self.head is None:
            raise UnsupportedHostError(
                f"{self.name}: nothing says which Linear makes the embeddings; pass head= to vldebias.hosts.custom, "
                "or keep it attached"
            )
        fold(foldable(self.name, "text", self.head), edits[self.roles[0]].folded(), strength)


class _CustomSeam(MethodSeam):
    """Stands in for the method: its embeddings, changed, in what it returns."""

    def __init__(self, host: CustomHost, apply: Apply) -> None:
        super().__init__(host.name, apply, host.model, host.method)
        self.host = host

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        returned = self.original(*args, **kwargs)
        if not self.active:
            return returned
        given = self.host.embeddings(returned)
        tensor = torch.from_numpy(given) if isinstance(given, np.ndarray) else given
        if not isinstance(tensor, Tensor):
            raise InvalidInputError(
                f"{self.name}.{self.method}: expected a tensor or an array, got {type(given).__name__}; pass output= "
                "to vldebias.hosts.custom, the index or name of the embeddings in it"
            )
        rows = tensor if tensor.ndim > 1 else tensor[None]  # one text alone may come without a batch
        changed = self.project(
            self.host.roles[0], rows, lambda: self.host.texts(self.bind(*args, **kwargs).arguments)
        ).view_as(tensor)
        return self.host.with_embeddings(returned, changed.numpy() if isinstance(given, np.ndarray) else changed)

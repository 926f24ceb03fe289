"""Serve models of other libraries by a method that returns embeddings, and tables of text embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.base import TOKENIZING, Apply, Host, MethodSeam, installed, read_rows
from vldebias.hosts.merge import fold, foldable


class CustomHost(Host):
    """Describe a model of any other library, so that every function of vldebias accepts it.

    Its role is "joint", or "sequence" for a model that generates images.

    Args:
        model: any object; `model.method` is the call by which your program gets embeddings.
        method: its name, such as "encode_text", "encode", "encode_prompt", or "forward" of a module; or the path of a
            submodule, such as "text_model.pooler", whose output is then changed. It returns (b, d), or
            (b, length, d), as tensors or numpy arrays.
        embed: a list of prompts -> one row each, (n, d): the space that the edit is fitted in. For a sequence that is
            the row at the end of the text. Default: `model.method(prompts)`, where that returns (n, d).
        texts: the arguments of a call of `method` -> the prompt of each row (or of each group of rows that belong to
            one prompt); for `keep_stated` and edits that read prompts. Default: the first argument that is text.
        output: index or name of the embeddings in the output of `method`. Default: all of it.
        weights: the modules of the text tower, for the fingerprint. Default: the model, where it is a module.
        head: the Linear that makes the embeddings, so that `merge` can fold the edit into it. Default: no merging.
        generative: the model generates images from the embeddings, so that the presets of pipelines apply.
        name: for messages and saved edits. Default: the name of the class.

    Where `embed` calls `method`, its rows must be rows of that output; where `method` is a submodule, `embed` must call
    it. Both are checked when the edit is fitted or attached.

    Raises:
        InvalidInputError: no such method.

    >>> host = custom(clip, "encode_text", embed=lambda prompts: clip.encode_text(tokenize(prompts)))  # doctest: +SKIP
    >>> attachment = vldebias.debias(host, "gender", keep_stated=False)  # doctest: +SKIP
    """

    def __init__(
        self,
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
    ) -> None:
        self.model, self.method, self.generative = model, method, generative
        self.owner, self.called = _place(model, method)
        if self.owner is not model and self.called == "forward" and embed is None:
            raise InvalidInputError(
                f"custom: {method!r} is a module inside; pass embed= that gives a row for each prompt"
            )
        modules = (model,) if weights is None and isinstance(model, nn.Module) else weights or ()
        self.weights: tuple[nn.Module, ...] = (modules,) if isinstance(modules, nn.Module) else tuple(modules)
        self._output, self._embed, self._texts, self._head = output, embed, texts, head
        self.roles = ("sequence" if generative else "joint",)
        self.name = name or type(model).__name__
        self.model_id = getattr(model, "name_or_path", None) or None
        occupied = {id(one): one for one in (model, self.owner, head) if one is not None}
        self.exclusive_modules, self._checked = tuple(occupied.values()), False

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Return rows of `prompts`; raise InvalidInputError unless they are one per prompt and outputs of `method`."""
        return read_rows(self._rows, prompts, role, *self.weights)

    def _rows(self, prompts: list[str]) -> Tensor:
        embed = self._embed or (lambda texts: self.open(getattr(self.owner, self.called)(texts))[0])
        recorder = _Recorder(self.name, lambda role, z, texts: z, self.owner, self.called)
        with TOKENIZING:
            take_off = (lambda: None) if self._checked else installed([recorder])
            try:
                block = embed(prompts)
            finally:
                take_off()
        if not isinstance(block, (Tensor, np.ndarray)) or block.shape[:-1] != (len(prompts),):
            came = tuple(block.shape) if isinstance(block, (Tensor, np.ndarray)) else type(block).__name__
            raise InvalidInputError(
                f"{self.name}: {came} came for {len(prompts)} prompts; expected ({len(prompts)}, d), a tensor or "
                "an array: pass embed= that gives one row for each"
            )
        rows = torch.as_tensor(block)
        if not self._checked:
            self._check_place(rows, recorder.returned)
        self._checked = True
        return rows

    def _check_place(self, rows: Tensor, passed: list[Any]) -> None:
        """Refuse a place that the rows do not come from: an edit would act in another space than it was fitted in."""
        if not passed and self.called == self.method:  # embed has a way of its own, and the program calls this
            return
        if not passed:
            raise InvalidInputError(
                f"{self.name}: embed= never calls {self.method!r}, so what stands there changes no embedding; name a "
                "module that it passes through"
            )
        width, given = rows.shape[1], [self.open(one)[0] for one in passed]
        there = [_unit(one).reshape(-1, width) for one in given if one.ndim and one.shape[-1] == width]
        if not there or (_unit(rows) @ torch.cat(there).T).amax(1).min() < 0.999:
            shapes = ", ".join(str(tuple(one.shape)) for one in given[:3])
            raise InvalidInputError(
                f"{self.name}: the rows of embed=, {tuple(rows.shape)}, are not among what {self.method!r} gives, "
                f"{shapes}: an edit would be fitted in one space and act in another; expected a place that gives "
                "them, or embed= that returns rows of it"
            )

    def open(self, returned: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
        """Return the embeddings in the output of the method, and a function that puts others in their place."""
        place, part = self._output, returned
        if place is not None:  # output objects of transformers are mappings
            by_key = isinstance(place, int) or isinstance(returned, dict)
            part = returned[place] if by_key else getattr(returned, str(place))
        if not isinstance(part, (Tensor, np.ndarray)):
            raise InvalidInputError(
                f"{self.name}.{self.method}: expected a tensor or an array, got {type(part).__name__}; pass output= to "
                "vldebias.hosts.custom, the index or name of the embeddings in it, or embed= that gives one row for "
                "each prompt"
            )

        def close(tensor: Tensor) -> Any:
            changed = tensor.numpy() if isinstance(part, np.ndarray) else tensor
            if place is None:
                return changed
            if isinstance(place, int):
                items = [changed if i == place % len(returned) else one for i, one in enumerate(returned)]
                return type(returned)(*items) if hasattr(returned, "_fields") else type(returned)(items)
            if isinstance(returned, dict):
                returned[place] = changed
            else:
                setattr(returned, place, changed)
            return returned

        return torch.as_tensor(part), close

    def texts(self, call: Mapping[str, Any]) -> Sequence[str]:
        """Return the prompts of a call, given its arguments by name; raise InvalidInputError where none is text."""
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
        """Return "custom.NAME.joint" or "custom.NAME.sequence"; the fingerprint tells weights apart."""
        return f"custom.{self.name}.{role}"

    def install(self, apply: Apply) -> Callable[[], None]:
        """Replace the method by a hook."""
        return installed([_CustomSeam(self.name, apply, self.owner, self.called, self)])

    def text_modules(self) -> tuple[nn.Module, ...]:
        """Return the modules of `weights`."""
        return self.weights

    def merge(self, edits: Mapping[str, Edit], strength: float) -> None:
        """Fold the edit into `head`."""
        if self._head is None:
            raise UnsupportedHostError(
                f"{self.name}: nothing says which Linear makes the embeddings; pass head= to vldebias.hosts.custom, or "
                "keep it attached"
            )
        fold(foldable(self.name, "text", self._head), edits[self.roles[0]].folded(), strength)


custom = CustomHost


@dataclass(eq=False, repr=False)
class _CustomSeam(MethodSeam):
    """Replace the method by one that changes its embeddings."""

    host: CustomHost

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        returned = self.original(*args, **kwargs)
        if not self.active:
            return returned
        tensor, close = self.host.open(returned)
        rows = tensor if tensor.ndim > 1 else tensor[None]  # one text alone may come without a batch
        changed = self.project(self.host.roles[0], rows, lambda: self.host.texts(self.bind(*args, **kwargs).arguments))
        return close(changed.view_as(tensor))


@dataclass(eq=False, repr=False)
class _Recorder(MethodSeam):
    """Replace the method by one that keeps its outputs."""

    returned: list[Any] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.returned.append(self.original(*args, **kwargs))
        return self.returned[-1]


def _unit(rows: Tensor) -> Tensor:
    return normalize(rows.detach().cpu().double(), dim=-1)


def _place(model: Any, method: str) -> tuple[Any, str]:
    """Return the object that has the method, and its name there."""
    path, _, called = method.rpartition(".")
    try:
        owner = attrgetter(path)(model) if path else model
        if isinstance(getattr(owner, called), nn.Module):
            owner, called = getattr(owner, called), "forward"
    except AttributeError:
        owner = None
    if owner is None or not callable(getattr(owner, called)):
        inside = [name for name, _ in model.named_modules() if name] if isinstance(model, nn.Module) else []
        near = get_close_matches(method, inside, n=3, cutoff=0)
        raise InvalidInputError(
            f"custom: {type(model).__name__} has no method {method!r}; expected the name of what gives embeddings"
            + (f", or of a module inside, such as {', '.join(near)}" if near else "")
        )
    return owner, called


class TextTable(Host):
    """Serve text embeddings that were computed before, for fitting and measuring; nothing can be attached.

    rows: prompt -> embedding (d,), or (1, d) as a model returns it. model_id: which model they come from.

    Raises:
        InvalidInputError: no prompts, or rows that are not (d,) of one width, finite and of a length above 0.
    """

    name = "table of text embeddings"
    roles = ("joint",)
    exclusive_modules = ()

    def __init__(self, rows: Mapping[str, Any], model_id: str | None = None) -> None:
        wide = {prompt: torch.as_tensor(row).detach().cpu().double() for prompt, row in rows.items()}
        wide = {prompt: row[0] if row.ndim == 2 and len(row) == 1 else row for prompt, row in wide.items()}
        shapes = {tuple(row.shape) for row in wide.values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise InvalidInputError(f"text embeddings: expected rows (d,) of one width, got {sorted(shapes) or 'none'}")
        bad = [prompt for prompt, row in wide.items() if not (row.isfinite().all() and row.any())]
        if bad:
            raise InvalidInputError(f"text embeddings: {len(bad)} rows are zero or not finite, such as {bad[:3]}")
        self._rows = {prompt: normalize(row, dim=0) for prompt, row in wide.items()}
        self.model_id = model_id

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Return the stored rows of `prompts`, normalised; raise InvalidInputError where the table lacks some."""
        missing = [prompt for prompt in prompts if prompt not in self._rows]
        if missing:
            raise InvalidInputError(
                f"text embeddings: {len(missing)} of {len(prompts)} prompts are not in the file, such as "
                f"{missing[:3]}; store their embeddings too (`vldebias eval show SUITE --texts` lists "
                "them), or evaluate with the model"
            )
        return {(role, prompt): self._rows[prompt] for prompt in prompts}

    def dim(self, role: str) -> int:
        """Return the width of the rows."""
        return len(next(iter(self._rows.values())))

    def space(self, role: str) -> str:
        """Return the name of this space."""
        return "table.joint"

    def install(self, apply: Apply) -> Callable[[], None]:
        """Refuse, since there is no model to attach to."""
        raise UnsupportedHostError(f"{self.name}: attaching needs the model itself")

    def merge(self, edits: Mapping[str, Edit], strength: float) -> None:
        """Refuse, since there are no weights."""
        raise UnsupportedHostError(f"{self.name}: merging needs the model itself")

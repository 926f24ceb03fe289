"""Serve models of other libraries by a method that returns embeddings, and tables of text
embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import BoundArguments
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.files import add_tensors
from vldebias.hosts.clip.merge import foldable
from vldebias.hosts.host import TOKENIZING, Host, hook_methods

if TYPE_CHECKING:
    from vldebias.hosts.attachment import Attachment


class CustomHost(Host):
    """Describe a model of any other library, so that every function of vldebias accepts it.

    Its role is "joint", or "sequence" for a model that generates images.

    Args:
        model: any object; `model.method` is the call by which your program gets embeddings.
        method: its name, such as "encode_text", "encode", "encode_prompt", or "forward" of a
            module; or the path of a submodule, such as "text_model.pooler", whose output is then
            changed. It returns (b, d), or (b, length, d), as tensors or numpy arrays.
        embed: a list of prompts -> one row each, (n, d): the space that the edit is fitted in. For
            a sequence that is the row at the end of the text. Default: `model.method(prompts)`,
            where that returns (n, d).
        texts: the arguments of a call of `method` -> the prompt of each row (or of each group of
            rows that belong to one prompt); for `keep_stated` and edits that read prompts. Default:
            the first argument that is text.
        output: index or key of the embeddings in the output of `method`. Default: all of it.
        weights: the modules of the text tower, for the fingerprint. Default: the model, where it is
            a module.
        head: the Linear that makes the embeddings, into which `merge` folds the edit. Default: no
            merging.
        generative: the model generates images from the embeddings, so that the presets of pipelines
            apply.

    Where `embed` calls `method`, its rows must be rows of that output; where `method` is a
    submodule, `embed` must call it. Both are checked when the edit is fitted or attached.

    Raises:
        InvalidInputError: no such method.

    >>> embed = lambda prompts: clip.encode_text(tokenize(prompts))  # doctest: +SKIP
    >>> host = custom(clip, "encode_text", embed=embed)  # doctest: +SKIP
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
    ) -> None:
        self.name, self.generative, self._method = type(model).__name__, generative, method
        path, _, self._called = method.rpartition(".")
        try:
            place = attrgetter(method)(model)
        except AttributeError:
            inside = (
                [name for name, _ in model.named_modules() if name]
                if isinstance(model, nn.Module)
                else []
            )
            raise InvalidInputError(
                f"custom: {self.name} has no method {method!r}; expected the name of the method"
                " that gives embeddings, or of a module inside:"
                f" {', '.join(inside[:20]) or 'it has none'}"
            ) from None
        self._owner = attrgetter(path)(model) if path else model
        if isinstance(place, nn.Module):
            self._owner, self._called = place, "forward"
            if embed is None:
                raise InvalidInputError(
                    f"custom: {method!r} is a module inside; pass embed= that gives a row for each"
                    " prompt"
                )
        tower: Any = model if weights is None and isinstance(model, nn.Module) else weights or ()
        self.text_modules = (tower,) if isinstance(tower, nn.Module) else tuple(tower)
        self._output, self._embed, self._texts, self._head = output, embed, texts, head
        self.roles = ("sequence" if generative else "joint",)
        self.model_id = getattr(model, "name_or_path", None) or None
        occupied = {id(one): one for one in (model, self._owner, head) if one is not None}
        self.exclusive_modules, self._checked = tuple(occupied.values()), False

    def space(self, role: str) -> str:
        """Return "custom.NAME.joint" or "custom.NAME.sequence"; the fingerprint tells weights
        apart."""
        return f"custom.{self.name}.{role}"

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Return rows of `prompts`; raise InvalidInputError unless they are one per prompt and
        outputs of `method`."""
        return self.read_by(self._rows, prompts, role, *self.text_modules)

    def _rows(self, prompts: list[str]) -> Tensor:
        owner, name, passed = self._owner, self._called, list[Any]()
        method, own = getattr(owner, name), vars(owner).get(name)

        def record(*args: Any, **kwargs: Any) -> Any:
            passed.append(method(*args, **kwargs))
            return passed[-1]

        with TOKENIZING, ExitStack() as stack:
            if not self._checked:
                setattr(owner, name, record)
                stack.callback(
                    partial(delattr, owner, name)
                    if own is None
                    else partial(setattr, owner, name, own)
                )
            block = (
                self._embed(prompts)
                if self._embed
                else self._open(getattr(owner, name)(prompts))[0]
            )
        shape = tuple(getattr(block, "shape", ()))
        if shape[:-1] != (len(prompts),):
            raise InvalidInputError(
                f"{self.name}: got {type(block).__name__} {shape} for {len(prompts)} prompts;"
                f" expected a tensor or an array ({len(prompts)}, d): pass embed= that gives one"
                " row for each"
            )
        rows = torch.as_tensor(block)
        if not self._checked and (
            passed or self._called != self._method
        ):  # else embed does not go through the method
            self._check_place(rows, [self._open(one)[0] for one in passed])
        self._checked = True
        return rows

    def _check_place(self, rows: Tensor, given: list[Tensor]) -> None:
        """Refuse a place that the rows do not come from, where an edit would act in another
        space."""
        mine, *others = (normalize(one.detach().cpu().double(), dim=-1) for one in (rows, *given))
        there = [
            one.reshape(-1, mine.shape[1])
            for one in others
            if one.ndim and one.shape[-1] == mine.shape[1]
        ]
        if not there or (mine @ torch.cat(there).T).amax(1).min() < 0.999:
            shapes = (
                ", ".join(str(tuple(one.shape)) for one in given[:3])
                or "nothing: it is never called"
            )
            raise InvalidInputError(
                f"{self.name}: the rows of embed=, {tuple(rows.shape)}, are not among the outputs"
                f" of {self._method!r} ({shapes}); name a place that gives them, or pass embed="
                " that returns rows of its output"
            )

    def _open(self, returned: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
        """Return the embeddings in the output of the method, and a function that puts others in
        their place."""
        place = self._output
        part = (
            returned if place is None else returned[place]
        )  # output objects of transformers are mappings
        if not isinstance(part, (Tensor, np.ndarray)):
            raise InvalidInputError(
                f"{self.name}.{self._method}: got {type(part).__name__}, expected a tensor or an"
                " array; pass output=, the index or key of the embeddings in it, or embed= that"
                " gives one row for each prompt"
            )

        def close(tensor: Tensor) -> Any:
            changed = tensor.numpy() if isinstance(part, np.ndarray) else tensor
            if place is None:
                return changed
            if isinstance(returned, tuple):
                items = [changed if one is part else one for one in returned]
                return type(returned)(*items) if hasattr(returned, "_fields") else tuple(items)
            returned[place] = changed
            return returned

        return torch.as_tensor(part), close

    def install(self, attachment: Attachment) -> Callable[[], None]:
        """Replace the method by one that changes its embeddings."""

        def change(original: Any, call: BoundArguments) -> Any:
            tensor, close = self._open(original(*call.args, **call.kwargs))
            rows = (
                tensor if tensor.ndim > 1 else tensor[None]
            )  # one text alone may come without a batch
            changed = attachment.apply(
                self.roles[0], rows, lambda: self._prompts_of(call.arguments)
            )
            return close(changed.view_as(tensor))

        return hook_methods(attachment, self._owner, {self._called: change})

    def _prompts_of(self, call: Mapping[str, Any]) -> Sequence[str]:
        if self._texts is not None:
            return self._texts(**call)
        for value in call.values():
            if isinstance(value, str):
                return [value]
            if (
                isinstance(value, (list, tuple))
                and value
                and all(isinstance(one, str) for one in value)
            ):
                return value
        raise InvalidInputError(
            f"{self.name}.{self._method}: got"
            f" {', '.join(f'{n}: {type(v).__name__}' for n, v in call.items())}, and no prompts to"
            " read; pass texts= (the arguments of a call -> its prompts), or keep_stated=False to"
            " debias"
        )

    def merge(self, edits: Mapping[str, Any], strength: float) -> None:
        """Fold the edit into `head`."""
        fold = foldable(
            f"{self.name}: cannot merge, since head= of vldebias.hosts.custom", self._head
        )
        fold(edits[self.roles[0]], strength)


custom = CustomHost


class TextTable(Host):
    """Serve text embeddings that were computed before, for fitting and measuring; nothing can be
    attached.

    rows: prompt -> embedding (d,), or (1, d) as a model returns it. model_id: which model they come
    from.

    Raises:
        InvalidInputError: no prompts, or rows that are not (d,) of one width, finite and of a
            length above 0.
    """

    name, library = "table of text embeddings", "table"
    roles = ("joint",)
    exclusive_modules = ()

    def __init__(self, rows: Mapping[str, Any], model_id: str | None = None) -> None:
        wide = {
            prompt: torch.as_tensor(row).detach().cpu().double() for prompt, row in rows.items()
        }
        wide = {
            prompt: row[0] if row.ndim == 2 and len(row) == 1 else row
            for prompt, row in wide.items()
        }
        shapes = {tuple(row.shape) for row in wide.values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise InvalidInputError(
                f"text embeddings: expected rows (d,) of one width, got {sorted(shapes) or 'none'}"
            )
        bad = [prompt for prompt, row in wide.items() if not (row.isfinite().all() and row.any())]
        if bad:
            raise InvalidInputError(
                f"text embeddings: {len(bad)} rows are zero or not finite, such as {bad[:3]}"
            )
        self.rows = {prompt: normalize(row, dim=0) for prompt, row in wide.items()}
        self.model_id = model_id

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Return the stored rows of `prompts`, normalised; raise InvalidInputError where the table
        lacks some."""
        missing = [prompt for prompt in prompts if prompt not in self.rows]
        if missing:
            raise InvalidInputError(
                f"text embeddings: {len(missing)} of {len(prompts)} prompts are missing, such as"
                f" {missing[:3]}; add them (`vldebias eval show SUITE --texts` lists them), or"
                " evaluate with the model"
            )
        return {(role, prompt): self.rows[prompt] for prompt in prompts}

    def dim(self, role: str) -> int:
        """Return the width of the rows."""
        return len(next(iter(self.rows.values())))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the prompts and their rows, whatever their order."""
        state = hashlib.sha256()
        add_tensors(state, sorted(self.rows.items()))
        return state.hexdigest()

"""A host for whatever gives embeddings by a method: a bare tower, a CLIP of remote code, a pipeline of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.base import Apply, Host
from vldebias.hosts.merge import fold, foldable
from vldebias.hosts.seam import TOKENIZING, MethodSeam, installed, read_rows


class CustomHost(Host):
    """A model that no library of ours knows, described; goes wherever a model goes.

    One role, "joint", or "sequence" of what generates images; or those of `output`.

    Args:
        model: any object; `model.method` is what the rest of your program calls to get embeddings.
        method: its name, such as "encode_text", "encode", "encode_prompt", or "forward" of a module; or the place of a
            module inside, such as "text_model.pooler", whose output is then changed. It gives (b, d), or
            (b, length, d), as tensors or numpy arrays.
        embed: a list of prompts -> one row each, (n, d): the space that the edit is fitted in. For a sequence that is
            the row at the end of the text. Default: `model.method(prompts)`, where that gives (n, d).
        texts: the arguments of a call of `method` -> the prompt of each row (or of each group of rows that belong to
            one prompt); for `keep_stated` and edits that read prompts. Default: the first argument that is text.
        output: which part of what `method` returns are the embeddings: an index or a name. Default: all of it. Several
            parts have a role each, {"sequence": 0, "pooled": 1}; then `embed` and `head` are mappings too.
        weights: the modules of the text tower, for the fingerprint. Default: the model, where it is a module.
        head: the Linear that makes the embeddings, so that `merge` can fold the edit into it. Default: no merging.
        generative: it generates images from them, so that the presets of pipelines apply.
        name: for messages and saved edits. Default: that of the class.

    Where `embed` calls `method`, its rows have to be among what that gives; a module inside has to be called by it.
    Both are found out when the edit is fitted or attached.

    Raises:
        InvalidInputError: no such method, or `embed` and `output` that name other roles.

    >>> host = custom(clip, "encode_text", embed=lambda prompts: clip.encode_text(tokenize(prompts)))  # doctest: +SKIP
    >>> attachment = vldebias.debias(host, "gender", keep_stated=False)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        method: str,
        *,
        embed: Callable[[list[str]], Any] | Mapping[str, Callable[[list[str]], Any]] | None = None,
        texts: Callable[..., Sequence[str]] | None = None,
        output: str | int | Mapping[str, str | int] | None = None,
        weights: nn.Module | Sequence[nn.Module] | None = None,
        head: nn.Linear | Mapping[str, nn.Linear] | None = None,
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
        self._outputs = dict(output) if isinstance(output, Mapping) else {"sequence" if generative else "joint": output}
        self._embeds = _by_role("embed", embed, self._outputs)
        self._heads = _by_role("head", head, self._outputs)
        self._texts, self.roles = texts, tuple(self._outputs)
        self.name = name or type(model).__name__
        self.model_id = getattr(model, "name_or_path", None) or None
        occupied = {id(one): one for one in (model, self.owner, *self._heads.values()) if one is not None}
        self.exclusive_modules = tuple(occupied.values())
        self._checked: set[str] = set()  # roles whose rows were looked for in what the method gives

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Rows of `prompts`, in batches.

        Raises:
            InvalidInputError: what came is not one row for each prompt, or does not come from the place that is named.
        """
        return read_rows(lambda batch: self._embed(batch, role), prompts, role, *self.weights)

    def _embed(self, prompts: list[str], role: str) -> Tensor:
        embed = self._embeds[role] or (lambda texts: self._part(getattr(self.owner, self.called)(texts), role))
        with TOKENIZING:
            given, block = (None, embed(prompts)) if role in self._checked else self._recorded(embed, prompts)
        if not isinstance(block, (Tensor, np.ndarray)) or block.shape[:-1] != (len(prompts),):
            came = tuple(block.shape) if isinstance(block, (Tensor, np.ndarray)) else type(block).__name__
            raise InvalidInputError(
                f"{self.name}: {came} came for {len(prompts)} prompts; expected ({len(prompts)}, d), a tensor or "
                "an array: pass embed= that gives one row for each"
            )
        rows = torch.as_tensor(block)
        if given is not None:
            self._check_place(rows, given, role)
        self._checked.add(role)
        return rows

    def _recorded(self, embed: Callable[[list[str]], Any], prompts: list[str]) -> tuple[list[Any], Any]:
        """What the method returns while prompts are embedded, and their embeddings."""
        original, standing = getattr(self.owner, self.called), vars(self.owner).get(self.called)
        returned: list[Any] = []

        def record(*args: Any, **kwargs: Any) -> Any:
            returned.append(original(*args, **kwargs))
            return returned[-1]

        setattr(self.owner, self.called, record)
        try:
            return returned, embed(prompts)
        finally:
            delattr(self.owner, self.called)
            if standing is not None:
                setattr(self.owner, self.called, standing)

    def _check_place(self, rows: Tensor, passed: list[Any], role: str) -> None:
        """Refuse a place that the rows do not come from: an edit would act in another space than it was fitted in."""
        if not passed and self.called == self.method:  # embed has a way of its own, and the program calls this
            return
        if not passed:
            raise InvalidInputError(
                f"{self.name}: embed= never calls {self.method!r}, so what stands there changes no embedding; name a "
                "module that it passes through"
            )
        width, given = rows.shape[1], [self.open(one, role)[0] for one in passed]
        there = [_unit(one).reshape(-1, width) for one in given if one.ndim and one.shape[-1] == width]
        if not there or (_unit(rows) @ torch.cat(there).T).amax(1).min() < 0.999:
            shapes = ", ".join(str(tuple(one.shape)) for one in given[:3])
            raise InvalidInputError(
                f"{self.name}: the rows of embed=, {tuple(rows.shape)}, are not among what {self.method!r} gives, "
                f"{shapes}: an edit would be fitted in one space and act in another; expected a place that gives "
                "them, or embed= that returns rows of it"
            )

    def _part(self, returned: Any, role: str) -> Any:
        """The embeddings of a role in what the method returned."""
        place = self._outputs[role]
        if place is None or isinstance(place, int) or isinstance(returned, dict):  # as output objects of transformers
            return returned if place is None else returned[place]
        return attrgetter(place)(returned)

    def open(self, returned: Any, role: str) -> tuple[Tensor, Callable[[Tensor], Any]]:
        """The same as a tensor, and the function that puts another one in its place.

        Raises:
            InvalidInputError: they are something else.
        """
        place, part = self._outputs[role], self._part(returned, role)
        if not isinstance(part, (Tensor, np.ndarray)):
            raise InvalidInputError(
                f"{self.name}.{self.method}: expected a tensor or an array, got {type(part).__name__}; pass output= to "
                "vldebias.hosts.custom, the index or name of the embeddings in it"
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

    def install(self, apply: Apply) -> Callable[[], None]:
        """Stand in for the method."""
        return installed([_CustomSeam(self, apply)])

    def text_modules(self) -> tuple[nn.Module, ...]:
        """Those of `weights`."""
        return self.weights

    def merge(self, edits: Mapping[str, Edit], strength: float) -> None:
        """Fold the edits into the heads that were given."""
        if None in self._heads.values():
            raise UnsupportedHostError(
                f"{self.name}: nothing says which Linear makes the embeddings; pass head= to vldebias.hosts.custom, or "
                "keep it attached"
            )
        axes = {role: foldable(self.name, "text", head) for role, head in self._heads.items()}
        for role, weights in axes.items():
            fold(weights, edits[role].folded(), strength)


custom = CustomHost


class _CustomSeam(MethodSeam):
    """Stands in for the method: its embeddings, changed, in what it returns."""

    def __init__(self, host: CustomHost, apply: Apply) -> None:
        super().__init__(host.name, apply, host.owner, host.called)
        self.host = host

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        returned = self.original(*args, **kwargs)
        for role in self.host.roles if self.active else ():
            tensor, close = self.host.open(returned, role)
            rows = tensor if tensor.ndim > 1 else tensor[None]  # one text alone may come without a batch
            changed = self.project(role, rows, lambda: self.host.texts(self.bind(*args, **kwargs).arguments))
            returned = close(changed.view_as(tensor))
        return returned


def _unit(rows: Tensor) -> Tensor:
    return normalize(rows.detach().cpu().double(), dim=-1)


def _place(model: Any, method: str) -> tuple[Any, str]:
    """The object that has the method, and its name there."""
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


def _by_role(argument: str, given: Any, roles: Mapping[str, Any]) -> dict[str, Any]:
    """One for each role."""
    if not isinstance(given, Mapping) and given is not None and len(roles) > 1:
        raise InvalidInputError(f"custom: output= has the roles {list(roles)}; expected {argument}= as a mapping too")
    each = given if isinstance(given, Mapping) else dict.fromkeys(roles, given)
    if set(each) != set(roles):
        raise InvalidInputError(f"custom: {argument}= has the roles {list(each)}, output= has {list(roles)}")
    return dict(each)

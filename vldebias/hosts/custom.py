"""Serve models of other libraries by a method that returns embeddings, and tables of text
embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from inspect import BoundArguments
from operator import attrgetter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.hosts.clip.merge import foldable
from vldebias.hosts.edits import EditAttachment
from vldebias.hosts.hooks import hook_methods
from vldebias.hosts.host import TOKENIZING, Host
from vldebias.projection.projection import CalibratedProjection
from vldebias.utils.files import add_tensors


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
        model: object,
        method: str,
        *,
        embed: Callable[[list[str]], object] | None = None,
        texts: Callable[..., Sequence[str]] | None = None,
        output: str | int | None = None,
        weights: nn.Module | Sequence[nn.Module] | None = None,
        head: nn.Linear | None = None,
        generative: bool = False,
    ) -> None:
        self.name = type(model).__name__
        self.generative = generative
        self._method = method
        self._output = output
        self._embed = embed
        self._texts = texts
        self._head = head
        self._owner, self._called = self._place_of(model, method)
        is_inner_module = self._called != method.rpartition(".")[2]
        if is_inner_module and embed is None:
            raise InvalidInputError(
                f"custom: {method!r} is a module inside; pass embed= that gives a row for each"
                " prompt"
            )
        if weights is None and isinstance(model, nn.Module):
            weights = model
        modules = weights or ()
        self.text_modules = (modules,) if isinstance(modules, nn.Module) else tuple(modules)
        self.roles = ("sequence" if generative else "joint",)
        self.model_id = getattr(model, "name_or_path", None) or None
        # By id: a module that occurs twice is occupied once.
        occupied = {id(part): part for part in (model, self._owner, head) if part is not None}
        self.exclusive_modules = tuple(occupied.values())
        self._is_checked = False

    def _place_of(self, model: object, method: str) -> tuple[object, str]:
        """Return the object and the name of its method, whose calls give embeddings."""
        if not isinstance(method, str):
            raise InvalidInputError(
                f"custom: got the method {method!r}; expected its name, such as 'encode_text'"
            )
        path, _, name = method.rpartition(".")
        try:
            place = attrgetter(method)(model)
        except AttributeError:
            inside = []
            if isinstance(model, nn.Module):
                inside = [module_name for module_name, _ in model.named_modules() if module_name]
            raise InvalidInputError(
                f"custom: {self.name} has no method {method!r}; expected the name of the method"
                " that gives embeddings, or of a module inside:"
                f" {', '.join(inside[:20]) or 'it has none'}"
            ) from None
        # A module is called through its forward.
        if isinstance(place, nn.Module):
            return place, "forward"
        owner = attrgetter(path)(model) if path else model
        return owner, name

    def space(self, role: str) -> str:
        """Return "custom.NAME.joint" or "custom.NAME.sequence"; the fingerprint tells weights
        apart."""
        return f"custom.{self.name}.{role}"

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Return rows of `prompts`; raise InvalidInputError unless they are one per prompt and
        outputs of `method`."""
        return self.read_by(self._rows, prompts, role, *self.text_modules)

    def _rows(self, prompts: list[str]) -> Tensor:
        # The first rows tell whether the place is right; later calls need no record.
        if self._is_checked:
            return torch.as_tensor(self._block(prompts))
        outputs = list[object]()
        method = getattr(self._owner, self._called)

        def record(*args: object, **kwargs: object) -> object:
            outputs.append(method(*args, **kwargs))
            return outputs[-1]

        # Other threads that read texts wait, so that the method is never replaced twice.
        with TOKENIZING:
            before = vars(self._owner).get(self._called)
            setattr(self._owner, self._called, record)
            try:
                rows = torch.as_tensor(self._block(prompts))
            finally:
                if before is None:
                    delattr(self._owner, self._called)
                else:
                    setattr(self._owner, self._called, before)
        # Without outputs, embed does not go through the method; it may compute the rows elsewhere.
        # A place inside of the model has to be passed, since only there the edit acts.
        is_inside = self._called != self._method
        if outputs or is_inside:
            self._check_place(rows, [self._open(output)[0] for output in outputs])
        self._is_checked = True
        return rows

    def _block(self, prompts: list[str]) -> object:
        """Return rows (n, d) of prompts, of torch or numpy."""
        with TOKENIZING:
            if self._embed:
                block = self._embed(prompts)
            else:
                block, _ = self._open(getattr(self._owner, self._called)(prompts))
        shape = tuple(getattr(block, "shape", ()))
        if shape[:-1] != (len(prompts),):
            raise InvalidInputError(
                f"{self.name}: got {type(block).__name__} {shape} for {len(prompts)} prompts;"
                f" expected a tensor or an array ({len(prompts)}, d): pass embed= that gives one"
                " row for each"
            )
        return block

    def _check_place(self, rows: Tensor, outputs: list[Tensor]) -> None:
        """Refuse a place that the rows do not come from, where an edit would act in another
        space."""
        expected = _unit(rows)
        width = expected.shape[1]
        candidates = []
        for output in outputs:
            if output.ndim and output.shape[-1] == width:
                candidates.append(_unit(output).reshape(-1, width))
        # Cosines near 1, not equality: embed= may normalise, or cast to another precision.
        if not candidates or (expected @ torch.cat(candidates).T).amax(1).min() < 0.999:
            shapes = ", ".join(str(tuple(output.shape)) for output in outputs[:3])
            raise InvalidInputError(
                f"{self.name}: the rows of embed=, {tuple(rows.shape)}, are not among the outputs"
                f" of {self._method!r} ({shapes or 'nothing: it is never called'}); name a place"
                " that gives them, or pass embed= that returns rows of its output"
            )

    def _open(self, returned: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
        """Return the embeddings in the output of the method, and a function that puts others in
        their place."""
        place = self._output
        # Output objects of transformers are mappings, which a key reads as an index a tuple.
        part = returned if place is None else returned[place]
        if not isinstance(part, (Tensor, np.ndarray)):
            raise InvalidInputError(
                f"{self.name}.{self._method}: got {type(part).__name__}, expected a tensor or an"
                " array; pass output=, the index or key of the embeddings in it, or embed= that"
                " gives one row for each prompt"
            )

        def close(tensor: Tensor) -> Any:
            # Callers get back the kind of array that the method returns.
            changed = tensor.numpy() if isinstance(part, np.ndarray) else tensor
            if place is None:
                return changed
            if isinstance(returned, tuple):
                items = [changed if item is part else item for item in returned]
                if hasattr(returned, "_fields"):  # a named tuple takes its values one by one
                    return type(returned)(*items)
                return tuple(items)
            returned[place] = changed
            return returned

        return torch.as_tensor(part), close

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Replace the method by one that changes its embeddings."""

        def change(original: Any, call: BoundArguments) -> Any:
            tensor, close = self._open(original(*call.args, **call.kwargs))
            # A text alone may come without a batch.
            rows = tensor if tensor.ndim > 1 else tensor[None]
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
            is_list = isinstance(value, (list, tuple)) and len(value) > 0
            if is_list and all(isinstance(item, str) for item in value):
                return cast("Sequence[str]", value)
        types = [f"{name}: {type(value).__name__}" for name, value in call.items()]
        raise InvalidInputError(
            f"{self.name}.{self._method}: got {', '.join(types)}, and no prompts to"
            " read; pass texts= (the arguments of a call -> its prompts), or keep_stated=False to"
            " debias"
        )

    def merge(self, edits: Mapping[str, CalibratedProjection], strength: float) -> Sequence[object]:
        """Fold the edit into `head`; no config records it."""
        fold = foldable(
            f"{self.name}: cannot merge, since head= of vldebias.hosts.custom", self._head
        )
        fold(edits[self.roles[0]], strength)
        return ()


custom = CustomHost


class PhotographsHost(CustomHost):
    """Describe the text encoder of `vldebias.miniature.load_photographs`."""

    library = "vldebias.miniature.photograph_model"

    def __init__(self, model: Any, tokenizer: Any = None, negative: bool = False) -> None:
        super().__init__(model, "encode")


def _unit(rows: Tensor) -> Tensor:
    """Return rows at length 1, float64 on the CPU."""
    return normalize(rows.detach().cpu().double(), dim=-1)


class TextTable(Host):
    """Serve text embeddings that were computed before, for fitting and measuring; nothing can be
    attached.

    rows: prompt -> embedding (d,), or (1, d) as a model returns it. model_id: which model they come
    from.

    Raises:
        InvalidInputError: no prompts, or rows that are not (d,) of one width, finite and of a
            length above 0.
    """

    name = "table of text embeddings"
    library = "table"
    roles = ("joint",)
    exclusive_modules = ()

    def __init__(self, rows: Mapping[str, object], model_id: str | None = None) -> None:
        wide = {}
        for prompt, values in rows.items():
            row = torch.as_tensor(values).detach().cpu().double()
            wide[prompt] = row[0] if row.ndim == 2 and len(row) == 1 else row
        shapes = {tuple(row.shape) for row in wide.values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise InvalidInputError(
                f"text embeddings: expected rows (d,) of one width, got {sorted(shapes) or 'none'}"
            )
        # Such rows have no direction, and cannot be brought to length 1.
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

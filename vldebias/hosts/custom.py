"""Support models from other libraries and embedding tables."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from inspect import BoundArguments
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, check_kind
from vldebias.hosts.clip.merge import foldable
from vldebias.hosts.edits import EditAttachment
from vldebias.hosts.hooks import Original, hook_methods
from vldebias.hosts.host import Host
from vldebias.hosts.reading import TOKENIZING, replaced
from vldebias.projection.projection import CalibratedProjection
from vldebias.utils.files import add_tensors
from vldebias.utils.text_rows import TextRows

if TYPE_CHECKING:
    from vldebias.typing import AnyArray


class CustomHost(Host):
    """Wrap a model from any other library, so that every vldebias function accepts it.

    The role of its embeddings is "text", or "sequence" if the model generates images.

    Args:
        model: any object whose `method` returns embeddings.
        method: name of the method, such as "encode_text", "encode", "encode_prompt", or "forward"
            of a module; or the path of a submodule, such as "text_model.pooler", whose output is
            then edited. It returns (b, d), or (b, length, d), as tensors or numpy arrays.
        embed: a function from a list of prompts to rows (n, d), in the space in which the edit is
            fitted. For a sequence, this is the row at the end of the text. Default:
            `model.method(prompts)`, if that returns (n, d).
        texts: a function from the arguments of a `method` call to the prompt of each row (or of
            each group of rows that belong to one prompt); needed for `keep_stated` and for edits
            that depend on prompts. Default: the first text argument.
        output: index or key of the embeddings in the output of `method`. Default: the entire
            output.
        weights: the modules of the text tower, for the fingerprint. Default: the model, if it is a
            module.
        head: the Linear that produces the embeddings, into which `merge` folds the edit. Default:
            merging is not supported.
        generative: whether the model generates images from the embeddings, so that pipeline presets
            apply.

    If `embed` calls `method`, the rows that `embed` returns must be among the rows that `method`
    returns. If `method` is a submodule, `embed` must call it. Both conditions are checked when an
    edit is fitted or attached.

    Raises:
        InvalidInputError: If the method does not exist.

    >>> import vldebias
    >>> from vldebias.miniature import load_clip
    >>> clip, preprocess, tokenize = load_clip()  # or a model of your own
    >>> embed = lambda prompts: clip.encode_text(tokenize(prompts))
    >>> host = custom(clip, "encode_text", embed=embed)
    >>> attachment = vldebias.debias(host, "gender", method="cali", keep_stated=False)
    >>> attachment.remove()
    """

    def __init__(
        self,
        model: object,
        method: str,
        *,
        embed: Callable[[list[str]], AnyArray] | None = None,
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
                f"custom: {method!r} is a submodule; pass an embed= function that returns one row"
                " per prompt"
            )
        if weights is None and isinstance(model, nn.Module):
            weights = model
        modules = weights or ()
        self.text_modules = (modules,) if isinstance(modules, nn.Module) else tuple(modules)
        self.roles = ("sequence" if generative else "text",)
        self.model_id = getattr(model, "name_or_path", None) or None
        # Deduplicate by id, because the same module may occur twice.
        occupied = {id(part): part for part in (model, self._owner, head) if part is not None}
        self.exclusive_modules = tuple(occupied.values())
        self._is_checked = False

    def _place_of(self, model: object, method: str) -> tuple[object, str]:
        """Return the object that has the method, and the method's name; "forward" for a module."""
        check_kind("custom", method, str, "the name of a method, such as 'encode_text'")
        path, _, name = method.rpartition(".")
        try:
            place = attrgetter(method)(model)
        except AttributeError:
            inside = []
            if isinstance(model, nn.Module):
                inside = [module_name for module_name, _ in model.named_modules() if module_name]
            raise InvalidInputError(
                f"custom: {self.name} has no method {method!r}; expected the name of a method that"
                f" returns embeddings, or of a submodule: {', '.join(inside[:20]) or 'it has none'}"
            ) from None
        # Modules are called through `forward`.
        if isinstance(place, nn.Module):
            return place, "forward"
        owner = attrgetter(path)(model) if path else model
        return owner, name

    def space(self, role: str) -> str:
        """Return "custom.NAME.text" or "custom.NAME.sequence".

        Models of one class share the name; the fingerprint distinguishes their weights.
        """
        return f"custom.{self.name}.{role}"

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        return self.read_by(self._rows, prompts, role, *self.text_modules)

    def _rows(self, prompts: list[str]) -> Tensor:
        # The first call shows whether the method is correct, so later calls are not recorded.
        if self._is_checked:
            return torch.as_tensor(self._block(prompts))
        outputs = list[object]()
        method = getattr(self._owner, self._called)

        def record(*args: object, **kwargs: object) -> object:
            outputs.append(method(*args, **kwargs))
            return outputs[-1]

        # Other threads that embed text wait for the lock, so the method is never replaced twice.
        with TOKENIZING, replaced(self._owner, self._called, record):
            rows = torch.as_tensor(self._block(prompts))
        # If there are no outputs, `embed` does not call the method and may compute the rows
        # elsewhere. A submodule must be called, because the edit acts only there.
        is_inside = self._called != self._method
        if outputs or is_inside:
            self._check_place(rows, [self._open(output)[0] for output in outputs])
        self._is_checked = True
        return rows

    def _block(self, prompts: list[str]) -> object:
        """Return rows (n, d) for prompts, as a torch tensor or numpy array."""
        with TOKENIZING:
            if self._embed:
                block = self._embed(prompts)
            else:
                block, _ = self._open(getattr(self._owner, self._called)(prompts))
        shape = tuple(getattr(block, "shape", ()))
        if shape[:-1] != (len(prompts),):
            raise InvalidInputError(
                f"{self.name}: got {type(block).__name__} {shape} for {len(prompts)} prompts;"
                f" expected a tensor or an array ({len(prompts)}, d). Pass an embed= function that"
                " returns one row per prompt"
            )
        return block

    def _check_place(self, rows: Tensor, outputs: list[Tensor]) -> None:
        """Check that the output of the hooked method contains the rows from `embed`.

        Args:
            rows: rows (n, d) returned by `embed`.
            outputs: outputs of the method in that call.
        """
        expected = _unit(rows)
        width = expected.shape[1]
        fitting = [output for output in outputs if output.ndim and output.shape[-1] == width]
        candidates = [_unit(output).reshape(-1, width) for output in fitting]
        # Require cosines near 1 instead of equality, because `embed` may normalise or change
        # precision.
        if not candidates or (expected @ torch.cat(candidates).T).amax(1).min() < 0.999:
            shapes = ", ".join(str(tuple(output.shape)) for output in outputs[:3])
            raise InvalidInputError(
                f"{self.name}: the rows {tuple(rows.shape)} returned by embed= are not among the"
                f" outputs of {self._method!r} ({shapes or 'nothing: it is never called'}); pass"
                " the name of the method that returns them, or an embed= function that returns"
                " rows of its output"
            )

    def _open(self, returned: Any) -> tuple[Tensor, Callable[[Tensor], object]]:
        """Return the embeddings in the method's output, and a function that replaces them."""
        place = self._output
        # `place` is a key of a transformers output object, or an index into a tuple.
        part = returned if place is None else returned[place]
        if not isinstance(part, (Tensor, np.ndarray)):
            raise InvalidInputError(
                f"{self.name}.{self._method}: got {type(part).__name__}, expected a tensor or an"
                " array; pass output=, the index or key of the embeddings in the output, or an"
                " embed= function that returns one row per prompt"
            )

        def close(tensor: Tensor) -> object:
            # Return the same kind of array as the original method.
            changed = tensor.numpy() if isinstance(part, np.ndarray) else tensor
            if place is None:
                return changed
            if isinstance(returned, tuple):
                items = [changed if item is part else item for item in returned]
                if hasattr(returned, "_fields"):  # a named tuple takes separate arguments
                    return type(returned)(*items)
                return tuple(items)
            returned[place] = changed
            return returned

        return torch.as_tensor(part), close

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Replace the method with one that edits its embeddings."""

        def change(original: Original, call: BoundArguments) -> object:
            tensor, close = self._open(original(*call.args, **call.kwargs))
            # The embedding of one text may lack a batch axis.
            rows = tensor if tensor.ndim > 1 else tensor[None]
            changed = attachment.apply(
                self.roles[0], rows, lambda: self._prompts_of(call.arguments)
            )
            return close(changed.view_as(tensor))

        return hook_methods(attachment, self._owner, {self._called: change})

    def _prompts_of(self, call: Mapping[str, object]) -> Sequence[str]:
        """Extract the prompts from the arguments of a call."""
        if self._texts is not None:
            return self._texts(**call)
        for value in call.values():
            if isinstance(value, str):
                return [value]
            items = value if isinstance(value, (list, tuple)) else ()
            texts = [item for item in items if isinstance(item, str)]
            if texts and len(texts) == len(items):
                return texts
        types = [f"{name}: {type(value).__name__}" for name, value in call.items()]
        raise InvalidInputError(
            f"{self.name}.{self._method}: found no prompts in {', '.join(types)}; pass texts=, a"
            " function from a call's arguments to its prompts, or pass keep_stated=False to debias"
        )

    def merge(self, edits: Mapping[str, CalibratedProjection], strength: float) -> Sequence[object]:
        fold = foldable(
            f"{self.name}: cannot merge, because the argument head= of vldebias.hosts.custom",
            self._head,
        )
        fold(edits[self.roles[0]], strength)
        return ()


custom = CustomHost


class PhotographsHost(CustomHost):
    """Support the text encoder of `vldebias.miniature.load_photographs`."""

    library = "vldebias.miniature.photograph_model"

    def __init__(self, model: object, tokenizer: object = None, negative: bool = False) -> None:
        super().__init__(model, "encode")


def _unit(rows: Tensor) -> Tensor:
    """Return L2-normalised rows as float64 on the CPU."""
    return normalize(rows.detach().cpu().double(), dim=-1)


class TextTable(Host):
    """Store precomputed text embeddings for fitting and measuring; nothing can be attached.

    Args:
        rows: the embedding for each prompt, (d,) or (1, d).
        model_id: the name of the model that computed the embeddings.

    Raises:
        InvalidInputError: If there are no prompts, the rows differ in width, or a row is zero or
            not finite.
    """

    name = "table of text embeddings"
    library = "table"
    roles = ("text",)
    exclusive_modules = ()

    def __init__(self, rows: Mapping[str, ArrayLike | Tensor], model_id: str | None = None) -> None:
        self._table = TextRows(rows)
        rows_of_table = self._table.row_of_prompt.items()
        self.rows = {text: normalize(torch.from_numpy(row), dim=0) for text, row in rows_of_table}
        self.model_id = model_id

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        self._table.check(prompts)
        return {(role, prompt): self.rows[prompt] for prompt in prompts}

    def dim(self, role: str) -> int:
        """Return the width of the rows."""
        return len(next(iter(self.rows.values())))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the prompts and their rows, regardless of order."""
        state = hashlib.sha256()
        add_tensors(state, sorted(self.rows.items()))
        return state.hexdigest()

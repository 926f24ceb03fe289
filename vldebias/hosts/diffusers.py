"""Diffusers pipelines: edits of what `encode_prompt` returns, and prompts that are rewritten before it reads them.

`encode_prompt` is public, returns the conditional and the negative prompt apart, and is what every kind of pipeline
calls, img2img, inpaint and ControlNet included. Its source names what it returns (`vldebias.hosts.source`): an
embedding that depends on the prompt is a role and is edited, "negative_" + its name is that of the negative prompt.
The method is replaced on the one pipeline, as an attribute that `del` removes: modules, adapters, offload hooks and
`save_pretrained` never notice, and pipelines that share the modules stay as they are.

As in the paper's generation experiments, every token of the conditional prompt is edited, the negative branch not, and
edits are fitted on the state of the end-of-text token (Chuang et al., 2023, section 7.5 of the thesis). Encoders that
read a chat have the end of the turn in its place, or the last token of the prompt where nothing follows.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.edit import Edit, Fingerprint
from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError, warn
from vldebias.hosts.base import Apply, Host
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hosts.merge import fold_into_readers, merge_marker, readers, write_merge_marker
from vldebias.hosts.seam import INSIDE, TOKENIZING, MethodSeam, during, installed, reading
from vldebias.hosts.source import REMEDY, Source, is_beside, is_embedding, source_of
from vldebias.hosts.traces import Tokens, Trace, constant_tail, opened, real_tokens, same_values

PROBES = ("a cat", "two dogs", "the sun")  # they end in different tokens
LONG = "an old stone bridge over a quiet river, with boats, ducks and a row of tall green trees"
# Fitted with what a call uses by default: T5 reads its padding, Gemma an instruction before the prompt.
_CALL_DEFAULTS = ("max_sequence_length", "complex_human_instruction", "prompt_template", "text_encoder_out_layers")
_LAYERS = ("clip_skip", "text_encoder_out_layers", "return_index")  # arguments that ask for another space

Rewrite = Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True)
class Part:
    """An embedding that `encode_prompt` returns, or a segment of its tokens.

    role: "sequence", "pooled", ... name, index: in what is returned. twin: place of that of the negative prompt.
    tokens: of the segment.
    """

    role: str
    name: str
    index: int
    twin: int | None
    tokens: slice = field(default_factory=lambda: slice(None))

    def open(self, result: Sequence[Any]) -> Tensor:
        """The states (b, tokens, d), or the vectors (b, d), in what was returned."""
        tensor: Tensor = opened(result[self.index])[0]  # type: ignore[index]
        return tensor if tensor.ndim == 2 else tensor[:, self.tokens]


@dataclass(frozen=True)
class Encoded:
    """What became of one prompt: results, without and with turned states; ids without padding, and lengths with it."""

    result: tuple[Any, ...]
    turned: tuple[tuple[Any, ...], ...]
    ids: dict[str, list[int]]
    lengths: dict[str, int]


class DiffusersHost(Host):
    """A pipeline, seen as the embeddings that its `encode_prompt` returns for a prompt.

    Tensors that the caller passes in (`prompt_embeds`, `pooled_prompt_embeds`) are left alone: edit those with
    `attachment.apply("sequence", prompt_embeds)`. Embeddings of a negative prompt that you make yourself with
    `pipe.encode_prompt(negative)` belong inside `attachment.disabled()`.
    """

    library = "diffusers"
    generative = True
    rewrites = True

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None, *, negative: bool = False) -> Self:
        """Make the host for a pipeline with an `encode_prompt`.

        negative: edit the negative prompt too.

        Raises:
            UnsupportedHostError: a class whose prompt goes another way, or whose source says too little.
        """
        return cls(model, negative)

    def __init__(self, pipe: Any, negative: bool = False, source: Source | None = None) -> None:
        self.name = type(pipe).__name__
        self._pipe, self.negative = pipe, negative
        origin = getattr(pipe, "name_or_path", None) or getattr(pipe, "_pretrained_model_name_or_path", None)
        self.model_id = str(origin or "") or None
        self.source = source or source_of(cast("Any", type(pipe)))
        self._tails: dict[str, int] = {}
        parts = {name: one for name, one in pipe.components.items() if "text_encoder" in name}
        self.encoders = {name: one for name, one in parts.items() if isinstance(one, nn.Module)}
        self.exclusive_modules = (pipe,)
        self.shared_modules = tuple(self.text_modules())

    @cached_property
    def edits_images(self) -> bool:  # type: ignore[override]
        """Whether a call takes a picture or video to be changed; a ControlNet or adapter is only guided by one."""
        takes = inspect.signature(type(self._pipe).__call__).parameters
        guides = any(getattr(self._pipe, name, None) is not None for name in ("controlnet", "adapter"))
        whole = {"mask_image", "control_image", "strength", "video"} & takes.keys()
        return bool(whole) or ("image" in takes and not guides)

    def text_modules(self) -> list[nn.Module]:
        """The text encoders, as far as they are loaded; torch.compile wraps what it compiles."""
        return [getattr(one, "_orig_mod", one) for one in self.encoders.values()]

    def space(self, role: str) -> str:
        """ "diffusers.pooled": pipelines with the same encoders share it; the fingerprint tells others apart."""
        return f"diffusers.{self._part(role).role}"

    @cached_property
    def weights_fingerprint(self) -> Fingerprint | None:
        """Of the text encoders; warns where they are offloaded."""
        mark = weights_fingerprint(*self.text_modules())
        if mark is None:
            warn(
                f"{self.name}: the weights of the text encoders are offloaded, so they have no fingerprint and a "
                "projection is not checked against them; attach before enable_sequential_cpu_offload() to have it"
            )
        return mark

    # ---- roles -------------------------------------------------------------------------------------------------

    @property
    def roles(self) -> tuple[str, ...]:  # type: ignore[override]
        """Of what `encode_prompt` returns, what depends on the prompt."""
        return tuple(part.role for part in self.parts)

    def _part(self, role: str) -> Part:
        if role not in self.roles:
            raise InvalidInputError(f"{self.name}: expected a role of {list(self.roles)}, got {role!r}")
        return self.parts[self.roles.index(role)]

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What is edited, found out by encoding a few prompts.

        Raises:
            UnsupportedHostError: something depends on the prompt and cannot be read: an edit would reach half of it.
        """
        if sum(not site.negative for site in self.source.sites) > 1:
            raise self.refusal("it calls encode_prompt several times for one prompt, with results that share names")
        # Turned are the token that ends the prompt, then all tokens of one encoder after the other.
        short, long = self.encode(PROBES[0]), self.encode(LONG, [{}, *({name: slice(None)} for name in self.encoders)])
        names = self.source.returns
        if len(names) != len(short.result):
            raise self.refusal(f"encode_prompt returned {len(short.result)} values, its source names {len(names)}")
        parts: list[Part] = []
        for index, name in enumerate(names):
            if not same_values(short.result[index], long.result[index]) and not is_beside(name):
                parts += self._read_parts(index, name, short, long, parts)
        if not parts:
            raise self.refusal("nothing that encode_prompt returns depends on the prompt")
        self._check_negative(parts)
        return tuple(parts)

    def refusal(self, why: str) -> UnsupportedHostError:
        """The error for a pipeline that cannot be read."""
        return UnsupportedHostError(f"{self.name}: {why}. Balanced prompts may still serve it; for edits, {REMEDY}")

    def _read_parts(self, index: int, name: str, short: Encoded, long: Encoded, known: Sequence[Part]) -> list[Part]:
        value = opened(long.result[index])
        if not is_embedding(name) or value is None or len(value[0]) != 1:
            raise self.refusal(
                f"{name or 'a value without a name'} at place {index} of what encode_prompt returns depends on the "
                "prompt; expected an embedding by its name, (1, tokens, d) or (1, d)"
            )
        tensor = value[0]
        end, *changes = [(opened(result[index])[0] != tensor)[0] for result in long.turned]  # type: ignore[index]
        row = end[int(end.sum(-1).argmax())] if tensor.ndim == 3 else end
        share = float(row.float().mean())  # where widths are the last axis, one token turned changes whole rows
        if share < 0.2 and (tensor.ndim == 3 or share > 0):
            raise self.refusal(
                f"turning the last token changes {share:.0%} of a row of {name}; expected (b, tokens, d) with one row "
                "for each token, or (b, d)"
            )
        kind = "sequence" if tensor.ndim == 3 else "pooled"
        tail = name.removeprefix("pooled_").removeprefix("prompt_embeds").replace("_", ".")
        role = kind if all(part.role.partition(".")[0] != kind for part in known) else f"{kind}{tail}"
        twins = [f"negative_{name}", f"uncond_{name}"]
        whole = Part(role, name, index, next((i for i, one in enumerate(self.source.returns) if one in twins), None))
        if tensor.ndim == 2:
            return [whole]
        groups: list[tuple[str, set[int]]] = []  # the first of the encoders whose tokens stand at the same places
        for encoder, change in zip(self.encoders, changes, strict=True):
            own = set(change.any(-1).nonzero().flatten().tolist())
            same = next((places for _, places in groups if places & own), None)
            if same is not None:
                same.update(own)
            elif own:
                groups.append((encoder, own))
        if not groups:
            raise self.refusal(f"{name} is not made of the states that its text encoders give for token ids")
        padded = long.lengths == short.lengths and len(tensor[0]) > max(long.lengths.values())
        if len(groups) == 1 and not padded:
            return [whole]
        groups.sort(key=lambda group: min(group[1]))
        starts = [0, *(min(places) for _, places in groups[1:])]
        stops = [*starts[1:], None if len(groups) > 1 else max(groups[0][1]) + 1]
        found = []
        for (encoder, _), start, stop in zip(groups, starts, stops, strict=True):
            model = str(getattr(getattr(self.encoders[encoder], "config", None), "model_type", encoder))
            found.append(Part(f"{role}.{model.partition('_')[0]}", name, index, whole.twin, slice(start, stop)))
        return found

    def _check_negative(self, parts: Sequence[Part]) -> None:
        """Refuse embeddings of the prompt that the negative prompt has a part in."""
        takes = inspect.signature(self._pipe.encode_prompt).parameters
        if not {"negative_prompt", "do_classifier_free_guidance"} <= takes.keys():
            return
        guided = [
            self.encode(LONG, negative_prompt=[one], do_classifier_free_guidance=True).result for one in PROBES[:2]
        ]
        for part in parts:
            one, other = (opened(result[part.index]) for result in guided)
            if one is None or other is None or len(one[0]) != 1 or not same_values(one[0], other[0]):
                raise self.refusal(f"under guidance {part.name} holds the negative prompt as well")

    # ---- reading -----------------------------------------------------------------------------------------------

    def encode(self, prompt: str, turns: Sequence[Mapping[str, Tokens]] = ({},), **more: Any) -> Encoded:
        """One prompt without guidance; and again with tokens of encoders turned, of {} those that end the prompt.

        Raises:
            UnsupportedHostError: the pipeline cannot do it.
        """
        try:
            with TOKENIZING, reading(*self.text_modules()), Trace(self.encoders) as trace:
                result = self.call(prompt, more)
                if not isinstance(result, tuple | list):
                    raise self.refusal(f"encode_prompt returned a {type(result).__name__}, not a tuple")
                read = {name: calls[0] for name, calls in trace.calls.items() if calls}
                tokenizers = {n: getattr(self._pipe, n.replace("text_encoder", "tokenizer"), None) for n in read}
                real = {name: real_tokens(call, tokenizers[name]) for name, call in read.items()}
                ids = {name: call.ids[0].cpu()[real[name]].tolist() for name, call in read.items()}
                lengths = {name: call.ids.shape[1] for name, call in read.items()}
                turned = []
                for turn in turns:
                    trace.turn(turn or {name: real[name][-1 - self._tail(name)] for name in read})
                    turned.append(tuple(self.call(prompt, more)))
        except VldebiasError:
            raise
        except Exception as error:  # a pipeline may raise what it likes
            raise self.refusal(
                f"encode_prompt fails on a prompt alone ({type(error).__name__}: {str(error)[:150]}); are its text "
                "encoders loaded?"
            ) from error
        return Encoded(tuple(result), tuple(turned), ids, lengths)

    def _tail(self, encoder: str) -> int:
        """How many tokens follow the one that ends a prompt, of what an encoder is given."""
        if encoder not in self._tails:
            probed = [self.encode(probe, ()).ids for probe in PROBES]
            self._tails |= {name: constant_tail([ids[name] for ids in probed if name in ids]) for name in probed[0]}
        return self._tails.get(encoder, 0)

    def call(self, prompt: str, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """What the pipeline makes of a prompt, as it stands; arguments that `encode_prompt` has not are left out."""
        takes = inspect.signature(self._pipe.encode_prompt).parameters
        required = [n for n, p in takes.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        defaults = {name: self._default(name) for name in _CALL_DEFAULTS}
        given = dict.fromkeys(required) | {name: one for name, one in defaults.items() if one is not inspect._empty}
        given |= {"prompt": [prompt], "device": self._pipe._execution_device, "do_classifier_free_guidance": False}
        given |= {"num_images_per_prompt": 1, "num_videos_per_prompt": 1, "batch_size": 1, "guidance_scale": 1.0}
        given |= {name: list(one) if isinstance(one, list) else one for name, one in more.items()}  # some write into it
        return self._pipe.encode_prompt(**{name: one for name, one in given.items() if name in takes})

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """The state of the token that ends each prompt, or the pooled vector; one pass gives all roles."""
        self._part(role)
        rows = {}
        for prompt in prompts:
            encoded = self.encode(prompt)
            for part in self.parts:
                states, turned = part.open(encoded.result)[0], part.open(encoded.turned[0])[0]
                if states.ndim == 2:
                    moved = (states.double() - turned.double()).norm(dim=-1)
                    if not moved.any():
                        raise self.refusal(f"the end of a prompt is not among the tokens of {part.name}")
                    states = states[int(moved.argmax())]
                rows[part.role, prompt] = normalize(states.to("cpu", torch.float64), dim=-1)
        return rows

    # ---- attaching -----------------------------------------------------------------------------------------------

    def install(self, apply: Apply, rewrite: Rewrite | None = None, again: Rewrite | None = None) -> Callable[[], None]:
        """Replace `encode_prompt` on this pipeline alone; the returned function puts back what was there.

        rewrite: in place of edits, prompts -> one other for each. again: the same for second texts of their images.
        """
        seams: list[MethodSeam] = [_EncodePrompt(self, apply, rewrite, again)]
        if self.source.framed and len(self.source.sites) > 1:
            seams += [_Frame(self.name, apply, self._pipe, name) for name in ("check_inputs", "prepare_latents")]
        return installed(seams)

    def project(self, apply: Apply, result: Any, call: Mapping[str, Any], negative: bool, shown: Any = None) -> Any:
        """What `encode_prompt` returned for `call`, its parts edited; the same object where nothing changed.

        negative: the call is for the negative prompt alone. shown: (b, tokens), true for those that show an image.
        """
        out = list(result)
        for part in self.parts:
            if (self.negative or not negative) and call.get(part.name) is None:
                out[part.index] = _edited(apply, part, out[part.index], texts_of(call, "prompt"), shown)
            if self.negative and part.twin is not None and call.get(f"negative_{part.name}") is None:
                out[part.twin] = _edited(apply, part, out[part.twin], texts_of(call, "negative_prompt"), None)
        if all(a is b for a, b in zip(out, result, strict=True)):
            return result
        for name in _LAYERS:  # states of other layers than were fitted are another space, often of the same width
            fitted, asked = self._default(name), call.get(name)
            fitted = None if fitted is inspect._empty else fitted
            both = [list(one) if isinstance(one, list | tuple) else one for one in (asked, fitted)]
            if asked is not None and both[0] != both[1] and not (fitted is None and asked == 0):  # 0: as without it
                raise InvalidInputError(
                    f"{self.name}: the edit was fitted with {name}={fitted}, the call got {name}={asked}, which is "
                    "another space; leave it out, or encode inside attachment.disabled()"
                )
        return type(result)(out)

    def _default(self, argument: str) -> Any:
        """What a call of the pipeline uses where it is given no such argument."""
        known = inspect.signature(type(self._pipe).__call__).parameters.get(argument)
        return inspect._empty if known is None else known.default

    def edited(self, edit: Any, role: str, z: Tensor, prompts: Sequence[str], strength: float) -> Tensor:
        """See `Host.edited`; other wordings are encoded as the call encodes the prompts."""
        encode = _ENCODE.get()
        if not hasattr(edit, "wordings") or encode is None:
            return super().edited(edit, role, z, prompts, strength)
        part, each = self._part(role), []
        for wording in zip(*(edit.wordings(prompt) for prompt in prompts), strict=True):
            result = encode(list(wording))
            rows = z if opened(result[part.index]) is None else part.open(result)
            if rows.shape != z.shape:
                raise InvalidInputError(
                    f"{self.name}: method {edit.method!r}: the other wordings have states {tuple(rows.shape)}, the "
                    f"prompts {tuple(z.shape)}; write the words into the prompts instead"
                )
            each.append(rows)
        combined: Tensor = edit.combined(z, torch.stack(each, dim=1), strength)
        return combined

    # ---- merging -------------------------------------------------------------------------------------------------

    def merge(self, edits: Mapping[str, Edit], strength: float) -> None:
        """Fold the edits into the layers that read the embeddings.

        Warns:
            VldebiasWarning: the attachment spared the negative prompt; weights cannot.
        """
        fold_into_readers(self._pipe, {role: edit.folded() for role, edit in edits.items()}, strength)
        if not strength or self.negative or not (self.source.twice or any(p.twin is not None for p in self.parts)):
            return
        moves, empty = [], self.encode("").result
        for role, edit in edits.items():
            states = self._part(role).open(empty).double()
            moves.append(f"{role}: {float((edit(states, strength) - states).norm() / states.norm()):.1%}")
        warn(
            f"{self.name}: weights cannot tell the two branches of guidance apart, so merge() changed the negative "
            f"prompt too; the states of the empty one move by {', '.join(moves)}. With guidance it generates what an "
            "attachment with negative=True does, not what this one did; where that matters, keep the attachment"
        )

    def mark(self, note: str) -> None:
        """In the configs of the denoiser and of what else reads the embeddings."""
        for model in readers(self._pipe, self.roles):
            write_merge_marker(model, note)

    def marked(self) -> str | None:
        """What one of the models of the pipeline says."""
        return next((m for model in self._pipe.components.values() if (m := merge_marker(model)) is not None), None)


def _edited(apply: Apply, part: Part, value: Any, texts: list[str], shown: Tensor | None) -> Any:
    inside = opened(value)
    if inside is None:  # no guidance, no negative branch
        return value
    tensor, close = inside
    segment = tensor if tensor.ndim == 2 or part.tokens == slice(None) else tensor[:, part.tokens]
    changed = apply(part.role, segment, lambda: texts)
    if changed is segment:
        return value
    if shown is not None and tensor.ndim == 3:
        shown = shown.repeat_interleave(len(tensor) // len(shown), 0)
        changed = torch.where(shown[..., None], segment, changed)
    if segment is not tensor:
        whole = tensor.clone()
        whole[:, part.tokens] = changed
        changed = whole
    return close(changed)


# ---- what stands on a pipeline -----------------------------------------------------------------------------------


@dataclass
class _Asked:
    """The prompts of the call of a pipeline that is under way in this thread or task."""

    pipe: object
    prompt: list[str]
    encoded: bool = False


_ASKED: ContextVar[_Asked | None] = ContextVar("vldebias_asked", default=None)
_ENCODE: ContextVar[Callable[[list[str]], Any] | None] = ContextVar("vldebias_encode", default=None)


class _Frame(MethodSeam):
    """Stands in for `check_inputs`, which gets the prompt before it is encoded, and for `prepare_latents` behind it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.method == "prepare_latents":
            _ASKED.set(None)
        elif self.active:
            _ASKED.set(_Asked(self.owner, listed(self.bind(*args, **kwargs).arguments.get("prompt"))))
        return self.original(*args, **kwargs)


class _EncodePrompt(MethodSeam):
    """Stands in for `encode_prompt` of one pipeline."""

    def __init__(self, host: DiffusersHost, apply: Apply, rewrite: Rewrite | None, again: Rewrite | None) -> None:
        super().__init__(host.name, apply, host._pipe, "encode_prompt")
        self.host, self._rewrite, self._again = host, rewrite, again
        kind = type(self.owner)
        own, whole = (inspect.signature(one).parameters for one in (kind.encode_prompt, kind.__call__))
        self._shares = rewrite is not None and not count_of(own) and count_of(whole)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.active:
            return self.original(*args, **kwargs)
        bound = self.bind(*args, **kwargs)
        call = bound.arguments
        negative, second = self._turn_of(call)
        with TOKENIZING, during(INSIDE):
            attachment: Any = getattr(self.apply, "__self__", None)
            if call.get("prompt") is None and not negative:
                if attachment is not None and any(isinstance(one, Tensor | list) for one in call.values()):
                    attachment.warn_of_embeddings()
                return self.original(*bound.args, **bound.kwargs)
            if self._rewrite is not None:
                if self._shares and attachment is not None:
                    attachment.warn_of_shared_values(self._shares)
                one = (lambda same: list(same)) if negative else self._again if second else self._rewrite
                rewrite_call(call, one, None if negative else self._again)
                return self.original(*bound.args, **bound.kwargs)
            kept = {name: list(one) if isinstance(one, list) else one for name, one in call.items()}
            with image_tokens(self.host) as find, during(_ENCODE, self._encode_as(bound)):
                result = self.original(*bound.args, **bound.kwargs)
                self._check_rows(result, kept)
                return self.host.project(self.apply, result, kept, negative, find(result, self.host.parts))

    def _turn_of(self, call: Mapping[str, Any]) -> tuple[bool, bool]:
        """Is a call for the negative prompt alone, and is it a second one for the prompt?

        Of the encodings between `check_inputs` and `prepare_latents` the first of the prompt is the prompt's. Texts
        alone cannot tell, since both prompts may be equal; nor can the number of calls, after an error.
        """
        asked, texts = _ASKED.get(), listed(call.get("prompt"))
        if asked is None or asked.pipe is not self.owner:
            return False, False
        if texts == asked.prompt and not asked.encoded:
            asked.encoded = True
            return False, False
        return self.host.source.twice, not self.host.source.twice and texts == asked.prompt

    def _encode_as(self, bound: inspect.BoundArguments) -> Callable[[list[str]], Any]:
        """Encodes other prompts as this call encodes its own."""
        arguments = dict(bound.arguments)

        def encode(prompts: list[str]) -> Any:
            bound.arguments.update(arguments)
            rewrite_call(bound.arguments, lambda same: prompts, None)
            return self.original(*bound.args, **bound.kwargs)

        return encode

    def _check_rows(self, result: Any, call: Mapping[str, Any]) -> None:
        """Refuse results that have not one row for each image of each prompt."""
        inside, texts = opened(result[self.host.parts[0].index]), listed(call.get("prompt"))
        images = call.get(count_of(call) or "") or 1
        if inside is not None and texts and len(inside[0]) != len(texts) * images:
            raise InvalidInputError(
                f"{self.name}: encode_prompt gave {len(inside[0])} rows for {len(texts)} prompts and {images} images "
                "of each; expected one for each image"
            )


def listed(prompt: Any) -> list[str]:
    """One prompt or several, as a list."""
    return [prompt] if isinstance(prompt, str) else list(prompt or ())


def count_of(call: Mapping[str, Any]) -> str | None:
    """The argument that says how many images each prompt has."""
    return next((name for name in call if re.fullmatch(r"num_\w+_per_prompt", name)), None)


def texts_of(call: Mapping[str, Any], name: str) -> list[str]:
    """One text per prompt of a call, those for several encoders joined: any of them may state the attribute."""
    columns = [listed(call[n]) for n in call if re.fullmatch(rf"{name}(_\d)?", n) and call[n] is not None] or [[""]]
    columns = [column or [""] for column in columns]
    return [" | ".join(column[row % len(column)] for column in columns) for row in range(max(map(len, columns)))]


def rewrite_call(call: dict[str, Any], rewrite: Rewrite | None, again: Rewrite | None) -> None:
    """Put one other prompt for each image into the arguments of a call; negative prompts stay, repeated as needed."""
    count, texts = count_of(call), listed(call["prompt"])
    images = int(call.get(count or "") or 1)
    each = [text for text in texts for _ in range(images)]
    alone = isinstance(call["prompt"], str) and len(each) == 1
    written = each if rewrite is None else rewrite(each)
    call["prompt"] = written[0] if alone else written
    for name, value in call.items():
        negative = name.startswith("negative_prompt")
        if not re.fullmatch(r"(negative_prompt|prompt)(_\d)?", name) or name == "prompt" or value is None:
            continue
        own = listed(value)
        if not negative or (not isinstance(value, str) and len(own) == len(texts)):
            own = [text for text in (own * len(texts) if len(own) == 1 else own) for _ in range(images)]
            own = own if negative or again is None else again(own)
            call[name] = own[0] if alone else own
    if count is not None:
        call[count] = 1
    if isinstance(call.get("batch_size"), int):
        call["batch_size"] = len(each)


@contextmanager
def image_tokens(host: DiffusersHost) -> Iterator[Callable[[Any, Sequence[Part]], Tensor | None]]:
    """Inside, encoders are watched; the function says which tokens of a result show an image before the prompt.

    (b, tokens), true up to the last token of the image; None where the encoder was given none.
    """
    marks: dict[str, list[int]] = {}  # ids of the tokens that stand for an image
    for name, encoder in host.encoders.items():
        config = getattr(encoder, "config", None)
        ids = (getattr(config, one, None) for one in ("image_token_id", "vision_end_token_id"))
        marks[name] = [one for one in ids if isinstance(one, int)]
    with Trace({name: host.encoders[name] for name, own in marks.items() if own}, outputs=False) as trace:

        def find(result: Any, parts: Sequence[Part]) -> Tensor | None:
            inside = opened(result[parts[0].index])
            for name, call in ((name, calls[-1]) for name, calls in trace.calls.items() if calls):
                ids, places = call.ids, torch.arange(call.ids.shape[1], device=call.ids.device)
                real = torch.ones_like(ids, dtype=torch.bool) if call.mask is None else call.mask != 0
                image = torch.isin(ids, torch.tensor(marks[name], device=ids.device)) & real
                if inside is None or not image.any():
                    return None
                behind = places > (ids.shape[1] - 1 - image.flip(1).int().argmax(1))[:, None]
                text = torch.where(image.any(1), (behind & real).sum(1), ids.shape[1])
                length = inside[0].shape[1]
                ends = real.sum(1) - real.sum(1).max() + length  # rows are padded on the right to the longest
                return (torch.arange(length, device=ids.device) < (ends - text)[:, None]).to(inside[0].device)
            return None

        yield find

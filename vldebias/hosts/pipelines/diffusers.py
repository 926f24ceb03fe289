"""Serve diffusers pipelines: edit the outputs of `encode_prompt`, or rewrite prompts before it
reads them.

`encode_prompt` is public, returns the conditional and the negative prompt apart, and is called by
every kind of pipeline, img2img, inpaint and ControlNet included. Its source names what it returns
(`vldebias.hosts.pipelines.calls`): an embedding that depends on the prompt is a role and is edited,
"negative_" + its name is that of the negative prompt. The method is replaced on the one pipeline,
as an attribute that `del` removes: modules, adapters, offload hooks and `save_pretrained` are
unaffected, and so are pipelines that share the modules.

As in the paper's generation experiments, every token of the conditional prompt is edited, the
negative branch not, and edits are fitted on the state of the end-of-text token (Chuang et al.,
2023, section 7.5 of the thesis). Encoders that read a chat have the end of the turn in its place,
or the last token of the prompt where nothing follows.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils._pytree import tree_map  # torch has no public one

from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError, warn
from vldebias.hosts.attachment import INSIDE, Attachment
from vldebias.hosts.clip.merge import fold_into_readers
from vldebias.hosts.host import TOKENIZING, Host, during, hook_methods, reading
from vldebias.hosts.pipelines.calls import (
    BESIDE,
    EMBEDDING,
    Part,
    characters_read,
    copied,
    count_of,
    image_ids,
    image_tokens,
    listed,
    most_characters_read,
    opened,
    rewrite_call,
    same_values,
    texts_of,
    traced,
    turned,
)
from vldebias.hosts.pipelines.source import REMEDY, Source, parameters_of_call, source_of

PROBES = ("a cat", "two dogs", "the sun")  # they end in different tokens
LONG = "an old stone bridge over a quiet river"  # short enough for encoders of a few tokens
# Fitted with what a call uses by default: T5 reads its padding, Gemma an instruction before the
# prompt.
_CALL_DEFAULTS = (
    "max_sequence_length",
    "complex_human_instruction",
    "prompt_template",
    "text_encoder_out_layers",
)
_LAYERS = (
    "clip_skip",
    "text_encoder_out_layers",
    "return_index",
)  # arguments that ask for another space

_ASKED: ContextVar[tuple[object, list[str], bool] | None] = ContextVar(
    "vldebias_asked", default=None
)
"""The pipeline whose call runs in this thread or task, its prompts, and whether they were
encoded."""
_ENCODE: ContextVar[Callable[[list[str]], Any] | None] = ContextVar("vldebias_encode", default=None)
"""Encodes other prompts as the current call encodes its own."""

SHARED = (
    "it encodes a prompt once for all of its images, so with {count} above 1 they share one value;"
    " to balance them, pass a list with the prompt once for each image"
)


class Encoded(NamedTuple):
    """Hold one encoded prompt: results, without and with changed states; by encoder ids, and
    lengths with padding."""

    result: tuple[Any, ...]
    turned: list[tuple[Any, ...]]
    ids: dict[str, list[int]]
    lengths: dict[str, int]


class DiffusersHost(Host):
    """Serve a pipeline by the embeddings that its `encode_prompt` returns for a prompt.

    Tensors that the caller passes in (`prompt_embeds`, `pooled_prompt_embeds`) are not edited: edit
    those with `attachment.apply("sequence", prompt_embeds)`. Embeddings of a negative prompt that
    you make yourself with `pipe.encode_prompt(negative)` belong inside `attachment.disabled()`.
    """

    library = "diffusers"
    generative = True
    rewrites = True

    def __init__(
        self, pipe: Any, tokenizer: Any = None, negative: bool = False, source: Source | None = None
    ) -> None:
        self.name, self._pipe, self.negative = type(pipe).__name__, pipe, negative
        origin = getattr(pipe, "name_or_path", None) or getattr(
            pipe, "_pretrained_model_name_or_path", None
        )
        self.model_id = str(origin or "") or None
        self.source = source or source_of(cast("Any", type(pipe)))
        if source is None:
            takes = parameters_of_call(type(pipe))
        else:
            takes = dict(inspect.signature(type(pipe).__call__).parameters)
        self.defaults = {
            name: parameter.default
            for name, parameter in takes.items()
            if parameter.default is not parameter.empty
        }
        # A picture or video to be changed; a ControlNet or adapter is only guided by one.
        guides = any(getattr(pipe, name, None) is not None for name in ("controlnet", "adapter"))
        whole = {"mask_image", "control_image", "strength", "video"} & takes.keys()
        self.edits_images = bool(whole) or ("image" in takes and not guides)
        parts = pipe.components.items()
        self.encoders = {
            name: one
            for name, one in parts
            if "text_encoder" in name and isinstance(one, nn.Module)
        }
        # torch.compile wraps what it compiles
        self.text_modules = tuple(getattr(one, "_orig_mod", one) for one in self.encoders.values())
        self.exclusive_modules, self.shared_modules = (pipe,), self.text_modules
        self._tails: dict[str, int] = {}  # by encoder: tokens after the last one of a prompt

    # ---- roles
    # ---------------------------------------------------------------------------------------------

    @property
    def roles(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the roles: the outputs of `encode_prompt` that depend on the prompt."""
        return tuple(part.role for part in self.parts)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Return the embeddings to edit, found by encoding a few prompts.

        Raises:
            UnsupportedHostError: something depends on the prompt and cannot be read: an edit would
                miss it.
        """
        if self.source.calls - self.source.negatives > 1:
            raise self.refusal(
                "it calls encode_prompt several times for one prompt, with results that share names"
            )
        probes, names = [self.encode(probe, ()) for probe in PROBES], self.source.returns
        for name in probes[0].ids:
            ends = zip(*(probe.ids[name][::-1] for probe in probes), strict=False)
            self._tails[name] = max(
                len(list(takewhile(lambda ids: len(set(ids)) == 1, ends))) - 1, 0
            )
        # Change the state of the token that ends the prompt, then those of all tokens of one
        # encoder after the other.
        short, long = (
            probes[0],
            self.encode(LONG, [{}, *({name: slice(None)} for name in self.encoders)]),
        )
        if len(names) != len(short.result):
            raise self.refusal(
                f"encode_prompt returned {len(short.result)} values, its source names {len(names)}"
            )
        parts: list[Part] = []
        for index, name in enumerate(names):
            if not same_values(short.result[index], long.result[index]) and not BESIDE.search(name):
                parts += self._read_parts(index, name, short, long, parts)
        if not parts:
            raise self.refusal("nothing that encode_prompt returns depends on the prompt")
        takes = inspect.signature(getattr(self._pipe, "encode_prompt", lambda: None)).parameters
        if {"negative_prompt", "do_classifier_free_guidance"} <= takes.keys():
            guided = {"do_classifier_free_guidance": True}
            one, two = (
                self.encode(LONG, (), **guided, negative_prompt=[text]).result
                for text in PROBES[:2]
            )
            for part in parts:
                if len(opened(one[part.place])[0]) != 1 or not same_values(
                    one[part.place], two[part.place]
                ):
                    raise self.refusal(
                        f"under guidance {part.name} holds the negative prompt as well"
                    )
        return tuple(parts)

    def refusal(self, why: str) -> UnsupportedHostError:
        """Return the error for a pipeline that cannot be read."""
        return UnsupportedHostError(
            f"{self.name}: {why}. Balanced prompts may still serve it; for edits, {REMEDY}"
        )

    def _read_parts(
        self, index: int, name: str, short: Encoded, long: Encoded, known: Sequence[Part]
    ) -> list[Part]:
        value = opened(long.result[index])
        if not EMBEDDING.match(name) or value is None or len(value[0]) != 1:
            raise self.refusal(
                f"{name or 'a value without a name'} at place {index} of what encode_prompt returns"
                " depends on the prompt; expected an embedding by its name, (1, tokens, d) or"
                " (1, d)"
            )
        tensor = value[0]
        end, *changes = [(opened(result[index])[0] != tensor)[0] for result in long.turned]
        row = end[int(end.sum(-1).argmax())] if tensor.ndim == 3 else end
        share = float(
            row.float().mean()
        )  # where widths are the last axis, one token turned changes whole rows
        if share < 0.2 and (tensor.ndim == 3 or share > 0):
            raise self.refusal(
                f"changing the state of the last token changes {share:.0%} of a row of {name};"
                " expected (b, tokens, d) with one row for each token, or (b, d)"
            )
        kind = "sequence" if tensor.ndim == 3 else "pooled"
        tail = name.removeprefix("pooled_").removeprefix("prompt_embeds").replace("_", ".")
        role = (
            kind if all(part.role.partition(".")[0] != kind for part in known) else f"{kind}{tail}"
        )
        twins = [f"negative_{name}", f"uncond_{name}"]
        twin = next((i for i, one in enumerate(self.source.returns) if one in twins), None)
        whole = [Part(role, name, index, twin)]
        if kind == "pooled":
            return whole
        groups: list[
            tuple[str, set[int]]
        ] = []  # the first of the encoders whose tokens stand at the same places
        for encoder, change in zip(self.encoders, changes, strict=True):
            own = set(change.any(-1).nonzero().flatten().tolist())
            same = next((places for _, places in groups if places & own), None)
            if same is not None:
                same.update(own)
            elif own:
                groups.append((encoder, own))
        if not groups:
            raise self.refusal(
                f"{name} is not made of the states that its text encoders give for token ids"
            )
        padded = long.lengths == short.lengths and tensor.shape[1] > max(long.lengths.values())
        if len(groups) == 1 and not padded:
            return whole
        groups.sort(key=lambda group: min(group[1]))
        starts = [0, *(min(places) for _, places in groups[1:])]
        stops = [*starts[1:], None if len(groups) > 1 else max(groups[0][1]) + 1]
        models = [
            getattr(getattr(self.encoders[one], "config", None), "model_type", one)
            for one, _ in groups
        ]
        return [
            Part(f"{role}.{str(model).partition('_')[0]}", name, index, twin, slice(start, stop))
            for model, start, stop in zip(models, starts, stops, strict=True)
        ]

    # ---- reading
    # ---------------------------------------------------------------------------------------------

    def encode(
        self, prompt: str, turns: Sequence[Mapping[str, int | slice]] = ({},), **more: Any
    ) -> Encoded:
        """Encode one prompt without guidance; again with tokens of encoders changed, for {} the
        last of the prompt."""
        again, ids, ends = list[tuple[Any, ...]](), dict[str, list[int]](), dict[str, int | slice]()
        try:
            with TOKENIZING, reading(*self.text_modules), traced(self.encoders) as (calls, replies):
                result = self.call(prompt, **more)
                if not isinstance(result, tuple | list):
                    raise self.refusal(
                        f"encode_prompt returned a {type(result).__name__}, not a tuple"
                    )
                read = {name: made[0] for name, made in calls.items() if made}
                for name, call in read.items():
                    row, tokenizer = (
                        call.ids[0].tolist(),
                        getattr(self._pipe, name.replace("text_encoder", "tokenizer"), None),
                    )
                    real = (
                        range(len(row))
                        if call.mask is None
                        else call.mask[0].nonzero().flatten().tolist()
                    )
                    if call.mask is None:
                        inner = getattr(tokenizer, "tokenizer", tokenizer)
                        pad, end = (
                            getattr(inner, f"{kind}_token_id", None) for kind in ("pad", "eos")
                        )
                        last = (
                            row.index(end) if end in row else len(row)
                        )  # the first: some tokenizers pad with it
                        real = [i for i in real if i <= last or (pad != end and row[i] != pad)]
                    ids[name], ends[name] = (
                        [row[i] for i in real],
                        real[-1 - self._tails.get(name, 0)],
                    )
                for turn in turns:
                    replies.update({name: list(made) for name, made in calls.items()})
                    for name, tokens in (turn or ends).items():
                        if name in read:
                            change = partial(turned, tokens, read[name].ids.shape[1])
                            replies[name][0] = read[name]._replace(
                                output=tree_map(change, read[name].output)
                            )
                    again.append(tuple(self.call(prompt, **more)))
        except VldebiasError:
            raise
        except Exception as error:  # a pipeline may raise what it likes
            raise self.refusal(
                f"encode_prompt fails on a prompt alone ({type(error).__name__}:"
                f" {str(error)[:150]}); are its text encoders loaded?"
            ) from error
        return Encoded(
            tuple(result), again, ids, {name: call.ids.shape[1] for name, call in read.items()}
        )

    def call(self, prompt: str, **more: Any) -> Any:
        """Return the output of `encode_prompt` for a prompt; leave out arguments that it lacks."""
        takes = inspect.signature(self._pipe.encode_prompt).parameters
        required = [
            n
            for n, p in takes.items()
            if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        given = dict.fromkeys(required) | {
            n: self.defaults[n] for n in _CALL_DEFAULTS if n in self.defaults
        }
        given |= {
            "prompt": [prompt],
            "do_classifier_free_guidance": False,
            "guidance_scale": 1.0,
            "batch_size": 1,
        }
        given |= {"num_images_per_prompt": 1, "num_videos_per_prompt": 1}
        given |= {
            name: list(one) if isinstance(one, list) else one for name, one in more.items()
        }  # some write into it
        if "device" not in more:
            given["device"] = self._pipe._execution_device
        return self._pipe.encode_prompt(
            **{name: one for name, one in given.items() if name in takes}
        )

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Return the state of the token that ends each prompt, or the pooled vector; one pass gives
        all roles."""
        if role not in self.roles:
            raise InvalidInputError(
                f"{self.name}: expected a role of {list(self.roles)}, got {role!r}"
            )
        rows = {}
        device = self._pipe._execution_device  # diffusers searches all modules for it
        for prompt in prompts:
            encoded = self.encode(prompt, device=device)
            for part in self.parts:
                both = (encoded.result[part.place], encoded.turned[0][part.place])
                states, changed = (opened(value)[0][0, part.tokens] for value in both)
                if states.ndim == 2:
                    moved = (states.double() - changed.double()).norm(dim=-1)
                    if not moved.any():
                        raise self.refusal(
                            f"the end of a prompt is not among the tokens of {part.name}"
                        )
                    states = states[int(moved.argmax())]
                rows[part.role, prompt] = normalize(states.to("cpu", torch.float64), dim=-1)
        return rows

    # ---- attaching
    # ---------------------------------------------------------------------------------------------

    def install(self, attachment: Attachment) -> Callable[[], None]:
        """Replace `encode_prompt` on this pipeline alone; the returned function restores it.

        Where the negative prompt has a call of its own, `check_inputs`, which gets the prompt
        before it is encoded, and `prepare_latents` after it tell which call that is.
        """

        def note(begins: bool, original: Any, call: inspect.BoundArguments) -> Any:
            _ASKED.set(
                (self._pipe, listed(call.arguments.get("prompt")), False) if begins else None
            )
            return original(*call.args, **call.kwargs)

        around: dict[str, Any] = {"encode_prompt": partial(self._change, attachment)}
        if self.source.framed and self.source.calls > 1:
            around |= {"check_inputs": partial(note, True), "prepare_latents": partial(note, False)}
        return hook_methods(attachment, self._pipe, around)

    def _change(self, attachment: Attachment, original: Any, bound: inspect.BoundArguments) -> Any:
        """Call `encode_prompt` with rewritten prompts, or edit what it returns."""
        call, asked, turn = bound.arguments, _ASKED.get(), "prompt"
        texts = listed(call.get("prompt"))
        if asked is not None and asked[0] is self._pipe:
            # Of the encodings in one call the first of the prompt is the prompt's. Texts alone
            # cannot tell, since both prompts may be equal; nor can the number of calls, after an
            # error.
            if texts == asked[1] and not asked[2]:
                _ASKED.set((*asked[:2], True))
            elif self.source.negatives:
                turn = "negative"
            elif texts == asked[1]:
                turn = "again"
        kept = copied(call)

        def encode(prompts: list[str]) -> Any:
            call.update(kept)
            rewrite_call(call, lambda texts: texts | {"prompt": prompts})
            return original(*bound.args, **bound.kwargs)

        with TOKENIZING, during(INSIDE):
            if call.get("prompt") is None and turn != "negative":
                if any(isinstance(one, Tensor | list) for one in call.values()):
                    self._warn_of_embeddings(attachment)
                return original(*bound.args, **bound.kwargs)
            if attachment.balancer is not None:
                count = count_of(self.defaults)
                takes = inspect.signature(type(self._pipe).encode_prompt).parameters
                if count and attachment.acts and not count_of(takes):
                    attachment.warn_once(SHARED.format(count=count))
                if turn != "negative":
                    rewrite = partial(
                        attachment.rewrite_texts, again=turn == "again", read=self._read(call)
                    )
                    rewrite_call(call, rewrite)
                return original(*bound.args, **bound.kwargs)
            seeing = {
                name: encoder for name, encoder in self.encoders.items() if image_ids(encoder)
            }
            with traced(seeing) as (calls, _), during(_ENCODE, encode):
                result = original(*bound.args, **bound.kwargs)
                inside = opened(result[self.parts[0].place])
                shown = None if inside is None else image_tokens(calls, seeing, inside[0].shape[1])
                return self.project(attachment, result, kept, turn == "negative", shown)

    def _warn_of_embeddings(self, attachment: Attachment) -> None:
        """Say once what to do where a call passes embeddings in the place of a prompt."""
        if attachment.balancer is not None:
            attachment.sampled = []
            attachment.reasons = []
            remedy = "embed vldebias.balance_prompts(...).prompts instead"
        else:
            remedy = f"pass attachment.apply({self.roles[0]!r}, prompt_embeds)"
        attachment.warn_once(
            f"the call passes embeddings instead of a prompt, so nothing was changed; {remedy}"
        )

    def _read(self, call: Mapping[str, Any]) -> dict[str, Callable[[str], int]]:
        """Return for each text argument of a call how many characters its tokenizers read.

        A tokenizer reads the text of its own number (`tokenizer_2` reads `prompt_2`), or `prompt`
        where that is not given.
        """
        readers: dict[str, list[Callable[[str], int]]] = {}
        for name, tokenizer in self._pipe.components.items():
            if not re.fullmatch(r"tokenizer(_\d)?", name) or tokenizer is None:
                continue
            own = name.replace("tokenizer", "prompt")
            given = own if call.get(own) is not None else "prompt"
            length = call.get("max_sequence_length") or self.defaults.get("max_sequence_length")
            reader = partial(characters_read, getattr(tokenizer, "tokenizer", tokenizer), length)
            readers.setdefault(given, []).append(reader)
        return {name: partial(most_characters_read, each) for name, each in readers.items()}

    def project(
        self,
        attachment: Attachment,
        result: Any,
        call: Mapping[str, Any],
        negative: bool = False,
        shown: Any = None,
    ) -> Any:
        """Return the output of `encode_prompt` for `call`, its parts edited; the same object where
        nothing changed.

        negative: the call is for the negative prompt alone. shown: (b, tokens), true for those that
        show an image.
        """
        out = list(result)
        for part in self.parts:
            if (self.negative or not negative) and call.get(part.name) is None:
                out[part.place] = _edited(
                    attachment, part, out[part.place], texts_of(call, "prompt"), shown
                )
            if (
                self.negative
                and part.twin is not None
                and call.get(f"negative_{part.name}") is None
            ):
                out[part.twin] = _edited(
                    attachment, part, out[part.twin], texts_of(call, "negative_prompt"), None
                )
        if all(a is b for a, b in zip(out, result, strict=True)):
            return result
        for name in (
            _LAYERS
        ):  # states of other layers than were fitted are another space, often of the same width
            asked, fitted = call.get(name), self.defaults.get(name)
            both = [list(one) if isinstance(one, list | tuple) else one for one in (asked, fitted)]
            if (
                asked is not None and both[0] != both[1] and not (fitted is None and asked == 0)
            ):  # 0: as without it
                raise InvalidInputError(
                    f"{self.name}: the edit was fitted with {name}={fitted}, the call got"
                    f" {name}={asked}, which is another space; leave it out, or encode inside"
                    " attachment.disabled()"
                )
        return type(result)(out)

    def edited(
        self, edit: Any, role: str, z: Tensor, prompts: Sequence[str], strength: float
    ) -> Tensor:
        """Return edited embeddings, see `Host.edited`; other wordings are encoded as the call
        encodes the prompts."""
        encode = _ENCODE.get()
        if not hasattr(edit, "wordings") or encode is None:
            return super().edited(edit, role, z, prompts, strength)
        part, each = self.parts[self.roles.index(role)], []
        for wording in zip(*(edit.wordings(prompt) for prompt in prompts), strict=True):
            inside = opened(encode(list(wording))[part.place])
            rows = z if inside is None else inside[0][:, part.tokens]
            if rows.shape != z.shape:
                raise InvalidInputError(
                    f"{self.name}: method {edit.method!r}: the other wordings have states"
                    f" {tuple(rows.shape)}, the prompts {tuple(z.shape)}; write the words into the"
                    " prompts instead"
                )
            each.append(rows)
        return cast("Tensor", edit.combined(z, torch.stack(each, dim=1), strength))

    def merge(self, edits: Mapping[str, Any], strength: float) -> Sequence[object]:
        """Fold the edits into the layers that read the embeddings; warn where the negative prompt
        was not edited."""
        changed = fold_into_readers(self._pipe, edits, strength)
        if (
            strength
            and not self.negative
            and (self.source.negatives or any(p.twin is not None for p in self.parts))
        ):
            warn(
                f"{self.name}: weights cannot tell the two branches of guidance apart, so merge()"
                " changed the negative prompt too, the empty one included. With guidance it"
                " generates what an attachment with negative=True does, not what this one did;"
                " where that matters, keep the attachment"
            )
        return changed


def _edited(
    attachment: Attachment, part: Part, value: Any, texts: list[str], shown: Tensor | None
) -> Any:
    inside = opened(value)
    if inside is None:  # no guidance, no negative branch
        return value
    tensor, close = inside
    segment = tensor[:, part.tokens]
    changed = attachment.apply(part.role, segment, lambda: texts)
    if changed is segment:
        return value
    if shown is not None and tensor.ndim == 3:
        shown = shown.to(tensor.device).repeat_interleave(len(tensor) // len(shown), 0)
        changed = torch.where(shown[..., None], segment, changed)
    whole = tensor.clone()
    whole[:, part.tokens] = changed
    return close(whole)

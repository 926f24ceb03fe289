"""Sample a value for each image, and insert it into the prompt or set it in cross-attention."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.attachment import Attachable, Attachment
from vldebias.hosts.call_log import KEPT, NEXT, CallLog, CallRecord, joined, raise_failures
from vldebias.hosts.reading import during
from vldebias.hosts.seeds import Seeds, indices_of
from vldebias.projection.cross_attention_edit import CrossAttentionEdit

if TYPE_CHECKING:
    from vldebias.wording import BalancedPrompts, Balancer

Readers = Mapping[str, Callable[[str], int]]
"""For each text argument, a function that counts the characters of a text that encoders read."""

_GIVEN: ContextVar[Mapping[int, list[object]]] = ContextVar(
    "vldebias_given", default=MappingProxyType({})
)
"""The values that `giving` sets for images of calls in this thread or task, by attachment id."""


class SamplingHost(Attachable):
    """A host that can be hooked to give each image a sampled value."""

    def install_prompts(self, attachment: PromptAttachment) -> Callable[[], None]:
        """Hook the pipeline so that prompts pass through `attachment.rewrite_texts`.

        Returns:
            The function that removes the hooks.
        """
        raise UnsupportedHostError(
            f"{self.name}: balanced prompts are only supported for diffusers pipelines; use a"
            " different method, such as 'difference'"
        )

    def install_values(self, attachment: DenoiserAttachment) -> Callable[[], None]:
        """Hook the denoiser so that each image's value is set in cross-attention.

        Returns:
            The function that removes the hooks.
        """
        raise UnsupportedHostError(
            f"{self.name}: only diffusers pipelines can sample values; use method='difference'"
        )


class SamplingAttachment(Attachment):
    """Sample an attribute value for each image that a pipeline generates, and record every call.

    Attributes:
        balancer: decides which prompts leave the attribute unspecified, and which value each image
            gets.
        log: call records, used by `last_call`, `calls`, `sampled`, `reasons` and `people`.
    """

    host: SamplingHost

    def __init__(
        self,
        host: SamplingHost,
        balancer: Balancer,
        *,
        strength: float = 1.0,
        label: str = "",
        log: CallLog | None = None,
    ) -> None:
        self.balancer = balancer
        self.log = log or CallLog()
        super().__init__(host, strength=strength, label=label)

    @property
    def keeps_stated(self) -> bool:
        """Return True, because a value stated in the prompt is always preserved."""
        return True

    @property
    def seed(self) -> int:
        """Return the sampling seed, either drawn at random or set explicitly.

        With the same seed, the same calls give the same values. Setting it discards all call
        records.
        """
        assert self.balancer.seed is not None  # the balancer draws one
        return self.balancer.seed

    @seed.setter
    def seed(self, value: int) -> None:
        self.balancer.restart(value)

    @property
    def follow_seeds(self) -> bool:
        """Return whether values are derived from the generators passed to a call.

        If False, values depend on previous calls, as `vldebias.debias` explains.
        """
        return self.log.follow_seeds

    @follow_seeds.setter
    def follow_seeds(self, value: bool) -> None:
        self.log.follow_seeds = value

    @property
    def last_call(self) -> CallRecord | None:
        """Return the record of the last call in this thread or task, or None if there was none.

        The record of a call made in a separate thread, for example by `asyncio.to_thread`, must be
        retrieved in that thread.
        """
        record = self.log.last
        if record is None and not self.log.is_known:
            self.warn_once(
                "this thread or task has not called the pipeline, but others have. Read a call's"
                " values in the function that calls the pipeline, or take them from"
                " attachment.calls or debias(..., on_call=function)"
            )
        return record

    @property
    def calls(self) -> list[CallRecord]:
        """Return the records of the last 1,000 calls from all threads and tasks, oldest first."""
        return self.log.records

    @property
    def sampled(self) -> list[object]:
        """Return the value of each image in the last call of this thread or task.

        The value is None for an unchanged prompt. The list is empty if there was no call.
        """
        record = self.last_call
        return [] if record is None else list(record.values)

    @property
    def reasons(self) -> list[object]:
        """Return the reason why each image in the last call of this thread or task got no value.

        The reason is None if the image got a value. `vldebias.balance_prompts` lists the reasons.
        """
        record = self.last_call
        return [] if record is None else list(record.reasons)

    @property
    def people(self) -> list[object]:
        """Return, for each image in the last call of this thread or task, who was assigned a value.

        People are given as (noun, value) pairs.
        """
        record = self.last_call
        return [] if record is None else list(record.people)

    def _facts(self) -> list[tuple[str, object]]:
        facts: list[tuple[str, object]] = [("seed", self.seed)]
        values = self.sampled
        counts = Counter(str(value) for value in values if value is not None)
        facts += [(f"last call, {value}", count) for value, count in counts.items()]
        unchanged = values.count(None)
        if unchanged:
            facts.append(("last call, left unchanged", unchanged))
        return facts

    def sample_call(
        self,
        columns: Mapping[str, Sequence[str]],
        *,
        read: Readers | None = None,
        seeds: object = None,
        edits: Sequence[bool] = (),
        left: str = "",
        is_encoding: bool = False,
    ) -> tuple[dict[str, list[str]], CallRecord]:
        """Sample the values for one call and insert them into its texts.

        Args:
            columns: for each text argument, one text per image.
            read: how many characters of a text the encoders read; a subject beyond that point gets
                no value and is not counted.
            seeds: generators or seeds that determine the values; anything else that a pipeline
                accepts as its generator is ignored.
            edits: for each image, whether it is an edit of an input image, so that its texts stay
                unchanged and it is not counted. If empty, no image is an edit.
            left: why all texts stay unchanged, or "" to balance them.
            is_encoding: whether the call only encodes the texts and generates no images.

        Returns:
            The texts with inserted values, and the record of the call, which has not been logged
            yet.
        """
        prompts = joined(columns)
        indices = None
        if self._strength and seeds is not None and self.log.follow_seeds:
            indices = indices_of(seeds, prompts)
        is_edit = edits or [False] * len(prompts)
        if left or not self._strength:  # no value is inserted or counted, as for edits
            is_edit = [True] * len(prompts)
        new_images = [image for image in range(len(prompts)) if not is_edit[image]]
        balanced_texts, balanced = self._balance(
            {name: [column[image] for image in new_images] for name, column in columns.items()},
            read or {},
            None if indices is None else [indices[image] for image in new_images],
        )
        written = {name: list(column) for name, column in columns.items()}
        values: list[object] = [None] * len(prompts)
        reason = (left or "edit") if self._strength else "strength"
        reasons: list[object] = [reason] * len(prompts)
        people: list[Sequence[tuple[str, object]]] = [()] * len(prompts)
        for row, image in enumerate(new_images):
            for name, column in written.items():
                column[image] = balanced_texts[name][row]
            values[image] = balanced.values[row]
            reasons[image] = balanced.reasons[row]
            people[image] = tuple(balanced.people[row])
        record = CallRecord(
            prompts,
            joined(written),
            values=tuple(values),
            reasons=tuple(reasons),
            people=tuple(people),
            seed=balanced.seed,
            index=None if indices is None else tuple(indices),
            is_encoding=is_encoding,
        )
        return written, record

    def _balance(
        self,
        columns: Mapping[str, Sequence[str]],
        read: Readers,
        indices: Sequence[int] | None,
    ) -> tuple[dict[str, list[str]], BalancedPrompts]:
        """Insert values with `Balancer.next_texts` into the part of each text that encoders read.

        Returns:
            All texts, and the values and reasons returned by `Balancer.next_texts`.
        """
        heads: dict[str, list[str]] = {}
        tails: dict[str, list[str]] = {}
        for name, column in columns.items():
            heads[name] = []
            tails[name] = []
            for text in column:
                end = read[name](text) if name in read else len(text)
                heads[name].append(text[:end])
                tails[name].append(text[end:])
        # Equal texts for one image count as one text with one subject.
        different = [list(dict.fromkeys(row)) for row in zip(*heads.values(), strict=True)]
        written, balanced = self.balancer.next_texts(different, indices)
        texts: dict[str, list[str]] = {name: [] for name in columns}
        reasons = []
        for image, reason in enumerate(balanced.reasons):
            new_of_head = dict(zip(different[image], written[image], strict=True))
            is_cut = False
            for name, column in texts.items():
                tail = tails[name][image]
                column.append(new_of_head[heads[name][image]] + tail)
                is_cut = is_cut or bool(tail)
            reasons.append(_reason_of_cut_text(reason) if is_cut else reason)
        return texts, replace(balanced, reasons=reasons)


class PromptAttachment(SamplingAttachment):
    """Insert a sampled value into each image's prompt with the hooks from `Host.install_prompts`.

    >>> import vldebias
    >>> from vldebias.miniature import load_pipeline
    >>> pipe = load_pipeline()
    >>> method = vldebias.methods.Balanced(seed=0)
    >>> with vldebias.debias(pipe, "gender", method=method) as attachment:
    ...     images = pipe(["A photo of a CEO"] * 2, num_inference_steps=2).images
    >>> attachment.sampled
    ['male', 'female']
    """

    reattach = "prompts"
    _is_later_pass = False

    @cached_property
    def _sampled_ids(self) -> deque[str]:
        """Return the ids of the records whose values this attachment sampled."""
        return deque(maxlen=KEPT)

    def _install(self) -> Callable[[], None]:
        return self.host.install_prompts(self)

    def _merge(self) -> None:
        raise UnsupportedHostError(
            f"{self.host.name}: prompts are rewritten before the model reads them, which weights"
            ' cannot express; attach method="cali" and merge that instead'
        )

    def _changes(self) -> list[str]:
        return ["balanced-prompts"]

    def attach_to_later_pass(self, host: SamplingHost) -> PromptAttachment:
        """Attach to a later pass over the same images, such as a refiner.

        In that pass, the same prompts get the same values. The returned attachment is removed,
        paused and scaled together with this one.

        Args:
            host: the pipeline of the later pass.

        Raises:
            InvalidInputError: If this attachment is not attached.
        """
        if self.state != "attached":
            raise InvalidInputError(
                f"{host.name}: the first pipeline's attachment is {self.state}; attach it"
                " again before you add a second pipeline"
            )
        later = PromptAttachment(
            host, self.balancer, strength=self.strength, label=self.label, log=self.log
        )
        later._is_later_pass = True
        self._followers.add(later)
        return later

    def rewrite(self, prompts: str | Sequence[str], seeds: Seeds | None = None) -> list[str]:
        """Return one rewritten prompt per image, as in a pipeline call.

        Afterwards, `sampled` contains the images' values, and `reasons` explains why some prompts
        were left unchanged. Use this method to balance the prompts of many calls at once.

        Args:
            prompts: one prompt, or one per image.
            seeds: generators or seeds that determine the values, one for all images or one per
                image, as `follow_seeds` describes.
        """
        if isinstance(prompts, str):
            prompts = [prompts]
        written = self.rewrite_texts({"prompt": prompts}, seeds=seeds)["prompt"]
        raise_failures()
        return written

    def rewrite_texts(
        self,
        texts: Mapping[str, Sequence[str]],
        *,
        again: bool = False,
        edits: Sequence[bool] = (),
        left: str = "",
        read: Readers | None = None,
        seeds: object = None,
        is_encoding: bool = False,
    ) -> dict[str, list[str]]:
        """Return a call's texts with sampled values inserted, and log the call's record.

        A text stays unchanged if it states the attribute, or mentions no person to whom a value can
        be assigned. All texts for an image (`prompt`, `prompt_2`) get the same value, and any of
        them may state it.

        Args:
            texts: for each text argument, one text per image.
            again: whether the texts belong to the images in the last call, so that they get the
                same values.
            edits: for each image, whether it is an edit of an input image, so that its texts stay
                unchanged. If empty, no image is an edit.
            left: why all texts stay unchanged, or "" to balance them.
            read: how many characters of a text the encoders read.
            seeds: the generators or seeds of the call's images, if any.
            is_encoding: whether the call only encodes the texts and generates no images.
        """
        columns = {name: list(column) for name, column in texts.items()}
        if self.state != "attached":
            return columns
        if again or self._is_later_pass:
            with_last_values = self._with_last_values(columns, again)
            if with_last_values is not None:
                return with_last_values
        self.log.begin()
        self.balancer.strength = self._strength
        written, record = self.sample_call(
            columns, read=read, seeds=seeds, edits=edits, left=left, is_encoding=is_encoding
        )
        if self._strength:
            self._sampled_ids.append(record.id)
        self.log.add(record)
        return written

    def _with_last_values(
        self, columns: Mapping[str, list[str]], again: bool
    ) -> dict[str, list[str]] | None:
        """Insert the values of the last call into additional texts for the same images.

        Args:
            columns: for each text argument, one text per image.
            again: whether the texts are known to belong to these images; otherwise prompts are
                compared.

        Returns:
            The texts with that call's values, or None if the last call was not an earlier pass over
            these images.
        """
        record = self.log.last
        if not again:
            last_prompts = None
            if record is not None and record.id not in self._sampled_ids:
                # Passes may accept different numbers of texts.
                last_prompts = [text.split(NEXT)[0] for text in record.prompts]
            if last_prompts != columns["prompt"]:
                self.warn_once(
                    "no earlier pass was called with the same prompts in this thread or task, so"
                    " new values were sampled. Call all passes over an image one after the other"
                    " in one function, with the same prompts, one per image"
                )
                return None
        rewritten = dict(columns)
        if record is None:
            return rewritten
        values_of_images = [[value for _, value in people] for people in record.people]
        for name, texts in columns.items():
            # If the number of images differs from the last call, the values of these images are
            # unknown.
            if len(texts) == len(record.values):
                rewritten[name] = self.balancer.write(texts, values_of_images)
        return rewritten


class DenoiserAttachment(SamplingAttachment):
    """Set sampled values in a denoiser's cross-attention with the hooks from `install_values`.

    The strength is the fraction of the edits applied to the cross-attention outputs.

    Attributes:
        projections: the edit for each attribute, by the name of its prompt set.

    >>> import vldebias
    >>> from vldebias.miniature import load_pipeline
    >>> pipe = load_pipeline()
    >>> method = vldebias.methods.CrossAttention(concepts=2, steps=2)  # a fast fit
    >>> with vldebias.debias(pipe, "gender", method=method) as attachment:
    ...     images = pipe(["A photo of a CEO"] * 2, num_inference_steps=2).images
    >>> sorted(attachment.sampled)
    ['female', 'male']
    """

    reattach = "attachment.projections"

    def __init__(
        self,
        host: SamplingHost,
        projections: Mapping[str, CrossAttentionEdit],
        balancer: Balancer,
        *,
        strength: float = 1.0,
        label: str = "",
        log: CallLog | None = None,
    ) -> None:
        self.projections = dict(projections)
        super().__init__(host, balancer, strength=strength, label=label, log=log)

    def _install(self) -> Callable[[], None]:
        return self.host.install_values(self)

    def _merge(self) -> None:
        raise UnsupportedHostError(
            f"{self.host.name}: every image gets its own value in cross-attention, which weights"
            ' cannot express; attach method="cali" and merge that instead'
        )

    def _changes(self) -> list[str]:
        return [f"{name}: {edit!r}" for name, edit in self.projections.items()]

    def _facts(self) -> list[tuple[str, object]]:
        facts = [(f"edit of {name}", edit.method) for name, edit in self.projections.items()]
        return [*facts, *super()._facts()]

    @contextmanager
    def giving(self, values: Sequence[object]) -> Iterator[Self]:
        """Set the image values for calls inside the block, instead of sampling them.

        Args:
            values: one value per image of a call, or None to leave that image unchanged. For
                several sets, tuples of values.
        """
        with during(_GIVEN, {**_GIVEN.get(), id(self): list(values)}):
            yield self

    @property
    def given_values(self) -> list[object] | None:
        """Return the values of the surrounding `giving` block, or None outside one."""
        return _GIVEN.get().get(id(self))

    def sample(self, prompts: Sequence[str], seeds: Seeds | None = None) -> list[object]:
        """Return a value for each image, or None if its prompt is left unchanged.

        Use this method to sample values for many calls at once, and pass the values to `giving`.

        Args:
            prompts: one prompt per image.
            seeds: generators or seeds that determine the values, one for all images or one per
                image, as `follow_seeds` describes.
        """
        self.sample_texts({"prompt": list(prompts)}, seeds=seeds)
        raise_failures()
        return self.sampled

    def sample_texts(
        self,
        texts: Mapping[str, Sequence[str]],
        *,
        read: Readers | None = None,
        seeds: object = None,
    ) -> None:
        """Sample and log the values for a call without changing its texts.

        Args:
            texts: for each text argument, one text per image.
            read: how many characters of a text the encoders read.
            seeds: the generators or seeds of the call's images, if any.
        """
        self.log.begin()
        _, record = self.sample_call(texts, read=read, seeds=seeds)
        self.log.add(replace(record, written=record.prompts))


def _reason_of_cut_text(reason: object) -> object:
    """Return the reason to report for a text that the encoders read only in part.

    The reason is "truncated" if no person was found in the part that was read, because the rest may
    mention one.
    """
    if isinstance(reason, tuple):
        return tuple(map(_reason_of_cut_text, reason))
    if isinstance(reason, str) and reason.startswith("no person"):
        return "truncated"
    return reason

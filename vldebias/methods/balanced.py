"""Balance prompts by stating a sampled attribute value in each image's prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vldebias.errors import InvalidInputError
from vldebias.hosts import PromptAttachment
from vldebias.methods.attaching import AttachSettings
from vldebias.methods.declared import DECLARED
from vldebias.methods.method import DEFAULTS, Method, Problem, register_method
from vldebias.prompts import PromptSet, can_balance

if TYPE_CHECKING:
    from vldebias.wording import Balancer
    from vldebias.wording.marks import Find


@dataclass(kw_only=True, eq=False, repr=False)
class Balanced(Method):
    """State a sampled attribute value in the prompt for each image that a pipeline generates.

    `attach` returns a `PromptAttachment`, whose values come from a new `Balancer`.

    Args:
        shares: the share of images for each value. If None, shares are equal.
        seed: sampling seed. If None, each attachment draws its own (`attachment.seed`). With a
            fixed seed, a call with `generator=` shows the same people in every process.
        find: a function that says who is shown in prompts about which the word lists are in doubt,
            such as a `vldebias.ChatFinder`, as in `vldebias.balance_prompts`.
        people: how prompts about several people are treated, as in `vldebias.balance_prompts`.
        decide: a function that returns, for a list of prompts, the values that are compatible with
            the facts stated in each prompt, as in `vldebias.balance_prompts`.

    >>> import vldebias
    >>> from vldebias.miniature import load_pipeline
    >>> pipe = load_pipeline()
    >>> method = Balanced(shares={"female": 0.75, "male": 0.25}, seed=0)
    >>> with vldebias.debias(pipe, "gender", method=method) as attachment:
    ...     prompts = attachment.rewrite(["A photo of a CEO"] * 4)
    >>> attachment.sampled.count("female")
    3
    """

    declaration = DECLARED["balanced-prompts"]

    shares: Mapping[str, float] | None = None
    seed: int | None = None
    find: Find | None = None
    people: str = "mixed"
    decide: Callable[..., Any] | None = None

    def attach(self, problem: Problem, settings: AttachSettings = DEFAULTS) -> PromptAttachment:
        settings.refuse_embeddings(self.name)
        if problem.max_loss is not None:
            raise InvalidInputError(
                f"max_loss: expected a method that edits embeddings, but method {self.name!r}"
                " inserts words into prompts; omit max_loss, or use method='cali'"
            )
        balancer = make_balancer(
            problem.sets,
            shares=self.shares if settings.shares is None else settings.shares,
            seed=self.seed,
            find=self.find if settings.find is None else settings.find,
            decide=self.decide,
            people=self.people,
        )
        return PromptAttachment(
            problem.host,
            balancer,
            strength=settings.strength,
            label=problem.label,
            log=settings.log(),
        )


def make_balancer(sets: Sequence[PromptSet], **settings: Any) -> Balancer:
    """Return a `Balancer` for prompt sets, with its word lists already loaded.

    Args:
        sets: the prompt sets.
        settings: keyword arguments of `vldebias.wording.Balancer`, such as `shares` and `seed`.
    """
    # Imported here, because it loads the word lists.
    from vldebias.wording import Balancer, balance_prompts

    # Analysing a prompt loads the word lists, which would otherwise delay the first image.
    balance_prompts("A photo of a person.", "gender", seed=0)
    # With only one set, values are strings instead of tuples.
    return Balancer(sets[0] if len(sets) == 1 else sets, **settings)


def why_not_balanced(problem: Problem) -> str | None:
    """Return why a pipeline's prompts cannot be balanced by default, or None if they can."""
    if problem.host.needs_picture:  # the input image already shows the people
        return f"{problem.host.name} only edits existing images or videos"
    if not problem.host.rewrites:
        return "this host does not rewrite prompts"
    if not all(map(can_balance, problem.attributes)):
        return "the set has no words for values that describe people"
    if problem.max_loss is not None:
        return "max_loss only applies to edits of embeddings"
    return None


register_method(Balanced())

"""Load prompt sets, find the words that state an attribute, and write balanced prompts."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.prompts.balance import (
        BalancedPrompts,
        Balancer,
        balance_prompts,
        can_balance,
    )
    from vldebias.prompts.prompt_set import (
        PromptSet,
        StatedWords,
        fill,
        list_prompts,
        load_prompts,
        make_prompt_set,
    )

# Loaded when first asked for: whether a file of prompts is right is answered without the rules of
# English.
_NAMES_OF_HOME = {
    "vldebias.prompts.balance": ("BalancedPrompts", "Balancer", "balance_prompts", "can_balance"),
    "vldebias.prompts.prompt_set": (
        *("PromptSet", "StatedWords", "fill", "list_prompts", "load_prompts"),
        "make_prompt_set",
    ),
}
__all__ = [
    "BalancedPrompts",
    "Balancer",
    "PromptSet",
    "StatedWords",
    "balance_prompts",
    "can_balance",
    "fill",
    "list_prompts",
    "load_prompts",
    "make_prompt_set",
]

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)

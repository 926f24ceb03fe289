"""Load and create prompt sets, and find the words that state an attribute."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.prompts.attribute import can_balance
    from vldebias.prompts.prompt_set import (
        PromptSet,
        StatedWords,
        fill,
        list_prompts,
        load_prompts,
        make_prompt_set,
    )

# These names are imported on first use, since checking a set does not require the English
# dictionary.
_NAMES_OF_HOME = {
    "vldebias.prompts.attribute": ("can_balance",),
    "vldebias.prompts.prompt_set": (
        *("PromptSet", "StatedWords", "fill", "list_prompts", "load_prompts"),
        "make_prompt_set",
    ),
    # Names from `vldebias.wording` that are also available from this package.
    "vldebias.wording.balance": ("BalancedPrompts", "Balancer", "balance_prompts"),
}
__all__ = [
    "PromptSet",
    "StatedWords",
    "can_balance",
    "fill",
    "list_prompts",
    "load_prompts",
    "make_prompt_set",
]

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)

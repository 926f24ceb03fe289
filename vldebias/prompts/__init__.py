"""Load and create prompt sets, and find the words that state an attribute."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.prompts.attribute import can_balance as can_balance
    from vldebias.prompts.prompt_set import PromptSet as PromptSet
    from vldebias.prompts.prompt_set import StatedWords as StatedWords
    from vldebias.prompts.prompt_set import fill as fill
    from vldebias.prompts.prompt_set import list_prompts as list_prompts
    from vldebias.prompts.prompt_set import load_prompts as load_prompts
    from vldebias.prompts.prompt_set import make_prompt_set as make_prompt_set

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
__all__ = sorted(name for names in _NAMES_OF_HOME.values() for name in names)

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)

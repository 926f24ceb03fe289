"""Write balanced prompts: give the people in a prompt that states no value a sampled one."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.wording.balance import BalancedPrompts, Balancer, balance_prompts

# Loaded when first used: reading a file of prompts does not need the rules of any language.
_NAMES_OF_HOME = {
    "vldebias.wording.balance": ("BalancedPrompts", "Balancer", "balance_prompts"),
}
__all__ = ["BalancedPrompts", "Balancer", "balance_prompts"]

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Balance prompts by adding sampled attribute values for the people they mention."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.wording.balance import BalancedPrompts, Balancer, balance_prompts

# These names are loaded on first use, since reading a prompt file does not need the language rules.
_NAMES_OF_HOME = {"vldebias.wording.balance": ("BalancedPrompts", "Balancer", "balance_prompts")}
__all__ = ["BalancedPrompts", "Balancer", "balance_prompts"]

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Balance prompts by adding sampled attribute values for the people they mention."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.wording.balance import BalancedPrompts as BalancedPrompts
    from vldebias.wording.balance import Balancer as Balancer
    from vldebias.wording.balance import balance_prompts as balance_prompts

# These names are loaded on first use, since reading a prompt file does not need the language rules.
__getattr__, __dir__, __all__ = lazy_names(__name__)

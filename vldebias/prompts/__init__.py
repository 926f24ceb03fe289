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

    # Names from `vldebias.wording` that are also available from this package.
    from vldebias.wording.balance import BalancedPrompts as BalancedPrompts
    from vldebias.wording.balance import Balancer as Balancer
    from vldebias.wording.balance import balance_prompts as balance_prompts

# These names are imported on first use, since checking a set does not require the English
# dictionary.
__getattr__, __dir__, __all__ = lazy_names(__name__)

"""Load prompt sets, find the words that state an attribute, and write balanced prompts."""

from vldebias.prompts.balance import BalancedPrompts as BalancedPrompts
from vldebias.prompts.balance import Balancer as Balancer
from vldebias.prompts.balance import balance_prompts as balance_prompts
from vldebias.prompts.balance import can_balance as can_balance
from vldebias.prompts.prompt_set import PromptSet as PromptSet
from vldebias.prompts.prompt_set import StatedWords as StatedWords
from vldebias.prompts.prompt_set import fill as fill
from vldebias.prompts.prompt_set import list_prompts as list_prompts
from vldebias.prompts.prompt_set import load_prompts as load_prompts
from vldebias.prompts.prompt_set import make_prompt_set as make_prompt_set

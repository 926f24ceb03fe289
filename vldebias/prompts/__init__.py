"""Load prompt sets, find the words that state an attribute, and write balanced prompts."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

# Name -> where it lives. Loaded when first asked for: whether a file of prompts is right is
# answered without the rules of English.
_HOMES = {
    **dict.fromkeys(("BalancedPrompts", "Balancer", "balance_prompts", "can_balance"), "balance"),
    **dict.fromkeys(
        (
            *("PromptSet", "StatedWords", "fill", "list_prompts", "load_prompts"),
            "make_prompt_set",
        ),
        "prompt_set",
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vldebias.prompts' has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"vldebias.prompts.{_HOMES[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)

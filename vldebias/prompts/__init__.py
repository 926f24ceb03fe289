"""Prompt sets as data: the schema of the YAML files, the sets made from them, and the words that state an attribute."""

from vldebias.prompts.prompt_set import PromptSet, list_prompts, load_prompts, make_prompt_set
from vldebias.prompts.recipe import check_slots, fill
from vldebias.prompts.stated_words import StatedWords

__all__ = ["PromptSet", "StatedWords", "check_slots", "fill", "list_prompts", "load_prompts", "make_prompt_set"]

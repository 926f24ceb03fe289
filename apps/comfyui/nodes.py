"""Define the two nodes for ComfyUI (V3 API); what they compute lies in the modules beside this."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import ComfyExtension, io

from .balancing import ATTRIBUTES, LARGEST, MOST_IMAGES, balance, problem_of
from .rows import family_of, join_rows

_PROMPT = "a prompt; {gender} marks the place yourself, {red|blue} is chosen for each picture"
_SHARES = "female: 70, male: 30, in percent or fractions; empty: even shares"
_SEED = "decides which picture gets which value; keep it, so that the runs of a queue stay even"
_INDEX = "number of this run; with 'increment' the runs of a queue continue one even sequence"


def _prompt_inputs() -> list[Any]:
    """Return the inputs that both nodes have."""
    return [
        # The page would choose alternatives once for all pictures, and would eat "{gender}".
        io.String.Input("prompt", multiline=True, dynamic_prompts=False, tooltip=_PROMPT),
        io.Combo.Input("attribute", options=list(ATTRIBUTES), default=ATTRIBUTES[0]),
        io.Int.Input("images", default=4, min=1, max=MOST_IMAGES, tooltip="pictures of a run"),
        io.String.Input("shares", default="", optional=True, tooltip=_SHARES),
        # Without a control of its own, as `seed` gets by its name: a new seed in each run would
        # start a new sequence in each.
        io.Int.Input(
            "seed",
            default=0,
            min=0,
            max=LARGEST,
            optional=True,
            control_after_generate=False,
            tooltip=_SEED,
        ),
        io.Int.Input(
            "index",
            default=0,
            min=0,
            max=LARGEST // MOST_IMAGES,
            optional=True,
            control_after_generate=True,
            tooltip=_INDEX,
        ),
    ]


def _validate(attribute: str | None, shares: str | None) -> bool | str:
    """Return True, or the sentence that ComfyUI shows instead of running."""
    # ComfyUI shows a text to the user, and runs nothing.
    return problem_of(attribute, shares) or True


class BalancePrompt(io.ComfyNode):
    """Write values of an attribute into a prompt; everything behind it runs once per picture."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return inputs and outputs."""
        return io.Schema(
            node_id="BalancedPromptsText",
            display_name="Balance Prompt",
            category="conditioning",
            description=(
                "State an attribute of the person in the prompt, evenly over the pictures, where"
                " the prompt leaves it open. Text alone, for every model."
            ),
            inputs=_prompt_inputs(),
            outputs=[
                io.String.Output("prompts", display_name="prompts", is_output_list=True),
                io.String.Output("values", display_name="values", is_output_list=True),
                io.Int.Output("seeds", display_name="seeds", is_output_list=True),
                io.String.Output("reasons", display_name="reasons"),
            ],
        )

    @classmethod
    def validate_inputs(cls, attribute: str | None = None, shares: str | None = None) -> bool | str:
        """Refuse an unknown attribute and bad shares before anything runs."""
        return _validate(attribute, shares)

    @classmethod
    def execute(
        cls,
        prompt: str,
        attribute: str,
        images: int,
        shares: str = "",
        seed: int = 0,
        index: int = 0,
    ) -> io.NodeOutput:
        """Return prompts, values and seeds as lists, and the reasons as text."""
        pictures = balance(prompt, attribute, images, shares, seed, index)
        return io.NodeOutput(*pictures)


class EncodeBalancedPrompt(io.ComfyNode):
    """Encode balanced prompts into one conditioning, so that one sampler call makes the batch."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return inputs and outputs."""
        return io.Schema(
            node_id="BalancedPromptsEncode",
            display_name="CLIP Text Encode (Balanced Prompt)",
            category="conditioning",
            description=(
                "CLIP Text Encode with a prompt for each picture of the batch. Connect batch_size"
                " with that of the empty latent. For SD 1, SD 2, SDXL, SD 3 and Flux."
            ),
            inputs=[io.Clip.Input("clip"), *_prompt_inputs()],
            outputs=[
                io.Conditioning.Output("conditioning"),
                io.Int.Output("batch_size", display_name="batch_size"),
                io.String.Output("prompts", display_name="prompts", is_output_list=True),
                io.String.Output("reasons", display_name="reasons"),
            ],
        )

    @classmethod
    def validate_inputs(cls, attribute: str | None = None, shares: str | None = None) -> bool | str:
        """Refuse an unknown attribute and bad shares before anything runs."""
        return _validate(attribute, shares)

    @classmethod
    def execute(
        cls,
        clip: Any,
        prompt: str,
        attribute: str,
        images: int,
        shares: str = "",
        seed: int = 0,
        index: int = 0,
    ) -> io.NodeOutput:
        """Return the conditioning, the number of its rows, the prompts, and the reasons as text."""
        if clip is None:
            raise ValueError("clip: the checkpoint has no text encoder; connect one that has")
        # Before the prompts are balanced, so that a refused model costs nothing.
        family = family_of(clip.cond_stage_model)
        pictures = balance(prompt, attribute, images, shares, seed, index)
        # Equal prompts are encoded once: a batch has as many texts as values.
        conditioning_of_prompt = {
            text: clip.encode_from_tokens_scheduled(clip.tokenize(text))
            for text in dict.fromkeys(pictures.prompts)
        }
        rows = [conditioning_of_prompt[text] for text in pictures.prompts]
        conditioning = join_rows(rows, family)
        return io.NodeOutput(conditioning, images, pictures.prompts, pictures.reasons)


class BalancedPromptsExtension(ComfyExtension):
    """List the nodes of this package."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """Return the classes of the nodes."""
        return [BalancePrompt, EncodeBalancedPrompt]

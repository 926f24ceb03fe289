"""Define the ComfyUI nodes (V3 API)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comfy_api.latest import ComfyExtension, io, ui

from .balancing import ATTRIBUTES, LARGEST, MOST_IMAGES, balance, problem_of, single_settings
from .rows import family_of, join_rows
from .saving import write_records

if TYPE_CHECKING:
    from torch import Tensor

_PROMPT = (
    "The prompt. {gender} marks where to insert the value; {red|blue} is chosen for each image."
)
_SHARES = "Shares such as female: 70, male: 30, in percent or as fractions. Empty for even shares."
_SEED = (
    "Seed of the first image, which also determines its value. Do not change it between the runs"
    " of a queue, so that values are even."
)
_INDEX = "Number of this run. With 'increment', the runs of a queue form one even sequence."
_ATTRIBUTE = "The person's attribute to state if the prompt leaves it open."
_IMAGES = "Images per run, or per prompt if another node provides a list of prompts."
_PROMPTS_OUT = "The prompt of each image. Connect this to the text input of CLIP Text Encode."
_VALUES_OUT = "The value of each image, for file names. Empty if none was stated."
_SEEDS_OUT = "Connect this to the sampler's seed. Otherwise, equal prompts give identical images."
_REASONS_OUT = "Each image's value, or why its prompt is unchanged. Connect this to Preview Any."
_CONDITIONING_OUT = "One row per image. Connect this to the sampler's positive input."
_BATCH_OUT = "Number of rows in the conditioning. Connect this to the empty latent's batch_size."


def _prompt_inputs() -> list[Any]:
    """Return the inputs shared by both nodes."""
    return [
        # With dynamic prompts, the page would choose alternatives only once for all images, and
        # would remove "{gender}".
        io.String.Input("prompt", multiline=True, dynamic_prompts=False, tooltip=_PROMPT),
        io.Combo.Input(
            "attribute", options=list(ATTRIBUTES), default=ATTRIBUTES[0], tooltip=_ATTRIBUTE
        ),
        io.Int.Input("images", default=4, min=1, max=MOST_IMAGES, tooltip=_IMAGES),
        io.String.Input("shares", default="", optional=True, tooltip=_SHARES),
        # By default, ComfyUI changes an input named `seed` after each run, which would start a new
        # sequence of values.
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


def _texts(name: str, tooltip: str) -> Any:
    """Return an output that is a list of strings."""
    return io.String.Output(name, display_name=name, tooltip=tooltip, is_output_list=True)


class BalancingNode(io.ComfyNode):
    """Base class for nodes that balance prompts."""

    @classmethod
    def validate_inputs(
        cls, attribute: Sequence[str | None] = (None,), shares: Sequence[str | None] = (None,)
    ) -> bool | str:
        """Check the inputs before anything runs.

        Args:
            attribute: a list that contains the attribute, or None if an upstream node provides it.
            shares: a list that contains the shares, or None if an upstream node provides them.

        Returns:
            True, or a message that ComfyUI shows instead of running the workflow.
        """
        return problem_of(attribute[0], shares[0]) or True


class BalancePrompt(BalancingNode):
    """State attribute values in a prompt, and run downstream nodes once per image."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return inputs and outputs."""
        return io.Schema(
            node_id="BalancedPromptsText",
            display_name="Balance Prompt",
            category="conditioning",
            description=(
                "State an attribute of the person in the prompt, evenly over the images, if the"
                " prompt leaves it open. This changes only text, so it works with every model."
            ),
            # A list of prompts is treated as a single run, with values even over all prompts.
            is_input_list=True,
            inputs=_prompt_inputs(),
            outputs=[
                _texts("prompts", _PROMPTS_OUT),
                _texts("values", _VALUES_OUT),
                io.Int.Output(
                    "seeds", display_name="seeds", tooltip=_SEEDS_OUT, is_output_list=True
                ),
                io.String.Output("reasons", display_name="reasons", tooltip=_REASONS_OUT),
            ],
        )

    @classmethod
    def execute(cls, prompt: list[str], **settings: list[object]) -> io.NodeOutput:
        """Return prompts, values and seeds as lists, and the reasons as text."""
        balanced = balance(prompt, **single_settings(settings))
        return io.NodeOutput(balanced.prompts, balanced.values, balanced.seeds, balanced.reasons)


class EncodeBalancedPrompt(BalancingNode):
    """Encode balanced prompts into one conditioning, to generate a batch in one sampler call."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return inputs and outputs."""
        return io.Schema(
            node_id="BalancedPromptsEncode",
            display_name="CLIP Text Encode (Balanced Prompt)",
            category="conditioning",
            description=(
                "CLIP Text Encode with a separate prompt for each image in the batch. Connect"
                " batch_size to the empty latent. Supports SD 1, SD 2, SDXL, SD 3 and Flux."
            ),
            is_input_list=True,
            inputs=[io.Clip.Input("clip"), *_prompt_inputs()],
            outputs=[
                io.Conditioning.Output("conditioning", tooltip=_CONDITIONING_OUT),
                io.Int.Output("batch_size", display_name="batch_size", tooltip=_BATCH_OUT),
                _texts("prompts", _PROMPTS_OUT),
                io.String.Output("reasons", display_name="reasons", tooltip=_REASONS_OUT),
            ],
        )

    @classmethod
    def execute(cls, clip: list[Any], prompt: list[str], **settings: list[object]) -> io.NodeOutput:
        """Return the conditioning, the number of its rows, the prompts, and the reasons as text."""
        encoder = single_settings({"clip": clip})["clip"]
        if encoder is None:
            raise ValueError("clip: the checkpoint has no text encoder; connect a CLIP Loader")
        # Reject unsupported models before doing any work.
        family = family_of(encoder.cond_stage_model)
        balanced = balance(prompt, **single_settings(settings))
        # Encode identical prompts only once.
        conditioning_of_prompt = {
            text: encoder.encode_from_tokens_scheduled(encoder.tokenize(text))
            for text in dict.fromkeys(balanced.prompts)
        }
        rows = [conditioning_of_prompt[text] for text in balanced.prompts]
        conditioning = join_rows(rows, family)
        return io.NodeOutput(conditioning, len(rows), balanced.prompts, balanced.reasons)


class SaveBalancedImages(io.ComfyNode):
    """Save images like Save Image, and store each image's value in a separate text chunk."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs. It has no outputs."""
        return io.Schema(
            node_id="BalancedPromptsSave",
            display_name="Save Image (Balanced Prompt)",
            category="image",
            description=(
                "Like Save Image, but also stores each image's value, prompt and seed in the PNG"
                " text chunk 'vldebias', next to ComfyUI's prompt and workflow."
            ),
            # Receive all images of a run at once, so that they can be matched with their values.
            is_input_list=True,
            is_output_node=True,
            inputs=[
                io.Image.Input("images"),
                io.String.Input("filename_prefix", default="ComfyUI"),
                io.String.Input("values", force_input=True, tooltip=_VALUES_OUT),
                io.String.Input("prompts", optional=True, force_input=True),
                io.Int.Input("seeds", optional=True, force_input=True),
            ],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def execute(
        cls,
        images: list[Tensor],
        filename_prefix: list[str],
        values: list[str],
        prompts: Sequence[str] = (),
        seeds: Sequence[int] = (),
    ) -> io.NodeOutput:
        """Save the images and store their values, prompts and seeds in the files.

        Args:
            images: batches of images.
            filename_prefix: a list that contains the file name prefix.
            values: the value of each image.
            prompts: the prompt of each image. Empty if the input is not connected.
            seeds: the seed of each image. Empty if the input is not connected.
        """
        results = []
        for batch in images:
            results += ui.ImageSaveHelper.save_images(
                batch, filename_prefix[0], io.FolderType.output, cls
            )
        write_records(results, values, prompts, seeds)
        return io.NodeOutput(ui=ui.SavedImages(results))


class BalancedPromptsExtension(ComfyExtension):
    """List this package's nodes."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """Return the node classes."""
        return [BalancePrompt, EncodeBalancedPrompt, SaveBalancedImages]

"""A block for Modular Diffusers that balances prompts before the text encoder.

Load it from a folder or the hub, and put it first:

    balance = ModularPipelineBlocks.from_pretrained("apps/modular", trust_remote_code=True)
    blocks.sub_blocks.insert("balance_prompts", balance, 0)
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from diffusers.modular_pipelines import InputParam, ModularPipelineBlocks, OutputParam

from vldebias.errors import InvalidInputError
from vldebias.wording import Balancer
from vldebias.wording.persons import NEXT_TEXT

PROMPTS = ("prompt", "prompt_2", "prompt_3")  # an image's prompts, which all get the same value


class BalancePromptsBlock(ModularPipelineBlocks):
    """State attribute values in the prompts of a call, evenly over its images.

    Prompts that already state the attribute or show no person are left unchanged. Values are even
    over all calls of the pipeline.

    Args:
        attribute: name or file of a prompt set, such as "gender", or a list of them.
        shares: share of the images for each value. If None, shares are even.
        seed: seed for the values, which makes runs repeatable. If None, values are random.
    """

    model_name = None
    _requirements: ClassVar = {"vldebias": ">=0.4"}

    def __init__(
        self,
        attribute: Any = "gender",
        shares: dict[str, float] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._settings = {"attribute": attribute, "shares": shares, "seed": seed}
        # Report unknown prompt sets and invalid shares now, before a model is loaded.
        self._balancer = Balancer(attribute, shares=shares, seed=seed)

    def __deepcopy__(self, memo: dict[int, object]) -> BalancePromptsBlock:
        """Return a block with the same settings but its own counts, for use in another pipeline."""
        return type(self)(**self._settings)

    @property
    def description(self) -> str:
        """Describe the block."""
        return "Inserts attribute values into prompts, evenly over the images of a call."

    @property
    def inputs(self) -> list[InputParam]:
        """Return the prompts and the number of images per prompt."""
        texts = [InputParam(name) for name in PROMPTS[1:]]
        return [
            InputParam("prompt", required=True, description="A prompt, or a list of prompts."),
            *texts,
            InputParam("negative_prompt"),
            InputParam("num_images_per_prompt", default=1),
        ]

    @property
    def intermediate_outputs(self) -> list[OutputParam]:
        """Return one prompt per image, and the values that the prompts state."""
        names = (*PROMPTS, "negative_prompt", "num_images_per_prompt")
        return [
            *(OutputParam(name) for name in names),
            OutputParam("assigned_values", description="Value of each image, None if unchanged."),
            OutputParam("reasons", description="Why a prompt was left unchanged, or None."),
        ]

    def __call__(self, components: Any, state: Any) -> tuple[Any, Any]:
        """Replace the prompts in the state with balanced ones."""
        call = self.get_block_state(state)
        count = 1 if call.num_images_per_prompt is None else call.num_images_per_prompt
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidInputError(
                f"num_images_per_prompt: expected a whole number of at least 1, got {count!r:.40}"
            )
        is_single = isinstance(call.prompt, str) and count == 1
        texts = {}
        for name in PROMPTS:
            value = getattr(call, name)
            if value is not None:
                texts[name] = [text for text in _listed(value, name) for _ in range(count)]
        lengths = {name: len(column) for name, column in texts.items()}
        if len(set(lengths.values())) > 1:
            raise InvalidInputError(
                f"got different numbers of prompts, {lengths}; expected the same number for each"
            )
        joined = [NEXT_TEXT.join(image) for image in zip(*texts.values(), strict=True)]
        balanced = self._balancer.next(joined)
        columns = zip(*(text.split(NEXT_TEXT) for text in balanced.prompts), strict=True)
        for name, column in zip(texts, columns, strict=True):
            setattr(call, name, column[0] if is_single else list(column))
        if isinstance(call.negative_prompt, list) and count > 1:
            call.negative_prompt = [text for text in call.negative_prompt for _ in range(count)]
        # There is now a separate prompt for each image.
        call.num_images_per_prompt = 1
        call.assigned_values = list(balanced.values)
        call.reasons = list(balanced.reasons)
        self.set_block_state(state, call)
        return components, state


def _listed(value: object, name: str) -> list[str]:
    """Return one or more prompts as a list.

    Raises:
        InvalidInputError: If the list is empty, or contains anything but strings.
    """
    prompts = list(value) if isinstance(value, list | tuple) else [value]
    if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        raise InvalidInputError(
            f"{name}: expected a prompt or a list of one or more prompts, got {value!r:.60}"
        )
    return cast("list[str]", prompts)

"""The diffusers pipelines that make videos."""

from __future__ import annotations

from vldebias.hosts.families_image import KANDINSKY5
from vldebias.hosts.family import Family, Part

__all__ = ["VIDEO_FAMILIES"]

VIDEO_FAMILIES: tuple[Family, ...] = (
    Family(
        name="Wan",
        pipelines=(
            *("WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline", "WanVACEPipeline"),
            *("WanAnimatePipeline", "AnyFlowPipeline", "AnyFlowFARPipeline", "ChronoEditPipeline", "LucyEditPipeline"),
            *("SkyReelsV2Pipeline", "SkyReelsV2ImageToVideoPipeline", "SkyReelsV2DiffusionForcingPipeline"),
            "SkyReelsV2DiffusionForcingImageToVideoPipeline",
            "SkyReelsV2DiffusionForcingVideoToVideoPipeline",
            *("HeliosPipeline", "HeliosPyramidPipeline"),
        ),
        parts=(Part(role="sequence", index=0, negative=1, read_by="condition_embedder.text_embedder.linear_1"),),
    ),
    Family(
        name="CogVideoX",
        pipelines=(
            *("CogVideoXPipeline", "CogVideoXImageToVideoPipeline", "CogVideoXVideoToVideoPipeline"),
            *("CogVideoXFunControlPipeline", "ConsisIDPipeline"),
        ),
        parts=(Part(role="sequence", index=0, negative=1, read_by="patch_embed.text_proj"),),
    ),
    Family(
        name="Cosmos",
        pipelines=(
            *("CosmosTextToWorldPipeline", "CosmosVideoToWorldPipeline"),
            *("Cosmos2TextToImagePipeline", "Cosmos2VideoToWorldPipeline"),
        ),
        parts=(Part(role="sequence", index=0, negative=1),),
    ),
    Family(
        name="LTX",
        pipelines=(
            *("LTXPipeline", "LTXImageToVideoPipeline", "LTXConditionPipeline"),
            "LTXI2VLongMultiPromptPipeline",
        ),
        parts=(Part(role="sequence", index=0, mask=1, negative=2, read_by="caption_projection.linear_1"),),
    ),
    Family(
        name="LTX2",
        pipelines=(
            *("LTX2Pipeline", "LTX2ImageToVideoPipeline", "LTX2ConditionPipeline", "LTX2InContextPipeline"),
            "LTX2HDRPipeline",
        ),
        # All hidden states of the encoder side by side, padded on the left, normalised before they are read.
        parts=(Part(role="sequence", index=0, mask=1, negative=2),),
    ),
    Family(
        name="LTX2DFR",
        pipelines=("LTX2DFRPipeline", "LTX2DFRTemporalRefinePipeline"),
        parts=(Part(role="sequence", index=0, mask=1),),
    ),
    Family(
        name="Mochi",
        pipelines=("MochiPipeline",),
        parts=(Part(role="sequence", index=0, mask=1, negative=2),),
    ),
    Family(
        name="Allegro",
        pipelines=("AllegroPipeline",),
        parts=(Part(role="sequence", index=0, mask=1, negative=2, read_by="caption_projection.linear_1"),),
    ),
    Family(
        name="HunyuanVideo",
        pipelines=("HunyuanVideoPipeline", "HunyuanVideoFramepackPipeline", "HunyuanSkyreelsImageToVideoPipeline"),
        # The sequence is read twice, by tokens and by their mean.
        parts=(
            Part(role="sequence", index=0, mask=2, template=True),
            Part(role="pooled", index=1, encoders=("text_encoder_2",), given="pooled_prompt_embeds"),
        ),
        twice=True,
    ),
    Family(
        name="HunyuanVideo15",
        pipelines=("HunyuanVideo15Pipeline", "HunyuanVideo15ImageToVideoPipeline"),
        # As in HunyuanImage, the text in quotation marks is left alone.
        parts=(Part(role="sequence", index=0, mask=1, template=True),),
        twice=True,
    ),
    Family(
        name="Kandinsky5Video",
        pipelines=("Kandinsky5T2VPipeline", "Kandinsky5I2VPipeline"),
        parts=KANDINSKY5,
        twice=True,
    ),
    Family(
        name="EasyAnimate",
        pipelines=("EasyAnimatePipeline", "EasyAnimateControlPipeline", "EasyAnimateInpaintPipeline"),
        parts=(Part(role="sequence", index=0, negative=1, mask=2, template=True),),
    ),
    Family(
        name="SanaVideo",
        pipelines=("SanaVideoPipeline", "SanaImageToVideoPipeline"),
        parts=(Part(role="sequence", index=0, mask=1, negative=2, read_by="caption_projection.linear_1"),),
    ),
)

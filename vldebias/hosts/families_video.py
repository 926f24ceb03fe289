"""The diffusers pipelines that make videos."""

from __future__ import annotations

from vldebias.hosts.families_image import KANDINSKY5, NORM, REFINER
from vldebias.hosts.family import CROSS_ATTENTION, Family, Part

VIDEO_FAMILIES: tuple[Family, ...] = (
    Family.of(
        "Wan",
        "Wan WanImageToVideo WanVideoToVideo WanVACE WanAnimate AnyFlow AnyFlowFAR ChronoEdit LucyEdit SkyReelsV2 "
        "SkyReelsV2ImageToVideo SkyReelsV2DiffusionForcing SkyReelsV2DiffusionForcingImageToVideo "
        "SkyReelsV2DiffusionForcingVideoToVideo Helios HeliosPyramid",
        Part(negative=1, read_by="condition_embedder.text_embedder.linear_1"),
    ),
    Family.of(
        "CogVideoX",
        "CogVideoX CogVideoXImageToVideo CogVideoXVideoToVideo CogVideoXFunControl ConsisID",
        Part(negative=1, read_by="patch_embed.text_proj"),
    ),
    Family.of("Latte", "Latte", Part(negative=1, read_by="caption_projection.linear_1")),
    Family.of(
        "MotifVideo",
        "MotifVideo MotifVideoImage2Video",
        Part(negative=1, mask=2, read_by="context_embedder.linear_1"),
    ),
    Family.of(
        "Cosmos",
        "CosmosTextToWorld CosmosVideoToWorld Cosmos2TextToImage Cosmos2VideoToWorld",
        Part(negative=1, read_by=CROSS_ATTENTION),
    ),
    Family.of(
        "LTX",
        "LTX LTXImageToVideo LTXCondition LTXI2VLongMultiPrompt",
        Part(mask=1, negative=2, read_by="caption_projection.linear_1"),
    ),
    # All hidden states of the encoder side by side, padded on the left.
    Family.of(
        "LTX2",
        "LTX2 LTX2ImageToVideo LTX2Condition LTX2InContext LTX2HDR",
        Part(mask=1, negative=2, unmerged=NORM),
    ),
    Family.of("LTX2DFR", "LTX2DFR LTX2DFRTemporalRefine", Part(mask=1, unmerged=NORM)),
    Family.of(
        "Mochi",
        "Mochi",
        Part(
            mask=1,
            negative=2,
            read_by=("time_embed.pooler.to_kv", "time_embed.pooler.to_q", "time_embed.caption_proj"),
        ),
    ),
    Family.of("Allegro", "Allegro", Part(mask=1, negative=2, read_by="caption_projection.linear_1")),
    Family.of(
        "HunyuanVideo",
        "HunyuanVideo HunyuanVideoFramepack HunyuanSkyreelsImageToVideo",
        Part(mask=2, template=True, read_by=REFINER),
        Part(
            role="pooled",
            index=1,
            encoders=("text_encoder_2",),
            given="pooled_prompt_embeds",
            read_by="time_text_embed.text_embedder.linear_1",
        ),
        twice=True,
    ),
    # As in HunyuanImage, the text in quotation marks is left alone.
    Family.of(
        "HunyuanVideo15",
        "HunyuanVideo15 HunyuanVideo15ImageToVideo",
        Part(mask=1, template=True, read_by=REFINER),
        twice=True,
    ),
    Family.of("Kandinsky5Video", "Kandinsky5T2V Kandinsky5I2V", *KANDINSKY5, twice=True),
    Family.of(
        "EasyAnimate",
        "EasyAnimate EasyAnimateControl EasyAnimateInpaint",
        Part(negative=1, mask=2, template=True, read_by="text_proj"),
    ),
    Family.of(
        "SanaVideo",
        "SanaVideo SanaImageToVideo",
        Part(mask=1, negative=2, read_by="caption_projection.linear_1"),
    ),
)

"""The diffusers pipelines that draw images."""

from __future__ import annotations

from vldebias.hosts.family import CROSS_ATTENTION, Family, Part

__all__ = ["IMAGE_FAMILIES", "KANDINSKY5"]

_CLIPS = ("text_encoder", "text_encoder_2")
_CLIP_TOKENIZERS = ("tokenizer", "tokenizer_2")

KANDINSKY5 = (
    Part(role="sequence", index=0, template=True, given="prompt_embeds_qwen"),
    Part(role="pooled", index=1, encoders=("text_encoder_2",), given="prompt_embeds_clip"),
)

IMAGE_FAMILIES: tuple[Family, ...] = (
    Family(
        name="StableDiffusion",
        pipelines=(
            *("StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline"),
            *("StableDiffusionDepth2ImgPipeline", "StableDiffusionUpscalePipeline", "StableDiffusionAdapterPipeline"),
            *("StableDiffusionControlNetPipeline", "StableDiffusionControlNetImg2ImgPipeline"),
            *("StableDiffusionControlNetInpaintPipeline", "StableUnCLIPImg2ImgPipeline"),
            *("StableDiffusionPAGPipeline", "StableDiffusionPAGImg2ImgPipeline", "StableDiffusionPAGInpaintPipeline"),
            *("StableDiffusionControlNetPAGPipeline", "StableDiffusionControlNetPAGInpaintPipeline"),
            *("LatentConsistencyModelPipeline", "LatentConsistencyModelImg2ImgPipeline"),
            *("AnimateDiffPipeline", "AnimateDiffControlNetPipeline", "AnimateDiffSparseControlNetPipeline"),
            *("AnimateDiffVideoToVideoPipeline", "AnimateDiffVideoToVideoControlNetPipeline", "AnimateDiffPAGPipeline"),
        ),
        parts=(Part(role="sequence", index=0, negative=1, layered=True, read_by=CROSS_ATTENTION),),
    ),
    Family(
        name="StableDiffusionXL",
        pipelines=(
            *("StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline"),
            *("StableDiffusionXLInstructPix2PixPipeline", "StableDiffusionXLAdapterPipeline"),
            *("StableDiffusionXLControlNetPipeline", "StableDiffusionXLControlNetImg2ImgPipeline"),
            *("StableDiffusionXLControlNetInpaintPipeline", "StableDiffusionXLControlNetUnionPipeline"),
            *("StableDiffusionXLControlNetUnionImg2ImgPipeline", "StableDiffusionXLControlNetUnionInpaintPipeline"),
            *("StableDiffusionXLPAGPipeline", "StableDiffusionXLPAGImg2ImgPipeline"),
            *("StableDiffusionXLPAGInpaintPipeline", "StableDiffusionXLControlNetPAGPipeline"),
            *("StableDiffusionXLControlNetPAGImg2ImgPipeline", "AnimateDiffSDXLPipeline"),
        ),
        parts=(
            Part(
                role="sequence",
                index=0,
                negative=1,
                encoders=_CLIPS,
                tokenizers=_CLIP_TOKENIZERS,
                layered=True,
                read_by=CROSS_ATTENTION,
            ),
            Part(
                role="pooled",
                index=2,
                negative=3,
                encoders=("text_encoder_2",),
                given="pooled_prompt_embeds",
                read_by="add_embedding.linear_1",
                leading=True,
            ),
        ),
        texts=("prompt", "prompt_2"),
    ),
    Family(
        name="StableDiffusion3",
        pipelines=(
            *("StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline", "StableDiffusion3InpaintPipeline"),
            *("StableDiffusion3ControlNetPipeline", "StableDiffusion3ControlNetInpaintingPipeline"),
            *("StableDiffusion3PAGPipeline", "StableDiffusion3PAGImg2ImgPipeline"),
        ),
        # The CLIP tokens, padded with zeros to the width of T5, stand before the T5 tokens. One layer
        # (context_embedder) reads both, so that its weights cannot hold the two projections.
        parts=(
            Part(role="sequence.clip", index=0, negative=1, encoders=_CLIPS, stop="tokenizer_max_length", layered=True),
            Part(
                role="sequence.t5",
                index=0,
                negative=1,
                encoders=("text_encoder_3",),
                tokenizers=("tokenizer_3",),
                start="tokenizer_max_length",
                optional=True,
            ),
            Part(
                role="pooled",
                index=2,
                negative=3,
                encoders=_CLIPS,
                read_by="time_text_embed.text_embedder.linear_1",
            ),
        ),
        texts=("prompt", "prompt_2", "prompt_3"),
    ),
    Family(
        name="Flux",
        pipelines=(
            *("FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline", "FluxFillPipeline"),
            *("FluxControlPipeline", "FluxControlImg2ImgPipeline", "FluxControlInpaintPipeline"),
            *("FluxControlNetPipeline", "FluxControlNetImg2ImgPipeline", "FluxControlNetInpaintPipeline"),
            *("FluxKontextPipeline", "FluxKontextInpaintPipeline", "FluxPriorReduxPipeline"),
        ),
        parts=(
            Part(
                role="sequence",
                index=0,
                encoders=("text_encoder_2",),
                tokenizers=("tokenizer_2",),
                read_by="context_embedder",
            ),
            Part(role="pooled", index=1, read_by="time_text_embed.text_embedder.linear_1"),
        ),
        texts=("prompt", "prompt_2"),
        twice=True,
    ),
    Family(
        name="Chroma",
        pipelines=("ChromaPipeline", "ChromaImg2ImgPipeline", "ChromaInpaintPipeline"),
        parts=(Part(role="sequence", index=0, negative=3, read_by="context_embedder"),),
    ),
    Family(
        name="PixArt",
        pipelines=("PixArtAlphaPipeline", "PixArtSigmaPipeline", "PixArtSigmaPAGPipeline"),
        parts=(Part(role="sequence", index=0, mask=1, negative=2, read_by="caption_projection.linear_1"),),
    ),
    Family(
        name="Sana",
        pipelines=("SanaPipeline", "SanaControlNetPipeline", "SanaPAGPipeline"),
        parts=(Part(role="sequence", index=0, mask=1, negative=2, read_by="caption_projection.linear_1"),),
    ),
    Family(
        name="SanaSprint",
        pipelines=("SanaSprintPipeline", "SanaSprintImg2ImgPipeline"),
        parts=(Part(role="sequence", index=0, mask=1, read_by="caption_projection.linear_1"),),
    ),
    Family(
        name="AuraFlow",
        pipelines=("AuraFlowPipeline",),
        parts=(Part(role="sequence", index=0, negative=2, read_by="context_embedder"),),
    ),
    Family(
        name="DeepFloydIF",
        pipelines=(
            *("IFPipeline", "IFImg2ImgPipeline", "IFInpaintingPipeline", "IFSuperResolutionPipeline"),
            *("IFImg2ImgSuperResolutionPipeline", "IFInpaintingSuperResolutionPipeline"),
        ),
        parts=(Part(role="sequence", index=0, negative=1),),
    ),
    Family(
        name="Kandinsky3",
        pipelines=("Kandinsky3Pipeline", "Kandinsky3Img2ImgPipeline"),
        parts=(Part(role="sequence", index=0, negative=1, mask=2),),
    ),
    Family(
        name="Kandinsky5Image",
        pipelines=("Kandinsky5T2IPipeline",),
        parts=KANDINSKY5,
        twice=True,
    ),
    Family(
        name="Kolors",
        pipelines=("KolorsPipeline", "KolorsImg2ImgPipeline", "KolorsPAGPipeline"),
        parts=(
            Part(role="sequence", index=0, negative=1, template=True, read_by="encoder_hid_proj"),
            Part(
                role="pooled",
                index=2,
                negative=3,
                given="pooled_prompt_embeds",
                read_by="add_embedding.linear_1",
                leading=True,
            ),
        ),
    ),
    Family(
        name="HunyuanDiT",
        pipelines=("HunyuanDiTPipeline", "HunyuanDiTControlNetPipeline", "HunyuanDiTPAGPipeline"),
        # Called once per encoder. Their two sequences are joined and padded again before they are read.
        parts=(
            Part(role="sequence.bert", index=0, negative=1, mask=2, when=("text_encoder_index", 0)),
            Part(
                role="sequence.t5",
                index=0,
                negative=1,
                mask=2,
                encoders=("text_encoder_2",),
                tokenizers=("tokenizer_2",),
                when=("text_encoder_index", 1),
            ),
        ),
    ),
    Family(
        name="Lumina",
        pipelines=("LuminaPipeline",),
        parts=(Part(role="sequence", index=0, mask=1, negative=2),),
    ),
    Family(
        name="Lumina2",
        pipelines=("Lumina2Pipeline",),
        parts=(Part(role="sequence", index=0, mask=1, negative=2),),
    ),
    Family(
        name="PRX",
        pipelines=("PRXPipeline", "PRXPixelPipeline"),
        parts=(Part(role="sequence", index=0, mask=1, negative=2),),
    ),
    Family(
        name="CogView3Plus",
        pipelines=("CogView3PlusPipeline",),
        parts=(Part(role="sequence", index=0, negative=1, read_by="patch_embed.text_proj"),),
    ),
    Family(
        name="CogView4",
        pipelines=("CogView4Pipeline", "CogView4ControlPipeline"),
        parts=(Part(role="sequence", index=0, negative=1, template=True, read_by="patch_embed.text_proj"),),
    ),
    Family(
        name="HiDream",
        pipelines=("HiDreamImagePipeline",),
        parts=(
            Part(
                role="sequence.t5",
                index=0,
                negative=1,
                encoders=("text_encoder_3",),
                tokenizers=("tokenizer_3",),
                given="prompt_embeds_t5",
            ),
            Part(
                role="sequence.llama",
                index=2,
                negative=3,
                template=True,
                stack=0,
                encoders=("text_encoder_4",),
                tokenizers=("tokenizer_4",),
                given="prompt_embeds_llama3",
            ),
            Part(role="pooled", index=4, negative=5, encoders=_CLIPS, given="pooled_prompt_embeds"),
        ),
        texts=("prompt", "prompt_2", "prompt_3", "prompt_4"),
    ),
    Family(
        name="Bria",
        pipelines=("BriaPipeline",),
        parts=(Part(role="sequence", index=0, negative=1, read_by="context_embedder"),),
    ),
    Family(
        name="BriaFibo",
        pipelines=("BriaFiboPipeline", "BriaFiboEditPipeline"),
        parts=(
            Part(role="sequence", index=0, negative=1, mask=3, template=True),
            Part(role="layers", index=5, negative=6, mask=3, template=True, stack=0, given="prompt_layers"),
        ),
    ),
    Family(
        name="OvisImage",
        pipelines=("OvisImagePipeline",),
        parts=(Part(role="sequence", index=0, negative=1, template=True),),
    ),
    Family(
        name="ZImage",
        pipelines=(
            *("ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline"),
            *("ZImageControlNetPipeline", "ZImageControlNetInpaintPipeline"),
        ),
        parts=(Part(role="sequence", index=0, negative=1, template=True),),
    ),
    Family(
        name="ZImageOmni",
        pipelines=("ZImageOmniPipeline",),
        parts=(Part(role="sequence", index=0, negative=1, template=True),),
    ),
    Family(
        name="Flux2",
        pipelines=("Flux2Pipeline",),
        parts=(Part(role="sequence", index=0, template=True, read_by="context_embedder"),),
    ),
    Family(
        name="Flux2Klein",
        pipelines=("Flux2KleinPipeline", "Flux2KleinInpaintPipeline", "Flux2KleinKVPipeline"),
        parts=(Part(role="sequence", index=0, template=True, read_by="context_embedder"),),
        twice=True,
    ),
    Family(
        name="QwenImage",
        pipelines=(
            *("QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"),
            *("QwenImageControlNetPipeline", "QwenImageControlNetInpaintPipeline", "QwenImageLayeredPipeline"),
        ),
        parts=(Part(role="sequence", index=0, mask=1, template=True),),
        twice=True,
    ),
    Family(
        name="QwenImageEdit",
        pipelines=("QwenImageEditPipeline", "QwenImageEditInpaintPipeline"),
        parts=(Part(role="sequence", index=0, mask=1, template=True, beside_image=True),),
        twice=True,
    ),
    Family(
        name="QwenImageEditPlus",
        pipelines=("QwenImageEditPlusPipeline",),
        parts=(Part(role="sequence", index=0, mask=1, template=True, beside_image=True),),
        twice=True,
    ),
    Family(
        name="HunyuanImage",
        pipelines=("HunyuanImagePipeline",),
        # The second sequence is of the text in quotation marks, to be written into the image: left alone.
        parts=(Part(role="sequence", index=0, mask=1, template=True),),
        twice=True,
    ),
    Family(
        name="HunyuanImageRefiner",
        pipelines=("HunyuanImageRefinerPipeline",),
        parts=(Part(role="sequence", index=0, mask=1, template=True),),
        twice=True,
    ),
)

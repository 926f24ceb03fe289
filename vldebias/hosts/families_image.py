"""The diffusers pipelines that draw images."""

from __future__ import annotations

from typing import Any

from vldebias.hosts.family import CROSS_ATTENTION, Family, Part

NORM = "a norm stands before the layer that reads it"
LAYERS = "its layers are projected as one vector and read one by one"
_TWO = "one layer reads its tokens and those of another encoder"

_CLIPS: dict[str, Any] = {"encoders": ("text_encoder", "text_encoder_2"), "tokenizers": ("tokenizer", "tokenizer_2")}
_SECOND: dict[str, Any] = {"encoders": ("text_encoder_2",), "tokenizers": ("tokenizer_2",)}
_THIRD: dict[str, Any] = {"encoders": ("text_encoder_3",), "tokenizers": ("tokenizer_3",)}
_POOLED_TEXT = "time_text_embed.text_embedder.linear_1"
_SIZED: dict[str, Any] = {"given": "pooled_prompt_embeds", "read_by": "add_embedding.linear_1", "leading": True}
_HIDREAM: dict[str, Any] = {"given": "pooled_prompt_embeds", "read_by": "p_embedder.pooled_embedder.linear_1"}

REFINER = ("context_embedder.proj_in", "context_embedder.time_text_embed.text_embedder.linear_1")
"""Of a refiner of tokens, which reads them, and their mean."""

KANDINSKY5 = (
    Part(template=True, given="prompt_embeds_qwen", read_by="text_embeddings.in_layer"),
    Part(role="pooled", index=1, **_SECOND, given="prompt_embeds_clip", read_by="pooled_text_embeddings.in_layer"),
)

IMAGE_FAMILIES: tuple[Family, ...] = (
    Family.of(
        "StableDiffusion",
        "StableDiffusion StableDiffusionImg2Img StableDiffusionInpaint StableDiffusionDepth2Img StableDiffusionUpscale "
        "StableDiffusionAdapter StableDiffusionControlNet StableDiffusionControlNetImg2Img "
        "StableDiffusionControlNetInpaint StableDiffusionControlNetXS StableUnCLIPImg2Img StableDiffusionPAG "
        "StableDiffusionPAGImg2Img StableDiffusionPAGInpaint StableDiffusionControlNetPAG "
        "StableDiffusionControlNetPAGInpaint StableDiffusionAttendAndExcite StableDiffusionLDM3D "
        "StableDiffusionPanorama StableDiffusionParadigms StableDiffusionSAG LatentConsistencyModel "
        "LatentConsistencyModelImg2Img AnimateDiff AnimateDiffControlNet AnimateDiffSparseControlNet "
        "AnimateDiffVideoToVideo AnimateDiffVideoToVideoControlNet AnimateDiffPAG PIA TextToVideoSD VideoToVideoSD "
        "TextToVideoZero",
        Part(negative=1, layered=True, read_by=CROSS_ATTENTION),
    ),
    Family.of(
        "StableDiffusionXL",
        "StableDiffusionXL StableDiffusionXLImg2Img StableDiffusionXLInpaint StableDiffusionXLInstructPix2Pix "
        "StableDiffusionXLAdapter StableDiffusionXLControlNet StableDiffusionXLControlNetImg2Img "
        "StableDiffusionXLControlNetInpaint StableDiffusionXLControlNetUnion StableDiffusionXLControlNetUnionImg2Img "
        "StableDiffusionXLControlNetUnionInpaint StableDiffusionXLControlNetXS StableDiffusionXLPAG "
        "StableDiffusionXLPAGImg2Img StableDiffusionXLPAGInpaint StableDiffusionXLControlNetPAG "
        "StableDiffusionXLControlNetPAGImg2Img AnimateDiffSDXL TextToVideoZeroSDXL",
        Part(negative=1, **_CLIPS, layered=True, read_by=CROSS_ATTENTION),
        Part(role="pooled", index=2, negative=3, encoders=("text_encoder_2",), **_SIZED),
        texts=("prompt", "prompt_2"),
    ),
    Family.of(
        "StableDiffusion3",
        "StableDiffusion3 StableDiffusion3Img2Img StableDiffusion3Inpaint StableDiffusion3ControlNet "
        "StableDiffusion3ControlNetInpainting StableDiffusion3PAG StableDiffusion3PAGImg2Img",
        # The CLIP tokens, padded with zeros to the width of T5, stand before the T5 tokens.
        Part(role="sequence.clip", negative=1, **_CLIPS, stop="tokenizer_max_length", layered=True, unmerged=_TWO),
        Part(role="sequence.t5", negative=1, **_THIRD, start="tokenizer_max_length", optional=True, unmerged=_TWO),
        Part(role="pooled", index=2, negative=3, **_CLIPS, read_by=_POOLED_TEXT),
        texts=("prompt", "prompt_2", "prompt_3"),
    ),
    Family.of(
        "Flux",
        "Flux FluxImg2Img FluxInpaint FluxFill FluxControl FluxControlImg2Img FluxControlInpaint FluxControlNet "
        "FluxControlNetImg2Img FluxControlNetInpaint FluxKontext FluxKontextInpaint FluxPriorRedux",
        Part(**_SECOND, read_by="context_embedder"),
        Part(role="pooled", index=1, read_by=_POOLED_TEXT),
        texts=("prompt", "prompt_2"),
        twice=True,
    ),
    Family.of(
        "Chroma",
        "Chroma ChromaImg2Img ChromaInpaint",
        Part(negative=3, read_by="context_embedder"),
        masked=True,
    ),
    Family.of(
        "PixArt",
        "PixArtAlpha PixArtSigma PixArtSigmaPAG",
        Part(mask=1, negative=2, read_by="caption_projection.linear_1"),
    ),
    Family.of("Sana", "Sana SanaControlNet SanaPAG", Part(mask=1, negative=2, read_by="caption_projection.linear_1")),
    Family.of("SanaSprint", "SanaSprint SanaSprintImg2Img", Part(mask=1, read_by="caption_projection.linear_1")),
    Family.of("AuraFlow", "AuraFlow", Part(negative=2, read_by="context_embedder")),
    Family.of(
        "DeepFloydIF",
        "IF IFImg2Img IFInpainting IFSuperResolution IFImg2ImgSuperResolution IFInpaintingSuperResolution",
        Part(negative=1, unmerged=NORM),
    ),
    Family.of(
        "Kandinsky3",
        "Kandinsky3 Kandinsky3Img2Img",
        Part(negative=1, mask=2, read_by="encoder_hid_proj.projection_linear"),
    ),
    Family.of("Kandinsky5Image", "Kandinsky5T2I", *KANDINSKY5, twice=True),
    Family.of(
        "Kolors",
        "Kolors KolorsImg2Img KolorsPAG",
        Part(negative=1, template=True, read_by="encoder_hid_proj"),
        Part(role="pooled", index=2, negative=3, **_SIZED),
    ),
    Family.of(
        "HunyuanDiT",
        "HunyuanDiT HunyuanDiTControlNet HunyuanDiTPAG",
        # Called once per encoder. Their two sequences are joined and padded again before they are read.
        Part(role="sequence.bert", negative=1, mask=2, when=("text_encoder_index", 0), unmerged=_TWO),
        Part(role="sequence.t5", negative=1, mask=2, **_SECOND, when=("text_encoder_index", 1), unmerged=_TWO),
    ),
    Family.of("Lumina", "Lumina", Part(mask=1, negative=2, unmerged=NORM)),
    Family.of("Lumina2", "Lumina2", Part(mask=1, negative=2, unmerged=NORM)),
    Family.of("PRX", "PRX PRXPixel", Part(mask=1, negative=2, read_by="txt_in")),
    Family.of("CogView3Plus", "CogView3Plus", Part(negative=1, read_by="patch_embed.text_proj")),
    Family.of("CogView4", "CogView4 CogView4Control", Part(negative=1, template=True, read_by="patch_embed.text_proj")),
    Family.of(
        "HiDream",
        "HiDreamImage",
        Part(
            role="sequence.t5",
            negative=1,
            **_THIRD,
            given="prompt_embeds_t5",
            unmerged="its layer is named by its place among those of the other encoder",
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
            unmerged=LAYERS,
        ),
        Part(role="pooled", index=4, negative=5, **_CLIPS, **_HIDREAM),
        texts=("prompt", "prompt_2", "prompt_3", "prompt_4"),
    ),
    Family.of("Bria", "Bria", Part(negative=1, read_by="context_embedder")),
    Family.of(
        "BriaFibo",
        "BriaFibo BriaFiboEdit",
        Part(negative=1, mask=3, template=True, read_by="context_embedder"),
        Part(
            role="layers",
            index=5,
            negative=6,
            mask=3,
            template=True,
            stack=0,
            given="prompt_layers",
            unmerged=LAYERS,
        ),
    ),
    Family.of("OvisImage", "OvisImage", Part(negative=1, template=True, unmerged=NORM)),
    Family.of(
        "ZImage",
        "ZImage ZImageImg2Img ZImageInpaint ZImageControlNet ZImageControlNetInpaint",
        Part(negative=1, template=True, unmerged=NORM),
    ),
    Family.of("ZImageOmni", "ZImageOmni", Part(negative=1, template=True, unmerged=NORM)),
    Family.of("Flux2", "Flux2", Part(template=True, read_by="context_embedder")),
    Family.of(
        "Flux2Klein",
        "Flux2Klein Flux2KleinInpaint Flux2KleinKV",
        Part(template=True, read_by="context_embedder"),
        twice=True,
    ),
    Family.of(
        "QwenImage",
        "QwenImage QwenImageImg2Img QwenImageInpaint QwenImageControlNet QwenImageControlNetInpaint QwenImageLayered",
        Part(mask=1, template=True, unmerged=NORM),
        twice=True,
    ),
    Family.of(
        "QwenImageEdit",
        "QwenImageEdit QwenImageEditInpaint",
        Part(mask=1, template=True, beside_image=True, unmerged=NORM),
        twice=True,
    ),
    Family.of(
        "QwenImageEditPlus",
        "QwenImageEditPlus",
        Part(mask=1, template=True, beside_image=True, unmerged=NORM),
        twice=True,
    ),
    # Twelve layers of each token, which the denoiser fuses.
    Family.of("Krea2", "Krea2", Part(mask=1, template=True, stack=2, unmerged=LAYERS), twice=True),
    # The second sequence is of the text in quotation marks, to be written into the image: left alone.
    Family.of("HunyuanImage", "HunyuanImage", Part(mask=1, template=True, read_by=REFINER), twice=True),
    Family.of("HunyuanImageRefiner", "HunyuanImageRefiner", Part(mask=1, template=True, read_by=REFINER), twice=True),
)

"""Provide a LLaVA built from a config, for tests of image-text models."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

TEMPLATE = (
    "{% for m in messages %}USER: {% for c in m['content'] %}{% if c['type'] == 'image'"
    " %}<image>\n{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}{% if"
    " add_generation_prompt %} ASSISTANT:{% endif %}"
)


def load_llava() -> tuple[transformers.LlavaForConditionalGeneration, transformers.LlavaProcessor]:
    """Return the parts of a LLaVA with random weights and a tokenizer of single characters."""
    characters = [chr(i) for i in range(32, 127)] + ["\n"]
    vocabulary = {name: i for i, name in enumerate(["<pad>", "<unk>", "<image>", *characters])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )
    small = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    vision = transformers.CLIPVisionConfig(**small, image_size=16, patch_size=8)
    text = transformers.LlamaConfig(**small, vocab_size=len(vocabulary))
    torch.manual_seed(0)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=2)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.3)
    pixels = transformers.CLIPImageProcessor(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )
    processor = transformers.LlavaProcessor(
        pixels,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )
    return model, processor

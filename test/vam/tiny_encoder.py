"""A Qwen2.5-VL of a few thousand weights with a tokenizer of a few words, made in code."""

from pathlib import Path

import torch

LAYERS, WIDTH = 3, 16
EMBED_DIM = LAYERS * WIDTH

# As of Qwen2.5-VL, text alone.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}{{ content['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
)
WORDS = (
    '<|endoftext|> <|im_start|> <|im_end|> <unk> system user You are a helpful assistant who will '
    'provide prompts to an image generator . put the red block into bin hand over towel'
).split()


def save_tiny_encoder(folder: Path, seed: int = 0, pipeline: bool = False) -> Path:
    """Weights, configuration and tokenizer in `folder`, or as a pipeline keeps them apart."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
    )

    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token='<unk>')
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token='<|endoftext|>',
        unk_token='<unk>',
        additional_special_tokens=['<|im_start|>', '<|im_end|>'],
        chat_template=CHAT_TEMPLATE,
    )
    config = Qwen2_5_VLConfig(
        text_config={
            'vocab_size': len(WORDS),
            'hidden_size': WIDTH,
            'intermediate_size': 32,
            'num_hidden_layers': LAYERS,
            'num_attention_heads': 2,
            'num_key_value_heads': 1,
            'max_position_embeddings': 128,
            'rope_parameters': {
                'rope_type': 'default', 'rope_theta': 1e4, 'mrope_section': [1, 1, 2],
            },
            'bos_token_id': 0, 'eos_token_id': 0, 'pad_token_id': 0,
        },
        vision_config={
            'depth': 1, 'hidden_size': 16, 'intermediate_size': 16, 'num_heads': 2,
            'out_hidden_size': WIDTH, 'fullatt_block_indexes': [0],
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
        with torch.no_grad():
            for parameter in model.parameters():  # 0.02 would leave the layers nearly equal
                parameter.normal_(std=0.3)
    model.save_pretrained(folder / 'text_encoder' if pipeline else folder)
    fast.save_pretrained(folder / 'tokenizer' if pipeline else folder)
    return folder

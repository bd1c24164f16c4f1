"""From an instruction to the context of the backbone's cross-attention: the tiny text path.

Legend: b batch, n word, d width. Source: spec section 1 "Text" and "Tiny text path".
The projection is the 2B model's `crossattn_proj`, held here instead of in the transformer so
that it runs once an episode and not in every pass.
"""

from __future__ import annotations

import hashlib
import re

import torch
from torch import nn

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.config import NULL_TEXTS, TextConfig

MAX_INSTRUCTION_CHARACTERS = 2000

_WORD = re.compile(r'\w+|[^\w\s]')


def check_instruction(instruction: str) -> str:
    """`instruction` without surrounding space; raises InputError if empty or too long."""
    if not isinstance(instruction, str) or not instruction.strip():
        raise InputError(
            f'instruction: got {instruction!r}, expected a text; say what the robot should do'
        )
    if len(instruction) > MAX_INSTRUCTION_CHARACTERS:
        raise InputError(
            f'instruction: got {len(instruction)} characters, expected at most '
            f'{MAX_INSTRUCTION_CHARACTERS}; shorten it'
        )
    return instruction.strip()


def check_null_text(option: str) -> str:
    """`option` itself; raises InputError if it is none of NULL_TEXTS."""
    if option not in NULL_TEXTS:
        raise InputError(f"null text: got '{option}', expected one of {', '.join(NULL_TEXTS)}")
    return option


def null_context(option: str, projection: nn.Sequential) -> torch.Tensor:
    """Zeros **before** the projection (paper D.4) or after it, as a context (1, 1, d).

    One word is enough: attention over equal words gives the same output for any number.
    """
    weight = projection[0].weight
    if option == 'zeros_after_projection':
        return weight.new_zeros(1, 1, weight.shape[0])
    return projection(weight.new_zeros(1, 1, weight.shape[1]))


class WordTokenizer:
    """Lower-case words and punctuation to ids; a word outside the vocabulary to a hashed bucket.

    Ids 0..V-1 are the vocabulary, V..V+buckets-1 the buckets. Words after `max_words` are cut.
    """

    def __init__(self, config: TextConfig) -> None:
        self._ids = {word: i for i, word in enumerate(config.vocabulary)}
        self._buckets = config.hash_buckets
        self._max_words = config.max_words
        self.size = len(self._ids) + self._buckets

    def __call__(self, text: str) -> list[int]:
        return [self._id(word) for word in _WORD.findall(text.lower())[: self._max_words]]

    def _id(self, word: str) -> int:
        if word in self._ids:
            return self._ids[word]
        # Not hash(): it differs from process to process.
        digest = hashlib.sha256(word.encode()).digest()
        return len(self._ids) + int.from_bytes(digest[:8], 'big') % self._buckets


class TextConditioning(nn.Module):
    """Instructions to cross-attention context, trained with the backbone."""

    def __init__(self, config: TextConfig, context_dim: int) -> None:
        super().__init__()
        self.tokenizer = WordTokenizer(config)
        self.embedding = nn.Embedding(self.tokenizer.size, config.embed_dim)
        self.position = nn.Embedding(config.max_words, config.embed_dim)
        self.projection = nn.Sequential(nn.Linear(config.embed_dim, context_dim), nn.GELU())

    def forward(self, instruction: str) -> torch.Tensor:
        """Projected context of an instruction, (1, n, d)."""
        device = self.embedding.weight.device
        ids = torch.tensor(self.tokenizer(instruction), device=device)
        positions = torch.arange(len(ids), device=device)
        return self.projection(self.embedding(ids) + self.position(positions))[None]

    def null(self, option: str = 'zeros_before_projection') -> torch.Tensor:
        """Context of no text, (1, 1, d); `option` is one of NULL_TEXTS.

        `empty_prompt` is a place without a word: its position alone, projected.
        Raises InputError for another option.
        """
        if check_null_text(option) != 'empty_prompt':
            return null_context(option, self.projection)
        return self.projection(self.position.weight[None, :1])

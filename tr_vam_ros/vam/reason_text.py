"""From an instruction to cross-attention context by Cosmos-Reason1, a cache and a projection.

Legend: b batch, n token, d width. Source: spec section 1 "Text". The projection is the 2B model's
`crossattn_proj`, held here so that it runs once an instruction and not in every pass.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import nn

from tr_vam_ros.vam.config import TextConfig
from tr_vam_ros.vam.reason_encoder import EncoderSource, loaded_encoder
from tr_vam_ros.vam.text_cache import TextCache, TextWeights
from tr_vam_ros.vam.text_conditioning import check_null_text, null_context

_log = logging.getLogger(__name__)

_PROBE = 4096  # elements that show whether weights have changed since their fingerprint

Embed = Callable[[str], torch.Tensor]  # a prompt to (1, n, embed_dim)
Loader = Callable[[EncoderSource, int, int], AbstractContextManager[Embed]]


class ReasonConditioning(nn.Module):
    """Instructions to cross-attention context; an instruction that the cache knows needs no
    encoder. Otherwise the encoder is loaded, asked once and freed: a minute and 16 GB."""

    def __init__(
        self,
        config: TextConfig,
        context_dim: int,
        *,
        cache: TextCache | None = None,
        encoder: EncoderSource | None = None,
        load: Loader = loaded_encoder,
    ) -> None:
        super().__init__()
        self.projection = nn.Sequential(nn.Linear(config.embed_dim, context_dim), nn.GELU())
        self.places = config.max_words
        self.cache = TextCache() if cache is None else cache
        self.encoder = EncoderSource() if encoder is None else encoder
        self._load = load
        self._encoder_identity = ''
        self._fingerprint = b'', ''  # of the weights that the probe saw

    def forward(self, instruction: str) -> torch.Tensor:
        """Projected context of an instruction, float32 (1, n, d).

        Raises InputError if no cache knows it and the encoder is not to be had.
        """
        context = self._cached(instruction)
        if context is None:
            self.embed([instruction])
            context = self._cached(instruction)
        return context.to(self.projection[0].weight.device, torch.float32)[None]

    def null(self, option: str = 'zeros_before_projection') -> torch.Tensor:
        """Context of no text; `option` is one of NULL_TEXTS.

        (1, 1, d) for zeros; `empty_prompt`, what the encoder says of '', is (1, n, d).
        Raises InputError for another option.
        """
        if check_null_text(option) == 'empty_prompt':
            return self('')
        return null_context(option, self.projection).float()

    def knows(self, instruction: str) -> bool:
        """Whether its context is in the cache."""
        return self._cached(instruction) is not None

    @torch.inference_mode()
    def embed(
        self, instructions: Iterable[str], done: Callable[[str], None] = lambda _instruction: None
    ) -> None:
        """Encode, project and keep instructions, with one load of the encoder for all."""
        weights = self.weights()
        # In float32, so that a context does not depend on the type the weights are held in.
        projection = copy.deepcopy(self.projection).float()
        with self._load(self.encoder, self.places, projection[0].in_features) as encoder:
            for instruction in instructions:
                embedding = encoder(instruction)
                context = projection(embedding.to(projection[0].weight))
                self.cache.put(instruction, weights, context[0])
                done(instruction)

    def load_cache(self, path: str | os.PathLike[str]) -> None:
        """Use the contexts of a checkpoint's own file; raises InputError if it is damaged."""
        made_with = self.cache.load(path)
        if made_with.projection != self.weights().projection:
            _log.warning(
                '%s: was made with another projection and is of no use to these weights; '
                'make it again with `tr-vam embed --into-checkpoint`', path,
            )

    def weights(self) -> TextWeights:
        """What the contexts depend on, as caches name it."""
        if not self._encoder_identity:
            self._encoder_identity = self.encoder.identity()
        weight, bias = self.projection[0].weight.detach(), self.projection[0].bias.detach()
        # Hashing 411 MB takes a second; a few thousand elements tell whether it must be done again.
        flat = weight.reshape(-1)
        probe = flat[:: max(1, len(flat) // _PROBE)].float().cpu().numpy().tobytes()
        probe += bias.float().cpu().numpy().tobytes()
        if self._fingerprint[0] != probe:
            self._fingerprint = probe, fingerprint(weight, bias)
        return TextWeights(self._fingerprint[1], self._encoder_identity, self.places)

    def _cached(self, instruction: str) -> torch.Tensor | None:
        return self.cache.get(instruction, self.weights())


def fingerprint(*tensors: torch.Tensor) -> str:
    """sha256 of shapes and values, whatever device and (wider) dtype they are held in."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        for rows in tensor.detach().split(64):  # the 2B projection is 411 MB
            digest.update(rows.float().cpu().contiguous().numpy())
    return digest.hexdigest()

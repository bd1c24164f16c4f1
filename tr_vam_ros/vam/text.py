"""Which text path a model has."""

from __future__ import annotations

from typing import Any

from tr_vam_ros.vam.config import TextConfig
from tr_vam_ros.vam.reason_text import ReasonConditioning
from tr_vam_ros.vam.text_conditioning import TextConditioning


def make_text(
    config: TextConfig, context_dim: int, **reason: Any
) -> TextConditioning | ReasonConditioning:
    """The module that `config.encoder` names: instruction -> context (1, n, context_dim).

    reason: `cache` and `encoder` of ReasonConditioning; words need neither.
    """
    if config.encoder == 'cosmos_reason1':
        return ReasonConditioning(config, context_dim, **reason)
    return TextConditioning(config, context_dim)

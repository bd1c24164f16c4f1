"""NVIDIA's guardrail for Cosmos, where it is installed (spec section 3b).

The licence of the Cosmos weights ends when their guardrail is bypassed without a substantially
similar one. So whatever decodes video asks it first and shows it what was made.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from tr_vam_ros.errors import InputError

LICENCE_NOTE = (
    "The licence of NVIDIA's Cosmos weights (Open Model License) ends when their guardrail is "
    'bypassed without a substantially similar one. This package decodes video here and nowhere '
    'else; see NOTICE.'
)


class Blocked(InputError):
    """The guardrail refused an instruction or a video."""


class Guardrail:
    """`cosmos_guardrail`'s checker; without the package `is_installed` is false, all passes."""

    def __init__(self, device: str = 'cpu') -> None:
        """Raises InputError if it is installed but cannot start: then nothing may pass."""
        self._checker: Any = None
        self.is_installed = importlib.util.find_spec('cosmos_guardrail') is not None
        if not self.is_installed:
            return
        try:
            from cosmos_guardrail import CosmosSafetyChecker

            self._checker = CosmosSafetyChecker()
            self._checker.to(device)
        except Exception as error:  # any of its many parts and downloads
            raise InputError(
                f'guardrail: cosmos_guardrail is installed and does not start '
                f'({" ".join(str(error).split())[:300]}); get its weights'
            ) from error

    def check_text(self, text: str) -> None:
        """Raises Blocked for an instruction that it refuses."""
        if self._checker is not None and not self._checker.check_text_safety(text):
            raise Blocked(f'instruction {text!r}: refused by the guardrail; choose another')

    def check_video(self, video: np.ndarray) -> np.ndarray:
        """uint8 (t, h, w, 3) as it may be shown, faces blurred; raises Blocked if it may not."""
        if self._checker is None:
            return video
        checked = self._checker.check_video_safety(video)
        if checked is None:
            raise Blocked('imagined video: refused by the guardrail; nothing was written')
        return checked

"""README.md of a checkpoint, as the Hub shows it."""

from __future__ import annotations

from collections.abc import Sequence

from tr_vam_ros import __version__
from tr_vam_ros.vam.config import VamConfig

# NOTICE says the same for the whole package; weights travel without it.
_LICENCES = """\
What binds whoever uses these weights depends on what they were made from:

* made from NVIDIA Cosmos weights: NVIDIA's Open Model License, which ends when a guardrail is
  bypassed without a substantially similar one; this package reads latent features and decodes no
  video by default;
* an action head made from pi0 or pi0.5: Google's Gemma terms;
* made from data sets: their owners' licences (LIBERO's assets keep theirs);
* what is random or trained from nothing, and the package: Apache-2.0.
"""


def model_card(config: VamConfig, parameters: int, sources: Sequence[str]) -> str:
    """Markdown with the Hub's YAML front matter; `sources` say where the weights come from."""
    lines = '\n'.join(f'* {source}' for source in sources) or '* not recorded'
    transformer, head = config.transformer, config.head
    return f"""\
---
license: other
license_name: see-licences-below
library_name: tr_vam_ros
pipeline_tag: robotics
tags:
- robotics
- video-action-model
---

# {config.name}

A video-action model with Temporal-Ratio-adaptive guidance (arXiv 2607.08127, an independent
implementation), saved by tr_vam_ros {__version__}: {parameters / 1e6:.1f} million parameters.

* video transformer: {transformer.num_layers} blocks of width {transformer.width}; features after \
block {config.video.feature_block}
* action head: {head.layers} layers of width {head.width}; {head.horizon} rows of \
{head.action_dim} numbers
* image: {config.image.width} x {config.image.height}

```python
from tr_vam_ros.vam import VideoActionPolicy

policy = VideoActionPolicy.from_pretrained(folder_or_hub_id, revision=commit)
```

`config.json` has the sizes and options, `statistics.json` what normalises proprioception and
actions, the safetensors files the weights. No file here needs pickle.

## Where the weights come from

{lines}

## Licences

{_LICENCES}"""

"""The action head from the action expert of pi0 or pi0.5, where shapes fit.

Names are those of openpi's PyTorch models (`models_pytorch/pi0_pytorch.py`, `gemma_pytorch.py`);
LeRobot's (`policies/pi0`, `policies/pi05`) have `model.` before them. Both experts are the Gemma
transformer that this head is (spec section 1), with these differences:

* pi0.5 modulates its norms by the timestep, as here, in the order scale, shift, gate (here shift,
  scale, gate); its norms have no weight of their own, which is a weight of 0 here.
* pi0 has plain norms, and mixes the timestep into the action tokens instead. Its norms' weights
  are taken and the modulation starts as none: no shift, no scale, gate 1.
* pi0.5 reads the state as words; only pi0 has a projection of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch

from tr_vam_ros.assembly.report import Fresh, NotTaken, Report, Taken
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.action_head import ActionHead
from tr_vam_ros.vam.head_layers import AdaptiveRmsNorm
from tr_vam_ros.vam.tensor_files import TensorFiles

_EXPERT = 'paligemma_with_expert.gemma_expert.model.'
_LAYER = re.compile(re.escape(_EXPERT) + r'layers\.(\d+)\.(.+)')

_IN_LAYER = {
    'self_attn.q_proj.weight': 'query.weight',
    'self_attn.k_proj.weight': 'key.weight',
    'self_attn.v_proj.weight': 'value.weight',
    'self_attn.o_proj.weight': 'output.weight',
    'mlp.gate_proj.weight': 'mlp_gate.weight',
    'mlp.up_proj.weight': 'mlp_up.weight',
    'mlp.down_proj.weight': 'mlp_down.weight',
    'input_layernorm.weight': 'attention_norm.weight',
    'input_layernorm.dense.weight': 'attention_norm.modulation.weight',
    'input_layernorm.dense.bias': 'attention_norm.modulation.bias',
    'post_attention_layernorm.weight': 'mlp_norm.weight',
    'post_attention_layernorm.dense.weight': 'mlp_norm.modulation.weight',
    'post_attention_layernorm.dense.bias': 'mlp_norm.modulation.bias',
}
_OUTSIDE = {
    f'{_EXPERT}norm.weight': 'final_norm.weight',
    f'{_EXPERT}norm.dense.weight': 'final_norm.modulation.weight',
    f'{_EXPERT}norm.dense.bias': 'final_norm.modulation.bias',
    **{
        f'{source}.{side}': f'{target}.{side}'
        for source, target in (
            ('action_in_proj', 'action_in'),
            ('action_out_proj', 'action_out'),
            ('state_proj', 'state_in'),
            ('time_mlp_in', 'time_mlp.0'),
            ('time_mlp_out', 'time_mlp.2'),
        )
        for side in ('weight', 'bias')
    },
}

# Why a tensor has no place, by the beginning of its name.
_NO_PLACE = (
    ('paligemma_with_expert.paligemma.', 'the video model takes the place of PaliGemma'),
    ('paligemma_with_expert.gemma_expert.lm_head.', 'the head says no words'),
    (f'{_EXPERT}embed_tokens.', 'the head reads no words'),
    ('action_time_mlp_', 'here the timestep modulates the norms'),
    ('normalize_', "statistics of the source's robot"),
    ('unnormalize_', "statistics of the source's robot"),
)


def initialise_from_pi0(head: ActionHead, folder: Path, report: Report) -> str:
    """Write what fits into `head`, say the rest in `report`; 'pi0' or 'pi0.5'.

    Raises InputError if the folder holds no action expert, or none that fits anywhere.
    """
    files = TensorFiles(folder)
    own_names = {name: name.removeprefix('model.') for name in files.stored}
    kind = _kind(own_names.values(), folder)
    parameters = dict(head.named_parameters())
    plan = _plan(files, own_names, parameters, len(head.layers), report)
    if not any(target.startswith('layers.') for target in plan.values()):
        raise InputError(
            f"{folder}: none of the expert's layers fits the head of the preset (width "
            f'{head.config.width}); choose another preset, or `--head random`'
        )
    if kind == 'pi0':
        _modulate_nothing(head)
    with torch.no_grad():
        for source, mapped in files.read(plan):
            target = plan[source]
            note = ''
            if kind == 'pi0.5' and '.modulation.' in target:
                scale, shift, gate = mapped.chunk(3)
                mapped = torch.cat([shift, scale, gate])
                note = 'scale, shift, gate -> shift, scale, gate'
            parameters[target].copy_(mapped)
            report.taken.append(Taken(source, f'head.{target}', note))
            del mapped
    for target in parameters.keys() - set(plan.values()):
        report.fresh.append(Fresh(f'head.{target}', _why_fresh(target, kind)))
    report.fresh.sort(key=lambda fresh: fresh.target)
    return kind


def _kind(names, folder: Path) -> str:
    names = set(names)
    if not any(name.startswith(_EXPERT) for name in names):
        raise InputError(
            f'{folder}: holds no action expert of pi0 or pi0.5; expected names such as '
            f'{_EXPERT}layers.0.self_attn.q_proj.weight'
        )
    return 'pi0.5' if any('layernorm.dense.' in name for name in names) else 'pi0'


def _plan(
    files: TensorFiles,
    own_names: Mapping[str, str],
    parameters: Mapping[str, torch.nn.Parameter],
    layers: int,
    report: Report,
) -> dict[str, str]:
    """Source to target of everything that fits; `report` gets the reasons for the rest."""
    plan = {}
    for source, name in own_names.items():
        target, reason = _place(name, layers)
        if target is not None:
            found, expected = files.stored[source].shape, tuple(parameters[target].shape)
            reason = '' if found == expected else f'is {found}, the head has {expected}'
        if reason:
            report.not_taken.append(NotTaken(source, reason))
        else:
            plan[source] = target
    for bias in [source for source in plan if source.endswith('.bias')]:
        if bias.removesuffix('bias') + 'weight' not in plan:
            del plan[bias]
            report.not_taken.append(NotTaken(bias, 'its weight was not taken'))
    return plan


def _place(name: str, layers: int) -> tuple[str | None, str]:
    """The head's parameter for a tensor, or None and why there is none."""
    for beginning, reason in _NO_PLACE:
        if name.startswith(beginning):
            return None, reason
    layer = _LAYER.fullmatch(name)
    if layer is None:
        target = _OUTSIDE.get(name)
    elif int(layer[1]) >= layers:
        return None, f'the head has {layers} layers'
    else:
        inside = _IN_LAYER.get(layer[2])
        target = inside and f'layers.{layer[1]}.{inside}'
    return target, '' if target else 'the head has no such part'


def _modulate_nothing(head: ActionHead) -> None:
    with torch.no_grad():
        for norm in head.modules():
            if isinstance(norm, AdaptiveRmsNorm):
                norm.modulation.weight.zero_()
                norm.modulation.bias.zero_()
                norm.modulation.bias[-norm.weight.numel() :] = 1.0  # the gate


def _why_fresh(target: str, kind: str) -> str:
    if target.startswith('video_tokens.'):
        return f'random: {kind} sees no video features'
    if kind == 'pi0.5' and target.startswith('state_in.'):
        return 'random: pi0.5 reads the state as words'
    if kind == 'pi0.5' and target.endswith('norm.weight'):
        return "0: pi0.5's norms have no weight of their own"
    if kind == 'pi0' and '.modulation.' in target:
        return "no shift, no scale, gate 1: pi0's norms are plain"
    if kind == 'pi0' and target.startswith('time_mlp.'):
        return 'random: pi0 mixes the timestep into the actions'
    return 'random: the source has none that fits'

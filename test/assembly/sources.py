"""Small public-style weights, made and saved by the libraries whose layouts they have."""

import dataclasses

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_cosmos import CosmosTransformer3DModel
from safetensors.torch import save_file
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaConfig, GemmaForCausalLM


def cosmos_transformer(config, **changes):
    """The transformer of `config` as NVIDIA's 2B model is configured: 17 channels, projection."""
    sizes = dataclasses.asdict(config.transformer)
    arguments = {
        **sizes,
        'in_channels': 17,
        'concat_padding_mask': True,
        'extra_pos_embed_type': None,
        'use_crossattn_projection': True,
        'crossattn_proj_in_channels': config.text.embed_dim,
        'encoder_hidden_states_channels': sizes['text_embed_dim'],
        **changes,
    }
    return CosmosTransformer3DModel(**arguments)


def wan_vae(config, **changes):
    sizes = dataclasses.asdict(config.vae)
    statistics = {
        'latents_mean': [0.1 * i for i in range(config.vae.z_dim)],
        'latents_std': [1.0 + 0.1 * i for i in range(config.vae.z_dim)],
    }
    sizes['dim_mult'] = list(sizes['dim_mult'])
    return AutoencoderKLWan(**{**sizes, **statistics, **changes})


def save_backbone(folder, transformer, vae, dtype=torch.float32, shard='1MB'):
    """diffusers' layout, the transformer in shards."""
    transformer.to(dtype).save_pretrained(folder / 'transformer', max_shard_size=shard)
    vae.to(dtype).save_pretrained(folder / 'vae')
    return folder


class AdaptiveNorm(nn.Module):
    """pi0.5's RMSNorm: scale, shift and gate, in this order, from the timestep; no weight."""

    def __init__(self, width):
        super().__init__()
        self.dense = nn.Linear(width, 3 * width)

    def forward(self, tokens, condition):
        normed = tokens * torch.rsqrt(tokens.pow(2).mean(-1, keepdim=True) + 1e-6)
        if condition is None:
            return normed, 1.0
        scale, shift, gate = self.dense(condition)[:, None].chunk(3, dim=-1)
        return normed * (1 + scale) + shift, gate


class PlainNorm(nn.Module):
    """pi0's RMSNorm around transformers' own, in the same form."""

    def __init__(self, norm):
        super().__init__()
        self.weight = norm.weight
        self.__dict__['_norm'] = norm  # not a submodule: its weight has one name

    def forward(self, tokens, _condition):
        return self._norm(tokens), 1.0


class Pi0(nn.Module):
    """The action expert of pi0 ('pi0') or pi0.5 ('pi05') under openpi's names.

    Layers are transformers' Gemma; what openpi adds to it is written out here.
    """

    def __init__(self, head, kind, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.kind = kind
        gemma = GemmaForCausalLM(GemmaConfig(
            vocab_size=16, hidden_size=head.width, intermediate_size=head.mlp_width,
            num_hidden_layers=head.layers, num_attention_heads=head.query_heads,
            num_key_value_heads=head.key_value_heads, head_dim=head.head_dim,
            hidden_activation='gelu_pytorch_tanh', attn_implementation='eager',
        ))
        model = gemma.model
        model.embed_tokens = None
        make = (lambda _: AdaptiveNorm(head.width)) if kind == 'pi05' else PlainNorm
        for layer in model.layers:
            layer.input_layernorm = make(layer.input_layernorm)
            layer.post_attention_layernorm = make(layer.post_attention_layernorm)
        model.norm = make(model.norm)
        both = nn.Module()
        both.gemma_expert = gemma
        both.paligemma = nn.Module()
        both.paligemma.lm_head = nn.Linear(8, 4, bias=False)
        self.paligemma_with_expert = both
        self.action_in_proj = nn.Linear(head.padded_dim, head.width)
        self.action_out_proj = nn.Linear(head.width, head.padded_dim)
        if kind == 'pi05':
            self.time_mlp_in = nn.Linear(head.width, head.width)
            self.time_mlp_out = nn.Linear(head.width, head.width)
        else:
            self.state_proj = nn.Linear(head.padded_dim, head.width)
            self.action_time_mlp_in = nn.Linear(2 * head.width, head.width)
            self.action_time_mlp_out = nn.Linear(head.width, head.width)
        with torch.no_grad():  # norms and biases begin as nothing; here they count
            for parameter in self.parameters():
                if parameter.ndim == 1:
                    parameter.normal_(std=0.2)

    def save(self, folder, prefix='', dtype=torch.float32):
        folder.mkdir(exist_ok=True)
        tensors = {
            prefix + name: tensor.to(dtype).contiguous().clone()
            for name, tensor in self.state_dict().items()
        }
        save_file(tensors, folder / 'model.safetensors')
        return folder

    def velocity(self, video, state, actions, sigma):
        """The expert over video tokens (b, n, d), one state token and the action rows.

        Only state and actions feel the timestep; the video does not see them, and the state not
        the actions. All as in spec section 1.
        """
        model = self.paligemma_with_expert.gemma_expert.model
        condition = self._condition(sigma)
        tokens = torch.cat([video, state, self.action_in_proj(actions)], dim=1)
        count, prefix = tokens.shape[1], video.shape[1]
        position = torch.arange(count)[None]
        rope = model.rotary_emb(tokens, position)
        mask = torch.zeros(1, 1, count, count)
        mask[..., :prefix, prefix:] = -torch.inf
        mask[..., prefix, prefix + 1 :] = -torch.inf

        def norm(module, x):
            (a, _), (b, gate) = module(x[:, :prefix], None), module(x[:, prefix:], condition)
            gate = torch.ones_like(b) * gate
            return torch.cat([a, b], 1), torch.cat([torch.ones_like(a), gate], 1)

        for layer in model.layers:
            normed, gate = norm(layer.input_layernorm, tokens)
            attended, _ = layer.self_attn(
                hidden_states=normed, position_embeddings=rope, attention_mask=mask
            )
            tokens = tokens + gate * attended
            normed, gate = norm(layer.post_attention_layernorm, tokens)
            tokens = tokens + gate * layer.mlp(normed)
        return self.action_out_proj(norm(model.norm, tokens)[0][:, prefix + 1 :])

    def _condition(self, sigma):
        if self.kind != 'pi05':
            return None
        width = self.time_mlp_in.in_features
        period = 4e-3 * (4.0 / 4e-3) ** torch.linspace(0, 1, width // 2)
        angles = 2 * torch.pi * sigma[:, None] / period
        hidden = self.time_mlp_in(torch.cat([angles.sin(), angles.cos()], dim=1))
        silu = nn.functional.silu
        return silu(self.time_mlp_out(silu(hidden)))

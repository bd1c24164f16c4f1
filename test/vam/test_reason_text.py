import contextlib
import json
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

from test.vam.tiny_encoder import EMBED_DIM, LAYERS, WORDS, save_tiny_encoder
from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.config import TextConfig
from tr_vam_ros.vam.guidance import GuidanceSchedule
from tr_vam_ros.vam.reason_encoder import (
    COSMOS_REASON,
    EncoderSource,
    ReasonEncoder,
    loaded_encoder,
)
from tr_vam_ros.vam.reason_text import ReasonConditioning, fingerprint
from tr_vam_ros.vam.text import make_text
from tr_vam_ros.vam.text_cache import TextCache
from tr_vam_ros.vam.text_conditioning import TextConditioning

PLACES = 48
CONFIG = TextConfig(embed_dim=EMBED_DIM, encoder='cosmos_reason1', max_words=PLACES)
PROMPT = 'put the red block into the bin'
# The chat of diffusers' pipeline around PROMPT, by hand.
CHAT = (
    '<|im_start|> system You are a helpful assistant who will provide prompts to an image '
    f'generator . <|im_end|> <|im_start|> user {PROMPT} <|im_end|>'
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return save_tiny_encoder(tmp_path_factory.mktemp('encoder'))


@pytest.fixture(scope='module')
def source(folder):
    return EncoderSource(str(folder), device='cpu', dtype='float32')


@pytest.fixture(scope='module')
def encoder(source):
    return ReasonEncoder(source, PLACES, EMBED_DIM)


@pytest.fixture(scope='module')
def parts(folder):
    """Tokenizer and model as the libraries themselves load them."""
    from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

    return (
        AutoTokenizer.from_pretrained(folder),
        Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval(),
    )


class FakeEncoder:
    """Counts its loads; says something that depends on the prompt."""

    def __init__(self):
        self.loads, self.prompts, self.is_loaded = 0, [], False

    @contextlib.contextmanager
    def load(self, _source, places, embed_dim):
        self.loads += 1
        self.is_loaded = True
        yield lambda prompt: self.say(prompt, places, embed_dim)
        self.is_loaded = False

    def say(self, prompt, places, embed_dim):
        assert self.is_loaded
        self.prompts.append(prompt)
        seed = int.from_bytes(prompt.encode()[-4:], 'big')
        return torch.randn(1, places, embed_dim, generator=torch.Generator().manual_seed(seed))


def make(tmp_path, fake, seed=0, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ReasonConditioning(
            CONFIG, 8, cache=TextCache(tmp_path / 'cache'), load=fake.load, **options
        )


def test_the_embedding_is_every_layer_of_the_padded_chat_normalised(parts, encoder):
    _, model = parts
    ids = [WORDS.index(word) for word in CHAT.split()]
    ids += [WORDS.index('<|endoftext|>')] * (PLACES - len(ids))
    seen = []
    stack = model.model.language_model
    hooks = [
        layer.register_forward_hook(
            lambda _m, _i, out: seen.append(out[0] if isinstance(out, tuple) else out)
        )
        for layer in [*stack.layers[:-1], stack.norm]  # the last is read after the final norm
    ]
    with torch.no_grad():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    assert len(seen) == LAYERS
    layers = [layer[0].double().numpy() for layer in seen]
    expected = np.concatenate(
        [
            (x - x.mean(1, keepdims=True)) / (x.std(1, ddof=1, keepdims=True) + 1e-8)
            for x in layers
        ],
        axis=1,
    )
    np.testing.assert_allclose(encoder(PROMPT)[0].numpy(), expected, atol=1e-4)


@pytest.mark.parametrize('prompt', [PROMPT, '', 'towel ' * 100])
def test_the_embedding_is_that_of_diffusers_pipeline(parts, encoder, prompt):
    from diffusers.pipelines.cosmos.pipeline_cosmos2_5_predict import (
        Cosmos2_5_PredictBasePipeline,
    )

    tokenizer, model = parts
    with torch.no_grad():
        expected = Cosmos2_5_PredictBasePipeline._get_prompt_embeds(
            types.SimpleNamespace(tokenizer=tokenizer, text_encoder=model),
            prompt, PLACES, torch.device('cpu'), torch.float32,
        )
    assert torch.equal(encoder(prompt), expected)


def test_a_pipeline_s_folder_serves_as_well_as_a_model_s(tmp_path, encoder):
    apart = EncoderSource(str(save_tiny_encoder(tmp_path, pipeline=True)), dtype='float32')
    with loaded_encoder(apart, PLACES, EMBED_DIM) as other:
        assert torch.equal(other(PROMPT), encoder(PROMPT))


def test_the_encoder_is_freed_after_the_block(source):
    import gc
    import weakref

    with loaded_encoder(source, PLACES, EMBED_DIM) as encoder:
        model = weakref.ref(encoder._model)
    gc.collect()
    assert model() is None


def test_the_context_is_the_transformer_s_own_projection_of_the_embedding(
    tmp_path, source, encoder
):
    from diffusers.models.transformers.transformer_cosmos import CosmosTransformer3DModel

    transformer = CosmosTransformer3DModel(
        in_channels=18, out_channels=16, num_attention_heads=1, attention_head_dim=16,
        num_layers=1, text_embed_dim=8, adaln_lora_dim=4, concat_padding_mask=False,
        extra_pos_embed_type=None, use_crossattn_projection=True,
        crossattn_proj_in_channels=EMBED_DIM, encoder_hidden_states_channels=8,
    )  # fmt: skip
    text = ReasonConditioning(CONFIG, 8, cache=TextCache(tmp_path), encoder=source)
    assert list(text.state_dict()) == ['projection.0.weight', 'projection.0.bias']
    text.projection.load_state_dict(transformer.crossattn_proj.state_dict())
    with torch.no_grad():
        expected = transformer.crossattn_proj(encoder(PROMPT))
        context = text(PROMPT)
    assert context.shape == (1, PLACES, 8) and context.dtype == torch.float32
    torch.testing.assert_close(context, expected, atol=0, rtol=2**-8)  # kept in bfloat16


def test_a_miss_loads_the_encoder_once_and_a_hit_never(tmp_path):
    fake = FakeEncoder()
    text = make(tmp_path, fake)
    first = text(PROMPT)
    assert (fake.loads, fake.is_loaded) == (1, False)
    assert torch.equal(text(PROMPT), first)
    another_run = make(tmp_path, fake)
    assert torch.equal(another_run(PROMPT), first)
    assert fake.loads == 1


def test_many_instructions_take_one_load(tmp_path):
    fake = FakeEncoder()
    text, done = make(tmp_path, fake), []
    text.embed(['one', 'two', 'three'], done.append)
    assert fake.loads == 1 and done == fake.prompts == ['one', 'two', 'three']
    assert all(text.knows(instruction) for instruction in done) and not text.knows('four')


def test_changed_weights_never_see_the_contexts_of_the_old_ones(tmp_path):
    fake = FakeEncoder()
    text = make(tmp_path, fake)
    before = text(PROMPT)
    with torch.no_grad():
        text.projection[0].weight.data.mul_(1.5)  # as an average of weights is written
    after = text(PROMPT)
    assert fake.loads == 2 and not torch.allclose(before, after)
    make(tmp_path, fake, seed=1)(PROMPT)
    assert fake.loads == 3


def test_a_fingerprint_is_of_the_values_and_not_of_their_place_or_type():
    weight = torch.randn(100, 7).bfloat16()
    bias = torch.zeros(100)
    assert fingerprint(weight, bias) == fingerprint(weight.float(), bias.double())
    assert fingerprint(weight, bias) == fingerprint(weight.T.contiguous().T, bias)
    assert fingerprint(weight, bias) != fingerprint(weight.reshape(7, 100), bias)
    changed = weight.clone()
    changed[99, 6] += 1
    assert fingerprint(weight, bias) != fingerprint(changed, bias)


def test_another_encoder_is_another_entry(tmp_path, folder):
    fake = FakeEncoder()
    other = save_tiny_encoder(tmp_path / 'other', seed=1)
    copy = shutil.copytree(folder, tmp_path / 'copy')
    for name in (folder, other, copy, COSMOS_REASON):
        make(tmp_path, fake, encoder=EncoderSource(str(name)))(PROMPT)
    assert fake.loads == 3  # the copy is the same encoder
    make(tmp_path, fake, encoder=EncoderSource(COSMOS_REASON, revision='main'))(PROMPT)
    assert fake.loads == 4


@pytest.mark.parametrize('place', [100, -1])
def test_one_other_byte_at_either_end_of_the_weights_is_another_encoder(tmp_path, place):
    data = bytearray(1_000_000)
    identities = []
    for value in (0, 1):
        data[place] = value
        (tmp_path / 'model.safetensors').write_bytes(data)
        identities.append(EncoderSource(str(tmp_path)).identity())
    assert identities[0] != identities[1]


def test_a_checkpoint_s_own_file_makes_the_encoder_unnecessary(tmp_path, source):
    fake = FakeEncoder()
    maker = make(tmp_path, fake, encoder=source)
    expected = maker(PROMPT)
    maker.cache.save(tmp_path / 'file.safetensors', [PROMPT], maker.weights())
    robot = make(tmp_path / 'robot', fake)  # has the default encoder's name and none of its files
    robot.load_cache(tmp_path / 'file.safetensors')
    assert torch.equal(robot(PROMPT), expected) and fake.loads == 1


def test_a_checkpoint_s_file_of_other_weights_is_said_and_not_used(tmp_path, caplog):
    fake = FakeEncoder()
    maker = make(tmp_path, fake)
    maker(PROMPT)
    maker.cache.save(tmp_path / 'file.safetensors', [PROMPT], maker.weights())
    robot = make(tmp_path / 'robot', fake, seed=1)
    robot.load_cache(tmp_path / 'file.safetensors')
    assert 'another projection' in caplog.text
    assert not robot.knows(PROMPT)


@torch.no_grad()
def test_null_texts_of_reason1(tmp_path):
    fake = FakeEncoder()
    text = make(tmp_path, fake)
    bias = text.projection[0].bias
    torch.testing.assert_close(
        text.null()[0, 0], torch.nn.functional.gelu(bias)  # weight @ 0 + bias
    )
    assert torch.equal(text.null('zeros_after_projection'), torch.zeros(1, 1, 8))
    assert fake.loads == 0
    assert torch.equal(text.null('empty_prompt'), text('')) and fake.prompts == ['']
    with pytest.raises(InputError, match="'nothing'.*empty_prompt"):
        text.null('nothing')


@torch.no_grad()
def test_null_texts_of_words():
    text = TextConditioning(TextConfig(embed_dim=16, max_words=6), 8)
    assert torch.equal(text.null('zeros_after_projection'), torch.zeros(1, 1, 8))
    linear = text.projection[0]
    expected = torch.nn.functional.gelu(linear.weight @ text.position.weight[0] + linear.bias)
    torch.testing.assert_close(text.null('empty_prompt'), expected[None, None])
    with pytest.raises(InputError, match="'nothing'.*empty_prompt"):
        text.null('nothing')


@pytest.mark.parametrize('null_text', ['zeros_after_projection', 'empty_prompt'])
def test_a_policy_of_this_text_path_replans_with_every_null_text(tmp_path, null_text):
    from tr_vam_ros.vam import VamConfig, VideoActionPolicy

    def replan(option):
        config = VamConfig.from_yaml('tiny_yam').changed({
            'image': {'height': 40, 'width': 96},
            'text': {'encoder': 'cosmos_reason1', 'embed_dim': EMBED_DIM, 'max_words': PLACES},
            'guidance': {'null_text': option, 'plan_weight': 0.0, 'language_weight': 1.0},
        })
        parts = VideoActionPolicy.from_config(config.changed({'text': {'encoder': 'words'}}))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            cache = TextCache(tmp_path / 'cache')
            text = make_text(config.text, 128, cache=cache, load=FakeEncoder().load)
        policy = VideoActionPolicy(
            config, parts.backbone, text, parts.head, schedule=GuidanceSchedule('flat')
        )
        policy.reset_episode(PROMPT, 'episode')
        home = np.array(config.statistics.proprio.mean, np.float32)
        return policy.replan(np.full((40, 96, 3), 90, np.uint8), home).actions

    assert not np.allclose(replan(null_text), replan('zeros_before_projection'))


def test_the_configuration_chooses_the_text_path(tmp_path):
    reason = make_text(CONFIG, 8, cache=TextCache(tmp_path))
    words = make_text(TextConfig(embed_dim=16), 8)
    assert isinstance(reason, ReasonConditioning) and isinstance(words, TextConditioning)


def test_an_encoder_that_is_not_there_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
    text = ReasonConditioning(CONFIG, 8, cache=TextCache(tmp_path / 'cache'))
    with pytest.raises(InputError, match=f'encoder {COSMOS_REASON}.*hub cache.*tr-vam embed') as e:
        text(PROMPT)
    assert '\n' not in str(e.value)


def test_a_hub_id_is_found_in_the_hub_s_cache(tmp_path, folder, encoder, monkeypatch):
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
    revision = '0' * 40
    repository = tmp_path / 'models--somebody--reason'
    shutil.copytree(folder, repository / 'snapshots' / revision)
    (repository / 'refs').mkdir()
    (repository / 'refs' / 'main').write_text(revision)
    source = EncoderSource('somebody/reason', dtype='float32')
    with loaded_encoder(source, PLACES, EMBED_DIM) as found:
        assert torch.equal(found(PROMPT), encoder(PROMPT))
    assert source.identity() == 'somebody/reason@main'


def spoil_config(folder):
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps({**config, 'model_type': 'llama'}))


def spoil_weights(folder):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / 'model.safetensors')
    del tensors['model.layers.1.mlp.up_proj.weight']
    save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})


@pytest.mark.parametrize('spoil, message', [
    (lambda folder: (folder / 'config.json').unlink(), 'config.json cannot be read'),
    (spoil_config, 'is a llama, expected a qwen2_5_vl'),
    (lambda folder: (folder / 'model.safetensors').unlink(), 'cannot be loaded'),
    (spoil_weights, '1 tensors are missing.*layers.1.mlp.up_proj.weight'),
    (lambda folder: (folder / 'chat_template.jinja').unlink(), 'no chat template'),
])
def test_a_folder_that_is_no_encoder_is_an_input_error(tmp_path, folder, spoil, message):
    copy = shutil.copytree(folder, tmp_path / 'copy')
    spoil(copy)
    with pytest.raises(InputError, match=message) as error:
        ReasonEncoder(EncoderSource(str(copy), dtype='float32'), PLACES, EMBED_DIM)
    assert '\n' not in str(error.value)


def test_an_encoder_of_another_width_is_an_input_error(source):
    with pytest.raises(InputError, match='3 layers of 16 make 48 features.*100352'):
        ReasonEncoder(source, PLACES, 100352)


@pytest.mark.parametrize('options, message', [
    ({'name': '/no/such/folder'}, '/no/such/folder: is no folder'),
    ({'dtype': 'int8'}, 'int8'),
    ({'device': 'abacus'}, "'abacus': unknown"),
    pytest.param(
        {'device': 'cuda:0'}, 'there is no GPU',
        marks=pytest.mark.skipif(torch.cuda.is_available(), reason='a machine without GPU'),
    ),
])
def test_a_source_that_cannot_be_is_an_input_error(options, message):
    with pytest.raises(InputError, match=message):
        EncoderSource(**options)


def test_a_run_with_known_instructions_imports_no_transformers_and_nothing_needs_torchvision(
    tmp_path, source
):
    text = make(tmp_path, FakeEncoder(), encoder=source)
    text(PROMPT)
    text.cache.save(tmp_path / 'file.safetensors', [PROMPT], text.weights())
    torch.save(text.state_dict(), tmp_path / 'weights.pt')
    code = f'''
import sys, torch
sys.modules['torchvision'] = None  # importing it is an ImportError
from tr_vam_ros.vam.config import TextConfig
from tr_vam_ros.vam.reason_text import ReasonConditioning
text = ReasonConditioning(TextConfig({EMBED_DIM}, 'cosmos_reason1', max_words={PLACES}), 8)
text.load_state_dict(torch.load({str(tmp_path / 'weights.pt')!r}))
text.load_cache({str(tmp_path / 'file.safetensors')!r})
text({PROMPT!r})
assert 'transformers' not in sys.modules
from tr_vam_ros.vam.reason_encoder import EncoderSource, loaded_encoder
with loaded_encoder(EncoderSource({source.name!r}), {PLACES}, {EMBED_DIM}) as encoder:
    print(tuple(encoder('towel').shape))
'''
    run = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=100,
        env={'PYTHONPATH': ':'.join(filter(None, sys.path)), 'HOME': str(tmp_path),
             'OMP_NUM_THREADS': '1'},
    )  # fmt: skip
    assert run.stdout.strip() == f'(1, {PLACES}, {EMBED_DIM})', run.stderr

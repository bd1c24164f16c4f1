import subprocess
import sys

import pytest
import torch

from tr_vam_ros.vam.config import TextConfig
from tr_vam_ros.vam.text_conditioning import TextConditioning, WordTokenizer

CONFIG = TextConfig(embed_dim=16, vocabulary=('put', 'red', '.'), hash_buckets=50, max_words=6)


def test_known_words_have_their_place_and_others_a_bucket():
    ids = WordTokenizer(CONFIG)('Put, RED towel.')
    assert [ids[0], ids[2], ids[4]] == [0, 1, 2]
    assert all(3 <= i < 53 for i in (ids[1], ids[3]))


def test_words_after_the_limit_are_cut():
    tokenizer = WordTokenizer(CONFIG)
    assert tokenizer('a b c d e f g h') == tokenizer('a b c d e f')


def test_buckets_are_the_same_in_every_process():
    code = (
        'from tr_vam_ros.vam.config import TextConfig\n'
        'from tr_vam_ros.vam.text_conditioning import WordTokenizer\n'
        'print(WordTokenizer(TextConfig(embed_dim=1))("hand over the towel"))'
    )
    here = WordTokenizer(TextConfig(embed_dim=1))('hand over the towel')
    run = subprocess.run(
        [sys.executable, '-c', code], check=True, capture_output=True, text=True, timeout=60,
        env={'PYTHONHASHSEED': '7', 'PYTHONPATH': ':'.join(filter(None, sys.path))},
    )
    assert run.stdout.strip() == str(here)


@torch.no_grad()
def test_context_has_one_row_a_word_and_depends_on_order():
    text = TextConditioning(CONFIG, context_dim=8)
    assert text('put red towel').shape == (1, 3, 8)
    assert not torch.allclose(text('red put').flip(1), text('put red'))


@torch.no_grad()
def test_null_text_is_zeros_before_the_projection():
    text = TextConditioning(CONFIG, context_dim=8)
    linear = text.projection[0]
    expected = torch.nn.functional.gelu(linear.bias)  # weight @ 0 + bias
    torch.testing.assert_close(text.null(), expected[None, None])
    assert not torch.allclose(text.null(), torch.zeros(8))


@torch.no_grad()
@pytest.mark.parametrize('words', [2, 7])
def test_a_null_context_of_one_word_equals_a_longer_one(words):
    text = TextConditioning(CONFIG, context_dim=8)
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    query, null = torch.randn(1, 3, 8), text.null()
    longer = null.expand(-1, words, -1)
    torch.testing.assert_close(attention(query, null, null)[0], attention(query, longer, longer)[0])

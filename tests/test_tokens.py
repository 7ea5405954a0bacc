from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import icll
from icll.tokens import RECALL


def test_ids_are_pad_then_symbols_then_separator():
    assert (icll.PAD, icll.SEP, icll.VOCAB_SIZE) == (0, 19, 20)
    assert icll.encode("ar|b").tolist() == [1, 18, 19, 2]
    assert icll.decode([1, 18, 19, 2, 0, 0]) == "ar|b"
    assert icll.decode(torch.tensor([1, 2])) == "ab"


@given(st.text(alphabet="abcdefghijklmnopqr|", max_size=60))
def test_decode_inverts_encode(text):
    assert icll.decode(icll.encode(text)) == text


def test_recall_symbols_are_words():
    assert RECALL.size == 41
    assert RECALL.decode([1, 21]) == "k0 v0"
    assert RECALL.encode("k0 v0").tolist() == [1, 21]


@pytest.mark.parametrize("ids", [[20], [-1], [1.5], np.array([3, 99])])
def test_ids_outside_the_vocabulary_are_refused(ids):
    with pytest.raises(icll.IcllError, match="outside the vocabulary"):
        icll.decode(ids)


def test_unknown_symbols_are_refused():
    with pytest.raises(icll.IcllError, match="'z' in 'abz' is not in the vocabulary"):
        icll.encode("abz")

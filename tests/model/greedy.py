#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Greedy continuation of a text by the numpy forward pass, to hold engines against: prints the model file's path, then
one token id a line.

Usage: greedy.py CACHE_DIR TOKENS PROMPT
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from capture import locate_model
from gemma3 import VOCAB_ROWS, Model, forward


def next_token(model: Model, tokens: list[int]) -> int:
    """Index of the highest logit after the last token."""
    hidden, _ = forward(model, tokens, [])
    vocabulary = model.tensors["token_embd.weight"].data.shape[0]
    logits = [model.embedding(slice(a, a + VOCAB_ROWS)) @ hidden[-1] for a in range(0, vocabulary, VOCAB_ROWS)]
    return int(np.concatenate(logits).argmax())


def main(cache: str, count: str, prompt: str) -> None:
    """Command line entry."""
    path = locate_model(None, Path(cache))
    model = Model(path)
    tokens = [model.bos, *model.tokenizer().encode(prompt)]
    print(path)
    for _ in range(int(count)):
        tokens.append(next_token(model, tokens))
        print(tokens[-1], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

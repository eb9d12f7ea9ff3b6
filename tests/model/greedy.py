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

import models
from transformer import VOCAB_ROWS, Model, forward


def next_token(model: Model, tokens: list[int]) -> int:
    """Index of the highest logit after the last token."""
    hidden, _ = forward(model, tokens, [])
    logits = [model.unembedding(slice(a, a + VOCAB_ROWS)) @ hidden[-1] for a in range(0, model.vocabulary, VOCAB_ROWS)]
    return int(np.concatenate(logits).argmax())


def main(cache: str, count: str, prompt: str) -> None:
    """Command line entry."""
    model, path = models.load(models.DEFAULT, Path(cache))
    tokens = [*model.begin, *model.tokenizer().encode(prompt)]
    print(path)
    for _ in range(int(count)):
        tokens.append(next_token(model, tokens))
        print(tokens[-1], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE with the vocabulary and merges of a GGUF file, by the tokenizers package."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

# How text is cut before merging, by the name that the file gives (tokenizer.ggml.pre).
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
CUTS = {
    "smollm": lambda: [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "qwen2": lambda: [pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
}


class Tokenizer:
    """Encode and decode text with one vocabulary; control pieces are not recognized in text."""

    def __init__(self, pieces: Sequence[str], merges: Sequence[str], cut: str) -> None:
        if cut not in CUTS:
            raise ValueError(f"pre-tokenizer {cut} is unknown (known: {', '.join(CUTS)})")
        pairs = [tuple(merge.split(" ")) for merge in merges]
        self.engine = Engine(models.BPE({piece: i for i, piece in enumerate(pieces)}, pairs))
        self.engine.pre_tokenizer = pre_tokenizers.Sequence(CUTS[cut]())
        self.engine.decoder = decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        """Return the token ids of text, without begin or end markers."""
        return self.engine.encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self.engine.decode(list(ids))

"""SentencePiece-style BPE tokenizer driven by the vocabulary stored in a GGUF file.

Merging is greedy by piece score: the adjacent pair whose concatenation is in
the vocabulary with the highest score merges first, leftmost first on a tie.
User-defined pieces (runs of newlines or spaces, tags) are matched before any
merging; characters without a piece fall back to byte pieces.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence

SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


class Tokenizer:
    """Encode and decode text with one vocabulary."""

    def __init__(self, pieces: Sequence[str], scores: Sequence[float],
                 types: Sequence[int]) -> None:
        self.pieces = list(pieces)
        self.types = [int(t) for t in types]
        self.scores = {p: float(s) for p, s, t in zip(pieces, scores, self.types)
                       if t == NORMAL}
        self.ids = {p: i for i, p in enumerate(pieces)}
        user = [p for p, t in zip(pieces, self.types) if t == USER_DEFINED]
        user.sort(key=len, reverse=True)
        self.user = set(user)
        self.splitter = (re.compile("(" + "|".join(map(re.escape, user)) + ")")
                         if user else None)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of text, without begin or end markers."""
        text = text.replace(" ", SPACE)
        parts = self.splitter.split(text) if self.splitter else [text]
        out: list[int] = []
        for part in parts:
            if part in self.user:
                out.append(self.ids[part])
            elif part:
                for symbol in self._merge(part):
                    out.extend(self._lookup(symbol))
        return out

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; control pieces yield nothing."""
        raw = bytearray()
        for i in ids:
            if self.types[i] == BYTE:
                raw.append(int(self.pieces[i][3:5], 16))
            elif self.types[i] != CONTROL:
                raw += self.pieces[i].replace(SPACE, " ").encode()
        return raw.decode()

    def _lookup(self, symbol: str) -> list[int]:
        """Id of one symbol, or the ids of its UTF-8 bytes."""
        if symbol in self.scores:
            return [self.ids[symbol]]
        return [self.ids[f"<0x{b:02X}>"] for b in symbol.encode()]

    def _merge(self, text: str) -> list[str]:
        """Merge the characters of text into pieces."""
        symbols = list(text)
        left = list(range(-1, len(symbols) - 1))
        right = list(range(1, len(symbols) + 1))
        heap: list[tuple[float, int, int, str]] = []

        def push(i: int) -> None:
            j = right[i] if i >= 0 else len(symbols)
            if j < len(symbols):
                score = self.scores.get(symbols[i] + symbols[j])
                if score is not None:
                    heapq.heappush(heap, (-score, i, j, symbols[i] + symbols[j]))

        for i in range(len(symbols)):
            push(i)
        while heap:
            _, i, j, merged = heapq.heappop(heap)
            stale = not symbols[i] or not symbols[j] or right[i] != j
            if stale or symbols[i] + symbols[j] != merged:
                continue
            symbols[i], symbols[j] = merged, ""
            right[i] = right[j]
            if right[i] < len(symbols):
                left[right[i]] = i
            push(left[i])
            push(i)
        return [s for s in symbols if s]

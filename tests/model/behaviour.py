# SPDX-License-Identifier: Apache-2.0
"""Round 2: does the model still find what it read, and does it start to repeat itself?"""

from __future__ import annotations

import numpy as np

import corpus
import runner
from transformer import Array

PLACES = ["Oxford", "Lisbon", "Cairo", "Boston", "Vienna", "Tokyo", "Madrid", "Dublin"]
DIGITS = 5
TEMPERATURE = 0.8


def state_of(e: object, policy: str, sequences: int, tokens: int) -> tuple[object, list]:
    """A cache, None for the unquantized run, and states of so many sequences."""
    if policy == "unquantized":
        return None, [runner.Exact(e.model) for _ in range(sequences)]
    cache = runner.open_cache(e.device, e.model, policy, sequences, tokens * sequences)
    return cache, [runner.Paged(e.model, cache) for _ in range(sequences)]


def haystack(e: object, length: int, seed: int) -> tuple[list[int], list[tuple[str, str]]]:
    """About length tokens of prose with one secret number per place at equal steps of depth."""
    e.check(length)
    random = np.random.default_rng(seed)
    needles = [(place, "".join(map(str, random.integers(0, 10, DIGITS)))) for place in PLACES]
    sentences = [e.tokenizer.encode(f" The secret number of {place} is {number}.") for place, number in needles]
    room = length - sum(map(len, sentences)) - 64
    hay = e.tokenizer.encode(corpus.read(e.args.corpus, "verse")[20000 * (seed + 1):][:length * 8])[:room]
    out, step = [*e.model.begin], room // len(needles)
    for n, sentence in enumerate(sentences):
        out += hay[n * step:(n + 1) * step] + sentence
    return out + hay[len(needles) * step:], needles


def recall(e: object, length: int, policy: str, contexts: int) -> dict:
    """Share of digits that the model gives back, and probability of the right ones, by depth of the needle."""
    rows = []
    for seed in range(contexts):
        tokens, needles = haystack(e, length, seed)
        cache, (state,) = state_of(e, policy, 1, length + 64)
        runner.prefill(e.model, state, tokens)
        for n, (place, number) in enumerate(needles):
            prompt = e.tokenizer.encode(f" The secret number of {place} is ")
            answer = e.tokenizer.encode(number)
            (hidden,) = runner.step(e.model, [state], [prompt + answer])
            state.truncate(len(tokens))
            logits = hidden[len(prompt) - 1:len(prompt) + len(answer) - 1] @ e.unembedding.T
            right = logits.argmax(axis=-1) == np.asarray(answer)
            top = logits.max(axis=-1)
            nll = np.log(np.exp(logits - top[:, None]).sum(axis=-1)) + top - logits[np.arange(len(answer)), answer]
            rows.append({"policy": policy, "length": length, "seed": seed, "depth": n / len(needles),
                         "digits_percent": 100 * float(right.mean()), "found": int(right.all()),
                         "nll_digit": float(nll.mean())})
        if cache:
            cache.close()
    return {"rows": rows, "digits_percent": float(np.mean([r["digits_percent"] for r in rows])),
            "digits_error": float(np.std([r["digits_percent"] for r in rows], ddof=1) / np.sqrt(len(rows))),
            "nll_digit": float(np.mean([r["nll_digit"] for r in rows])),
            "found_percent": 100 * float(np.mean([r["found"] for r in rows]))}


def repeated(tokens: list[int], n: int) -> float:
    """Share of n-grams that came before."""
    grams = [tuple(tokens[i:i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams)


def pick(hidden: Array, embedding: Array, noise: np.random.Generator) -> int:
    """A token at a temperature; the same noise for every policy."""
    logits = hidden @ embedding.T / TEMPERATURE
    return int((logits + noise.gumbel(size=len(logits)).astype(np.float32)).argmax())


def repetition(e: object, policy: str, prompt: int, count: int, sequences: int) -> dict:
    """Rate of repeated n-grams in sampled continuations of prompts, all with the same random numbers."""
    text = e.tokens("technical", sequences * prompt)
    prompts = [text[prompt * i:prompt * (i + 1)] for i in range(sequences)]
    cache, states = state_of(e, policy, sequences, prompt + count)
    noises = [np.random.default_rng(i) for i in range(sequences)]
    made: list[list[int]] = [[] for _ in prompts]
    last = [runner.prefill(e.model, state, tokens)[-1] for state, tokens in zip(states, prompts)]
    for _ in range(count):
        new = [pick(h, e.unembedding, noise) for h, noise in zip(last, noises)]
        for row, token in zip(made, new):
            row.append(token)
        last = [h[-1] for h in runner.step(e.model, states, [[token] for token in new])]
    if cache:
        cache.close()
    found = {"policy": policy, "prompt": prompt, "sequences": sequences, "tokens": count * sequences}
    for n in (2, 4):
        rates = [100 * repeated(row, n) for row in made]
        found |= {f"repeated_{n}_percent": float(np.mean(rates)),
                  f"repeated_{n}_error": float(np.std(rates, ddof=1) / np.sqrt(sequences))}
    return found

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluation of recipes and policies on a real model: perplexity and KL, behaviour, stress. `./dev eval` runs it.

Every measurement is a cell; its result is kept in OUT/MODEL/cells and not computed again, so that a run can be stopped
and started at any time. At the end all cells there become OUT/MODEL/*.csv and eval.json. Remove the folder when the
library computes something else than before.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import numpy as np

import behaviour
import corpus
import models
import runner
import scores
import stress
from tensorfile import bf16_to_fp32, round_bf16
from transformer import Array

BF16, UNQUANTIZED = "bf16", "unquantized"
MAIN = ["kv8", "k4v8", "kv4", "mxkv4", "qk4v8"]  # measured on every text
BLOCKS = ["mxfp4_16/mxfp4_16", "int8/int4p", "int8/mxfp4", "int8/mxfp4_16", "mxfp4/int8",
          "mxfp4_16/int8"]  # block size; V only, K only (int4p/int8 is k4v8)
TRANSFORMS = ["kv4,sinks=0", "kv4,center=0", "kv4,center=1", "kv4,center=2", "kv4,hadamard=0", "kv4,hadamard=32",
              "kv4,vhadamard=0"]
WINDOWS = ["kv4,recent=128", "kv4,recent=256", "mxkv4,recent=128"]
LAYERS = ["kv4,layers=first6:kv8", "kv4,layers=6-11:kv8", "kv4,layers=last6:kv8"]
BEHAVIOUR = ["kv8", "kv4", "kv4,recent=128", "mxkv4", "qk4v8"]
SWEPT = ["kv4,recent=128", "kv4", "kv8"]
FLOATS = ["nvfp4", "nvfp4_4over6"]  # slow on the simulator, which models tensor cores: the short text only


class Evaluation:
    """The model, the device, and the cells."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, args.out / args.model
        (self.out / "cells").mkdir(parents=True, exist_ok=True)
        self.model = models.load(args.model, args.model_dir, args.gguf, keep=True)[0]
        self.device = runner.nibble.Device(args.backend, threads=args.threads, library=str(args.library))
        self.tokenizer = self.model.tokenizer()
        self.bases: dict[str, scores.Base] = {}
        self.heads: list[Array] = []
        self.queue: list[tuple[str, Callable[[], dict]]] = []

    def say(self, text: str, end: str = "\n") -> None:
        """A line of progress."""
        print(text, end=end, flush=True, file=sys.stderr)

    def add(self, name: str, function: Callable[[], dict]) -> None:
        """One more cell, if it is asked for and not there yet."""
        if re.search(self.args.match, name) and name not in (known for known, _ in self.queue):
            self.queue.append((name, function))

    def check(self, count: int) -> None:
        """Refuses more tokens than the model was made for."""
        if count > self.model.context:
            raise ValueError(f"{count} tokens are too many for {self.args.model} (allowed: {self.model.context})")

    def path(self, name: str) -> Path:
        """Where a cell is kept."""
        return self.out / "cells" / (name.replace("/", "+").replace(" ", "_") + ".json")

    def run(self) -> None:
        """All cells that are not on file, in order."""
        todo = [cell for cell in self.queue if not self.path(cell[0]).exists()]
        self.say(f"eval: {len(self.queue)} measurements, {len(self.queue) - len(todo)} of them on file")
        started = time.monotonic()
        for done, (name, function) in enumerate(todo):
            begin = time.monotonic()
            result = function()
            result["seconds"] = round(time.monotonic() - begin, 1)
            partial = self.path(name).with_suffix(".partial")
            partial.write_text(json.dumps({"cell": name, **result}, indent=1) + "\n")
            partial.rename(self.path(name))
            left = (time.monotonic() - started) / (done + 1) * (len(todo) - done - 1)
            self.say(f"[{done + 1}/{len(todo)}] {name}: {brief(result)} ({result['seconds']} s, about "
                     f"{left / 60:.0f} min left)")

    def results(self) -> dict[str, dict]:
        """The cells on file, of this run and of earlier ones."""
        found = (json.loads(path.read_text()) for path in sorted((self.out / "cells").glob("*.json")))
        return {cell.pop("cell"): cell for cell in found}

    @property
    def unembedding(self) -> Array:
        """All of the matrix, dequantized once."""
        if not self.heads:
            self.heads.append(self.model.unembedding(slice(None)))
        return self.heads[0]

    def tokens(self, text: str, count: int) -> list[int]:
        """The begin marker, if the model knows one, and the pieces of a passage of a text, after its front matter."""
        self.check(count)
        name, _, number = text.partition(".")
        body, room = corpus.read(self.args.corpus, name)[3000:], count - len(self.model.begin)
        first = (int(number or 1) - 1) * room
        found = [*self.model.begin, *self.tokenizer.encode(body[:(first + count) * 8])[first:first + room]]
        if len(found) < count:
            raise ValueError(f"the text {text} has {len(found)} tokens (needed: {count})")
        return found

    def base(self, text: str, count: int) -> scores.Base:
        """The unquantized run, kept on file."""
        key = f"{text}-{count}"
        if key not in self.bases:
            tokens, path = self.tokens(text, count), self.out / f"base-{key}.npz"
            if path.exists():
                kept = np.load(path)
                made = scores.Base(tokens, kept["hidden"], float(kept["perplexity"]), kept["pieces"],
                                   float(kept["outside"]))
            else:
                self.say(f"eval: unquantized run of {key}")
                hidden = runner.prefill(self.model, runner.Exact(self.model), tokens)
                made = scores.make_base(self.model, tokens, hidden)
                partial = path.with_suffix(".partial.npz")
                np.savez(partial, hidden=hidden, perplexity=made.perplexity, pieces=made.pieces, outside=made.outside)
                partial.rename(path)
            self.bases = {key: made}
        return self.bases[key]

    def hidden(self, policy: str, tokens: list[int], chunk: int, head: int) -> tuple[Array, float]:
        """Hidden states with the policy's cache, and its bits per element of K and V."""
        cache = runner.open_cache(self.device, self.model, policy, 1, len(tokens))
        try:
            out = runner.prefill(self.model, runner.Paged(self.model, cache), tokens, chunk, head)
            return out, 8 * cache.stats().used_bytes / (2 * self.model.layers * len(tokens) * self.model.kv_heads
                                                        * self.model.head_dim)
        finally:
            cache.close()

    def perplexity(self, text: str, count: int, policy: str, first: int = 0, chunk: int = runner.CHUNK) -> dict:
        """Round 1: one policy on one text, scored from position first on, which is where chunks begin."""
        base = self.base(text, count)
        hidden, bits = self.hidden(policy, base.tokens, chunk, first or runner.FIRST_CHUNK)
        found = scores.compare(self.model, base, {policy: hidden}, first)
        kl = found[policy]["kl"]
        edges = [e for e in (0, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768) if first <= e < first + len(kl)]
        by_position = [{"from": a, "to": b, "kl": float(kl[a - first:b - first].mean())}
                       for a, b in zip(edges, [*edges[1:], first + len(kl)])]
        return {"text": text, "length": count, "first": first, "policy": policy, "bits": bits,
                "base_perplexity": float(np.exp(found["base"]["nll"].mean())), "outside": base.outside,
                **scores.summary(found["base"], found[policy]), "late": late(found, policy, count, first),
                "by_position": by_position}

    def validation(self, text: str, count: int) -> dict:
        """The bf16 recipe against the unquantized run, and against one whose Q, K and V are rounded to bf16."""
        base = self.base(text, count)
        hidden, _ = self.hidden(BF16, base.tokens, runner.CHUNK, runner.FIRST_CHUNK)
        rounded = runner.prefill(self.model, runner.Exact(self.model, lambda x: bf16_to_fp32(round_bf16(x))),
                                 base.tokens)
        found = scores.compare(self.model, base, {"bf16": hidden, "rounded": rounded})
        embedding = self.model.unembedding(base.pieces)
        gap = np.abs((hidden - rounded) @ embedding.T)
        spread = (rounded @ embedding.T).std()
        return {"text": text, "length": count, "kl_bf16": float(found["bf16"]["kl"].mean()),
                "kl_rounded": float(found["rounded"]["kl"].mean()), "logit_gap_mean": float(gap.mean()),
                "logit_gap_max": float(gap.max()), "logit_deviation": float(spread),
                **scores.summary(found["base"], found["bf16"])}


def late(found: dict, policy: str, count: int, first: int) -> dict[str, float]:
    """Summary of the second half of the text."""
    return scores.summary(*({k: v[count // 2 - first:] for k, v in found[name].items()} for name in ("base", policy)))


def brief(result: dict) -> str:
    """The figures of a cell that tell most."""
    if "rise_percent" in result:
        return f"{result['rise_percent']:+.2f} +- {result['rise_error']:.2f} %, KL {result['kl']:.5f}"
    found = [f"{k} {v:.4g}" for k, v in result.items() if isinstance(v, float) and k != "seconds"]
    return ", ".join(found) or ", ".join(f"{len(v)} {k}" for k, v in result.items() if isinstance(v, list))


def add_perplexity(e: Evaluation, text: str, count: int, policies: list[str], decoded: bool = False) -> None:
    """Cells of one text; decoded: in steps that are short beside a recent window, scored in the second half."""
    how = (count // 2, 64) if decoded else ()
    for policy in policies:
        e.add(f"perplexity {text} {count} {policy}{' decoded' * decoded}",
              lambda p=policy: e.perplexity(text, count, p, *how))


def passages(e: Evaluation) -> list[str]:
    """Passages of all texts, one after the other: "prose", "prose.2" and so on."""
    return [text + f".{n}" * (n > 1) for n in range(1, e.args.passages + 1) for text in e.args.texts]


def plan_round1(e: Evaluation, length: int, quick: bool) -> None:
    """Perplexity and KL."""
    main, *others = e.args.texts
    if e.args.policies:
        for text in e.args.texts:
            add_perplexity(e, text, length, e.args.policies, decoded=True)
        return
    e.add(f"validation {main} 512", lambda: e.validation(main, 512))
    add_perplexity(e, main, 512, ["nvfp4", "kv4"] if quick else [*FLOATS, "kv4", "mxkv4"])
    add_perplexity(e, main, length, MAIN)
    add_perplexity(e, main, length, WINDOWS[:1] if quick else WINDOWS, decoded=True)
    if quick:
        return
    add_perplexity(e, main, length, BLOCKS + TRANSFORMS + LAYERS)
    for text in others:
        add_perplexity(e, text, length, MAIN)
        add_perplexity(e, text, length, WINDOWS[:1], decoded=True)


def plan_round2(e: Evaluation, length: int, quick: bool) -> None:
    """Recall and repetition."""
    policies = [UNQUANTIZED, *(e.args.policies or (["kv4"] if quick else BEHAVIOUR))]
    for count in [length] if quick else e.args.recall or [length]:
        for policy in policies:
            e.add(f"recall {count} x{e.args.contexts} {policy}",
                  lambda n=count, p=policy: behaviour.recall(e, n, p, e.args.contexts))
    how = (96, 16, 4) if quick else (e.args.prompt_tokens, e.args.new_tokens, e.args.prompts)
    for policy in policies:
        e.add(f"repetition {' '.join(map(str, how))} {policy}", lambda p=policy: behaviour.repetition(e, p, *how))


def plan_round3(e: Evaluation, length: int, quick: bool) -> None:
    """Lengths, layers, concurrency."""
    e.add("layers", lambda: stress.layers(e, length))
    e.add("kernel lengths", lambda: stress.kernel(e, length, [4096] if quick else [2048, 8192, 32768, 131072]))
    e.add("concurrency", lambda: stress.concurrency(e, length, *((4, 1024) if quick else (16, 8192))))


def plan_sweep(e: Evaluation, _length: int, quick: bool) -> None:
    """Longer texts, decoded."""
    for count in [] if quick else e.args.sweep:
        for text in passages(e):
            add_perplexity(e, text, count, e.args.policies or SWEPT, decoded=True)


PLANS = {"1": plan_round1, "3": plan_round3, "2": plan_round2, "4": plan_sweep}


def means(rows: list[dict]) -> list[dict]:
    """What a policy costs on average over the texts of one length, with standard errors from their scatter."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["length"], row["first"], row["policy"]), []).append(row)
    found = []
    for (length, first, policy), group in groups.items():
        if len(group) == 1:
            continue
        out = {"length": length, "first": first, "policy": policy, "texts": len(group), "bits": group[0]["bits"]}
        for key in ("rise_percent", "kl", "top1_percent"):
            values = [row[key] for row in group]
            out |= {key: float(np.mean(values)), f"{key}_error": float(np.std(values, ddof=1) / np.sqrt(len(values)))}
        found.append(out)
    return found


def recall_changes(rows: list[dict]) -> list[dict]:
    """What a policy changes in recall: means over needles of its difference from the unquantized run, with errors."""
    needles: dict[tuple, dict[tuple, dict]] = {}
    for row in rows:
        needles.setdefault((row["length"], row["policy"]), {})[row["seed"], row["depth"]] = row
    found = []
    for (length, policy), mine in needles.items():
        base = needles.get((length, UNQUANTIZED), {})
        shared = [needle for needle in mine if needle in base]
        if policy == UNQUANTIZED or len(shared) < 2:
            continue
        out = {"length": length, "policy": policy, "needles": len(shared)}
        for key in ("digits_percent", "nll_digit"):
            change = [mine[n][key] - base[n][key] for n in shared]
            out |= {key: float(np.mean([mine[n][key] for n in shared])), f"{key}_change": float(np.mean(change)),
                    f"{key}_change_error": float(np.std(change, ddof=1) / np.sqrt(len(change)))}
        found.append(out)
    return found


def write_tables(out: Path, results: dict[str, dict]) -> None:
    """CSV by kind of measurement, and everything as JSON."""
    tables: dict[str, list[dict]] = {}
    for name, result in results.items():
        kind = name.split()[0]
        if "rows" in result:
            tables.setdefault(kind, []).extend(result["rows"])
            continue
        flat = {k: v for k, v in result.items() if not isinstance(v, (list, dict)) and k != "seconds"}
        flat |= {f"late_{k}": v for k, v in result.get("late", {}).items()}
        tables.setdefault(kind, []).append(flat)
        for row in result.get("by_position", []):
            tables.setdefault("position", []).append({**{k: result[k] for k in ("text", "length", "policy")}, **row})
    if averages := means(tables.get("perplexity", [])):
        tables["mean"] = averages
    if "recall" in tables:
        tables["recall-change"] = recall_changes(tables["recall"])
    for kind, rows in tables.items():
        columns = list(dict.fromkeys(k for row in rows for k in row))
        with (out / f"{kind}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    (out / "eval.json").write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(f"{out / kind}.csv: {len(rows)} rows" for kind, rows in tables.items()))


def positive(text: str) -> int:
    """A number of tokens or of other things."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def numbers(text: str) -> list[int]:
    """A comma list of them."""
    return [positive(part) for part in text.split(",")]


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A comma list of known names."""
    def parse(text: str) -> list[str]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is unknown (known: {', '.join(known)})")
        return text.split(",")
    return parse


def pattern(text: str) -> re.Pattern:
    """A regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends with the message."""
        self.exit(2, f"eval: {message} (--help lists all options)\n")


def parse_args() -> argparse.Namespace:
    """Command line."""
    p = Parser(prog="eval", description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    p.add_argument("--quick", action="store_true", help="512 tokens and few policies: minutes")
    p.add_argument("--model", choices=models.SOURCES, default=models.DEFAULT)
    p.add_argument("--only", type=names(PLANS), default=list(PLANS),
                   help="in this order: 1 perplexity, 2 behaviour, 3 stress, 4 longer texts (default: 1,3,2,4)")
    p.add_argument("--match", type=pattern, default="", metavar="REGEX", help="only measurements of such names")
    p.add_argument("--length", type=positive, help="tokens of a text in rounds 1 and 2 (default 2048)")
    p.add_argument("--texts", type=names(corpus.TEXTS), default=["prose", "technical"],
                   help="the first is the one that everything is measured on; known: " + ", ".join(corpus.TEXTS))
    p.add_argument("--policies", nargs="+", metavar="POLICY",
                   help="measured in rounds 1, 2 and 4, instead of those of docs/accuracy.md")
    p.add_argument("--sweep", type=numbers, default=[4096, 8192], help="tokens of the longer texts")
    p.add_argument("--passages", type=positive, default=1, help="of each of the longer texts, one after the other")
    p.add_argument("--recall", type=numbers, help="tokens of the contexts of recall (default: --length)")
    p.add_argument("--contexts", type=positive, default=2, help="of recall, eight needles each")
    p.add_argument("--prompts", type=positive, default=8, help="continued, for repetition")
    p.add_argument("--prompt-tokens", type=positive, default=320,
                   help="of each: more than sinks and a recent window hold")
    p.add_argument("--new-tokens", type=positive, default=96, help="generated per prompt")
    p.add_argument("--out", type=Path, default=Path("build/eval"))
    p.add_argument("--corpus", type=Path, default=Path("build/corpus"))
    p.add_argument("--library", type=Path, default=Path("build/lib/libnibble.so.1"))
    p.add_argument("--tool", type=Path, default=Path("build/bin/nibble"))
    p.add_argument("--gguf", type=Path, help="a GGUF of the model's architecture (default: the packages')")
    p.add_argument("--model-dir", type=Path, default=Path("build/model"))
    p.add_argument("--backend", default="sim")
    p.add_argument("--threads", type=int, default=0)
    args = p.parse_args()
    if args.quick and args.length:
        p.error("--quick has a length of its own (allowed: --quick or --length)")
    args.length = 512 if args.quick else args.length or 2048
    args.out = args.out / "quick" if args.quick else args.out
    return args


def main() -> None:
    """Command line entry."""
    args = parse_args()
    try:
        e = Evaluation(args)
        for number in args.only:
            PLANS[number](e, args.length, args.quick)
        if not e.queue:
            raise ValueError("no measurement has such a name (--only, --match)")
        try:
            e.run()
        finally:
            write_tables(e.out, e.results())
    except KeyboardInterrupt:
        sys.exit("eval: stopped; the same command goes on from here")
    except (OSError, ValueError, subprocess.CalledProcessError, runner.nibble.Error) as error:
        sys.exit(f"eval: {error}")


if __name__ == "__main__":
    main()

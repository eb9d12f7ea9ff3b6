#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every test that ctest knows in a build folder and counts single tests, not programs.

Each program runs in its own process group under an outer time limit; when the limit strikes, or when the program is
gone and something it started is not, the group is killed. Criterion programs (those with a --tap=FILE argument) are
counted from their TAP file, others count as one test. A run is only green if every program left the plan it announced,
no test was skipped without a reason, and at least --floor tests passed. The last line is

    N passed, 0 failed, M skipped
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TAP_LINE = re.compile(r"^(ok|not ok)\b(?: \d+)? - (\S+)([^\n]*)$", re.MULTILINE)
TAP_PLAN = re.compile(r"^1\.\.(\d+)$", re.MULTILINE)
TAP_SKIP = re.compile(r"# SKIP ?(.*)$")
DISABLED = "test was skipped"
TIME_LIMIT_S = 900
GROUPS: set[int] = set()


class Program(NamedTuple):
    """One entry of ctest."""

    name: str
    command: list[str]
    folder: str | None
    environment: dict[str, str]
    limit_s: float
    fail_words: str | None
    skip_code: int | None
    labels: list[str]


class Outcome(NamedTuple):
    """What one program came to."""

    passed: int
    failed: list[str]
    skipped: list[str]
    log: str
    seconds: float


def as_list(value: object) -> list[str]:
    """ctest writes one-element lists as strings in places."""
    return list(value) if isinstance(value, list) else [str(value)] if value else []


def programs(build: Path) -> list[Program]:
    """All tests that ctest lists for a build folder."""
    text = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"], check=True, capture_output=True,
                          text=True).stdout
    found = []
    for test in json.loads(text)["tests"]:
        values = {p["name"]: p["value"] for p in test.get("properties", [])}
        fail_words = as_list(values.get("FAIL_REGULAR_EXPRESSION"))
        code = values.get("SKIP_RETURN_CODE")
        found.append(Program(test["name"], test.get("command", []), values.get("WORKING_DIRECTORY"),
                             dict(e.split("=", 1) for e in as_list(values.get("ENVIRONMENT"))),
                             float(values.get("TIMEOUT", TIME_LIMIT_S)), "|".join(fail_words) or None,
                             int(code) if code is not None else None, as_list(values.get("LABELS"))))
    return found


def environment(extra: dict[str, str]) -> dict[str, str]:
    """Environment of a test: nothing that turns Criterion's verdict, few threads, then what the test asks for."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CRITERION_", "NIBBLE_", "OMP_", "GOMP_"))}
    return {**kept, "OMP_NUM_THREADS": "2", **extra}


def end_group(group: int) -> None:
    """Kills what is left of a process group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def stop(signal_number: int, _frame: object) -> None:
    """Ends everything that still runs, then this process."""
    for group in list(GROUPS):
        end_group(group)
    os._exit(128 + signal_number)


def execute(program: Program) -> tuple[int | None, str]:
    """(exit status or None for a time-out, output) of one program. Output goes through a file: a pipe would hang."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(program.command, cwd=program.folder, env=environment(program.environment),
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        GROUPS.add(process.pid)
        try:
            status: int | None = process.wait(program.limit_s)
        except subprocess.TimeoutExpired:
            status = None
        end_group(process.pid)
        process.wait()
        GROUPS.discard(process.pid)
        out.seek(0)
        return status, out.read().decode(errors="replace")


def tap_file(program: Program) -> Path | None:
    """Where a Criterion program writes its results."""
    return next((Path(a[6:]) for a in program.command if a.startswith("--tap=")), None)


def read_tap(name: str, path: Path) -> tuple[int, list[str], list[str]]:
    """(passed, failed, skipped) of a TAP file."""
    text = path.read_text(errors="replace") if path.exists() else ""
    passed, failed, skipped = 0, [], []
    lines = TAP_LINE.findall(text)
    for verdict, test, rest in lines:
        skip = TAP_SKIP.search(rest)
        if skip and skip[1].strip() in ("", DISABLED):
            failed.append(f"{name}: {test}: skipped without a reason")
        elif skip:
            skipped.append(f"{name}: {test}: {skip[1].strip()}")
        elif verdict == "ok":
            passed += 1
        else:
            failed.append(f"{name}: {test}{rest.rstrip()}")
    plan = TAP_PLAN.search(text)
    if not lines or not plan or int(plan[1]) != len(lines):
        failed.append(f"{name}: {len(lines)} results of {plan[1] if plan else 'no'} announced tests")
    return passed, failed, skipped


def run(program: Program) -> Outcome:
    """Runs one program and counts its tests."""
    start = time.monotonic()
    tap = tap_file(program)
    if tap:
        tap.unlink(missing_ok=True)
    status, log = execute(program)
    name, failed, skipped, passed = program.name, [], [], 0
    if tap:
        passed, failed, skipped = read_tap(name, tap)
    elif status is not None and status == program.skip_code:
        skipped = [f"{name}: {log.strip().splitlines()[-1] if log.strip() else ''}"]
    elif status == 0:
        passed = 1
    if status is None:
        failed.append(f"{name}: killed after {program.limit_s:g} s")
    elif status != 0 and not failed and not (skipped and not tap):
        failed.append(f"{name}: exit status {status}")
    if program.fail_words and re.search(program.fail_words, log):
        failed.append(f"{name}: output holds what it must not: {program.fail_words}")
    return Outcome(passed, failed, skipped, log, time.monotonic() - start)


def report(program: Program, outcome: Outcome) -> None:
    """One line per program; its output if it failed."""
    print(f"{program.name}: {outcome.passed} passed, {len(outcome.failed)} failed, {len(outcome.skipped)} skipped"
          f" ({outcome.seconds:.1f} s)", flush=True)
    for line in outcome.skipped:
        print(f"  skipped: {line}")
    for line in outcome.log.splitlines():
        if line.startswith("left out: "):
            print(f"  {line}")
    for line in outcome.failed:
        print(f"  FAILED: {line}")
    if outcome.failed:
        print("\n".join("  | " + line for line in outcome.log.splitlines()[-200:]))


def run_all(chosen: list[Program], jobs: int, floor: int) -> tuple[bool, str]:
    """Runs programs; (all is well, last line). Beside those of Criterion, which keep two cores busy for most of their
    time, as many others run, mostly of one thread."""
    passed, failed, skipped = 0, 0, 0
    pool = concurrent.futures.ThreadPoolExecutor
    with pool(jobs) as criterion, pool(jobs) as others:
        started = [(criterion if tap_file(program) else others).submit(run, program) for program in chosen]
        for program, waiting in zip(chosen, started):
            outcome = waiting.result()
            report(program, outcome)
            passed, failed = passed + outcome.passed, failed + len(outcome.failed)
            skipped += len(outcome.skipped)
    if passed < floor:
        print(f"  FAILED: {passed} tests passed, at least {floor} must")
        failed += 1
    return failed == 0, f"{passed} passed, {failed} failed, {skipped} skipped"


def fake(folder: Path, script: str, tap: bool = True, limit_s: float = 20) -> Program:
    """A program of the self-test; $1 is --tap=FILE, $T the file."""
    command = ["bash", "-c", 'T=${1#--tap=}; ' + script, "fake"] + ([f"--tap={folder}/out.tap"] if tap else [])
    return Program("fake", command, None, {"MARK": "seen"}, limit_s, "Tested: 0 ", 77, [])


def self_test() -> list[str]:
    """Fake programs, good and bad; says which were counted wrongly."""
    good = r'printf "1..2\nok - a::x  (0.01s)\nok - a::y  # SKIP no such CPU\n" > $T'
    cases = [
        (good, True, 1, "1 passed, 0 failed, 1 skipped"),
        (good, True, 2, "1 passed, 1 failed, 1 skipped"),
        ("true", True, 0, "0 passed, 1 failed, 0 skipped"),
        (good + "; exit 1", True, 0, "1 passed, 1 failed, 1 skipped"),
        (r'printf "1..3\nok - a::x\n" > $T', True, 0, "1 passed, 1 failed, 0 skipped"),
        (r'printf "1..1\nok - a::x  # SKIP test was skipped\n" > $T', True, 0, "0 passed, 1 failed, 0 skipped"),
        (r'printf "1..1\nnot ok - a::x unexpected signal\n" > $T; exit 1', True, 0, "0 passed, 1 failed, 0 skipped"),
        (r'printf "1..1\nok - a::x\n" > $T; echo "Tested: 0 | "', True, 0, "1 passed, 1 failed, 0 skipped"),
        (good + "; sleep 60", True, 0, "1 passed, 1 failed, 1 skipped"),
        ("sleep 60 & exit 0", False, 1, "1 passed, 0 failed, 0 skipped"),
        ("exit 3", False, 0, "0 passed, 1 failed, 0 skipped"),
        ("echo why; exit 77", False, 0, "0 passed, 0 failed, 1 skipped"),
        ('test "$MARK" = seen && test -z "$CRITERION_ALWAYS_SUCCEED"', False, 1, "1 passed, 0 failed, 0 skipped"),
    ]
    os.environ["CRITERION_ALWAYS_SUCCEED"] = "1"
    wrong = []
    for script, tap, floor, expected in cases:
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nothing:
            kept, sys.stdout = sys.stdout, nothing
            well, line = run_all([fake(Path(folder), script, tap, 1)], 1, floor)
            sys.stdout = kept
        if line != expected or well != (" 0 failed" in expected):
            wrong.append(f"self-test: {script!r} gave {line!r}, expected {expected!r}")
    del os.environ["CRITERION_ALWAYS_SUCCEED"]
    return wrong


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("build", type=Path, nargs="?", help="build folder")
    parser.add_argument("--floor", type=int, default=1, help="least number of tests that must pass (default 1)")
    parser.add_argument("--only", default="", metavar="REGEX", help="only programs whose ctest name matches")
    parser.add_argument("--label", default="", help="only programs with this ctest label")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2),
                        help="programs of Criterion at a time, and as many others beside them")
    parser.add_argument("--summary", type=Path, help="file that receives the last line too")
    parser.add_argument("--self-test", action="store_true", help="check this script itself and stop")
    args = parser.parse_args()
    if not args.self_test and not args.build:
        parser.error("a build folder is needed")
    return args


def main() -> None:
    """Command line entry."""
    args = arguments()
    if args.self_test:
        wrong = self_test()
        print("\n".join(wrong) or "run_tests: ok (13 self-test cases)")
        sys.exit(1 if wrong else 0)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    chosen = [p for p in programs(args.build)
              if re.search(args.only, p.name) and (not args.label or args.label in p.labels)]
    for program in chosen:
        if not program.command:
            raise SystemExit(f"run_tests: {program.name}: not built")
    well, line = run_all(chosen, args.jobs, args.floor)
    if args.summary:
        args.summary.write_text(line + "\n")
    print(line)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()

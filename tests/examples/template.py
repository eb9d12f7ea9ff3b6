#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The conformance suite against backends/null: every test is skipped, each with the backend's own reason.

Usage: template.py CONFORMANCE_PROGRAM BACKEND_DIR
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

RESULT = re.compile(r"^(ok|not ok) - (\S+)(?:.*# SKIP (.*))?", re.MULTILINE)
REASONS = re.compile(r"the backend can do nothing: nibble: null: |nibble: null: threads and isa are the simulator's")
LEAST = 150


def main(program: str, directory: str) -> None:
    """Command line entry."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NIBBLE_", "CRITERION_"))}
    with tempfile.TemporaryDirectory() as folder:
        tap = Path(folder) / "tap"
        subprocess.run([program, f"--tap={tap}", "--jobs", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env={**clean, "NIBBLE_BACKEND": "null", "NIBBLE_BACKEND_DIR": directory}, check=True)
        results = RESULT.findall(tap.read_text())
    wrong = [f"{test}: {verdict} {reason or 'without a reason'}" for verdict, test, reason in results
             if verdict != "ok" or not REASONS.match(reason)]
    if wrong or len(results) < LEAST:
        sys.exit("\n".join(wrong) or f"only {len(results)} tests")
    print(f"template: {len(results)} tests skipped, each with the backend's reason")


if __name__ == "__main__":
    main(*sys.argv[1:])

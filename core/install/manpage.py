#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes nibble.1 from the tool's own help, so that the page cannot name an option that the tool has not.

Usage: manpage.py TOOL OUT.1
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

COMMAND = re.compile(r"^  ([a-z]+)  +(.*)$", re.MULTILINE)
OPTION = re.compile(r"^  (--[a-z0-9-]+)(?: (\S+))?  +(.*)$")

HEAD = """.Dd November 29, 2026
.Dt NIBBLE 1
.Os
.Sh NAME
.Nm nibble
.Nd attention over a 4- to 8-bit KV cache: check, measure, plan
.Sh SYNOPSIS
.Nm
.Ar command
.Op Ar options
.Nm
.Fl -help | -version
.Sh DESCRIPTION
.Nm
shows what libnibble can do on this machine, how much memory and accuracy a cache format costs, and how fast it is.
Results have the same bits on every backend, instruction set and number of threads.
"""

TAIL = """.Sh ENVIRONMENT
.Bl -tag -width Ds
.It Ev NIBBLE_BACKEND
Comma list of backends in the order in which they are tried, or one absolute path.
Unset:
.Cm cuda .
Empty or unknown is an error; there is no other fallback than the list.
.It Ev NIBBLE_BACKEND_DIR
One absolute directory; replaces the directories that are searched by default.
.It Ev NIBBLE_LOG
.Cm error
(default),
.Cm warn ,
.Cm info
or
.Cm debug ;
lines go to standard error.
.It Ev NIBBLE_SIM_THREADS
Threads of the simulator, 1 to 1024.
.It Ev NIBBLE_SIM_ISA
Instruction set of the simulator:
.Cm scalar , avx2 , avx512 , amx , neon
or
.Cm i8mm .
.It Ev NIBBLE_SIM_PROFILE
The GPU whose tensor cores the simulator's float core is:
.Cm sm_80 , sm_89 , sm_90
(default),
.Cm sm_100
or
.Cm sm_120 .
Changes the bits of that core alone.
.El
.Pp
The variables are read once, and ignored in a process with raised privileges.
.Sh FILES
.Bl -tag -width Ds
.It Pa libnibble-backend-NAME.so.1
A backend.
Searched in
.Fl -backend-dir ,
then in
.Ev NIBBLE_BACKEND_DIR
or, without it, in the directory
.Pa nibble
beside libnibble and the one compiled in.
.El
.Sh EXIT STATUS
.Bl -tag -width Ds
.It 0
All went well.
.It 1
A check or an operation failed.
.It 2
Wrong usage.
.It 3
No backend or device.
.It 4
An input file cannot be used.
.El
.Sh EXAMPLES
What is missing on this machine:
.Pp
.Dl nibble doctor
.Pp
Memory of a model's cache in each recipe:
.Pp
.Dl nibble plan --layers 32 --hkv 8 --d 128 --kv 131072
.Pp
Decode speed on this CPU:
.Pp
.Dl nibble bench --backend sim --op attend --hq 32 --hkv 8 --d 128 --kv 16384 --nq 1 --recipe kv4
"""


def tool_help(tool: str, *words: str) -> str:
    """Output of --help."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NIBBLE_")}
    return subprocess.run([tool, *words, "--help"], check=True, capture_output=True, text=True, env=clean).stdout


def escape(text: str) -> str:
    """Text that mdoc takes for nothing but text."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)


def sentences(text: str) -> list[str]:
    """One line per sentence, as mdoc wants it."""
    return [escape(s) for s in re.split(r"(?<=[.;:]) +(?=[A-Z])", text) if s]


def option_lines(line: str) -> list[str]:
    """mdoc of one option, or nothing."""
    hit = OPTION.match(line)
    if not hit:
        return []
    argument = f" Ar {hit[2]}" if hit[2] else ""
    return [f".It Fl {escape(hit[1][1:])}{argument}", *sentences(hit[3])]


def command_lines(tool: str, name: str, summary: str) -> list[str]:
    """mdoc of one command."""
    text = tool_help(tool, name)
    options = [o for line in text.splitlines() for o in option_lines(line)]
    rest = text.rsplit("\n\n", 2)[-2] if text.count("\n\n") > 2 else ""
    remarks = [s for line in rest.splitlines() for s in sentences(line.strip())]
    return [f".Ss nibble {name}", *sentences(summary), ".Bl -tag -width Ds", *options, ".El",
            *([".Pp", *remarks] if remarks and "--help" not in rest else [])]


def page(tool: str) -> str:
    """The whole page."""
    commands = COMMAND.findall(tool_help(tool))
    if not commands:
        sys.exit("manpage: the tool's help lists no command")
    lines = [".Sh COMMANDS"]
    for name, summary in commands:
        lines += command_lines(tool, name, summary)
    return HEAD + "\n".join(lines) + "\n" + TAIL


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip().splitlines()[-1])
    Path(sys.argv[2]).write_text(page(sys.argv[1]))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels' machine code holds the tensor-core instructions that they are written for, on every architecture built.

Usage: machine_code.py BUILD. Disassembles the objects of RULES with the cuobjdump of the CUDA toolkit (beside the
build's nvcc, or on PATH; it needs nvdisasm) into OBJECT.sass and looks there. Registers, which decide how many blocks
share a multiprocessor, come from what ptxas said (backends/cuda/keep_report.sh). Without cuobjdump only the registers
are checked, and the output says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from common import Case, main
from spills import ENTRY, architectures, kernel_name


class Rule(NamedTuple):
    """What the code of a kernel must hold on some architectures, all of its instances together, and must not."""

    kernel: str
    source: str
    architectures: str  # a pattern of numbers, 90 or 120
    needed: tuple[str, ...]
    forbidden: tuple[str, ...] = ()


RULES = (
    Rule("blackwell_kernel", "blackwell_attend", "120|121",
         (r"OMMA\.SF\.16864\.F32\.E2M1\.E2M1\.UE4M3\.4X", r"OMMA\.SF\.16864\.F32\.E2M1\.E2M1\.(U?E8)",
          r"QMMA\.16832\.F32\.E4M3\.E4M3"), (r"IMMA", r"HMMA", r"STL", r"LDL")),
    Rule("blackwell_tensor_kernel", "blackwell_tensor", "100|103",
         (r"UTCOMMA\.4X", r"UTCOMMA$", r"UTCQMMA", r"UTCCP", r"LDTM", r"STTM"), (r"IMMA", r"STL", r"LDL")),
    Rule("blackwell_tensor_kernel", "blackwell_tensor", "80|89|90|120", (), (r"UTC", r"IMMA", r"STL", r"LDL")),
    Rule("blackwell_kernel", "blackwell_attend", "80|89|90|100|103", (r"IMMA\.16816\.S8\.S8",), (r"OMMA", r"QMMA")),
    # ptxas 13.0 makes wrong code of a copy with a cache policy whose address it leaves a sum (ptx_cp_async_16)
    Rule("decode_kernel", "decode", ".*", (r"IMMA\.16832\.[SU]8\.[SU]8", r"HMMA\.16816\.F32$"), (r"LDGSTS.*\+UR",)),
    Rule("team_kernel", "decode_team", ".*", (r"IMMA\.16832\.[SU]8\.[SU]8",), (r"HMMA",)),
    Rule("prefill_mma_kernel", "prefill_mma", ".*", (r"IMMA\.16832\.S8\.S8", r"IMMA\.16832\.U8\.S8"), (r"HMMA",)),
    Rule("prefill_wgmma_kernel", "prefill_wgmma", "90", (r"IGMMA\.64x\d+x32\.S8\.S8", r"IGMMA\.64x\d+x32\.U8\.S8")),
)

# instance of a kernel, architecture: registers a thread, so that the blocks of its launch bounds fit
REGISTERS = {
    ("blackwell_kernel<1,1>", "sm_120f"): 128,
    ("blackwell_kernel<2,1>", "sm_120f"): 168,
    ("blackwell_kernel<1,2>", "sm_120f"): 168,
    ("blackwell_kernel<1,4>", "sm_120f"): 255,
    ("blackwell_tensor_kernel", "sm_100f"): 128,
}

USED = re.compile(r"Used (\d+) registers")
SECTION = re.compile(r"^\s*(?:arch = sm_(?P<arch>\d+)\w*|Function : (?P<function>\S+))\s*$")
OPCODE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(?: \[R\d+(\+UR)\d+)?")


def opcodes(text: str) -> dict[tuple[str, str], set[str]]:
    """Opcodes of each (kernel, architecture number) of a disassembly, "+UR" after one whose first operand is an address
    that has a uniform register added; instances of a template count together."""
    found: dict[tuple[str, str], set[str]] = {}
    arch, here = "", set()
    for line in text.splitlines():
        if section := SECTION.match(line):
            arch = section["arch"] or arch
            if section["function"]:
                here = found.setdefault((kernel_name(section["function"]).split("<")[0], arch), set())
        elif code := OPCODE.match(line):
            here.add(code[1] + (code[2] or ""))
    return found


def check_rule(rule: Rule, arch: str, found: dict[tuple[str, str], set[str]]) -> list[str]:
    """Findings about a rule's kernel on an architecture."""
    codes = found.get((rule.kernel, arch))
    if codes is None:
        return [f"no machine code of {rule.kernel} for sm_{arch}"]
    lacks = [f"{rule.kernel} for sm_{arch} has no {pattern}" for pattern in rule.needed
             if not any(re.match(pattern, code) for code in codes)]
    return lacks + [f"{rule.kernel} for sm_{arch} has {code}" for code in sorted(codes)
                    if any(re.match(pattern, code) for pattern in rule.forbidden)]


def check_registers(build: Path, wanted: set[str]) -> list[str]:
    """Findings about the registers of REGISTERS, on architectures that the build is for."""
    used, at = {}, None
    for report in sorted(build.glob("backends/cuda/**/*.ptxas")):
        for line in report.read_text(errors="replace").splitlines():
            if entry := ENTRY.search(line):
                at = (kernel_name(entry[1]), entry[2])
            elif (count := USED.search(line)) and at:
                used[at], at = int(count[1]), None
    found = []
    for (kernel, arch), limit in REGISTERS.items():
        if arch in wanted and (kernel, arch) not in used:
            found.append(f"no report about {kernel} for {arch}")
        elif arch in wanted and used[kernel, arch] > limit:
            found.append(f"{kernel} for {arch} uses {used[kernel, arch]} registers, more than {limit}")
    return found


def check(build: Path) -> list[str]:
    """Findings for a build folder whose objects have been disassembled; without disassemblies only of registers."""
    wanted = architectures(build)
    if not wanted:
        return [f"{build.name} names no architectures (NIBBLE_CUDA_ARCHS)"]
    found = check_registers(build, wanted)
    files = sorted(build.glob("backends/cuda/**/*.sass"))
    for rule in RULES if files else ():
        text = "".join(file.read_text(errors="replace") for file in files if file.name == f"{rule.source}.cu.o.sass")
        codes = opcodes(text)
        for arch in sorted(re.sub(r"\D", "", name) for name in wanted):
            if re.fullmatch(rule.architectures, arch):
                found += check_rule(rule, arch, codes)
    return found


def find_cuobjdump(build: Path) -> str | None:
    """The tool beside the build's compiler, or on PATH; it is of no use without nvdisasm."""
    compiler = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    folder = str(Path(compiler[1]).parent) if compiler else None
    for path in (folder, None):
        tool = shutil.which("cuobjdump", path=path)
        if tool and (shutil.which("nvdisasm", path=str(Path(tool).parent)) or shutil.which("nvdisasm")):
            return tool
    return None


def disassemble(build: Path) -> str | None:
    """Writes OBJECT.sass for every object of RULES; None, or the reason why there are none."""
    for stale in build.glob("backends/cuda/**/*.sass"):
        stale.unlink()
    tool = find_cuobjdump(build)
    if tool is None:
        return "no cuobjdump and nvdisasm beside nvcc or on PATH"
    for source in sorted({rule.source for rule in RULES}):
        for target in build.glob(f"backends/cuda/**/{source}.cu.o"):
            result = subprocess.run([tool, "-sass", target], capture_output=True, text=True, check=False)
            if result.returncode != 0:
                return f"{tool} cannot read {target.name}: {result.stderr.strip().splitlines()[-1:]}"
            target.with_name(target.name + ".sass").write_text(result.stdout)
    return None


# ---------------------------------------------------------------------------------------------------- self-test

NATIVE = ("OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X R4, R8, R12, R4, R1, R2, URZ", "OMMA.SF.16864.F32.E2M1.E2M1.E8 R4",
          "@P0 QMMA.16832.F32.E4M3.E4M3 R4, R8, R12, R4")
EMULATED = ("IMMA.16816.S8.S8 R1",)
TENSOR = ("UTCOMMA gdesc[UR4]", "UTCOMMA.4X gdesc[UR4]", "UTCQMMA gdesc[UR4]", "UTCCP.T.S.4x32dp128bit tmem[UR4]",
          "LDTM.x8 R4", "STTM.x8 tmem[UR4]")
STUB = ("EXIT",)
OTHERS = {"decode": ("decode_kernel", ("IMMA.16832.S8.U8 R1", "HMMA.16816.F32 R1")),
          "decode_team": ("team_kernel", ("IMMA.16832.S8.U8 R1",)),
          "prefill_mma": ("prefill_mma_kernel", ("IMMA.16832.S8.S8 R1", "IMMA.16832.U8.S8 R1"))}


def mangled(kernel: str) -> str:
    """A kernel's name, `name` or `name<1,2>`, as the compiler writes it."""
    name, *numbers = re.findall(r"\w+", kernel)
    arguments = "".join(f"Lj{number}E" for number in numbers)
    return f"_ZN3abc{len(name)}{name}" + (f"I{arguments}EEv6params" if numbers else "E6params")


def tree(codes: tuple[str, ...], arch: str = "120", more: int = 0, tensor: tuple[str, ...] = STUB) -> dict[str, str]:
    """A build folder whose Blackwell kernels have these instructions and so many registers more than they may; other
    kernels keep their rules."""
    kernels = {**OTHERS, "blackwell_attend": ("blackwell_kernel<2,1>", codes),
               "blackwell_tensor": ("blackwell_tensor_kernel", tensor)}
    files = {"CMakeCache.txt": f"NIBBLE_CUDA_ARCHS:STRING={arch}f-real\n"}
    for source, (kernel, lines) in kernels.items():
        body = "".join(f"        /*{16 * i:04x}*/                   {line} ;\n" for i, line in enumerate(lines))
        files[f"backends/cuda/x/{source}.cu.o.sass"] = f"arch = sm_{arch}\n\t\tFunction : {mangled(kernel)}\n{body}"
    files["backends/cuda/x/b.cu.o.ptxas"] = "".join(
        f"ptxas info    : Compiling entry function '{mangled(kernel)}' for '{name}'\n"
        f"ptxas info    : Used {limit + more} registers\n" for (kernel, name), limit in REGISTERS.items())
    return files


NO_CODE = {**tree(NATIVE), "backends/cuda/x/blackwell_attend.cu.o.sass": ""}
DECODE = "backends/cuda/x/decode.cu.o.sass"
GOOD_COPY, SUM_COPY = (f"        /*0100*/  @!P1 LDGSTS.E.BYPASS.128 [{place}], desc[UR10][R6.64] ;\n"
                       for place in ("R5+0x200", "R5+UR8+0x200"))
CASES = [
    Case(tree(NATIVE), None),
    Case(tree(NATIVE[1:]), "blackwell_kernel for sm_120 has no OMMA"),
    Case(tree(NATIVE[:2]), "blackwell_kernel for sm_120 has no QMMA"),
    Case(tree((*NATIVE, "STL [R1], R2")), "blackwell_kernel for sm_120 has STL"),
    Case(tree((*NATIVE, "IMMA.16816.S8.S8 R1")), "blackwell_kernel for sm_120 has IMMA.16816.S8.S8"),
    Case(tree(NATIVE, tensor=TENSOR), "blackwell_tensor_kernel for sm_120 has UTCOMMA"),
    Case(tree(EMULATED, "100", tensor=TENSOR), None),
    Case(tree(EMULATED, "100", tensor=TENSOR[1:]), "blackwell_tensor_kernel for sm_100 has no UTCOMMA$"),
    Case(tree(EMULATED, "100", tensor=STUB), "blackwell_tensor_kernel for sm_100 has no UTCQMMA"),
    Case(tree(NATIVE, "100", tensor=TENSOR), "blackwell_kernel for sm_100 has OMMA"),
    Case(tree(NATIVE, more=1), "blackwell_kernel<2,1> for sm_120f uses 169 registers"),
    Case({"CMakeCache.txt": "NIBBLE_CUDA_ARCHS:STRING=120f-real\n"}, "no report about blackwell_kernel<1,1>"),
    Case({**tree(NATIVE), DECODE: tree(NATIVE)[DECODE] + GOOD_COPY}, None),
    Case({**tree(NATIVE), DECODE: tree(NATIVE)[DECODE] + SUM_COPY},
         "decode_kernel for sm_120 has LDGSTS.E.BYPASS.128+UR"),
    Case(NO_CODE, "no machine code of blackwell_kernel for sm_120"),
    Case({"CMakeCache.txt": ""}, "names no architectures"),
]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: machine_code.py BUILD")
    BUILD = Path(sys.argv[1])
    if reason := disassemble(BUILD):
        print(f"machine_code: instructions skipped: {reason}; registers are checked")
    main("machine_code", check, CASES, BUILD)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian packages: built by CPack, installed into an empty root that knows this machine's packages, used, removed.

Usage: packages.py BUILD. Exits with 77 and the reason where it cannot run.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from common import check_consumers, expect, run

NAMES = ["libnibble-dev", "libnibble1", "nibble-backend-sim", "nibble-tools"]
CUDA = "nibble-backend-cuda"
CUDA_PLUGIN = "usr/lib/nibble/libnibble-backend-cuda.so.1"


def build_packages(build: Path, out: Path) -> list[Path]:
    """The packages of a build folder; their fields are those that Debian needs."""
    run("cpack", "-G", "DEB", "--config", build / "CPackConfig.cmake", "-B", out)
    packages = sorted(out.glob("*.deb"))
    names = [run("dpkg-deb", "-f", p, "Package").strip() for p in packages]
    expect("packages", str([n for n in names if n != CUDA]), str(NAMES))
    for package, name in zip(packages, names):
        depends = run("dpkg-deb", "-f", package, "Depends")
        if name != "libnibble1" and "libnibble1 (= " not in depends:
            sys.exit(f"{name} depends on {depends!r}")
        if name != "libnibble-dev" and "libc6 (>= " not in depends:
            sys.exit(f"{name} does not say which libc6 it needs: {depends!r}")
    return packages


def inspect_cuda(package: Path) -> None:
    """Holds the plugin and nothing that a machine without a driver lacks."""
    files = [line.split()[-1].removeprefix("./") for line in run("dpkg-deb", "--contents", package).splitlines()
             if not line.startswith("d")]
    expect("files of " + CUDA, str(files), str([CUDA_PLUGIN, f"usr/share/doc/{CUDA}/copyright"]))
    depends = run("dpkg-deb", "-f", package, "Depends")
    if "nvidia" in depends or "cuda" in depends:
        sys.exit(f"{CUDA} depends on {depends!r}; the driver is only suggested")
    expect("Suggests", run("dpkg-deb", "-f", package, "Suggests").strip(), "nvidia-driver")


def use_cuda(root: Path, dpkg: list[str]) -> None:
    """Its plugin is found, loads, and says what the machine lacks; after the removal it is missed by name."""
    tool, plugin = root / "usr/bin/nibble", root / CUDA_PLUGIN
    if Path("/dev/nvidiactl").exists():
        text = run(tool, "info", "--backend", "cuda")
        wanted = str(plugin)
    else:
        text = run(tool, "doctor", NIBBLE_BACKEND="cuda", status=1)
        wanted = f"cuda: {plugin}: cuda: no NVIDIA driver"
    if wanted not in text:
        sys.exit(f"with {CUDA} installed: {text!r}, expected {wanted!r}")
    run(*dpkg, "--remove", CUDA)
    text = run(tool, "info", "--backend", "cuda", status=3)
    wanted = f'nibble: --backend: backend "cuda": no libnibble-backend-cuda.so.1 in: {root}/usr/lib/nibble, '
    if wanted not in text:
        sys.exit(f"after the removal of {CUDA}: {text!r}, expected {wanted!r}")


def prepare_root(root: Path) -> list[str]:
    """A root with the packages of this machine on record, so that dependencies are really checked; dpkg's options."""
    admin = root / "var/lib/dpkg"
    for folder in ("info", "updates", "triggers"):
        (admin / folder).mkdir(parents=True)
    shutil.copy("/var/lib/dpkg/status", admin / "status")
    return ["dpkg", f"--root={root}", "--no-triggers", "--force-bad-path", "--force-script-chrootless",
            f"--log={root}/log"]


def installed_files(root: Path) -> list[str]:
    """Every file outside dpkg's own folder."""
    names = [p.relative_to(root).as_posix() for p in root.rglob("*") if not p.is_dir()]
    return sorted(n for n in names if n != "log" and not n.startswith("var/lib/dpkg/"))


def main(build: Path) -> None:
    """Builds, installs, uses, removes."""
    if not shutil.which("dpkg-shlibdeps") or not shutil.which("dpkg"):
        print("no dpkg and dpkg-shlibdeps on this machine")
        sys.exit(77)
    if os.geteuid() != 0:
        print("only root can unpack packages with their owners")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        work, root = Path(folder), Path(folder) / "root"
        packages = build_packages(build, work / "packages")
        dpkg = prepare_root(root)
        run(*dpkg, "--install", *packages)
        cuda = [p for p in packages if p.name.startswith(CUDA)]
        if cuda:
            inspect_cuda(cuda[0])
            use_cuda(root, dpkg)
        else:
            print(f"left out: {CUDA}, this build has no CUDA backend (no nvcc)")
        check_consumers(root / "usr", work / "user")
        text = run(root / "usr/bin/nibble", "doctor", NIBBLE_BACKEND="sim")
        if "ok    sim result: " not in text:
            sys.exit(f"nibble doctor says:\n{text}")
        wrong = run(*dpkg, "--remove", "libnibble1", status=1)
        if "dependency problems prevent removal" not in wrong:
            sys.exit(f"libnibble1 can be removed from under the others:\n{wrong}")
        run(*dpkg, "--remove", "nibble-backend-sim")
        text = run(root / "usr/bin/nibble", "info", "--backend", "sim", status=3)
        wanted = f'nibble: --backend: backend "sim": no libnibble-backend-sim.so.1 in: {root}/usr/lib/nibble, '
        if wanted not in text:
            sys.exit(f"after the removal of the backend: {text!r}, expected {wanted!r}")
        names = [run("dpkg-deb", "-f", p, "Package").strip() for p in packages]
        run(*dpkg, "--purge", *names)
        expect("files left behind", str(installed_files(root)), "[]")
    print("packages: built, installed, used and removed")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip().splitlines()[-2])
    main(Path(sys.argv[1]))

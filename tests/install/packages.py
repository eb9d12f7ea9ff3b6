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


def build_packages(build: Path, out: Path) -> list[Path]:
    """The packages of a build folder; their fields are those that Debian needs."""
    run("cpack", "-G", "DEB", "--config", build / "CPackConfig.cmake", "-B", out)
    packages = sorted(out.glob("*.deb"))
    names = [run("dpkg-deb", "-f", p, "Package").strip() for p in packages]
    expect("packages", str([n for n in names if n != "nibble-backend-cuda"]), str(NAMES))
    for package, name in zip(packages, names):
        depends = run("dpkg-deb", "-f", package, "Depends")
        if name != "libnibble1" and "libnibble1 (= " not in depends:
            sys.exit(f"{name} depends on {depends!r}")
        if name != "libnibble-dev" and "libc6 (>= " not in depends:
            sys.exit(f"{name} does not say which libc6 it needs: {depends!r}")
    return packages


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

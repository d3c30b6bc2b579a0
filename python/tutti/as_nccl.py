"""Replaces NCCL by Tutti's libnccl.so.2 in this process: `import tutti.as_nccl` before `import torch`.

torch loads NCCL by the name of its library, libnccl.so.2. If a library with this name is already loaded, the loader
returns that one, so that torch's backend "nccl" uses Tutti. LD_PRELOAD has the same effect: `python -m tutti.as_nccl`
prints the path to set it to. docs/nccl.md describes how Tutti implements each of NCCL's functions.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

#: The path of Tutti's libnccl.so.2.
path = str(Path(__file__).resolve().parent / "lib" / "libnccl.so.2")

if __name__ == "__main__":
    print(path)
else:
    if "torch" in sys.modules:
        raise ImportError(
            "import tutti.as_nccl ahead of torch: torch has been imported, and has its NCCL. "
            f"Or start the program with LD_PRELOAD={path}"
        )
    #: The loaded library. Its symbols take precedence over those of libraries that are loaded later.
    loaded = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

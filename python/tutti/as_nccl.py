"""Puts Tutti's libnccl.so.2 in NCCL's place for this process: `import tutti.as_nccl` ahead of `import torch`.

torch looks the library up by its name; one of that name that is loaded already is what it gets, and "nccl" then is a
name for Tutti. The other way is LD_PRELOAD: `python -m tutti.as_nccl` prints the path for it. What becomes of each of
NCCL's functions stands in docs/nccl.md.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

#: The library's file.
path = str(Path(__file__).resolve().parent / "lib" / "libnccl.so.2")

if __name__ == "__main__":
    print(path)
else:
    if "torch" in sys.modules:
        raise ImportError(
            "import tutti.as_nccl ahead of torch: torch has been imported, and has its NCCL. "
            f"Or start the program with LD_PRELOAD={path}"
        )
    #: The loaded library. Its names come before those of libraries that are loaded later.
    loaded = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

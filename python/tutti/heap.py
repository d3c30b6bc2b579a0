"""The shared heap: ordinary memory that collectives use without copies, because the other ranks can map it.

With LD_PRELOAD, all large blocks of a program come from it, also those of NumPy and PyTorch:

    LD_PRELOAD=$(python -m tutti.heap) python program.py

Without LD_PRELOAD, use_for_numpy() takes the memory of NumPy's large arrays from it. docs/heap.md has the limits.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

#: The path of libtutti_heap.so.
path = str(Path(__file__).resolve().parent / "lib" / "libtutti_heap.so")

_SET_HANDLER = 304  # the index of PyDataMem_SetHandler in NumPy's table of C functions, since NumPy 1.22


def use_for_numpy() -> None:
    """Takes the memory of NumPy arrays of at least 32 KiB from the heap, from now on. Arrays that exist keep their
    memory.

    NumPy keeps this setting for each thread and context (contextvars). Call the function before the communicator is
    created, because the communicator looks for the heap only then. Raises RuntimeError if NumPy is older than 1.22, and
    ImportError if it is missing.
    """
    import numpy

    version = tuple(int(part) for part in numpy.__version__.split(".")[:2])
    if version < (1, 22):
        raise RuntimeError(f"NumPy {numpy.__version__} has no handlers for memory: install NumPy 1.22 or newer")
    core = numpy._core if version >= (2, 0) else numpy.core
    python = ctypes.pythonapi
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    python.PyCapsule_New.restype = ctypes.py_object
    python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    table = python.PyCapsule_GetPointer(core.multiarray._ARRAY_API, None)
    functions = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[_SET_HANDLER])
    # The handler and the name of the capsule are in the library, because NumPy uses them until the process ends. If the
    # library was preloaded, that heap must be used, because a communicator knows only one.
    library = ctypes.CDLL(None)
    if not hasattr(library, "tutti_heap_numpy_handler"):
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    handler = ctypes.addressof(ctypes.c_char.in_dll(library, "tutti_heap_numpy_handler"))
    name = ctypes.addressof(ctypes.c_char.in_dll(library, "tutti_heap_numpy_capsule"))
    set_handler(python.PyCapsule_New(handler, name, None))


if __name__ == "__main__":
    print(path)

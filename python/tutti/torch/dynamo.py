"""Excludes the functions of the backend from torch.compile.

torch's C++ code calls the methods of a process group inside programs that torch.compile has compiled. Compiling the
methods has no benefit and would be wrong, because Dynamo would treat the buffer addresses of one call as constants.
"""

from __future__ import annotations

import types
from typing import Any, Callable, Iterable, Optional


def _codes(code: types.CodeType) -> Iterable[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _functions(module: types.ModuleType) -> Iterable[Any]:
    for thing in vars(module).values():
        members = vars(thing).values() if isinstance(thing, type) else (thing,)
        for member in members:
            function = member.fget if isinstance(member, property) else member
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                yield function


def _find_skip() -> Optional[Callable[[types.CodeType], None]]:
    """Returns Dynamo's function that excludes a code object from compilation, or None if this torch has none. Does not
    import Dynamo itself, because that takes seconds."""
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:  # torch < 2.0 has no torch.compile
        return None
    if hasattr(eval_frame, "set_code_exec_strategy"):
        never = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
        return lambda code: eval_frame.set_code_exec_strategy(code, never)
    return getattr(eval_frame, "skip_code", None)


def leave_alone(modules: Iterable[types.ModuleType]) -> None:
    """Excludes the functions, methods and property getters of the modules from compilation. Calls of these functions do
    not become slower."""
    skip = _find_skip()
    if skip is None:
        return
    for module in modules:
        for function in _functions(module):
            function._torchdynamo_disable = True
            for code in _codes(function.__code__):
                skip(code)

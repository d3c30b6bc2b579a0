"""Keeps torch.compile out of the backend's own functions.

A group's methods are called by torch's C++ in the middle of compiled programs. They have nothing to compile, and what
Dynamo would make of them is wrong: a plan of one moment's addresses.
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
    """Dynamo's own switch; without importing Dynamo, which takes seconds."""
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:  # torch < 2.0 has no torch.compile
        return None
    if hasattr(eval_frame, "set_code_exec_strategy"):
        never = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
        return lambda code: eval_frame.set_code_exec_strategy(code, never)
    return getattr(eval_frame, "skip_code", None)


def leave_alone(modules: Iterable[types.ModuleType]) -> None:
    """Marks every function of the modules as one that is not to be compiled. Costs nothing when they are called."""
    skip = _find_skip()
    if skip is None:
        return
    for module in modules:
        for function in _functions(module):
            function._torchdynamo_disable = True
            for code in _codes(function.__code__):
                skip(code)

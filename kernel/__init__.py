"""The compiled kernel: per-message work in C, where a compiler was there at the installation.

Each of its functions stands twice: here, in Cython, and in Python where it is called, there mostly
marked `@twin`. Both give the same bytes, which tests hold, and the whole suite passes on either.
Every room may use the kernel; it uses none, keeps no objects and decides nothing.

`SKYLARKMQ_PURE=1` in the environment chooses the Python road.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Final, TypeVar, cast

PURE_VARIABLE: Final = "SKYLARKMQ_PURE"

F = TypeVar("F", bound=Callable[..., Any])


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get(PURE_VARIABLE) == "1":
        return None, f"{PURE_VARIABLE}=1"
    try:
        return import_module("skylarkmq.kernel.compiled"), ""
    except ImportError as error:
        return None, f"there was no C compiler at the installation ({error})"


compiled, why_pure = _load()
"""The module of compiled functions; or None, and why the Python road is taken."""
road: Final = "compiled" if compiled is not None else "python"
twins: Final[dict[str, Callable[..., Any]]] = {}
"""The functions in Python, by name."""


def twin(in_python: F) -> F:
    """Put the kernel's function of the same name in the place of one in Python."""
    twins[in_python.__name__] = in_python
    return in_python if compiled is None else cast(F, getattr(compiled, in_python.__name__))

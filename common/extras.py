"""How to install a part of SkylarkMQ that is not here: one place for all errors and their cures."""

from __future__ import annotations

from typing import Final

IS_ON_INDEX: Final = False
"""Whether pip finds SkylarkMQ by its name. Until a package index has it, the name must not be
told: whoever takes it there could put anything in its place."""


def how_to_install(extra: str) -> str:
    """Return the command that brings an extra, and where it works."""
    if IS_ON_INDEX:
        return f"pip install 'skylarkmq[{extra}]'"
    return f"pip install '.[{extra}]' in the source's folder, or of a wheel 'FILE.whl[{extra}]'"

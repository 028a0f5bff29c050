"""Why a text is no expression. Without the language itself, which only its users load."""

from __future__ import annotations

from typing import Final

TEXT_SIZE_MAX: Final = 4096
"""Characters of an expression."""


class ExpressionError(ValueError):
    """The expression is none; the text says what is wrong and where."""

"""How `make docs` builds the site: Markdown pages by MyST, API pages from the docstrings.

The docstrings are plain text with Google's sections (`Args:`, `Raises:`). They are not written in
reStructuredText, so `as_written` marks what Sphinx would take for its own signs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from skylarkmq import __version__  # noqa: E402

project = "SkylarkMQ"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"SkylarkMQ {__version__}"
exclude_patterns = ["generate.py"]

myst_heading_anchors = 3
default_role = "literal"  # `name` in a docstring is code
autodoc_default_options = {
    # Methods of our own base classes are shown, those of Python's are not.
    "inherited-members": "BaseException, tuple, int, str, IntEnum, Enum",
    "member-order": "bysource",
}
autodoc_typehints = "signature"
# `Client` in a signature may be that of asyncio or the blocking one; the link leads to the first.
suppress_warnings = ["ref.python"]
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

SECTION = re.compile(r"^(Args|Arguments|Attributes|Raises|Returns|Yields):$")
CODE = re.compile(r"(`[^`]*`)")


def escaped(line: str) -> str:
    """Return a line in which no sign outside of `code` has a meaning for Sphinx."""
    parts = CODE.split(line)
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(r"([*|\\])|(?<=\w)(_)(?=\W|$)", r"\\\1\2", parts[place])
    for place in range(1, len(parts), 2):
        parts[place] = f"`{parts[place]}`"  # `` too, for what a role would not take
    return "".join(parts)


def as_written(
    _app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    """Show indented text as it stands, and escape the rest."""
    shown: list[str] = []
    in_section = in_text = False
    for place, line in enumerate(lines):
        before = lines[place - 1] if place else ""
        if SECTION.match(line):
            in_section, in_text = True, False
        elif line and not line.startswith(" "):
            in_section = in_text = False
        if line.startswith(" ") and not in_section and not in_text:
            if before.strip():
                shown.append("")
            shown += ["::", ""]
            in_text = True
        elif shown and line and before.startswith(" ") and not line.startswith(" "):
            shown.append("")
        shown.append(line if in_text or SECTION.match(line) else escaped(line))
    lines[:] = shown


def setup(app: Any) -> None:
    """Let `as_written` come before the sections are read."""
    app.connect("autodoc-process-docstring", as_written, priority=400)

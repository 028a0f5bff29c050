"""The words of a SQL92 filter: text to tokens, in one pass over it.

    blanks     space, tab, newline, carriage return, form feed
    comments   `-- ...` up to the end of its line (which must be there), `/* ... */`
    keywords   NOT AND OR BETWEEN IN TRUE FALSE NULL IS, in any case
    literals   decimal integers without a leading zero and with an L if wanted, floating-point
               numbers, text in single quotes with '' for a quote in it
    names      an ASCII letter, `_` or `$`, then digits too
    signs      = <> > >= < <= ( ) , + -

Of several readings the longest counts, as in RocketMQ's generated tokenizer.

Source: apache/rocketmq@rocketmq-all-4.9.8
filter/.../parser/SelectorParser.jj
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TEXT_SIZE_MAX: Final = 4096
"""Characters of an expression."""

KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"},
)

INTEGER: Final = "integer"
FLOAT: Final = "float"
TEXT: Final = "text"
NAME: Final = "name"
END: Final = "end"

# Every repetition is possessive, so each character is looked at a bounded number of times whatever
# the text is. The pattern is fixed; nothing of the text ever becomes part of one.
_LINE_END: Final = re.compile(r"[\n\r]")
_TOKEN: Final = re.compile(
    r"""
      (?P<blank>[ \t\n\r\f]++)
    | (?P<line>--)
    | (?P<block>/\*)
    | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*+)
    | (?P<float>[0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)?
              | \.[0-9]++(?:[eE][+-]?[0-9]++)?
              | [0-9]++[eE][+-]?[0-9]++)
    | (?P<integer>[1-9][0-9]*+[lL]? | 0)
    | (?P<text>'(?:[^']|'')*+')
    | (?P<sign><> | >= | <= | [=><(),+-])
    """,
    re.VERBOSE,
)


_DIGITS: Final = frozenset("0123456789")


class Token(NamedTuple):
    """A word. `kind` is one of the constants here, or the keyword or sign itself."""

    kind: str
    text: str  # as written; of a text literal what it means
    position: int  # 0-based character in the expression


class ExpressionError(ValueError):
    """The expression is none; the text says what is wrong and where."""


def tokenize(text: str) -> list[Token]:
    """Return the words of an expression, with an END behind the last one.

    Raises:
        ExpressionError: it is too long, or has a character that begins no word.
    """
    if len(text) > TEXT_SIZE_MAX:
        raise ExpressionError(
            f"the expression has {len(text)} characters, at most {TEXT_SIZE_MAX} are allowed"
        )
    tokens: list[Token] = []
    position, end = 0, len(text)
    last_line = end  # where a comment may still begin
    match_token = _TOKEN.match
    while position < end:
        match = match_token(text, position)
        if match is None:
            raise ExpressionError(_unreadable(text, position))
        start, position = position, match.end()
        kind = match.lastgroup
        if kind == "line":
            line_end = _LINE_END.search(text, position) if position <= last_line else None
            if line_end is None:  # then these are two signs, and so are all that follow
                last_line = -1
                position = start + 1
                tokens.append(Token("-", "-", start))
            else:
                position = line_end.end()
        elif kind == "block":
            close = text.find("*/", position)
            if close < 0:
                raise ExpressionError(f"the comment at character {start + 1} is not closed")
            position = close + 2
        elif match.group() == "0" and text[position : position + 1] in _DIGITS:
            raise ExpressionError(f"the number at character {start + 1} begins with 0")
        elif kind != "blank":
            tokens.append(_token(str(kind), match.group(), start))
    tokens.append(Token(END, "", end))
    return tokens


def _token(kind: str, text: str, position: int) -> Token:
    if kind == NAME:
        keyword = text.upper()
        return Token(keyword if keyword in KEYWORDS else NAME, text, position)
    if kind == TEXT:
        return Token(TEXT, text[1:-1].replace("''", "'"), position)
    if kind == "sign":
        return Token(text, text, position)
    return Token(kind, text, position)


def _unreadable(text: str, position: int) -> str:
    if text[position] == "'":
        return f"the text at character {position + 1} is not closed"
    return f"{text[position : position + 8]!a} at character {position + 1} cannot be read"

"""The words and the grammar of a SQL92 filter: text to tokens in one pass, tokens to a tree.

What can be refused is refused here, before a message comes. The words:

    blanks     space, tab, newline, carriage return, form feed
    comments   `-- ...` up to the end of its line (which must be there), `/* ... */`
    keywords   NOT AND OR BETWEEN IN TRUE FALSE NULL IS, in any case
    literals   decimal integers without a leading zero and with an L if wanted, floating-point
               numbers, text in single quotes with '' for a quote in it
    names      an ASCII letter, `_` or `$`, then digits too
    signs      = <> > >= < <= ( ) , + -

Of several readings the longest counts, as in RocketMQ's generated tokenizer. The grammar:

    or       and (OR and)*
    and      equal (AND equal)*
    equal    compare ((= | <>) compare | IS [NOT] NULL)*
    compare  unary ((> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary
                    | [NOT] IN '(' text (, text)* ')'
                    | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text)*
    unary    (+ | - | NOT) unary | TEXT | number | TRUE | FALSE | NULL | NAME | '(' or ')'

The last three words are RocketMQ 5's. They are keywords only where they stand so, in any case, and
names elsewhere: a property of 4.9 may be called like them.

An order sign compares properties and numbers, `=` anything but NULL; IN wants a property before it,
BETWEEN (not NOT BETWEEN) its two constants in order. A property alone is no condition that ever
holds: only `b = TRUE` compares it. NOT belongs to the word after it, so `NOT a = 1` compares
`NOT a`.

Unlike RocketMQ, whose parser stops after the longest prefix that is an expression and ignores the
rest (`n = 1 + 1` filters by `n = 1` there), such a rest is refused; so are trees deeper than
DEPTH_MAX. No evaluation recurses deeper than the tree.

Source: apache/rocketmq@rocketmq-all-4.9.8 filter/.../parser/SelectorParser.jj,
filter/.../expression/ComparisonExpression.java, UnaryExpression.java, ConstantExpression.java;
CONTAINS and its like: rocketmq-all-5.3.3, the first two
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from skylarkmq.protocol.headers.fields import INT_MAX, LONG_MAX
from skylarkmq.protocol.sql92.errors import TEXT_SIZE_MAX, ExpressionError
from skylarkmq.protocol.sql92.java_values import compare_numbers
from skylarkmq.protocol.sql92.tree import (
    FALSE,
    NULL,
    TRUE,
    And,
    Cast,
    Constant,
    Equal,
    In,
    Kind,
    Match,
    Negate,
    Node,
    Not,
    Or,
    Order,
    Property,
    is_condition,
)

KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"},
)

MATCHES: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})

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

DEPTH_MAX: Final = 50
"""Levels of a tree, and of signs and parentheses around one word."""

_DOUBLE_MIN: Final = math.ulp(0.0)  # Java's Double.MIN_VALUE, the smallest above 0
_ORDER_SIGNS: Final = frozenset({">", ">=", "<", "<="})


class Token(NamedTuple):
    """A word. `kind` is one of the constants here, or the keyword or sign itself."""

    kind: str
    text: str  # as written; of a text literal what it means
    position: int  # 0-based character in the expression


def tokenize(text: str) -> list[Token]:
    """Return the words of an expression, with an END after the last one.

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


def parse(text: str) -> Node:
    """Return the condition that an expression states.

    Raises:
        ExpressionError: it is not one, or goes beyond a limit.
    """
    return _Parser(tokenize(text)).parse()


class _Parser:
    """One expression on its way to a tree."""

    def __init__(self, words: list[Token]) -> None:
        self._words = words
        self._index = 0
        self._depth = 0

    def parse(self) -> Node:
        if self._word.kind == END:
            raise ExpressionError("the expression is empty")
        node = self._condition(self._or())
        if self._word.kind != END:
            self._unexpected("the end, AND or OR")
        return node

    # Words

    @property
    def _word(self) -> Token:
        return self._words[self._index]

    def _next(self) -> Token:
        word = self._words[self._index]
        self._index += 1
        return word

    def _accept(self, kind: str) -> bool:
        if self._words[self._index].kind != kind:
            return False
        self._index += 1
        return True

    def _expect(self, kind: str, what: str) -> Token:
        if self._word.kind != kind:
            self._unexpected(what)
        return self._next()

    def _unexpected(self, wanted: str) -> NoReturn:
        kind, text, position = self._word
        found = "the expression ends" if kind == END else f"{text[:32]!a} stands"
        raise ExpressionError(f"{found} at character {position + 1} where {wanted} is expected")

    # Levels of the grammar

    def _or(self) -> Node:
        return self._chain("OR", self._and, Or)

    def _and(self) -> Node:
        return self._chain("AND", self._equal, And)

    def _chain(
        self,
        keyword: str,
        operand: Callable[[], Node],
        make: Callable[[tuple[Node, ...]], Node],
    ) -> Node:
        first = operand()
        if self._word.kind != keyword:
            return first
        parts = [self._condition(first)]
        while self._accept(keyword):
            parts.append(self._condition(operand()))
        return self._checked(make(tuple(parts)))

    def _equal(self) -> Node:
        left = self._compare()
        while True:
            if self._accept("="):
                left = self._equality(left, self._compare())
            elif self._accept("<>"):
                left = self._checked(Not(self._equality(left, self._compare())))
            elif self._accept("IS"):
                negated = self._accept("NOT")
                self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                left = self._checked(Equal(left, NULL))
                if negated:
                    left = self._checked(Not(left))
            else:
                return left

    def _compare(self) -> Node:
        left = self._unary()
        while True:
            kind = self._word.kind
            if kind in _ORDER_SIGNS:
                self._next()
                left = self._order(kind, left, self._unary())
                continue
            after = self._words[self._index + 1] if kind == "NOT" else self._word
            negated = kind == "NOT" and (after.kind in ("BETWEEN", "IN") or _is_match(after))
            if negated:
                self._next()
            if self._accept("BETWEEN"):
                left = self._between(left, negated=negated)
            elif self._accept("IN"):
                left = self._in(left, negated=negated)
            elif _is_match(self._word):
                word = self._next().text.upper()
                text = self._expect(TEXT, "a text in single quotes").text
                left = self._checked(Match(word, left, text, negated))
            else:
                return left

    def _unary(self) -> Node:
        """Parse signs and NOT before a word; a loop, so that a row of them costs no stack."""
        signs: list[Token] = []
        while self._word.kind in ("+", "-", "NOT"):
            signs.append(self._next())
            if len(signs) > DEPTH_MAX:
                self._too_deep()
        node = self._primary()
        for sign in reversed(signs):
            if sign.kind == "-":
                node = self._checked(Negate(node))
            elif sign.kind == "NOT":
                node = self._checked(Not(self._condition(node)))
        return node

    def _primary(self) -> Node:
        word = self._word
        if self._accept("("):
            self._depth += 1
            if self._depth > DEPTH_MAX:
                self._too_deep()
            node = self._or()
            self._expect(")", "')'")
            self._depth -= 1
            return node
        constant = _CONSTANTS.get(word.kind)
        if constant is None and word.kind not in (NAME, TEXT, INTEGER, FLOAT):
            self._unexpected("a property, a value or '('")
        self._next()
        if constant is not None:
            return constant
        if word.kind == NAME:
            return Property(word.text)
        if word.kind == TEXT:
            return Constant(Kind.STRING, word.text)
        return _integer(word) if word.kind == INTEGER else _float(word)

    # What RocketMQ checks when it makes a node

    def _condition(self, node: Node) -> Node:
        if is_condition(node):
            return node
        if isinstance(node, Property):
            return Cast(node)
        raise ExpressionError(f"{node} is no condition: it is neither true nor false")

    def _equality(self, left: Node, right: Node) -> Node:
        for node in (left, right):
            if node is NULL:
                raise ExpressionError("NULL cannot be compared: write IS NULL or IS NOT NULL")
        if left in (TRUE, FALSE) and isinstance(right, Constant) and right not in (TRUE, FALSE):
            raise ExpressionError(f"{left} cannot be compared with {right}")
        return self._checked(Equal(left, right))

    def _order(self, sign: str, left: Node, right: Node) -> Node:
        for node in (left, right):
            if is_condition(node) or (isinstance(node, Constant) and not node.is_number):
                raise ExpressionError(f"{node} cannot be ordered by {sign}: only numbers can")
        return self._checked(Order(sign, left, right))

    def _between(self, value: Node, *, negated: bool) -> Node:
        low = self._unary()
        self._expect("AND", "AND")
        high = self._unary()
        if not negated and isinstance(low, Constant) and isinstance(high, Constant):
            _check_bounds(low, high)
        signs = ("<", ">") if negated else (">=", "<=")
        parts = self._order(signs[0], value, low), self._order(signs[1], value, high)
        return self._checked(Or(parts) if negated else And(parts))

    def _in(self, left: Node, *, negated: bool) -> Node:
        self._expect("(", "'('")
        values = [self._expect(TEXT, "a text in single quotes").text]
        while self._accept(","):
            values.append(self._expect(TEXT, "a text in single quotes").text)
        self._expect(")", "',' or ')'")
        if not isinstance(left, Property):
            raise ExpressionError(f"{left} stands before IN, where only a property can")
        return In(left, frozenset(values), negated)

    def _checked(self, node: Node) -> Node:
        if node.depth > DEPTH_MAX:
            self._too_deep()
        return node

    @staticmethod
    def _too_deep() -> NoReturn:
        raise ExpressionError(f"the expression is nested deeper than {DEPTH_MAX} levels")


def _is_match(word: Token) -> bool:
    return word.kind == NAME and word.text.upper() in MATCHES


_CONSTANTS: Final = {"TRUE": TRUE, "FALSE": FALSE, "NULL": NULL}


def _integer(word: Token) -> Constant:
    digits = word.text.rstrip("lL")
    value = int(digits) if len(digits) <= len(str(LONG_MAX)) else LONG_MAX + 1
    if value > LONG_MAX:
        raise ExpressionError(f"{digits[:32]} does not fit into 64 bits")
    return Constant(Kind.INT if value <= INT_MAX else Kind.LONG, value)


def _float(word: Token) -> Constant:
    value = float(word.text)
    if not _DOUBLE_MIN <= value < math.inf:
        raise ExpressionError(f"{word.text[:32]} is zero or outside of what a double can hold")
    return Constant(Kind.DOUBLE, value)


def _check_bounds(low: Constant, high: Constant) -> None:
    """Refuse constants that no value lies between; what cannot be ordered is refused later."""
    if low is NULL or high is NULL:
        raise ExpressionError("the values of BETWEEN cannot be NULL")
    first, last = _as_number(low), _as_number(high)
    if first is not None and last is not None and compare_numbers(last, first) < 0:
        raise ExpressionError(f"BETWEEN wants {low}, its first value, not above {high}")


def _as_number(constant: Constant) -> float | None:
    value = constant.value
    return None if value is None or isinstance(value, str | bool) else value

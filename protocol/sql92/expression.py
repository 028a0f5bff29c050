"""SQL92 filters that are ready to run, and the cache of them.

Source: apache/rocketmq@rocketmq-all-4.9.8 filter/.../parser/SelectorParser.jj (PARSE_CACHE),
broker/.../filter/ExpressionMessageFilter.java
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from skylarkmq.protocol.sql92.evaluation import condition_of
from skylarkmq.protocol.sql92.java_values import EvaluationError
from skylarkmq.protocol.sql92.parser import parse
from skylarkmq.protocol.sql92.tokens import TEXT_SIZE_MAX, ExpressionError
from skylarkmq.protocol.sql92.tree import And, Cast, Equal, In, Negate, Node, Not, Or, Order

CACHED_MAX: Final = 100
"""Compiled expressions that are kept, refused ones included."""


class Expression:
    """A compiled expression; does not change, so any thread may use it.

    Attributes:
        cost: properties and values that one evaluation may look at.
    """

    __slots__ = ("_condition", "cost", "text")

    def __init__(self, text: str, tree: Node) -> None:
        self.text = text
        self._condition = condition_of(tree)
        self.cost = _cost(tree)

    def evaluate(self, properties: bytes) -> bool | None:
        """Return what the expression says of a message with these encoded properties.

        Raises:
            EvaluationError: a property can not be compared as the expression asks.
        """
        return self._condition(properties)

    def matches(self, properties: bytes) -> bool:
        """Whether the message is wanted."""
        try:
            return self._condition(properties) is True
        except EvaluationError:
            return False


def compile_expression(text: str) -> Expression:
    """Return the expression of a text, from the cache when it was there lately.

    Raises:
        ExpressionError: it can not be compiled; the text says why.
    """
    if len(text) > TEXT_SIZE_MAX:
        raise ExpressionError(
            f"the expression has {len(text)} characters, at most {TEXT_SIZE_MAX} are allowed"
        )
    compiled = _compile(text)
    if isinstance(compiled, str):
        raise ExpressionError(compiled)
    return compiled


@lru_cache(maxsize=CACHED_MAX)
def _compile(text: str) -> Expression | str:
    try:
        return Expression(text, parse(text))
    except ExpressionError as error:
        return str(error)


def _cost(node: Node) -> int:
    if isinstance(node, And | Or):
        return sum(map(_cost, node.parts))
    if isinstance(node, Equal | Order):
        return _cost(node.left) + _cost(node.right)
    if isinstance(node, Negate | Not | Cast | In):
        return _cost(node.operand)
    return 1

"""SQL92 filters ready to run: the tree as closures over the encoded properties of a message.

Values are three: True, False, None for unknown; only True matches. A property is the bytes that
`find_property` sees in the record's encoded properties, so nothing that an expression does not
name is decoded. System properties (TAGS, KEYS, UNIQ_KEY, DELAY, ...) are properties like others.

What a property is compared with decides how it is read: with an integer as Integer or Long, with a
double as Double, with TRUE or FALSE as Boolean, with a text as it is. A value that cannot be read
so makes the whole evaluation fail, whatever else the expression says, and the message does not
match. The table of equality and null:

    null = null                      true     only `IS NULL`, or two properties that are not there
    null = value                     null
    value = null                     false
    true/false = text                error    the boolean stands on the left
    CONTAINS, STARTSWITH, ENDSWITH and their NOTs of what is no text, or is not there, or of an
    empty text on the right          false, never null
    a value beside one of a kind that it is never read as      false

Source: apache/rocketmq@rocketmq-all-4.9.8 filter/.../expression/ComparisonExpression.java,
LogicExpression.java, UnaryExpression.java, filter/.../parser/SelectorParser.jj (PARSE_CACHE),
broker/.../filter/ExpressionMessageFilter.java
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import contains, ge, gt, le, lt
from typing import Any, Final

from skylarkmq.protocol.headers.fields import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN
from skylarkmq.protocol.properties import find_property
from skylarkmq.protocol.sql92.errors import TEXT_SIZE_MAX, ExpressionError
from skylarkmq.protocol.sql92.java_values import (
    EvaluationError,
    compare_doubles,
    compare_numbers,
    to_boolean,
    to_double,
    to_integer,
)
from skylarkmq.protocol.sql92.parser import parse
from skylarkmq.protocol.sql92.tree import (
    NULL,
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

Condition = Callable[[bytes], bool | None]
Value = Callable[[bytes], Any]
Test = Callable[[Any, Any], bool]

_TESTS: Final[dict[str, Test]] = {">": gt, ">=": ge, "<": lt, "<=": le}
_MATCHES: Final[dict[str, Test]] = {
    "CONTAINS": contains, "STARTSWITH": bytes.startswith, "ENDSWITH": bytes.endswith,
}  # fmt: skip
_MIRRORED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


def condition_of(node: Node) -> Condition:
    """Return the function that evaluates a condition.

    It raises EvaluationError when a value cannot be compared as the expression asks.
    """
    if isinstance(node, And):
        return _chain([condition_of(part) for part in node.parts], False)
    if isinstance(node, Or):
        return _chain([condition_of(part) for part in node.parts], True)
    if isinstance(node, Not):
        return _not(condition_of(node.operand))
    if isinstance(node, Equal):
        return _equal(node.left, node.right)
    if isinstance(node, Order):
        return _order(node)
    if isinstance(node, In):
        return _in(node)
    if isinstance(node, Match):
        return _match(node)
    if isinstance(node, Cast):
        return _cast(_property(node.operand))
    return _value(node)  # TRUE, FALSE, NULL


def _chain(parts: list[Condition], decisive: bool) -> Condition:
    """Return AND, which the first False decides, or OR, which the first True decides."""

    def evaluate(data: bytes) -> bool | None:
        result: bool | None = not decisive
        for part in parts:
            value = part(data)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def _not(inner: Condition) -> Condition:
    def evaluate(data: bytes) -> bool | None:
        value = inner(data)
        return None if value is None else not value

    return evaluate


def _cast(read: Value) -> Condition:
    return lambda data: None if read(data) is None else False


def _in(node: In) -> Condition:
    read = _property(node.operand)
    values = frozenset(value.encode() for value in node.values)
    negated = node.negated

    def evaluate(data: bytes) -> bool | None:
        value = read(data)
        return None if value is None else (value in values) is not negated

    return evaluate


def _match(node: Match) -> Condition:
    read, text, negated = _value(node.operand), node.text.encode(), node.negated
    test = _MATCHES[node.word]

    def evaluate(data: bytes) -> bool:
        value = read(data)
        return isinstance(value, bytes) and bool(text) and test(value, text) is not negated

    return evaluate


def _value(node: Node) -> Value:
    """Return what reads a node's value: bytes of a text, a number, True or False, None."""
    if isinstance(node, Property):
        return _property(node)
    if isinstance(node, Constant):
        value = node.value.encode() if isinstance(node.value, str) else node.value
        return lambda data: value
    if isinstance(node, Negate):
        return _negated(node)
    return condition_of(node)


def _property(node: Property) -> Value:
    name = node.name.encode() + b"\x01"
    return lambda data: find_property(data, name)


def _negated(node: Negate) -> Value:
    number = _number(node)
    if number is not None:
        value = number.value
        return lambda data: value
    inner = _value(node.operand)

    def evaluate(data: bytes) -> None:
        inner(data)  # it may fail

    return evaluate


def _number(node: Node) -> Constant | None:
    """Return the constant that a node comes to when it is a number with any signs, else None."""
    if isinstance(node, Negate):
        inner = _number(node.operand)
        if inner is None or inner.value is None or isinstance(inner.value, str):
            return None
        return Constant(inner.kind, -inner.value)
    return node if isinstance(node, Constant) and node.is_number else None


def _reader(kind: Kind) -> Callable[[bytes], Any]:
    """Return how a property is read that is compared with a constant of this kind."""
    if kind is Kind.INT:
        return lambda value: to_integer(value, INT_MIN, INT_MAX)
    if kind is Kind.LONG:
        return lambda value: to_integer(value, LONG_MIN, LONG_MAX)
    return to_double if kind is Kind.DOUBLE else to_boolean


def _equal(left: Node, right: Node) -> Condition:
    if right is NULL:
        read = _value(left)
        return lambda data: read(data) is None
    constant = _number(right)
    if isinstance(left, Property):
        if isinstance(right, Constant) and right.kind is Kind.STRING:
            return _equal_text(left, str(right.value))
        if constant is None and isinstance(right, Constant):
            constant = right  # TRUE or FALSE
        if constant is not None:
            return _equal_constant(left, constant)
    constant = _number(left)
    if constant is not None and isinstance(right, Property):
        return _equal_property(constant, right)
    return _equal_values(left, right)


def _equal_text(left: Property, text: str) -> Condition:
    read, wanted = _property(left), text.encode()

    def evaluate(data: bytes) -> bool | None:
        value = read(data)
        return None if value is None else value == wanted

    return evaluate


def _equal_constant(left: Property, constant: Constant) -> Condition:
    read, convert, wanted = _property(left), _reader(constant.kind), constant.value

    def evaluate(data: bytes) -> bool | None:
        value = read(data)
        return None if value is None else bool(convert(value) == wanted)

    return evaluate


def _equal_property(constant: Constant, right: Property) -> Condition:
    read, convert, wanted = _property(right), _reader(constant.kind), constant.value

    def evaluate(data: bytes) -> bool:
        value = read(data)
        return value is not None and bool(convert(value) == wanted)

    return evaluate


def _equal_values(left: Node, right: Node) -> Condition:
    """Return the test of a rare form: two properties, conditions, constants, a text on the left."""
    read_left, read_right = _value(left), _value(right)
    compare = _comparison(left, right)

    def evaluate(data: bytes) -> bool | None:
        first, second = read_left(data), read_right(data)
        if first is None:
            return True if second is None else None
        return second is not None and compare(first, second)

    return evaluate


def _comparison(left: Node, right: Node) -> Callable[[Any, Any], bool]:
    """Return how two values that are not null are compared, by the types of both sides."""
    first, second = _kind(left), _kind(right)
    if first is second:
        return lambda one, other: bool(one == other)
    if first is Kind.BOOLEAN:
        return _no_cast if second is Kind.STRING else lambda one, other: False
    if first is Kind.STRING:
        convert = _reader(second)
        return lambda one, other: bool(convert(one) == other)
    if second is Kind.STRING:
        convert = _reader(first)
        return lambda one, other: bool(one == convert(other))
    if second is Kind.BOOLEAN:
        return lambda one, other: False
    return lambda one, other: compare_numbers(one, other) == 0


def _kind(node: Node) -> Kind:
    """Return the type of a node's values that are not null; a sign before no number has none."""
    number = _number(node)
    if number is not None:
        return number.kind
    if is_condition(node):
        return Kind.BOOLEAN
    return Kind.NULL if isinstance(node, Negate) else Kind.STRING


def _no_cast(_: Any, text: Any) -> bool:
    raise EvaluationError(f"a boolean on the left cannot be compared with {text[:32]!r}")


def _order(node: Order) -> Condition:
    left, right = _number(node.left), _number(node.right)
    if left is not None and right is not None:
        answer = _TESTS[node.sign](compare_numbers(_float(left), _float(right)), 0)
        return lambda data: answer
    if right is not None and isinstance(node.left, Property):
        return _order_constant(node.left, node.sign, right)
    if left is not None and isinstance(node.right, Property):
        return _order_constant(node.right, _MIRRORED[node.sign], left)
    return _order_texts(node)


def _float(constant: Constant) -> float:
    value = constant.value
    if value is None or isinstance(value, str):
        raise TypeError(f"{constant} is no number")
    return value


def _order_constant(operand: Property, sign: str, constant: Constant) -> Condition:
    read, convert, test = _property(operand), _reader(constant.kind), _TESTS[sign]
    limit = _float(constant)
    if constant.kind is Kind.DOUBLE:

        def evaluate(data: bytes) -> bool | None:
            value = read(data)
            return None if value is None else test(compare_doubles(convert(value), limit), 0)
    else:

        def evaluate(data: bytes) -> bool | None:
            value = read(data)
            return None if value is None else test(convert(value), limit)

    return evaluate


def _order_texts(node: Order) -> Condition:
    """Return the test of two properties, read as doubles; a sign before no number is null."""
    read_left, read_right, test = _value(node.left), _value(node.right), _TESTS[node.sign]

    def evaluate(data: bytes) -> bool | None:
        first = read_left(data)
        if first is None:
            return None
        second = read_right(data)
        if second is None:
            return None
        return test(compare_doubles(to_double(first), to_double(second)), 0)

    return evaluate


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
            EvaluationError: a property cannot be compared as the expression asks.
        """
        return self._condition(properties)

    def matches(self, properties: bytes) -> bool:
        """Return whether the message is wanted."""
        try:
            return self._condition(properties) is True
        except EvaluationError:
            return False


def compile_expression(text: str) -> Expression:
    """Return the expression of a text, from the cache when it was there lately.

    Raises:
        ExpressionError: it cannot be compiled; the text says why.
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
    if isinstance(node, Negate | Not | Cast | In | Match):
        return _cost(node.operand)
    return 1

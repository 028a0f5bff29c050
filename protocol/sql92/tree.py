"""The tree of a SQL92 filter. Nodes are immutable; `depth` counts the levels below and with one.

A row of ANDs, or of ORs, is one node: its parts are evaluated from left to right as nested pairs
would be, and a long row is not deep.

Source: apache/rocketmq@rocketmq-all-4.9.8 filter/.../expression/*.java
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final, cast


class Kind(Enum):
    """Java type of a constant. INT and LONG differ in what a property's text may be."""

    NULL = "null"
    BOOLEAN = "Boolean"
    STRING = "String"
    INT = "Integer"
    LONG = "Long"
    DOUBLE = "Double"


NUMBERS: Final = frozenset({Kind.INT, Kind.LONG, Kind.DOUBLE})


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression. Its members that are nodes, or tuples of them, lie below it."""

    depth: int = field(default=1, init=False, compare=False)

    def __post_init__(self) -> None:
        depth = 0
        for member in [getattr(self, each.name) for each in fields(self)]:
            parts = cast("tuple[object, ...]", member) if isinstance(member, tuple) else (member,)
            depth = max(depth, *(part.depth for part in parts if isinstance(part, Node)), 0)
        object.__setattr__(self, "depth", depth + 1)


@dataclass(frozen=True, slots=True)
class Condition(Node):
    """A part that is true, false or null by itself."""

    def __str__(self) -> str:
        return "a condition"


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """A literal."""

    kind: Kind
    value: str | int | float | bool | None

    @property
    def is_number(self) -> bool:
        return self.kind in NUMBERS

    def __str__(self) -> str:
        if self.kind is Kind.STRING:
            return "'" + str(self.value)[:32] + "'"
        return str(self.value).upper()


NULL: Final = Constant(Kind.NULL, None)
TRUE: Final = Constant(Kind.BOOLEAN, True)
FALSE: Final = Constant(Kind.BOOLEAN, False)


@dataclass(frozen=True, slots=True)
class Property(Node):
    """The value of a message's property: a text, or null."""

    name: str

    def __str__(self) -> str:
        return self.name[:32]


@dataclass(frozen=True, slots=True)
class Negate(Node):
    """Minus: of a number only, else null."""

    operand: Node

    def __str__(self) -> str:
        return "a negative value"


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """NOT of a condition."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Cast(Condition):
    """A property that stands as a condition: a text is no boolean, so it never holds."""

    operand: Property

    def __str__(self) -> str:
        return str(self.operand)


@dataclass(frozen=True, slots=True)
class Equal(Condition):
    """Equality; with NULL on the right the test for it."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Order(Condition):
    """`>`, `>=`, `<` or `<=` of numbers."""

    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class In(Condition):
    """The question if a property is one of some texts."""

    operand: Property
    values: frozenset[str]
    negated: bool


@dataclass(frozen=True, slots=True)
class Match(Condition):
    """CONTAINS, STARTSWITH or ENDSWITH of a text."""

    word: str
    operand: Node
    text: str
    negated: bool


@dataclass(frozen=True, slots=True)
class And(Condition):
    """Conditions that must all hold."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Condition):
    """Conditions of which one must hold."""

    parts: tuple[Node, ...]


def is_condition(node: Node) -> bool:
    """Return whether a node is true, false or null by itself."""
    if isinstance(node, Constant):
        return node.kind in (Kind.BOOLEAN, Kind.NULL)
    return isinstance(node, Condition)

"""A function as a tool: its name, what its docstring says, and a schema of its arguments.

Arguments are the parameters by keyword; what they may be is said by their annotations. An argument
that a tool does not have is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, cast, get_type_hints

import msgspec

from skylarkmq.client.admin.results import Result
from skylarkmq.tools.mcp.call import Call

Fields = dict[str, Any]
R = TypeVar("R")

Text = Annotated[str, msgspec.Meta(min_length=1)]
Topic = Annotated[str, msgspec.Meta(min_length=1, description="Name of the topic.")]
Group = Annotated[str, msgspec.Meta(min_length=1, description="Name of the consumer group.")]
Since = Annotated[
    str,
    msgspec.Meta(
        description="Stored then or later: 2026-01-31T12:00:00Z, ms since the epoch, or 10m, 2h, "
        "1d for so long ago."
    ),
]
Until = Annotated[str, msgspec.Meta(description="Stored before that; as `since`.")]
Limit = Annotated[int, msgspec.Meta(ge=1, le=100, description="At most so many.")]
Bodies = Annotated[
    bool, msgspec.Meta(description="Show the beginning of each body, where the server allows it.")
]


def fields_of(result: Result) -> Fields:
    """Return a result of Admin as programs get it."""
    return cast("Fields", result.to_json())


def unreported(_what: str, _done: int, _total: int) -> None:
    """Hear how far work is, and tell nobody."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a changing tool would do."""

    what: str
    """In words: "move the group billing ..."."""
    shown: Fields
    """In detail."""
    carry_out: Callable[[], Awaitable[Fields]]
    """Does it, with what the dry run found."""


@dataclass(frozen=True, slots=True)
class Tool(Generic[R]):
    """A tool; R is what it returns."""

    name: str
    description: str
    schema: Fields
    _run: Callable[..., Awaitable[R]]
    _arguments: type[Any]

    @classmethod
    def of(cls, run: Callable[..., Awaitable[R]], **more: Any) -> Tool[R]:
        """Return the tool of a function; `more` are arguments that others than it look at."""
        hints = get_type_hints(run, include_extras=True)
        fields: list[Any] = [
            (each.name, hints[each.name])
            if each.default is each.empty
            else (each.name, hints[each.name], each.default)
            for each in inspect.signature(run).parameters.values()
            if each.kind is each.KEYWORD_ONLY
        ]
        fields += [(name, hint, None) for name, hint in more.items()]
        struct = msgspec.defstruct(run.__name__, fields, kw_only=True, forbid_unknown_fields=True)
        _, schemas = msgspec.json.schema_components([struct])
        return cls(run.__name__, inspect.getdoc(run) or "", schemas[run.__name__], run, struct)

    def read(self, arguments: Fields) -> Fields:
        """Return checked arguments, with those that have a default.

        Raises:
            msgspec.ValidationError: they are not what the schema says.
        """
        return msgspec.structs.asdict(msgspec.convert(arguments, self._arguments, strict=False))

    async def run(self, call: Call, arguments: Fields) -> R:
        """Do it, with checked arguments."""
        return await self._run(call, **arguments)

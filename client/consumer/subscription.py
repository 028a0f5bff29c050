"""What a group wants of a topic: all of it, or messages with some tags.

The broker filters by the hash of a tag alone, so a consumer looks at the tag's text again.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../filter/FilterAPI.java (buildSubscriptionData)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from skylarkmq.protocol.bodies.heartbeat import SubscriptionData
from skylarkmq.protocol.tags_code import java_string_hash

ALL: Final = "*"
SEPARATOR: Final = "||"


@dataclass(frozen=True, slots=True, init=False)
class Tag:
    """Selects messages with one of these tags: `Tag("A", "B")`, or `Tag("A || B")` as in Java."""

    tags: tuple[str, ...]

    def __init__(self, *expressions: str) -> None:
        parts = [part.strip() for text in expressions for part in text.split(SEPARATOR)]
        tags = tuple(dict.fromkeys(part for part in parts if part))
        if not tags:
            raise ValueError("Tag names at least one tag; without a selector all messages come")
        object.__setattr__(self, "tags", () if ALL in tags else tags)

    @property
    def expression(self) -> str:
        """The text of the subscription."""
        return f" {SEPARATOR} ".join(self.tags) if self.tags else ALL


class Subscription:
    """One topic of one group, with the version that brokers compare."""

    __slots__ = ("data", "tags")

    def __init__(self, topic: str, selector: Tag | None, version: int) -> None:
        tags = selector.tags if selector is not None else ()
        self.tags = frozenset(tags)
        self.data = SubscriptionData(
            topic=topic,
            sub_string=selector.expression if selector is not None else ALL,
            tags_set=list(tags),
            code_set=[java_string_hash(tag) for tag in tags],
            sub_version=version,
        )

    def wants(self, tag: str | None) -> bool:
        """Return whether a message with that tag is wanted, by its text."""
        return not self.tags or tag in self.tags

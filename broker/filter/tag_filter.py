"""Which messages a subscription wants, by the hash of their tag.

The broker compares hashes alone; the client compares the strings again. An empty expression or `*`
wants everything.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../filter/ExpressionMessageFilter.java,
common/.../filter/FilterAPI.java (buildSubscriptionData)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.properties import MAX_PROPERTIES_SIZE
from skylarkmq.protocol.tags_code import tags_code

Matches = Callable[[int], bool]

SUBSCRIBE_ALL = "*"
EXPRESSION_TAG = "TAG"
SEPARATOR = "||"
EXPRESSION_SIZE_MAX = MAX_PROPERTIES_SIZE
"""Characters of an expression, and of all its tags: one stored tag can have nearly as many."""
TAGS_MAX = 1024
"""Tags of one expression."""


def count_tags(expression: str) -> int:
    """Return how many tags an expression has at most, without taking it apart."""
    return expression.count(SEPARATOR) + 1


def tag_filter(sub_string: str, codes: Iterable[int]) -> Matches | None:
    """Return the test of a subscription, None when it wants everything.

    Args:
        sub_string: the expression, such as `TagA || TagB`.
        codes: Java hashes of its tags.
    """
    if sub_string.strip() in ("", SUBSCRIBE_ALL):
        return None
    wanted = frozenset(codes)
    return wanted.__contains__ if wanted else None


def parse_tags(expression: str) -> Matches | None:
    """Return the test of an expression that a pull request carries itself.

    Raises:
        RemoteProtocolError: the expression is too long, or separators alone.
    """
    if len(expression) > EXPRESSION_SIZE_MAX:
        raise _refused(f"longer than {EXPRESSION_SIZE_MAX} characters")
    if expression.strip() in ("", SUBSCRIBE_ALL):
        return None
    if count_tags(expression) > TAGS_MAX:
        raise _refused(f"more than {TAGS_MAX} tags")
    tags = [tag for part in expression.split(SEPARATOR) if (tag := part.strip())]
    if not tags:
        raise _refused(f"no tag in {expression[:64]!a}")
    return frozenset(tags_code(tag) for tag in tags).__contains__


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {why}"
    )


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether an expression is one of tags; a missing type means that."""
    return not expression_type or expression_type == EXPRESSION_TAG

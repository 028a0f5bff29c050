"""Limits of what may be stored.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (checkMessage),
CommitLog.java (MessageExtEncoder)
"""

from __future__ import annotations

from skylarkmq.protocol.flags import MAX_TOPIC_SIZE
from skylarkmq.protocol.properties import MAX_PROPERTIES_SIZE
from skylarkmq.store.config import RECORD_OVERHEAD, StoreConfig
from skylarkmq.store.results import MessageInner, PutMessageResult, PutMessageStatus


def check_message(inner: MessageInner, config: StoreConfig) -> PutMessageResult | None:
    """Return the refusal of a message that does not fit, None when it does."""
    if len(inner.topic) > MAX_TOPIC_SIZE:
        why = f"the topic has {len(inner.topic)} bytes, at most {MAX_TOPIC_SIZE} are allowed"
        return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, why=why)
    if len(inner.properties) > MAX_PROPERTIES_SIZE:
        why = (
            f"the properties have {len(inner.properties)} bytes, "
            f"at most {MAX_PROPERTIES_SIZE} are allowed"
        )
        return PutMessageResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, why=why)
    limit = config.max_message_size
    if inner.is_copy:  # whatever was once stored goes on, if the log's files can hold it
        limit = max(limit, config.mapped_file_size_commit_log - RECORD_OVERHEAD)
    if len(inner.body) > limit:
        why = f"the body has {len(inner.body)} bytes, maxMessageSize allows {limit}"
        return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, why=why)
    return None

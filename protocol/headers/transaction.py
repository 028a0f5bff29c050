"""Headers of transactions: the verdict (37), the question (39), another chance (323).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/
EndTransactionRequestHeader.java, CheckTransactionStateRequestHeader.java,
ResumeCheckHalfMessageRequestHeader.java
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class EndTransactionRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The verdict over a half message.

    `tran_state_table_offset` is its queue offset in the half topic, `commit_log_offset` its
    physical offset; `commit_or_rollback` is 8 commit, 12 rollback, 0 not known.
    """

    producer_group: str
    tran_state_table_offset: JavaLong
    commit_log_offset: JavaLong
    commit_or_rollback: JavaInt
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The question about a half message; offsets as above, ids as the producer knows them."""

    tran_state_table_offset: JavaLong
    commit_log_offset: JavaLong
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """The offset id of a half message, or of one that was given up."""

    msg_id: str

"""The wire names of every typed header, spelled out as RocketMQ spells them.

A `!` marks what must be there; the rest may be missing.
"""

import msgspec
import pytest

from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.headers import (
    admin,
    client,
    consumer,
    group_admin,
    pull,
    query,
    route,
    send,
    transaction,
)
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from tests.protocol.message_vectors import FRAMES
from tests.protocol.support import only_frame

NAMES: list[tuple[type[msgspec.Struct], str]] = [
    (
        send.SendMessageRequestHeader,
        "producerGroup! topic! defaultTopic! defaultTopicQueueNums! queueId! sysFlag!"
        " bornTimestamp! flag! properties reconsumeTimes unitMode maxReconsumeTimes batch bname",
    ),
    (send.SendMessageResponseHeader, "msgId! queueId! queueOffset! transactionId"),
    (
        send.ConsumerSendMsgBackRequestHeader,
        "offset! group! delayLevel! originMsgId originTopic unitMode maxReconsumeTimes",
    ),
    (
        send.ReplyMessageRequestHeader,
        "producerGroup! topic! defaultTopic! defaultTopicQueueNums! queueId! sysFlag!"
        " bornTimestamp! flag! properties reconsumeTimes unitMode bornHost! storeHost!"
        " storeTimestamp!",
    ),
    (
        pull.PullMessageRequestHeader,
        "consumerGroup! topic! queueId! queueOffset! maxMsgNums! sysFlag! commitOffset!"
        " suspendTimeoutMillis! subscription subVersion! expressionType maxMsgBytes bname",
    ),
    (
        pull.PullMessageResponseHeader,
        "suggestWhichBrokerId! nextBeginOffset! minOffset! maxOffset!",
    ),
    (consumer.CloneGroupOffsetRequestHeader, "srcGroup! destGroup! topic offline"),
    (admin.GetTopicConfigRequestHeader, "topic!"),
    (admin.GetSubscriptionGroupConfigRequestHeader, "group!"),
    (admin.GetBrokerConfigResponseHeader, "version!"),
    (
        consumer.InvokeBrokerToResetOffsetRequestHeader,
        "topic! group! timestamp isForce queueId offset",
    ),
    (consumer.QueryConsumeTimeSpanRequestHeader, "topic! group!"),
    (admin.QueryConsumeQueueRequestHeader, "topic! queueId! index! count! consumerGroup"),
    (admin.DeleteTopicRequestHeader, "topic!"),
    (group_admin.GetConsumerConnectionListRequestHeader, "consumerGroup!"),
    (group_admin.GetProducerConnectionListRequestHeader, "producerGroup!"),
    (group_admin.DeleteSubscriptionGroupRequestHeader, "groupName! removeOffset"),
    (group_admin.GetConsumeStatsRequestHeader, "consumerGroup! topic"),
    (group_admin.QueryTopicConsumeByWhoRequestHeader, "topic!"),
    (consumer.QueryCorrectionOffsetRequestHeader, "topic! compareGroup! filterGroups"),
    (transaction.ResumeCheckHalfMessageRequestHeader, "msgId!"),
    (query.QueryMessageRequestHeader, "topic! key! maxNum! beginTimestamp! endTimestamp!"),
    (
        query.QueryMessageResponseHeader,
        "indexLastUpdateTimestamp! indexLastUpdatePhyoffset!",
    ),
    (query.SearchOffsetRequestHeader, "topic! queueId! timestamp!"),
    (query.SearchOffsetResponseHeader, "offset!"),
    (query.GetMaxOffsetRequestHeader, "topic! queueId!"),
    (query.GetMaxOffsetResponseHeader, "offset!"),
    (query.GetMinOffsetRequestHeader, "topic! queueId!"),
    (query.GetMinOffsetResponseHeader, "offset!"),
    (query.GetEarliestMsgStoretimeRequestHeader, "topic! queueId!"),
    (query.GetEarliestMsgStoretimeResponseHeader, "timestamp!"),
    (query.ViewMessageRequestHeader, "offset!"),
    (query.GetTopicStatsInfoRequestHeader, "topic!"),
    (
        consumer.QueryConsumerOffsetRequestHeader,
        "consumerGroup! topic! queueId! setZeroIfNotFound",
    ),
    (consumer.QueryConsumerOffsetResponseHeader, "offset!"),
    (
        consumer.UpdateConsumerOffsetRequestHeader,
        "consumerGroup! topic! queueId! commitOffset!",
    ),
    (consumer.GetConsumerListByGroupRequestHeader, "consumerGroup!"),
    (consumer.NotifyConsumerIdsChangedRequestHeader, "consumerGroup!"),
    (consumer.ResetOffsetRequestHeader, "topic! group! timestamp! isForce!"),
    (consumer.GetConsumerStatusRequestHeader, "topic! group! clientAddr"),
    (consumer.GetConsumerRunningInfoRequestHeader, "consumerGroup! clientId! jstackEnable"),
    (
        consumer.ConsumeMessageDirectlyResultRequestHeader,
        "consumerGroup! clientId msgId brokerName",
    ),
    (client.UnregisterClientRequestHeader, "clientID! producerGroup consumerGroup"),
    (
        admin.CreateTopicRequestHeader,
        "topic! defaultTopic! readQueueNums! writeQueueNums! perm! topicFilterType!"
        " topicSysFlag order",
    ),
    (route.GetRouteInfoRequestHeader, "topic! acceptStandardJsonOnly"),
    (
        route.RegisterBrokerRequestHeader,
        "brokerName! brokerAddr! clusterName! haServerAddr! brokerId! compressed bodyCrc32",
    ),
    (route.RegisterBrokerResponseHeader, "haServerAddr masterAddr"),
    (route.UnRegisterBrokerRequestHeader, "brokerName! brokerAddr! clusterName! brokerId!"),
    (route.QueryDataVersionRequestHeader, "brokerName! brokerAddr! clusterName! brokerId!"),
    (route.QueryDataVersionResponseHeader, "changed!"),
    (
        transaction.EndTransactionRequestHeader,
        "producerGroup! tranStateTableOffset! commitLogOffset! commitOrRollback!"
        " fromTransactionCheck msgId! transactionId",
    ),
    (
        transaction.CheckTransactionStateRequestHeader,
        "tranStateTableOffset! commitLogOffset! msgId transactionId offsetMsgId",
    ),
]
MODULES = (admin, client, consumer, group_admin, pull, query, route, send, transaction)


def test_no_header_is_forgotten() -> None:
    headers = {
        item
        for module in MODULES
        for item in vars(module).values()
        if isinstance(item, type) and item.__name__.endswith("Header")
    }
    assert headers == {cls for cls, _ in NAMES}


@pytest.mark.parametrize(("cls", "names"), NAMES, ids=lambda item: getattr(item, "__name__", ""))
def test_wire_names(cls: type[msgspec.Struct], names: str) -> None:
    fields = msgspec.structs.fields(cls)
    assert [f"{field.encode_name}{'!' * field.required}" for field in fields] == names.split()


@pytest.mark.parametrize("cls", [cls for cls, _ in NAMES], ids=lambda cls: cls.__name__)
def test_every_header_goes_there_and_back(cls: type[msgspec.Struct]) -> None:
    """All fields set, by texts that fit every kind of field."""
    fields = {field.encode_name: "7" for field in msgspec.structs.fields(cls)}
    header = decode_fields(cls, fields)
    assert decode_fields(cls, encode_fields(header)) == header
    assert set(encode_fields(header)) == set(fields)


def test_the_golden_pull() -> None:
    vector = FRAMES["pull_request_rocketmq"]
    command = decode_command(only_frame(bytes.fromhex(vector["hex"])))
    header = decode_fields(pull.PullMessageRequestHeader, command.ext_fields)
    assert (header.queue_offset, header.suspend_timeout_millis) == (7, 15000)
    assert (header.subscription, header.expression_type) == (None, "TAG")
    assert list(encode_fields(header).items()) == list(command.ext_fields.items())

    command = decode_command(only_frame(bytes.fromhex(FRAMES["pull_response_rocketmq"]["hex"])))
    answer = decode_fields(pull.PullMessageResponseHeader, command.ext_fields)
    assert answer.next_begin_offset == 8
    assert list(encode_fields(answer).items()) == list(command.ext_fields.items())

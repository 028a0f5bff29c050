"""The wire names of every typed header, spelled out as RocketMQ spells them.

A `!` marks what must be there; the rest may be missing.
"""

import msgspec
import pytest

from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.headers import drain, group, pop, pull, replica, route, send, topic
from skylarkmq.protocol.headers.fields import Header, decode_fields, encode_fields
from tests.protocol.message_vectors import FRAMES
from tests.protocol.support import only_frame

NAMES: list[tuple[type[msgspec.Struct], str]] = [
    (
        send.SendMessageRequestHeader,
        "producerGroup! topic! defaultTopic! defaultTopicQueueNums! queueId! sysFlag!"
        " bornTimestamp! flag! properties reconsumeTimes unitMode maxReconsumeTimes batch bname",
    ),
    (send.SendMessageResponseHeader, "msgId! queueId! queueOffset! transactionId recallHandle"),
    (send.RecallMessageRequestHeader, "producerGroup topic! recallHandle! bname"),
    (send.RecallMessageResponseHeader, "msgId!"),
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
    (group.CloneGroupOffsetRequestHeader, "srcGroup! destGroup! topic offline"),
    (topic.GetTopicConfigRequestHeader, "topic!"),
    (group.GetSubscriptionGroupConfigRequestHeader, "group!"),
    (topic.GetBrokerConfigResponseHeader, "version!"),
    (
        group.InvokeBrokerToResetOffsetRequestHeader,
        "topic! group! timestamp isForce queueId offset",
    ),
    (group.QueryConsumeTimeSpanRequestHeader, "topic! group!"),
    (topic.QueryConsumeQueueRequestHeader, "topic! queueId! index! count! consumerGroup"),
    (topic.DeleteTopicRequestHeader, "topic!"),
    (topic.ViewBrokerStatsDataRequestHeader, "statsName! statsKey!"),
    (topic.GetConsumeStatsInBrokerHeader, "isOrder!"),
    (group.GetConsumerConnectionListRequestHeader, "consumerGroup!"),
    (group.GetProducerConnectionListRequestHeader, "producerGroup!"),
    (group.DeleteSubscriptionGroupRequestHeader, "groupName! removeOffset"),
    (group.GetConsumeStatsRequestHeader, "consumerGroup! topic"),
    (group.QueryTopicConsumeByWhoRequestHeader, "topic!"),
    (group.QueryCorrectionOffsetRequestHeader, "topic! compareGroup! filterGroups"),
    (send.ResumeCheckHalfMessageRequestHeader, "msgId!"),
    (pull.QueryMessageRequestHeader, "topic! key! maxNum! beginTimestamp! endTimestamp!"),
    (
        pull.QueryMessageResponseHeader,
        "indexLastUpdateTimestamp! indexLastUpdatePhyoffset! skylarkmq.complete",
    ),
    (pull.SearchOffsetRequestHeader, "topic! queueId! timestamp!"),
    (pull.SearchOffsetResponseHeader, "offset!"),
    (pull.GetMaxOffsetRequestHeader, "topic! queueId!"),
    (pull.GetMaxOffsetResponseHeader, "offset!"),
    (pull.GetMinOffsetRequestHeader, "topic! queueId!"),
    (pull.GetMinOffsetResponseHeader, "offset!"),
    (pull.GetEarliestMsgStoretimeRequestHeader, "topic! queueId!"),
    (pull.GetEarliestMsgStoretimeResponseHeader, "timestamp!"),
    (pull.ViewMessageRequestHeader, "offset!"),
    (topic.GetTopicStatsInfoRequestHeader, "topic!"),
    (
        group.QueryConsumerOffsetRequestHeader,
        "consumerGroup! topic! queueId! setZeroIfNotFound",
    ),
    (group.QueryConsumerOffsetResponseHeader, "offset!"),
    (
        group.UpdateConsumerOffsetRequestHeader,
        "consumerGroup! topic! queueId! commitOffset!",
    ),
    (group.GetConsumerListByGroupRequestHeader, "consumerGroup!"),
    (group.NotifyConsumerIdsChangedRequestHeader, "consumerGroup!"),
    (group.ResetOffsetRequestHeader, "topic! group! timestamp! isForce!"),
    (group.GetConsumerStatusRequestHeader, "topic! group! clientAddr"),
    (group.GetConsumerRunningInfoRequestHeader, "consumerGroup! clientId! jstackEnable"),
    (
        group.ConsumeMessageDirectlyResultRequestHeader,
        "consumerGroup! clientId msgId brokerName",
    ),
    (group.UnregisterClientRequestHeader, "clientID! producerGroup consumerGroup"),
    (
        topic.CreateTopicRequestHeader,
        "topic! defaultTopic! readQueueNums! writeQueueNums! perm! topicFilterType!"
        " topicSysFlag order attributes",
    ),
    (route.GetRouteInfoRequestHeader, "topic! acceptStandardJsonOnly"),
    (
        route.RegisterBrokerRequestHeader,
        "brokerName! brokerAddr! clusterName! haServerAddr! brokerId! compressed bodyCrc32"
        " skylarkmq.term",
    ),
    (route.RegisterBrokerResponseHeader, "haServerAddr masterAddr"),
    (route.UnRegisterBrokerRequestHeader, "brokerName! brokerAddr! clusterName! brokerId!"),
    (route.QueryDataVersionRequestHeader, "brokerName! brokerAddr! clusterName! brokerId!"),
    (route.QueryDataVersionResponseHeader, "changed!"),
    (
        send.EndTransactionRequestHeader,
        "producerGroup! tranStateTableOffset! commitLogOffset! commitOrRollback!"
        " fromTransactionCheck msgId! transactionId",
    ),
    (
        send.CheckTransactionStateRequestHeader,
        "tranStateTableOffset! commitLogOffset! msgId transactionId offsetMsgId",
    ),
    (route.PutKVConfigRequestHeader, "namespace! key! value!"),
    (route.GetKVConfigRequestHeader, "namespace! key!"),
    (route.GetKVConfigResponseHeader, "value"),
    (route.DeleteKVConfigRequestHeader, "namespace! key!"),
    (route.GetKVListByNamespaceRequestHeader, "namespace!"),
    (route.DeleteTopicFromNamesrvRequestHeader, "topic! clusterName"),
    (route.GetTopicsByClusterRequestHeader, "cluster!"),
    (route.WipeWritePermOfBrokerRequestHeader, "brokerName!"),
    (route.WipeWritePermOfBrokerResponseHeader, "wipeTopicCount!"),
    (route.AddWritePermOfBrokerRequestHeader, "brokerName!"),
    (route.AddWritePermOfBrokerResponseHeader, "addTopicCount!"),
    (drain.DrainBrokerRequestHeader, "action! refresh leaving"),
    (drain.DrainBrokerResponseHeader, "state! moved! stays! why waitsFor"),
    (
        pop.PopMessageRequestHeader,
        "consumerGroup! topic! queueId! maxMsgNums! invisibleTime! pollTime! bornTime! initMode!"
        " expType exp order attemptId bname",
    ),
    (
        pop.PopMessageResponseHeader,
        "popTime invisibleTime reviveQid restNum startOffsetInfo msgOffsetInfo orderCountInfo",
    ),
    (pop.PeekMessageRequestHeader, "topic! queueId! maxMsgNums! consumerGroup!"),
    (pop.AckMessageRequestHeader, "consumerGroup! topic! queueId! extraInfo! offset! bname"),
    (
        pop.ChangeInvisibleTimeRequestHeader,
        "consumerGroup! topic! queueId! extraInfo! offset! invisibleTime! bname",
    ),
    (pop.ChangeInvisibleTimeResponseHeader, "popTime invisibleTime reviveQid"),
    (
        pop.NotificationRequestHeader,
        "consumerGroup! topic! queueId! pollTime! bornTime! order attemptId bname",
    ),
    (pop.NotificationResponseHeader, "hasMsg pollingFull"),
    (pop.PollingInfoRequestHeader, "consumerGroup! topic! queueId!"),
    (pop.PollingInfoResponseHeader, "pollingNum!"),
    (replica.SwitchOverRequestHeader, "target"),
    (replica.SwitchOverResponseHeader, "master! term!"),
    (replica.ForceFailoverRequestHeader, "acceptLoss!"),
    (replica.ForceFailoverResponseHeader, "messagesAtRisk! term!"),
]
MODULES = (drain, group, pop, pull, replica, route, send, topic)


def test_no_header_is_forgotten() -> None:
    headers = {
        item
        for module in MODULES
        for item in vars(module).values()
        if isinstance(item, type) and item is not Header and item.__name__.endswith("Header")
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

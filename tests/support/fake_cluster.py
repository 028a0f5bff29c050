"""A name server and brokers over the scripted network, just enough to drive the SDK.

    cluster = FakeCluster()
    broker = cluster.broker("broker-a", {"orders": 4})
    client = Client(cluster.namesrv, network=cluster.network, clock=clock)

Every broker keeps its queues as lists and answers the client's codes by the rules of the protocol
reference; `refuse` makes the next requests of a code fail. Held pulls wait until `add` or a send
brings something, or until `release_pulls`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate

from skylarkmq.protocol.batch import split_batch
from skylarkmq.protocol.bodies.group import GetConsumerListByGroupResponseBody, HeartbeatData
from skylarkmq.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import PullSysFlag, retry_topic
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from skylarkmq.protocol.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageResponseHeader,
    decode_send_header,
)
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.support.fake_pops import POP_CODES, FakePops
from tests.support.fake_queues import HOST as HOST
from tests.support.fake_queues import QUEUE_SPAN, Topic, record
from tests.support.fake_queues import STORE_MS as STORE_MS
from tests.support.fake_queues import Stored as Stored
from tests.support.fake_replies import push_reply
from tests.support.inline_threads import use_inline_threads
from tests.support.scripted_stream import Answer, ScriptedNetwork, ScriptedPeer, ScriptedStream

NAMESRV = "namesrv:9876"
CODEC_FIELD = "skylarkmq.codec"
DENIED = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
"""What access control answers to whom it does not know, with SYSTEM_ERROR."""


@dataclass
class Held:
    """A pull that waits."""

    request: RemotingCommand
    stream: ScriptedStream
    header: PullMessageRequestHeader


class FakeBroker(ScriptedPeer):
    """One broker."""

    def __init__(self, cluster: FakeCluster, name: str, topics: dict[str, int]) -> None:
        super().__init__()
        self.cluster = cluster
        self.name = name
        self.address = f"{name}:10911"
        self.topics = {topic: _topic(count) for topic, count in topics.items()}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.clients: dict[str, dict[ScriptedStream, str]] = defaultdict(dict)
        """Group to connection to client id."""
        self.heartbeats: list[HeartbeatData] = []
        self.producers: dict[str, ScriptedStream] = {}
        """Clients that named a producer group, by client id."""
        self.held: list[Held] = []
        self.pops = FakePops(self)
        """What SimpleConsumers did, and those who wait for messages."""
        self.refusals: dict[int, list[int]] = defaultdict(list)
        """Request code to the response codes of its next answers."""
        self.refusal_fields: dict[str, str] = {}
        """What these answers carry beside their codes."""
        self.refuses_all = False
        """Answer every request as where access control was switched on, and nobody signs."""
        self.send_back_delay_over = True
        """Whether messages sent back stand in the retry topic at once."""
        self.echo_codec = False
        self.slaves: dict[int, FakeBroker] = {}
        self.has_master = True
        """False leaves only the slaves in the route."""
        self.answer_size_max: int | None = None
        """Bytes of bodies in the answer to a pull, but for its first message."""
        self.suggested_broker_id = 0
        """Which broker of the set pulls are told to ask next."""

    def refuse(self, code: int, *response_codes: int) -> None:
        """Answer the next requests of `code` with these codes."""
        self.refusals[code] += response_codes

    def add(self, topic: str, queue_id: int, *bodies: bytes, **properties: str) -> None:
        """Put messages into a queue."""
        queue = self.topics[topic].queues[queue_id]
        for body in bodies:
            queue.append(Stored(body, {"UNIQ_KEY": f"U{len(queue)}", **properties}))
        self._serve_held()

    def bodies(self, topic: str) -> list[bytes]:
        """All bodies of a topic, queue by queue."""
        return [stored.body for queue in self.topics[topic].queues for stored in queue]

    def notify(self, group: str) -> None:
        """Push 40 to every member of the group."""
        fields = {"consumerGroup": group}
        push = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields, oneway=True)
        for stream in list(self.clients[group]):
            stream.say(push)

    def release_pulls(self) -> None:
        """Let every held pull run out: nothing found."""
        held, self.held = self.held, []
        for pull in held:
            pull.stream.say(self._pull(pull.request, pull.stream, pull.header, may_hold=False))

    def respond(self, request: RemotingCommand, stream: ScriptedStream) -> Answer | list[Answer]:
        if self.silent or request.is_response:
            return None
        if self.script:
            return self.script.pop(0)
        if self.refuses_all:
            return None if request.is_oneway else request.reply(ResponseCode.SYSTEM_ERROR, DENIED)
        refusals = self.refusals[request.code]
        if refusals:
            return request.reply(refusals.pop(0), "refused by the test", self.refusal_fields)
        answer = self._act(request, stream)
        if (
            self.echo_codec
            and isinstance(answer, RemotingCommand)
            and CODEC_FIELD in request.ext_fields
        ):
            answer.ext_fields[CODEC_FIELD] = request.ext_fields[CODEC_FIELD]
        return None if request.is_oneway else answer

    def _act(self, request: RemotingCommand, stream: ScriptedStream) -> Answer:
        fields = request.ext_fields
        match request.code:
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self._send(request)
            case RequestCode.SEND_REPLY_MESSAGE_V2:
                return push_reply(self.producers, request)
            case RequestCode.PULL_MESSAGE:
                header = decode_fields(PullMessageRequestHeader, fields)
                return self._pull(request, stream, header, may_hold=True)
            case RequestCode.HEART_BEAT:
                return self._heartbeat(request, stream)
            case RequestCode.UNREGISTER_CLIENT:
                self.clients[fields.get("consumerGroup", "")].pop(stream, None)
                self.notify(fields.get("consumerGroup", ""))
                return request.reply(0)
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                ids = [
                    client_id
                    for known, client_id in self.clients[fields["consumerGroup"]].items()
                    if known.open
                ]
                if not ids:
                    return request.reply(ResponseCode.SYSTEM_ERROR, "no consumer")
                body = GetConsumerListByGroupResponseBody(consumer_id_list=ids)
                return request.reply(0, body=encode_body(body))
            case RequestCode.CONSUMER_SEND_MSG_BACK:
                return self._send_back(request)
            case code if code in POP_CODES:
                return self.pops.respond(request, stream)
            case _:
                return self._offset(request)

    def _send(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_send_header(request.code, request.ext_fields)
        name, tries_max = header.topic, header.max_reconsume_times
        group = name.removeprefix("%RETRY%")
        if group != name and tries_max is not None and header.reconsume_times >= tries_max:
            name = f"%DLQ%{group}"
        topic = self.topics.get(name)
        if topic is None:
            if "TBW102" not in self.topics and group == header.topic:
                return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
            count = min(header.default_topic_queue_nums, 4)
            topic = self.topics[name] = _topic(count)
        queue = topic.queues[header.queue_id]
        first = len(queue)
        properties = decode_properties(header.properties or "")
        if header.batch:
            items = [
                (item.body, decode_properties(item.properties.decode()))
                for item in split_batch(request.body)
            ]
        else:
            items = [(request.body, properties)]
        for body, own in items:
            stored = Stored(
                body,
                own,
                header.reconsume_times,
                header.sys_flag,
                header.born_timestamp,
                header.flag,
            )
            queue.append(stored)
        ids = ",".join(offset_message_id(HOST, 1000 + first + n) for n in range(len(items)))
        answer = SendMessageResponseHeader(msg_id=ids, queue_id=header.queue_id, queue_offset=first)
        self._serve_held()
        fields = {**encode_fields(answer), "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        return request.reply(0, ext_fields=fields)

    def _pull(
        self,
        request: RemotingCommand,
        stream: ScriptedStream,
        header: PullMessageRequestHeader,
        *,
        may_hold: bool,
    ) -> Answer:
        if header.topic not in self.topics:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        inline = header.sys_flag & PullSysFlag.FLAG_SUBSCRIPTION
        if not inline and stream not in self.clients[header.consumer_group]:
            return request.reply(ResponseCode.SUBSCRIPTION_NOT_EXIST, "no heartbeat")
        if may_hold and header.sys_flag & PullSysFlag.FLAG_COMMIT_OFFSET:
            committed = (header.consumer_group, header.topic, header.queue_id)
            self.offsets[committed] = header.commit_offset
        topic = self.topics[header.topic]
        queue = topic.queues[header.queue_id]
        start, first = header.queue_offset, topic.min_offset[header.queue_id]
        code, body, following = ResponseCode.SUCCESS, b"", start
        if start < first:
            code, following = ResponseCode.PULL_OFFSET_MOVED, first
        elif start > len(queue):
            code, following = ResponseCode.PULL_OFFSET_MOVED, len(queue)
        elif start == len(queue):
            if may_hold and header.sys_flag & PullSysFlag.FLAG_SUSPEND:
                self.held.append(Held(request, stream, header))
                return None
            code = ResponseCode.PULL_NOT_FOUND
        else:
            following = min(start + header.max_msg_nums, len(queue))
            if self.answer_size_max is not None:
                sizes = accumulate(len(stored.body) for stored in queue[start:following])
                fitting = sum(size <= self.answer_size_max for size in sizes)
                following = start + max(1, fitting)
            key = self.cluster.queue_key(header.topic, header.queue_id)
            body = b"".join(
                record(key, header.topic, header.queue_id, offset, queue[offset])
                for offset in range(start, following)
            )
        answer = PullMessageResponseHeader(
            suggest_which_broker_id=self.suggested_broker_id,
            next_begin_offset=following,
            min_offset=first,
            max_offset=len(queue),
        )
        return request.reply(code, ext_fields=encode_fields(answer), body=body)

    def _serve_held(self) -> None:
        held, self.held = self.held, []
        for pull in held:
            queue = self.topics[pull.header.topic].queues[pull.header.queue_id]
            if len(queue) > pull.header.queue_offset:
                pull.stream.say(self._pull(pull.request, pull.stream, pull.header, may_hold=False))
            else:
                self.held.append(pull)
        self.pops.serve()

    def _heartbeat(self, request: RemotingCommand, stream: ScriptedStream) -> Answer:
        data = decode_body(HeartbeatData, request.body)
        self.heartbeats.append(data)
        if data.producer_data_set:
            self.producers[data.client_id] = stream
        for consumer in data.consumer_data_set:
            group = consumer.group_name
            self.topics.setdefault(retry_topic(group), _topic(1))
            changed = stream not in self.clients[group]
            self.clients[group][stream] = data.client_id
            if changed:
                self.notify(group)
        return request.reply(0)

    def _send_back(self, request: RemotingCommand) -> Answer:
        header = decode_fields(ConsumerSendMsgBackRequestHeader, request.ext_fields)
        queue_key, offset = divmod(header.offset, QUEUE_SPAN)
        topic_name, queue_id = self.cluster.queue_keys[queue_key]
        stored = self.topics[topic_name].queues[queue_id][offset]
        again = Stored(
            stored.body,
            {**stored.properties, "RETRY_TOPIC": stored.properties.get("RETRY_TOPIC", topic_name)},
            stored.reconsume_times + 1,
            stored.sys_flag,
        )
        dead = header.delay_level < 0 or stored.reconsume_times >= (
            16 if header.max_reconsume_times is None else header.max_reconsume_times
        )
        target = f"%DLQ%{header.group}" if dead else retry_topic(header.group)
        self.topics.setdefault(target, _topic(1)).queues[0].append(again)
        self._serve_held()
        return request.reply(0)

    def _offset(self, request: RemotingCommand) -> Answer:
        fields = request.ext_fields
        queue_id = int(fields.get("queueId", "-1"))
        key = (fields.get("consumerGroup", ""), fields.get("topic", ""), queue_id)
        match request.code:
            case RequestCode.QUERY_CONSUMER_OFFSET:
                found = self.offsets.get(key)
                if found is None:
                    return request.reply(ResponseCode.QUERY_NOT_FOUND, "none")
                return request.reply(0, ext_fields={"offset": str(found)})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.offsets[key] = int(fields["commitOffset"])
                return request.reply(0)
            case RequestCode.GET_MAX_OFFSET:
                count = len(self.topics[fields["topic"]].queues[queue_id])
                return request.reply(0, ext_fields={"offset": str(count)})
            case RequestCode.GET_MIN_OFFSET:
                first = self.topics[fields["topic"]].min_offset[queue_id]
                return request.reply(0, ext_fields={"offset": str(first)})
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                found = self._nearest(fields["topic"], queue_id, int(fields["timestamp"]))
                return request.reply(0, ext_fields={"offset": str(found)})
            case RequestCode.VIEW_MESSAGE_BY_ID:
                key, offset = divmod(int(fields["offset"]), QUEUE_SPAN)
                name, queue_id = self.cluster.queue_keys[key]
                stored = self.topics[name].queues[queue_id][offset]
                return request.reply(0, body=record(key, name, queue_id, offset, stored))
            case RequestCode.CHECK_CLIENT_CONFIG:
                return request.reply(0)
            case _:
                return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not built")

    def _nearest(self, name: str, queue_id: int, when_ms: int) -> int:
        """As RocketMQ: the message stored nearest to that time, the earlier one of two."""
        topic = self.topics[name]
        offsets = range(topic.min_offset[queue_id], len(topic.queues[queue_id]))
        times = {offset: self.store_time(name, queue_id, offset) for offset in offsets}
        return min(offsets, key=lambda offset: (abs(times[offset] - when_ms), offset), default=0)

    def store_time(self, name: str, queue_id: int, offset: int) -> int:
        """When the message was stored, ms; a millisecond apart unless a message says otherwise."""
        stored = self.topics[name].queues[queue_id][offset]
        return STORE_MS + offset if stored.store_timestamp is None else stored.store_timestamp


class FakeCluster:
    """The name server, its brokers, and the network they are on; made within a loop."""

    def __init__(self) -> None:
        use_inline_threads()
        self.network = ScriptedNetwork()
        self.namesrv = NAMESRV
        self.name_server = self.network.listen(NAMESRV)
        self.name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        self.name_server.on(RequestCode.GET_BROKER_CLUSTER_INFO, self._cluster_info)
        self.brokers: list[FakeBroker] = []
        self.queue_keys: list[tuple[str, int]] = []

    def broker(self, name: str = "broker-a", topics: dict[str, int] | None = None) -> FakeBroker:
        """Start a broker with topics and their queue counts."""
        broker = FakeBroker(self, name, topics or {})
        self.network.listen(broker.address, broker)
        self.brokers.append(broker)
        return broker

    def slave(self, master: FakeBroker, broker_id: int = 1) -> FakeBroker:
        """Start a slave that has all that its master has."""
        slave = FakeBroker(self, master.name, {})
        slave.address = f"{master.name}-{broker_id}:10911"
        slave.topics = master.topics
        self.network.listen(slave.address, slave)
        master.slaves[broker_id] = slave
        return slave

    def successor(self, master: FakeBroker) -> FakeBroker:
        """Start a replica that has all that its master has, at an address of its own.

        No route names it before `take_over`.
        """
        replica = type(master)(self, master.name, {})
        replica.address = f"{master.name}-next:10911"
        replica.topics, replica.offsets = master.topics, master.offsets
        self.network.listen(replica.address, replica)
        return replica

    def take_over(self, replica: FakeBroker, master: FakeBroker) -> None:
        """Let routes name the replica in its master's place."""
        self.brokers[self.brokers.index(master)] = replica

    def queue_key(self, topic: str, queue_id: int) -> int:
        """Return the number of a queue, from which physical offsets are made."""
        if (topic, queue_id) not in self.queue_keys:
            self.queue_keys.append((topic, queue_id))
        return self.queue_keys.index((topic, queue_id))

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        name = request.ext_fields["topic"]
        holders = [broker for broker in self.brokers if name in broker.topics]
        if not holders:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no route")
        route = TopicRouteData(
            broker_datas=[_broker_data(broker) for broker in holders],
            queue_datas=[
                QueueData(
                    broker_name=broker.name,
                    perm=broker.topics[name].perm,
                    read_queue_nums=len(broker.topics[name].queues),
                    write_queue_nums=len(broker.topics[name].queues),
                )
                for broker in holders
            ],
        )
        return request.reply(0, body=encode_body(route))

    def _cluster_info(self, request: RemotingCommand) -> RemotingCommand:
        table = {broker.name: _broker_data(broker) for broker in self.brokers}
        return request.reply(0, body=encode_body(ClusterInfo(broker_addr_table=table)))


def _topic(count: int) -> Topic:
    return Topic([[] for _ in range(count)])


def _broker_data(broker: FakeBroker) -> BrokerData:
    addresses = {broker_id: slave.address for broker_id, slave in broker.slaves.items()}
    if broker.has_master:
        addresses[0] = broker.address
    return BrokerData(broker_addrs=addresses, broker_name=broker.name, cluster="DefaultCluster")

"""The facade as type checkers see it. Written by `python -m tests.client.sync.stub`."""

import concurrent.futures
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Literal, Self, overload

from opentelemetry.trace import TracerProvider
from prometheus_client import CollectorRegistry

from skylarkmq.client.admin.access import AccessFile, AccessRules, Right
from skylarkmq.client.admin.base import TIMEOUT_S
from skylarkmq.client.admin.dead_letters import CopyPlace, RedriveOutcome, RedriveTarget
from skylarkmq.client.admin.failover import Drained, DrainProgress, ForcedFailover, Mastership
from skylarkmq.client.admin.offsets import Edge
from skylarkmq.client.admin.reading import ScanProgress
from skylarkmq.client.admin.results import (
    Connection,
    ConsumedDirectly,
    GroupDescription,
    GroupMembers,
    GroupProgress,
    MemberInfo,
    MessageTrack,
    OffsetReset,
    Unanswered,
)
from skylarkmq.client.admin.status import (
    BEHIND_MAX,
    DISK_MAX,
    BrokerRuntime,
    ClusterStatus,
    ClusterSummary,
    Problem,
    Statistic,
)
from skylarkmq.client.admin.topics import TopicDescription, TopicRoute
from skylarkmq.client.admin.traces import MessageTrace
from skylarkmq.client.admin.waiting import LIMIT, DelayedMessage, OpenTransaction
from skylarkmq.client.config import AddressMap, Compression, Credentials
from skylarkmq.client.consumer.allocate import Assignment
from skylarkmq.client.consumer.config import AckMode, Model
from skylarkmq.client.consumer.peek_reader import PeekStart, PeekStop
from skylarkmq.client.consumer.subscription import Selector, StartFrom
from skylarkmq.client.errors import DEFAULT_RETRY_CODES, RocketMQError
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.producer.checks import HalfMessage, TransactionState
from skylarkmq.client.producer.lanes import QueueSelector
from skylarkmq.client.producer.reply_table import Reply
from skylarkmq.client.producer.send_pipeline import SendStats
from skylarkmq.client.producer.sender import Outcome
from skylarkmq.client.producer.trace import TRACE_TOPIC
from skylarkmq.client.send_result import SendResult
from skylarkmq.client.sync.twin import Started
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.message import Message, MessageQueue
from skylarkmq.protocol.topic_attributes import DeduplicationWindow, MessageType
from skylarkmq.remoting.connection import Codec
from skylarkmq.remoting.stream import Network
from skylarkmq.remoting.tls import ServerHostname, SslSetting

BatchHandler = Callable[[list["ReceivedMessage"]], object]
Check = Callable[[HalfMessage], TransactionState]
Handler = Callable[["ReceivedMessage"], object]
QueuesCallback = Callable[[list[MessageQueue]], None]

class Admin(Started):
    """Administers a cluster; `skylarkmq.client.Admin` without await. Any thread."""

    def __init__(
        self,
        *,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        timeout: float | timedelta = TIMEOUT_S,
        unanswered: dict[str, Unanswered] | None = None,
    ) -> None: ...
    def access_files(self, broker: str) -> tuple[AccessFile, ...]:
        """Return a broker's files of access control, and how often administrators changed them."""

    def access_rules(self, broker: str) -> AccessRules:
        """Return a broker's white list and its accounts, without their secrets."""

    def allow_writes(self, broker: str) -> int:
        """Undo `stop_writes`; return how many topics changed."""

    def broker_config(self, broker: str) -> dict[str, str]:
        """Return all settings of a broker by RocketMQ's names."""

    def broker_progress(
        self, broker: str, *, order_only: bool = False
    ) -> tuple[GroupProgress, ...]:
        """Return how far all groups of one broker are there, of the client's namespace only."""

    def broker_runtime(self, broker: str, *, broker_id: int = MASTER_ID) -> BrokerRuntime:
        """Return what a broker counts and measures."""

    def clone_offsets(self, source: str, target: str, topic: str | None = None) -> None:
        """Give group `target` the offsets of `source`, in one topic or in all it has consumed."""

    def cluster(self) -> ClusterSummary:
        """Return the brokers that are registered."""

    def cluster_health(
        self, *, behind_max: int = BEHIND_MAX, disk_max: float = DISK_MAX
    ) -> tuple[Problem, ...]:
        """Return what is wrong with the cluster, each with its cure; empty: all is well."""

    def cluster_status(self) -> ClusterStatus:
        """Ask every name server and every broker, slaves too, how it is."""

    def consume_directly(self, group: str, client_id: str, offset_msg_id: str) -> ConsumedDirectly:
        """Let one member consume one message now; the group's offsets do not matter."""

    def consumers(self, group: str) -> GroupMembers:
        """Return the members of a consumer group, over all brokers; none is no error."""

    def create_group(
        self,
        group: str,
        *,
        retry_queues: int = 1,
        max_retries: int = 16,
        consume_enabled: bool = True,
        broadcast_enabled: bool = True,
        from_min_enabled: bool = True,
        notify_members: bool = True,
        orderly: bool = False,
        broker_id: int = 0,
        broker_id_when_slow: int = 1,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a consumer group; needed only where brokers create none on demand."""

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        perm: str = "rw",
        order: bool = False,
        sys_flag: int = 0,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
        exist_ok: bool = False,
        deduplication: DeduplicationWindow | None = None,
        message_type: MessageType | None = None,
    ) -> None:
        """Create a topic and wait until the name servers tell clients of it."""

    def dead_letters(
        self,
        group: str,
        *,
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
    ) -> MessageScan:
        """Go through a group's dead letters: `for letter in admin.dead_letters(...)`."""

    def deduplication_windows(self, topic: str) -> dict[str, DeduplicationWindow | None]:
        """Return the deduplication window of a topic on each broker; None: it has none there."""

    def delayed(
        self, *, topic: str | None = None, limit: int = LIMIT
    ) -> tuple[DelayedMessage, ...]:
        """Return the messages that wait for their time, the next one first; the first `limit`."""

    def delete_account(
        self, access_key: str, *, cluster: str | None = None, brokers: Sequence[str] | None = None
    ) -> None:
        """Delete an account; its clients are refused from now on."""

    def delete_group(
        self,
        group: str,
        *,
        remove_offsets: bool = True,
        remove_messages: bool = False,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Delete a group from brokers, default all. Nothing happens to one that is not there."""

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages from all brokers and name servers."""

    def describe_group(self, group: str) -> GroupDescription:
        """Return settings and members of a group."""

    def describe_topic(self, topic: str) -> TopicDescription:
        """Return settings, queues and consumer groups of a topic."""

    def drain(self, broker: str, *, broker_id: int | None = None) -> Drained:
        """Take the load off a broker before its process or machine is worked on."""

    def drain_progress(self, broker: str, *, broker_id: int | None = None) -> DrainProgress:
        """Return how far the drain of a broker of SkylarkMQ is."""

    def failover(self, broker: str, *, on: int | str, accept_loss: bool = False) -> ForcedFailover:
        """Let a replica lead although messages may be lost: the last resort."""

    def find_copy(
        self, letter: StoredMessage, place: CopyPlace, *, taken: Collection[CopyPlace] = ()
    ) -> CopyPlace | None:
        """Return where the copy of a dead letter is, None when it is not there."""

    def keep_text(self, namespace: str, key: str, value: str | None) -> None:
        """Let all name servers keep a text; None: forget it."""

    def kept_texts(self, namespace: str) -> dict[str, str]:
        """Return what the name servers keep in a namespace, by key; nothing is no error."""

    def list_groups(self, *, system: bool = False) -> list[str]:
        """Return the consumer groups that brokers know, sorted; of the client's namespace only."""

    def list_topics(
        self, *, cluster: str | None = None, system: bool = False, groups: bool = False
    ) -> list[str]:
        """Return the topics' names, sorted; those of the client's namespace if it has one."""

    def member_info(self, group: str, client_id: str, *, stack: bool = False) -> MemberInfo:
        """Ask a member of a group, through its broker, what it is doing."""

    def message(self, offset_msg_id: str) -> StoredMessage | None:
        """Return the message at a place, which an offset id names; None when it is gone."""

    def name_server_config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server by its address."""

    def open_transactions(
        self, *, topic: str | None = None, limit: int = LIMIT
    ) -> tuple[OpenTransaction, ...]:
        """Return the transactions that have not ended, the oldest first; the first `limit`."""

    def plan_copy(
        self, letter: StoredMessage, group: str, *, to: RedriveTarget = "group"
    ) -> CopyPlace:
        """Return the queue that a copy of a group's dead letter goes to, and where it ends now."""

    def producer_groups(self) -> dict[str, list[Connection]]:
        """Return all producers by group, over all brokers."""

    def producers(self, group: str) -> list[Connection]:
        """Return the clients of a producer group, over all brokers; none is no error."""

    def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Return how far a group is in every queue it has consumed, or in those of one topic."""

    def put_account(
        self,
        access_key: str,
        secret_key: str | None = None,
        *,
        admin: bool | None = None,
        default_topic_right: Right | None = None,
        default_group_right: Right | None = None,
        topic_rights: Mapping[str, Right] | None = None,
        group_rights: Mapping[str, Right] | None = None,
        white_address: str | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Make an account, or change what is given of one; the rest stays as it is."""

    def query(
        self,
        topic: str,
        *,
        key: str | None = None,
        msg_id: str | None = None,
        start: datetime | None = None,
        stop: datetime | None = None,
        limit: int = 64,
    ) -> list[StoredMessage]:
        """Return messages of a topic, oldest first, `limit` at most: of many, the newest ones"""

    def ranges(
        self, topic: str, *, start: datetime | None = None, stop: datetime | None = None
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Return for each queue the first offset of a time, and the one after the last."""

    def redrive_dead_letter(
        self,
        letter: StoredMessage,
        group: str,
        *,
        to: RedriveTarget = "group",
        place: CopyPlace | None = None,
    ) -> RedriveOutcome:
        """Send a dead letter of a group again. A failure is an outcome."""

    def reset_offset(
        self,
        group: str,
        topic: str,
        *,
        when: datetime | Edge | None = None,
        offset: int | Mapping[MessageQueue, int] | None = None,
        dry_run: bool = False,
    ) -> OffsetReset:
        """Move a group to another place in a topic, with or without members at work."""

    def scan(
        self,
        topic: str,
        *,
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
    ) -> MessageScan:
        """Go through a topic, queue after queue: `for message in admin.scan(...)`."""

    def set_broker_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs; it writes them into its file."""

    def set_name_server_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of all name servers while they run; they write them into their files."""

    def set_white_list(
        self,
        addresses: Iterable[str],
        *,
        file: str | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Replace the addresses from which everything is allowed without an account."""

    def start(self) -> None:
        """Connect to a name server; does nothing when started."""

    def statistic(
        self, name: str, key: str, *, brokers: Sequence[str] | None = None
    ) -> tuple[Statistic, ...]:
        """Return what brokers count under a name; who has counted nothing of it is left out."""

    def stop(self) -> None:
        """Close the connections, unless the client is shared."""

    def stop_writes(self, broker: str) -> int:
        """Let name servers tell clients not to send to a broker; return how many topics changed."""

    def switch_over(self, broker: str, to: int | str | None = None) -> Mastership:
        """Let another replica of a set lead; return who does."""

    def topic_attributes(self, topic: str) -> dict[str, Mapping[str, str]]:
        """Return the attributes of a topic on each broker, such as `message.type`."""

    def topic_groups(self, topic: str) -> list[str]:
        """Return the groups that have consumed or consume a topic."""

    def topic_route(self, topic: str) -> TopicRoute:
        """Return what name servers tell clients of a topic: its brokers, slaves too, and queues."""

    def trace(self, msg_id: str, *, topic: str = TRACE_TOPIC) -> MessageTrace:
        """Return what clients told of the message with this `msg_id`."""

    def track(self, message: StoredMessage, group: str) -> MessageTrack:
        """Return how a group stands to a message; see `topic_groups` for the groups."""

    def undrain(self, broker: str) -> int:
        """Undo `drain`: let producers send again; return how many topics changed."""

    def update_group(
        self,
        group: str,
        *,
        retry_queues: int | None = None,
        max_retries: int | None = None,
        consume_enabled: bool | None = None,
        broadcast_enabled: bool | None = None,
        from_min_enabled: bool | None = None,
        notify_members: bool | None = None,
        orderly: bool | None = None,
        broker_id: int | None = None,
        broker_id_when_slow: int | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Change what is given, on all brokers that have the group or on those named."""

    def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        perm: str | None = None,
        order: bool | None = None,
        sys_flag: int | None = None,
        brokers: Sequence[str] | None = None,
        deduplication: DeduplicationWindow | Literal[False] | None = None,
        message_type: MessageType | None = None,
    ) -> None:
        """Change what is given, on all brokers that have the topic or on those named."""

class Client(Started):
    """A connection to a cluster; `skylarkmq.client.Client` without await. Any thread."""

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        ssl: SslSetting = None,
        server_hostname: ServerHostname = None,
        client_ip: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        codec: Codec = "auto",
        start_timeout: float | timedelta = 30.0,
        request_timeout: float | timedelta = 3.0,
        route_refresh: float | timedelta = 30.0,
        heartbeat_interval: float | timedelta = 30.0,
        address_map: AddressMap | None = None,
        metrics: CollectorRegistry | None = None,
        tracer_provider: TracerProvider | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None: ...
    @property
    def client_id(self) -> str:
        """`<ip>@<instance>[@<unit>]`, as brokers know this client; empty before `start`."""

    @property
    def namespace(self) -> str:
        """The tenant whose topics and groups it sees; empty without one."""

    def start(self) -> None:
        """Connect to a name server; does nothing when started already."""

    def stop(self) -> None:
        """End the tasks and close all connections. Stop its producers and consumers before."""

class Consumer(Started):
    """Receives messages as a member of a group; `skylarkmq.client.Consumer` without await."""

    def __init__(
        self,
        *topics: str,
        group: str,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        model: Model = "clustering",
        selector: Selector | None = None,
        start_from: StartFrom = StartFrom.LAST,
        orderly: bool = False,
        assignment: Assignment = "average",
        batch_size: int = 32,
        prefetch: int = 1000,
        prefetch_bytes: int = 104857600,
        max_span: int = 2000,
        max_reconsume: int | None = None,
        retry_delays: Sequence[float | timedelta] = (),
        ack: AckMode = "auto",
        commit_interval: float | timedelta = 5.0,
        consume_timeout: float | timedelta = 900.0,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        offsets_folder: str | Path | None = None,
        trace: bool | str = False,
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> ReceivedMessage: ...
    def assign(self, queues: Iterable[MessageQueue], selector: Selector | None = None) -> None:
        """Read these queues and no others, outside the division among the members."""

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this member owns now, its group's retry topic apart."""

    def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the first readable offset of each queue, assigned or not."""

    def buffered(self) -> dict[str, tuple[int, int]]:
        """Return how many messages are held here of each topic, and their stored bytes."""

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit now instead of at the next interval."""

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue as it is kept; None without one."""

    def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset that the next message of each queue will get."""

    def getmany(
        self, max_records: int = 500, timeout: float | timedelta | None = 0.0
    ) -> dict[MessageQueue, list[ReceivedMessage]]:
        """Return the next messages by queue; with `ack="auto"` what came before is done now."""

    def getone(self, timeout: float | timedelta | None = None) -> ReceivedMessage:
        """Return the next message; with `ack="auto"` what was given before is done now."""

    @property
    def group(self) -> str:
        """The consumer group, as brokers know it: with the client's namespace."""

    def lag(self) -> dict[MessageQueue, int]:
        """Return for each assigned queue how many messages are not acknowledged yet."""

    def offsets_for_time(
        self, queues: Iterable[MessageQueue], when: datetime
    ) -> dict[MessageQueue, int]:
        """Return for each queue the offset of the first message stored at `when` or later."""

    def pause(self, *queues: MessageQueue) -> None:
        """Give and pull nothing of these queues until `resume`."""

    def paused(self) -> set[MessageQueue]:
        """Return the paused queues."""

    def position(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message to be given."""

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float | timedelta = 3.0,
    ) -> None:
        """Reply to a message that was sent as a request (`Producer.request`)."""

    def resume(self, *queues: MessageQueue) -> None:
        """Undo `pause`."""

    @overload
    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 20,
        max_batch: Literal[1] = 1,
        stop_on: Iterable[int] = (),
        stop_timeout: float | timedelta = 30.0,
    ) -> None:
        """Give every message to `handler` until the consumer has stopped."""

    @overload
    def run(
        self,
        handler: BatchHandler,
        *,
        concurrency: int = 20,
        max_batch: int,
        stop_on: Iterable[int] = (),
        stop_timeout: float | timedelta = 30.0,
    ) -> None:
        """Give every message to `handler` until the consumer has stopped."""

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`; forget what was prefetched or given of the queue before."""

    def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Go on at the first message that can still be read; without queues, of all assigned."""

    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on with the next message to be stored; without queues, of all assigned."""

    def seek_to_time(self, where: MessageQueue | str, when: datetime) -> None:
        """Go on with the first message that was stored at `when` or later."""

    def start(self) -> None:
        """Join the group and take a share of the queues; does nothing when started."""

    def stop(self, drain: bool = True, timeout: float | timedelta = 30.0) -> None:
        """Leave the group: end the handlers, commit, tell the brokers, close."""

    def subscribe(self, topic: str, selector: Selector | None = None) -> None:
        """Add a topic, or change what is wanted of it from the next pull on."""

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""

class MessageScan:
    """An iterator of a topic's messages; see `skylarkmq.client.admin.MessageScan`."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> StoredMessage: ...
    @property
    def progress(self) -> ScanProgress:
        """How far it is."""

    def skip_queue(self) -> None:
        """Leave out the rest of the queue that the last message was of."""

class PeekReader(Started):
    """Reads a topic outside of any group; `skylarkmq.client.PeekReader` without await."""

    def __init__(
        self,
        topic: str,
        *,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        start: PeekStart = StartFrom.FIRST,
        stop: PeekStop = None,
        selector: Selector | None = None,
        without: Callable[[str, str, RocketMQError], object] | None = None,
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> StoredMessage: ...
    def start(self) -> None:
        """Find the queues and where they begin and end; does nothing when started."""

    def stop(self) -> None:
        """End the reading; iterations end too."""

class Producer(Started):
    """Sends messages to any topic; `skylarkmq.client.Producer` without await. Any thread."""

    def __init__(
        self,
        *,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        group: str = "DEFAULT_PRODUCER",
        send_timeout: float | timedelta = 3.0,
        retries: int = 2,
        retry_on: Collection[int] = DEFAULT_RETRY_CODES,
        compress_over: int = 4096,
        compression: Compression = "zlib",
        max_message_size: int = 4194304,
        default_topic_queues: int = 4,
        max_in_flight: int = 1000,
        max_in_flight_bytes: int = 67108864,
        strict: bool = False,
        strict_order: bool = False,
        latency_fault: bool = False,
        try_timeout: float | timedelta | None = None,
        check: Check | None = None,
        trace: bool | str = False,
    ) -> None: ...
    def cancel(self, result: SendResult) -> bool:
        """Take back a message with a `delay` or `deliver_at` of its own while it waits."""

    def flush(self) -> None:
        """Wait until all sends that were started before have ended, with or without an error."""

    @property
    def in_flight_count(self) -> int:
        """Messages sent and not answered yet."""

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of `topic` may be sent to now."""

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float | timedelta = 3.0,
    ) -> None:
        """Reply to a message that a consumer received as a request."""

    def request(self, message: Message, timeout: float | timedelta = 3.0) -> Reply:
        """Send a message that asks for a reply, and return what its consumer replied."""

    def request_nowait(
        self, message: Message, timeout: float | timedelta = 3.0
    ) -> concurrent.futures.Future[Reply]:
        """Start a request; the future has what `request` would return or raise."""

    def room(self, size: int = 0) -> None:
        """Wait until a message of `size` bytes may be started with `send_nowait`."""

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
    ) -> SendResult:
        """Send a message and return where it is; waits first while too much is in flight."""

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | timedelta | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic to one queue in one request; all are stored, or none."""

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
    ) -> list[Outcome]:
        """Send messages in as few requests as possible; return the outcome of each, in order."""

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Start sending a message; the future has what `send` would return or raise."""

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send a message once and ask for no answer: it may be lost, and no error tells of it."""

    def start(self) -> None:
        """Connect to a name server and join the producer group; does nothing when started."""

    @property
    def stats(self) -> SendStats:
        """Counters of this producer."""

    def stop(self, timeout: float | timedelta = 10.0) -> None:
        """Take no more sends, wait for those in flight, `timeout` seconds at most, and close."""

    def transaction(self, message: Message, *, check: Check | None = None) -> Transaction:
        """Return a transaction around a message: entered, the message is stored and hidden."""

class ReceivedMessage(StoredMessage):
    """One message of one queue; `skylarkmq.client.ReceivedMessage` without await. Any thread."""

    def ack(self) -> None:
        """Say that it is done. The group's offset moves on when all before it are done too."""

    def dead_letter(self, reason: str | None = None) -> None:
        """Give it up: it goes to the group's dead letter topic, `%DLQ%<group>`."""

    def extend(self, seconds: float | timedelta) -> None:
        """Let `consume_timeout` end `seconds` from now."""

    def nack(
        self, delay_level: int | None = None, *, delay: float | timedelta | None = None
    ) -> None:
        """Let the group get it again after a while; beyond `max_reconsume` it is a dead letter."""

    @contextmanager
    def process(self, *, requeue: bool = True) -> Generator[ReceivedMessage]:
        """Acknowledge when the block ends; on an error hand it back and let the error through."""

class SimpleConsumer(Started):
    """Receives messages for a time; `skylarkmq.client.SimpleConsumer` without await. Any thread."""

    def __init__(
        self,
        *topics: str,
        group: str,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        selector: Selector | None = None,
        invisible_duration: float | timedelta = 30.0,
        await_duration: float | timedelta = 15.0,
        orderly: bool = False,
        trace: bool | str = False,
    ) -> None: ...
    def ack(self, message: PoppedMessage) -> None:
        """Say that a message is done: nobody gets it again."""

    def change_invisible_duration(
        self, message: PoppedMessage, duration: float | timedelta
    ) -> None:
        """Hide a message for another time, from now on; with 0 it comes again at once."""

    def dead_letter(self, message: PoppedMessage) -> None:
        """Give a message up: it goes to the group's dead letter topic, `%DLQ%<group>`."""

    @property
    def group(self) -> str:
        """The consumer group, as brokers know it: with the client's namespace."""

    def receive(
        self,
        max_messages: int = 16,
        *,
        invisible_duration: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
    ) -> list[PoppedMessage]:
        """Return the next messages, of one topic and broker; none when nothing came."""

    def start(self) -> None:
        """Find the topics' brokers and tell them of this member; does nothing when started."""

    def stop(self) -> None:
        """Leave the group. Receives that wait end with ConsumerClosed."""

    def subscribe(self, topic: str, selector: Selector | None = None) -> None:
        """Add a topic, or change what is wanted of it."""

    def unsubscribe(self, topic: str) -> None:
        """Receive a topic no more."""

class Transaction:
    """One transaction; a context manager, to be entered once. See the asynchronous one."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def commit(self) -> None:
        """Let consumers have the message. Never fails: a verdict that is lost is asked for."""

    @property
    def result(self) -> SendResult:
        """Where the half message is. Consumers get the message under the same `msg_id`."""

    def rollback(self) -> None:
        """Let nobody have the message. Never fails: a verdict that is lost is asked for."""

    @property
    def state(self) -> TransactionState | None:
        """The verdict so far, None while there is none."""

    @property
    def transaction_id(self) -> str:
        """What checks will be asked for, `HalfMessage.transaction_id`: the message's id."""

    def unknown(self) -> None:
        """Leave the verdict to the check, or to a later `commit` or `rollback`."""

__all__ = [
    "Admin",
    "BatchHandler",
    "Check",
    "Client",
    "Consumer",
    "Handler",
    "MessageScan",
    "PeekReader",
    "Producer",
    "QueuesCallback",
    "ReceivedMessage",
    "SimpleConsumer",
    "Transaction",
]

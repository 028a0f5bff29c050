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
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.message import Message, MessageQueue
from skylarkmq.protocol.topic_attributes import DeduplicationWindow, MessageType
from skylarkmq.remoting.connection import Codec
from skylarkmq.remoting.stream import Network
from skylarkmq.remoting.tls import ServerHostname, SslSetting

BatchHandler = Callable[[Sequence["ReceivedMessage"]], object]
Check = Callable[[HalfMessage], TransactionState]
Handler = Callable[["ReceivedMessage"], object]
QueuesCallback = Callable[[list[MessageQueue]], None]

class Admin:
    """Administers a cluster; `skylarkmq.client.Admin` without await. Any thread."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def __init__(
        self,
        *,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        timeout: float = TIMEOUT_S,
        unanswered: dict[str, Unanswered] | None = None,
    ) -> None: ...
    def access_files(self, broker: str) -> tuple[AccessFile, ...]:
        """Return a broker's files of access control, and how often administrators changed them.

        Raises:
            BrokerError: it has no access control.
            NotFound: no broker of that name is registered.
        """

    def access_rules(self, broker: str) -> AccessRules:
        """Return a broker's white list and its accounts, without their secrets.

        Raises:
            NotSupported: it does not answer that, as RocketMQ 4.9.8.
            BrokerError: it has no access control.
            NotFound: no broker of that name is registered.
        """

    def allow_writes(self, broker: str) -> int:
        """Undo `stop_writes`; return how many topics changed."""

    def broker_config(self, broker: str) -> dict[str, str]:
        """Return all settings of a broker by RocketMQ's names.

        Raises:
            NotFound: no broker of that name is registered.
        """

    def broker_progress(
        self, broker: str, *, order_only: bool = False
    ) -> tuple[GroupProgress, ...]:
        """Return how far all groups of one broker are there, of the client's namespace only.

        Args:
            order_only: in order topics alone.

        Raises:
            NotFound: no broker of that name is registered.
        """

    def broker_runtime(self, broker: str, *, broker_id: int = MASTER_ID) -> BrokerRuntime:
        """Return what a broker counts and measures.

        Args:
            broker: its name; or the address of a process, host:port, whatever its id.
            broker_id: of a slave; default: the master.

        Raises:
            NotFound: no broker of that name and id, or address, is registered.
        """

    def clone_offsets(self, source: str, target: str, topic: str | None = None) -> None:
        """Give group `target` the offsets of `source`, in one topic or in all it has consumed.

        Raises:
            RouteNotFound: there is no such topic.
            NotFound: there is no group `source`.
        """

    def cluster(self) -> ClusterSummary:
        """Return the brokers that are registered."""

    def cluster_health(
        self, *, behind_max: int = BEHIND_MAX, disk_max: float = DISK_MAX
    ) -> tuple[Problem, ...]:
        """Return what is wrong with the cluster, each with its cure; empty: all is well.

        Args:
            behind_max: bytes that a slave may lack.
            disk_max: part of a disk that may be used, 0 to 1.

        Raises:
            RocketMQError: no name server answered.
        """

    def cluster_status(self) -> ClusterStatus:
        """Ask every name server and every broker, slaves too, how it is.

        Raises:
            RocketMQError: no name server answered.
        """

    def consume_directly(self, group: str, client_id: str, offset_msg_id: str) -> ConsumedDirectly:
        """Let one member consume one message now; the group's offsets do not matter.

        Args:
            offset_msg_id: names the broker that keeps the message and its place there.

        Raises:
            BrokerError: the message is gone, no such member is connected to its broker, or it did
                not answer the broker in time.
            ValueError: no offset id.
        """

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
        """Create a consumer group; needed only where brokers create none on demand.

        Args:
            retry_queues: of its retry topic, when the first consumer makes it; `update_topic` of
                `%RETRY%group` gives it others. 0: a message that is handed back is gone.
            max_retries: for members that do not name a number of their own.
            notify_members: tell them at once who comes and goes.
            orderly: those who pop get a queue's messages one batch after the other.
            broker_id, broker_id_when_slow: where members read: as long as they keep up, and when
                they are behind; 0 is the master.
            cluster, brokers: where; see `create_topic`.
            exist_ok: leave a group that is there as it is.

        Raises:
            AlreadyExists: there is such a group on one of the brokers.
        """

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
        """Create a topic and wait until the name servers tell clients of it.

        Args:
            queues: to write to, on each broker.
            read_queues: to read from; default as many.
            perm: letters r, w and x (topics made on demand inherit), or "" for none of them.
            order: an order topic keeps its queues in the route while a broker is away.
            sys_flag: bits that RocketMQ keeps for units: 1 of a unit, 2 subscribed by one.
            cluster: on all its brokers; needed when the name server knows several clusters.
            brokers: on these, by name.
            exist_ok: leave a topic that is there as it is.
            deduplication: each broker stores a message of the same unique key once within it.
            message_type: what clients of RocketMQ 5 may send; SkylarkMQ's default is any.

        Raises:
            AlreadyExists: there is such a topic on one of the brokers.
            NotSupported: a window is wanted, and a broker is not SkylarkMQ; nothing was created.
            RequestTimeout: created, but a name server does not know it in time.
        """

    def dead_letters(
        self,
        group: str,
        *,
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
    ) -> MessageScan:
        """Go through a group's dead letters: `for letter in admin.dead_letters(...)`.

        Args:
            start, stop: given up at `start` or later, before `stop`.
            after: go on there: `progress.positions` of an earlier scan.

        Raises:
            NotFound: a queue of `after` is not there, as while its broker is away; at the first
                letter.
            RouteNotFound: no broker is registered with the name server; at the first letter.
        """

    def deduplication_windows(self, topic: str) -> dict[str, DeduplicationWindow | None]:
        """Return the deduplication window of a topic on each broker; None: it has none there.

        Raises:
            RouteNotFound: there is no such topic.
        """

    def delayed(
        self, *, topic: str | None = None, limit: int = LIMIT
    ) -> tuple[DelayedMessage, ...]:
        """Return the messages that wait for their time, the next one first; the first `limit`.

        Args:
            topic: only those that go there.
        """

    def delete_account(
        self, access_key: str, *, cluster: str | None = None, brokers: Sequence[str] | None = None
    ) -> None:
        """Delete an account; its clients are refused from now on.

        Args:
            cluster, brokers: where; see `create_topic`.

        Raises:
            BrokerError: 210, there is none, or no admin would be left.
        """

    def delete_group(
        self,
        group: str,
        *,
        remove_offsets: bool = True,
        remove_messages: bool = False,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Delete a group from brokers, default all. Nothing happens to one that is not there.

        Args:
            remove_offsets: forget where it stands, too.
            remove_messages: delete its retry topic and its dead letters, too.
        """

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages from all brokers and name servers.

        Args:
            cluster: only there.
        """

    def describe_group(self, group: str) -> GroupDescription:
        """Return settings and members of a group.

        Raises:
            NotFound: no broker has it.
        """

    def describe_topic(self, topic: str) -> TopicDescription:
        """Return settings, queues and consumer groups of a topic.

        Raises:
            RouteNotFound: there is no such topic.
        """

    def drain(self, broker: str, *, broker_id: int | None = None) -> Drained:
        """Take the load off a broker before its process or machine is worked on.

        Args:
            broker: its name.
            broker_id: of the process that is meant, as configured; None: the master.

        Raises:
            NotFound: no such broker, or it does not answer, so that nobody knows what it is.
            IllegalState: no replica leads now.
            BrokerError: no other replica of the set can lead.
        """

    def drain_progress(self, broker: str, *, broker_id: int | None = None) -> DrainProgress:
        """Return how far the drain of a broker of SkylarkMQ is.

        Args:
            broker: its name.
            broker_id: of the process that is meant, as configured; None: the master.

        Raises:
            NotFound: no such broker.
            NotSupported: it is Apache's, which does not know.
        """

    def failover(self, broker: str, *, on: int | str, accept_loss: bool = False) -> ForcedFailover:
        """Let a replica lead although messages may be lost: the last resort.

        Args:
            broker: name of the set.
            on: which one leads: its broker id, its replica id, or its address, host:port.
            accept_loss: has to be True.

        Raises:
            ValueError: `accept_loss` is not said.
            NotFound: no such broker or replica, or nobody of the set answers.
            NotSupported: the broker is no set that elects its master.
            BrokerError: there is a master, or the replica does not reach etcd.
        """

    def find_copy(
        self, letter: StoredMessage, place: CopyPlace, *, taken: Collection[CopyPlace] = ()
    ) -> CopyPlace | None:
        """Return where the copy of a dead letter is, None when it is not there.

        Args:
            place: what `plan_copy` returned before the copy was sent.
            taken: copies of other letters: two letters may have the same id.

        Raises:
            NotFound: it cannot be told, because the queue is gone, or no longer goes back so far.
            RocketMQError: the broker does not answer.
        """

    def keep_text(self, namespace: str, key: str, value: str | None) -> None:
        """Let all name servers keep a text; None: forget it."""

    def kept_texts(self, namespace: str) -> dict[str, str]:
        """Return what the name servers keep in a namespace, by key; nothing is no error."""

    def list_groups(self, *, system: bool = False) -> list[str]:
        """Return the consumer groups that brokers know, sorted; of the client's namespace only.

        Args:
            system: the brokers' and tools' own groups as well.
        """

    def list_topics(
        self, *, cluster: str | None = None, system: bool = False, groups: bool = False
    ) -> list[str]:
        """Return the topics' names, sorted; those of the client's namespace if it has one.

        Args:
            cluster: of one cluster.
            system: the brokers' own topics as well.
            groups: the groups' retry and dead letter topics as well.
        """

    def member_info(self, group: str, client_id: str, *, stack: bool = False) -> MemberInfo:
        """Ask a member of a group, through its broker, what it is doing.

        Args:
            stack: with the stacks of its threads, from Java clients.

        Raises:
            NotFound: no member of that name is connected.
            BrokerError: it did not answer the broker in time.
        """

    def message(self, offset_msg_id: str) -> StoredMessage | None:
        """Return the message at a place, which an offset id names; None when it is gone.

        Raises:
            ValueError: no offset id.
            RocketMQError: a broker does not answer, and none of the others has the message.
        """

    def name_server_config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server by its address.

        Raises:
            BrokerError: it does not tell them.
        """

    def open_transactions(
        self, *, topic: str | None = None, limit: int = LIMIT
    ) -> tuple[OpenTransaction, ...]:
        """Return the transactions that have not ended, the oldest first; the first `limit`.

        Args:
            topic: only those of messages to it.
        """

    def plan_copy(
        self, letter: StoredMessage, group: str, *, to: RedriveTarget = "group"
    ) -> CopyPlace:
        """Return the queue that a copy of a group's dead letter goes to, and where it ends now.

        Args:
            to: "group": this group alone gets the copy, whatever the topic; "topic": it goes to the
                topic that the letter was sent to first, where every group gets it.

        Raises:
            NotFound: there is nowhere to send it.
            RocketMQError: a server refuses or does not answer.
        """

    def producer_groups(self) -> dict[str, list[Connection]]:
        """Return all producers by group, over all brokers."""

    def producers(self, group: str) -> list[Connection]:
        """Return the clients of a producer group, over all brokers; none is no error."""

    def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Return how far a group is in every queue it has consumed, or in those of one topic.

        Raises:
            RouteNotFound: there is no such topic.
            NotFound: there is no such group.
        """

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
        """Make an account, or change what is given of one; the rest stays as it is.

        Args:
            access_key: 7 characters or more, as the secret (RocketMQ: more than 6).
            secret_key: needed for a new account, by RocketMQ's brokers each time.
            admin: may administer. RocketMQ's brokers take None for False.
            default_topic_right: the right to topics that `topic_rights` does not name.
            default_group_right: the same for consumer groups.
            topic_rights: the whole list by topic, in the place of the old one.
            group_rights: the whole list by consumer group; SUB lets its members receive.
            white_address: from there the account needs no signature; "" for nowhere.
            cluster, brokers: where; see `create_topic`.

        Raises:
            BrokerError: 209, the broker does not take it, for instance as no admin would be left.
            ValueError: a right that is none, a name that cannot be one, or an empty list, which the
                protocol cannot tell from none: give one name the right DENY.
        """

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
        """Return messages of a topic, the oldest first, `limit` at most: of many, the newest ones
        by key or id, the first ones by time alone.

        Args:
            key: one of a message's keys.
            msg_id: the id that the producer gave; retries and dead letters, which keep it, are in
                their own topics.
            start, stop: stored at `start` or later, before `stop`.

        Raises:
            RouteNotFound: there is no such topic.
            ValueError: both `key` and `msg_id`, or nothing to look for.
        """

    def redrive_dead_letter(
        self,
        letter: StoredMessage,
        group: str,
        *,
        to: RedriveTarget = "group",
        place: CopyPlace | None = None,
    ) -> RedriveOutcome:
        """Send a dead letter of a group again. A failure is an outcome.

        Args:
            to: see `plan_copy`.
            place: what `plan_copy` returned; None: it is asked now.
        """

    def reset_offset(
        self,
        group: str,
        topic: str,
        *,
        when: datetime | Edge | None = None,
        offset: int | Mapping[MessageQueue, int] | None = None,
        dry_run: bool = False,
    ) -> OffsetReset:
        """Move a group to another place in a topic, with or without members at work.

        Args:
            when: to the first message stored then or later, or to the queues'
                first message ("begin") or after their last one ("end").
            offset: to that offset of every queue, or of those given; moved into the queue's
                bounds.
            dry_run: tell from where to where each queue would go, and change nothing.

        Raises:
            ValueError: not exactly one of `when` and `offset`.
            RouteNotFound: there is no such topic.
            NotFound: there is no such group, or no such queue in the topic.
            NotSupported: an exact offset, and a broker that moves a group with members by time
                alone (RocketMQ 4.9); or a queue that is read but not written to any more, in which
                brokers do not move members. Nothing has changed then.
        """

    def scan(
        self,
        topic: str,
        *,
        start: datetime | None = None,
        stop: datetime | None = None,
        after: Mapping[MessageQueue, int] | None = None,
    ) -> MessageScan:
        """Go through a topic, queue after queue: `for message in admin.scan(...)`.

        Args:
            start, stop: stored at `start` or later, before `stop`.
            after: go on there, in these queues only: `progress.positions` of an earlier scan.

        Raises:
            RouteNotFound: there is no such topic; at the first message.
            NotFound: a queue of `after` is not there, for instance while its broker is away; at the
                first message.
        """

    def set_broker_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs; it writes them into its file.

        Raises:
            NotFound: no broker of that name is registered.
            BrokerError: an unknown key, a bad value, or one that is not to be changed.
            ValueError: a name or value that has no place in one line.
        """

    def set_name_server_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of all name servers while they run; they write them into their files.

        Raises:
            BrokerError: a name server does not take them; ours take no key while they run.
            ValueError: a name or value that has no place in one line.
        """

    def set_white_list(
        self,
        addresses: Iterable[str],
        *,
        file: str | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Replace the addresses from which everything is allowed without an account.

        Args:
            addresses: such as `10.0.0.7`, `192.168.1.*`, `10.0.0.{1,2}`; none: nobody, which
                RocketMQ's brokers do not take.
            file: its path on the broker, where there are several (`access_files`); each has a list
                of its own, and all count. Default: `conf/plain_acl.yml`.
            cluster, brokers: where; see `create_topic`.

        Raises:
            BrokerError: 211, an address that is none, or no such file.
        """

    def skip_accumulated(self, group: str, topic: str, *, dry_run: bool = False) -> OffsetReset:
        """Move a group to the end of a topic: it never consumes the messages that wait now.

        Raises:
            RouteNotFound: there is no such topic.
        """

    def start(self) -> None:
        """Connect to a name server; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
            IllegalState: stopped before.
        """

    def statistic(
        self, name: str, key: str, *, brokers: Sequence[str] | None = None
    ) -> tuple[Statistic, ...]:
        """Return what brokers count under a name; who has counted nothing of it is left out.

        Args:
            name: as RocketMQ calls it: TOPIC_PUT_NUMS and TOPIC_PUT_SIZE by topic, GROUP_GET_NUMS
                and GROUP_GET_SIZE by topic@group, BROKER_PUT_NUMS by cluster.
            key: of what; names as brokers know them, with the namespace.
            brokers: by name; default all.
        """

    def stop(self) -> None:
        """Close the connections, unless the client is shared."""

    def stop_writes(self, broker: str) -> int:
        """Let name servers tell clients not to send to a broker; return how many topics changed."""

    def switch_over(self, broker: str, to: int | str | None = None) -> Mastership:
        """Let another replica of a set lead; return who does.

        Args:
            broker: name of the set.
            to: its broker id, or its replica id; None: the one with the most of the log.

        Raises:
            NotFound: no such broker or replica, or nobody of the set answers.
            NotSupported: the broker is no set that elects its master.
            IllegalState: no replica leads now.
            BrokerError: the replica cannot lead: it is not in sync, or did not take over in time;
                then the old master leads on.
        """

    def topic_groups(self, topic: str) -> list[str]:
        """Return the groups that have consumed or consume a topic.

        Raises:
            RouteNotFound: there is no such topic.
        """

    def topic_route(self, topic: str) -> TopicRoute:
        """Return what name servers tell clients of a topic: its brokers, slaves too, and queues.

        Raises:
            RouteNotFound: there is no such topic.
        """

    def trace(self, msg_id: str, *, topic: str = TRACE_TOPIC) -> MessageTrace:
        """Return what clients told of the message with this `msg_id`.

        Args:
            topic: where they tell it, as brokers know it: namespaces do not part traces.

        Raises:
            RouteNotFound: there is no trace topic.
        """

    def undrain(self, broker: str) -> int:
        """Undo `drain`: let producers send again; return how many topics changed.

        Raises:
            NotFound: no such broker.
        """

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
        """Change what is given, on all brokers that have the group or on those named.

        Raises:
            NotFound: no broker, or one of `brokers`, has it.
        """

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
        """Change what is given, on all brokers that have the topic or on those named.

        Args:
            deduplication: False takes the window away.
            message_type: what clients of RocketMQ 5 may send; MIXED is anything.

        Raises:
            RouteNotFound: there is no such topic.
            NotFound: one of `brokers` does not have it.
            NotSupported: a window is wanted, and a broker is not SkylarkMQ; nothing was changed.
        """

class Client:
    """A connection to a cluster; `skylarkmq.client.Client` without await. Any thread.

        with Client("127.0.0.1:9876") as client:
            with Producer(client=client) as producer: ...

    After a fork the child's client is another one: it connects anew when it is used, under another
    client id, and its producers and consumers start anew. One that is not stopped is stopped at the
    end of the program, which waits five seconds for that at most.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
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
        request_timeout: float = 3.0,
        route_refresh: float = 30.0,
        heartbeat_interval: float = 30.0,
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
        """Connect to a name server; does nothing when started already.

        Raises:
            ConnectionFailed: no name server can be reached; a TlsError when a check of TLS is why.
            IllegalState: stopped before.
        """

    def stop(self) -> None:
        """End the tasks and close all connections. Stop its producers and consumers before."""

class Consumer:
    """Receives messages as a member of a group; `skylarkmq.client.Consumer` without await.

        with Consumer("orders", group="billing", namesrv_addr="127.0.0.1:9876") as consumer:
            consumer.run(handle)           # handlers in threads: ack by returning, retry by raising
            for message in consumer: ...   # or: ack by asking for the next one

    Any thread. `getone`, `getmany` and iteration acknowledge what they gave before (with
    `ack="auto"`), so one thread uses them; several threads use `run`, or `ack="manual"`.
    `on_assigned` and `on_revoked` are plain functions, called in a thread and waited for. A handler
    that is at work when the time of `stop` is over goes on in its thread, though its message is
    given to another member.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
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
        commit_interval: float = 5.0,
        consume_timeout: float = 900.0,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        offsets_folder: str | Path | None = None,
        trace: bool | str = False,
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> ReceivedMessage: ...
    def assign(self, queues: Iterable[MessageQueue], selector: Selector | None = None) -> None:
        """Read these queues and no others, outside the division among the members.

        Args:
            queues: none gives all up.
            selector: which messages of them; default all.

        Raises:
            IllegalState: not started, or the consumer has subscribed to topics.
            FilterRefused: a broker does not filter so; nothing has changed.
            RocketMQError: no name server knows where the topics are, or a broker cannot be asked
                whether it filters so; nothing has changed.
        """

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this member owns now, its group's retry topic apart."""

    def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the first readable offset of each queue, assigned or not."""

    def buffered(self) -> dict[str, tuple[int, int]]:
        """Return how many messages are held here of each topic, and their stored bytes."""

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit now instead of at the next interval.

        Raises:
            RocketMQError: a broker did not take it; tried again at the next interval.
            RebalanceInProgress: a queue is not assigned, or its lock not held at the moment.
        """

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue as it is kept; None without one.

        Raises:
            RocketMQError: the broker cannot be asked.
        """

    def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset that the next message of each queue will get."""

    def getmany(
        self, max_records: int = 500, timeout: float | None = 0.0
    ) -> dict[MessageQueue, list[ReceivedMessage]]:
        """Return the next messages by queue; with `ack="auto"` what was given before is done now.

        Args:
            timeout: seconds to wait while there are none; None waits for ever.
        """

    def getone(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; with `ack="auto"` what was given before is done now.

        Raises:
            RequestTimeout: none came within `timeout` seconds.
            ConsumerClosed: the consumer has stopped.
        """

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
        """Return the queue offset of the next message to be given.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float = 3.0,
    ) -> None:
        """Reply to a message that was sent as a request (`Producer.request`).

        Args:
            timeout: seconds.

        Raises:
            IllegalState: the message is no request, or the consumer is not started.
            ReplyNotDelivered: no broker could hand it on: the client that asked is gone.
            RequestTimeout: no broker took it in time.
        """

    def resume(self, *queues: MessageQueue) -> None:
        """Undo `pause`."""

    @overload
    def run(self, handler: Handler, *, concurrency: int = 20, max_batch: Literal[1] = 1) -> None:
        """Give every message to `handler` until the consumer has stopped.

        Args:
            handler: a plain function of one message, or with `max_batch` above 1 of a list of
                messages of one queue; called in one of `concurrency` threads.
        """

    @overload
    def run(self, handler: BatchHandler, *, concurrency: int = 20, max_batch: int) -> None:
        """Give every message to `handler` until the consumer has stopped.

        Args:
            handler: a plain function of one message, or with `max_batch` above 1 of a list of
                messages of one queue; called in one of `concurrency` threads.
        """

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`; forget what was prefetched or given of the queue before.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """

    def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Go on at the first message that can still be read; without queues, of all assigned.

        Raises:
            RebalanceInProgress: a queue that was named is not assigned.
            RocketMQError: a broker cannot be asked; nothing has moved.
        """

    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on with the next message to be stored; without queues, of all assigned.

        Raises:
            RebalanceInProgress: a queue that was named is not assigned.
            RocketMQError: a broker cannot be asked; nothing has moved.
        """

    def seek_to_time(self, where: MessageQueue | str, when: datetime) -> None:
        """Go on with the first message that was stored at `when` or later.

        Args:
            where: a queue, or a topic: all its queues that are assigned.
            when: by the broker's clock, to the millisecond.

        Raises:
            RebalanceInProgress: the queue is not assigned.
            RocketMQError: a broker cannot be asked; nothing has moved.
        """

    def start(self) -> None:
        """Join the group and take a share of the queues; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
            IllegalState: stopped before, or the client has a consumer in this group already.
        """

    def stop(self, drain: bool = True, timeout: float = 30.0) -> None:
        """Leave the group: end the handlers, commit, tell the brokers, close.

        Args:
            drain: wait for the handlers at work; else cancel them.
            timeout: seconds for the handlers, and for brokers that do not answer: about a second
                more, what was not committed by then comes again.
        """

    def subscribe(self, topic: str, selector: Selector | None = None) -> None:
        """Add a topic, or change what is wanted of it from the next pull on.

        Raises:
            FilterRefused: a broker does not filter so; all stays as it was.
            IllegalState: queues were assigned by hand.
            ConsumerClosed: the consumer has stopped.
        """

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more.

        Raises:
            IllegalState: queues were assigned by hand.
            ConsumerClosed: the consumer has stopped.
        """

class MessageScan:
    """An iterator of a topic's messages; see `skylarkmq.client.admin.MessageScan`."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> StoredMessage: ...
    @property
    def progress(self) -> ScanProgress:
        """How far it is."""

    def skip_queue(self) -> None:
        """Leave out the rest of the queue that the last message was of."""

class PeekReader:
    """Reads a topic outside of any group; `skylarkmq.client.PeekReader` without await.

        with PeekReader("orders", namesrv_addr="127.0.0.1:9876", stop="now") as reader:
            for message in reader: ...

    Any thread. After a fork the child's reader begins at its beginning again.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
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
        """Find the queues and where they begin and end; does nothing when started.

        Raises:
            RouteNotFound: nobody has the topic.
            FilterRefused: a broker does not filter so.
            RocketMQError: a broker, with `without` each of them, or no name server can be asked.
            ConsumerClosed: stopped before.
        """

    def stop(self) -> None:
        """End the reading; iterations end too."""

class Producer:
    """Sends messages to any topic; `skylarkmq.client.Producer` without await. Any thread.

    A `selector` is called in the loop thread: it must be quick and call nothing that blocks. A
    `check` is a plain function, called in a thread of its own.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def __init__(
        self,
        *,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        group: str = "DEFAULT_PRODUCER",
        send_timeout: float = 3.0,
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
        try_timeout: float | None = None,
        check: Check | None = None,
        trace: bool | str = False,
    ) -> None: ...
    def cancel(self, result: SendResult) -> bool:
        """Take back a message with a `delay` or `deliver_at` of its own while it waits.

        Args:
            result: what its send returned.

        Raises:
            IllegalState: not started, or the message waits for no time of its own.
            NotFound: its broker is away, or has the message no more.
            RocketMQError: no answer; it may be taken back or not, and another try does no harm.
        """

    def flush(self) -> None:
        """Wait until all sends that were started before have ended, with or without an error."""

    @property
    def in_flight_count(self) -> int:
        """Messages sent and not answered yet."""

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of `topic` may be sent to now.

        Raises:
            RouteNotFound: nobody takes messages of this topic.
        """

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float = 3.0,
    ) -> None:
        """Reply to a message that a consumer received as a request.

        Raises:
            IllegalState: the message is no request.
            ReplyNotDelivered: no broker could hand it on: the client that asked is gone.
        """

    def request(self, message: Message, timeout: float = 3.0) -> Reply:
        """Send a message that asks for a reply, and return what its consumer replied.

        Args:
            timeout: seconds for all of it.

        Raises:
            ReplyTimeout: it was sent, and nobody replied in time.
            RocketMQError: not sent, or not known to be: see each error.
        """

    def request_nowait(
        self, message: Message, timeout: float = 3.0
    ) -> concurrent.futures.Future[Reply]:
        """Start a request; the future has what `request` would return or raise.

        Raises:
            TooManyInFlight: too many messages are in flight, or too many requests wait.
        """

    def room(self, size: int = 0) -> None:
        """Wait until a message of `size` bytes may be started with `send_nowait`.

        Raises:
            MessageTooLarge: over `max_in_flight_bytes`.
        """

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and return where it is; waits first while too much is in flight.

        Args:
            queue: send it there, and nowhere else.
            key: messages with equal keys go to one queue, the one that Java's hash selector takes;
                default: the message's `sharding_key`. Else the queues take turns.
            selector: called with the writable queues and the message, returns one of them.
            timeout: seconds for all of it, instead of the producer's `send_timeout`.

        Raises:
            RocketMQError: not stored, or not known to be: see each error.
            ValueError: the topic's name is illegal.
        """

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic to one queue in one request; all are stored, or none.

        Raises:
            IllegalState: several topics, or several sharding keys and no `queue`, or a delayed
                message among them.
            MessageTooLarge: together over `max_message_size`.
        """

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> list[Outcome]:
        """Send any messages in as few requests as possible; return the outcome of each, in order.

        Args:
            timeout: seconds for each batch, instead of the producer's `send_timeout`.

        Raises:
            ValueError: a topic's name is illegal; of a list or tuple nothing was sent then.
        """

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Start sending a message; the future has what `send` would return or raise.

        Messages that one thread starts one after the other to one queue are stored in that order,
        as with `skylarkmq.client.Producer.send_nowait`. Call `room()` before it to stay within the
        producer's limits.

        Raises:
            TooManyInFlight: beyond `max_in_flight` or `max_in_flight_bytes`.
            MessageTooLarge: over `max_message_size`.
        """

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send a message once and ask for no answer: it may be lost, and no error tells of it.

        Raises:
            RocketMQError: no route, or no connection.
        """

    def start(self) -> None:
        """Connect to a name server and join the producer group; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
        """

    @property
    def stats(self) -> SendStats:
        """Counters of this producer."""

    def stop(self, timeout: float = 10.0) -> None:
        """Take no more sends, wait for those in flight, `timeout` seconds at most, and close."""

    def transaction(self, message: Message, *, check: Check | None = None) -> Transaction:
        """Return a transaction around a message: entered, the message is stored and hidden.

        Args:
            check: asked about this transaction, as long as this process lives; default: the
                producer's own.

        Raises:
            IllegalState: there is no check, the group is the default one, or the message is
                delayed.
        """

class ReceivedMessage(StoredMessage):
    """One message of one queue; `skylarkmq.client.ReceivedMessage` without await. Any thread."""

    def ack(self) -> None:
        """Say that it is done. The group's offset moves on when all before it are done too."""

    def dead_letter(self, reason: str | None = None) -> None:
        """Give it up: it goes to the group's dead letter topic, `%DLQ%<group>`.

        Args:
            reason: kept with the message, as property `DEAD_LETTER_REASON`.

        Raises:
            RocketMQError: no broker took it; it stays unacknowledged.
        """

    def extend(self, seconds: float) -> None:
        """Let `consume_timeout` end `seconds` from now."""

    def nack(self, delay_level: int | None = None, *, delay: timedelta | None = None) -> None:
        """Let the group get it again after a while; beyond `max_reconsume` it is a dead letter.

        Args:
            delay_level: 1 to 18 (1 s to 2 h); by default the delay grows with each try: 10 s,
                30 s, 1 m, ... 2 h.
            delay: instead; up to 2 h. A broker delays by levels, so it is rounded up to the next.

        Raises:
            RocketMQError: no broker took it; it stays unacknowledged.
            ValueError: no such delay is possible.
        """

    @contextmanager
    def process(self, *, requeue: bool = True) -> Generator[ReceivedMessage]:
        """Acknowledge when the block ends; on an error hand it back and let the error through."""

class SimpleConsumer:
    """Receives messages for a time; `skylarkmq.client.SimpleConsumer` without await. Any thread.

    with SimpleConsumer("orders", group="billing", namesrv_addr="127.0.0.1:9876") as consumer:
        for message in consumer.receive(16):
            handle(message)
            consumer.ack(message)
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def __init__(
        self,
        *topics: str,
        group: str,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        selector: Selector | None = None,
        invisible_duration: float | timedelta = 30.0,
        await_duration: float = 15.0,
        orderly: bool = False,
        trace: bool | str = False,
    ) -> None: ...
    def ack(self, message: PoppedMessage) -> None:
        """Say that a message is done: nobody gets it again.

        Raises:
            ReceiptExpired: its invisible time was over, or it was acknowledged before.
            RocketMQError: the broker did not take it; see `retryable`.
        """

    def change_invisible_duration(
        self, message: PoppedMessage, duration: float | timedelta
    ) -> None:
        """Hide a message for another time, from now on; with 0 it comes again at once.

        Args:
            duration: seconds, or timedelta; 12 hours at most.

        Raises:
            ReceiptExpired: its invisible time was over, or it was acknowledged before.
            RocketMQError: the broker did not take it; see `retryable`.
        """

    @property
    def group(self) -> str:
        """The consumer group, as brokers know it: with the client's namespace."""

    def receive(
        self,
        max_messages: int = 16,
        *,
        invisible_duration: float | timedelta | None = None,
        timeout: float | None = None,
    ) -> list[PoppedMessage]:
        """Return the next messages, of one topic and broker; none when nothing came.

        Args:
            max_messages: 1 to 32.
            invisible_duration: in place of the consumer's.
            timeout: seconds to wait while there is none, in place of `await_duration`.

        Raises:
            RouteNotFound: nobody has the topics.
            NotSupported: a broker has no pop consumption (RocketMQ 4.9).
            RocketMQError: no broker of the topics can be asked, or one refuses; see `retryable`.
            ConsumerClosed: the consumer has stopped.
        """

    def start(self) -> None:
        """Find the brokers of the topics and tell them of this member; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
            FilterRefused: a broker does not filter so.
            IllegalState: the client has a consumer in this group already.
            ConsumerClosed: stopped before.
        """

    def stop(self) -> None:
        """Leave the group. Receives that wait end with ConsumerClosed."""

    def subscribe(self, topic: str, selector: Selector | None = None) -> None:
        """Add a topic, or change what is wanted of it.

        Raises:
            FilterRefused: a broker does not filter so; all stays as it was.
            ConsumerClosed: the consumer has stopped.
        """

    def unsubscribe(self, topic: str) -> None:
        """Receive a topic no more.

        Raises:
            ConsumerClosed: the consumer has stopped.
        """

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
        """Let consumers have the message. Never fails: a verdict that is lost is asked for.

        Raises:
            IllegalState: not begun, or rolled back before.
        """

    @property
    def result(self) -> SendResult:
        """Where the half message is. Consumers get the message under the same `msg_id`.

        Raises:
            IllegalState: it is not stored yet.
        """

    def rollback(self) -> None:
        """Let nobody have the message. Never fails: a verdict that is lost is asked for.

        Raises:
            IllegalState: not begun, or committed before.
        """

    @property
    def state(self) -> TransactionState | None:
        """The verdict so far, None while there is none."""

    @property
    def transaction_id(self) -> str:
        """What checks will be asked for, `HalfMessage.transaction_id`: the message's id."""

    def unknown(self) -> None:
        """Leave the verdict to the check, or to a later `commit` or `rollback`.

        Raises:
            IllegalState: not begun, or decided before.
        """

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

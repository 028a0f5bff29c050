"""The blocking facade at work against a real broker: threads, handlers, forks, a program's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from skylarkmq import client
from skylarkmq.client import (
    ConsumerClosed,
    IllegalState,
    Message,
    MessageQueue,
    ReceiptExpired,
    RequestTimeout,
    StartFrom,
    TooManyInFlight,
)
from skylarkmq.client.producer.checks import HalfMessage, TransactionState
from skylarkmq.client.sync import (
    Admin,
    Client,
    Consumer,
    PeekReader,
    Producer,
    ReceivedMessage,
    SimpleConsumer,
)
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.timing

FIRST = StartFrom.FIRST


def test_send_and_take(namesrv: str, topic: str) -> None:
    with Client(namesrv) as shared, Producer(client=shared) as producer:
        sent = [producer.send(Message(topic, b"%d" % n, keys=f"k{n}")) for n in range(10)]
        with Consumer(topic, client=shared, group=topic, start_from=FIRST) as consumer:
            taken = [consumer.getone(LIMIT_S) for _ in range(10)]
            assert {message.msg_id for message in taken} == {result.msg_id for result in sent}
            assert {message.body for message in taken} == {b"%d" % n for n in range(10)}
            assert all(message.topic == topic for message in taken)
            with pytest.raises(RequestTimeout):
                consumer.getone(0.01)
            consumer.commit()
            assert set(consumer.lag().values()) == {0}
            assert {queue.topic for queue in consumer.assignment()} == {topic}


def test_many_threads_on_one_producer(namesrv: str, topic: str) -> None:
    with Admin(namesrv_addr=namesrv) as admin, Producer(namesrv_addr=namesrv) as producer:
        admin.create_topic(topic, queues=2)
        with ThreadPoolExecutor(8) as threads:
            sends = threads.map(lambda n: producer.send(Message(topic, b"%d" % n)), range(200))
            assert len({result.msg_id for result in sends}) == 200
        futures = [producer.send_nowait(Message(topic, b"x")) for _ in range(50)]
        producer.flush()
        assert all(future.done() and future.result().msg_id for future in futures)
        assert sum(stats.end for stats in admin.describe_topic(topic).queues) == 250


def test_an_error_of_starting_is_raised_at_once(namesrv: str, topic: str) -> None:
    with Producer(namesrv_addr=namesrv, max_in_flight=1) as producer:
        first = producer.send_nowait(Message(topic, b"1"))
        try:
            second = producer.send_nowait(Message(topic, b"2"))
        except TooManyInFlight:
            producer.room()
        else:
            second.result(LIMIT_S)
        first.result(LIMIT_S)
    with pytest.raises(ValueError, match="retries"):
        Producer(namesrv_addr=namesrv, retries=-1)
    with pytest.raises(IllegalState):
        producer.send(Message(topic, b"3"))


def test_handlers_run_in_threads_and_may_block(namesrv: str, topic: str) -> None:
    names: set[str] = set()
    both = threading.Barrier(2)
    done: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        names.add(threading.current_thread().name)
        both.wait(LIMIT_S)  # two are at work at the same time, or this fails
        done.append(message.body)
        if len(done) == 2:
            consumer_ends.set()

    consumer_ends = threading.Event()
    with Producer(namesrv_addr=namesrv) as producer:
        for body in (b"a", b"b"):
            producer.send(Message(topic, body))
    with Consumer(topic, namesrv_addr=namesrv, group=topic, start_from=FIRST) as consumer:
        running = threading.Thread(target=lambda: consumer.run(handle, concurrency=2))
        running.start()
        assert consumer_ends.wait(LIMIT_S)
        consumer.stop()
        running.join(LIMIT_S)
        assert not running.is_alive()
        with pytest.raises(ConsumerClosed):
            consumer.getone()
    assert sorted(done) == [b"a", b"b"]
    assert all(name.startswith("skylarkmq-handler") for name in names)


def test_a_handler_that_raises_hands_its_message_back(namesrv: str, topic: str) -> None:
    tried: list[ReceivedMessage] = []
    ended = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        tried.append(message)
        ended.set()
        raise StopIteration("of all things")

    with Producer(namesrv_addr=namesrv) as producer:
        producer.send(Message(topic, b"bad"))
    with (
        Consumer(
            topic, namesrv_addr=namesrv, group=topic, start_from=FIRST, max_reconsume=0
        ) as consumer,
        Admin(namesrv_addr=namesrv) as admin,
    ):
        running = threading.Thread(target=lambda: consumer.run(handle))
        running.start()
        assert ended.wait(LIMIT_S)
        consumer.stop()
        running.join(LIMIT_S)
        assert [letter.msg_id for letter in admin.dead_letters(topic)] == [tried[0].msg_id]
        (letter,) = admin.dead_letters(topic)
        assert admin.redrive_dead_letter(letter, topic).status == "sent"
    with Consumer(topic, namesrv_addr=namesrv, group=topic) as consumer:
        again = consumer.getone(LIMIT_S)
        assert again.queue.topic == f"%RETRY%{topic}"
        assert again.topic == again.origin_topic == again.to_json()["topic"] == topic


def test_callbacks_may_call_back(namesrv: str, topic: str) -> None:
    seen: list[MessageQueue] = []

    def assigned(queues: list[MessageQueue]) -> None:
        seen.extend(queues)
        consumer.paused()

    with Admin(namesrv_addr=namesrv) as admin:
        admin.create_topic(topic, queues=2)
    consumer = Consumer(
        topic, namesrv_addr=namesrv, group=topic, start_from=FIRST, on_assigned=assigned
    )
    with consumer:
        assert sorted(seen) == consumer.assignment()
        assert len(seen) == 2


def test_process_acknowledges_or_hands_back(namesrv: str, topic: str) -> None:
    with Producer(namesrv_addr=namesrv) as producer:
        producer.send(Message(topic, b"x"))
        producer.send(Message(topic, b"y"))
    with Consumer(
        topic, namesrv_addr=namesrv, group=topic, start_from=FIRST, ack="manual"
    ) as consumer:
        with consumer.getone(LIMIT_S).process() as message:
            assert message.body in (b"x", b"y")
        second = consumer.getone(LIMIT_S)
        with pytest.raises(LookupError), second.process(requeue=False):
            raise LookupError("bad")
        consumer.commit()
        assert set(consumer.lag().values()) == {0}
    with Admin(namesrv_addr=namesrv) as admin:
        assert [letter.msg_id for letter in admin.dead_letters(topic)] == [second.msg_id]


def in_a_child(work: Callable[[], bool]) -> int:
    """Run `work` in a fork of this process; return its exit code."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(LIMIT_S))
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("shared", [False, True])
def test_a_handler_may_stop_its_consumer(namesrv: str, topic: str, shared: bool) -> None:
    with Client(namesrv) as it, Producer(client=it) as producer:
        producer.send_many([Message(topic, b"%d" % n) for n in range(3)])
        place: dict[str, Any] = {"client": it} if shared else {"namesrv_addr": namesrv}
        consumer = Consumer(topic, **place, group=topic, start_from=FIRST)
        consumer.start()
        seen: list[ReceivedMessage] = []
        seconds, ended = list[float](), threading.Event()

        def handle(message: ReceivedMessage) -> None:
            seen.append(message)
            message.ack()
            began = time.monotonic()
            consumer.stop(timeout=LIMIT_S)
            seconds.append(time.monotonic() - began)
            ended.set()

        consumer.run(handle, concurrency=1)
        assert len(seen) == 1, "it begins no other message"
        assert ended.wait(LIMIT_S)
        assert seconds[0] < LIMIT_S / 2, "it did not wait for itself"
        with Consumer(topic, client=it, group=topic, start_from=FIRST) as other:
            again = [other.getone(LIMIT_S) for _ in range(2)]
        assert seen[0].msg_id not in {message.msg_id for message in again}


def test_a_client_is_closed_by_many_threads_at_once(namesrv: str) -> None:
    for _ in range(10):
        it = Client(namesrv)
        producer = Producer(client=it)
        producer.start()
        with ThreadPoolExecutor(4) as threads:
            ended = [threads.submit(end) for end in (it.stop, it.stop, producer.stop, it.stop)]
        assert [future.result() for future in ended] == [None] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_goes_on_with_connections_of_its_own(namesrv: str, topic: str) -> None:
    with (
        Client(namesrv) as shared,
        Producer(client=shared) as producer,
        Admin(client=shared) as admin,
    ):
        producer.send(Message(topic, b"parent", keys="who"))
        parent_id = shared.client_id
        consumer = Consumer(topic, client=shared, group=topic, start_from=FIRST)
        consumer.start()
        message = consumer.getone(LIMIT_S)

        def child() -> bool:
            producer.send(Message(topic, b"child", keys="who"))
            try:
                message.nack()
            except IllegalState:
                return shared.client_id != parent_id
            return False

        assert in_a_child(child) == 0
        assert in_a_child(lambda: shared.stop() is None) == 0, "nothing to close in a new child"
        producer.send(Message(topic, b"parent again", keys="who"))
        assert shared.client_id == parent_id
        message.ack()
        consumer.stop()
        found = [stats.end for stats in admin.describe_topic(topic).queues]
        assert sum(found) == 3


def test_iteration_ends_when_another_thread_stops_the_consumer(namesrv: str, topic: str) -> None:
    with Producer(namesrv_addr=namesrv) as producer:
        producer.send(Message(topic, b"x"))
    consumer = Consumer(topic, namesrv_addr=namesrv, group=topic, start_from=FIRST)
    consumer.start()
    first = threading.Event()
    bodies: list[bytes] = []

    def take_all() -> None:
        for message in consumer:
            bodies.append(message.body)
            first.set()

    taking = threading.Thread(target=take_all)
    taking.start()
    assert first.wait(LIMIT_S)
    consumer.stop()
    taking.join(LIMIT_S)
    assert not taking.is_alive()
    assert bodies == [b"x"]
    consumer.stop()


def test_ctrl_c_leaves_a_consumer_that_works(
    namesrv: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    getone = client.Consumer.getone

    async def interrupted(self: client.Consumer, timeout: float | None) -> Any:  # noqa: ASYNC109
        os.kill(os.getpid(), signal.SIGINT)
        return await getone(self, timeout)

    with Producer(namesrv_addr=namesrv) as producer:
        producer.send(Message(topic, b"before"))
    with (
        Producer(namesrv_addr=namesrv) as producer,
        Consumer(topic, namesrv_addr=namesrv, group=topic, start_from=FIRST) as consumer,
    ):
        assert consumer.getone(LIMIT_S).body == b"before"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(client.Consumer, "getone", interrupted)
            consumer.getone()
        producer.send(Message(topic, b"after"))
        assert consumer.getone(LIMIT_S).body == b"after"


@pytest.mark.parametrize("way", ["getone", "getmany", "PeekReader", "scan", "receive"])
def test_an_interruption_at_any_line_loses_no_message(namesrv: str, topic: str, way: str) -> None:
    """A signal handler may raise between any two lines: also when the message has come already."""
    count, taken, left = 60, [], 0

    def interrupt(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        name, inside = frame.f_code.co_filename, frame.f_code.co_name
        # At its own lines a future holds a lock, which no signal could make it keep.
        came = event == "return" and inside == "result" and arg is not None
        if came or (event == "line" and "skylarkmq/client/sync/" in name):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise InterruptedError
        return interrupt

    def interrupted(lines: int, take: Callable[[], list[bytes]]) -> bool:
        nonlocal left
        left = lines
        sys.settrace(interrupt)
        try:
            taken.extend(take())
        except InterruptedError:
            return True
        finally:
            sys.settrace(None)
        return False

    with Admin(namesrv_addr=namesrv) as admin, Producer(namesrv_addr=namesrv) as producer:
        admin.create_topic(topic, queues=1)
        producer.send_many([Message(topic, b"%d" % n) for n in range(count)])
        with (
            Consumer(topic, namesrv_addr=namesrv, group=topic, start_from=FIRST) as consumer,
            PeekReader(topic, namesrv_addr=namesrv, stop="now") as reader,
            SimpleConsumer(topic, namesrv_addr=namesrv, group=f"{topic}_simple") as simple,
        ):
            scan = admin.scan(topic)
            takes: dict[str, Callable[[], list[bytes]]] = {
                "getone": lambda: [consumer.getone(LIMIT_S).body],
                "getmany": lambda: [
                    message.body
                    for messages in consumer.getmany(1, LIMIT_S).values()
                    for message in messages
                ],
                "PeekReader": lambda: [next(reader).body],
                "scan": lambda: [next(scan).body],
                "receive": lambda: [message.body for message in simple.receive(1, timeout=LIMIT_S)],
            }
            lines = 1
            while interrupted(lines, takes[way]):
                lines += 1
            assert lines > 10
            while len(taken) < count:
                taken.extend(takes[way]())
    if way == "receive":  # what comes late comes after what was asked for meanwhile
        taken.sort(key=int)
    assert taken == [b"%d" % n for n in range(count)]


def test_messages_are_acknowledged_one_by_one(namesrv: str, topic: str) -> None:
    with (
        Client(namesrv) as shared,
        Producer(client=shared) as producer,
        SimpleConsumer(topic, client=shared, group=topic, await_duration=LIMIT_S) as consumer,
    ):
        producer.send(Message(topic, b"a"))
        (message,) = consumer.receive()
        consumer.change_invisible_duration(message, 0)
        (again,) = consumer.receive()
        assert (again.body, again.delivery_attempt, again.topic) == (b"a", 2, topic)
        consumer.ack(again)
        with pytest.raises(ReceiptExpired):
            consumer.ack(message)
        consumer.stop()
        with pytest.raises(ConsumerClosed):
            consumer.receive()


def test_transactions_commit_and_roll_back(namesrv: str, topic: str) -> None:
    def check(half: HalfMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    with Producer(namesrv_addr=namesrv, group=topic, check=check) as producer:
        with producer.transaction(Message(topic, b"kept")) as transaction:
            pass
        assert transaction.state is TransactionState.COMMIT
        with pytest.raises(LookupError), producer.transaction(Message(topic, b"dropped")):
            raise LookupError("the database says no")
    with Consumer(topic, namesrv_addr=namesrv, group=topic, start_from=FIRST) as consumer:
        message = consumer.getone(LIMIT_S)
        assert (message.body, message.msg_id) == (b"kept", transaction.transaction_id)


def test_a_request_is_replied_to(namesrv: str, topic: str) -> None:
    with Admin(namesrv_addr=namesrv) as admin:
        admin.create_topic(topic, queues=1)
    with (
        Producer(namesrv_addr=namesrv) as producer,
        Consumer(topic, namesrv_addr=namesrv, group=topic, start_from=FIRST) as consumer,
    ):
        running = threading.Thread(
            target=lambda: consumer.run(lambda asked: consumer.reply(asked, asked.body * 2))
        )
        running.start()
        assert producer.request(Message(topic, b"ab"), LIMIT_S).body == b"abab"
        future = producer.request_nowait(Message(topic, b"cd"), LIMIT_S)
        assert future.result(LIMIT_S).body == b"cdcd"
        consumer.stop()
        running.join(LIMIT_S)


def test_a_topic_is_read_in_passing(namesrv: str, topic: str) -> None:
    with Producer(namesrv_addr=namesrv) as producer:
        for number in range(40):
            producer.send(Message(topic, b"%d" % number))
    with PeekReader(topic, namesrv_addr=namesrv, stop="now") as reader:
        assert {message.body for message in reader} == {b"%d" % number for number in range(40)}


PROGRAM = """
import sys
from skylarkmq.client import Message
from skylarkmq.client.sync import Producer

producer = Producer(namesrv_addr=sys.argv[1])
producer.start()
print(producer.send(Message(sys.argv[2], b"x")).status.name)
"""


def test_a_program_that_closes_nothing_ends(namesrv: str, topic: str) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, namesrv, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "SEND_OK\n", "")


THREADS_PROGRAM = """
import sys, threading
from skylarkmq.client import Message, StartFrom
from skylarkmq.client.sync import Client, Consumer, Producer

client = Client(sys.argv[1])
consumer = Consumer(sys.argv[2], client=client, group=sys.argv[2], start_from=StartFrom.FIRST)
consumer.start()
handled = threading.Event()

def handle(message):
    print(message.body.decode(), message.reconsume_times, flush=True)
    handled.set()

def work():
    threading.main_thread().join()
    with Producer(client=client, compress_over=1000) as producer:
        print(producer.send(Message(sys.argv[2], b"x" * 5000)).status.name, flush=True)
        handled.wait()
        consumer.stop()

threading.Thread(target=work).start()
threading.Thread(target=lambda: consumer.run(handle)).start()
"""


def test_threads_work_on_when_the_main_thread_has_ended(namesrv: str, topic: str) -> None:
    command = [sys.executable, "-W", "error", "-c", THREADS_PROGRAM, namesrv, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    warned = f"group {topic}: there is no topic {topic} yet; it is looked for every 1 s, "
    warned += "after 60 s every 5 s\n"
    assert (done.returncode, done.stderr) == (0, warned)
    assert sorted(done.stdout.split("\n")) == ["", "SEND_OK", "x" * 5000 + " 0"]


STOPPING_PROGRAM = """
import sys, threading
from skylarkmq.client import StartFrom
from skylarkmq.client.sync import Consumer

topic, namesrv = sys.argv[2], sys.argv[1]
consumer = Consumer(topic, namesrv_addr=namesrv, group=topic, start_from=StartFrom.FIRST)
consumer.start()

def handle(message):
    print(message.body.decode())
    threading.Thread(target=consumer.stop, daemon=True).start()

consumer.run(handle, concurrency=1)
"""


def test_a_program_that_ends_with_run_has_committed(namesrv: str, topic: str) -> None:
    with Client(namesrv) as it, Producer(client=it) as producer:
        producer.send(Message(topic, b"one"))
        command = [sys.executable, "-W", "error", "-c", STOPPING_PROGRAM, namesrv, topic]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        assert (done.returncode, done.stdout, done.stderr) == (0, "one\n", "")
        with Admin(client=it) as admin:
            assert admin.progress(topic, topic).lag == 0

"""`run(stop_on=...)` of the blocking SDK: the signal reaches the thread that waits in `run`."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from skylarkmq.client import Message, StartFrom
from skylarkmq.client.sync import Consumer, Producer, ReceivedMessage

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no signals to one's own process")


def test_a_signal_drains(namesrv: str) -> None:
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    done: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        done.append(message.body)

    with Producer(namesrv_addr=namesrv) as producer:
        producer.send(Message("drained", "one"))
    with Consumer(
        "drained", namesrv_addr=namesrv, group="drainers", start_from=StartFrom.FIRST
    ) as consumer:
        consumer.run(handle, stop_on=(signal.SIGTERM,))
    assert done == [b"one"]
    assert signal.getsignal(signal.SIGTERM) == before
    with Consumer("drained", namesrv_addr=namesrv, group="drainers") as again:
        assert again.getmany(timeout=0.2) == {}, "its offset was committed"


def test_another_thread_gets_no_signals(namesrv: str) -> None:
    errors: list[str] = []

    def run(consumer: Consumer) -> None:
        try:
            consumer.run(print, stop_on=(signal.SIGTERM,))
        except Exception as error:
            errors.append(str(error))

    with Consumer("drained", namesrv_addr=namesrv, group="others") as consumer:
        thread = threading.Thread(target=run, args=(consumer,))
        thread.start()
        thread.join()
    assert "stop_on needs the main thread" in errors[0]

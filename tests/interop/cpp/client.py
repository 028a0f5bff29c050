"""librocketmq, RocketMQ's C++ client, behind a program that prints one JSON object a line.

    python client.py PACKAGES NAMESRV KEY SECRET send TOPIC COUNT
    python client.py PACKAGES NAMESRV KEY SECRET consume TOPIC GROUP FAIL     until stdin ends

PACKAGES: the folder with the Python package that carries the library. KEY, SECRET: of the account
that signs; empty for none. FAIL: a message is asked for again while it has come again fewer times.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

ERROR_MAX = 300


def line(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def send(library: Any, settings: Any, topic: str, count: str) -> None:
    """Send messages and say what became of each."""
    producer = library.Producer("P_cpp", timeout=60_000)
    settings(producer)
    producer.start()
    for index in range(int(count)):
        message = library.Message(topic)
        message.set_body(f"n-{index}")
        message.set_tags("ABC"[index % 3])
        message.set_keys(f"n-key-{index}")
        message.set_property("stadt", "Zürich")
        try:
            result = producer.send_sync(message)
        except Exception as error:
            line("error", index=index, type=type(error).__name__, message=str(error)[:ERROR_MAX])
        else:
            line("sent", index=index, status=result.status.name, msg_id=result.msg_id)
    line("done")
    producer.shutdown()


def consume(library: Any, settings: Any, topic: str, group: str, fail: str) -> None:
    """Print what comes until standard input ends."""

    def take(_: object, handle: int) -> int:
        message = library.RecvMessage(handle)
        line(
            "message",
            topic=message.topic,
            body=message.body.decode(),
            tags=message.tags.decode(),
            keys=message.keys.decode(),
            stadt=message["stadt"].decode(),
            msg_id=message.id,
            reconsume_times=message.reconsume_times,
        )
        return int(message.reconsume_times < int(fail))

    consumer = library.PushConsumer(group)
    settings(consumer)
    subscribe = importlib.import_module("rocketmq.ffi").dll.Subscribe
    subscribe(consumer._handle, topic.encode(), b"*")
    consumer._register_callback(take)  # the package's own callback cannot ask again
    try:
        consumer.start()
    except Exception as error:
        line("error", type=type(error).__name__, message=str(error)[:ERROR_MAX])
        return
    line("started")
    sys.stdin.read()
    os._exit(0)  # without a shutdown, which crashes in 2.1.0


def main(packages: str, namesrv: str, key: str, secret: str, mode: str, *rest: str) -> None:
    os.environ["HOME"] = os.getcwd()  # where it writes its log
    sys.path.insert(0, packages)
    library = importlib.import_module("rocketmq.client")

    def settings(client: Any) -> None:
        client.set_namesrv_addr(namesrv)
        if key:
            client.set_session_credentials(key, secret, "interop")

    {"send": send, "consume": consume}[mode](library, settings, *rest)
    sys.stdout.flush()
    os._exit(0)  # its threads may still run


if __name__ == "__main__":
    main(*sys.argv[1:])

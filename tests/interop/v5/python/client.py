"""RocketMQ's Python client of the gRPC protocol: commands from standard input, events to standard
output, a JSON object a line; see programs.py.

    python client.py PACKAGES

PACKAGES: the folder with the packages of requirements.txt. The certificate that signs the server's:
environment GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from typing import Any

ERROR_MAX = 500

library: Any = None
clients: dict[str, Any] = {}
messages: dict[int, Any] = {}
numbers = itertools.count(1)
printing = threading.Lock()


class LastError(logging.Handler):
    """Keeps what the client has only logged."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self.text = record.getMessage()


logged = LastError()


def line(fields: dict[str, Any]) -> None:
    with printing:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def shown(message: Any) -> dict[str, Any]:
    number = next(numbers)
    messages[number] = message
    return {
        "number": number,
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": message.tag or "",
        "keys": list(message.keys or ()),
        "properties": dict(message.properties or {}),
        "message_id": message.message_id,
        "message_group": message.message_group or "",
        "priority": message.priority,
        "attempt": message.delivery_attempt,
        "now_ms": int(time.time() * 1000),
        "born_ms": message.born_timestamp,
    }


def configuration(command: dict[str, Any]) -> Any:
    keys = library.Credentials(command["key"], command["secret"])
    return library.ClientConfiguration(command["endpoint"], keys)


def subscription(command: dict[str, Any]) -> dict[str, Any]:
    kinds = importlib.import_module("rocketmq.grpc_protocol").FilterType
    if command["sql"]:
        return {command["topic"]: library.FilterExpression(command["sql"], kinds.SQL)}
    return {command["topic"]: library.FilterExpression(command["tag"])}


def producer(command: dict[str, Any]) -> Any:
    checker = None
    if command["check"]:
        answers = library.TransactionResolution
        answer = {
            "commit": answers.COMMIT,
            "rollback": answers.ROLLBACK,
            "unknown": answers.TRANSACTION_RESOLUTION_UNSPECIFIED,
        }[command["check"]]

        class Checker(library.TransactionChecker):
            def check(self, message: Any) -> Any:
                line({"event": "check", "id": command["id"], **shown(message)})
                return answer

        checker = Checker()
    return library.Producer(
        configuration(command), (command["topic"],), checker=checker, tls_enable=command["tls"]
    )


def push(command: dict[str, Any]) -> Any:
    seen: Counter[str] = Counter()

    class Listener(library.MessageListener):
        def consume(self, message: Any) -> Any:
            line({"event": "message", "id": command["id"], **shown(message)})
            time.sleep(command["slow_ms"] / 1000)
            line({"event": "finished", "id": command["id"]})
            seen[message.message_id] += 1
            fails = seen[message.message_id] <= command["fail"]
            return library.ConsumeResult.FAILURE if fails else library.ConsumeResult.SUCCESS

    return library.PushConsumer(
        configuration(command),
        command["group"],
        Listener(),
        subscription(command),
        tls_enable=command["tls"],
    )


def simple(command: dict[str, Any]) -> Any:
    return library.SimpleConsumer(
        configuration(command),
        command["group"],
        subscription(command),
        await_duration=max(1, command["await_ms"] // 1000),
        tls_enable=command["tls"],
    )


def send(command: dict[str, Any]) -> dict[str, Any]:
    message = library.Message()
    message.topic = command["topic"]
    message.body = command["body"].encode()
    if command["tag"]:
        message.tag = command["tag"]
    if command["key"]:
        message.keys = command["key"]
    if command["message_group"]:
        message.message_group = command["message_group"]
    if command["priority"] >= 0:
        message.priority = command["priority"]
    if command["delay_ms"]:
        # Whole seconds alone.
        message.delivery_timestamp = -int(-(time.time() + command["delay_ms"] / 1000) // 1)
    for name, value in command["properties"].items():
        message.add_property(name, value)
    client = clients[command["id"]]
    if not command["transaction"]:
        receipt = client.send(message)
    else:
        local = client.begin_transaction()
        receipt = client.send(message, local)
        if command["transaction"] == "commit":
            local.commit()
        elif command["transaction"] == "rollback":
            local.rollback()
    return {"message_id": receipt.message_id, "recall_handle": receipt.recall_handle or ""}


def perform(command: dict[str, Any]) -> dict[str, Any]:
    name, client_id = command["do"], command["id"]
    client = clients.get(client_id)
    if name in ("producer", "push", "simple"):
        made = {"producer": producer, "push": push, "simple": simple}[name](command)
        # It opens its stream in the thread that starts it when the route is there at once.
        wire = importlib.import_module("rocketmq.v5.client.connection.rpc_client")
        asyncio.set_event_loop(wire.RpcClient.get_channel_io_loop())
        made.startup()
        if not made.route_manager.get_all_endpoints():
            # It has started, and asks for its route never again: nor is it told of its settings.
            made.shutdown()
            raise LookupError(f"no route at its start: {logged.text}")
        clients[client_id] = made
    elif name == "send":
        return send(command)
    elif name == "recall":
        return {"message_id": client.recall_message(command["topic"], command["handle"])}
    elif name == "receive":
        found = client.receive(command["count"], command["invisible_ms"] // 1000)
        return {"messages": [shown(message) for message in found or ()]}
    elif name == "ack":
        client.ack(messages[command["number"]])
    elif name == "change":
        client.change_invisible_duration(
            messages[command["number"]], command["invisible_ms"] // 1000
        )
    elif name == "close":
        clients.pop(client_id).shutdown()
    else:
        raise ValueError(command)
    return {}


def answer(command: dict[str, Any]) -> None:
    try:
        fields = {"event": "done", **perform(command)}
    except Exception as error:
        fields = {"event": "failed", "error": f"{type(error).__name__}: {error}"[:ERROR_MAX]}
        code = getattr(error, "code", None)
        if isinstance(code, int):
            fields["code"] = code
    line({**fields, "seq": command["seq"]})


def main() -> None:
    global library
    sys.path.insert(0, sys.argv[1])
    library = importlib.import_module("rocketmq")
    importlib.import_module("rocketmq.v5.log").logger.addHandler(logged)
    for text in sys.stdin:
        threading.Thread(target=answer, args=(json.loads(text),), daemon=True).start()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(0)  # the client's threads do not end by themselves


if __name__ == "__main__":
    main()

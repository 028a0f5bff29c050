"""The SDK without await: the same names, the same arguments, calls that block.

    with Producer(namesrv_addr="127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"hello"))

One loop thread a Client does the work of the asynchronous SDK; nothing of it is done again here.
Any thread may use any object at any time. After a fork (Celery, gunicorn, multiprocessing) objects
made before it go on in the child: they connect anew with their next call. Ctrl-C ends a call that
waits; what it waited for is cancelled and safe to repeat under the rules of the call.
"""

from skylarkmq.client.sync.classes import (
    Admin,
    BatchHandler,
    Check,
    Client,
    Consumer,
    Handler,
    MessageScan,
    PeekReader,
    Producer,
    QueuesCallback,
    ReceivedMessage,
    SimpleConsumer,
    Transaction,
)

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

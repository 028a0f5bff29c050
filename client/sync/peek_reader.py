"""PeekReader, blocking.

with PeekReader("orders", namesrv_addr="127.0.0.1:9876", stop="now") as reader:
    for message in reader: ...
"""

from __future__ import annotations

from typing import Self

from skylarkmq.client.consumer.peek_reader import PeekedMessage, Start, Stop
from skylarkmq.client.consumer.peek_reader import PeekReader as AsyncPeekReader
from skylarkmq.client.consumer.subscription import Selector, StartFrom
from skylarkmq.client.errors import ConsumerClosed
from skylarkmq.client.instance import Client as AsyncClient
from skylarkmq.client.sync.client import Client
from skylarkmq.client.sync.on_client import OnClient


class PeekReader(OnClient[AsyncPeekReader]):
    """Reads the messages of a topic in passing; `skylarkmq.client.PeekReader` without await.

    Any thread. After a fork the child's reader begins at its beginning again.
    """

    def __init__(
        self,
        topic: str,
        *,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        start: Start = StartFrom.FIRST,
        stop: Stop = None,
        selector: Selector | None = None,
    ) -> None:
        """Take the settings, as the asynchronous one does; `client` is a blocking one."""

        def make(inside: AsyncClient) -> AsyncPeekReader:
            return AsyncPeekReader(topic, client=inside, start=start, stop=stop, selector=selector)

        self._stand_on(client, namesrv_addr, make, ConsumerClosed)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PeekedMessage:
        try:
            return self._inner.run(
                lambda it: it.__anext__(), lambda it, message: it.take_back(message)
            )
        except (StopAsyncIteration, ConsumerClosed):
            raise StopIteration from None

    def start(self) -> None:
        """Find the queues and where they begin and end; does nothing when started."""
        self._inner.start()

    def stop(self) -> None:
        """End; who iterates gets no more."""
        self._end(lambda it: it.stop())

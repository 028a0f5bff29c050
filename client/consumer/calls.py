"""What a consumer does beside consuming: replies to requests, and a trace of what it consumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skylarkmq.client.instance import Client
from skylarkmq.client.observe.trace import Tracer
from skylarkmq.client.producer.request_reply import Replyable, send_reply


class ConsumerCalls:
    """That part of `Consumer`."""

    _client: Client
    _tracer: Tracer | None = None

    async def reply(
        self,
        request: Replyable,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float = 3.0,  # noqa: ASYNC109
    ) -> None:
        """Reply to a message that was sent as a request (`Producer.request`).

        The asking client alone gets the reply. The message is acknowledged as any other.

        Args:
            timeout: seconds.

        Raises:
            IllegalState: the message is no request, or the consumer is not started.
            ReplyNotDelivered: no broker could hand it on: the client that asked is gone.
            RequestTimeout: no broker took it in time.
        """
        await send_reply(
            self._client.services,
            self._client.unique_ids.next(),
            request,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            timeout_s=timeout,
        )

    def _start_trace(self, group: str, topic: str | None) -> None:
        """Tell the topic, if there is one, what handlers of `run` do from now on."""
        if topic is None:
            return
        client = self._client
        name = client.services.namespace.unwrap(group)
        self._tracer = Tracer.join(client.services, client.unique_ids, name, "CONSUME", topic)

    async def _stop_trace(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            await tracer.leave()

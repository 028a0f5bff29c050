"""What the start of a fleet prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from skylarkmq import __version__
from skylarkmq.broker.config.settings import FAST_PORT_DISTANCE, BrokerConfig
from skylarkmq.broker.start.banner import (
    Address,
    first_message,
    kernel_text,
    loss_window,
    metrics_url,
    text_of,
    tls_text,
)

Fields = Mapping[str, Any]


def fleet_lines(
    config: BrokerConfig,
    brokers: Sequence[Fields],
    namesrv: str | None,
    pages: Address | None,
    ready_s: float,
    without_effect: Sequence[str],
) -> Iterator[str]:
    """Yield the lines of the banner for people.

    Args:
        brokers: what each broker said when it was ready.
        namesrv: the address of the fleet's name server, if it has one.
        pages: where metrics and health are, if they are anywhere.
    """
    yield f"SkylarkMQ {__version__} is ready after {ready_s:.2f} s: {len(brokers)} brokers"
    for broker in brokers:
        listening = broker["listenAddr"]
        fast = int(listening.rpartition(":")[2]) - FAST_PORT_DISTANCE
        yield f"  broker       {listening} (fast port {fast}), {broker['broker']},"
        yield f"               told to clients as {broker['brokerAddr']}"
        yield f"               data in {broker['storePathRootDir']}"
    if namesrv is not None:
        yield f"  name server  {namesrv}"
    if config.namesrv_addr:
        yield f"  registers    with {config.namesrv_addr}"
    if pages is not None:
        yield f"  metrics      {metrics_url(pages, config.tls)}"
    yield f"  flush        {loss_window(config.store)}"
    yield f"  TLS          {tls_text(config.tls)}"
    yield f"  kernel       {kernel_text()}"
    if without_effect:
        yield f"  no effect    {', '.join(without_effect)}"
    if (namesrv := namesrv or config.namesrv_addr) and config.tls.tls_server_mode != "enforcing":
        yield from first_message(namesrv)


def fleet_fields(
    brokers: Sequence[Fields],
    namesrv: str | None,
    pages: Address | None,
    ready_s: float,
    without_effect: Sequence[str],
) -> dict[str, Any]:
    """Return the banner for machines; keys stay as they are."""
    fields: dict[str, Any] = {"event": "ready", "version": __version__}
    fields["brokers"] = [
        {key: broker[key] for key in broker if key != "event"} for broker in brokers
    ]
    if namesrv is not None:
        fields["namesrvAddr"] = namesrv
    if pages is not None:
        fields["metricsAddr"] = text_of(pages)
    fields["readyS"] = round(ready_s, 3)
    if without_effect:
        fields["withoutEffect"] = [*without_effect]
    return fields

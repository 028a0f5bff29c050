"""The hooks that a client's own arguments ask for; their libraries are imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skylarkmq.client.errors import NotSupported
from skylarkmq.client.observe.hooks import ClientHook

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from skylarkmq.client.services import Services


def hooks_of(
    services: Services, metrics: CollectorRegistry | None, tracer_provider: TracerProvider | None
) -> list[ClientHook]:
    """Return the hooks for a registry of metrics and for a provider of tracers, if given.

    Raises:
        NotSupported: OpenTelemetry's library is not installed.
    """
    hooks: list[ClientHook] = []
    if metrics is not None:
        from skylarkmq.client.observe.metrics import MetricsHook

        hooks.append(MetricsHook(services, metrics))
    if tracer_provider is not None:
        try:
            from skylarkmq.client.observe.otel import OpenTelemetryHook
        except ImportError as error:
            hint = "pip install 'skylarkmq[otel]'"
            raise NotSupported("tracer_provider needs opentelemetry-api", hint=hint) from error

        hooks.append(OpenTelemetryHook(services, tracer_provider))
    return hooks

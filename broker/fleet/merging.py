"""Several scrapes as one: each family once, with the series of all brokers.

A family whose series name their broker (`broker`, or RocketMQ's `node_id`) stays as it is. The
others, which tell of the process, get a label `broker`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

END: Final = b"# EOF\n"
_NEXT: Final = re.compile(rb"^(?=# HELP )", re.MULTILINE)
_HEAD: Final = re.compile(rb"(?:#[^\n]*\n)+")
_NAMED: Final = re.compile(rb'[{,](?:broker|node_id)="')
_SAMPLE: Final = re.compile(rb"^([A-Za-z_:][A-Za-z0-9_:]*)(\{)?", re.MULTILINE)


def merged(scrapes: Mapping[str, bytes]) -> bytes:
    """Return the text of all families; the mark of OpenMetrics' end is left out.

    Args:
        scrapes: Prometheus text, or OpenMetrics, by the broker's name; all of one kind.
    """
    families: dict[bytes, list[bytes]] = {}
    for broker, text in scrapes.items():
        for family in _NEXT.split(text.removesuffix(END)):
            head = _HEAD.match(family)
            if head is None:
                continue
            name = family.split(b" ", 3)[2]
            parts = families.setdefault(name, [head.group()])
            parts.append(_labelled(family[head.end() :], broker))
    return b"".join(part for parts in families.values() for part in parts)


def _labelled(samples: bytes, broker: str) -> bytes:
    first, _, _ = samples.partition(b"\n")
    if not first or _NAMED.search(first):
        return samples
    escaped = broker.replace("\\", "\\\\").replace('"', '\\"')
    label = f'broker="{escaped}"'.encode()

    def add(found: re.Match[bytes]) -> bytes:
        return found[1] + b"{" + label + (b"," if found[2] else b"}")

    return _SAMPLE.sub(add, samples)

"""What the parts of the blocking Admin stand on."""

from __future__ import annotations

from skylarkmq.client.admin.admin import Admin as AsyncAdmin
from skylarkmq.client.sync.inner import Inner


class AdminPart:
    """Root of the parts."""

    _inner: Inner[AsyncAdmin]

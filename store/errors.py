"""Errors of the store. An outcome that the protocol names is a status, not one of these."""

from __future__ import annotations

from skylarkmq.common.errors import StoreError


class StoreFullError(StoreError):
    """No next file: the machine refused it for now, or it is not made yet. This passes."""


class NoBufferError(StoreFullError):
    """The transient pool has no buffer for the next file, and that is to be refused."""


class StoreLockedError(StoreError):
    """Another broker has the store open."""


class StoreProfileError(StoreError):
    """The files in the folder have other sizes than the configuration says."""

"""The sizes that a store was written with, remembered so that a later start cannot misread it.

A folder that RocketMQ wrote has no profile: the sizes of its files are then held against the
configuration one by one when they are loaded.
"""

from __future__ import annotations

from pathlib import Path

from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.files import Files
from skylarkmq.store.sidecar import Kind, decode_sidecar, encode_sidecar


def check_profile(files: Files, path: Path, sizes: dict[str, int]) -> None:
    """Hold the configured sizes against the remembered ones; remember them at the first start.

    Args:
        sizes: RocketMQ's key names with their values in bytes or counts.

    Raises:
        StoreProfileError: a size differs; nothing was changed.
        CorruptFileError: the profile is damaged.
    """
    if not files.exists(path):
        files.make_folder(path.parent)
        files.replace(path, encode_sidecar(Kind.PROFILE, sizes), backup=False)
        return
    known = decode_sidecar(path, Kind.PROFILE, files.read_all(path))
    for key, value in sizes.items():
        if key in known and known[key] != value:
            raise StoreProfileError(
                f"{path.parent.parent} was written with {key}={known[key]}, "
                f"the configuration says {value}; start with --set {key}={known[key]}"
            )

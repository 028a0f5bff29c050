"""The sizes that a store was written with, remembered so that a later start cannot misread it.

A folder that RocketMQ wrote has no profile: the sizes of its files are then held against the
configuration one by one when they are loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files
from skylarkmq.common.sidecar import Kind, decode_sidecar, encode_sidecar
from skylarkmq.store.errors import StoreProfileError


def check_profile(files: Files, path: Path, sizes: dict[str, int]) -> None:
    """Hold the configured sizes against the remembered ones; changes nothing.

    Args:
        sizes: RocketMQ's key names with their values in bytes or counts.

    Raises:
        StoreProfileError: a size differs.
        CorruptFileError: the profile is damaged.
    """
    known = _known(files, path)
    for key, value in sizes.items():
        if key in known and known[key] != value:
            raise StoreProfileError(
                f"{path.parent.parent} was written with {key}={known[key]}, "
                f"the configuration says {value}; start with --set {key}={known[key]}"
            )


def save_profile(files: Files, path: Path, sizes: dict[str, int]) -> None:
    """Remember the sizes that were not known, once all files turned out to have them."""
    known = _known(files, path)
    if sizes.keys() - known.keys():
        files.make_folder(path.parent)
        files.replace(path, encode_sidecar(Kind.PROFILE, {**known, **sizes}), backup=False)


def _known(files: Files, path: Path) -> dict[str, Any]:
    if not files.exists(path):
        return {}
    try:
        return decode_sidecar(path, Kind.PROFILE, files.read_all(path))
    except CorruptFileError as error:
        raise CorruptFileError(
            path,
            error.position,
            f"{error.why}; put a good copy in its place, or remove it: then the sizes of the files "
            "are held against the configuration",
        ) from error

"""What a test's broker can be set to: its size, its disk, its keys.

    profile   log file   index slots   syncs   for
    test      16 MiB     4,000         none    nearly everything: starts in milliseconds
    dev       64 MiB     20,000        all     flushing and recovery as a real broker does them
    prod      1 GiB      5,000,000     all     RocketMQ's own sizes; takes 1.5 GB of disk

All else is as a broker's defaults, so that a test does not pass on what production refuses (SQL92
needs `enablePropertyFilter` here too). Keys of `settings` win over the profile. They are RocketMQ's
(`flushDiskType`), their values text, numbers or booleans, checked as in a `broker.conf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skylarkmq.broker.config.config_file import PROFILES, Profile
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.embedded import Settings, configuration


@dataclass(frozen=True)
class ProfileRow:
    """What a profile says of the broker's keys, and of the disk's waits."""

    syncs: bool
    keys: Settings = field(default_factory=dict[str, "str | int | bool"])


_EVERYWHERE: Final[Settings] = {
    "brokerName": "broker-a",
    "storeFailureExit": False,  # the process is the test's
}
_PROFILES: Final[Mapping[Profile, ProfileRow]] = {
    "test": ProfileRow(
        syncs=False,
        keys={
            **PROFILES["test"],
            # Nothing is synced anyway, and a jump over hours has fewer stops.
            "flushIntervalCommitLog": 10_000,
            "flushIntervalConsumeQueue": 10_000,
        },
    ),
    "dev": ProfileRow(syncs=True, keys=PROFILES["dev"]),
    "prod": ProfileRow(syncs=True),
}


def profile_row(profile: Profile) -> ProfileRow:
    """Return a profile.

    Raises:
        ValueError: there is none of that name.
    """
    row = _PROFILES.get(profile)
    if row is None:
        raise ValueError(f"profile is one of {', '.join(_PROFILES)}, not {profile!r}")
    return row


def broker_config(
    profile: Profile, root: Path, settings: Settings, ports: tuple[int, int]
) -> BrokerConfig:
    """Return the configuration of a test's broker.

    Args:
        ports: of the broker and of its name server; 0 picks a free one.

    Raises:
        ConfigError: a key that is not known, with the nearest one, or a value it does not take.
    """
    keys: Settings = {
        **_EVERYWHERE,
        **profile_row(profile).keys,
        "storePathRootDir": str(root),
        "listenPort": ports[0],
        "namesrvListenPort": ports[1],
        **settings,
    }
    return configuration(root, keys)

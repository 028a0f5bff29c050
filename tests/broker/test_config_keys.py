"""The lists of keys are true: what is said to have no effect is read nowhere."""

import re
from pathlib import Path

from skylarkmq.broker.config.config_keys import (
    ABOVE_ZERO,
    ALIASES,
    JAVA_ONLY,
    NEEDED,
    REFUSED,
    WITHOUT_EFFECT,
)
from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig
from skylarkmq.common.config_fields import key_of, types_of
from skylarkmq.store.config import StoreConfig

ROOT = Path(__file__).parents[2]
ATTRIBUTES = {name for cls in (BrokerConfig, NamesrvConfig, StoreConfig) for name in types_of(cls)}
KEYS = {key_of(name) for name in ATTRIBUTES}


def _read_attributes() -> set[str]:
    files = [path for folder in ("broker", "store") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 50
    text = "\n".join(path.read_text() for path in files)
    return set(re.findall(r"\.([a-z][a-z_0-9]*)\b", text))


def test_keys_without_effect_are_just_those_that_no_code_reads() -> None:
    read = _read_attributes()
    idle = {key_of(name) for name in ATTRIBUTES if name not in read}
    assert idle - set(REFUSED) == WITHOUT_EFFECT - set(REFUSED)


def test_lists_name_keys_that_exist() -> None:
    assert KEYS >= WITHOUT_EFFECT
    assert set(REFUSED) <= KEYS
    assert set(ALIASES.values()) <= KEYS
    assert not JAVA_ONLY & KEYS and not set(ALIASES) & KEYS


def test_what_a_key_needs_is_a_value_of_another_key_that_has_an_effect() -> None:
    defaults = {
        key_of(name): getattr(cls, name, None)
        for cls in (BrokerConfig, StoreConfig)
        for name in types_of(cls)
    }
    for key, needed in NEEDED.items():
        assert key in defaults and key not in WITHOUT_EFFECT, key
        for other, wanted in needed.items():
            assert other != key and other not in WITHOUT_EFFECT
            kind = int if wanted is ABOVE_ZERO else type(wanted)
            assert type(defaults[other]) is kind, other


def test_no_default_is_refused() -> None:
    for cls in (BrokerConfig, NamesrvConfig, StoreConfig):
        for name in types_of(cls):
            refused = REFUSED.get(key_of(name))
            assert refused is None or not refused[0](getattr(cls, name)), name

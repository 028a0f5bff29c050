"""The lists of keys are true: what is said to have no effect is read nowhere."""

import re
from pathlib import Path

from skylarkmq.broker.config import BrokerConfig, NamesrvConfig
from skylarkmq.broker.config_keys import ALIASES, JAVA_ONLY, REFUSED, WITHOUT_EFFECT
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.config_fields import key_of, types_of

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


def test_no_default_is_refused() -> None:
    for cls in (BrokerConfig, NamesrvConfig, StoreConfig):
        for name in types_of(cls):
            refused = REFUSED.get(key_of(name))
            assert refused is None or not refused[0](getattr(cls, name)), name

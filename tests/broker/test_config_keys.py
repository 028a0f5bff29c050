"""The lists of keys are true: what is said to have no effect is read nowhere."""

import re
from pathlib import Path

from skylarkmq.broker.config.settings import ALIASES, JAVA_ONLY, BrokerConfig, NamesrvConfig
from skylarkmq.common.config_fields import ABOVE_ZERO, keys_of
from skylarkmq.store.config import StoreConfig

ROOT = Path(__file__).parents[2]
CLASSES = (BrokerConfig, NamesrvConfig, StoreConfig)
KEYS = {name: key for cls in CLASSES for name, key in keys_of(cls).items()}


def _read_attributes() -> set[str]:
    files = [path for folder in ("broker", "store") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 50
    text = "\n".join(path.read_text() for path in files)
    return set(re.findall(r"\.([a-z][a-z_0-9]*)\b", text))


def _is_refused(need: tuple[str, object]) -> bool:
    """Return whether a value that another key needs is refused, so that nothing reads that key."""
    name, wanted = need
    return bool(KEYS[name].effect.not_built) and wanted != KEYS[name].default


def test_keys_without_effect_are_just_those_that_no_code_reads() -> None:
    read = _read_attributes()
    idle = {name for name, key in KEYS.items() if key.attribute not in read}
    refused = {
        name
        for name, key in KEYS.items()
        if key.effect.not_built or any(map(_is_refused, key.effect.needs.items()))
    }
    unused = {name for name, key in KEYS.items() if key.effect.is_unused}
    assert idle - refused == unused - refused


def test_a_key_that_several_servers_have_does_the_same_in_each() -> None:
    for cls in CLASSES:
        for name, key in keys_of(cls).items():
            assert key.effect.is_unused == KEYS[name].effect.is_unused, name


def test_lists_name_keys_that_exist() -> None:
    assert set(ALIASES.values()) <= KEYS.keys()
    assert not JAVA_ONLY & KEYS.keys() and not ALIASES.keys() & KEYS.keys()


def test_what_a_key_needs_is_a_value_of_another_key_that_has_an_effect() -> None:
    for name, key in KEYS.items():
        for other, wanted in key.effect.needs.items():
            assert not key.effect.is_unused, name
            assert other != name and not KEYS[other].effect.is_unused
            kind: type = int if wanted is ABOVE_ZERO else type(wanted)
            assert type(KEYS[other].default) is kind, other

"""Where the values of the configuration come from, and the strict reading of their text.

    defaults  <  the file of -c  <  environment  <  --set key=value          the last one wins

The environment's names are SKYLARKMQ_ and the key in upper snake case: flushDiskType is
SKYLARKMQ_FLUSH_DISK_TYPE. NAMESRV_ADDR stands for namesrvAddr, as for Java brokers, and is weaker
than SKYLARKMQ_NAMESRV_ADDR.

Unlike RocketMQ, which passes over unknown keys and values that it can not read: both end the start
here with one line that names the key, the value, where it stands and what to write instead. Only an
unknown variable is no error, because tools and Kubernetes set variables of their own.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

from skylarkmq.broker.config import BrokerConfig, NamesrvConfig
from skylarkmq.broker.config_keys import ALIASES, JAVA_ONLY, REFUSED, WITHOUT_EFFECT
from skylarkmq.broker.properties_file import PropertiesError, read_properties
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.config_fields import ConfigError, key_of, types_of

C = TypeVar("C", BrokerConfig, NamesrvConfig)

ENVIRONMENT_PREFIX: Final = "SKYLARKMQ_"
NAMESRV_ADDR_VARIABLE: Final = "NAMESRV_ADDR"
DEFAULT_ORIGIN: Final = "default"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_SPECIAL_KEYS: Final = frozenset({"store"})
_SIMILARITY: Final = 0.5


@dataclass(frozen=True)
class Sources:
    """What the user said, and what the machine says when the user is silent."""

    file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Sequence[str] = ()  # each `key=value`
    home: Path = Path("/")
    host_name: str = ""


class Setting(NamedTuple):
    """The text of a value and where it stands."""

    text: str
    origin: str


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A configuration and what a user should hear about it."""

    config: C
    settings: dict[str, Setting]  # by key; keys that nobody set are absent
    without_effect: list[str]  # keys that somebody set and that do nothing
    unknown_variables: list[str]


def load_broker_config(sources: Sources) -> Loaded[BrokerConfig]:
    """Read the configuration of a broker and its store. Blocks; for the start alone.

    Raises:
        ConfigError: an unknown key, or a value that its key does not take.
        OSError: the file can not be read.
    """
    wanted = {**_wanted(BrokerConfig), **_wanted(StoreConfig)}
    defaults = {"storePathRootDir": Setting(str(sources.home / "store"), DEFAULT_ORIGIN)}
    if sources.host_name:
        defaults["brokerName"] = Setting(sources.host_name, DEFAULT_ORIGIN)
    given, unknown_variables = _collect(sources, wanted)
    settings = {**defaults, **given}
    values = _read_settings(wanted, settings)
    try:
        store = StoreConfig(**_of(StoreConfig, values))
        config = BrokerConfig(store=store, **_of(BrokerConfig, values))
    except ConfigError as error:
        raise _placed(error, settings) from error
    return Loaded(config, settings, _idle_keys(given), unknown_variables)


def load_namesrv_config(sources: Sources) -> Loaded[NamesrvConfig]:
    """Read the configuration of a name server. Blocks; for the start alone.

    Raises:
        ConfigError: an unknown key, or a value that its key does not take.
        OSError: the file can not be read.
    """
    wanted = _wanted(NamesrvConfig)
    kv_path = sources.home / "namesrv" / "kvConfig.json"
    given, unknown_variables = _collect(sources, wanted)
    settings = {"kvConfigPath": Setting(str(kv_path), DEFAULT_ORIGIN), **given}
    values = _read_settings(wanted, settings)
    try:
        config = NamesrvConfig(**_of(NamesrvConfig, values))
    except ConfigError as error:
        raise _placed(error, settings) from error
    return Loaded(config, settings, _idle_keys(given), unknown_variables)


def effective_values(loaded: Loaded[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and origin of every key, for `--print-config`."""
    config = loaded.config
    parts = [config.store, config] if isinstance(config, BrokerConfig) else [config]
    rows: list[tuple[str, str, str]] = []
    for part in parts:
        for attribute in types_of(part.__class__):
            if attribute in _SPECIAL_KEYS:
                continue
            key = key_of(attribute)
            origin = loaded.settings[key].origin if key in loaded.settings else DEFAULT_ORIGIN
            rows.append((key, shown_value(getattr(part, attribute)), origin))
    yield from sorted(rows)


def shown_value(value: object) -> str:
    """The text of a value, as a file would have it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wanted(cls: Any) -> dict[str, Any]:
    """Key -> type of value."""
    hints = types_of(cls)
    return {key_of(name): hints[name] for name in hints if name not in _SPECIAL_KEYS}


def _of(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of one class by attribute."""
    return {name: values[key_of(name)] for name in types_of(cls) if key_of(name) in values}


def _idle_keys(settings: Mapping[str, Setting]) -> list[str]:
    return sorted(key for key in settings if key in WITHOUT_EFFECT or key in JAVA_ONLY)


def _collect(sources: Sources, wanted: Mapping[str, Any]) -> tuple[dict[str, Setting], list[str]]:
    """Lay the sources over each other; return also the variables that mean nothing."""
    settings: dict[str, Setting] = {}
    if sources.file is not None:
        for key, setting in _file_settings(sources.file):
            settings[_known(key, setting, wanted)] = setting
    variables, unknown = _environment_settings(sources.environment, wanted)
    settings.update(variables)
    for text in sources.settings:
        key, mark, value = text.partition("=")
        setting = Setting(value.strip(), "--set")
        if not mark:
            raise ConfigError(key, "", "write --set key=value", setting.origin)
        settings[_known(key.strip(), setting, wanted)] = setting
    return settings, unknown


def _file_settings(path: Path) -> list[tuple[str, Setting]]:
    try:
        properties = read_properties(path.read_bytes())
    except PropertiesError as error:
        raise ConfigError("-c", path, str(error)) from error
    return [(item.key, Setting(item.value, f"{path} line {item.line}")) for item in properties]


def _environment_settings(
    environment: Mapping[str, str], wanted: Mapping[str, Any]
) -> tuple[dict[str, Setting], list[str]]:
    by_variable = {ENVIRONMENT_PREFIX + _upper_snake(key): key for key in wanted}
    settings: dict[str, Setting] = {}
    unknown: list[str] = []
    address = environment.get(NAMESRV_ADDR_VARIABLE)
    if address and "namesrvAddr" in wanted:
        settings["namesrvAddr"] = Setting(address, f"environment {NAMESRV_ADDR_VARIABLE}")
    for variable in sorted(environment):
        if variable in by_variable:
            origin = f"environment {variable}"
            settings[by_variable[variable]] = Setting(environment[variable].strip(), origin)
        elif variable.startswith(ENVIRONMENT_PREFIX):
            unknown.append(variable)
    return settings, unknown


def _upper_snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key).upper()


def _known(key: str, setting: Setting, wanted: Mapping[str, Any]) -> str:
    try:
        return known_key(key, setting.text, wanted)
    except ConfigError as error:
        raise ConfigError(error.key, error.value, error.cure, setting.origin) from error


def known_key(key: str, text: str, wanted: Mapping[str, Any]) -> str:
    """The key under the spelling of this version.

    Raises:
        ConfigError: there is no such key; names the nearest one.
    """
    key = ALIASES.get(key, key)
    if key in wanted or key in JAVA_ONLY:
        return key
    by_lower = {name.lower(): name for name in wanted}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=_SIMILARITY)
    cure = f"no such key; did you mean {by_lower[near[0]]}?" if near else "no such key"
    raise ConfigError(key, text, cure)


def _read_settings(wanted: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    try:
        return read_values(wanted, {key: setting.text for key, setting in settings.items()})
    except ConfigError as error:
        raise _placed(error, settings) from error


def read_values(wanted: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Turn texts into the values of their keys; the limits of values are checked elsewhere.

    Args:
        wanted: type of value by key; keys that are not in it are passed over.

    Raises:
        ConfigError: a text that its key does not take.
    """
    values: dict[str, Any] = {}
    for key, text in texts.items():
        if key not in wanted:
            continue  # a key of Java alone
        value = _read_value(key, wanted[key], text)
        is_refused, cure = REFUSED.get(key, (None, ""))
        if is_refused is not None and is_refused(value):
            raise ConfigError(key, text, cure)
        values[key] = value
    return values


def _read_value(key: str, wanted: Any, text: str) -> Any:
    """Turn a text into the value of its key's type; its limits are checked by the dataclass."""
    origin = typing.get_origin(wanted)
    if origin in (types.UnionType, typing.Union):
        if not text:
            return None
        wanted = next(kind for kind in typing.get_args(wanted) if kind is not types.NoneType)
        return _read_value(key, wanted, text)
    if origin is Annotated:
        wanted = typing.get_args(wanted)[0]
    if wanted is bool:
        return _read_boolean(key, text)
    if wanted is int:
        if _INTEGER.fullmatch(text) is None:
            raise ConfigError(key, text, "write a whole number")
        return int(text)
    if wanted is Path:
        if not text or "\0" in text:
            raise ConfigError(key, repr(text), "write a path")
        try:
            return Path(text).expanduser()
        except RuntimeError as error:
            raise ConfigError(key, text, "nobody knows this home; write the whole path") from error
    return text


def _read_boolean(key: str, text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ConfigError(key, text, "write true or false")
    return lowered == "true"


def _placed(error: ConfigError, settings: Mapping[str, Setting]) -> ConfigError:
    """The same error with the place that its value comes from."""
    setting = settings.get(error.key)
    return ConfigError(error.key, error.value, error.cure, setting.origin if setting else "")

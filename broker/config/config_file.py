"""Where the values of the configuration come from, and the strict reading of their text.

    defaults  <  --profile  <  the file of tls.config.file  <  the file of -c  <  environment
              <  --set key=value                                               the last one wins

The environment's names are SKYLARKMQ_ and the key in upper snake case: flushDiskType is
SKYLARKMQ_FLUSH_DISK_TYPE, tls.server.certPath is SKYLARKMQ_TLS_SERVER_CERT_PATH. NAMESRV_ADDR
stands for namesrvAddr and ROCKETMQ_HOME for rocketmqHome, as for Java brokers; they are weaker than
SKYLARKMQ_NAMESRV_ADDR and SKYLARKMQ_ROCKETMQ_HOME.

Unlike RocketMQ, which passes over unknown keys and values that it cannot read: both end the start
here with one line that names the key, the value, where it stands and what to write instead. An
unknown variable is an error only where it looks like a key spelt wrong, because tools and
Kubernetes set variables of their own.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar

from skylarkmq.broker.config.properties_file import PropertiesError, read_properties
from skylarkmq.broker.config.settings import (
    ALIASES,
    GONE,
    JAVA_ONLY,
    BrokerConfig,
    NamesrvConfig,
)
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.common.config_fields import (
    ABOVE_ZERO,
    HIDDEN,
    ConfigError,
    Key,
    is_secret,
    keys_of,
)
from skylarkmq.common.first_use import on_first_use
from skylarkmq.kernel import PURE_VARIABLE
from skylarkmq.store.config import StoreConfig

if TYPE_CHECKING:
    import difflib
else:  # for a key that nobody knows
    difflib = on_first_use("difflib")

C = TypeVar("C", BrokerConfig, NamesrvConfig)

ENVIRONMENT_PREFIX: Final = "SKYLARKMQ_"
NAMESRV_ADDR_VARIABLE: Final = "NAMESRV_ADDR"
ROCKETMQ_HOME_VARIABLE: Final = "ROCKETMQ_HOME"
_JAVA_VARIABLES: Final = {
    NAMESRV_ADDR_VARIABLE: "namesrvAddr",
    ROCKETMQ_HOME_VARIABLE: "rocketmqHome",
}
_HOME_ORIGIN: Final = f"environment {ROCKETMQ_HOME_VARIABLE}"
"""Images set it for everybody, so it is no key that somebody meant to count."""
DEFAULT_ORIGIN: Final = "default"
_AS_TOLD: Final = f"{DEFAULT_ORIGIN}: as brokerIP1"
PROFILE_ORIGIN: Final = "--profile"
Profile = Literal["dev", "test", "prod"]
PROFILES: Final[Mapping[Profile, Mapping[str, str]]] = {
    # A working copy: data in the folder that one stands in, and small files, because a log file of
    # RocketMQ's size takes its 1 GiB of the disk at the first start.
    "dev": {
        "storePathRootDir": "var/store",
        "mappedFileSizeCommitLog": str(64 << 20),
        "maxHashSlotNum": "20000",
    },
    # A broker for the tests of applications: starts in milliseconds, takes 17 MB of disk.
    "test": {
        "storePathRootDir": "var/test-store",
        "mappedFileSizeCommitLog": str(16 << 20),
        "mappedFileSizeConsumeQueue": "60000",
        "maxHashSlotNum": "4000",
        "maxIndexNum": "16000",
        # A busy machine is no reason to refuse a message.
        "brokerFastFailureEnable": "false",
        "osPageCacheBusyTimeOutMills": "3600000",
    },
    # RocketMQ's own values.
    "prod": {},
}
"""What a server is for -> what it then takes in place of the defaults."""
OFF: Final = "off"
"""Of a port, in place of a number: nothing listens there. An empty text is the same."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
KEYS: Final = {**keys_of(BrokerConfig), **keys_of(StoreConfig), **keys_of(TlsConfig)}
"""All keys of a broker and its store."""
NAMESRV_KEYS: Final = {**keys_of(NamesrvConfig), **keys_of(TlsConfig)}
TLS_FILE: Final = Path("/etc/rocketmq/tls.properties")
_TLS_FILE_KEY: Final = "tls.config.file"
_SIMILARITY: Final = 0.5
_VARIABLE_SIMILARITY: Final = 0.8
"""Higher than that of keys: what is a variable's may be somebody else's."""
# Kubernetes tells the pods of each service in its namespace, under the service's name.
_OF_A_SERVICE: Final = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT_[0-9]+_[A-Z]+(_[A-Z]+)?$")
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True)
class Sources:
    """What the user said, and what the machine says when the user is silent."""

    file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Sequence[str] = ()  # each `key=value`
    home: Path = Path("/")
    host_name: str = ""
    profile: Profile = "prod"
    tls_file: Path | None = None  # read where it exists and the user names no other
    is_own: Callable[[str], bool] = lambda _: False  # whether a host is this machine


class Setting(NamedTuple):
    """The text of a value and where it stands."""

    text: str
    origin: str


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A configuration and what a user should hear about it."""

    config: C
    settings: dict[str, Setting]  # by key; keys that nobody set are absent
    without_effect: list[str]  # keys that somebody set and that do nothing, with what they need
    unknown_variables: list[str]


@dataclass(frozen=True)
class ConfigOrigin:
    """Where a broker's configuration came from."""

    file: Path | None = None
    # Key -> place, of what the next start takes whatever the file says.
    stronger: Mapping[str, str] = field(default_factory=dict[str, str])


def load_broker_config(sources: Sources) -> Loaded[BrokerConfig]:
    """Read the configuration of a broker and its store. Blocks; for the start alone.

    Raises:
        ConfigError: an unknown key, or a value that its key does not take.
        OSError: the file cannot be read.
    """
    defaults = {"storePathRootDir": Setting(str(sources.home / "store"), DEFAULT_ORIGIN)}
    origin = f"{PROFILE_ORIGIN} {sources.profile}"
    defaults |= {key: Setting(text, origin) for key, text in PROFILES[sources.profile].items()}
    if sources.host_name:
        defaults["brokerName"] = Setting(sources.host_name, DEFAULT_ORIGIN)

    def make(values: Mapping[str, Any]) -> BrokerConfig:
        store = StoreConfig(**_attributes(StoreConfig, values))
        tls = TlsConfig(**_attributes(TlsConfig, values))
        return BrokerConfig(store=store, tls=tls, **_attributes(BrokerConfig, values))

    return _load(sources, KEYS, defaults, make, listen_as_told=True)


def load_namesrv_config(sources: Sources) -> Loaded[NamesrvConfig]:
    """Read the configuration of a name server. Blocks; for the start alone.

    Raises:
        ConfigError: an unknown key, or a value that its key does not take.
        OSError: the file cannot be read.
    """
    path = sources.home / "namesrv" / "kvConfig.json"

    def make(values: Mapping[str, Any]) -> NamesrvConfig:
        tls = TlsConfig(**_attributes(TlsConfig, values))
        return NamesrvConfig(tls=tls, **_attributes(NamesrvConfig, values))

    defaults = {"kvConfigPath": Setting(str(path), DEFAULT_ORIGIN)}
    return _load(sources, NAMESRV_KEYS, defaults, make)


def _load(
    sources: Sources,
    keys: Mapping[str, Key],
    defaults: Mapping[str, Setting],
    make: Callable[[Mapping[str, Any]], C],
    *,
    listen_as_told: bool = False,
) -> Loaded[C]:
    given, unknown_variables = _collect(sources, keys)
    told = given.get("brokerIP1")
    if listen_as_told and told and "bindAddress" not in given and sources.is_own(told.text):
        # A broker.conf of RocketMQ's has no bindAddress: its broker listens on all interfaces.
        defaults = {**defaults, "bindAddress": told._replace(origin=_AS_TOLD)}
    if sources.tls_file is not None:
        defaults = {**defaults, _TLS_FILE_KEY: Setting(str(sources.tls_file), DEFAULT_ORIGIN)}
    given = {**_tls_file_settings({**defaults, **given}.get(_TLS_FILE_KEY), keys), **given}
    settings = {**defaults, **given}
    try:
        texts = {key: setting.text for key, setting in settings.items() if key in keys}
        config = make(read_values(keys, texts))
    except ConfigError as error:
        origin = settings[error.key].origin if error.key in settings else ""
        raise ConfigError(error.key, error.value, error.cure, origin) from error
    values = values_of(config)
    said = [key for key, each in given.items() if each.origin != _HOME_ORIGIN]
    idle = [_without_effect(key, keys.get(key), values) for key in said]
    return Loaded(config, settings, sorted(filter(None, idle)), unknown_variables)


def values_of(config: BrokerConfig | NamesrvConfig) -> dict[str, Any]:
    """Return the value of every key; a broker's with those of its store."""
    parts: list[Any] = [config.tls, config]
    if isinstance(config, BrokerConfig):
        parts.append(config.store)
    return {
        name: getattr(part, key.attribute)
        for part in parts
        for name, key in keys_of(type(part)).items()
    }


def effective_values(loaded: Loaded[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and origin of every key, sorted, for `--print-config`; secrets as stars."""
    default = Setting("", DEFAULT_ORIGIN)
    for key, value in sorted(values_of(loaded.config).items()):
        text = HIDDEN if value and is_secret(key) else shown_value(value)
        yield key, text, loaded.settings.get(key, default).origin


def shown_value(value: object) -> str:
    """Return the text of a value, as a file would have it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _attributes(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of one class by attribute."""
    return {key.attribute: values[name] for name, key in keys_of(cls).items() if name in values}


def _without_effect(name: str, key: Key | None, values: Mapping[str, Any]) -> str:
    """Return the name of a key that was given in vain, with what it needs; empty when it counts."""
    if key is None or key.effect.is_unused:
        return name
    lacking = [
        f"{other} above 0" if wanted is ABOVE_ZERO else f"{other}={shown_value(wanted)}"
        for other, wanted in key.effect.needs.items()
        if not (values[other] if wanted is ABOVE_ZERO else values[other] == wanted)
    ]
    is_in_vain = lacking and values[name] != key.default
    return f"{name} (needs {', '.join(lacking)})" if is_in_vain else ""


def _collect(sources: Sources, keys: Mapping[str, Key]) -> tuple[dict[str, Setting], list[str]]:
    """Lay the sources over each other; return also the variables that mean nothing."""
    settings: dict[str, Setting] = {}
    if sources.file is not None:
        for key, setting in _file_settings(sources.file):
            settings[_known(key, setting, keys)] = setting
    variables, unknown = _environment_settings(sources.environment, keys)
    settings.update(variables)
    for text in sources.settings:
        key, mark, value = text.partition("=")
        setting = Setting(value.strip(), "--set")
        if not mark:
            raise ConfigError(key, "", "write --set key=value", setting.origin)
        settings[_known(key.strip(), setting, keys)] = setting
    return settings, unknown


def _tls_file_settings(named: Setting | None, keys: Mapping[str, Key]) -> dict[str, Setting]:
    """Return what stands in the file of TLS; that of the default need not exist."""
    if named is None or not named.text:
        return {}
    path = Path(named.text)
    if (named.origin == DEFAULT_ORIGIN or path == TLS_FILE) and not path.exists():
        return {}
    settings: dict[str, Setting] = {}
    for key, setting in _file_settings(path, _TLS_FILE_KEY):
        known = _known(key, setting, keys)
        if known not in keys_of(TlsConfig) or known == _TLS_FILE_KEY:
            cure = "this file holds keys of TLS alone; write it into the file of -c"
            raise ConfigError(key, setting.text, cure, setting.origin)
        settings[known] = setting
    return settings


def _file_settings(path: Path, named_by: str = "-c") -> list[tuple[str, Setting]]:
    try:
        properties = read_properties(path.read_bytes())
    except PropertiesError as error:
        raise ConfigError(named_by, path, str(error)) from error
    return [(item.key, Setting(item.value, f"{path} line {item.line}")) for item in properties]


def _environment_settings(
    environment: Mapping[str, str], keys: Mapping[str, Key]
) -> tuple[dict[str, Setting], list[str]]:
    by_variable = {variable_of(key): key for key in (*keys, *JAVA_ONLY)}
    if keys is KEYS:  # a name server may share the environment of a broker
        by_variable |= {variable_of(key): key for key in GONE}
    by_variable |= {variable_of(key): name for key, name in ALIASES.items() if name in keys}
    settings: dict[str, Setting] = {}
    unknown: list[str] = []
    for variable, key in _JAVA_VARIABLES.items():
        text = environment.get(variable)
        if text and key in keys:
            settings[key] = Setting(text, f"environment {variable}")
    for variable in sorted(environment):
        if variable in by_variable:
            setting = Setting(environment[variable].strip(), f"environment {variable}")
            settings[_known(by_variable[variable], setting, keys)] = setting
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable != PURE_VARIABLE:
            near = _near_variable(variable, environment[variable], by_variable)
            if near is not None:
                cure = f"no such key; did you mean {near}?"
                text = HIDDEN if is_secret(near) else environment[variable]
                raise ConfigError(variable, text, cure, "environment")
            unknown.append(variable)
    return settings, unknown


def _near_variable(variable: str, text: str, known: Iterable[str]) -> str | None:
    """Return the variable of a key that this one looks like; None: somebody else's."""
    if _OF_A_SERVICE.search(variable) or _SERVICE_ADDRESS.match(text):
        return None
    if variable in map(variable_of, (*KEYS, *NAMESRV_KEYS, *GONE)):
        return None  # of the other server, whose environment this one shares
    by_letters = {_letters(name): name for name in known}
    near = difflib.get_close_matches(
        _letters(variable), by_letters, n=1, cutoff=_VARIABLE_SIMILARITY
    )
    return by_letters[near[0]] if near else None


def _letters(variable: str) -> str:
    return variable.removeprefix(ENVIRONMENT_PREFIX).upper().replace("_", "")


def variable_of(key: str) -> str:
    """Return the environment's name of a key."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key)
    return ENVIRONMENT_PREFIX + snake.replace(".", "_").upper()


def _known(key: str, setting: Setting, keys: Mapping[str, Key]) -> str:
    try:
        return known_key(key, setting.text, keys)
    except ConfigError as error:
        raise ConfigError(error.key, error.value, error.cure, setting.origin) from error


def known_key(key: str, text: str, keys: Mapping[str, Key]) -> str:
    """Return the key under the spelling of this version.

    Raises:
        ConfigError: there is no such key; names the nearest one, or what to use instead.
    """
    key = ALIASES.get(key, key)
    if key in keys or key in JAVA_ONLY:
        return key
    if key in GONE:
        raise ConfigError(key, text, GONE[key])
    by_lower = {name.lower(): name for name in keys}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=_SIMILARITY)
    if not near:
        raise ConfigError(key, text, "no such key")
    meant = by_lower[near[0]]
    cure = f"no such key; did you mean {meant}?"
    raise ConfigError(key, HIDDEN if is_secret(meant) else text, cure)


def read_values(keys: Mapping[str, Key], texts: Mapping[str, str]) -> dict[str, Any]:
    """Turn texts into the values of their keys; the limits of values are checked elsewhere.

    Raises:
        ConfigError: a text that its key does not take.
    """
    values: dict[str, Any] = {}
    for name, text in texts.items():
        key = keys[name]
        values[name] = _read_value(name, key.type, text)
        if key.effect.not_built and values[name] != key.default:
            raise ConfigError(name, text, key.effect.not_built)
    return values


def _read_value(key: str, wanted: Any, text: str) -> Any:
    """Turn a text into the value of its key's type; its limits are checked by the dataclass."""
    origin = typing.get_origin(wanted)
    if origin in (types.UnionType, typing.Union):
        wanted = next(kind for kind in typing.get_args(wanted) if kind is not types.NoneType)
        is_number = int in (wanted, *typing.get_args(wanted))
        if not text or (is_number and text == OFF):
            return None
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
            raise ConfigError(key, text, "this home is unknown; write the whole path") from error
    return text


def _read_boolean(key: str, text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ConfigError(key, text, "write true or false")
    return lowered == "true"

"""RemotingCommand: one request or response, header fields as text, whatever codec carried it."""

from collections.abc import Callable, Mapping
from typing import Final

from skylarkmq.protocol.codes import CURRENT_VERSION, LanguageCode
from skylarkmq.protocol.frame import SerializeType

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

# A header with more extra fields than this is refused by every codec; real ones carry under 30.
EXT_FIELDS_MAX: Final = 1024

# (opaque, ids of the messages between commas, queue id, queue offset) -> header
SendResponseEncoder = Callable[[int, bytes, int, int], bytes]

_JSON: Final = SerializeType.JSON
_PYTHON: Final = LanguageCode.PYTHON

LANGUAGE_BY_NAME: Final[dict[str, LanguageCode]] = dict(LanguageCode.__members__)
LANGUAGE_BY_NUMBER: Final[dict[int, LanguageCode]] = {int(code): code for code in LanguageCode}
LANGUAGE_NAMES: Final[dict[int, str]] = {int(code): code.name for code in LanguageCode}


class RemotingCommand:
    """A command in either direction.

    `ext_fields` holds the typed header flattened to text plus free extras; an absent map, an empty
    one and a map of nulls only are the same thing here. `language` is OTHER when the peer named
    one that we do not know, JAVA when it named none. `sender` is whose request it is, as the server
    found out; it is not on the wire.
    """

    __slots__ = (
        "body",
        "code",
        "ext_fields",
        "flag",
        "language",
        "opaque",
        "remark",
        "sender",
        "serialize_type",
        "version",
    )

    def __init__(
        self,
        code: int,
        language: LanguageCode = _PYTHON,
        version: int = CURRENT_VERSION,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
        serialize_type: int = _JSON,
    ) -> None:
        self.code = code
        self.language = language
        self.version = version
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.ext_fields: dict[str, str] = {} if ext_fields is None else ext_fields
        self.body = body
        self.serialize_type = serialize_type
        self.sender: object = None

    @classmethod
    def request(
        cls,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
        opaque: int = 0,
        serialize_type: int = _JSON,
    ) -> "RemotingCommand":
        """Return a request of ours; `opaque` is to be unique among the requests in flight."""
        return cls(
            code,
            opaque=opaque,
            flag=ONEWAY_FLAG if oneway else 0,
            ext_fields=dict(ext_fields) if ext_fields else None,
            body=body,
            serialize_type=serialize_type,
        )

    def reply(
        self,
        code: int,
        remark: str | None = None,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> "RemotingCommand":
        """Return the response to this request: same opaque, same header codec."""
        return RemotingCommand(
            code,
            opaque=self.opaque,
            flag=RESPONSE_FLAG,
            remark=remark,
            ext_fields=dict(ext_fields) if ext_fields else None,
            body=body,
            serialize_type=self.serialize_type,
        )

    @property
    def is_response(self) -> bool:
        """True for an answer to a request; look here before anything else."""
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        """True when the sender wants no answer."""
        return self.flag & ONEWAY_FLAG != 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemotingCommand):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"<RemotingCommand {kind} code={self.code} opaque={self.opaque}"
            f" ext_fields={len(self.ext_fields)} body={len(self.body)} bytes>"
        )

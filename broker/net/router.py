"""From request code to processor, for all frames of one read.

Sends and pulls, which come in thousands, have a fast path: nothing is built that the answer does
not need. Everything else, and what a fast path is not sure of, is decoded in full and handed to
its handler:

    handler(connection, request) -> response         answered now
                                 -> coroutine        becomes a task; its result is the answer
                                 -> None             answered later, or never (one-way)

Where there is access control it is asked about all frames of a read before anything is handled; a
peer that it knows by its address goes its way as if there were none. What such a peer signs, and
what is signed where there is no access control, is written anew without the signature, which
nobody looks at, so that it takes the fast paths.

The sends of one turn of the loop, from all connections, gather in one store batch. Before any other
request is handled that batch is committed, so a pull after a send finds it.

What a slave does not do is refused here, on whatever path it comes
(`replication/ha/slave_rules.py`).

A handler's `RemoteProtocolError` is answered with its code and remark; any other exception, on the
path of sends too, is a defect, logged with its traceback and answered with SYSTEM_ERROR. A frame
whose header cannot be read costs its connection (the caller closes it).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.net.checked import CheckedFrame, unseen_size
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.fast_failure import KINDS, OVERLOAD, refusal
from skylarkmq.broker.net.handlers import Handler, Response
from skylarkmq.broker.net.places import PLACES_MAX
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.frame import (
    MAX_FRAME_SIZE,
    PREFIX_SIZE,
    BadFrameError,
    RawFrame,
    SerializeType,
)
from skylarkmq.protocol.headers.access import ACCESS_KEY
from skylarkmq.remoting.connection import CODEC_FIELD, CODEC_OFFER

if TYPE_CHECKING:
    from skylarkmq.broker.access.audit import Audit
    from skylarkmq.broker.access.control import AccessControl
    from skylarkmq.broker.processor.plain_pulls import PlainPulls
    from skylarkmq.broker.processor.send import SendProcessor

log = logging.getLogger(__name__)

MESSAGE_BODIES = frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})
POLLS = frozenset({RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION})
"""Their answers wait for messages."""
WAITING_MAX = 20_000
STOP_LIMIT_S = 2.0
REMARK_MAX = 1024
LOGGED_MAX = 1024

Take = Callable[[Connection, list[RawFrame], int], int]
"""Handles plain requests of one kind from a place on; returns how many, 0 for something else."""


class Router:
    """Routes the requests of all connections of a server. Loop thread.

    Its size is one idea: one way of a frame from its read to its answer, whatever is asked, refused
    or counted on it.

    Attributes:
        audit: told what became of administrators' changes.
        guard: called before the frames of each read are handled; it may call `refuse`.
    """

    def __init__(
        self,
        handlers: dict[int, Handler],
        stats: BrokerStats,
        clock: Clock,
        *,
        send: SendProcessor | None = None,
        pulls: PlainPulls | None = None,
        waiting_max: int = WAITING_MAX,
        body_max: int = MAX_FRAME_SIZE,
        access: AccessControl | None = None,
    ) -> None:
        """Route to handlers.

        Args:
            access: asked before anything is handled; None: everybody may do everything.
            waiting_max: requests that may wait for a coroutine at a time; those that wait for
                messages are not among them, whose places are shared by address.
            body_max: bytes of a body that is no message; reading a large one takes the loop's time.
        """
        self.audit: Audit | None = None
        self.guard: Callable[[], None] | None = None
        self._access = access
        self._body_max = body_max
        self._waiting_max = waiting_max
        self.handlers = handlers
        self._stats = stats
        self._clock = clock
        self._send = send
        self._pulls = pulls
        self._send_codes = send.codes if send is not None else frozenset[int]()
        self._refused: Mapping[int, RemoteProtocolError] = {}
        self._takes: list[Take] = []
        self.refuse({})
        self._tasks: set[asyncio.Task[None]] = set()
        self._polls: set[asyncio.Task[None]] = set()
        self._logged: set[tuple[int | str, str]] = set()  # (code or account, address)
        self.ignores_signatures = False  # requests of accounts are answered whoever signed them
        if send is not None:
            send.give_back = self._handle_alone

    def refuse(self, refused: Mapping[int, RemoteProtocolError]) -> None:
        """Answer some codes with an error from now on, and no others."""
        self._refused = refused
        takes_sends = self._send is not None and not self._send_codes & refused.keys()
        paths = (self._send if takes_sends else None, self._pulls)
        self._takes = [path.take for path in paths if path is not None]

    def refusal(self, code: int) -> RemoteProtocolError | None:
        """Return the error that a code is answered with just now; None for one that is handled."""
        return self._refused.get(code)

    @property
    def codes(self) -> frozenset[int]:
        """Every code that is answered with something else than "not supported"."""
        return self._send_codes.union(self.handlers)

    def handle(self, connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        """Handle the frames of one read in order.

        Returns:
            The frames that have to wait until the peer has taken the answers to the others: a
            read of small pulls can ask for gigabytes.

        Raises:
            BadFrameError: a header cannot be read; the frames before it were handled.
        """
        if self.guard is not None:
            self.guard()
        send, access = self._send, self._access
        if access is not None and access.is_open(connection):
            access = None
        is_read = access is not None or connection.signs
        if is_read:
            frames = [self._checked(access, connection, frame) for frame in frames]
        position, count = 0, len(frames)
        try:
            while position < count and not (position and connection.congested):
                taken = 0
                try:
                    if connection.codec_settled:
                        for take in self._takes:
                            taken = take(connection, frames, position)
                            if taken:
                                break
                        if is_read and taken:
                            self._count_unseen(frames[position : position + taken])
                    if not taken:
                        self._handle_other(connection, frames[position])
                except BadFrameError:
                    raise
                except Exception as error:
                    self._failed(connection, frames[position], error)
                position += taken or 1
        finally:
            if send is not None and send.gathering:
                send.end_read(connection)
        return frames[position:]

    def _handle_alone(self, connection: Connection, frame: RawFrame) -> None:
        """Handle a send that came alone in a read, and that the kernel does not take after all."""
        assert self._send is not None
        try:
            try:
                if not self._send.take(connection, [frame], 0):
                    self._handle_other(connection, frame)
            except BadFrameError:
                raise
            except Exception as error:
                self._failed(connection, frame, error)
        except BadFrameError as error:
            connection.end_bad(error)

    def _failed(self, connection: Connection, frame: RawFrame, error: Exception) -> None:
        """Answer a frame whose handling has failed."""
        request = decode_command(frame.original if isinstance(frame, CheckedFrame) else frame)
        connection.reply(request, self._error_reply(request, error))

    def _handle_other(self, connection: Connection, frame: RawFrame) -> None:
        """Handle a frame that no fast path took."""
        traffic = self._stats.frames_in.get(frame.serialize_type)
        if traffic is not None:
            traffic.count += 1
            traffic.bytes += len(frame.header) + len(frame.body) + PREFIX_SIZE
        if not isinstance(frame, CheckedFrame):
            self._handle_decoded(connection, decode_command(frame), None)
            return
        if traffic is not None:
            traffic.bytes += unseen_size((frame,))
        if frame.command is None:
            raise frame.error or BadFrameError("bad_header", "the header cannot be read")
        self._handle_decoded(connection, frame.command, frame.error)

    def _handle_decoded(
        self, connection: Connection, command: RemotingCommand, error: Exception | None
    ) -> None:
        """Handle a request, or answer it with the error of its check."""
        if command.is_response:
            connection.answered(command)
            return
        if not command.is_oneway and not connection.codec_settled:
            connection.codec_settled = True  # in the first one, or not at all
            connection.signs = ACCESS_KEY in command.ext_fields
            if connection.signs and self.ignores_signatures:
                self._note_signed(connection, command)
        if error is not None:
            self._refuse(connection, command, error)
            return
        refusal = self._refused.get(command.code)
        if refusal is not None:
            self._refuse(connection, command, refusal)
            return
        send = self._send
        if send is not None and command.code in self._send_codes:
            send.request(connection, command)
            return
        if send is not None and send.gathering:
            send.commit()
        handler = self.handlers.get(command.code)
        if handler is None:
            self._note_unknown(connection, command)
            why = f" request type {command.code} not supported"
            response = command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, why)
            self._echo_codec(command, response)
            connection.reply(command, response)
            return
        if self._has_large_body(command):
            self._refuse(connection, command, self._too_large(command))
            return
        self._run(handler, connection, command)

    # Before anything is handled

    def _checked(
        self, access: AccessControl | None, connection: Connection, frame: RawFrame
    ) -> CheckedFrame:
        """Ask access control about a frame; None: the peer may do everything."""
        original = frame.original if isinstance(frame, CheckedFrame) else frame
        try:
            command = decode_command(original)
        except BadFrameError as error:
            return CheckedFrame.of(original, None, error)
        if access is None or command.is_response:
            return CheckedFrame.of(original, command)
        try:
            if self._has_large_body(command):
                raise self._too_large(command)  # before a check reads it
            access.check(connection, command)
        except Exception as error:
            return CheckedFrame.of(original, command, error)
        return CheckedFrame.of(original, command)

    def _has_large_body(self, command: RemotingCommand) -> bool:
        """Return whether a handler would have to read more than it may."""
        return (
            len(command.body) > self._body_max
            and command.code in self.handlers
            and command.code not in MESSAGE_BODIES
        )

    def _too_large(self, command: RemotingCommand) -> RemoteProtocolError:
        why = f"the body has {len(command.body)} bytes, at most {self._body_max} are read"
        return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)

    def _refuse(self, connection: Connection, command: RemotingCommand, error: Exception) -> None:
        if command.code not in self.codes:
            self._note_unknown(connection, command)
        response = self._error_reply(command, error)
        self._audit(connection, command, response)
        self._echo_codec(command, response)
        connection.reply(command, response)

    def _count_unseen(self, frames: list[RawFrame]) -> None:
        """Count what fast paths were not shown of frames that they took."""
        traffic = self._stats.frames_in.get(frames[0].serialize_type)
        if traffic is not None:
            traffic.bytes += unseen_size(frames)

    def _note_unknown(self, connection: Connection, command: RemotingCommand) -> None:
        """Count a code that has no handler, and log it once for an address."""
        self._stats.protocol_errors["unknown_code"] += 1
        if self._is_new(command.code, connection):
            log.info(
                "%s asks for code %d, which is not built (client of version %d): answered 3",
                connection.remote_address,
                command.code,
                command.version,
            )

    def _note_signed(self, connection: Connection, command: RemotingCommand) -> None:
        """Log once for an account and an address that a signature is not looked at."""
        account = shown(str(command.ext_fields[ACCESS_KEY]))
        if self._is_new(account, connection):
            log.warning(
                "%s signs its requests as %s, and nobody checks that: there is no access control "
                "here",
                connection.remote_address,
                account,
            )

    def _is_new(self, what: int | str, connection: Connection) -> bool:
        """Return whether an address is told for the first time to do something, and note it."""
        told = what, connection.remote_address.rpartition(":")[0]
        if told in self._logged or len(self._logged) >= LOGGED_MAX:
            return False
        self._logged.add(told)
        return True

    def _run(self, handler: Handler, connection: Connection, request: RemotingCommand) -> None:
        started = self._clock.monotonic()
        try:
            result = handler(connection, request)
        except Exception as error:
            result = self._error_reply(request, error)
        if result is None or isinstance(result, RemotingCommand):
            self._answer(connection, request, result, started)
            return
        tasks, limit = self._tasks, self._waiting_max
        if request.code in POLLS:  # they wait for messages, and keep nobody from the loop
            tasks, limit = self._polls, limit + PLACES_MAX
        if len(tasks) >= limit:
            result.close()
            why = f"{OVERLOAD}, {limit} requests wait; queryThreadPoolQueueCapacity"
            full = refusal(self._stats, KINDS.get(request.code, "other"), "queue_full", why)
            self._answer(connection, request, self._error_reply(request, full), started)
        else:
            task = asyncio.ensure_future(self._wait(result, connection, request, started))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _wait(
        self,
        answer: Coroutine[Any, Any, Response],
        connection: Connection,
        request: RemotingCommand,
        started: float,
    ) -> None:
        connection.park(1)
        try:
            result = await answer
        except Exception as error:
            result = self._error_reply(request, error)
        finally:
            connection.park(-1)
        self._answer(connection, request, result, started)

    def _answer(
        self, connection: Connection, request: RemotingCommand, response: Response, started: float
    ) -> None:
        outcome = "ok" if response is None or response.code == ResponseCode.SUCCESS else "error"
        self._stats.request(request.code, outcome).observe(self._clock.monotonic() - started)
        self._audit(connection, request, response)
        if response is not None:
            self._echo_codec(request, response)
            connection.reply(request, response)

    def _audit(self, connection: Connection, request: RemotingCommand, response: Response) -> None:
        if self.audit is not None and request.code in self.audit.codes:
            self.audit.note(connection, request, response)

    @staticmethod
    def _error_reply(request: RemotingCommand, error: Exception) -> RemotingCommand:
        if isinstance(error, RemoteProtocolError):
            return request.reply(error.response_code, error.remark[:REMARK_MAX])
        log.error("request %d failed", request.code, exc_info=error)
        why = f"{type(error).__name__}: {error}"[:REMARK_MAX]
        return request.reply(ResponseCode.SYSTEM_ERROR, why)

    @staticmethod
    def _echo_codec(request: RemotingCommand, response: RemotingCommand) -> None:
        offered = request.ext_fields.get(CODEC_FIELD)
        if offered == CODEC_OFFER and request.serialize_type == SerializeType.JSON:
            response.ext_fields[CODEC_FIELD] = CODEC_OFFER

    async def stop(self, *, limit_s: float = STOP_LIMIT_S) -> None:
        """Let the requests that still wait be answered; end those that take longer."""
        tasks = self._tasks | self._polls
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=limit_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

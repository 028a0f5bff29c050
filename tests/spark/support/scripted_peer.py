"""A peer on loopback that answers from a script, in threads of its own: for blocking clients.

    with ScriptedPeer(lambda request: request.reply(0)) as peer:
        client = BlockingClient(ConnectionSettings((peer.address,)))

An answer is a command, raw bytes, several of either, or nothing; CLOSE ends the connection there.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.frame import BadFrameError, FrameDecoder
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.support.patience import LIMIT_S

CLOSE: Final = object()
Said = RemotingCommand | bytes | object | None
Script = Callable[[RemotingCommand], Said | Iterable[Said]]


class ScriptedPeer:
    """Listens until the block ends; what it was asked is in `requests`."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.requests: list[RemotingCommand] = []
        self.connection_count = 0
        self.on_close: Callable[[], None] = lambda: None
        """Called after the script has closed a connection."""
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close everything; connections of clients end."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def cut(self) -> None:
        """Close all connections, go on listening."""
        for stream in self._open:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            stream.close()
        self._open.clear()

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="skylarkmq-test-peer", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopped:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            self.connection_count += 1
            self._open.append(stream)
            self._spawn(self._serve, stream)

    def _serve(self, stream: socket.socket) -> None:
        decoder = FrameDecoder()
        with contextlib.suppress(OSError, ValueError, BadFrameError):
            if self._tls is not None:
                stream = self._tls.wrap_socket(stream, server_side=True)
                self._open.append(stream)
            while data := stream.recv(65536):
                for frame in decoder.feed(data):
                    request = decode_command(frame)
                    self.requests.append(request)
                    if not self._say(stream, self.script(request)):
                        return
        with contextlib.suppress(OSError):
            stream.close()

    def _say(self, stream: socket.socket, said: Said | Iterable[Said]) -> bool:
        """Send what the script says; False when the connection ends."""
        if said is CLOSE:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            stream.close()
            self.on_close()
            return False
        if isinstance(said, bytes):
            stream.sendall(said)
        elif isinstance(said, RemotingCommand):
            stream.sendall(encode_command(said))
        elif isinstance(said, Iterable):
            return all(self._say(stream, part) for part in said)
        return True

"""Handshakes and records that no honest client sends: each costs its own connection alone.

A flight of the handshake, or a message after it, is changed: bits, cuts, pieces left out or twice,
noise. `make faults` makes many more of them. A failure names the seed (SKYLARKMQ_SEED=n).
"""

from __future__ import annotations

import ssl
from collections import Counter
from random import Random

import pytest

from skylarkmq.broker.net.tls import HANDSHAKE_LIMIT_S
from skylarkmq.protocol.command import RemotingCommand, encode_command
from tests.broker.net.tls_rig import Client, Rig
from tests.support.certificates import Authority
from tests.support.crash_explorer import seeds
from tests.support.manual_clock import settle

COUNT = 300
FULL_COUNT = 20_000
FRAME = encode_command(RemotingCommand.request(34, {"n": "1"}, b"body" * 100, opaque=1))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def spoilt(data: bytes, rng: Random) -> bytes:
    """The bytes with one thing wrong; the first byte stays that of TLS."""
    place = rng.randrange(1, len(data))
    match rng.randrange(6):
        case 0:
            changed = bytearray(data)
            for _ in range(rng.randint(1, 8)):
                changed[rng.randrange(1, len(data))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case 1:
            return data[:place]
        case 2:
            return data[:place] + data[min(place + rng.randint(1, 40), len(data)) :]
        case 3:
            return data[:place] + data
        case 4:
            return data[:place] + rng.randbytes(rng.randint(1, 2000))
        case _:  # a length that promises more, or less
            return data[:3] + rng.randbytes(2) + data[5:]


async def attack(rig: Rig, authority: Authority, seed: int) -> str:
    """Spoil one flight of a connection and return how it ended."""
    rng = Random(seed)
    context = authority.client_context(with_certificate=rng.random() < 0.3)
    if rng.random() < 0.5:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    client = Client(context)
    socket, connection = rig.connect(f"192.0.2.{seed % 200}")
    target, data = rng.randrange(3), client.flight()
    for number in range(4):
        if not data:
            break
        is_target = number == target
        data = spoilt(data, rng) if is_target else data
        while data and not socket.ended:
            size = rng.randint(1, len(data))
            socket.protocol.data_received(data[:size])
            data = data[size:]
            await settle(2)
        if is_target or socket.ended:
            break
        data = client.flight(socket.take_written())
        if client.is_open:
            data += client.send(FRAME)
    await settle(2)
    left_open = not socket.ended
    if left_open and rng.random() < 0.5:
        rig.clock.advance(HANDSHAKE_LIMIT_S)
    elif left_open and socket.protocol.eof_received() is False:
        socket.close()
    socket.protocol.connection_lost(None)
    assert connection.closed
    return "open" if left_open else "ended"


async def _attack_all(authority: Authority, all_seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    rig = Rig(authority.server_context("broker.example", wants_client=False))
    for seed in all_seeds:
        try:
            seen[await attack(rig, authority, seed)] += 1
        except Exception as error:
            raise AssertionError(f"replay with SKYLARKMQ_SEED={seed}") from error
        assert rig.gate._under_way_count == 0 and rig.gate.open_count == 0, seed
        assert rig.clock.pending_count == 0 and not rig.gate._turns, seed
        for frames in rig.owner.handled:
            assert all(frame.body == b"body" * 100 for frame in frames), seed
        rig.owner.handled.clear()
        rig.owner.gone.clear()
    honest, _ = rig.connect()
    client = Client(authority.client_context())
    await rig.shake_hands(honest, client)
    honest.protocol.data_received(client.send(FRAME))
    assert len(rig.owner.handled) == 1
    return seen


async def test_spoilt_handshakes(authority: Authority) -> None:
    seen = await _attack_all(authority, seeds(COUNT))
    assert len(seeds(COUNT)) == 1 or min(seen["open"], seen["ended"]) > COUNT // 10, seen


@pytest.mark.fault
async def test_many_spoilt_handshakes(authority: Authority) -> None:
    await _attack_all(authority, seeds(FULL_COUNT))

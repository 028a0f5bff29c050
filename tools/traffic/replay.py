"""The command `skylarkmq replay`.

The client that sends makes opaque numbers, signatures and codec anew. What cannot be sent without
what was left out of the recording is not sent, and counted. A send whose body was left out gets one
of the same size.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.instance import Client, services_of
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.tools.connection import Change, Session, changes, online
from skylarkmq.tools.local.addresses import host_and_port
from skylarkmq.tools.output import Columns, Output, ProgressBar
from skylarkmq.tools.running import EXIT_CODES, FAILED
from skylarkmq.tools.traffic.recording import MASK, SIGNED_BY, Recorded, name_of, read

IN_FLIGHT_MAX: Final = 256
SHOWN_MAX: Final = 100
LONG_S: Final = 30.0
"""A pull may wait that long at the broker."""
PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
SYS_FLAG_FIELDS: Final = {
    int(RequestCode.SEND_MESSAGE): "sysFlag", int(RequestCode.SEND_MESSAGE_V2): "f",
}  # fmt: skip
"""Sends of one message, whose body may be any bytes, and the field with its compression."""
CODEC_FIELD: Final = "skylarkmq.codec"
"""Our clients' offer of another codec, which is a matter of each connection."""
COLUMNS: Final[Columns] = {
    "requests": "requests", "same answer": "same", "other answer": "different",
    "no answer": "failed", "no answer was recorded": "unrecorded", "one-way": "oneway",
    "not sent": lambda row: ", ".join(f"{n} {why}" for why, n in row["skipped"].items()) or 0,
}  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """What came of a replay."""

    counts: Counter[str] = field(default_factory=Counter[str])
    skipped: Counter[str] = field(default_factory=Counter[str])
    differences: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def differs(self, kind: str, request: Recorded, got: int | None, why: str | None) -> None:
        """Note another answer than the recorded one, or none."""
        self.counts[kind] += 1
        if len(self.differences) < SHOWN_MAX:
            self.differences.append(
                {
                    "request": request.number, "name": name_of(request.code),
                    "recorded": request.answer, "got": got, "remark": why,
                }
            )  # fmt: skip

    def row(self) -> dict[str, Any]:
        """Return it for programs."""
        names = ("requests", "same", "different", "failed", "unrecorded", "oneway")
        return {
            **{name: self.counts[name] for name in names},
            "skipped": {why: count for why, count in self.skipped.items() if count},
            "differences": self.differences,
        }


@click.command(epilog=EXIT_CODES)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--to", "targets", required=True, multiple=True, metavar="[RECORDED=]HOST:PORT",
              help="The server that gets the requests; of a recording with several servers, each "
              "with the recorded one that it stands for. What others got is not sent.")  # fmt: skip
@click.option("--speed", type=click.FloatRange(min=0), default=1.0, show_default=True,
              help="Times the recorded pace; 0: as fast as they are answered.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N requests.")
@changes
@online
def replay(
    session: Session,
    change: Change,
    file: Path,
    targets: tuple[str, ...],
    speed: float,
    count: int | None,
) -> None:
    """Send the requests of a recording FILE to a server, and compare the codes of the answers.

    They change there what they changed when they were recorded: messages are stored, offsets move.
    The account is that of --access-key. Exit code 1 when an answer has another code, or is missing.
    """
    recorded = read(file)
    places = _places(targets, sorted({request.to for request in recorded}))
    requests = [request for request in recorded if request.to in places][:count]
    named = ", ".join(sorted(set(places.values())))
    if not change.allowed(f"send {len(requests)} requests to {named}"):
        return

    async def work(client: Client) -> int:
        outcome = Outcome()
        outcome.skipped["other server"] += sum(each.to not in places for each in recorded)
        try:
            await _send(client, session.timeout, requests, places, speed, outcome)
        finally:  # interrupted, it says what it did until then
            _report(session.output, outcome)
        return FAILED if outcome.counts["different"] or outcome.counts["failed"] else 0

    first = next(iter(places.values()))
    replace(session, namesrv=first, origin="--to").run(work)


def _report(output: Output, outcome: Outcome) -> None:
    output.one(outcome.row(), COLUMNS)
    if output.is_table:
        for each in outcome.differences:
            click.echo(
                f"request {each['request']}, {each['name']}: recorded {each['recorded']}, got "
                f"{each['got']} {each['remark'] or ''}".rstrip()
            )


def _places(targets: tuple[str, ...], recorded: list[str]) -> dict[str, str]:
    """Return where the requests of each recorded server go."""
    places: dict[str, str] = {}
    for text in targets:
        before, equals, target = text.rpartition("=")
        host_and_port(target, "--to")
        if not equals and len(recorded) > 1:
            raise click.BadParameter(
                f"the recording is of several servers ({', '.join(recorded)}): write "
                f"{recorded[0]}={target}",
                param_hint="--to",
            )
        if equals and before not in recorded:
            known = ", ".join(recorded) or "none"
            raise click.BadParameter(
                f"the recording has no requests to {before}, it has those to {known}",
                param_hint="--to",
            )
        places.update({before: target} if equals else dict.fromkeys(recorded or [""], target))
    return places


async def _send(
    client: Client,
    timeout_s: float,
    requests: list[Recorded],
    targets: dict[str, str],
    speed: float,
    outcome: Outcome,
) -> None:
    """Send requests at their times, at most IN_FLIGHT_MAX at once."""
    services = services_of(client)
    begun_s = services.clock.monotonic()
    first_ms = requests[0].at_ms if requests else 0.0
    places = asyncio.Semaphore(IN_FLIGHT_MAX)
    done = 0

    async def one(request: Recorded, command: RemotingCommand) -> None:
        nonlocal done
        to = targets[request.to]
        try:
            if request.flag & ONEWAY_FLAG:
                await services.remoting.post(to, command)
                outcome.counts["oneway"] += 1
                return
            limit_s = timeout_s + (LONG_S if request.code in PULLS else 0)
            answer = await services.remoting.call(to, command, limit_s)
            if request.answer is None:
                outcome.counts["unrecorded"] += 1
            elif answer.code == request.answer:
                outcome.counts["same"] += 1
            else:
                outcome.differs("different", request, answer.code, answer.remark)
        except RocketMQError as error:
            if request.answer is None:
                outcome.counts["unrecorded"] += 1
            else:
                outcome.differs("failed", request, None, str(error))
        finally:
            places.release()
            done += 1
            progress("replay", done, len(requests))

    with ProgressBar(counts=True) as progress:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                outcome.counts["requests"] += 1
                command = command_of(request)
                if isinstance(command, str):
                    outcome.skipped[command] += 1
                    continue
                if speed:
                    due_s = (request.at_ms - first_ms) / 1000 / speed
                    wait_s = begun_s + due_s - services.clock.monotonic()
                    await asyncio.sleep(max(0.0, wait_s))
                await places.acquire()
                group.create_task(one(request, command))


def command_of(request: Recorded) -> RemotingCommand | str:
    """Return the request to send, or why it cannot be sent."""
    own = (*SIGNED_BY, CODEC_FIELD)
    fields = {name: value for name, value in request.fields.items() if name not in own}
    if MASK in fields.values():
        return "secret left out"
    body = request.body
    if body is None and request.body_size:
        name = SYS_FLAG_FIELDS.get(request.code)
        if name is None or fields.get("m" if name == "f" else "batch") == "true":
            return "body left out"
        body = b"x" * request.body_size
        flag = fields.get(name, "0")
        if flag.isdigit():  # what takes the body's place is not compressed
            fields[name] = str(int(flag) & ~MessageSysFlag.COMPRESSED_FLAG)
    is_oneway = bool(request.flag & ONEWAY_FLAG)
    return RemotingCommand.request(request.code, fields, body or b"", oneway=is_oneway)

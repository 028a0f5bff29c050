"""The commands `skylarkmq cluster ...`: how it is, and who leads."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import Any, Final

import click

from skylarkmq.client.admin import Admin, BrokerStatus, ClusterStatus, Problem, ReplicaStatus
from skylarkmq.client.admin.status import BEHIND_MAX, DISK_MAX
from skylarkmq.client.errors import NotSupported, RequestTimeout, RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.tools.connection import Change, Session, changes, online
from skylarkmq.tools.moments import age_text, now
from skylarkmq.tools.output import Columns, Output, Parts, Row, release_text, told_once, visible
from skylarkmq.tools.running import EXIT_CODES, FAILED, fail, run
from skylarkmq.tools.watching import Watch, watched

SERVERS: Final[Columns] = {
    "NAME SERVER": "address",
    "KNOWS": lambda row: len(row["brokers"]),
    "ERROR": "error",
}  # fmt: skip
PROCESSES: Final[Columns] = {
    "CLUSTER": "cluster", "BROKER": "broker",
    "ROLE": lambda row: "master" if row["role"] == "master" else f"slave {row['broker_id']}",
    "ADDRESS": "address", "VERSION": "version",
    "LOG END": "log_end", "BEHIND": lambda row: None if row["role"] == "master" else row["behind"],
    "DISK": lambda row: None if row["disk_used"] is None else f"{row['disk_used']:.0%}",
}  # fmt: skip
NO_ANSWER: Final[Columns] = {"OF": "subject", "ERROR": "text"}
SETS: Final[Columns] = {
    "BROKER": "broker", "REPLICA": "replica", "ID": "broker_id", "STATE": "state", "TERM": "term",
    "IN SYNC": "in_sync", "CONFIRMED": "confirmed", "ETCD": "is_engine_reachable",
}  # fmt: skip
ASK_EVERY_S: Final = 1.0
PROBLEMS: Final[Columns] = {"KIND": "kind", "OF": "subject", "WHAT": "text", "CURE": "cure"}

NO_PROBLEM: Final = (
    "nothing found: name servers and brokers answer, slaves keep up, disks have room"
)


@click.group(epilog=EXIT_CODES)
def cluster() -> None:
    """The cluster: how it is, who leads, taking load off a broker."""


@cluster.command("status", epilog=EXIT_CODES)
@watched
@online
def status(session: Session, watch: Watch) -> None:
    """Show every name server and every broker process, slaves too, as it answers now."""

    def show(found: ClusterStatus, output: Output, at: datetime) -> None:
        fields = status_json(found)
        sets = [
            {"broker": each.name, **one.failover.to_json()}
            for each in found.brokers
            for one in each.replicas
            if one.failover is not None
        ]
        errors: list[dict[str, Any]] = [
            {"subject": f"{row['broker']} ({row['role']})", "text": row["error"]}
            for row in fields["brokers"]
            if row["error"] is not None
        ]
        parts: Parts = {
            "Name servers": (fields["name_servers"], SERVERS),
            "Brokers": (
                fields["brokers"],
                {**PROCESSES, "UP": lambda row: _up(row["started_at"], at)},
            ),
            "No answer": (told_once(errors, "text"), NO_ANSWER),
            "Replicas that elect their master": (sets, SETS),
        }
        output.parts(fields, parts)

    async def work(client: Client) -> None:
        async with Admin(client=client, timeout=session.timeout) as admin:
            await watch.look(
                session,
                admin.cluster_status,
                lambda found, output: show(found, output, now(client)),
            )

    session.run(work, open_ended=watch.open_ended)


def _up(started_at: str | None, at: datetime) -> str | None:
    """Return how long a broker runs, by this machine's clock."""
    return None if started_at is None else age_text(at - datetime.fromisoformat(started_at))


def status_json(found: ClusterStatus) -> dict[str, Any]:
    """Return name servers and broker processes as programs get them."""
    servers: Any = found.to_json()["name_servers"]
    processes = [_process(each, one) for each in found.brokers for one in each.replicas]
    return {"name_servers": servers, "brokers": processes}


def _process(broker: BrokerStatus, one: ReplicaStatus) -> Row:
    fields = one.to_json()
    return {
        "cluster": broker.cluster,
        "broker": broker.name,
        "role": "master" if one.is_master else "slave",
        "behind": broker.behind(one),
        **fields,
        "version": release_text(one.version),
    }


@cluster.command("health", epilog=EXIT_CODES)
@click.option(
    "--behind-max", type=click.IntRange(0), default=BEHIND_MAX, show_default=True,
    help="Bytes that a slave may lack.",
)  # fmt: skip
@click.option(
    "--disk-max", type=click.FloatRange(0, 1), default=DISK_MAX, show_default=True,
    help="Part of a disk that may be used.",
)  # fmt: skip
@click.option("--exit-when-ready", is_flag=True, help="Look until nothing is wrong, then end.")
@watched
@online
def health(
    session: Session, watch: Watch, behind_max: int, disk_max: float, exit_when_ready: bool
) -> None:
    """Say what is wrong with name servers and brokers, each with its cure. Exit code 1 then.

    A quick look for scripts: who does not answer, slaves behind, full disks. `doctor` looks at
    topics, groups, clocks and this machine, too; `skylarkmq health` asks one broker whether it is
    ready. Name servers forget a broker whose process is gone, and so it is not missed here.

    With --exit-when-ready it waits for a cluster that starts: it ends with 0 once nothing is found,
    and with 1 after --times looks. A cluster without brokers is not ready.
    """
    watch = Watch(watch.on or exit_when_ready, watch.every_s, watch.times)

    async def ask() -> tuple[Problem, ...]:
        try:
            async with session.client() as one, Admin(client=one, timeout=session.timeout) as admin:
                return await admin.cluster_health(behind_max=behind_max, disk_max=disk_max)
        except RocketMQError as error:
            if not watch.on:
                raise
            cure = "Start the name server, or see --namesrv and --context"
            return (Problem("name_server_unreachable", session.namesrv, str(error), cure),)

    def show(found: tuple[Problem, ...], output: Output) -> None:
        rows: list[Row] = [each.to_json() for each in found]
        if output.is_table:
            rows = told_once(rows, "text")
        output.rows(rows, PROBLEMS, none=NO_PROBLEM)

    def enough(found: tuple[Problem, ...]) -> bool:
        return exit_when_ready and not found

    async def work() -> int:
        return FAILED if await watch.look(session, ask, show, enough) else 0

    asked = f"{session.namesrv} ({session.origin})"
    run(work, asked=asked, open_ended=watch.open_ended and not exit_when_ready)


@cluster.command("drain", epilog=EXIT_CODES)
@click.argument("broker")
@click.option("--id", "broker_id", type=click.IntRange(0), help="Of the process; else the master.")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(0, 3600, min_open=True), metavar="SECONDS",
    help="Ask until it is drained, at most so long; else it only begins.",
)  # fmt: skip
@changes
@online
def drain(
    session: Session, change: Change, broker: str, broker_id: int | None, wait_s: float | None
) -> None:
    """Take the load off a broker before its process or machine is worked on.

    Of replicas that elect their master, another one leads then. Of other brokers, Apache's too,
    name servers tell producers not to send to the master, which they know within 30 s. A broker of
    SkylarkMQ whose topics are on others, too, moves its consumers then. `undrain` takes it back.

    With --wait it ends when a stop is not seen by clients, with 1 when that is not so in time, or
    cannot be: of a broker that is alone, and of Apache's. What has begun goes on. `skylarkmq drain`
    does the same on the broker's machine, without an account: for scripts that stop it.
    """
    if not change.allowed(f"take the load off {broker}"):
        return

    async def work(admin: Admin) -> int:
        done = await admin.drain(broker, broker_id=broker_id)
        texts = {
            "switched_over": f"{done.master} leads {broker} now",
            "writes_stopped": f"producers are told not to send to {broker} "
            f"({done.topic_count} topics), which they know within 30 s; stop it when groups have "
            f"read it to its end, or its page /drainz says drained. "
            f"`skylarkmq cluster undrain {broker}` takes it back",
            "nothing_to_do": f"this process of {broker} is no master: it has no load to give away",
        }
        session.output.done({"action": "drained", **done.to_json()}, texts[done.how])
        if wait_s is None or done.how != "writes_stopped":
            return 0
        return await _until_drained(admin, broker, broker_id, wait_s)

    session.administer(work)


async def _until_drained(admin: Admin, broker: str, broker_id: int | None, wait_s: float) -> int:
    """Ask a broker until it is drained, with progress on standard error; return the exit code."""
    told = "it has not said what it waits for"
    try:
        async with asyncio.timeout(wait_s):
            while True:
                state = await admin.drain_progress(broker, broker_id=broker_id)
                if state.phase == "drained":
                    break
                if state.phase in ("impossible", "serving"):
                    why = state.why or "the drain was undone, or the broker has started anew"
                    return fail(f"{broker} does not become drained: {why}", FAILED)
                told = _progress(told, f"{state.phase}: {state.waits_for}")
                await asyncio.sleep(ASK_EVERY_S)
    except NotSupported as error:
        return fail(error, FAILED)
    except RequestTimeout:  # it is a TimeoutError, too
        raise
    except TimeoutError:
        return fail(f"{broker} is not drained within {wait_s:g} s: {told}", FAILED)
    stays = f"; no other broker takes {state.stay_count} topics, which stay"
    text = f"drained: {visible(state.why) or f'{state.topic_count} topics have moved'}"
    click.echo(text + (stays if state.stay_count else ""), err=True)
    return 0


def _progress(told: str, text: str) -> str:
    """Tell what is waited for, once whatever its figures; return it."""
    if re.sub(r"\d", "", text) != re.sub(r"\d", "", told):
        click.echo(visible(text), err=True)
    return text


@cluster.command("undrain", epilog=EXIT_CODES)
@click.argument("broker")
@changes
@online
def undrain(session: Session, change: Change, broker: str) -> None:
    """Let producers send to a broker again: all its topics become writable."""
    if not change.allowed(f"let producers send to {broker} again", harmless=True):
        return

    async def work(admin: Admin) -> None:
        count = await admin.undrain(broker)
        fields = {"action": "undrained", "broker": broker, "topic_count": count}
        session.output.done(fields, f"producers may send to {broker} again ({count} topics)")

    session.administer(work)


def _replica(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


@cluster.command("failover", epilog=EXIT_CODES)
@click.argument("broker")
@click.option(
    "--to",
    metavar="ID",
    callback=_replica,
    help="Which one leads: broker id or replica id; else the one with the most.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="The last resort: it leads although messages may be lost; needs --to.",
)
@changes
@online
def failover(
    session: Session, change: Change, broker: str, to: int | str | None, accept_loss: bool
) -> None:
    """Let another replica of a set lead. Nothing is lost, unless you accept it.

    For replicas of SkylarkMQ that elect their master (controllerEndpoints). --accept-loss is for a
    set whose replicas in sync are all lost for good; --to may then also be a replica's host:port.
    """
    if accept_loss and to is None:
        raise click.UsageError("--accept-loss needs --to: which replica leads")
    who = "the replica with the most of the log" if to is None else f"replica {to}"
    loss = ", although messages that were acknowledged may be lost" if accept_loss else ""
    if not change.allowed(f"let {who} lead {broker}{loss}"):
        return

    async def work(admin: Admin) -> None:
        if accept_loss and to is not None:
            forced = await admin.failover(broker, on=to, accept_loss=True)
            text = (
                f"{forced.master} leads {broker} by force, term {forced.term}; messages at risk: "
                f"{forced.messages_at_risk}"
            )
            session.output.done({"action": "failed_over", **forced.to_json()}, text)
            return
        led = await admin.switch_over(broker, to)
        text = f"{led.master} leads {broker} now, term {led.term}"
        session.output.done({"action": "switched_over", **led.to_json()}, text)

    session.administer(work)

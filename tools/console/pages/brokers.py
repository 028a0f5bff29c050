"""One broker: what it counts, and its settings while it runs."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from starlette.responses import Response

from skylarkmq.client.errors import IllegalState, NotFound
from skylarkmq.tools.config import changes_of, is_ignored
from skylarkmq.tools.console.change import Plan
from skylarkmq.tools.console.text import BadInput, segment
from skylarkmq.tools.console.visit import Visit
from skylarkmq.tools.output import Row
from skylarkmq.tools.secret_options import masked

SWITCHES: Final = ("true", "false")
NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
UNSET: Final = ("", "off")
"""What SkylarkMQ takes for a number that may be left open."""


async def broker(visit: Visit) -> Response:
    """Show the settings of a broker's master, and what it counts."""
    name, admin, wanted = visit.path("broker"), await visit.admin(), visit.asked("q").casefold()
    settings, runtime = await asyncio.gather(_settings(visit, name), admin.broker_runtime(name))
    return visit.page(
        "broker.html",
        broker=name,
        shown=[row for row in settings if wanted in row["key"].casefold()],
        runtime=sorted(runtime.values.items()),
        q=visit.asked("q"),
    )


async def edit_setting(visit: Visit) -> Response:
    """Show the form that changes a setting."""
    name, key = visit.path("broker"), visit.path("key")
    return visit.page("setting.html", broker=name, row=await _setting(visit, name, key))


async def set_setting(visit: Visit) -> Plan:
    """Change a setting while the broker runs; it writes it into its own file."""
    name, key = visit.path("broker"), visit.path("key")
    value = await visit.field("value")
    (row,) = changes_of([await _setting(visit, name, key)], {key: value})
    if not visit.is_sure:
        _refuse_other_kind(key, row["before"], value)

    async def do() -> Response:
        await (await visit.access.admin()).set_broker_config(name, {key: value})
        if is_ignored(row, (await _setting(visit, name, key))["value"]):
            raise IllegalState(
                f"{name} did not refuse {key}, and did not take it",
                hint="Is it a setting that may be changed there, and the value one of its kind?",
            )
        return visit.go(f"/brokers/{segment(name)}", q=key, done="updated")

    what = f"Set {key} of {name} to “{row['value']}” (now “{row['before']}”)"
    notes = ("The broker writes it into its own file. Some keys count from its next start on.",)
    return Plan("broker.set", f"{name} {key}", what, do, f"/brokers/{segment(name)}", notes)


def _refuse_other_kind(key: str, before: str, value: str) -> None:
    """Refuse what is no number where one is now, and the same for switches."""
    if before in SWITCHES and value.casefold() not in SWITCHES:
        raise BadInput(f"{key} is true or false, not {value[:40]!r}.")
    if NUMBER.fullmatch(before) and not NUMBER.fullmatch(value) and value not in UNSET:
        raise BadInput(f"{key} is a number now, {before}, and {value[:40]!r} is none.")


async def forget(visit: Visit) -> Plan:
    """Say no more that a broker is gone."""
    name, registered = visit.path("broker"), visit.access.history.registered

    async def do() -> Response:
        if not registered.forget(name):
            raise NotFound(f"no broker {name[:80]} is missed here")
        return visit.go("/", done="forgotten")

    note = "Nothing changes in the cluster. It is shown again once it is registered again."
    return Plan("broker.forget", name, f"Let the console forget {name}", do, "/", (note,))


async def _settings(visit: Visit, name: str) -> list[Row]:
    """Return all settings of a broker, secrets masked."""
    table = await (await visit.admin()).broker_config(name)
    return [
        {"of": name, "key": key, "value": masked(key, value)}
        for key, value in sorted(table.items())
    ]


async def _setting(visit: Visit, name: str, key: str) -> Row:
    for row in await _settings(visit, name):
        if row["key"] == key:
            return row
    raise NotFound(f"{name} has no setting {key[:80]}")

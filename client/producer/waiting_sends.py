"""Sends that are not on the wire, and what lets them go on; none has a task of its own:

    no route          by topic: one task asks for it, then all of the topic go on, in order
    no connection     by address: one task connects, then all for that broker leave, in order;
                      those whose queue gets another master meanwhile go there
    no knowledge      by address: one task asks the broker what it is, then all go on
    next try          by time: one timer for all; when due, one task per topic looks whether the
                      route has changed, then they go on
    its turn          by queue, with `strict_order`: it goes on when the one before it has ended

While sends wait for a route or a connection, later ones of that topic or broker wait after them.
A send whose time is over ends, whatever it waits for. Loop thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from heapq import heapify, heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from skylarkmq.client.errors import IllegalState, RocketMQError
from skylarkmq.client.services import Services
from skylarkmq.common.clock import TimerHandle
from skylarkmq.remoting.connection import Connection
from skylarkmq.remoting.waiting import within

if TYPE_CHECKING:
    from skylarkmq.client.producer.send_pipeline import Send, SendPipeline

log = logging.getLogger(__name__)
ROUTE_MAX_AGE_S: Final = 0.5
"""A try that is not the first asks the name server again unless the route is younger."""
ROUTE_WAIT_S: Final = 0.5
"""It waits that long for the answer at most; then it goes by the route that is known."""
DIAL_DOUBT_S: Final = 0.5
"""A broker that takes longer to be connected may have been replaced: the route is looked at."""
TICK_S: Final = 0.01
"""Next tries are due at multiples of it, so that many sends share a ring of the timer."""
STOPPED: Final = "the producer has stopped"
DEAD_MIN: Final = 64


class WaitingSends:
    """The waiting sends of one producer.

    Its size is one idea: whatever a send waits for, its time ends by one timetable.
    """

    def __init__(
        self, pipeline: SendPipeline, services: Services, default_topic_queues: int
    ) -> None:
        self._pipeline = pipeline
        self._services = services
        self._clock = services.clock
        self._loop = asyncio.get_running_loop()
        self._default_topic_queues = default_topic_queues
        self.routeless: dict[str, dict[Send, None]] = {}
        """Sends that wait for their route, by topic; read-only outside."""
        self.unconnected: dict[str, dict[Send, None]] = {}
        """Sends that wait for their connection, by address; read-only outside."""
        self._unknown: dict[str, dict[Send, None]] = {}
        self._again: dict[str, dict[Send, None]] = {}
        # (when, number, send, due): due for the next try, or at its end.
        self._timetable: list[tuple[float, int, Send, bool]] = []
        self._number = 0
        self._dead_count = 0
        self._timer: TimerHandle | None = None
        self._timer_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def await_route(self, send: Send) -> None:
        """Let the send go on when its topic's route is known."""
        topic = send.request.topic
        if self._park(send, self.routeless, topic):
            self._spawn(self._find_route(topic), f"route-{topic}")

    def await_connection(self, send: Send, address: str) -> None:
        """Let the send leave when there is a connection to `address`."""
        if self._park(send, self.unconnected, address):
            self._spawn(self._connect(address), f"connect-{address}")

    def await_peer(self, send: Send, address: str) -> None:
        """Let the send go on when the kind of the broker at `address` is known."""
        if self._park(send, self._unknown, address):
            self._spawn(self._ask(address), f"ask-{address}")

    def await_next_try(self, send: Send, wait_s: float) -> None:
        """Let the send go on after `wait_s` seconds."""
        if self._stopped:
            self._pipeline.end(send, IllegalState(STOPPED))
            return
        self._note_end(send)
        now_s = self._clock.monotonic()
        due_s = ceil((now_s + wait_s) / TICK_S) * TICK_S
        if due_s <= now_s:  # rounded away; a try in no time at all would be one of many
            due_s += TICK_S
        self._at(due_s, send, due=True)

    def await_turn(self, send: Send) -> None:
        """Let the send wait for those before it in the line of its queue."""
        if self._stopped:
            self._pipeline.end(send, IllegalState(STOPPED))
        else:
            self._note_end(send)

    def waits_for(self, send: Send) -> str:
        """Say what the send waits for."""
        topic = send.request.topic
        if send.place is not None:
            if send.place is self.routeless.get(topic):
                return f"the route of {topic} from {self._services.name_servers.text}"
            for address, place in (*self.unconnected.items(), *self._unknown.items()):
                if send.place is place:
                    return f"a connection to {address}"
        if self._pipeline.ordered.has_before(send):
            return "the sends before it to its queue"
        return "its next try"

    def forget(self, send: Send) -> None:
        """The send has ended; forget it."""
        if send.place is not None:
            send.place.pop(send, None)
            send.place = None
        self._dead_count += send.off_wire_count
        if self._dead_count > DEAD_MIN and self._dead_count * 2 > len(self._timetable):
            self._timetable = [entry for entry in self._timetable if not entry[2].is_ended]
            self._dead_count = 0
            heapify(self._timetable)

    def route_changed(self, topic: str) -> None:
        """Let the sends of the topic that wait for a broker look where their queue is now."""
        for places in (self.unconnected, self._unknown):
            for parked in list(places.values()):
                if any(send.request.topic == topic for send in parked):
                    self._loop.call_soon(self._look_again, topic, parked)

    async def stop(self) -> None:
        """End everything that waits, and the tasks."""
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [entry[2] for entry in sorted(self._timetable, key=lambda entry: entry[1])]
        self._timetable = []
        for send in waiting:
            if not send.is_ended and send.connection is None:
                self._pipeline.end(send, IllegalState(STOPPED))
        await asyncio.gather(*tasks, return_exceptions=True)

    # Inside

    def _park(self, send: Send, places: dict[str, dict[Send, None]], key: str) -> bool:
        """Put the send into the place of `key`; True when it is the first one there."""
        if self._stopped:
            self._pipeline.end(send, IllegalState(STOPPED))
            return False
        self._note_end(send)
        place = places.get(key)
        is_first = place is None
        if place is None:
            place = places[key] = {}
        place[send] = None
        send.place = place
        return is_first

    async def _find_route(self, topic: str) -> None:
        error: RocketMQError | None = None
        try:
            await self._services.routes.for_publish(topic, self._default_topic_queues)
        except RocketMQError as failure:
            error = failure
        finally:
            parked = self.routeless.pop(topic)
        for send in self._taken(parked):
            if error is None:
                self._pipeline.dispatch(send)
            else:
                self._pipeline.not_sent(send, error)

    async def _connect(self, address: str) -> None:
        error: RocketMQError | None = None
        connection: Connection | None = None
        dial = self._services.remoting.connection
        try:
            while connection is None:
                try:
                    connection = await within(self._clock, DIAL_DOUBT_S, dial(address))
                except TimeoutError:  # the attempt goes on
                    for topic in {send.request.topic for send in self.unconnected[address]}:
                        self._services.doubt(topic)
        except RocketMQError as failure:
            error = failure
        finally:
            parked = self.unconnected.pop(address)
        for send in self._taken(parked):
            if connection is not None:
                self._pipeline.depart(send, connection)
            elif error is not None:
                self._pipeline.not_sent(send, error)

    async def _ask(self, address: str) -> None:
        error: RocketMQError | None = None
        try:
            await self._services.peer(address)
        except RocketMQError as failure:
            error = failure
        finally:
            parked = self._unknown.pop(address)
        for send in self._taken(parked):
            if error is None:
                self._pipeline.dispatch(send)
            else:
                self._pipeline.not_sent(send, error)

    async def _go_on(self, topic: str) -> None:
        """Look at the route once more, then let the sends of `topic` try again."""
        try:
            routes = self._services.routes
            looking = routes.refresh(topic, max_age_s=ROUTE_MAX_AGE_S)
            await within(self._clock, ROUTE_WAIT_S, looking)
        except (RocketMQError, TimeoutError) as error:
            log.debug("route of %s not refreshed before a retry: %s", topic, error)
        finally:
            parked = self._again.pop(topic)
        for send in self._taken(parked):
            self._pipeline.dispatch(send)

    def _look_again(self, topic: str, parked: dict[Send, None]) -> None:
        mine = [send for send in parked if send.request.topic == topic]
        for send in self._taken(parked, mine):
            self._pipeline.dispatch(send)

    def _taken(
        self, parked: dict[Send, None], some: Iterable[Send] | None = None
    ) -> Iterable[Send]:
        """Yield the sends that waited at one place, or some, except those that end meanwhile."""
        for send in list(parked if some is None else some):
            if send.place is not parked:
                continue
            parked.pop(send, None)
            send.place = None
            if send.future.done():
                self._pipeline.abandon(send)  # its future was cancelled: nobody waits for it
            else:
                yield send

    # Time

    def _note_end(self, send: Send) -> None:
        if not send.off_wire_count:
            self._at(send.end_s, send, due=False)

    def _at(self, when_s: float, send: Send, *, due: bool) -> None:
        send.off_wire_count += 1
        self._number += 1
        heappush(self._timetable, (when_s, self._number, send, due))
        if self._timer is None or when_s < self._timer_s:
            self._arm(when_s)

    def _arm(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = when_s
        self._timer = self._clock.call_at(when_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic()
        while self._timetable and self._timetable[0][0] <= now_s:
            _, _, send, due = heappop(self._timetable)
            if send.is_ended:
                self._dead_count = max(self._dead_count - 1, 0)
                continue
            send.off_wire_count -= 1
            if send.connection is not None:
                continue  # on the wire: its connection keeps the time
            if due and now_s < send.end_s:
                topic = send.request.topic
                if self._park(send, self._again, topic):
                    self._spawn(self._go_on(topic), f"again-{topic}")
            else:
                self._pipeline.out_of_time(send)
        if self._timetable and self._timer is None:
            self._arm(self._timetable[0][0])

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"skylarkmq-send-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

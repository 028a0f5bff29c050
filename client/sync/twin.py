"""Blocking twins: the base of the facade's classes, and how their methods are made.

A class of the facade has an asynchronous twin, which does the work in the loop thread. `blocking`
gives the class a method for each public method of the twin. Such a method waits for the twin's. It
has the same arguments, the docstring without what is about tasks, and the same result, except that
an asynchronous object is replaced by its blocking twin. The class itself has what must differ. Type
checkers and editors read `__init__.pyi`, which is generated from the same classes, with the first
line of each docstring; `help` shows all of it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from types import FunctionType, TracebackType
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

from skylarkmq.client.consumer.handlers import acting_task
from skylarkmq.client.errors import ConsumerClosed, IllegalState
from skylarkmq.client.sync.portal import Portal

R = TypeVar("R")
T = TypeVar("T")
C = TypeVar("C", bound="type[Blocking]")

FUTURES: Final = ("asyncio.Future[", "concurrent.futures.Future[")
SECTIONS: Final = ("Args:", "Raises:")

in_callback: ContextVar[bool] = ContextVar("skylarkmq_in_callback", default=False)
"""Set in threads that run callbacks of an object that may be starting at the moment."""

_bound_classes: dict[type, type[Bound]] = {}
"""Of each asynchronous class whose objects calls return: the blocking one."""


class Startable(Protocol):
    """An asynchronous object that is started."""

    async def start(self) -> None:
        """Start; nothing happens when it is started."""
        ...


class Blocking:
    """Root of the facade's classes. Any thread."""

    _callbacks: ClassVar[tuple[str, ...]] = ()
    """Arguments that are plain functions of the application; each is called in a thread."""

    @property
    def _portal(self) -> Portal:
        raise NotImplementedError

    def _run(
        self,
        work: Callable[[Any], Coroutine[Any, Any, T]],
        take_back: Callable[[Any, T], object] | None = None,
    ) -> T:
        """Run a coroutine of the twin, and return its result or raise its error.

        Args:
            take_back: see `Portal.run`.
        """
        raise NotImplementedError

    def _call(self, work: Callable[[Any], T]) -> T:
        """Call a plain method of the twin in the loop thread."""
        raise NotImplementedError

    def _read(self, name: str) -> Any:
        """Return a property of the twin."""
        return self._call(lambda it: getattr(it, name))

    def _settled(
        self, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments for the loop thread.

        Functions of the application are called in a thread. What can be iterated only once is read
        here: reading it may block, and a twin is made a second time after a fork.
        """
        named = {
            name: in_thread(value) if name in self._callbacks and value else _read_out(value)
            for name, value in options.items()
        }
        return [_read_out(value) for value in args], named


class Started(Blocking):
    """An object that is started and stopped; its twin is made again after a fork."""

    _twin_class: ClassVar[Any]
    _when_stopped: ClassVar[type[IllegalState]] = IllegalState

    _own_portal: Portal

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._make_twin(self._twin_class, *self._settled(args, settings))

    def _make_twin(self, twin: Any, args: Sequence[Any], settings: dict[str, Any]) -> None:
        """Call `_hold` with what makes an object of the class `twin`."""
        raise NotImplementedError

    def _hold(self, portal: Portal, make: Callable[[], Startable]) -> None:
        """Make the twin now, so that a bad argument is refused here and not at `start`."""
        self._own_portal = portal
        self._make = make
        self._object: Any = make()
        self._starting = asyncio.Lock()
        self._generation = portal.generation
        self._started = False
        self._start_again = False
        self._stopped = False

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(lambda it: it.stop())

    @property
    def _portal(self) -> Portal:
        return self._own_portal

    def _current(self) -> Any:
        """Return the twin of this process, made anew after a fork; not started here."""
        portal = self._portal
        if self._generation != portal.generation:
            with portal.lock:
                if self._generation != portal.generation:
                    portal.keep(self._object)
                    self._object = self._make()
                    self._starting = asyncio.Lock()
                    self._start_again = self._started and not self._stopped
                    self._generation = portal.generation
        return self._object

    def _live(self) -> Any:
        """Return the twin, started if it was started before a fork."""
        if self._stopped and self._portal.closed:
            raise type(self)._when_stopped("it has stopped, and so has its client")
        current = self._current()
        if self._start_again and not in_callback.get():
            self._portal.run(self._start_once)
            self._start_again = False
        return current

    def _start(self) -> None:
        """Start it; threads that do so at the same time wait for the same end."""
        self._live()
        self._portal.run(self._start_once)
        self._started = True

    async def _start_once(self) -> None:
        async with self._starting:
            await self._object.start()

    def _stop(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """Stop it by `work`; in a child that has not used it there is nothing to stop."""
        self._stopped = True
        portal = self._portal
        if self._generation == portal.generation and portal.begun and not portal.closed:
            try:
                portal.run(lambda: work(self._object))
            except IllegalState:
                if not portal.closed:
                    raise
                # Another thread has stopped the client meanwhile, and with it this object.

    def _run(
        self,
        work: Callable[[Any], Coroutine[Any, Any, T]],
        take_back: Callable[[Any, T], object] | None = None,
    ) -> T:
        current = self._live()
        if take_back is None:
            return self._portal.run(lambda: work(current))
        return self._portal.run(lambda: work(current), lambda result: take_back(current, result))

    def _call(self, work: Callable[[Any], T]) -> T:
        current = self._live()
        return self._portal.call(lambda: work(current))

    def _future(self, work: Callable[[Any], asyncio.Future[T]]) -> concurrent.futures.Future[T]:
        """Start something of the twin whose end is waited for elsewhere."""
        current = self._live()
        return self._portal.future(lambda: work(current))


class Bound(Blocking):
    """An object that belongs to one loop: a message, a transaction, a scan.

    It does not outlive a fork.
    """

    def __init__(self, portal: Portal, twin: Any) -> None:
        self._its_portal = portal
        self._twin = twin
        self._generation = portal.generation

    def __repr__(self) -> str:
        return repr(self._twin)

    @property
    def _portal(self) -> Portal:
        if self._generation != self._its_portal.generation:
            raise IllegalState(f"this {type(self).__name__} belongs to the parent process")
        return self._its_portal

    def _run(
        self,
        work: Callable[[Any], Coroutine[Any, Any, T]],
        take_back: Callable[[Any, T], object] | None = None,
    ) -> T:
        twin: Any = self._twin
        if take_back is None:
            return self._portal.run(lambda: work(twin))
        return self._portal.run(lambda: work(twin), lambda result: take_back(twin, result))

    def _call(self, work: Callable[[Any], T]) -> T:
        return self._portal.call(lambda: work(self._twin))

    def _read(self, name: str) -> Any:
        return getattr(self._twin, name)  # a field, which changes in one step


def in_thread(
    function: Callable[[T], R], executor: Executor | None = None
) -> Callable[[T], Awaitable[R]]:
    """Return an async function that calls a plain one in a thread.

    The thread sees the context variables of the task. A task that is cancelled lets the thread go
    on: threads cannot be ended. Without `executor` it is one of the loop's.
    """

    def called(argument: T, task: asyncio.Task[Any] | None) -> R:
        in_callback.set(True)
        acting_task.set(task)
        try:
            return function(argument)
        except StopIteration as error:  # no future takes one
            raise RuntimeError("the function raised StopIteration") from error

    async def awaited(argument: T) -> R:
        context = copy_context()
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        return await loop.run_in_executor(executor, lambda: context.run(called, argument, task))

    return awaited


# The methods


def blocking(twin: type) -> Callable[[C], C]:
    """Return a decorator that gives a class the public methods of its asynchronous `twin`."""

    def decorate(cls: C) -> C:
        if issubclass(cls, Started):
            setattr(cls, "_twin_class", twin)  # noqa: B010 - the class is made here
            _add(cls, "__init__", _constructor, inspect.getattr_static(twin, "__init__"))
        elif issubclass(cls, Bound):
            _bound_classes[twin] = cls
        if hasattr(twin, "__anext__") and not hasattr(cls, "__next__"):
            _add(cls, "__iter__", _iterator, inspect.getattr_static(twin, "__aiter__"))
            _add(cls, "__next__", _step(twin), inspect.getattr_static(twin, "__anext__"))
        for name in dir(twin):
            if not (name.startswith("_") or hasattr(cls, name)):
                member = inspect.getattr_static(twin, name)
                if isinstance(member, property):
                    setattr(cls, name, _property(name, member))
                elif inspect.isfunction(member):
                    _add(cls, name, _method(name, member), member)
        return cls

    return decorate


def _add(cls: type, name: str, made: Callable[..., Any], member: Callable[..., Any]) -> None:
    """Give the class a method, with name, docstring and signature of the twin's."""
    method: Any = FunctionType(made.__code__, made.__globals__, name, None, made.__closure__)
    method.__qualname__, method.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
    method.__doc__ = blocking_doc(inspect.getdoc(member) or "")
    method.__signature__ = blocking_signature(member)
    setattr(cls, name, method)


def _constructor(self: Any, *args: Any, **settings: Any) -> None:
    Started.__init__(self, *args, **settings)


def _property(name: str, member: property) -> property:
    def read(self: Any) -> Any:
        return self._read(name)

    shown: Any = read
    shown.__signature__ = inspect.signature(member.fget or read)
    return property(read, doc=inspect.getdoc(member))


def _method(name: str, member: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls the twin's method of that name and waits for its end."""

    def start(self: Any) -> None:
        self._start()

    def stop(self: Any, *args: Any, **options: Any) -> None:
        def stopping(it: Any) -> Any:
            return it.stop(*args, **options)

        self._stop(stopping)

    def begin(self: Any, *args: Any, **options: Any) -> Any:
        def begun(it: Any) -> Any:
            return getattr(it, name)(*args, **options)

        return self._future(begun)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        settled, named = self._settled(args, options)

        def called(it: Any) -> Any:
            return getattr(it, name)(*settled, **named)

        found: Any = self._run(called) if waits else self._call(called)
        bound = _bound_classes.get(found.__class__)
        return found if bound is None else bound(self._portal, found)

    waits = inspect.iscoroutinefunction(inspect.unwrap(member))
    if name in ("start", "stop"):
        return start if name == "start" else stop
    answer = str(inspect.signature(member).return_annotation)
    return begin if answer.startswith(FUTURES[0]) else call


def _iterator(self: Any) -> Any:
    return self


def _step(twin: type) -> Callable[[Any], Any]:
    """Return what gives the next object of a twin that is iterated."""

    def following(it: Any) -> Any:
        return it.__anext__()

    def taken_back(it: Any, found: Any) -> None:
        it._take_back(found)

    take_back = taken_back if hasattr(twin, "_take_back") else None

    def step(self: Any) -> Any:
        try:
            return self._run(following, take_back)
        except (StopAsyncIteration, ConsumerClosed):
            raise StopIteration from None

    return step


def _read_out(value: Any) -> Any:
    once = isinstance(value, Iterable) and not isinstance(value, Collection)
    return list(value) if once else value  # pyright: ignore


def blocking_signature(member: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a blocking method: the twin's, with the futures of threads."""
    signature = inspect.signature(member)
    answer = signature.return_annotation
    if isinstance(answer, str):
        answer = answer.replace(*FUTURES)
    return signature.replace(return_annotation=answer)


def blocking_doc(text: str) -> str:
    """Return the first line of a docstring, and its parts about arguments and errors.

    The rest is about tasks, which a blocking method does not have.
    """
    first, *others = text.replace("`async ", "`").split("\n\n")
    return "\n\n".join([first, *(part for part in others if part.startswith(SECTIONS))])

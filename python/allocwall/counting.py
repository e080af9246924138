"""What a block of code asks of CPython's allocators: exact counts, for this block and this thread.

    with allocwall.count() as c:
        handle(request)
    print(c)

`calls` are requests that gave a block (malloc, calloc, realloc), `reallocs` those of them that resized one, `frees` blocks
given back, of which `older_frees` were not allocated in the block: before it, or on another thread. `bytes` is what was asked
for, a realloc's in full. `live_bytes` is what was allocated (or resized) in the block and not freed since, `peak_bytes` the
most of it at any moment. A request that fails is not counted.

Each is counted once, in the domain where it came in (raw, mem or obj), and in the size class of the bytes asked for: pymalloc's,
16 bytes apart, to 512, and powers of two above. Older frees have no class: their size isn't known.

Not counted, since it never asks an allocator: objects from a type's own free list (floats, small tuples, lists, dicts, frames and
others, by version), memory that was there already, what C libraries allocate by malloc themselves; and arenas, from which
pymalloc serves what is counted here.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple, TypeVar

if TYPE_CHECKING:
    from . import _native
else:
    try:
        from . import _native
    except ImportError as error:
        # Which interpreter it is says more than which symbol is missing.
        _why = (
            "it is for CPython, not %s" % sys.implementation.name
            if sys.implementation.name != "cpython"
            else "a free-threaded interpreter can't load it"
            if "t" in getattr(sys, "abiflags", "")
            else str(error)
        )
        raise ImportError("allocwall.count is in an extension that can't be loaded here: %s" % _why) from None

__all__ = ["count", "Totals", "Counts", "Domain", "SizeClass", "Line"]

F = TypeVar("F", bound=Callable[..., Any])


class Domain(NamedTuple):
    name: str
    calls: int
    reallocs: int
    frees: int
    older_frees: int
    bytes: int
    live_bytes: int
    peak_bytes: int


class SizeClass(NamedTuple):
    domain: str
    #: The largest size in it, bytes.
    largest: int
    calls: int
    reallocs: int
    #: Of blocks that were allocated in the block of code.
    frees: int
    bytes: int
    live_bytes: int
    peak_bytes: int


class Line(NamedTuple):
    #: None where no Python code ran, or the interpreter's lock wasn't held.
    file: Optional[str]
    line: int
    function: Optional[str]
    calls: int
    bytes: int


class Counts:
    """What `count` and `Totals` can be asked."""

    __slots__ = ()

    if TYPE_CHECKING:

        def figures(self) -> Tuple[bool, int, List[Any], List[Any]]: ...

    @property
    def complete(self) -> bool:
        """False where something went by uncounted: other hooks took these out (tracemalloc, if it was on before them, when it
        stops), a step ran on another thread, or a block's size couldn't be kept."""
        return self.figures()[0]

    @property
    def peak_bytes(self) -> int:
        return self.figures()[1]

    @property
    def domains(self) -> Dict[str, Domain]:
        return {row[0]: Domain(*row) for row in self.figures()[2]}

    @property
    def size_classes(self) -> List[SizeClass]:
        """Those that have something in them, by domain and size."""
        return [SizeClass(*row) for row in self.figures()[3]]

    @property
    def calls(self) -> int:
        return sum(domain.calls for domain in self.domains.values())

    @property
    def reallocs(self) -> int:
        return sum(domain.reallocs for domain in self.domains.values())

    @property
    def frees(self) -> int:
        return sum(domain.frees for domain in self.domains.values())

    @property
    def older_frees(self) -> int:
        return sum(domain.older_frees for domain in self.domains.values())

    @property
    def bytes(self) -> int:
        return sum(domain.bytes for domain in self.domains.values())

    @property
    def live_bytes(self) -> int:
        return sum(domain.live_bytes for domain in self.domains.values())

    def __str__(self) -> str:
        """A table: the domains, and their size classes."""
        complete, peak, domains, classes = self.figures()
        head = "%-4s %12s %9s %9s %9s %9s %13s %13s %13s"
        lines = [head % ("", "size", "calls", "reallocs", "frees", "older", "bytes", "live bytes", "peak bytes")]
        for row in classes:
            low = row[1] - 15 if row[1] <= 512 else row[1] // 2 + 1
            lines.append(head % (row[0], "%d-%d" % (low, row[1]), *row[2:5], "", *row[5:]))
        for row in domains:
            if any(row[1:]):
                lines.append(head % (row[0], "all", *row[1:]))
        sums = [sum(row[index] for row in domains) for index in range(1, 7)]
        lines.append(head % ("all", "", *sums, peak))
        if not complete:
            lines.append("not complete: some of it went by uncounted")
        return "\n".join(lines)


class count(Counts, _native.Counter):
    """Counts what this thread asks of the allocators in a with block: see this module for what that is.

    What the thread does meanwhile counts, whoever's it is: around an `await`, other tasks too. A decorated coroutine function
    counts its own steps alone, and so do the middlewares. Counts may be nested or overlap: each is right by itself. Other
    threads' calls are in none. It can be asked meanwhile on its own thread, from elsewhere once it has ended. Used again, it
    begins at nothing.

    by_line: also keep which line asked: `lines`. Costs some hundred nanoseconds a call. Since 3.11 frame objects are then not
        counted: asking makes them.

    As a decorator of a function, coroutine function or generator function, it counts each call by itself; the function's
    attribute `counts` has the totals.

    Raises RuntimeError where the interpreter hides its hooks, or on another thread than it began on.
    """

    __slots__ = ()

    @property
    def lines(self) -> List[Line]:
        """What each line asked for, most calls first; empty without `by_line`. Once: the second time it is empty."""
        rows = [
            Line(
                code.co_filename if code else None,
                line,
                code.co_name if code else None,
                calls,
                size,
            )
            for code, line, calls, size in self.take_lines()
        ]
        return sorted(rows, key=lambda row: (-row.calls, -row.bytes, row.file or "", row.line))

    def decorated(self, function: F) -> F:
        """The function, each of its calls counted by itself into its attribute `counts`."""
        totals = Totals()

        def done(counted: count) -> None:
            totals.add(counted)

        wrapped = wrap(function, done)
        wrapped.counts = totals  # type: ignore[attr-defined]
        return wrapped


class Totals(Counts, _native.Totals):
    """The sum of many counts; of peaks the highest. `counts` says of how many."""

    __slots__ = ()


class Steps:
    """A coroutine, generator or iterator, counted while it runs and not while it waits. It is what it holds: to be awaited, or
    iterated over."""

    def __init__(self, inner: Any, done: Callable[[count], None], counted: Optional[count] = None) -> None:
        # Until there is something to end.
        self._ended = True
        self._inner = inner if hasattr(inner, "send") or not hasattr(inner, "__await__") else inner.__await__()
        self._done = done
        self._count = count() if counted is None else counted
        self._ended = False

    def __await__(self) -> Steps:
        return self

    __iter__ = __await__

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        try:
            ended, value = self._count.send(self._inner, value)
        except BaseException:
            self._end()
            raise
        if ended:
            self._end()
            raise StopIteration(value)
        return value

    def throw(self, *error: Any) -> Any:
        throw = getattr(self._inner, "throw", None)
        if throw is None:
            self._end()
            raise error[1] if len(error) > 1 and error[1] is not None else error[0]
        try:
            return self._count.step(throw, error)
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        try:
            close = getattr(self._inner, "close", None)
            if close is not None and not self._ended:
                self._count.step(close, ())
        finally:
            self._end()

    def __del__(self) -> None:
        if not self._ended:
            self.close()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._count.finish()
            self._done(self._count)


def wrap(function: F, done: Callable[[count], None], **options: Any) -> F:
    """The function, coroutine function or generator function, each call of it counted; `done` is given each count when it has
    ended."""
    if inspect.isasyncgenfunction(function):
        raise TypeError("an asynchronous generator can't be counted: count what its caller does")
    wrapped: Any
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            return await Steps(function(*args, **kwargs), done, count(**options))

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return (yield from Steps(function(*args, **kwargs), done, count(**options)))

    else:

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            counted = count(**options)
            try:
                return counted.step(function, args, kwargs)
            finally:
                counted.finish()
                done(counted)

    return wrapped  # type: ignore[no-any-return]

"""Exact counts of the calls that a block of code makes to CPython's allocators, for this block and this thread.

    with allocwall.count() as c:
        handle(request)
    print(c)

* `calls`: requests that returned memory (malloc, calloc, realloc). A request that fails is not counted.
* `reallocs`: the calls that resized memory.
* `frees`: frees, including `older_frees`: frees of memory that was allocated before the block or on another thread.
* `bytes`: the bytes requested; for a realloc, its full new size.
* `live_bytes`: the bytes that were allocated or resized in the block and are not freed yet; `peak_bytes`: their maximum.

Each call is counted once, in the domain in which it arrives (raw, mem or obj), and in the size class of the requested bytes:
pymalloc's classes, 16 bytes apart, up to 512 bytes, and powers of two above. Older frees have no class, because their size is
unknown.

Not counted, because no allocator is called: objects from a type's own free list (floats, small tuples, lists, dicts, frames and
others, depending on the version), memory that already existed, and memory that C libraries get from malloc directly. Arenas,
from which pymalloc serves the counted calls, are not counted either.
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
        # The kind of interpreter tells the user more than the name of a missing symbol.
        _why = (
            "it is for CPython, not %s" % sys.implementation.name
            if sys.implementation.name != "cpython"
            else "a free-threaded interpreter can't load it"
            if "t" in getattr(sys, "abiflags", "")
            else str(error)
        )
        raise ImportError("allocwall.count needs an extension that can't be loaded here: %s" % _why) from None

__all__ = ["count", "Totals", "Counts", "Domain", "SizeClass", "Line"]

F = TypeVar("F", bound=Callable[..., Any])

_new = _native.Counter.__new__


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
    #: Frees of memory that was allocated in the counted block of code.
    frees: int
    bytes: int
    live_bytes: int
    peak_bytes: int


class Line(NamedTuple):
    #: None if no Python code ran, or if the thread did not hold the interpreter's lock.
    file: Optional[str]
    line: int
    function: Optional[str]
    calls: int
    bytes: int


class Counts:
    """The values that `count` and `Totals` have in common."""

    __slots__ = ()

    if TYPE_CHECKING:

        def figures(self) -> Tuple[bool, int, List[Any], List[Any]]: ...

    @property
    def complete(self) -> bool:
        """False if some calls were not seen: other hooks removed these (tracemalloc does so when it stops, if it started first),
        a step ran on another thread, or the size of an allocation could not be stored."""
        return self.figures()[0]

    @property
    def peak_bytes(self) -> int:
        return self.figures()[1]

    @property
    def domains(self) -> Dict[str, Domain]:
        return {row[0]: Domain(*row) for row in self.figures()[2]}

    @property
    def size_classes(self) -> List[SizeClass]:
        """The size classes with any calls, in the order of domain and size."""
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
            lines.append("not complete: some allocator calls were not seen")
        return "\n".join(lines)


class count(Counts, _native.Counter):
    """Counts the calls that this thread makes to the allocators in a with block. The module's documentation defines the values.

    All work of the thread counts until the block ends: around an `await`, the steps of other tasks too. A decorated coroutine
    function counts only its own steps, and so do the middlewares. Counts may be nested or overlap; each is exact by itself.
    Calls of other threads are never counted. The values can be read on the same thread at any time, and on other threads once
    the count has ended. A count that is used again starts at zero.

    by_line: also record the line of each call, for `lines`. Costs some hundred nanoseconds per call. Since 3.11, frame
        objects are then not counted, because to find the line creates them.

    As a decorator of a function, coroutine function or generator function, with or without brackets, it counts each call
    separately; the attribute `counts` of the function has the totals.

    Raises RuntimeError if the interpreter hides its hooks, or on another thread than the one that it began on.
    """

    __slots__ = ()

    def __new__(cls, function: Optional[Callable[..., Any]] = None, *, by_line: bool = False) -> Any:
        if function is None:
            return _new(cls, by_line=True) if by_line else _new(cls)
        # The decorator without brackets.
        if not callable(function):
            raise TypeError("count takes a function to decorate, or nothing, not %r" % (function,))
        return cls(by_line=by_line).decorated(function)

    @property
    def lines(self) -> List[Line]:
        """The calls and bytes of each line, most calls first; empty without `by_line`. Can be read only once: the second time
        it is empty."""
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
        """Wraps the function: each call is counted separately and added to the attribute `counts`."""
        totals = Totals()

        def done(counted: count) -> None:
            totals.add(counted)

        wrapped = wrap(function, done)
        wrapped.counts = totals  # type: ignore[attr-defined]
        return wrapped


class Totals(Counts, _native.Totals):
    """The sum of several counts, and the highest of their peaks. `counts` is the number of counts."""

    __slots__ = ()


class Steps:
    """Wraps a coroutine, generator or iterator, and counts while it runs and not while it waits. It can be awaited or iterated
    over, as the object that it wraps."""

    def __init__(self, inner: Any, done: Callable[[count], None], counted: Optional[count] = None) -> None:
        # True until there is a count to end.
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
    """Wraps a function, coroutine function or generator function: each call is counted, and `done` is called with each count
    when it has ended."""
    if inspect.isasyncgenfunction(function):
        raise TypeError("an asynchronous generator can't be counted: count its caller instead")
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

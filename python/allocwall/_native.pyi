from types import CodeType
from typing import Any, Callable, Dict, List, Literal, Optional, Tuple, TypedDict, TypeVar, overload

__all__: List[str]

_Self = TypeVar("_Self", bound="Counter")
_F = TypeVar("_F", bound=Callable[..., Any])
# Name, calls, reallocs, frees, older frees, bytes, live bytes, peak bytes.
_Domain = Tuple[str, int, int, int, int, int, int, int]
# Domain, largest size, calls, reallocs, frees, bytes, live bytes, peak bytes.
_SizeClass = Tuple[str, int, int, int, int, int, int, int]
# Whether the count is complete, peak bytes of all domains together, domains, size classes.
_Figures = Tuple[bool, int, List[_Domain], List[_SizeClass]]

class Counter:
    def __new__(cls, *, by_line: bool = ...) -> Any: ...
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(self, kind: object, value: object, traceback: object) -> None: ...
    @overload
    def __call__(self: _Self) -> _Self: ...
    @overload
    def __call__(self, function: _F) -> _F: ...
    def step(self, function: Callable[..., Any], args: Tuple[Any, ...], kwargs: Optional[Dict[str, Any]] = ...) -> Any: ...
    def send(self, iterator: Any, value: Any) -> Tuple[bool, Any]: ...
    def aside(self, function: Callable[..., Any], *args: Any) -> Any: ...
    def finish(self) -> None: ...
    def figures(self) -> _Figures: ...
    def take_lines(self) -> List[Tuple[Optional[CodeType], int, int, int]]: ...

class Totals:
    def __new__(cls) -> Any: ...
    @property
    def counts(self) -> int: ...
    def add(self, counter: Counter) -> None: ...
    def figures(self) -> _Figures: ...

class _Fallbacks(TypedDict):
    pool_exhausted: int
    dear: int
    missed: int
    no_memory: int
    odd_size: int

class _Faults(TypedDict):
    huge: int
    huge_ns: int
    dear: int
    lost_ns: int
    small_ns: int

class _Report(TypedDict):
    on: bool
    reserved: bool
    arena_bytes: int
    keep_bytes: int
    watch_price: bool
    arenas: int
    slabs: int
    slabs_reserved: int
    slabs_transparent: int
    slabs_kept: int
    keep_target: int
    arenas_idle: int
    arenas_trimmed: int
    slab_bytes: int
    huge_bytes: Optional[int]
    arenas_given: int
    arenas_returned: int
    slabs_mapped: int
    slabs_released: int
    slabs_reused: int
    trims: int
    foreign_frees: int
    misplaced_frees: int
    forked: bool
    time_ns: int
    fallbacks: _Fallbacks
    faults: _Faults
    host: Optional[Literal["warm", "cold"]]

class _Collapsed(TypedDict):
    pages: int
    sparse: int
    failed: int
    last_failure: Optional[Literal["not_eligible", "busy", "cgroup_limit", "no_memory", "failed"]]

def install(arena_bytes: int, *, reserved: bool, keep_bytes: int, watch_price: bool) -> None: ...
def pause() -> bool: ...
def report() -> Optional[_Report]: ...
def collapse(least: float) -> _Collapsed: ...
def transparent_refusal() -> Optional[str]: ...
def reserved_refusal() -> Optional[str]: ...
def allocator_name() -> Optional[str]: ...

from typing import List, Literal, Optional, TypedDict

__all__: List[str]

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
    slab_bytes: int
    huge_bytes: Optional[int]
    arenas_given: int
    arenas_returned: int
    slabs_mapped: int
    slabs_released: int
    slabs_reused: int
    foreign_frees: int
    misplaced_frees: int
    forked: bool
    time_ns: int
    fallbacks: _Fallbacks
    faults: _Faults

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

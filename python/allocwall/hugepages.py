"""CPython's arenas on huge pages.

pymalloc carves objects of at most 512 bytes from arenas: 256 KiB each before Python 3.10, 1 MiB since, on 4 KiB pages.
`enable` has new arenas packed into 2 MiB slabs that the kernel can put on one huge page each. Arenas that exist already
stay where they are until their last object dies.

What it moves, and to where: one fault a slab instead of one a page, so a slab is resident as a whole from its first object
on: at most 2 MiB more than stock for a heap that only grows. Of empty slabs that a heap needs again and again a few are kept
(`keep_mib`). In a child of `fork`, the first write to a huge page splits it: `collapse` there makes it whole again.
"""

from __future__ import annotations

import os
import sys

# Imported at the start of programs that expect to import things first: nothing is that can be done without.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple

__all__ = ["MODES", "Refused", "enable", "disable", "status", "collapse"]

#: thp: transparent huge pages for new arenas. hugetlb: the reserved pool's. collapse: no hook; what is there already is
#: made huge, once. auto: collapse where the kernel can, then thp.
MODES = ("thp", "hugetlb", "collapse", "auto")

_VARIABLE = "ALLOCWALL_HUGEPAGES"

# What is collapsed must be mostly there, so that it grows little.
_LEAST_RESIDENT = 0.9

_state: Dict[str, Any] = {"mode": "off", "refused": None, "collapsed": None}
_collapses_in_children = False


class Refused(RuntimeError):
    """Huge pages can't be had here. `reason` is a stable key, the message one line that says what would help."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def enable(
    mode: str = "thp",
    *,
    fork_unsafe: bool = False,
    keep_mib: int = 2,
    watch_price: bool = True,
    collapse_in_children: bool = False,
) -> None:
    """Puts new arenas on huge pages, for every thread and interpreter of this process, until it ends or `disable`.

    mode: one of MODES.
    fork_unsafe: hugetlb needs it to be True. After a fork, the first write to a reserved page takes another one from the
        pool, and an exhausted pool is then a SIGBUS. Only for processes that don't fork.
    keep_mib: MiB of empty slabs, 2 MiB each, that may be kept for a heap that goes up and down, beside 5 % of those in
        use; 0: none at all. They count as resident, and the kernel takes them when it is short. As much, or 5 %, or one
        slab's worth, may lie idle in slabs of which some arenas are in use; what is more goes back to the system.
    watch_price: ask for small pages while huge ones cost more than they save, as after the host of a virtual machine
        took memory back, and for the first slab, which tells what small ones cost.
    collapse_in_children: `collapse` in each child after os.fork, which costs a copy of what it inherited.

    Raises Refused, and ValueError for a mode that isn't one. A second call with the same settings switches on again after
    `disable`; with others it is refused.
    """
    global _collapses_in_children
    if mode not in MODES:
        raise ValueError("mode is one of %s, not %r" % (", ".join(MODES), mode))
    if keep_mib < 0:
        raise ValueError("keep_mib is not negative")
    try:
        _refuse(mode, fork_unsafe)
        native = _native()
        if mode in ("collapse", "auto"):
            try:
                _state["collapsed"] = collapse()
            except Refused:
                # Linux before 6.1: auto goes on without.
                if mode == "collapse":
                    raise
        if mode != "collapse":
            try:
                native.install(
                    _arena_bytes(),
                    reserved=mode == "hugetlb",
                    keep_bytes=keep_mib << 20,
                    watch_price=bool(watch_price),
                )
            except RuntimeError as error:
                raise Refused("hook", str(error)) from None
    except Refused as refused:
        _state["refused"] = (refused.reason, str(refused))
        raise
    _state.update(mode=mode, refused=None)
    if collapse_in_children and not _collapses_in_children:
        os.register_at_fork(after_in_child=_collapse_quietly)
        _collapses_in_children = True


def disable() -> None:
    """New arenas come from the interpreter's own allocator again. Those that are out stay where they are, and come back to
    their slabs: the hook stays installed. Does nothing where it isn't."""
    if _state["mode"] != "off":
        _native().pause()
        _state["mode"] = "off"


def collapse(least_resident: float = _LEAST_RESIDENT) -> Dict[str, Any]:
    """Makes huge what this process has already (MADV_COLLAPSE, Linux 6.1): each aligned 2 MiB of private anonymous memory of
    which at least this share is resident. Arenas, and large blocks of other allocators.

    It copies, at some 0.3 ms for 2 MiB, and other threads' page faults wait meanwhile. Returns the number of huge pages
    that stand there now, of those left alone as too sparse, of failures, and the last failure's key. Raises Refused.
    """
    _refuse("collapse", False)
    try:
        return dict(_native().collapse(least_resident))
    except RuntimeError as error:
        raise Refused("kernel", str(error)) from None


def status() -> Dict[str, Any]:
    """What there is, in bytes, nanoseconds and counts.

    mode: of the last `enable`, or "off"; refused: the last refusal as (key, message), or None; collapsed: what the last
    collapse of `enable` did; allocator: the objects' allocator, where the interpreter tells.

    With a hook also: arenas and slabs now; slab_bytes and, of them, huge_bytes in truth (from /proc/self/smaps; None where
    that can't be read); slabs_kept empty, and as many as may be (keep_target); of the others, arenas that aren't in use,
    with memory that could go (arenas_idle) and without (arenas_trimmed); sums since the start of arenas_given and arenas_returned,
    slabs_mapped, slabs_released and slabs_reused, trims (of arenas, one by one), foreign_frees (of arenas that were there before);
    fallbacks by reason; faults: huge first touches and their price, how many were dearer than small pages and by how much
    (lost_ns), and small_ns, the price of a small one, 0 before the first and where prices aren't watched (dear is 0 then
    too); time_ns spent in here. A forked child goes on with its parent's sums.
    """
    report: Dict[str, Any] = dict(_state)
    try:
        native = _native()
    except Refused as refused:
        report["refused"] = report["refused"] or (refused.reason, str(refused))
        return report
    report["allocator"] = native.allocator_name()
    report.update(native.report() or {})
    return report


def _native() -> Any:
    """The extension. Not at import: where it can't be loaded, the refusal says why."""
    try:
        from . import _native as native
    except ImportError as error:
        raise Refused("extension", "the extension can't be loaded here: %s" % error) from None
    return native


def _arena_bytes() -> int:
    # Objects/obmalloc.c, ARENA_BITS: 18 before 3.10, 20 since; 21 in a 3.15 that was built for huge pages.
    if sys.version_info < (3, 10):
        return 256 << 10
    return 2 << 20 if _built_for_huge_pages() else 1 << 20


def _built_for_huge_pages() -> bool:
    if sys.version_info < (3, 15):
        return False
    # What sysconfig reads (sysconfig/__init__.py, _get_sysconfigdata_name), without the modules that it imports: threading among
    # them, which gevent wants to be first at.
    multiarch = getattr(sys.implementation, "_multiarch", "")
    try:
        variables = __import__("_sysconfigdata_%s_%s_%s" % (sys.abiflags, sys.platform, multiarch)).build_time_vars
    except ImportError:
        import sysconfig

        variables = sysconfig.get_config_vars()
    return "--with-pymalloc-hugepages" in (variables.get("CONFIG_ARGS") or "")


def _other_implementation() -> Optional[str]:
    name = sys.implementation.name
    return None if name == "cpython" else "%s has no pymalloc arenas: this is for CPython" % name


def _other_system() -> Optional[str]:
    if not sys.platform.startswith("linux"):
        return "huge pages for arenas are for Linux, not %s" % sys.platform
    return None if sys.maxsize > 2**32 else "a 32-bit interpreter has no room for 2 MiB slabs"


def _free_threaded() -> Optional[str]:
    # The "t" of 3.13t.
    if "t" not in getattr(sys, "abiflags", ""):
        return None
    return (
        "a free-threaded interpreter has mimalloc instead of arenas: "
        "start it with MIMALLOC_ALLOW_LARGE_OS_PAGES=1 in the environment"
    )


def _own_switch() -> Optional[str]:
    if _built_for_huge_pages() and os.environ.get("PYTHON_PYMALLOC_HUGEPAGES") == "1":
        return "this interpreter has its own arenas on huge pages already (PYTHON_PYMALLOC_HUGEPAGES=1)"
    return None


def _without_pymalloc() -> Optional[str]:
    # Where something stands before the allocator (tracemalloc), the interpreter doesn't tell, but the variable does.
    name = _native().allocator_name() or os.environ.get("PYTHONMALLOC") or "pymalloc"
    if name in ("default", "debug") or name.startswith("pymalloc"):
        return None
    if name.startswith("mimalloc"):
        return "objects come from mimalloc (PYTHONMALLOC): MIMALLOC_ALLOW_LARGE_OS_PAGES=1 is its own way to huge pages"
    if os.environ.get("PYTHONMALLOC"):
        return "objects come from %s, not from pymalloc: unset PYTHONMALLOC" % name
    return "objects come from %s: this interpreter was built or set up without pymalloc" % name


def _no_transparent_pages() -> Optional[str]:
    message: Optional[str] = _native().transparent_refusal()
    return message


def _no_reserved_pages() -> Optional[str]:
    message: Optional[str] = _native().reserved_refusal()
    return message


# In this order: what makes the next question meaningless comes first.
_EVERYWHERE: Tuple[Tuple[str, Callable[[], Optional[str]]], ...] = (
    ("implementation", _other_implementation),
    ("system", _other_system),
    ("free_threaded", _free_threaded),
    ("own_switch", _own_switch),
    ("no_pymalloc", _without_pymalloc),
)


def _refuse(mode: str, fork_unsafe: bool) -> None:
    """Raises Refused where the mode can't work."""
    if mode == "hugetlb" and not fork_unsafe:
        raise Refused(
            "fork",
            "reserved pages are unsafe with fork (a copy from an exhausted pool is a SIGBUS): "
            "fork_unsafe=True if this process doesn't fork",
        )
    pages = ("reserved", _no_reserved_pages) if mode == "hugetlb" else ("transparent", _no_transparent_pages)
    for reason, refusal in (*_EVERYWHERE, pages):
        message = refusal()
        if message is not None:
            raise Refused(reason, message)


def _collapse_quietly() -> None:
    """After a fork, where nobody can be told: what was refused, `status` says."""
    if _state["mode"] == "off":
        return
    try:
        _state["collapsed"] = collapse()
    except Refused as refused:
        _state["refused"] = (refused.reason, str(refused))


def _from_environment() -> None:
    """Called at start by the .pth file (.start since 3.15): silent in every case, since it runs in every interpreter that
    inherits the variable. `status` tells what was refused."""
    value = os.environ.get(_VARIABLE, "")
    if value in ("", "0"):
        return
    mode = "thp" if value == "1" else value
    if mode not in ("thp", "collapse", "auto"):
        _state["refused"] = ("variable", "%s is 1, thp, collapse or auto, not %r" % (_VARIABLE, value))
        return
    try:
        enable(mode)
    except Refused:
        pass

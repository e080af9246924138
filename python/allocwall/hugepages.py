"""CPython's arenas on huge pages.

pymalloc allocates objects of at most 512 bytes in arenas: 256 KiB each before Python 3.10, 1 MiB since, on 4 KiB pages.
`enable` puts new arenas into slabs of 2 MiB, so that the kernel can use one huge page for each slab. Arenas that already
exist stay where they are until their last object is freed.

Costs: there is one page fault per slab instead of one per page, so the whole slab is resident from its first object on: at
most 2 MiB more than stock for a heap that only grows. A few empty slabs that the heap needs again and again are kept
(`keep_mib`). In a child of `fork`, the first write to a huge page splits it; `collapse` in the child makes it whole again.
"""

from __future__ import annotations

import os
import sys

# A start file imports this module before the program's own imports, so it imports as little as possible.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple

__all__ = ["MODES", "Refused", "enable", "disable", "status", "collapse"]

#: thp: transparent huge pages for new arenas. hugetlb: huge pages of the reserved pool for new arenas. collapse: no hook;
#: existing memory is moved to huge pages, once. auto: collapse if the kernel supports it, then thp.
MODES = ("thp", "hugetlb", "collapse", "auto")

_VARIABLE = "ALLOCWALL_HUGEPAGES"
# What is wrong with it, for the processes that this one starts: they inherit both, and one warning is enough.
_WARNED = "ALLOCWALL_HUGEPAGES_WARNED"

# Memory to be collapsed must be mostly resident, so that the resident set grows little.
_LEAST_RESIDENT = 0.9

_state: Dict[str, Any] = {"mode": "off", "refused": None, "collapsed": None}
_collapses_in_children = False


class Refused(RuntimeError):
    """Huge pages are not possible here. `reason` is a stable key; the message is one line and says what to change."""

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
    """Puts new arenas on huge pages, for every thread and interpreter of this process, until the process ends or `disable`.

    mode: one of MODES.
    fork_unsafe: must be True for hugetlb. After a fork, the first write to a reserved page takes another page from the
        pool; if the pool is empty, the process gets a SIGBUS. Use it only for processes that do not fork.
    keep_mib: MiB of empty slabs (2 MiB each) to keep for a heap that grows and shrinks, in addition to 5 % of the slabs in
        use; 0 keeps none. Kept slabs count as resident, and the kernel reclaims them when memory is short. Slabs of which
        some arenas are in use may hold as much unused memory, or 5 %, or one slab, whichever is most; the rest is returned
        to the system.
    watch_price: use small pages while huge pages cost more than they save (for example after the host of a virtual machine
        reclaimed memory), and for the first slab, to measure the price of small pages.
    collapse_in_children: call `collapse` in each child after os.fork; this costs a copy of the inherited memory.

    Raises Refused, and ValueError for an unknown mode. After `disable`, a second call with the same settings switches the hook
    on again; a call with other settings is refused.
    """
    global _collapses_in_children
    if mode not in MODES:
        raise ValueError("mode must be one of %s, not %r" % (", ".join(MODES), mode))
    if keep_mib < 0:
        raise ValueError("keep_mib must not be negative, but is %r" % keep_mib)
    try:
        _refuse(mode, fork_unsafe)
        native = _native()
        if mode in ("collapse", "auto"):
            try:
                _state["collapsed"] = collapse()
            except Refused:
                # Linux before 6.1: auto continues without a collapse.
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
    """New arenas come from the interpreter's own allocator again. Existing arenas stay in their slabs, and the hook stays
    installed to take them back. Does nothing if the hook is not on."""
    if _state["mode"] != "off":
        _native().pause()
        _state["mode"] = "off"


def collapse(least_resident: float = _LEAST_RESIDENT) -> Dict[str, Any]:
    """Moves existing memory of this process to huge pages (MADV_COLLAPSE, Linux 6.1): each aligned 2 MiB of private anonymous
    memory of which at least the share `least_resident` (0 to 1) is resident. This includes arenas, and large blocks of other
    allocators.

    The kernel copies the memory, which takes some 0.3 ms per 2 MiB; page faults of other threads wait meanwhile. Returns the
    number of huge pages in place now (pages), of ranges with too little resident memory (sparse), of failures (failed), and
    the key of the last failure (last_failure). Raises Refused.
    """
    _refuse("collapse", False)
    try:
        return dict(_native().collapse(least_resident))
    except RuntimeError as error:
        raise Refused("kernel", str(error)) from None


def status() -> Dict[str, Any]:
    """The state of the hook, in bytes, nanoseconds and counts.

    mode: the mode of the last `enable`, or "off". refused: the last refusal as (key, message), or None. collapsed: the result
    of the last collapse by `enable`. allocator: the allocator of objects, if the interpreter reports it.

    If the hook is installed, also:

    * arenas, slabs: the numbers now. slab_bytes: the size of the slabs; huge_bytes: the part of it that is on huge pages, from
      /proc/self/smaps (None if that cannot be read).
    * slabs_kept: empty slabs kept now; keep_target: the number that may be kept. In the other slabs: arenas_idle, unused arenas
      that still hold memory; arenas_trimmed, unused arenas whose memory was returned.
    * sums since the start: arenas_given, arenas_returned, slabs_mapped, slabs_released, slabs_reused; trims (arenas whose
      memory was returned one by one); foreign_frees (frees of arenas from before the hook). A forked child continues its
      parent's sums.
    * fallbacks: the number of fallbacks by reason.
    * faults: first touches on huge pages (huge) and their price (huge_ns); those that cost more than small pages (dear) and how
      much more (lost_ns); the price of a first touch of a small page (small_ns). The last three are 0 until the price of a small page
      is known, and always without watch_price.
    * host: what the prices of the last eight huge pages say about the host. "cold": at least half of them cost more than 1.5 times
      as much as the small pages in their place; "warm": fewer did. None if fewer than four were compared with small pages, and
      always without watch_price.
    * time_ns: the time spent in the hook.
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
    """The extension. Loaded on first use, so that a failure becomes a refusal with a reason."""
    try:
        from . import _native as native
    except ImportError as error:
        raise Refused("extension", "the extension can't be loaded here: %s" % error) from None
    return native


def _arena_bytes() -> int:
    # Objects/obmalloc.c, ARENA_BITS: 18 before 3.10; 20 since; 21 in a 3.15 that was built for huge pages.
    if sys.version_info < (3, 10):
        return 256 << 10
    return 2 << 20 if _built_for_huge_pages() else 1 << 20


def _built_for_huge_pages() -> bool:
    if sys.version_info < (3, 15):
        return False
    # The module that sysconfig reads (sysconfig/__init__.py, _get_sysconfigdata_name), but without the modules that
    # sysconfig imports: one is threading, which gevent must patch before anything imports it.
    multiarch = getattr(sys.implementation, "_multiarch", "")
    try:
        variables = __import__("_sysconfigdata_%s_%s_%s" % (sys.abiflags, sys.platform, multiarch)).build_time_vars
    except ImportError:
        import sysconfig

        variables = sysconfig.get_config_vars()
    return "--with-pymalloc-hugepages" in (variables.get("CONFIG_ARGS") or "")


def _other_implementation() -> Optional[str]:
    name = sys.implementation.name
    return None if name == "cpython" else "%s has no pymalloc arenas: use CPython" % name


def _other_system() -> Optional[str]:
    if not sys.platform.startswith("linux"):
        return "huge pages for arenas need Linux; this is %s" % sys.platform
    return None if sys.maxsize > 2**32 else "a 32-bit interpreter has no room for 2 MiB slabs: use a 64-bit one"


def _free_threaded() -> Optional[str]:
    # The "t" of 3.13t.
    if "t" not in getattr(sys, "abiflags", ""):
        return None
    return (
        "a free-threaded interpreter uses mimalloc instead of arenas: "
        "start it with MIMALLOC_ALLOW_LARGE_OS_PAGES=1 in the environment"
    )


def _own_switch() -> Optional[str]:
    if _built_for_huge_pages() and os.environ.get("PYTHON_PYMALLOC_HUGEPAGES") == "1":
        return "this interpreter already puts its arenas on huge pages itself (PYTHON_PYMALLOC_HUGEPAGES=1)"
    return None


def _without_pymalloc() -> Optional[str]:
    # If another hook (tracemalloc) is in front of the allocator, the interpreter reports no name, but the variable
    # has it.
    name = _native().allocator_name() or os.environ.get("PYTHONMALLOC") or "pymalloc"
    if name in ("default", "debug") or name.startswith("pymalloc"):
        return None
    if name.startswith("mimalloc"):
        return "objects come from mimalloc (PYTHONMALLOC): for huge pages set MIMALLOC_ALLOW_LARGE_OS_PAGES=1"
    if os.environ.get("PYTHONMALLOC"):
        return "objects come from %s, not from pymalloc: unset PYTHONMALLOC" % name
    return "objects come from %s: this interpreter was built or configured without pymalloc" % name


def _no_transparent_pages() -> Optional[str]:
    message: Optional[str] = _native().transparent_refusal()
    return message


def _no_reserved_pages() -> Optional[str]:
    message: Optional[str] = _native().reserved_refusal()
    return message


# In this order: a check comes before those that it makes meaningless.
_EVERYWHERE: Tuple[Tuple[str, Callable[[], Optional[str]]], ...] = (
    ("implementation", _other_implementation),
    ("system", _other_system),
    ("free_threaded", _free_threaded),
    ("own_switch", _own_switch),
    ("no_pymalloc", _without_pymalloc),
)


def _refuse(mode: str, fork_unsafe: bool) -> None:
    """Raises Refused if the mode cannot work."""
    if mode == "hugetlb" and not fork_unsafe:
        raise Refused(
            "fork",
            "reserved pages are unsafe with fork (a write in the child is a SIGBUS if the pool is empty): "
            "pass fork_unsafe=True if this process does not fork",
        )
    pages = ("reserved", _no_reserved_pages) if mode == "hugetlb" else ("transparent", _no_transparent_pages)
    for reason, refusal in (*_EVERYWHERE, pages):
        message = refusal()
        if message is not None:
            raise Refused(reason, message)


def _collapse_quietly() -> None:
    """Called in a forked child, where there is no caller to raise an error to: `status` reports a refusal."""
    if _state["mode"] == "off":
        return
    try:
        _state["collapsed"] = collapse()
    except Refused as refused:
        _state["refused"] = (refused.reason, str(refused))


def _warn_once(message: str) -> None:
    """One line on stderr, once in this process and those that it starts."""
    if os.environ.get(_WARNED) == message:
        return
    os.environ[_WARNED] = message
    try:
        sys.stderr.write("allocwall: %s; objects stay on small pages\n" % message)
    except (AttributeError, OSError, ValueError):
        # There is no stderr, or it is closed. `status` has the message.
        pass


def _from_environment() -> None:
    """Called at start by the .pth file (.start since 3.15). It runs in every interpreter that inherits the variable, so a refusal is
    silent: `status` reports it. A value without a meaning is a mistake of the user's, and gets one line on stderr."""
    value = os.environ.get(_VARIABLE, "")
    if value in ("", "0"):
        return
    mode = "thp" if value == "1" else value
    if mode not in ("thp", "collapse", "auto"):
        message = "%s must be 1, thp, collapse or auto, not %r" % (_VARIABLE, value)
        _state["refused"] = ("variable", message)
        _warn_once(message)
        return
    try:
        enable(mode)
    except Refused:
        pass

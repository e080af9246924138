"""Compares counts with independent sources: the interpreter's number of blocks, tracemalloc, known sizes, and direct calls of the
interpreter's own functions. Tests that change the hooks of the process run in a separate interpreter."""

import asyncio
import contextlib
import ctypes
import gc
import random
import sys
import threading
import unittest

import allocwall
from allocwall import counting

from test_hugepages import python

api = ctypes.pythonapi
for domain in ("PyMem_Raw", "PyMem_", "PyObject_"):
    for function, result, arguments in (
        ("Malloc", ctypes.c_void_p, [ctypes.c_size_t]),
        ("Calloc", ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t]),
        ("Realloc", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]),
        ("Free", None, [ctypes.c_void_p]),
    ):
        getattr(api, domain + function).restype = result
        getattr(api, domain + function).argtypes = arguments

DOMAINS = {"raw": "PyMem_Raw", "mem": "PyMem_", "obj": "PyObject_"}


def of(counted, domain, largest):
    """The values of a size class; zeros if it is empty."""
    for row in counted.size_classes:
        if row[:2] == (domain, largest):
            return row
    return counting.SizeClass(domain, largest, 0, 0, 0, 0, 0, 0)


class Exact(unittest.TestCase):
    """No object that a test did not make is freed in its blocks."""

    def setUp(self):
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        # The cache of attribute look-ups owns names. A look-up in a block may push out a name's last reference, which is a free there.
        getattr(sys, "_clear_internal_caches", getattr(sys, "_clear_type_cache", None))()


class Python(Exact):
    """Allocations by Python code."""

    def test_an_empty_block_asks_for_nothing(self):
        for _ in range(3):
            one = allocwall.count()
            with one:
                pass
            self.assertEqual((one.calls, one.reallocs, one.frees, one.bytes, one.peak_bytes), (0, 0, 0, 0, 0), one)
            self.assertTrue(one.complete)

    def test_objects_of_a_known_size(self):
        for n in (0, 1, 1000):
            kept = [None] * n
            counted = allocwall.count()
            with counted:
                for i in range(n):
                    kept[i] = object()
            row = of(counted, "obj", 16)
            self.assertEqual((row.calls, row.bytes, row.live_bytes), (n, 16 * n, 16 * n), counted)

    def test_bytes_of_given_sizes_are_in_their_class(self):
        head = sys.getsizeof(b"")
        for size in (1, 2, 15, 16, 17, 32, 496, 511, 512, 513, 1024, 1025, 4096, 4097, 1 << 20, (1 << 20) + 1):
            if size <= head:
                continue
            counted = allocwall.count()
            n = size - head
            with counted:
                made = bytes(n)
            largest = -(-size // 16) * 16 if size <= 512 else 1 << (size - 1).bit_length()
            row = of(counted, "obj", largest)
            self.assertEqual((row.calls, row.bytes, row.peak_bytes), (1, size, size), counted)
            self.assertEqual(counted.domains["raw"].calls, 0, "passed on to the raw domain, and counted there again")
            self.assertEqual(len(made), n)

    def test_blocks_add_up_to_the_interpreters_own_number(self):
        def work():
            kept = {i: [str(i) * 3, (i, i + 1000), {"a": bytes(i % 300)}] for i in range(2000)}
            for i in range(0, 2000, 3):
                del kept[i]
            return kept

        work()
        counted = allocwall.count()
        before = sys.getallocatedblocks()
        with counted:
            kept = work()
        after = sys.getallocatedblocks()
        # Only pymalloc's blocks, of at most 512 bytes. The larger ones that stay are few, and known.
        large = sum(
            row.calls - row.reallocs - row.frees for row in counted.size_classes if row.largest > 512
        )
        blocks = counted.calls - counted.reallocs - counted.frees - large
        self.assertLessEqual(abs(after - before - blocks), 20, counted)
        self.assertGreater(blocks, 2000)
        self.assertEqual(len(kept), 1333)

    def test_frees_are_of_the_block_or_older(self):
        older = [bytes(100 + i) for i in range(50)]
        counted = allocwall.count()
        with counted:
            mine = bytes(1000)
            older.clear()
            del mine
        # The list's own array was freed with its contents.
        self.assertEqual((counted.older_frees, counted.frees - counted.calls, counted.live_bytes), (51, 51, 0), counted)
        self.assertEqual(of(counted, "obj", 2048).frees, 1)

    def test_live_and_peak_bytes_are_those_of_the_block(self):
        older = bytes(100_000)
        counted = allocwall.count()
        with counted:
            one = bytes(10_000)
            del older
            del one
            two = bytes(3_000)
        head = sys.getsizeof(b"")
        self.assertEqual((counted.peak_bytes, counted.live_bytes), (10_000 + head, 3_000 + head), counted)
        self.assertEqual(len(two), 3_000)

    def test_failed_requests_are_not_counted(self):
        counted = allocwall.count()
        with counted:
            try:
                bytes(1 << 46)
            except MemoryError:
                pass
        self.assertLess(counted.bytes, 10_000, counted)

    def test_an_exception_ends_the_block(self):
        counted = allocwall.count()
        with self.assertRaises(KeyError):
            with counted:
                made = bytes(1000)
                raise KeyError(1)
        outside = bytes(2000)
        self.assertEqual(of(counted, "obj", 2048).calls, 1, counted)
        self.assertEqual((len(made), len(outside)), (1000, 2000))

    def test_it_can_be_asked_meanwhile_and_begins_anew(self):
        counted = allocwall.count()
        with self.assertRaisesRegex(RuntimeError, "not begun"):
            counted.calls
        with counted:
            one = bytes(1000)
            self.assertGreater(counted.bytes, 1000)
            with self.assertRaisesRegex(RuntimeError, "begun already"):
                counted.__enter__()
        with counted:
            pass
        self.assertEqual(counted.calls, 0)
        with self.assertRaisesRegex(RuntimeError, "not begun"):
            counted.__exit__(None, None, None)
        self.assertEqual(len(one), 1000)

    def test_an_exit_stack_begins_and_ends_it(self):
        counted = allocwall.count()
        with contextlib.ExitStack() as stack:
            self.assertIs(stack.enter_context(counted), counted)
            kept = bytes(3000)
        self.assertEqual(of(counted, "obj", 4096).calls, 1)
        self.assertEqual(len(kept), 3000)

    def test_a_with_statement_gives_the_count(self):
        one = allocwall.count()
        with one as same:
            pass
        self.assertIs(one, same)

    def test_as_text(self):
        counted = allocwall.count()
        with counted:
            kept = bytes(3000)
        rows = [line.split() for line in str(counted).splitlines()]
        self.assertIn(["obj", "2049-4096", "1", "0", "0", "3033", "3033", "3033"], rows)
        self.assertEqual((rows[-1][0], rows[-1][1], rows[-1][-2]), ("all", str(counted.calls), str(counted.live_bytes)))
        self.assertEqual(len(kept), 3000)


class Calls(Exact):
    """Direct allocator calls in each domain. ctypes makes calls too, so these use sizes that do not occur otherwise."""

    def test_each_function_of_each_domain(self):
        for domain, prefix in DOMAINS.items():
            malloc, calloc, realloc, free = (
                getattr(api, prefix + name) for name in ("Malloc", "Calloc", "Realloc", "Free")
            )
            large, larger = 3 << 20, 7 << 20
            with allocwall.count() as counted:
                one = malloc(large)
                two = calloc(3, 1 << 20)
                three = realloc(None, large)
                one = realloc(one, larger)
                for address in (one, two, three):
                    free(address)
                free(None)
            row, resized = of(counted, domain, 4 << 20), of(counted, domain, 8 << 20)
            self.assertEqual((row.calls, row.reallocs, row.frees, row.bytes), (3, 0, 2, 3 * large), counted)
            self.assertEqual((resized.calls, resized.reallocs, resized.frees), (1, 1, 1), counted)
            self.assertEqual(resized.bytes, larger)
            self.assertEqual((row.live_bytes, row.peak_bytes, resized.live_bytes), (0, 3 * large, 0))
            self.assertEqual(counted.domains[domain].peak_bytes // (1 << 20), 13)
            for other in set(DOMAINS) - {domain}:
                self.assertEqual(of(counted, other, 4 << 20).calls, 0, "counted twice")

    def test_a_block_from_before_the_block_that_is_resized_in_it(self):
        one = api.PyMem_RawMalloc(1000)
        with allocwall.count() as counted:
            one = api.PyMem_RawRealloc(one, 5 << 20)
        api.PyMem_RawFree(one)
        row = of(counted, "raw", 8 << 20)
        self.assertEqual((row.calls, row.reallocs, row.bytes, row.live_bytes), (1, 1, 5 << 20, 5 << 20))

    def test_a_resize_that_fails_leaves_the_block(self):
        with allocwall.count() as counted:
            one = api.PyMem_RawMalloc(3 << 20)
            self.assertIsNone(api.PyMem_RawRealloc(one, 1 << 60))
            live = of(counted, "raw", 4 << 20).live_bytes
            api.PyMem_RawFree(one)
        row = of(counted, "raw", 4 << 20)
        self.assertEqual((live, row.calls, row.frees, row.live_bytes), (3 << 20, 1, 1, 0))

    def test_errno_is_left_alone(self):
        libc = ctypes.CDLL(None, use_errno=True)
        raw = ctypes.CDLL(None, use_errno=True).PyMem_RawMalloc
        raw.restype, raw.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        with allocwall.count():
            ctypes.set_errno(77)
            addresses = [raw(8 << 10) for _ in range(2000)]
            self.assertEqual(ctypes.get_errno(), 77)
        for address in addresses:
            api.PyMem_RawFree(address)


class Together(Exact):
    """Several counts at once."""

    def test_nested_counts_are_each_right(self):
        outer, inner, innermost = allocwall.count(), allocwall.count(), allocwall.count()
        with outer:
            one = bytes(1000)
            with inner:
                two = bytes(1001)
                with innermost:
                    three = bytes(1002)
                    del one
                del three
            del two
        rows = [of(counted, "obj", 2048) for counted in (outer, inner, innermost)]
        self.assertEqual([row.calls for row in rows], [3, 2, 1])
        self.assertEqual([row.frees for row in rows], [3, 1, 0])
        self.assertEqual([counted.older_frees for counted in (outer, inner, innermost)], [0, 1, 1])
        head = sys.getsizeof(b"")
        self.assertEqual([row.live_bytes for row in rows], [0, 1001 + head, 1002 + head])

    def test_a_count_alone_and_one_within_another_agree(self):
        """A count alone has code of its own for small blocks. The table of live memory knows the last pages without a search; this
        heap has more pages than that."""
        generator = random.Random(7)
        sizes = [generator.randrange(600) for _ in range(20_000)]

        def work():
            kept = [bytes(size) for size in sizes]
            for i in range(0, len(kept), 3):
                kept[i] = None
            kept += [bytes(size) for size in sizes]
            kept += [object() for _ in range(1000)]
            names = {str(n): str(n) * 3 for n in range(1000)}
            names.clear()
            return len(kept)

        alone, outer, inner = allocwall.count(), allocwall.count(), allocwall.count()
        # Caches and free lists are then the same at each start.
        for _ in range(2):
            work()
        with alone:
            work()
        with outer:
            with inner:
                work()
        self.assertEqual(alone.size_classes, inner.size_classes)
        self.assertEqual((alone.domains, alone.peak_bytes), (inner.domains, inner.peak_bytes))
        self.assertTrue(alone.complete and inner.complete)
        self.assertGreater(alone.peak_bytes, 8 << 20)
        self.assertGreater(of(alone, "obj", 512).frees, 100)

    def test_looking_whether_the_hooks_are_there_is_in_no_count(self):
        python("""
            import allocwall, tracemalloc
            with allocwall.count(): pass
            tracemalloc.start()
            inner = allocwall.count()
            with allocwall.count() as outer:
                with inner:
                    pass
            assert inner.calls == 0, str(inner)
            # tracemalloc is above: its own notes are made in the raw domain.
            small = [row for row in outer.size_classes if row.largest == 16 and row.domain != "raw"]
            assert small == [], str(outer)
        """)

    def test_overlapping_counts_are_each_right(self):
        first, second = allocwall.count(), allocwall.count()
        first.__enter__()
        one = bytes(1000)
        second.__enter__()
        two = bytes(1000)
        first.__exit__(None, None, None)
        three = bytes(1000)
        del one, two, three
        second.__exit__(None, None, None)
        rows = [of(counted, "obj", 2048) for counted in (first, second)]
        self.assertEqual([(row.calls, row.frees) for row in rows], [(2, 0), (2, 2)])
        self.assertEqual(second.domains["obj"].older_frees, 1)

    def test_other_threads_calls_are_not_in_it(self):
        stop = threading.Event()

        def hammer():
            while not stop.is_set():
                [bytes(3000) for _ in range(100)]

        threads = [threading.Thread(target=hammer) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(50):
                with allocwall.count() as counted:
                    [bytes(1000) for _ in range(100)]
                self.assertEqual(of(counted, "obj", 2048).calls, 100)
                self.assertEqual(of(counted, "obj", 4096).calls, 0)
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_threads_that_count_at_once_are_each_right(self):
        wrong = []

        def work(n):
            for _ in range(30):
                with allocwall.count() as counted:
                    kept = [bytes(600 + n) for _ in range(n)]
                    del kept
                row = of(counted, "obj", 1024)
                if (row.calls, row.frees, row.bytes) != (n, n, n * sys.getsizeof(bytes(600 + n))):
                    wrong.append(str(counted))

        threads = [threading.Thread(target=work, args=(10 * (i + 1),)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_memory_from_another_thread_is_older(self):
        box = []
        thread = threading.Thread(target=lambda: box.extend(bytes(5000) for _ in range(100)))
        with allocwall.count() as counted:
            thread.start()
            thread.join()
            before = counted.older_frees
            box.clear()
            after = counted.older_frees
        self.assertEqual(of(counted, "obj", 8192).calls, 0)
        # And the list's array; 3.13 sometimes frees data that it kept for the thread.
        self.assertIn(after - before, range(101, 105))

    def test_an_address_that_another_thread_gave_back_is_a_new_block(self):
        box = []
        with allocwall.count() as counted:
            for _ in range(20):
                box.append(bytes(40_000))
                thread = threading.Thread(target=box.clear)
                thread.start()
                thread.join()
            kept = bytes(40_000)
        row = of(counted, "obj", 65536)
        self.assertEqual((row.calls, row.frees), (21, 0))
        self.assertEqual(len(kept), 40_000)

    def test_a_count_ends_where_it_began(self):
        counted = allocwall.count()
        counted.__enter__()
        errors = []

        def end():
            for call in (lambda: counted.__exit__(None, None, None), lambda: counted.calls):
                try:
                    call()
                except RuntimeError as error:
                    errors.append(str(error))

        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
        self.assertEqual(errors, ["this count began on another thread: use it there until it has ended"] * 2)
        counted.__exit__(None, None, None)
        self.assertGreater(counted.calls, 0)

    def test_a_count_that_is_dropped_is_over(self):
        for where in ("here", "elsewhere"):
            with allocwall.count() as outer:
                lost = [allocwall.count()]
                lost[0].__enter__()
                if where == "here":
                    lost.clear()
                else:
                    thread = threading.Thread(target=lost.clear)
                    thread.start()
                    thread.join()
                kept = bytes(1000)
            self.assertEqual(of(outer, "obj", 2048).calls, 1)
            self.assertEqual(len(kept), 1000)

    def held_by_a_count_alone(self, at_its_end):
        """Runs code to which then only a count by line has a reference; calls this when the code object is freed."""

        class Late:
            def __del__(self):
                at_its_end()

        def made():
            return [bytes(1000) for _ in range(10)]

        code = made.__code__
        made.__code__ = code.replace(co_consts=(*code.co_consts, Late()))
        made()

    def test_code_that_ends_with_a_count_given_up_elsewhere_may_count(self):
        seen = []

        def count_again():
            with allocwall.count() as inner:
                bytes(5000)
            seen.append(of(inner, "obj", 8192).calls)

        # The next count begins, and another one ends, on the thread that it began on.
        for sweeps in ("begin", "end"):
            with self.subTest(sweeps):
                outer = allocwall.count()
                if sweeps == "end":
                    outer.__enter__()
                counted = allocwall.count(by_line=True)
                counted.__enter__()
                self.held_by_a_count_alone(count_again)
                self.assertEqual(seen, [])
                box = [counted]
                del counted
                thread = threading.Thread(target=box.clear)
                thread.start()
                thread.join()
                if sweeps == "begin":
                    with outer:
                        pass
                    # What ended before it began is not in it.
                    self.assertEqual((outer.older_frees, outer.bytes), (0, 0), outer)
                else:
                    outer.__exit__(None, None, None)
                self.assertEqual(seen, [1])
                seen.clear()

    def test_code_that_ends_as_a_count_is_used_again_may_ask_it(self):
        for end in (lambda counted: counted.__exit__(None, None, None), lambda counted: counted.finish()):
            seen = []
            counted = allocwall.count(by_line=True)
            with counted:
                self.held_by_a_count_alone(lambda: seen.append(counted.calls))
            self.assertEqual(seen, [])
            counted.__enter__()
            end(counted)
            self.assertEqual(seen, [counted.calls])

    def test_a_thread_that_ends_inside_of_a_count(self):
        kept = []

        def work():
            kept.append(allocwall.count())
            kept[0].__enter__()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with self.assertRaisesRegex(RuntimeError, "began on another thread"):
            kept[0].calls
        kept.clear()

    def test_any_order_of_calls_and_counts(self):
        for seed in range(40):
            Play(self, seed).run()

    def test_many_counts_in_one(self):
        with allocwall.count() as outer:
            kept = bytes(1000)
            for _ in range(140_000):
                with allocwall.count():
                    pass
            del kept
        row = of(outer, "obj", 2048)
        self.assertEqual((row.frees, row.live_bytes), (1, 0))


class Believed:
    """A model of a count, from the definitions: a block belongs to the count if it is allocated while the count is active, until it is
    freed or resized; frees are counted while the count is active."""

    def __init__(self):
        self.sums, self.live, self.peaks = {}, {}, {}

    def asked(self, place, size, resized):
        row = self.sums.setdefault(place, [0, 0, 0, 0])
        row[0] += 1
        row[1] += resized
        row[3] += size
        self.moved(place, size)

    def gone(self, place, size, counted):
        self.sums[place][2] += counted
        self.moved(place, -size)

    def moved(self, place, by):
        for level in (place, place[0], None):
            self.live[level] = self.live.get(level, 0) + by
            self.peaks[level] = max(self.peaks.get(level, 0), self.live[level])


class Play:
    """Random direct calls in random domains, while counts begin, wait, continue and end in any order. All blocks have more than
    1 MiB, a size that no other code here allocates."""

    def __init__(self, case, seed):
        self.case, self.seed, self.random = case, seed, random.Random(seed)
        self.blocks, self.counts, self.active = [], {}, []
        self.left = 150

    def run(self):
        while self.left:
            self.act(0)
        for counted in list(self.counts):
            self.end(counted)
        while self.blocks:
            self.free()

    def act(self, depth):
        for _ in range(self.random.randrange(1, 12)):
            if not self.left:
                return
            self.left -= 1
            roll = self.random.random()
            if roll < 0.35 or not self.blocks:
                self.malloc()
            elif roll < 0.6:
                self.free()
            elif roll < 0.75:
                self.realloc()
            elif roll < 0.82 and len(self.counts) < 5:
                counted = allocwall.count()
                # Either a block that is active until it ends, or a series of steps.
                if self.random.random() < 0.5:
                    counted.__enter__()
                    self.active.append(counted)
                self.counts[counted] = Believed()
            elif roll < 0.86 and self.counts:
                self.end(self.random.choice(list(self.counts)))
            elif depth < 4:
                waiting = [counted for counted in self.counts if counted not in self.active]
                if waiting:
                    self.step(self.random.choice(waiting), depth)

    def step(self, counted, depth):
        self.active.append(counted)
        counted.step(self.act, (depth + 1,))
        if counted in self.active:
            self.active.remove(counted)

    def end(self, counted):
        believed = self.counts[counted]
        begun = believed.sums or counted in self.active
        if counted in self.active:
            self.active.remove(counted)
        counted.finish()
        del self.counts[counted]
        if begun:
            self.compare(counted, believed)

    def compare(self, counted, believed):
        seen = {(row.domain, row.largest): row for row in counted.size_classes if row.largest > 1 << 20}
        says = "seed %d: %s" % (self.seed, counted)
        for place in set(seen) | set(believed.sums):
            row = of(counted, *place)
            expected = [*believed.sums.get(place, [0] * 4), believed.live.get(place, 0), believed.peaks.get(place, 0)]
            self.case.assertEqual(list(row[2:]), expected, says)
        # Including the calls of Python itself meanwhile.
        for domain in DOMAINS:
            beside = counted.domains[domain].peak_bytes - believed.peaks.get(domain, 0)
            self.case.assertTrue(0 <= beside < 1 << 20, says)
        self.case.assertTrue(0 <= counted.peak_bytes - believed.peaks.get(None, 0) < 1 << 20, says)
        self.case.assertTrue(counted.complete, says)

    def size(self):
        return self.random.randrange((1 << 20) + 1, 7 << 20)

    @staticmethod
    def place(domain, size):
        return domain, 1 << (size - 1).bit_length()

    def malloc(self):
        domain, size = self.random.choice(list(DOMAINS)), self.size()
        address = getattr(api, DOMAINS[domain] + self.random.choice(["Malloc", "Realloc"]))
        address = address(size) if len(address.argtypes) == 1 else address(None, size)
        self.enter(domain, size, address, False)

    def enter(self, domain, size, address, resized):
        for counted in self.active:
            self.counts[counted].asked(self.place(domain, size), size, resized)
        self.blocks.append((domain, size, address, set(self.active)))

    def take(self):
        return self.blocks.pop(self.random.randrange(len(self.blocks)))

    def free(self):
        domain, size, address, owners = self.take()
        getattr(api, DOMAINS[domain] + "Free")(address)
        for counted in owners & set(self.counts):
            self.counts[counted].gone(self.place(domain, size), size, counted in self.active)

    def realloc(self):
        domain, old, address, owners = self.take()
        size = self.size()
        address = getattr(api, DOMAINS[domain] + "Realloc")(address, size)
        for counted in owners & set(self.counts):
            self.counts[counted].gone(self.place(domain, old), old, False)
        self.enter(domain, size, address, True)


class Functions(Exact):
    def test_a_function_is_counted_by_call(self):
        @allocwall.count()
        def made(n, *, size=1000):
            return [bytes(size) for _ in range(n)]

        self.assertEqual(made.__name__, "made")
        self.assertEqual(len(made(3)), 3)
        self.assertEqual(len(made(n=5, size=1500)), 5)
        self.assertEqual((made.counts.counts, of(made.counts, "obj", 2048).calls), (2, 8))
        row = of(made.counts, "obj", 2048)
        # The sum of what was live at the end of each call, and the highest of their peaks.
        self.assertEqual(row.live_bytes, 3 * sys.getsizeof(bytes(1000)) + 5 * sys.getsizeof(bytes(1500)))
        self.assertEqual(row.peak_bytes, 5 * sys.getsizeof(bytes(1500)))

    def test_the_brackets_may_be_left_out(self):
        @allocwall.count
        def made(n):
            return [bytes(1000) for _ in range(n)]

        @allocwall.count
        async def steps():
            return bytes(1000)

        self.assertEqual((made.__name__, len(made(3))), ("made", 3))
        self.assertEqual((made.counts.counts, of(made.counts, "obj", 2048).calls), (1, 3))
        self.assertEqual(len(asyncio.run(steps())), 1000)
        self.assertEqual(of(steps.counts, "obj", 2048).calls, 1)
        for wrong in (7, "by_line"):
            with self.assertRaises(TypeError):
                allocwall.count(wrong)
        with allocwall.count(by_line=True) as counted:
            bytes(1000)
        self.assertIsInstance(counted, allocwall.count)
        self.assertTrue(counted.lines)

    def test_nothing_but_the_functions_own_work(self):
        @allocwall.count()
        def nothing():
            pass

        # At the first call, an interpreter before 3.11 makes a frame that it then keeps.
        nothing.__wrapped__()
        nothing()
        nothing()
        self.assertEqual((nothing.counts.counts, nothing.counts.calls), (2, 0), nothing.counts)

    def test_a_function_that_raises_is_counted_too(self):
        @allocwall.count()
        def raises():
            kept = bytes(1000)
            raise KeyError(len(kept))

        with self.assertRaises(KeyError):
            raises()
        self.assertEqual((raises.counts.counts, of(raises.counts, "obj", 2048).calls), (1, 1))

    def test_only_the_coroutines_own_steps_are_counted(self):
        @allocwall.count()
        async def mine():
            kept = [bytes(1000)]
            await asyncio.sleep(0)
            kept.append(bytes(1000))
            for _ in range(5):
                await asyncio.sleep(0.001)
            del kept
            return 7

        async def others():
            for _ in range(200):
                [bytes(3000) for _ in range(10)]
                await asyncio.sleep(0)

        async def main():
            return await asyncio.gather(mine(), others(), mine(), others())

        self.assertEqual(asyncio.run(main())[::2], [7, 7])
        row = of(mine.counts, "obj", 2048)
        self.assertEqual((mine.counts.counts, row.calls, row.frees, row.live_bytes), (2, 4, 4, 0))
        self.assertEqual(of(mine.counts, "obj", 4096).calls, 0)
        self.assertTrue(mine.counts.complete)

    def test_memory_of_a_coroutine_that_others_free_while_it_waits(self):
        box = []

        @allocwall.count()
        async def mine():
            box.append(bytes(1000))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return 1

        async def others():
            box.clear()

        async def main():
            await asyncio.gather(mine(), others())

        asyncio.run(main())
        row = of(mine.counts, "obj", 2048)
        # It was freed, but not by this coroutine.
        self.assertEqual((row.calls, row.frees, row.live_bytes), (1, 0, 0))

    def test_a_coroutine_that_is_cancelled_or_raises(self):
        @allocwall.count()
        async def waits():
            kept = bytes(1000)
            try:
                await asyncio.sleep(60)
            finally:
                self.assertEqual(len(kept), 1000)

        async def main():
            task = asyncio.ensure_future(waits())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        self.assertEqual((waits.counts.counts, of(waits.counts, "obj", 2048).calls), (1, 1))

        @allocwall.count()
        async def raises():
            raise KeyError

        with self.assertRaises(KeyError):
            asyncio.run(raises())
        self.assertEqual(raises.counts.counts, 1)

    def test_a_with_block_around_an_await_counts_the_whole_thread(self):
        async def others():
            [bytes(3000) for _ in range(10)]

        async def main():
            task = asyncio.ensure_future(others())
            with allocwall.count() as counted:
                await task
            return counted

        self.assertEqual(of(asyncio.run(main()), "obj", 4096).calls, 10)

    def test_a_generators_steps_and_not_its_callers(self):
        @allocwall.count()
        def parts(n):
            for _ in range(n):
                got = yield bytes(1000)
            return got

        generator = parts(3)
        kept = [next(generator)]
        kept += [bytes(3000) for _ in range(10)]
        kept.append(generator.send(1))
        kept.append(generator.send(2))
        with self.assertRaises(StopIteration) as stop:
            generator.send("end")
        self.assertEqual(stop.exception.value, "end")
        self.assertEqual((of(parts.counts, "obj", 2048).calls, of(parts.counts, "obj", 4096).calls), (3, 0))

    def test_a_generator_that_is_left(self):
        @allocwall.count()
        def parts():
            yield bytes(1000)
            yield 2

        for one in parts():
            break
        del one
        gc.collect()
        self.assertEqual((parts.counts.counts, of(parts.counts, "obj", 2048).calls), (1, 1))

    def test_asynchronous_generators_are_refused(self):
        with self.assertRaises(TypeError):

            @allocwall.count()
            async def parts():
                yield 1


class Lines(unittest.TestCase):
    def test_each_line_has_its_calls_and_the_sum_is_the_same(self):
        def work():
            kept = [bytes(1000) for _ in range(10)]
            kept.append(bytes(2000)); more = bytearray(5000)
            return kept, more

        work()
        plain, lines = allocwall.count(), allocwall.count(by_line=True)
        with plain:
            first = work()
        with lines:
            second = work()
        self.assertEqual(
            (plain.calls, plain.bytes, plain.reallocs, plain.frees, plain.peak_bytes),
            (lines.calls, lines.bytes, lines.reallocs, lines.frees, lines.peak_bytes),
        )
        asked = lines.lines
        self.assertEqual(sum(line.calls for line in asked), lines.calls)
        self.assertEqual(sum(line.bytes for line in asked), lines.bytes)
        start = work.__code__.co_firstlineno
        here = {}
        for line in asked:
            self.assertEqual(line.file, __file__)
            here[line.line - start] = here.get(line.line - start, 0) + line.calls
        self.assertGreaterEqual(here[1], 10)
        self.assertGreaterEqual(here[2], 2)
        self.assertEqual(lines.lines, [])
        self.assertEqual(plain.lines, [])
        self.assertEqual(len(first), len(second))

    def test_deep_stacks_and_exceptions(self):
        def deep(n):
            if n:
                return deep(n - 1)
            raise KeyError(bytes(1000))

        counted = allocwall.count(by_line=True)
        with counted:
            for _ in range(50):
                try:
                    deep(50)
                except KeyError:
                    pass
        self.assertEqual(of(counted, "obj", 2048).calls, 50)
        self.assertEqual(sum(line.calls for line in counted.lines), counted.calls)


class Processes(unittest.TestCase):
    def test_a_forked_child_goes_on_counting(self):
        python("""
            import os, allocwall
            with allocwall.count() as counted:
                one = bytes(1000)
                child = os.fork()
                two = bytes(1001)
                del one
            row = [r for r in counted.size_classes if r.largest == 2048][0]
            assert (row.calls, row.frees) == (2, 1), str(counted)
            if child == 0:
                with allocwall.count() as again:
                    pass
                os._exit(int(again.calls != 0))
            assert os.waitpid(child, 0)[1] == 0
        """)

    def test_forks_while_threads_count(self):
        python("""
            import os, threading, allocwall
            # What is imported by a thread at the moment of a fork can't be imported in the child.
            allocwall.count
            stop = threading.Event()
            def work():
                while not stop.is_set():
                    with allocwall.count():
                        [bytes(i) for i in range(300)]
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads: thread.start()
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    with allocwall.count() as counted:
                        kept = [bytes(1000) for _ in range(10)]
                    os._exit(int([r.calls for r in counted.size_classes if r.largest == 2048] != [10]))
                assert os.waitpid(child, 0)[1] == 0
            stop.set()
            for thread in threads: thread.join()
        """)

    def test_threads_that_python_never_saw_in_the_raw_domain(self):
        source = r"""
            #include <pthread.h>
            #include <stdlib.h>
            #include <string.h>
            #include <errno.h>
            extern void *PyMem_RawMalloc(size_t);
            extern void *PyMem_RawCalloc(size_t, size_t);
            extern void *PyMem_RawRealloc(void *, size_t);
            extern void PyMem_RawFree(void *);
            static pthread_key_t key;
            static long wrong;
            static void at_end(void *block) { PyMem_RawFree(PyMem_RawRealloc(block, 3000)); }
            static void *hammer(void *arg) {
                unsigned seed = (unsigned)(size_t)arg;
                unsigned char *blocks[64] = {0};
                size_t sizes[64] = {0};
                errno = 99;
                for (int i = 0; i < 200000; i++) {
                    int at = rand_r(&seed) % 64;
                    for (size_t k = 0; k < sizes[at]; k += 97)
                        if (blocks[at][k] != (unsigned char)at) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
                    sizes[at] = rand_r(&seed) % 2000;
                    if (i % 3 == 0) { PyMem_RawFree(blocks[at]); blocks[at] = PyMem_RawMalloc(sizes[at]); }
                    else if (i % 3 == 1) { PyMem_RawFree(blocks[at]); blocks[at] = PyMem_RawCalloc(1, sizes[at]); }
                    else blocks[at] = PyMem_RawRealloc(blocks[at], sizes[at]);
                    memset(blocks[at], at, sizes[at]);
                }
                if (errno != 99) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
                for (int i = 0; i < 64; i++) PyMem_RawFree(blocks[i]);
                pthread_setspecific(key, PyMem_RawMalloc(1000));
                return 0;
            }
            long run(int threads) {
                pthread_t ids[64];
                pthread_key_create(&key, at_end);
                for (int i = 0; i < threads; i++) pthread_create(&ids[i], 0, hammer, (void *)(size_t)(i + 1));
                for (int i = 0; i < threads; i++) pthread_join(ids[i], 0);
                return wrong;
            }
        """
        import shutil
        import subprocess
        import tempfile
        from pathlib import Path

        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("no C compiler")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "hammer.c").write_text(source)
            library = str(Path(folder, "hammer.so"))
            subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-pthread", "-o", library, str(Path(folder, "hammer.c"))], check=True)
            python("""
                import ctypes, sys, allocwall
                library = ctypes.CDLL(%r)
                with allocwall.count() as counted:
                    assert library.run(8) == 0
                assert counted.domains["raw"].calls < 100, str(counted)
                # And counted from within such a thread's own callback.
                found = []
                def called(_):
                    with allocwall.count() as inner:
                        kept = [bytes(1000) for _ in range(10)]
                    found.append([row.calls for row in inner.size_classes if row.largest == 2048])
                    return 0
                CALL = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
                create = ctypes.CDLL(None).pthread_create
                join = ctypes.CDLL(None).pthread_join
                id = ctypes.c_ulong()
                call = CALL(called)
                assert create(ctypes.byref(id), None, call, None) == 0
                assert join(id, None) == 0
                assert found == [[10]], found
            """ % library)


class Neighbours(unittest.TestCase):
    """Other hooks in the allocators."""

    KNOWN = """
        import gc; gc.disable()
        def known():
            kept = [None] * 100
            with allocwall.count() as counted:
                for i in range(100):
                    kept[i] = bytes(1000)
            row = [r for r in counted.size_classes if (r.domain, r.largest) == ("obj", 2048)][0]
            assert (row.calls, row.live_bytes) == (100, 100 * 1033), str(counted)
            assert counted.complete
            return kept
        def traced():
            before = tracemalloc.get_traced_memory()[0]
            kept = known()
            return tracemalloc.get_traced_memory()[0] - before >= 100 * 1033
    """

    def test_tracemalloc_in_every_order(self):
        for body in (
            # After.
            "known(); tracemalloc.start(); assert traced(); tracemalloc.stop(); known()",
            # Before: its end takes the hooks out, and the next count puts them back.
            "tracemalloc.start(); known(); assert traced(); tracemalloc.stop(); known(); known()",
            # Before, and again.
            "tracemalloc.start(); known(); tracemalloc.stop(); tracemalloc.start(); assert traced(); tracemalloc.stop(); known()",
            "tracemalloc.start(); known(); tracemalloc.stop(); known(); tracemalloc.start(); assert traced(); tracemalloc.stop(); known()",
            "for _ in range(50): tracemalloc.start(); known(); assert traced(); tracemalloc.stop()",
            "for _ in range(50): known(); tracemalloc.start(); known(); tracemalloc.stop(); known()",
        ):
            python("import allocwall, tracemalloc\n" + "\n".join(l[8:] for l in self.KNOWN.splitlines()) + "\n" + body)

    def test_a_block_in_which_the_hooks_were_taken_out_says_so(self):
        python("""
            import allocwall, tracemalloc
            tracemalloc.start()
            with allocwall.count() as counted:
                tracemalloc.stop()
            assert not counted.complete
            assert "not complete" in str(counted)
            with allocwall.count() as counted:
                pass
            assert counted.complete
        """)

    def test_bytes_and_peak_agree_with_tracemallocs(self):
        python("""
            import gc, allocwall, tracemalloc
            gc.disable()
            def work():
                kept = []
                for i in range(500):
                    kept.append({"a": str(i) * 20, "b": [i] * (i % 50), "c": bytes(i * 7)})
                    if i % 5 == 0: kept.pop(0)
                return kept
            work()
            tracemalloc.start()
            with allocwall.count() as counted:
                tracemalloc.clear_traces()
                tracemalloc.reset_peak()
                kept = work()
                live, peak = tracemalloc.get_traced_memory()
            assert abs(counted.live_bytes - live) < 1000, (counted.live_bytes, live, str(counted))
            assert abs(counted.peak_bytes - peak) < 1000, (counted.peak_bytes, peak)
        """)

    def test_the_debug_allocator(self):
        for value in ("debug", "malloc", "malloc_debug", "pymalloc"):
            python(self.SCRIPT, PYTHONMALLOC=value)

    SCRIPT = """
        import allocwall
        older = [bytes(i) for i in range(1000)]
        with allocwall.count() as counted:
            kept = [bytes(1000) for _ in range(50)]
            older.clear()
        row = [r for r in counted.size_classes if (r.domain, r.largest) == ("obj", 2048)][0]
        assert (row.calls, row.bytes) == (50, 50 * 1033), str(counted)
    """

    def test_huge_pages_in_either_order(self):
        for body in ("enable(); used()", "used(); enable(); used()"):
            python("""
                import allocwall
                def enable():
                    try:
                        allocwall.hugepages.enable()
                    except allocwall.hugepages.Refused as refused:
                        print(refused)
                def used():
                    with allocwall.count() as counted:
                        kept = [bytearray(200) for _ in range(20_000)]
                    assert counted.domains["obj"].calls + counted.domains["mem"].calls >= 40_000, str(counted)
                    assert counted.complete
            """ + "\n                " + body)

    def test_memray_in_either_order(self):
        try:
            import memray  # noqa: F401
        except ImportError:
            self.skipTest("memray is not installed")
        track = "tempfile.TemporaryDirectory() as folder, memray.Tracker(folder + '/m', trace_python_allocators=True)"
        for body in (
            "known()\nwith %s:\n    known()\nknown()" % track,
            "with %s:\n    known()\nknown()" % track,
            "with %s:\n    known()\nwith %s:\n    known()\nknown()" % (track, track),
            "tracemalloc.start()\nwith %s:\n    known()\ntracemalloc.stop()\nknown()" % track,
        ):
            python("import allocwall, tracemalloc, tempfile, memray\n" + "\n".join(l[8:] for l in self.KNOWN.splitlines()) + "\n" + body)


class Refusals(unittest.TestCase):
    def test_the_package_is_there_without_counting(self):
        out = python("import sys, allocwall; print('allocwall.counting' in sys.modules, 'allocwall._native' in sys.modules)")
        self.assertEqual(out, "False False\n")

    def test_unknown_attributes_are_unknown(self):
        with self.assertRaises(AttributeError):
            allocwall.counts

    def test_an_extension_that_is_not_there(self):
        out = python("""
            import sys
            sys.modules["allocwall._native"] = None
            import allocwall
            try:
                allocwall.count
            except ImportError as error:
                print(error)
        """)
        self.assertIn("can't be loaded here", out)


if __name__ == "__main__":
    unittest.main()

"""The package in new interpreters: the body of each test is a script that a new interpreter runs."""

import ast
import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from unittest import mock

import allocwall
from allocwall import _native, hugepages

MIB = 1 << 20
TRANSPARENT = _native.transparent_refusal()


def interpreter(*arguments, **environment):
    """A finished run of an interpreter without our variables and those of its allocator. If it fails, the test fails."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONMALLOC", "ALLOCWALL"))}
    run = subprocess.run(
        [sys.executable, *arguments],
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=120,
    )
    if run.returncode != 0:
        raise AssertionError("exit status %d\n%s%s" % (run.returncode, run.stdout, run.stderr))
    return run


def python(script, *arguments, **environment):
    """Runs a script and returns its standard output."""
    return interpreter(*arguments, "-c", textwrap.dedent(script), **environment).stdout


def has_subinterpreters():
    try:
        __import__("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:
        return False
    return True


@unittest.skipIf(TRANSPARENT, TRANSPARENT)
class Working(unittest.TestCase):
    def test_new_objects_are_on_huge_pages_in_truth_and_intact(self):
        python("""
            from allocwall import hugepages
            hugepages.enable(watch_price=False)
            objects = [bytearray(b"%d" % i) * 20 for i in range(300_000)]
            status = hugepages.status()
            assert status["mode"] == "thp" and status["on"], status
            assert status["arenas"] * status["arena_bytes"] > 30 << 20, status
            assert status["fallbacks"]["missed"] or status["huge_bytes"] > 0.9 * status["slab_bytes"], status
            assert status["faults"]["huge"] == status["slabs_mapped"] > 0, status
            assert status["faults"]["huge_ns"] > 0, status
            # Without the price of small pages.
            assert status["host"] is None, status
            assert all(o == b"%d" % i * 20 for i, o in enumerate(objects))
        """)

    def test_the_first_slab_measures_the_price_of_small_pages(self):
        python("""
            from allocwall import hugepages
            hugepages.enable()
            objects = [bytearray(200) for i in range(200_000)]
            status = hugepages.status()
            assert status["faults"]["small_ns"] > 0, status
            small = status["slabs_mapped"] - status["faults"]["huge"]
            assert small == 1 + status["fallbacks"]["dear"], status
            compared = status["faults"]["huge"] - status["fallbacks"]["missed"]
            assert (status["host"] in ("warm", "cold")) == (compared >= 4), status
        """)

    def test_freed_memory_returns_to_the_system(self):
        python("""
            import gc
            from allocwall import hugepages
            hugepages.enable()
            objects = [bytearray(200) for _ in range(200_000)]
            full = hugepages.status()
            del objects; gc.collect()
            after = hugepages.status()
            assert after["slabs"] <= full["slabs"] // 10, (full, after)
            assert after["slabs_released"] + after["slabs"] == after["slabs_mapped"], after
        """)

    def test_a_heap_that_grows_and_shrinks_pays_only_once(self):
        python("""
            from allocwall import hugepages
            hugepages.enable(keep_mib=64)
            mapped = []
            for _ in range(5):
                objects = [bytearray(200) for _ in range(50_000)]
                del objects
                mapped.append(hugepages.status()["slabs_mapped"])
            assert mapped[0] < mapped[1], mapped
            assert mapped[4] - mapped[2] <= 2, mapped
            assert hugepages.status()["slabs_reused"] > 0
        """)

    def test_by_default_one_slab_and_a_share_of_those_in_use_are_kept(self):
        python("""
            from allocwall import hugepages
            hugepages.enable()
            for _ in range(5):
                objects = [bytearray(200) for _ in range(200_000)]
                for left in (150_000, 100_000, 50_000, 0):
                    del objects[left:]
                    status = hugepages.status()
                    used = status["slabs"] - status["slabs_kept"]
                    assert status["slabs_kept"] <= 1 + used // 20, status
            assert status["slabs_reused"] > 0, status
        """)

    def test_a_heap_that_shrank_holds_as_much_as_with_stock(self):
        script = """
            import random
            from allocwall import hugepages
            if %r:
                hugepages.enable()
            def resident():
                with open("/proc/self/statm") as file:
                    return int(file.read().split()[1]) << 12
            before = resident()
            dice = random.Random(1)
            # Each group is allocated together and freed together, in random order.
            groups = [[bytearray(200) for _ in range(3_000)] for _ in range(150)]
            for n in range(len(groups)):
                if dice.random() > 0.1:
                    groups[n] = None
            for group in groups:
                assert group is None or all(not any(one) for one in group)
            status = hugepages.status()
            print(resident() - before, status.get("trims"))
        """
        stock, _ = python(script % False).split()
        ours, trims = python(script % True).split()
        self.assertGreater(int(trims), 0)
        # 5 %, one slab of idle arenas, one kept slab, and the rest of the last slab.
        self.assertLess(int(ours), 1.05 * int(stock) + 3 * 2**21, trims)

    def test_nothing_is_kept_where_nothing_may_be(self):
        python("""
            from allocwall import hugepages
            hugepages.enable(keep_mib=0)
            for _ in range(4):
                objects = [bytearray(200) for _ in range(50_000)]
                del objects
                status = hugepages.status()
                assert status["slabs_kept"] == status["keep_target"] == 0, status
        """)

    def test_arenas_that_were_there_before_come_back_through_the_hook(self):
        python("""
            import gc
            from allocwall import hugepages
            before = [bytearray(200) for _ in range(200_000)]
            hugepages.enable()
            assert hugepages.status()["foreign_frees"] == 0
            mine = [bytearray(200) for _ in range(200_000)]
            del before; gc.collect()
            status = hugepages.status()
            assert status["foreign_frees"] * status["arena_bytes"] > 20 << 20, status
            assert status["misplaced_frees"] == 0, status
            again = [bytearray(200) for _ in range(200_000)]
        """)

    def test_disable_stops_new_arenas_only_and_enable_goes_on(self):
        python("""
            import gc
            from allocwall import hugepages
            hugepages.disable()
            hugepages.enable()
            mine = [bytearray(200) for _ in range(100_000)]
            on = hugepages.status()
            hugepages.disable()
            assert hugepages.status()["mode"] == "off" and not hugepages.status()["on"]
            other = [bytearray(200) for _ in range(200_000)]
            off = hugepages.status()
            assert off["arenas_given"] == on["arenas_given"], (on, off)
            del mine, other; gc.collect()
            freed = hugepages.status()
            assert freed["arenas"] < on["arenas"] // 5, (on, freed)
            assert freed["foreign_frees"] > 0, freed
            hugepages.enable()
            mine = [bytearray(200) for _ in range(100_000)]
            assert hugepages.status()["arenas_given"] > freed["arenas_given"]
            try:
                hugepages.enable(keep_mib=1)
            except hugepages.Refused as refused:
                assert refused.reason == "hook" and "other settings" in str(refused), refused
            else:
                raise AssertionError("settings were changed")
        """)

    def test_a_small_script_pays_at_most_one_slab(self):
        script = """
            import re
            from allocwall import hugepages
            hugepages.status()
            if %r:
                hugepages.enable()
            objects = [str(i) for i in range(%d)]
            print(int(re.search("VmRSS:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) << 10)
        """
        for objects in (1_000, 20_000, 60_000):
            stock, ours = (
                min(int(python(script % (on, objects))) for _ in range(3)) for on in (False, True)
            )
            # The resident memory of two new processes always differs by some pages.
            self.assertLessEqual(ours - stock, 2 * MIB + 300_000, (objects, stock, ours))

    def test_threads(self):
        python("""
            import threading
            from allocwall import hugepages
            hugepages.enable()
            failures = []
            def churn(mark):
                for _ in range(20):
                    objects = [bytes([mark]) * (i % 500 + 1) for i in range(5_000)]
                    if not all(o == bytes([mark]) * (i % 500 + 1) for i, o in enumerate(objects)):
                        failures.append(mark)
            threads = [threading.Thread(target=churn, args=(mark,)) for mark in range(6)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert not failures
            assert hugepages.status()["misplaced_frees"] == 0
        """)

    def test_forked_children_continue_with_the_inherited_state(self):
        python("""
            import gc, os, threading
            from allocwall import hugepages
            hugepages.enable()
            objects = [bytearray(b"%d" % i) * 10 for i in range(100_000)]
            stop = False
            def churn():
                while not stop:
                    [bytearray(300) for _ in range(3_000)]
            thread = threading.Thread(target=churn); thread.start()
            for _ in range(30):
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        assert all(o == b"%d" % i * 10 for i, o in enumerate(objects))
                        mine = [bytearray(300) for _ in range(50_000)]
                        status = hugepages.status()
                        assert status["forked"] and status["misplaced_frees"] == 0, status
                        del mine, objects[:]; gc.collect()
                        assert hugepages.status()["arenas"] < status["arenas"]
                        code = 0
                    finally:
                        os._exit(code)
                assert os.waitpid(pid, 0)[1] == 0
            stop = True; thread.join()
            assert not hugepages.status()["forked"]
            assert all(o == b"%d" % i * 10 for i, o in enumerate(objects))
        """, "-W", "ignore::DeprecationWarning")

    def test_children_collapse_split_pages_if_requested(self):
        script = """
            import os
            from allocwall import hugepages
            hugepages.enable(watch_price=False, collapse_in_children=%r)
            objects = [bytearray(200) for _ in range(100_000)]
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    collapsed = hugepages.status()["collapsed"]
                    assert (collapsed is not None) == %r, collapsed
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(pid, 0)[1] == 0
        """
        for asked in (True, False):
            python(script % (asked, asked))

    @unittest.skipUnless(has_subinterpreters(), "this interpreter can't make others from Python")
    def test_other_interpreters_of_the_process_share_the_hook(self):
        python("""
            import sys
            if sys.version_info >= (3, 13):
                import _interpreters as interpreters
                run = interpreters.exec
            else:
                import _xxsubinterpreters as interpreters
                run = interpreters.run_string
            from allocwall import hugepages
            hugepages.enable()
            before = hugepages.status()["arenas_given"]
            for _ in range(3):
                other = interpreters.create()
                failure = run(other, "objects = [bytearray(200) for _ in range(100_000)]")
                assert failure is None, failure
                interpreters.destroy(other)
            status = hugepages.status()
            assert status["arenas_given"] - before > 30, status
            assert status["misplaced_frees"] == 0, status
        """)

    @unittest.skipUnless(has_subinterpreters(), "this interpreter can't make others from Python")
    def test_the_variable_does_no_harm_in_other_interpreters(self):
        python("""
            import sys
            if sys.version_info >= (3, 13):
                import _interpreters as interpreters
                run = interpreters.exec
            else:
                import _xxsubinterpreters as interpreters
                run = interpreters.run_string
            other = interpreters.create()
            failure = run(other, "import allocwall\\nallocwall.hugepages.status()")
            assert failure is None, failure
            interpreters.destroy(other)
        """, ALLOCWALL_HUGEPAGES="1")

    def test_a_limit_on_address_space_is_a_memory_error_as_with_stock(self):
        script = """
            import resource
            from allocwall import hugepages
            hugepages.status()
            if %r:
                hugepages.enable()
            size = int(open("/proc/self/statm").read().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20),) * 2)
            objects = []
            try:
                while True:
                    objects.append(bytearray(200))
            except MemoryError:
                count = len(objects)
                del objects
                print(count)
        """
        stock = int(python(script % False))
        ours = int(python(script % True))
        self.assertGreater(ours, 0.9 * stock)

    def test_many_cycles(self):
        python("""
            from allocwall import hugepages
            for _ in range(10_000):
                hugepages.enable()
                objects = [None] * 10
                hugepages.disable()
            hugepages.enable()
            for _ in range(300):
                objects = [bytearray(400) for _ in range(8_000)]
                del objects
            status = hugepages.status()
            assert status["misplaced_frees"] == 0, status
            assert status["arenas"] == status["arenas_given"] - status["arenas_returned"], status
        """)

    def test_tracemalloc_and_huge_pages_live_together_in_either_order(self):
        for first, second in (("tracemalloc.start()", "hugepages.enable()"), ("hugepages.enable()", "tracemalloc.start()")):
            python("""
                import tracemalloc
                from allocwall import hugepages
                %s
                %s
                objects = [bytearray(200) for _ in range(20_000)]
                assert hugepages.status()["arenas"] > 0
                assert tracemalloc.get_traced_memory()[0] > 4_000_000
                tracemalloc.stop()
                del objects
            """ % (first, second))

    def test_the_debug_allocator_still_finds_its_marks(self):
        python("""
            from allocwall import hugepages
            hugepages.enable()
            objects = [bytearray(200) for _ in range(50_000)]
            assert hugepages.status()["arenas"] > 0
            del objects
        """, "-X", "dev")

    def test_collapse_moves_existing_memory_to_huge_pages(self):
        python("""
            from allocwall import hugepages
            objects = [bytearray(b"%d" % i) * 20 for i in range(300_000)]
            try:
                hugepages.enable("collapse")
            except hugepages.Refused as refused:
                assert refused.reason == "kernel", refused
                raise SystemExit
            status = hugepages.status()
            assert status["mode"] == "collapse" and "arenas" not in status, status
            # The number of aligned 2 MiB ranges within one mapping depends on the layout: the 60 MiB sometimes have
            # only 10.
            assert status["collapsed"]["pages"] > 0 or status["collapsed"]["failed"], status
            assert all(o == b"%d" % i * 20 for i, o in enumerate(objects))
        """)

    def test_auto_collapses_and_hooks(self):
        python("""
            from allocwall import hugepages
            hugepages.enable("auto")
            objects = [bytearray(200) for _ in range(50_000)]
            status = hugepages.status()
            assert status["mode"] == "auto" and status["arenas"] > 5, status
        """)

    def test_deep_recursion_asks_for_chunks_that_are_no_arenas(self):
        python("""
            import sys
            from allocwall import hugepages
            hugepages.enable()
            sys.setrecursionlimit(20_000)
            def down(n):
                return 0 if n == 0 else 1 + down(n - 1)
            for _ in range(20):
                assert down(5_000) == 5_000
            status = hugepages.status()
            if sys.version_info >= (3, 11):
                assert status["fallbacks"]["odd_size"] > 0, status
            assert status["misplaced_frees"] == 0, status
        """)


class Reserved(unittest.TestCase):
    def test_forks_must_be_thought_of(self):
        with self.assertRaises(hugepages.Refused) as raised:
            hugepages.enable("hugetlb")
        self.assertEqual(raised.exception.reason, "fork")


class Refusals(unittest.TestCase):
    def refusal(self, mode="thp"):
        with self.assertRaises(hugepages.Refused) as raised:
            hugepages.enable(mode)
        self.assertEqual(hugepages.status()["refused"], (raised.exception.reason, str(raised.exception)))
        self.assertNotIn("\n", str(raised.exception))
        return raised.exception

    def test_another_implementation(self):
        with mock.patch.object(sys.implementation, "name", "pypy"):
            self.assertIn("pypy", str(self.refusal()))

    def test_another_system(self):
        with mock.patch.object(sys, "platform", "darwin"):
            self.assertEqual(self.refusal().reason, "system")

    def test_a_free_threaded_interpreter_names_the_variable_that_works(self):
        with mock.patch.object(sys, "abiflags", "t"):
            refused = self.refusal()
        self.assertEqual(refused.reason, "free_threaded")
        self.assertIn("MIMALLOC_ALLOW_LARGE_OS_PAGES=1", str(refused))

    def test_an_interpreter_with_its_own_switch(self):
        name = "_sysconfigdata_%s_%s_%s" % (sys.abiflags, sys.platform, getattr(sys.implementation, "_multiarch", ""))
        variables = mock.Mock(build_time_vars={"CONFIG_ARGS": "'--with-pymalloc-hugepages'"})
        with mock.patch.dict(sys.modules, {name: variables}), mock.patch.object(
            sys, "version_info", (3, 15, 0)
        ), mock.patch.dict(os.environ, PYTHON_PYMALLOC_HUGEPAGES="1"):
            self.assertEqual(self.refusal().reason, "own_switch")
            # With the option off, its arenas still have 2 MiB.
            del os.environ["PYTHON_PYMALLOC_HUGEPAGES"]
            self.assertIsNone(hugepages._own_switch())
            self.assertEqual(hugepages._arena_bytes(), 2 * MIB)

    def test_an_interpreter_without_pymalloc(self):
        with mock.patch.object(_native, "allocator_name", return_value="malloc"), mock.patch.dict(os.environ):
            os.environ.pop("PYTHONMALLOC", None)
            refused = self.refusal()
        self.assertEqual(refused.reason, "no_pymalloc")
        self.assertIn("without pymalloc", str(refused))

    def test_objects_from_malloc(self):
        script = """
            from allocwall import hugepages
            try:
                hugepages.enable()
            except hugepages.Refused as refused:
                print(refused.reason, refused)
        """
        for name in ("malloc", "malloc_debug"):
            self.assertIn("unset PYTHONMALLOC", python(script, PYTHONMALLOC=name))
        for name in ("pymalloc", "pymalloc_debug", "debug", "default"):
            self.assertEqual(python(script, PYTHONMALLOC=name), TRANSPARENT or "", name)
        # The interpreter ignores the variable, so nothing is refused.
        self.assertEqual(python(script, "-E", PYTHONMALLOC="malloc"), TRANSPARENT or "")

    def test_the_kernel_says_never(self):
        with mock.patch.object(_native, "transparent_refusal", return_value="transparent huge pages are off"):
            for mode in ("thp", "collapse", "auto"):
                self.assertEqual(self.refusal(mode).reason, "transparent")

    def test_the_process_may_not(self):
        out = python("""
            import ctypes
            PR_SET_THP_DISABLE = 41
            assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
            from allocwall import hugepages
            for mode in ("thp", "collapse"):
                try:
                    hugepages.enable(mode)
                except hugepages.Refused as refused:
                    print(refused)
        """)
        if TRANSPARENT is None:
            self.assertEqual(out.count("PR_SET_THP_DISABLE"), 2, out)

    def test_nonsense(self):
        with self.assertRaises(ValueError):
            hugepages.enable("large")
        with self.assertRaises(ValueError):
            hugepages.enable(keep_mib=-1)
        with self.assertRaises(ValueError):
            _native.collapse(1.5)


class Starting(unittest.TestCase):
    MODE = "import sys, allocwall; print(allocwall.hugepages.status()['mode'])"

    def test_nothing_is_imported_without_the_variable(self):
        # 3.15 imports _allocwall_start for any value of the variable.
        script = "import sys; print(any(name.startswith('allocwall') for name in sys.modules))"
        for environment in ({}, {"ALLOCWALL_HUGEPAGES": ""}, {"ALLOCWALL_HUGEPAGES": "0"}):
            self.assertEqual(python(script, **environment), "False\n", environment)

    def test_the_variable_imports_next_to_nothing(self):
        script = "import sys; print([name for name in ('threading', 'typing', 'sysconfig') if name in sys.modules])"
        if python(script) == "[]\n":
            self.assertEqual(python(script, ALLOCWALL_HUGEPAGES="1"), "[]\n")

    @unittest.skipIf(TRANSPARENT, TRANSPARENT)
    def test_the_variable_switches_on(self):
        self.assertEqual(python(self.MODE, ALLOCWALL_HUGEPAGES="1"), "thp\n")
        self.assertEqual(python(self.MODE, ALLOCWALL_HUGEPAGES="auto"), "auto\n")

    def said(self, **environment):
        """The output of an interpreter and of the one that it starts, and what they say on stderr."""
        script = """
            import allocwall, subprocess, sys
            print(allocwall.hugepages.status()["refused"][0], flush=True)
            if len(sys.argv) == 1:
                subprocess.run([sys.executable, __file__, "child"], check=True)
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "script.py")
            path.write_text(textwrap.dedent(script))
            run = interpreter(str(path), **environment)
        return run.stdout, run.stderr

    def test_an_unknown_value_of_the_variable_is_told_once_and_reported_by_status(self):
        for value in ("yes", "hugetlb"):
            out, told = self.said(ALLOCWALL_HUGEPAGES=value)
            self.assertEqual(out, "variable\nvariable\n")
            expected = "allocwall: ALLOCWALL_HUGEPAGES must be 1, thp, collapse or auto, not %r; objects stay on small pages\n" % value
            self.assertEqual(told, expected)

    def test_a_refusal_at_start_is_silent(self):
        self.assertEqual(self.said(ALLOCWALL_HUGEPAGES="1", PYTHONMALLOC="malloc"), ("no_pymalloc\nno_pymalloc\n", ""))

    def command(self, *arguments, **environment):
        return subprocess.run(
            [sys.executable, "-m", "allocwall", *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=60,
        )

    def test_run_starts_a_program_as_python_would(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "app.py")
            program.write_text(
                "import sys, beside\n"
                "print(__name__, sys.argv[1:], sys.path[0], beside.HERE)\n"
                "import allocwall; print(allocwall.hugepages.status()['mode'])\n"
                "sys.exit(7)\n"
            )
            Path(folder, "beside.py").write_text("HERE = True\n")
            run = self.command("run", str(program), "-x", "--mode", "y")
            expected = "__main__ ['-x', '--mode', 'y'] %s True\n%s\n" % (
                os.path.realpath(folder),
                "off" if TRANSPARENT else "thp",
            )
            self.assertEqual((run.stdout, run.returncode), (expected, 7), run.stderr)

    def test_run_starts_a_module_as_python_would(self):
        run = self.command("run", "-m", "json.tool", "--help")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("usage", run.stdout)

    def test_run_reports_a_refusal_and_continues_unless_required(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "app.py")
            program.write_text("print('ran')\n")
            run = self.command("run", str(program), PYTHONMALLOC="malloc")
            self.assertEqual((run.returncode, run.stdout), (0, "ran\n"))
            self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
            run = self.command("run", "--require", str(program), PYTHONMALLOC="malloc")
            self.assertEqual((run.returncode, run.stdout), (1, ""))

    def test_run_without_a_program(self):
        run = self.command("run", "/nonexistent/app.py")
        self.assertNotEqual(run.returncode, 0)


class Stubs(unittest.TestCase):
    def test_they_are_those_of_the_extension(self):
        package = Path(allocwall.__file__).parent
        self.assertTrue((package / "py.typed").exists())
        tree = ast.parse((package / "_native.pyi").read_text())
        self.compare(tree, _native, {name for name in dir(_native) if not name.startswith("_")})

    def compare(self, tree, built, names):
        """Compares the declarations with the built module: names, and the parameters of each function."""
        declared = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        self.assertEqual({name for name in declared if not name.startswith("_")}, names)
        for name, node in declared.items():
            if isinstance(node, ast.ClassDef):
                if not name.startswith("_"):
                    found = getattr(built, name)
                    self.compare(node, found, {name for name in vars(found) if not name.startswith("_")})
                continue
            decorators = {decorator.id for decorator in node.decorator_list}
            if name.startswith("_") or decorators == {"property"}:
                # Special methods have no signature.
                self.assertTrue(hasattr(built, name), name)
                continue
            parameters = inspect.signature(getattr(built, name)).parameters.values()
            positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
            keyword = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
            self.assertEqual(positional, [a.arg for a in node.args.args], name)
            self.assertEqual(keyword, [a.arg for a in node.args.kwonlyargs], name)

    @unittest.skipIf(TRANSPARENT, TRANSPARENT)
    def test_a_report_has_the_declared_keys(self):
        package = Path(allocwall.__file__).parent
        tree = ast.parse((package / "_native.pyi").read_text())
        declared = {
            node.name: {field.target.id for field in node.body}
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name.startswith("_")
        }
        out = python("""
            from allocwall import _native
            _native.install(1 << 20, reserved=False, keep_bytes=0, watch_price=True)
            report = _native.report()
            print({"_Report": set(report), "_Fallbacks": set(report["fallbacks"]), "_Faults": set(report["faults"]),
                   "_Collapsed": set(_native.collapse(1.0))})
        """)
        self.assertEqual(ast.literal_eval(out), declared)


if __name__ == "__main__":
    unittest.main()

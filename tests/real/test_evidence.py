"""Tests of the evidence: each log line is read, and each rule finds a planted fault and passes the near twin."""

import unittest

from evidence import JVM_PAUSE, MARGIN, NODE_PAUSE, NOT_CHANCE, collected, group, margin, paused_s, problems_beside
from services import Expectation

NODE = """\
listening on 127.0.0.1:20000, pid 7
[16380:0x406d48d0]      485 ms: Scavenge 4.0 (5.2) -> 3.0 (5.2) MB, 0.50 / 0.00 ms  (average mu = 1.000, current mu = 1.000) allocation failure;
[16380:0x406d48d0]      487 ms: Mark-sweep (reduce) 4.0 (5.2) -> 3.0 (5.2) MB, 2.25 / 0.75 ms  (+ 0.1 ms in 3 steps since start of marking) (average mu = 1.000)
[16380:0x406d48d0]      488 ms: Scav
"""
JVM = """\
[0.010s][info][gc] Using G1
[3.992s][info][gc] GC(55) Pause Young (Normal) (G1 Evacuation Pause) 5M->4M(48M) 6.250ms
[3.993s][info][gc] GC(56) Concurrent Mark Cycle
[3.996s][info][gc] GC(57) Pause Remark 5M->4M(48M) 3.750ms
[3.999s][info][gc] GC(56) Concurrent Mark Cycle 6.000ms
"""
EXPECT = Expectation(runtime="node", allocator="glibc", must_be_wall={"first_touch"})


def report(**status):
    return {"findings": [{"wall": wall, "status": said} for wall, said in status.items()]}


def found(bounds, **status):
    return list(problems_beside(report(**status), EXPECT, bounds))


class Stacks(unittest.TestCase):
    def test_at_its_entry_a_call_is_known_by_libcs_function(self):
        entry = [("do_syscall_64", "[kernel.kallsyms]"), ("entry_SYSCALL_64_after_hwframe", "[kernel.kallsyms]")]
        libc = "/usr/lib/x86_64-linux-gnu/libc.so.6"
        self.assertEqual(group([*entry, ("__lll_lock_wait_private", libc)]), "malloc")
        self.assertEqual(group([*entry, ("clock_gettime", libc)]), "other kernel")


    def test_the_kernels_own_allocator_is_the_innermost_function_that_is_known(self):
        def of(stack):
            return group([(symbol, "[kernel.kallsyms]") for symbol in stack.split()])

        for stack in (
            "___slab_alloc kmem_cache_alloc_noprof sk_prot_alloc unix_create1 __sys_socketpair",
            "skb_release_data kfree_skb_list_reason unix_release_sock",
            "__d_alloc d_alloc d_alloc_parallel do_faccessat",
            "kfree tty_ioctl",
            "kmem_cache_free __fput task_work_run asm_sysvec_apic_timer_interrupt",
        ):
            self.assertEqual(of(stack), "kernel slab", stack)
        for stack in (
            "unix_create1 __sys_socketpair",
            "sock_wfree skb_release_head_state consume_skb",
            "__slab_free __kmem_cache_free_bulk.part.0 rcu_free_sheaf rcu_do_batch asm_sysvec_apic_timer_interrupt unix_create1",
            "kfree rcu_do_batch handle_softirqs do_softirq.part.0 tcp_sendmsg",
            "update_process_times asm_sysvec_apic_timer_interrupt kmem_cache_alloc_noprof path_openat",
            "kmem_cache_alloc_noprof dup_task_struct copy_process",
            "d_alloc_parallel do_faccessat",
            "kvfree_call_rcu ep_remove",
        ):
            self.assertEqual(of(stack), "other kernel", stack)
        self.assertEqual(of("kmem_cache_alloc_noprof do_anonymous_page exc_page_fault"), "first touch")
        self.assertEqual(of("kmem_cache_alloc_noprof mas_store_gfp __x64_sys_munmap"), "map calls")


class Margins(unittest.TestCase):
    def test_the_margin_follows_from_the_samples_of_both(self):
        # sqrt(0.0099 / 10,000 + 0.0099 / 40,000) = 0.00111
        self.assertAlmostEqual(margin((100, 10_000), (400, 40_000)), 0.01334, places=5)
        # More samples leave less to chance.
        self.assertLess(margin((1_000, 100_000), (4_000, 400_000)), margin((100, 10_000), (400, 40_000)))
        self.assertEqual(margin((0, 10_000), (0, 40_000)), NOT_CHANCE)

    def test_few_samples_do_not_excuse_a_large_difference(self):
        self.assertEqual(margin((50, 100), (50, 100)), MARGIN)


class Logs(unittest.TestCase):
    def test_pauses_are_added_and_nothing_else(self):
        self.assertAlmostEqual(paused_s(NODE, NODE_PAUSE), 0.00275)
        self.assertAlmostEqual(paused_s(JVM, JVM_PAUSE), 0.010)
        self.assertEqual(paused_s("", NODE_PAUSE), 0)

    def test_time_in_which_the_program_waited_for_a_cpu_may_have_been_in_pauses(self):
        self.assertEqual(collected(1, 10, 0, 2), (0.1, 0.2))
        self.assertEqual(collected(1, 5, 0.5, 2), (0.1, 0.4))
        self.assertEqual(collected(1, 5, 5, 2), (0, 0.4))
        self.assertEqual(collected(0, 0, 0, 2), (0, 0))


class Rules(unittest.TestCase):
    def test_a_large_share_must_be_found(self):
        self.assertIn("8.0%", found({"garbage_collector": (0.08, 0.16)}, garbage_collector="ruled_out")[0])
        self.assertIn("8.0%", found({"garbage_collector": (0.08, 0.16)}, garbage_collector="not_measured")[0])
        self.assertEqual(found({"garbage_collector": (0.08, 0.16)}, garbage_collector="contributor"), [])
        self.assertEqual(found({"garbage_collector": (0.08, None)}, garbage_collector="wall"), [])

    def test_a_small_share_may_be_ruled_out_and_is_no_wall(self):
        self.assertEqual(found({"garbage_collector": (0.037, 0.074)}, garbage_collector="ruled_out"), [])
        self.assertEqual(found({"garbage_collector": (0.037, 0.074)}, garbage_collector="contributor"), [])
        self.assertIn("7.4%", found({"garbage_collector": (0.037, 0.074)}, garbage_collector="wall")[0])
        self.assertEqual(found({"garbage_collector": (0.037, 0.14)}, garbage_collector="wall"), [])

    def test_an_expected_wall_must_be_called_a_wall(self):
        self.assertEqual(len(found({"first_touch": (0.2, 0.2)}, first_touch="contributor")), 1)
        self.assertEqual(found({"first_touch": (0.16, 0.16)}, first_touch="contributor"), [])
        self.assertEqual(found({"map_churn": (0.2, None)}, map_churn="contributor"), [])

    def test_without_evidence_nothing_is_required(self):
        self.assertEqual(found({}, first_touch="ruled_out"), [])
        self.assertEqual(found({"first_touch": (None, None)}, first_touch="ruled_out"), [])


if __name__ == "__main__":
    unittest.main()

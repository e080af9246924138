//! Which function belongs to which line of the bill: two ordered tables, one for the kernel, one for user space.
//! The first pattern that matches decides; a `*` matches any characters.
//!
//! A kernel symbol alone seldom determines the line: faults, pipes and page tables all use `clear_page`. So a row gives a
//! *role*, and `kernel_line` walks the stack from the leaf outwards until the roles decide.
//! The names are those of Linux 5.10 to 6.18 on x86-64 and arm64.

use super::cost::CostClass;

/// What a kernel function says about the stack that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelRole {
    /// Says nothing. The row keeps a name from matching a wider pattern below.
    Transparent,
    /// Zeroes pages: first touch, if a fault is further out.
    Zero,
    /// Copies pages: a copy on write, if such a fault is further out.
    CopyPage,
    /// Takes a read-write semaphore or waits for it: the address-space lock, if the nearest caller is mm code.
    Lock,
    /// Takes a semaphore that is not the address-space lock.
    OtherLock,
    /// TLB flush: page release, unless a fault causes it.
    Shootdown,
    /// First touch of anonymous or shared memory.
    Fault,
    /// Fault handling that does not show the kind of fault yet.
    FaultEntry,
    /// A fault on a swapped page, or a NUMA hinting fault.
    OtherFault,
    /// A fault on a page of a file.
    FileFault,
    /// A write to a page that is mapped read-only. It copies the page, or zeroes a new one in place of the zero page, or only
    /// makes the page writable.
    CopyOnWrite,
    /// A [`MapCall`](super::syscalls::MapCall).
    Map,
    Release,
    /// Automatic NUMA balancing marks pages to see which thread uses them next. It flushes the TLB, but releases no page.
    NumaScan,
    /// An address space ends, at the exit of its process or at exec. Its pages are released with any allocator.
    Exit,
    Reclaim,
    /// Runs callbacks of RCU, on top of any thread: they free what any process gave up some time before.
    Callbacks,
    /// An interrupt, on top of any thread.
    Interrupt,
    /// Work that an interrupt leaves for its end, or that a system call does at once: a message to this machine comes in here.
    SoftInterrupt,
    /// A switch to another thread, or a wake-up: scheduling, unless a function further out says what it was for.
    Switch,
    /// A process or thread starts or ends.
    ForkExit,
    /// The kernel's own allocator of small objects, and the functions that make and free sk_buffs and dentries. The caller decides:
    /// faults, map calls, reclaim, and processes that start and end have its time on their lines.
    Slab,
    FileSystem,
    Sockets,
    /// A system call that waits for many files or for a time.
    Polling,
    /// A system call for a lock or a sleep: the user stack shows what it is for.
    ByCaller,
    /// The entry of a system call. If it is the leaf, the user stack shows which call it is.
    Entry,
    /// Ends the walk: other kernel work.
    Elsewhere,
}

use KernelRole::*;

#[rustfmt::skip]
pub const KERNEL: &[(&str, KernelRole)] = &[
    // mm/memory.c, arch/*/lib/clear_page*, include/linux/highmem.h. clear_huge_page became folio_zero_user in 6.11;
    // clear_subpage since 4.18; kernel_init_free_pages became kernel_init_pages in 6.1 (mm/page_alloc.c).
    ("clear_page_dirty_for_io", Transparent),
    ("clear_page_mlock", Transparent),
    ("clear_page", Zero),
    ("clear_page_erms", Zero),
    ("clear_page_rep", Zero),
    ("clear_page_orig", Zero),
    ("clear_pages*", Zero),
    ("__pi_clear_page", Zero),
    ("__clear_page*", Zero),
    ("clear_huge_page", Zero),
    ("clear_gigantic_page", Zero),
    ("clear_subpage", Zero),
    ("clear_contig_highpages", Zero),
    ("folio_zero_user", Zero),
    ("clear_user_highpage*", Zero),
    ("clear_user_page*", Zero),
    ("clear_highpage*", Zero),
    ("kernel_init_pages", Zero),
    ("kernel_init_free_pages", Zero),
    ("tag_clear_highpage*", Zero),
    ("mte_zero_clear_page_tags", Zero),

    // mm/memory.c, include/linux/highmem.h, arch/*/lib/copy_page*, copy_mc*, copy_user*, memcpy*.
    ("copy_page", CopyPage),
    ("copy_page_regs", CopyPage),
    ("__pi_copy_page", CopyPage),
    ("copy_highpage", CopyPage),
    ("copy_subpage", CopyPage),
    ("copy_mc_*", CopyPage),
    ("copy_user_*", CopyPage),
    ("__wp_page_copy_user", CopyPage),
    ("rep_movs_alternative", CopyPage),
    ("memcpy*", CopyPage),
    ("__memcpy*", CopyPage),
    ("__pi_memcpy*", CopyPage),

    // Semaphores inside mm code that are not mmap_lock: mm/rmap.c, mm/vma.c, mm/mmap.c.
    ("unlink_anon_vmas", OtherLock),
    ("unlink_file_vma*", OtherLock),
    ("vma_prepare", OtherLock),
    ("vma_complete", OtherLock),
    ("vma_link_file", OtherLock),
    ("anon_vma_clone", OtherLock),
    ("anon_vma_fork", OtherLock),
    // kernel/locking/rwsem.c, osq_lock.c; include/linux/mmap_lock.h. __vma_start_write: writers that wait for per-VMA readers (6.7+).
    ("rwsem_*", Lock),
    ("down_read*", Lock),
    ("down_write*", Lock),
    ("__down_read*", Lock),
    ("__down_write*", Lock),
    ("up_read", Lock),
    ("up_write", Lock),
    ("__up_read", Lock),
    ("__up_write", Lock),
    ("downgrade_write", Lock),
    ("osq_lock", Lock),
    ("osq_unlock", Lock),
    ("mmap_read_lock_maybe_expand", FaultEntry),
    ("mmap_read_lock*", Lock),
    ("mmap_write_lock*", Lock),
    ("__mmap_lock_*", Lock),
    ("vma_start_write*", Lock),
    ("__vma_start_write", Lock),
    ("__vma_enter_locked", Lock),

    // mm/vmscan.c, mm/compaction.c, mm/khugepaged.c, mm/page_alloc.c, mm/memcontrol.c.
    ("khugepaged_enter*", Transparent),
    ("__khugepaged_enter", Transparent),
    ("khugepaged*", Reclaim),
    ("collapse_*", Reclaim),
    ("hpage_collapse_*", Reclaim),
    ("madvise_collapse", Reclaim),
    ("kswapd*", Reclaim),
    ("balance_pgdat", Reclaim),
    ("shrink_dcache_*", FileSystem),
    ("shrink_vma", Transparent),
    ("shrink_*", Reclaim),
    ("do_shrink_slab", Reclaim),
    ("try_to_free_pages", Reclaim),
    ("do_try_to_free_pages", Reclaim),
    ("try_to_free_mem_cgroup_pages", Reclaim),
    ("__alloc_pages_direct_reclaim", Reclaim),
    ("__alloc_pages_direct_compact", Reclaim),
    ("__perform_reclaim", Reclaim),
    ("try_to_compact_pages", Reclaim),
    ("compact_zone*", Reclaim),
    ("compact_node*", Reclaim),
    ("kcompactd*", Reclaim),
    ("isolate_migratepages*", Reclaim),
    ("isolate_freepages*", Reclaim),
    ("reclaim_pages", Reclaim),
    ("reclaim_folio_list", Reclaim),
    ("reclaim_high", Reclaim),
    ("reclaim_throttle", Reclaim),
    ("mem_cgroup_handle_over_high", Reclaim),
    ("__mem_cgroup_handle_over_high", Reclaim),
    ("mem_cgroup_reclaim*", Reclaim),
    ("node_reclaim", Reclaim),
    ("drain_all_pages", Reclaim),
    ("__drain_all_pages", Reclaim),

    // arch/x86/mm/tlb.c, arch/arm64 tlbflush.h, kernel/smp.c.
    ("flush_tlb_*", Shootdown),
    ("native_flush_tlb_*", Shootdown),
    ("__flush_tlb_*", Shootdown),
    ("do_flush_tlb_*", Shootdown),
    ("kvm_flush_tlb_*", Shootdown),
    ("hyperv_flush_tlb_*", Shootdown),
    ("xen_flush_tlb_*", Shootdown),

    // Page release: mm/memory.c, mm/mmu_gather.c, mm/vma.c, mm/madvise.c. folios_put_refs, release_pages, free_unref_* serve
    // the fault path's batches too, so their caller decides.
    ("zap_other_threads", ForkExit),
    ("zap_pid_ns_processes", ForkExit),
    ("zap_*", Release),
    ("unmap_vmas", Release),
    ("unmap_region", Release),
    ("unmap_page_range", Release),
    ("unmap_single_vma", Release),
    ("vms_clear_ptes", Release),
    ("tlb_finish_mmu", Release),
    ("arch_tlb_finish_mmu", Release),
    ("tlb_flush_mmu*", Release),
    ("tlb_batch_pages_flush", Release),
    ("__tlb_batch_free_encoded_pages", Release),
    ("tlb_remove_table*", Release),
    ("__tlb_remove_table*", Release),
    ("tlb_table_flush", Release),
    ("free_pages_and_swap_cache", Release),
    ("free_page_and_swap_cache", Release),
    ("free_pgtables", Release),
    ("free_pgd_range", Release),
    ("madvise_free_*", Release),
    ("exit_mmap", Exit),

    // Faults on files, swapped pages and NUMA hints, and what runs between a fault and the return to user mode.
    ("filemap_map_pages", FileFault),
    ("filemap_map_folio_range", FileFault),
    ("filemap_fault", FileFault),
    // Shared memory without a file (mm/shmem.c) finds its pages like a file, but a fault there is a first touch.
    ("filemap_get_entry", Transparent),
    ("filemap_*", FileSystem),
    ("shmem_fault", Fault),
    ("shmem_*", Transparent),
    // They serve files and shared memory; the functions inside or outside of them decide.
    ("__do_fault", Transparent),
    ("finish_fault", Transparent),
    ("alloc_set_pte", Transparent),
    ("do_set_pte", Transparent),
    ("set_pte_range", Transparent),
    ("do_fault_around", FileFault),
    ("do_read_fault", FileFault),
    ("do_cow_fault", FileFault),
    ("do_shared_fault", FaultEntry),
    ("do_fault", FaultEntry),
    ("wp_page_shared", FileFault),
    ("wp_pfn_shared", FileFault),
    ("do_page_mkwrite", FileFault),
    ("*_page_mkwrite", FileFault),
    ("fault_dirty_shared_page", FileFault),
    ("do_swap_page", OtherFault),
    ("do_numa_page", OtherFault),
    ("do_huge_pmd_numa_page", OtherFault),
    // Functions that it calls, if the compiler inlined it into its caller (5.10, 6.12): mm/memory.c, mm/migrate.c, mm/mempolicy.c, kernel/sched/fair.c.
    ("numa_migrate_*", OtherFault),
    ("numa_rebuild_*", OtherFault),
    ("migrate_misplaced_*", OtherFault),
    ("mpol_misplaced", OtherFault),
    ("should_numa_migrate_memory", OtherFault),
    ("task_numa_fault", OtherFault),
    ("change_prot_numa", NumaScan),
    ("task_numa_work", NumaScan),
    ("handle_userfault", OtherFault),
    ("exit_to_user_mode_loop", Elsewhere),
    ("task_work_run", Elsewhere),
    ("do_notify_resume", Elsewhere),
    ("do_wp_page", CopyOnWrite),
    ("wp_page_*", CopyOnWrite),
    ("wp_huge_pmd", CopyOnWrite),
    ("do_huge_pmd_wp_page", CopyOnWrite),
    ("hugetlb_wp", CopyOnWrite),
    ("hugetlb_cow", CopyOnWrite),

    // First touch: mm/memory.c, mm/huge_memory.c, mm/hugetlb.c, mm/gup.c; arch/x86/mm/fault.c, arch/arm64/mm/fault.c. do_anonymous_page and
    // alloc_anon_folio (6.8+) are only reached for anonymous memory; the entries below serve every kind of fault.
    ("do_anonymous_page", Fault),
    ("alloc_anon_folio", Fault),
    ("vma_alloc_anon_folio_pmd", Fault),
    ("do_huge_pmd_anonymous_page", Fault),
    ("__do_huge_pmd_anonymous_page", Fault),
    ("hugetlb_no_page", Fault),
    ("hugetlb_fault", FaultEntry),
    ("handle_mm_fault", FaultEntry),
    ("__handle_mm_fault", FaultEntry),
    ("handle_pte_fault", FaultEntry),
    ("do_pte_missing", FaultEntry),
    ("lock_vma_under_rcu", FaultEntry),
    ("lock_mm_and_find_vma", FaultEntry),
    ("expand_stack*", Fault),
    ("do_user_addr_fault", FaultEntry),
    ("exc_page_fault", FaultEntry),
    ("asm_exc_page_fault", FaultEntry),
    ("__do_page_fault", FaultEntry),
    ("do_page_fault", FaultEntry),
    ("do_translation_fault", FaultEntry),
    ("do_mem_abort", FaultEntry),
    ("el0_da", FaultEntry),
    ("el1_abort", FaultEntry),
    ("populate_vma_page_range", Fault),
    ("__mm_populate", Fault),
    ("faultin_page*", FaultEntry),
    ("madvise_populate", Fault),

    // The calls: mm/mmap.c, mm/vma.c (6.12+), mm/mremap.c, mm/madvise.c, mm/mprotect.c. do_mas_munmap only in 6.1 and 6.2.
    ("do_mmap", Map),
    ("mmap_region", Map),
    ("__mmap_region", Map),
    ("vm_mmap*", Map),
    ("ksys_mmap_pgoff", Map),
    ("__do_munmap", Map),
    ("do_munmap", Map),
    ("do_mas_munmap", Map),
    ("do_mas_align_munmap", Map),
    ("do_vmi_munmap", Map),
    ("do_vmi_align_munmap", Map),
    ("vm_munmap", Map),
    ("__vm_munmap", Map),
    ("do_brk_flags", Map),
    ("vm_brk_flags", Map),
    ("do_madvise", Map),
    ("madvise_*", Map),
    ("do_mprotect_pkey", Map),
    ("mprotect_fixup", Map),
    ("do_mremap", Map),
    ("move_page_tables", Map),
    ("move_vma", Map),
    ("sys_mmap*", Map),
    ("sys_munmap", Map),
    ("sys_brk", Map),
    ("sys_madvise", Map),
    ("sys_process_madvise", Map),
    ("sys_mremap", Map),
    ("sys_mprotect", Map),
    ("sys_pkey_mprotect", Map),

    // kernel/fork.c, kernel/exit.c, fs/exec.c, fs/binfmt_elf.c, mm/memory.c.
    ("copy_page_range", ForkExit),
    ("dup_mmap", ForkExit),
    ("dup_mm", ForkExit),
    ("copy_mm", ForkExit),
    ("copy_process", ForkExit),
    ("kernel_clone", ForkExit),
    ("_do_fork", ForkExit),
    ("sys_clone*", ForkExit),
    ("sys_fork", ForkExit),
    ("sys_vfork", ForkExit),
    ("schedule_tail", ForkExit),
    ("do_exit", ForkExit),
    ("do_group_exit", ForkExit),
    ("sys_exit*", ForkExit),
    ("mmput", ForkExit),
    ("__mmput", ForkExit),
    ("do_wait", ForkExit),
    ("do_wait4", ForkExit),
    ("kernel_wait4", ForkExit),
    ("sys_wait*", ForkExit),
    ("release_task", ForkExit),
    ("__put_task_struct*", ForkExit),
    ("free_task", ForkExit),
    ("bprm_execve*", ForkExit),
    ("do_execveat_common*", ForkExit),
    ("exec_binprm", ForkExit),
    ("begin_new_exec", ForkExit),
    ("load_elf_binary", ForkExit),
    ("load_script", ForkExit),
    ("load_misc_binary", ForkExit),
    ("sys_execve*", ForkExit),

    // mm/slub.c, mm/slab.c (until 6.7), mm/slab_common.c, the charge to the cgroup in mm/memcontrol.c. `_noprof` since 6.10,
    // sheaves (`pcs`, `barn`) since 6.18.
    ("kmem_cache_alloc*", Slab),
    ("__kmem_cache_alloc*", Slab),
    ("kmem_cache_free*", Slab),
    ("__kmem_cache_free*", Slab),
    ("kmalloc*", Slab),
    ("__kmalloc*", Slab),
    ("kvmalloc*", Slab),
    ("__kvmalloc*", Slab),
    ("krealloc*", Slab),
    ("kvfree", Slab),
    ("kvfree_rcu_*", Slab),
    ("kfree*", Slab),
    ("slab_*", Slab),
    ("__slab_*", Slab),
    ("___slab_*", Slab),
    ("new_slab", Slab),
    ("allocate_slab", Slab),
    ("discard_slab", Slab),
    ("deactivate_slab", Slab),
    ("free_slab", Slab),
    ("__free_slab", Slab),
    ("rcu_free_slab", Slab),
    ("get_partial_node", Slab),
    ("get_any_partial", Slab),
    ("put_cpu_partial", Slab),
    ("unfreeze_partials", Slab),
    ("__unfreeze_partials", Slab),
    ("__put_partials", Slab),
    ("build_detached_freelist", Slab),
    ("__pcs_*", Slab),
    ("alloc_from_pcs*", Slab),
    ("free_to_pcs*", Slab),
    ("barn_*", Slab),
    ("rcu_free_sheaf*", Slab),
    ("sheaf_flush*", Slab),
    ("cache_alloc_refill", Slab),
    ("cache_flusharray", Slab),
    ("___cache_free", Slab),
    ("memcg_slab_*", Slab),
    ("__memcg_slab_*", Slab),
    ("memcg_alloc_slab_*", Slab),
    // net/core/skbuff.c, fs/dcache.c.
    ("__alloc_skb", Slab),
    ("alloc_skb_*", Slab),
    ("__napi_alloc_skb", Slab),
    ("napi_alloc_skb", Slab),
    ("__netdev_alloc_skb", Slab),
    ("napi_skb_*", Slab),
    ("napi_consume_skb", Slab),
    ("consume_skb", Slab),
    ("__kfree_skb", Slab),
    ("sk_skb_reason_drop", Slab),
    ("skb_release_*", Slab),
    ("skb_free_head", Slab),
    ("d_alloc", Slab),
    ("__d_alloc", Slab),
    ("d_alloc_pseudo", Slab),
    ("d_alloc_anon", Slab),
    ("dentry_free", Slab),
    ("__d_free*", Slab),

    // Sockets and pipes: net/, fs/pipe.c, fs/splice.c, fs/eventfd.c; drivers of virtual machines.
    ("sock_*", Sockets),
    ("__sock_*", Sockets),
    ("____sys_recvmsg", Sockets),
    ("____sys_sendmsg", Sockets),
    ("___sys_recvmsg", Sockets),
    ("___sys_sendmsg", Sockets),
    ("__sys_accept*", Sockets),
    ("__sys_connect*", Sockets),
    ("__sys_recv*", Sockets),
    ("__sys_send*", Sockets),
    ("__sys_setsockopt", Sockets),
    ("__sys_getsockopt", Sockets),
    ("__sys_shutdown*", Sockets),
    ("__sys_socket*", Sockets),
    ("sys_accept*", Sockets),
    ("sys_bind", Sockets),
    ("sys_connect", Sockets),
    ("sys_getsockopt", Sockets),
    ("sys_listen", Sockets),
    ("sys_recv*", Sockets),
    ("sys_sendfile*", Sockets),
    ("sys_sendm*", Sockets),
    ("sys_sendto", Sockets),
    ("sys_setsockopt", Sockets),
    ("sys_shutdown", Sockets),
    ("sys_socket*", Sockets),
    ("tcp_*", Sockets),
    ("__tcp_*", Sockets),
    ("udp_*", Sockets),
    ("__udp*", Sockets),
    ("inet_*", Sockets),
    ("inet6_*", Sockets),
    ("ip_*", Sockets),
    ("__ip_*", Sockets),
    ("ip6_*", Sockets),
    ("unix_*", Sockets),
    ("__unix_*", Sockets),
    ("netlink_*", Sockets),
    ("skb_*", Sockets),
    ("__skb_*", Sockets),
    ("net_rx_action", Sockets),
    ("net_tx_action", Sockets),
    ("napi_*", Sockets),
    ("__napi_*", Sockets),
    ("netif_*", Sockets),
    ("__netif_*", Sockets),
    ("process_backlog", Sockets),
    ("dev_hard_start_xmit", Sockets),
    ("__dev_queue_xmit", Sockets),
    ("sch_direct_xmit", Sockets),
    ("nf_*", Sockets),
    ("virtnet_*", Sockets),
    ("pipe_*", Sockets),
    ("anon_pipe_*", Sockets),
    ("fifo_*", Sockets),
    ("eventfd_*", Sockets),
    ("splice_*", Sockets),
    ("do_splice*", Sockets),

    // Files and storage: fs/, block/, io_uring/, drivers.
    ("vfs_*", FileSystem),
    ("__vfs_*", FileSystem),
    ("ksys_read", FileSystem),
    ("ksys_write", FileSystem),
    ("ksys_pread64", FileSystem),
    ("ksys_pwrite64", FileSystem),
    ("ksys_lseek", FileSystem),
    ("ksys_fallocate", FileSystem),
    ("ksys_sync*", FileSystem),
    ("ksys_readahead", FileSystem),
    ("do_sys_open*", FileSystem),
    ("do_filp_open", FileSystem),
    ("path_*", FileSystem),
    ("link_path_walk*", FileSystem),
    ("getname*", FileSystem),
    ("filename_*", FileSystem),
    ("do_unlinkat", FileSystem),
    ("do_mkdirat", FileSystem),
    ("do_rmdir", FileSystem),
    ("do_renameat2", FileSystem),
    ("do_truncate", FileSystem),
    ("do_fallocate", FileSystem),
    ("do_fsync", FileSystem),
    ("do_statx", FileSystem),
    ("do_readlinkat", FileSystem),
    ("do_faccessat", FileSystem),
    ("iterate_dir", FileSystem),
    ("evict", FileSystem),
    ("iput", FileSystem),
    ("dput", FileSystem),
    ("__fput*", FileSystem),
    ("fput*", FileSystem),
    ("filp_close", FileSystem),
    ("generic_file_*", FileSystem),
    ("generic_perform_write", FileSystem),
    ("truncate_*", FileSystem),
    ("iomap_*", FileSystem),
    ("ext4_*", FileSystem),
    ("__ext4_*", FileSystem),
    ("jbd2_*", FileSystem),
    ("xfs_*", FileSystem),
    ("btrfs_*", FileSystem),
    ("ovl_*", FileSystem),
    ("nfs_*", FileSystem),
    ("fuse_*", FileSystem),
    ("v9fs_*", FileSystem),
    ("kernfs_*", FileSystem),
    ("proc_*", FileSystem),
    ("seq_*", FileSystem),
    ("page_cache_*", FileSystem),
    ("readahead_*", FileSystem),
    ("writeback_*", FileSystem),
    ("do_writepages", FileSystem),
    ("submit_bio*", FileSystem),
    ("blk_*", FileSystem),
    ("__blk_*", FileSystem),
    ("nvme_*", FileSystem),
    ("io_submit_sqes", FileSystem),
    ("io_issue_sqe", FileSystem),
    ("sys_io_submit", FileSystem),
    ("sys_io_getevents", Polling),
    ("sys_io_pgetevents", Polling),
    ("sys_io_uring_enter", Polling),
    ("sys_open*", FileSystem),
    ("sys_close*", FileSystem),
    ("sys_read*", FileSystem),
    ("sys_write*", FileSystem),
    ("sys_pread*", FileSystem),
    ("sys_pwrite*", FileSystem),
    ("sys_lseek", FileSystem),
    ("sys_fcntl", FileSystem),
    ("sys_flock", FileSystem),
    ("sys_fsync", FileSystem),
    ("sys_fdatasync", FileSystem),
    ("sys_getdents*", FileSystem),
    ("sys_stat*", FileSystem),
    ("sys_new*stat*", FileSystem),
    ("sys_fstat*", FileSystem),
    ("sys_access", FileSystem),
    ("sys_faccessat*", FileSystem),
    ("sys_unlink*", FileSystem),
    ("sys_rename*", FileSystem),
    ("sys_mkdir*", FileSystem),
    ("sys_ftruncate*", FileSystem),
    ("sys_fallocate", FileSystem),

    // kernel/sched/, kernel/time/, fs/eventpoll.c, fs/select.c.
    ("schedule", Switch),
    ("__schedule", Switch),
    ("schedule_*", Switch),
    ("io_schedule*", Switch),
    ("preempt_schedule*", Switch),
    ("finish_task_switch*", Switch),
    ("try_to_wake_up", Switch),
    ("wake_up_*", Switch),
    ("__wake_up*", Switch),
    ("sched_ttwu_pending", Switch),
    ("ep_*", Polling),
    ("do_epoll_*", Polling),
    ("sys_epoll_*", Polling),
    ("do_sys_poll", Polling),
    ("do_select", Polling),
    ("core_sys_select", Polling),
    ("sys_poll", Polling),
    ("sys_ppoll", Polling),
    ("sys_select", Polling),
    ("sys_pselect6", Polling),
    ("timerfd_*", Polling),
    ("sys_timerfd_*", Polling),

    // kernel/rcu/tree.c, tiny.c.
    ("rcu_do_batch", Callbacks),
    ("rcu_core*", Callbacks),
    ("rcu_process_callbacks", Callbacks),

    // kernel/softirq.c, arch/x86/include/asm/idtentry.h, arch/arm64/kernel/entry-common.c.
    ("asm_sysvec_*", Interrupt),
    ("sysvec_*", Interrupt),
    ("asm_common_interrupt", Interrupt),
    ("common_interrupt", Interrupt),
    ("asm_exc_nmi*", Interrupt),
    ("__do_softirq", SoftInterrupt),
    ("handle_softirqs", SoftInterrupt),
    ("do_softirq*", SoftInterrupt),
    ("irq_exit*", Interrupt),
    ("__irq_exit_rcu", Interrupt),
    ("el0_irq*", Interrupt),
    ("el1_irq*", Interrupt),
    ("el0_interrupt", Interrupt),
    ("el1_interrupt", Interrupt),
    ("el0t_64_irq*", Interrupt),
    ("el1h_64_irq*", Interrupt),
    ("gic_handle_irq", Interrupt),

    // kernel/futex/; one file until 5.15.
    ("futex_*", ByCaller),
    ("__futex_*", ByCaller),
    ("do_futex", ByCaller),
    ("sys_futex*", ByCaller),
    ("do_sched_yield", ByCaller),
    ("sys_sched_yield", ByCaller),
    ("hrtimer_nanosleep", ByCaller),
    ("sys_nanosleep", ByCaller),
    ("sys_clock_nanosleep", ByCaller),

    ("entry_SYSCALL_64*", Entry),
    ("do_syscall_64", Entry),
    ("x64_sys_call", Entry),
    ("syscall_enter_from_user_mode*", Entry),
    ("syscall_exit_to_user_mode*", Entry),
    ("syscall_return_via_sysret", Entry),
    ("el0_svc", Entry),
    ("el0_svc_common", Entry),
    ("do_el0_svc", Entry),
    ("invoke_syscall", Entry),
];

/// What the kernel stack of a sample says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelLine {
    Class(CostClass),
    /// In a fault, before or after the code that separates first touches from other kinds.
    SomeFault,
    /// In a fault on a swapped page, or in a NUMA hinting fault.
    OtherFault,
    /// In a write fault on a page that is mapped read-only: zeroing or copying it, if the stack shows that.
    WriteFault(Option<CostClass>),
    /// The user stack decides; if it doesn't, this class.
    ByCaller(CostClass),
}

/// Whether huge pages for private memory would not change this first touch: it is already of a huge page (mm/huge_memory.c,
/// mm/hugetlb.c), or of shared memory, which has its own settings (mm/shmem.c).
pub fn is_past_huge_pages(kernel_symbol: &str) -> bool {
    matches!(
        bare_name(kernel_symbol),
        "do_huge_pmd_anonymous_page"
            | "__do_huge_pmd_anonymous_page"
            | "vma_alloc_anon_folio_pmd"
            | "hugetlb_no_page"
            | "shmem_fault"
    )
}

/// Whether the thread gives up the CPU in this function.
pub fn sleeps(kernel_symbol: &str) -> bool {
    matches!(kernel_symbol, "schedule" | "io_schedule" | "schedule_preempt_disabled" | "schedule_timeout")
}

/// Whether the kernel preempts the thread in this function: kernel/entry/common.c, names since 5.10.
pub fn is_preempted(kernel_symbol: &str) -> bool {
    kernel_symbol.starts_with("preempt_schedule")
        || kernel_symbol.starts_with("exit_to_user_mode_")
        || kernel_symbol.starts_with("irqentry_exit")
}

/// What the kernel does with an address space when a process starts or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessStep {
    /// Fork copies it. Threads, vfork and posix_spawn share it.
    Copy,
    /// Exec frees the process's own copy, for the new program.
    Replace,
    /// Exec runs and loads the new program.
    Exec,
    /// Its process ends.
    End,
}

/// The step that a kernel stack shows, leaf first: kernel/fork.c, mm/mmap.c, mm/memory.c, fs/exec.c. None if it shows none:
/// threads start and end without any.
pub fn process_step<'a>(kernel_symbols: impl IntoIterator<Item = &'a str>) -> Option<ProcessStep> {
    let mut ends = false;
    for symbol in kernel_symbols {
        match bare_name(symbol) {
            "dup_mm" | "dup_mmap" | "copy_page_range" => return Some(ProcessStep::Copy),
            "exit_mmap" => ends = true,
            "bprm_execve" | "exec_binprm" | "begin_new_exec" | "exec_mmap" | "load_elf_binary" => {
                return Some(if ends { ProcessStep::Replace } else { ProcessStep::Exec });
            }
            _ => {}
        }
    }
    ends.then_some(ProcessStep::End)
}

/// What an interrupt does on top of a thread, if the sample is in one: leaf first. What a thread does by itself at the end of an
/// interrupt is its own.
fn interrupt(roles: impl Iterator<Item = Option<KernelRole>>) -> Option<KernelRole> {
    let innermost = roles.flatten().find(|role| matches!(role, Callbacks | Interrupt | Elsewhere));
    innermost.filter(|role| *role != Elsewhere)
}

/// Whether the sample is in callbacks of RCU, on top of the thread.
pub fn runs_callbacks(roles: impl Iterator<Item = Option<KernelRole>>) -> bool {
    interrupt(roles) == Some(Callbacks)
}

/// The roles are in stack order, leaf first. None is a function that is not in the table.
pub fn kernel_line(roles: impl Iterator<Item = Option<KernelRole>> + Clone) -> KernelLine {
    let interrupt = interrupt(roles.clone());
    if interrupt == Some(Callbacks) {
        return KernelLine::Class(CostClass::OtherKernel);
    }
    let mut pending = None;
    let mut in_slab = false;
    // The class if no function says more.
    let mut otherwise = CostClass::OtherKernel;
    let mut roles = roles.enumerate();
    while let Some((depth, role)) = roles.next() {
        let Some(role) = role else { continue };
        let class = match role {
            Transparent => continue,
            Zero | CopyPage | Lock | Shootdown => {
                pending.get_or_insert(role);
                continue;
            }
            OtherLock => {
                pending = pending.filter(|p| *p != Lock);
                continue;
            }
            Switch => {
                otherwise = CostClass::Scheduling;
                continue;
            }
            Slab => {
                // The objects of an interrupt are those of any process.
                in_slab = interrupt.is_none();
                continue;
            }
            Entry if depth == 0 => return KernelLine::ByCaller(CostClass::OtherKernel),
            Entry => continue,
            ByCaller => return KernelLine::ByCaller(CostClass::Scheduling),
            Fault => match pending {
                Some(Zero) => CostClass::Zeroing,
                Some(Lock) => CostClass::AddressSpaceLock,
                _ => CostClass::FaultPath,
            },
            FaultEntry => match pending {
                Some(Zero) => CostClass::Zeroing,
                Some(Lock) => CostClass::AddressSpaceLock,
                _ => return KernelLine::SomeFault,
            },
            CopyOnWrite => {
                return KernelLine::WriteFault(match pending {
                    Some(Zero) => Some(CostClass::Zeroing),
                    Some(CopyPage) => Some(CostClass::CopyOnWrite),
                    _ => None,
                });
            }
            FileFault => CostClass::FileFault,
            OtherFault => return KernelLine::OtherFault,
            // Exec maps the new program.
            Map if roles.any(|(_, outer)| outer == Some(ForkExit)) => CostClass::ForkExit,
            Map => match pending {
                Some(Lock) => CostClass::AddressSpaceLock,
                Some(Shootdown) => CostClass::PageRelease,
                _ => CostClass::MapCalls,
            },
            Release => match roles.find_map(|(_, outer)| outer.filter(|o| matches!(o, Exit | NumaScan))) {
                Some(Exit) => CostClass::ForkExit,
                Some(_) => CostClass::OtherKernel,
                None => CostClass::PageRelease,
            },
            // An interrupt for a TLB flush belongs to pages that the thread's own address space released: the flush
            // goes only to CPUs that have the same address space loaded.
            Interrupt if pending == Some(Shootdown) => CostClass::PageRelease,
            Reclaim => CostClass::Reclaim,
            Exit | ForkExit => CostClass::ForkExit,
            // A fault or reclaim runs code of the file system and of the disk too. An interrupt has nothing to do with
            // what it interrupts.
            FileSystem => {
                let is_outside = |role: &Option<KernelRole>| matches!(role, Some(Interrupt | SoftInterrupt));
                let outer = roles.map(|(_, outer)| outer).take_while(|outer| !is_outside(outer)).flatten();
                let cause = |role: &KernelRole| {
                    matches!(role, Reclaim | OtherFault | CopyOnWrite | Fault | FileFault | FaultEntry)
                };
                match { outer }.find(cause) {
                    Some(Reclaim) => CostClass::Reclaim,
                    Some(OtherFault) => return KernelLine::OtherFault,
                    Some(Fault) => CostClass::FaultPath,
                    // A write to a shared page of a file asks its file system (page_mkwrite).
                    Some(FileFault | CopyOnWrite) => CostClass::FileFault,
                    Some(_) => return KernelLine::SomeFault,
                    None => CostClass::FileSystem,
                }
            }
            Sockets => CostClass::Sockets,
            Polling => CostClass::Scheduling,
            NumaScan => CostClass::OtherKernel,
            // Without a function that says what it is for.
            SoftInterrupt | Callbacks => return KernelLine::Class(otherwise),
            Interrupt | Elsewhere => otherwise,
        };
        return KernelLine::Class(with_slab(class, in_slab));
    }
    KernelLine::Class(with_slab(otherwise, in_slab))
}

/// The line of work that may be in the kernel's own allocator. What that does for first touches, mappings, reclaim or processes
/// stays with them: what changes their number changes it too.
fn with_slab(class: CostClass, in_slab: bool) -> CostClass {
    match class {
        CostClass::FileSystem | CostClass::Sockets | CostClass::Scheduling | CostClass::OtherKernel
            if in_slab =>
        {
            CostClass::KernelSlab
        }
        class => class,
    }
}

/// What the kernel's own allocator works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelObject {
    /// A message on a socket: a sk_buff.
    Message,
    /// A socket or a pipe.
    Connection,
    /// An open file, a name (dentry) or an inode.
    File,
}

/// What it works for in a kernel stack on its line, whose functions are given with their roles, leaf first. None if the stack does
/// not show it.
pub fn kernel_object<'a>(
    frames: impl IntoIterator<Item = (Option<KernelRole>, &'a str)>,
) -> Option<KernelObject> {
    let mut object = None;
    for (role, symbol) in frames {
        match role {
            Some(Slab | Sockets) if symbol.contains("skb") => return Some(KernelObject::Message),
            Some(Sockets) => return Some(KernelObject::Connection),
            // A socket has a file too: the functions further out may be those of sockets.
            Some(FileSystem) => object = Some(KernelObject::File),
            Some(Interrupt | SoftInterrupt) => break,
            _ => {}
        }
    }
    object
}

/// What the roles of a kernel stack, leaf first, say about a page fault; None if the stack is not in one.
pub fn fault_line(roles: impl Iterator<Item = Option<KernelRole>> + Clone) -> Option<KernelLine> {
    let of_fault = |role| matches!(role, Fault | FaultEntry | OtherFault | FileFault | CopyOnWrite);
    roles.clone().flatten().any(of_fault).then(|| kernel_line(roles))
}

pub fn kernel_role(symbol: &str) -> Option<KernelRole> {
    let name = bare_name(symbol);
    let name = SYSCALL_PREFIXES.iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name);
    first_fit(KERNEL, name)
}

/// Prefixes that SYSCALL_DEFINE puts before `sys_` (include/linux/syscalls.h and each architecture's syscall_wrapper.h).
const SYSCALL_PREFIXES: &[&str] = &["__x64_", "__arm64_", "__ia32_", "__se_", "__do_"];

/// Whether this kernel function is the handler of a system call: `__x64_sys_prctl`.
pub fn is_system_call(kernel_symbol: &str) -> bool {
    let called = SYSCALL_PREFIXES.iter().find_map(|p| kernel_symbol.strip_prefix(p));
    called.is_some_and(|name| name.starts_with("sys_"))
}

/// What a user function says about the stack that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserRole {
    /// Code of malloc and friends.
    Allocator,
    /// The allocator's own lock or spin loop.
    AllocatorLock,
    /// A lock primitive of the C library; it counts for the allocator if an allocator function called it.
    Lock,
    /// Copies or fills memory; it counts for the allocator if an allocator function called it (copy in realloc, zeroing in
    /// calloc).
    Memory,
    /// The C library's wrapper of a map call.
    MapCall,
    RuntimeAllocator,
    Collector,
    /// An interpreter's loop: the code that it runs is the application's, even if a collector called it (finalizers).
    Interpreter,
    /// Library code between the application and the functions above; never a call site.
    Plumbing,
}

/// The modules in which a row applies. Very common names apply only in their own module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Any,
    Libc,
    Cpython,
    Jvm,
}

#[rustfmt::skip]
pub const USER: &[(Scope, &str, UserRole)] = &[
    // CPython: Objects/obmalloc.c, Python/gc.c (Modules/gcmodule.c before 3.13), Python/gc_free_threading.c, Include/internal/mimalloc.
    (Scope::Any, "_PyEval_EvalFrame*", UserRole::Interpreter),
    (Scope::Any, "PyEval_EvalFrame*", UserRole::Interpreter),
    (Scope::Cpython, "_TAIL_CALL_*", UserRole::Interpreter),
    (Scope::Any, "_PyObject_Malloc", UserRole::RuntimeAllocator),
    (Scope::Any, "_PyObject_Calloc", UserRole::RuntimeAllocator),
    (Scope::Any, "_PyObject_Realloc", UserRole::RuntimeAllocator),
    (Scope::Any, "_PyObject_Free", UserRole::RuntimeAllocator),
    (Scope::Any, "_PyObject_Mi*", UserRole::RuntimeAllocator),
    (Scope::Any, "_PyObject_Arena*", UserRole::RuntimeAllocator),
    (Scope::Any, "_PyMem_*", UserRole::RuntimeAllocator),
    (Scope::Any, "PyMem_*", UserRole::RuntimeAllocator),
    (Scope::Any, "PyObject_Malloc", UserRole::RuntimeAllocator),
    (Scope::Any, "PyObject_Calloc", UserRole::RuntimeAllocator),
    (Scope::Any, "PyObject_Realloc", UserRole::RuntimeAllocator),
    (Scope::Any, "PyObject_Free", UserRole::RuntimeAllocator),
    (Scope::Any, "pymalloc_*", UserRole::RuntimeAllocator),
    (Scope::Cpython, "new_arena", UserRole::RuntimeAllocator),
    (Scope::Cpython, "allocate_from_new_pool", UserRole::RuntimeAllocator),
    (Scope::Cpython, "insert_to_usedpool", UserRole::RuntimeAllocator),
    (Scope::Cpython, "insert_to_freepool", UserRole::RuntimeAllocator),
    (Scope::Cpython, "arena_map_*", UserRole::RuntimeAllocator),
    (Scope::Cpython, "address_in_range", UserRole::RuntimeAllocator),
    (Scope::Cpython, "gc_alloc", UserRole::RuntimeAllocator),
    (Scope::Cpython, "mi_*", UserRole::RuntimeAllocator),
    (Scope::Cpython, "_mi_*", UserRole::RuntimeAllocator),
    (Scope::Any, "_PyObject_GC_*", UserRole::RuntimeAllocator),
    (Scope::Any, "PyObject_GC_Del", UserRole::RuntimeAllocator),
    (Scope::Any, "PyType_GenericAlloc", UserRole::RuntimeAllocator),
    (Scope::Any, "_PyType_AllocNoTrack", UserRole::RuntimeAllocator),
    (Scope::Any, "gc_collect_*", UserRole::Collector),
    (Scope::Any, "PyGC_Collect", UserRole::Collector),
    (Scope::Any, "_PyGC_Collect*", UserRole::Collector),
    (Scope::Any, "_Py_RunGC", UserRole::Collector),
    (Scope::Cpython, "gc_collect", UserRole::Collector),
    (Scope::Cpython, "collect", UserRole::Collector),
    (Scope::Cpython, "collect_with_callback", UserRole::Collector),
    (Scope::Cpython, "collect_generations", UserRole::Collector),
    (Scope::Cpython, "update_refs", UserRole::Collector),
    (Scope::Cpython, "subtract_refs", UserRole::Collector),
    (Scope::Cpython, "deduce_unreachable*", UserRole::Collector),
    (Scope::Cpython, "move_unreachable", UserRole::Collector),
    (Scope::Cpython, "move_legacy_finalizer*", UserRole::Collector),
    (Scope::Cpython, "untrack_tuples", UserRole::Collector),
    (Scope::Cpython, "untrack_dicts", UserRole::Collector),
    (Scope::Cpython, "clear_unreachable_mask", UserRole::Collector),
    (Scope::Cpython, "handle_weakrefs", UserRole::Collector),
    (Scope::Cpython, "handle_resurrected_objects", UserRole::Collector),
    (Scope::Cpython, "finalize_garbage", UserRole::Collector),
    (Scope::Cpython, "delete_garbage", UserRole::Collector),
    (Scope::Cpython, "visit_*", UserRole::Collector),
    (Scope::Cpython, "gc_visit_*", UserRole::Collector),
    (Scope::Cpython, "gc_mark_*", UserRole::Collector),
    (Scope::Cpython, "mark_heap_visitor", UserRole::Collector),
    (Scope::Cpython, "scan_heap_visitor", UserRole::Collector),
    (Scope::Cpython, "mark_all_reachable", UserRole::Collector),
    (Scope::Cpython, "mark_at_start", UserRole::Collector),
    (Scope::Cpython, "mark_stacks", UserRole::Collector),
    (Scope::Cpython, "mark_global_roots", UserRole::Collector),
    (Scope::Cpython, "move_all_transitively_reachable", UserRole::Collector),
    (Scope::Cpython, "expand_region_transitively_reachable", UserRole::Collector),

    // Go: runtime/malloc.go, mheap.go, mgc*.go. An assist runs inside mallocgc but is the collector's.
    (Scope::Any, "runtime.gc*", UserRole::Collector),
    (Scope::Any, "internal/runtime/gc*", UserRole::Collector),
    (Scope::Any, "runtime.wbBufFlush*", UserRole::Collector),
    (Scope::Any, "runtime.bulkBarrier*", UserRole::Collector),
    (Scope::Any, "runtime.(*gcWork)*", UserRole::Collector),
    (Scope::Any, "runtime.(*gcControllerState)*", UserRole::Collector),
    (Scope::Any, "runtime.scan*", UserRole::Collector),
    (Scope::Any, "runtime.greyobject*", UserRole::Collector),
    (Scope::Any, "runtime.markroot*", UserRole::Collector),
    (Scope::Any, "runtime.findObject", UserRole::Collector),
    (Scope::Any, "runtime.tryDeferToSpanScan", UserRole::Collector),
    (Scope::Any, "runtime.bgsweep*", UserRole::Collector),
    (Scope::Any, "runtime.sweepone*", UserRole::Collector),
    (Scope::Any, "runtime.(*sweepLock*", UserRole::Collector),
    (Scope::Any, "runtime.(*mspan).sweep*", UserRole::Collector),
    (Scope::Any, "runtime.(*mspan).moveInlineMarks*", UserRole::Collector),
    (Scope::Any, "runtime.(*spanInlineMarkBits)*", UserRole::Collector),
    (Scope::Any, "runtime.(*spanQueue)*", UserRole::Collector),
    (Scope::Any, "runtime.bgscavenge*", UserRole::Collector),
    (Scope::Any, "runtime.mallocgc*", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.newobject", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.makeslice*", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.growslice*", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.nextFreeFast", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.rawstring*", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.rawbyteslice", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.persistentalloc*", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.(*mcache)*", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.(*mcentral)*", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.(*mheap)*", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.(*pageAlloc)*", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.(*pageCache)*", UserRole::RuntimeAllocator),
    (Scope::Any, "runtime.sysMap*", UserRole::MapCall),
    (Scope::Any, "runtime.mmap*", UserRole::MapCall),
    (Scope::Any, "runtime.sysMmap*", UserRole::MapCall),
    (Scope::Any, "runtime.madvise*", UserRole::MapCall),
    (Scope::Any, "runtime.munmap*", UserRole::MapCall),
    (Scope::Any, "runtime.memclr*", UserRole::Memory),
    (Scope::Any, "runtime.memmove*", UserRole::Memory),
    (Scope::Any, "runtime.*", UserRole::Plumbing),

    // V8: src/heap.
    (Scope::Any, "v8::internal::Scavenge*", UserRole::Collector),
    (Scope::Any, "v8::internal::MarkCompact*", UserRole::Collector),
    (Scope::Any, "v8::internal::MinorMark*", UserRole::Collector),
    (Scope::Any, "v8::internal::MinorGC*", UserRole::Collector),
    (Scope::Any, "v8::internal::Marking*", UserRole::Collector),
    (Scope::Any, "v8::internal::MainMarking*", UserRole::Collector),
    (Scope::Any, "v8::internal::ConcurrentMarking*", UserRole::Collector),
    (Scope::Any, "v8::internal::IncrementalMarking*", UserRole::Collector),
    (Scope::Any, "v8::internal::Sweeper*", UserRole::Collector),
    (Scope::Any, "v8::internal::ArrayBufferSweeper*", UserRole::Collector),
    (Scope::Any, "v8::internal::Evacuat*", UserRole::Collector),
    (Scope::Any, "v8::internal::PointersUpdating*", UserRole::Collector),
    (Scope::Any, "v8::internal::WeakListVisitor*", UserRole::Collector),
    (Scope::Any, "v8::internal::BodyDescriptor*", UserRole::Collector),
    (Scope::Any, "v8::internal::PretenuringHandler*", UserRole::Collector),
    (Scope::Any, "v8::internal::MemoryAllocator::Unmapper*", UserRole::Collector),
    (Scope::Any, "v8::internal::MemoryAllocator::*", UserRole::RuntimeAllocator),
    (Scope::Any, "v8::internal::Heap::CollectGarbage*", UserRole::Collector),
    (Scope::Any, "v8::internal::Heap::CollectAll*", UserRole::Collector),
    (Scope::Any, "v8::internal::Heap::PerformGarbageCollection*", UserRole::Collector),
    (Scope::Any, "v8::internal::Heap::Scavenge*", UserRole::Collector),
    (Scope::Any, "v8::internal::Heap::MarkCompact*", UserRole::Collector),
    (Scope::Any, "v8::internal::Heap::ProcessAllWeak*", UserRole::Collector),
    (Scope::Any, "cppgc::internal::*Mark*", UserRole::Collector),
    (Scope::Any, "v8::internal::Heap::AllocateRaw*", UserRole::RuntimeAllocator),
    (Scope::Any, "v8::internal::HeapAllocator::*", UserRole::RuntimeAllocator),
    (Scope::Any, "v8::internal::LocalHeap::AllocateRaw*", UserRole::RuntimeAllocator),
    (Scope::Any, "v8::internal::MainAllocator::*", UserRole::RuntimeAllocator),
    (Scope::Any, "v8::internal::Factory::New*", UserRole::RuntimeAllocator),
    (Scope::Any, "v8::internal::Factory::Allocate*", UserRole::RuntimeAllocator),
    (Scope::Any, "v8::internal::FactoryBase<*", UserRole::RuntimeAllocator),
    (Scope::Any, "v8::internal::Runtime_AllocateIn*", UserRole::RuntimeAllocator),
    (Scope::Any, "Builtins_AllocateIn*", UserRole::RuntimeAllocator),
    (Scope::Any, "v8::*", UserRole::Plumbing),
    (Scope::Any, "Builtins_*", UserRole::Plumbing),

    // HotSpot: share/gc/shared/memAllocator.cpp, share/gc/{g1,parallel,serial,z,shenandoah}.
    (Scope::Jvm, "G1CollectedHeap::attempt_allocation*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "G1CollectedHeap::mem_allocate*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "G1CollectedHeap::allocate_new_tlab*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "G1Allocator::*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "ParallelScavengeHeap::mem_allocate*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "ParallelScavengeHeap::allocate_new_tlab*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "MemAllocator::mem_clear*", UserRole::Memory),
    (Scope::Jvm, "MemAllocator::*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "ObjAllocator::*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "ObjArrayAllocator::*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "ClassAllocator::*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "InstanceKlass::allocate_*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "TypeArrayKlass::allocate*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "ObjArrayKlass::allocate*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "ThreadLocalAllocBuffer::*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "OptoRuntime::new_*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "Runtime1::new_*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "CollectedHeap::obj_allocate*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "CollectedHeap::array_allocate*", UserRole::RuntimeAllocator),
    (Scope::Jvm, "G1*", UserRole::Collector),
    (Scope::Jvm, "VM_G1*", UserRole::Collector),
    (Scope::Jvm, "VM_GenCollect*", UserRole::Collector),
    (Scope::Jvm, "VM_ParallelGC*", UserRole::Collector),
    (Scope::Jvm, "Parallel*", UserRole::Collector),
    (Scope::Jvm, "PSPromotion*", UserRole::Collector),
    (Scope::Jvm, "PSParallel*", UserRole::Collector),
    (Scope::Jvm, "PSScavenge*", UserRole::Collector),
    (Scope::Jvm, "Shenandoah*", UserRole::Collector),
    (Scope::Jvm, "ZMark*", UserRole::Collector),
    (Scope::Jvm, "ZRelocat*", UserRole::Collector),
    (Scope::Jvm, "ZBarrier*", UserRole::Collector),
    (Scope::Jvm, "ZGeneration*", UserRole::Collector),
    (Scope::Jvm, "DefNewGeneration::*", UserRole::Collector),
    (Scope::Jvm, "GenMarkSweep::*", UserRole::Collector),
    (Scope::Jvm, "SerialFullGC::*", UserRole::Collector),
    (Scope::Jvm, "GenCollectedHeap::do_*", UserRole::Collector),
    (Scope::Jvm, "CollectedHeap::collect*", UserRole::Collector),

    // Programs with their own allocator on top of malloc: PostgreSQL's src/backend/utils/mmgr, nginx's src/core/ngx_palloc.c.
    (Scope::Any, "palloc", UserRole::RuntimeAllocator),
    (Scope::Any, "palloc0", UserRole::RuntimeAllocator),
    (Scope::Any, "palloc0fast", UserRole::RuntimeAllocator),
    (Scope::Any, "palloc_extended", UserRole::RuntimeAllocator),
    (Scope::Any, "palloc_aligned", UserRole::RuntimeAllocator),
    (Scope::Any, "pfree", UserRole::RuntimeAllocator),
    (Scope::Any, "repalloc*", UserRole::RuntimeAllocator),
    (Scope::Any, "MemoryContextAlloc*", UserRole::RuntimeAllocator),
    (Scope::Any, "MemoryContextReset*", UserRole::RuntimeAllocator),
    (Scope::Any, "MemoryContextDelete*", UserRole::RuntimeAllocator),
    (Scope::Any, "MemoryContextCreate", UserRole::RuntimeAllocator),
    (Scope::Any, "AllocSet*", UserRole::RuntimeAllocator),
    (Scope::Any, "GenerationAlloc*", UserRole::RuntimeAllocator),
    (Scope::Any, "GenerationFree", UserRole::RuntimeAllocator),
    (Scope::Any, "GenerationReset", UserRole::RuntimeAllocator),
    (Scope::Any, "SlabAlloc*", UserRole::RuntimeAllocator),
    (Scope::Any, "SlabFree", UserRole::RuntimeAllocator),
    (Scope::Any, "ngx_palloc*", UserRole::RuntimeAllocator),
    (Scope::Any, "ngx_pnalloc", UserRole::RuntimeAllocator),
    (Scope::Any, "ngx_pcalloc", UserRole::RuntimeAllocator),
    (Scope::Any, "ngx_pmemalign", UserRole::RuntimeAllocator),
    (Scope::Any, "ngx_pfree", UserRole::RuntimeAllocator),
    (Scope::Any, "ngx_create_pool", UserRole::RuntimeAllocator),
    (Scope::Any, "ngx_reset_pool", UserRole::RuntimeAllocator),
    (Scope::Any, "ngx_destroy_pool", UserRole::RuntimeAllocator),
    // Thin wrappers of malloc: the call site is their caller.
    (Scope::Any, "zmalloc*", UserRole::Plumbing),
    (Scope::Any, "zcalloc*", UserRole::Plumbing),
    (Scope::Any, "zrealloc*", UserRole::Plumbing),
    (Scope::Any, "zfree*", UserRole::Plumbing),
    (Scope::Any, "ztrymalloc*", UserRole::Plumbing),
    (Scope::Any, "ztrycalloc*", UserRole::Plumbing),
    (Scope::Any, "ztryrealloc*", UserRole::Plumbing),
    (Scope::Any, "ngx_alloc", UserRole::Plumbing),
    (Scope::Any, "ngx_calloc", UserRole::Plumbing),
    (Scope::Any, "ngx_memalign", UserRole::Plumbing),
    (Scope::Any, "xmalloc", UserRole::Plumbing),
    (Scope::Any, "xcalloc", UserRole::Plumbing),
    (Scope::Any, "xrealloc", UserRole::Plumbing),
    (Scope::Any, "g_malloc*", UserRole::Plumbing),
    (Scope::Any, "g_realloc*", UserRole::Plumbing),
    (Scope::Any, "g_free", UserRole::Plumbing),

    // Locks: an allocator's locks by name, other locks by their caller.
    (Scope::Any, "je_malloc_mutex_*", UserRole::AllocatorLock),
    (Scope::Any, "malloc_mutex_lock_slow", UserRole::AllocatorLock),
    (Scope::Any, "_rjem_je_malloc_mutex_*", UserRole::AllocatorLock),
    (Scope::Any, "tcmalloc::tcmalloc_internal::*SpinLock*", UserRole::AllocatorLock),
    (Scope::Any, "tcmalloc::SpinLock*", UserRole::AllocatorLock),
    (Scope::Any, "mi_lock_acquire*", UserRole::AllocatorLock),
    (Scope::Any, "_mi_prim_lock*", UserRole::AllocatorLock),
    (Scope::Any, "mi_atomic_yield", UserRole::AllocatorLock),
    (Scope::Any, "snmalloc::FlagLock*", UserRole::AllocatorLock),
    (Scope::Any, "SpinLock::SlowLock*", UserRole::Lock),
    (Scope::Any, "SpinLock::SpinLoop*", UserRole::Lock),
    (Scope::Any, "absl::*base_internal::SpinLock*", UserRole::Lock),
    (Scope::Any, "AbslInternalSpinLock*", UserRole::Lock),
    (Scope::Any, "base::internal::SpinLock*", UserRole::Lock),
    (Scope::Any, "__lll_*", UserRole::Lock),
    (Scope::Any, "__GI___lll_*", UserRole::Lock),
    (Scope::Any, "lll_lock*", UserRole::Lock),
    (Scope::Any, "pthread_mutex_*", UserRole::Lock),
    (Scope::Any, "__pthread_mutex_*", UserRole::Lock),
    (Scope::Any, "___pthread_mutex_*", UserRole::Lock),
    (Scope::Any, "__GI___pthread_mutex_*", UserRole::Lock),
    (Scope::Any, "pthread_spin_*", UserRole::Lock),
    (Scope::Any, "pthread_rwlock_*", UserRole::Lock),
    (Scope::Any, "__pthread_rwlock_*", UserRole::Lock),
    (Scope::Any, "std::sys::*::mutex::*", UserRole::Lock),
    (Scope::Any, "std::sys::*::futex*", UserRole::Lock),
    (Scope::Libc, "__lock", UserRole::Lock),
    (Scope::Libc, "__unlock", UserRole::Lock),
    (Scope::Libc, "__wait", UserRole::Lock),
    (Scope::Libc, "__wake", UserRole::Lock),
    (Scope::Libc, "syscall", UserRole::Lock),
    (Scope::Libc, "sched_yield", UserRole::Lock),
    (Scope::Libc, "__sched_yield", UserRole::Lock),
    (Scope::Libc, "futex_*", UserRole::Lock),

    (Scope::Libc, "mmap", UserRole::MapCall),
    (Scope::Libc, "mmap64", UserRole::MapCall),
    (Scope::Libc, "__mmap*", UserRole::MapCall),
    (Scope::Libc, "munmap", UserRole::MapCall),
    (Scope::Libc, "__munmap", UserRole::MapCall),
    (Scope::Libc, "mremap", UserRole::MapCall),
    (Scope::Libc, "__mremap", UserRole::MapCall),
    (Scope::Libc, "madvise", UserRole::MapCall),
    (Scope::Libc, "__madvise", UserRole::MapCall),
    (Scope::Libc, "mprotect", UserRole::MapCall),
    (Scope::Libc, "__mprotect", UserRole::MapCall),
    (Scope::Libc, "brk", UserRole::MapCall),
    (Scope::Libc, "__brk", UserRole::MapCall),
    (Scope::Libc, "sbrk", UserRole::MapCall),
    (Scope::Libc, "__sbrk", UserRole::MapCall),

    (Scope::Libc, "memcpy*", UserRole::Memory),
    (Scope::Libc, "__memcpy*", UserRole::Memory),
    (Scope::Libc, "memmove*", UserRole::Memory),
    (Scope::Libc, "__memmove*", UserRole::Memory),
    (Scope::Libc, "memset*", UserRole::Memory),
    (Scope::Libc, "__memset*", UserRole::Memory),
    (Scope::Libc, "__mempcpy*", UserRole::Memory),
    (Scope::Libc, "bzero", UserRole::Memory),

    // glibc malloc/malloc.c and musl src/malloc, if their symbols are available.
    (Scope::Any, "malloc", UserRole::Allocator),
    (Scope::Any, "free", UserRole::Allocator),
    (Scope::Any, "cfree", UserRole::Allocator),
    (Scope::Any, "calloc", UserRole::Allocator),
    (Scope::Any, "__calloc", UserRole::Allocator),
    (Scope::Any, "realloc", UserRole::Allocator),
    (Scope::Any, "reallocarray", UserRole::Allocator),
    (Scope::Any, "memalign", UserRole::Allocator),
    (Scope::Any, "aligned_alloc", UserRole::Allocator),
    (Scope::Any, "posix_memalign", UserRole::Allocator),
    (Scope::Any, "malloc_usable_size", UserRole::Allocator),
    (Scope::Any, "malloc_trim", UserRole::Allocator),
    (Scope::Any, "_int_malloc", UserRole::Allocator),
    (Scope::Any, "_int_free*", UserRole::Allocator),
    (Scope::Any, "_int_realloc", UserRole::Allocator),
    (Scope::Any, "_int_memalign", UserRole::Allocator),
    (Scope::Any, "_mid_memalign", UserRole::Allocator),
    (Scope::Any, "__libc_malloc*", UserRole::Allocator),
    (Scope::Any, "__libc_free", UserRole::Allocator),
    (Scope::Any, "__libc_calloc*", UserRole::Allocator),
    (Scope::Any, "__libc_realloc", UserRole::Allocator),
    (Scope::Any, "__libc_memalign", UserRole::Allocator),
    (Scope::Any, "__GI___libc_malloc", UserRole::Allocator),
    (Scope::Any, "__GI___libc_free", UserRole::Allocator),
    (Scope::Any, "malloc_consolidate", UserRole::Allocator),
    (Scope::Any, "unlink_chunk", UserRole::Allocator),
    (Scope::Any, "sysmalloc*", UserRole::Allocator),
    (Scope::Any, "systrim", UserRole::Allocator),
    (Scope::Any, "munmap_chunk", UserRole::Allocator),
    (Scope::Any, "mremap_chunk", UserRole::Allocator),
    (Scope::Any, "arena_get2", UserRole::Allocator),
    (Scope::Any, "arena_get_retry", UserRole::Allocator),
    (Scope::Libc, "tcache_*", UserRole::Allocator),
    (Scope::Libc, "__malloc_*", UserRole::Allocator),
    (Scope::Libc, "new_heap", UserRole::Allocator),
    (Scope::Libc, "grow_heap", UserRole::Allocator),
    (Scope::Libc, "heap_trim", UserRole::Allocator),
    (Scope::Libc, "alloc_slot", UserRole::Allocator),
    (Scope::Libc, "alloc_group", UserRole::Allocator),
    (Scope::Libc, "nontrivial_free", UserRole::Allocator),

    // Statically linked allocators. MyISAM (storage/myisam/myisamdef.h) also uses the prefixes `mi_` and `_mi_`, iproute2 and
    // MariaDB's table cache `tc_`, so the patterns are longer.
    (Scope::Any, "je_*", UserRole::Allocator),
    (Scope::Any, "_rjem_*", UserRole::Allocator),
    (Scope::Any, "jemalloc_*", UserRole::Allocator),
    (Scope::Any, "mi_malloc*", UserRole::Allocator),
    (Scope::Any, "mi_zalloc*", UserRole::Allocator),
    (Scope::Any, "mi_calloc*", UserRole::Allocator),
    (Scope::Any, "mi_realloc*", UserRole::Allocator),
    (Scope::Any, "mi_recalloc*", UserRole::Allocator),
    (Scope::Any, "mi_rezalloc*", UserRole::Allocator),
    (Scope::Any, "mi_expand", UserRole::Allocator),
    (Scope::Any, "mi_memalign*", UserRole::Allocator),
    (Scope::Any, "mi_posix_memalign", UserRole::Allocator),
    (Scope::Any, "mi_aligned_*", UserRole::Allocator),
    (Scope::Any, "mi_try_new*", UserRole::Allocator),
    (Scope::Any, "mi_free*", UserRole::Allocator),
    (Scope::Any, "mi_new*", UserRole::Allocator),
    (Scope::Any, "mi_heap_*", UserRole::Allocator),
    (Scope::Any, "mi_theap_*", UserRole::Allocator),
    (Scope::Any, "mi_page_*", UserRole::Allocator),
    (Scope::Any, "mi_segment*", UserRole::Allocator),
    (Scope::Any, "mi_arena*", UserRole::Allocator),
    (Scope::Any, "mi_bitmap_*", UserRole::Allocator),
    (Scope::Any, "mi_bchunk_*", UserRole::Allocator),
    (Scope::Any, "mi_find_page", UserRole::Allocator),
    (Scope::Any, "mi_usable_size", UserRole::Allocator),
    (Scope::Any, "mi_block_*", UserRole::Allocator),
    (Scope::Any, "mi_os_*", UserRole::Allocator),
    (Scope::Any, "mi_abandoned_*", UserRole::Allocator),
    (Scope::Any, "mi_collect", UserRole::Allocator),
    (Scope::Any, "_mi_abandoned*", UserRole::Allocator),
    (Scope::Any, "_mi_align_*", UserRole::Allocator),
    (Scope::Any, "_mi_arena*", UserRole::Allocator),
    // Not `_mi_bin_search` of MyISAM.
    (Scope::Any, "_mi_bin", UserRole::Allocator),
    (Scope::Any, "_mi_bin_size", UserRole::Allocator),
    (Scope::Any, "_mi_bitmap*", UserRole::Allocator),
    (Scope::Any, "_mi_clock_*", UserRole::Allocator),
    (Scope::Any, "_mi_commit*", UserRole::Allocator),
    (Scope::Any, "_mi_deferred_free", UserRole::Allocator),
    (Scope::Any, "_mi_free*", UserRole::Allocator),
    (Scope::Any, "_mi_heap*", UserRole::Allocator),
    (Scope::Any, "_mi_is_*", UserRole::Allocator),
    (Scope::Any, "_mi_malloc*", UserRole::Allocator),
    (Scope::Any, "_mi_mem*", UserRole::Allocator),
    (Scope::Any, "_mi_meta*", UserRole::Allocator),
    (Scope::Any, "_mi_os*", UserRole::Allocator),
    (Scope::Any, "_mi_padding*", UserRole::Allocator),
    (Scope::Any, "_mi_page*", UserRole::Allocator),
    (Scope::Any, "_mi_prim_*", UserRole::Allocator),
    (Scope::Any, "_mi_ptr_*", UserRole::Allocator),
    (Scope::Any, "_mi_random_*", UserRole::Allocator),
    (Scope::Any, "_mi_segment*", UserRole::Allocator),
    (Scope::Any, "_mi_stat_*", UserRole::Allocator),
    (Scope::Any, "_mi_stats_*", UserRole::Allocator),
    (Scope::Any, "_mi_subproc*", UserRole::Allocator),
    (Scope::Any, "_mi_theap*", UserRole::Allocator),
    (Scope::Any, "_mi_thread*", UserRole::Allocator),
    (Scope::Any, "_mi_usable_size", UserRole::Allocator),
    (Scope::Any, "tc_malloc*", UserRole::Allocator),
    (Scope::Any, "tc_free*", UserRole::Allocator),
    (Scope::Any, "tc_new*", UserRole::Allocator),
    (Scope::Any, "tc_delete*", UserRole::Allocator),
    (Scope::Any, "tc_calloc", UserRole::Allocator),
    (Scope::Any, "tc_realloc", UserRole::Allocator),
    (Scope::Any, "tc_memalign", UserRole::Allocator),
    (Scope::Any, "tc_posix_memalign", UserRole::Allocator),
    (Scope::Any, "TCMalloc*", UserRole::Allocator),
    (Scope::Any, "tcmalloc::*", UserRole::Allocator),
    (Scope::Any, "snmalloc::*", UserRole::Allocator),
    (Scope::Any, "sn_malloc*", UserRole::Allocator),
    (Scope::Any, "sn_rust_*", UserRole::Allocator),

    // Wrappers of malloc in language runtimes: the function that they call decides.
    (Scope::Any, "operator new*", UserRole::Allocator),
    (Scope::Any, "operator delete*", UserRole::Allocator),
    (Scope::Any, "_Znwm*", UserRole::Allocator),
    (Scope::Any, "_Znam*", UserRole::Allocator),
    (Scope::Any, "_ZdlPv*", UserRole::Allocator),
    (Scope::Any, "_ZdaPv*", UserRole::Allocator),
    (Scope::Any, "__rust_alloc*", UserRole::Allocator),
    (Scope::Any, "__rust_dealloc", UserRole::Allocator),
    (Scope::Any, "__rust_realloc", UserRole::Allocator),
    (Scope::Any, "__rdl_*", UserRole::Allocator),
    (Scope::Any, "__rg_*", UserRole::Allocator),
    (Scope::Any, "__rustc::__rust_*", UserRole::Allocator),
    (Scope::Any, "__rustc::__rdl_*", UserRole::Allocator),

    // Containers and adapters of the standard libraries.
    (Scope::Any, "_start", UserRole::Plumbing),
    (Scope::Any, "std::*", UserRole::Plumbing),
    (Scope::Any, "__gnu_cxx::*", UserRole::Plumbing),
    (Scope::Any, "alloc::*", UserRole::Plumbing),
    (Scope::Any, "core::*", UserRole::Plumbing),
    (Scope::Any, "hashbrown::*", UserRole::Plumbing),
    (Scope::Any, "<alloc::*", UserRole::Plumbing),
    (Scope::Any, "<core::*", UserRole::Plumbing),
    (Scope::Any, "<std::*", UserRole::Plumbing),
];

pub fn user_role(symbol: &str, scope: Scope) -> Option<UserRole> {
    let name = without_return_type(bare_name(symbol));
    USER.iter().find(|(s, pattern, _)| (*s == Scope::Any || *s == scope) && fits(pattern, name)).map(|r| r.2)
}

/// Entry points that fill their block with zeros, among the functions of allocators.
const ZEROING: &[&str] = &["*calloc*", "*zalloc*", "*alloc_zeroed*"];

/// Whether an allocator's entry point fills its block with zeros. Its last step may be a jump to memset, so that it is not
/// on the stack: glibc's malloc/malloc.c, musl's src/malloc/calloc.c, mimalloc's src/alloc.c.
pub fn allocates_zeroed(symbol: &str) -> bool {
    ZEROING.iter().any(|pattern| fits(pattern, symbol))
        && user_role(symbol, Scope::Any) == Some(UserRole::Allocator)
}

/// V8's exits from generated code, the same for every call: src/builtins, src/codegen.
const TRAMPOLINES: &[&str] = &[
    "Builtins_CEntry*",
    "Builtins_CallApi*",
    "Builtins_HandleApiCall*",
    "Builtins_Call_*",
    "Builtins_CallFunction*",
    "Builtins_InterpreterEntry*",
    "Builtins_InterpreterPush*",
    "Builtins_JSEntry*",
    "Builtins_JSConstruct*",
    "Builtins_JSBuiltinsConstruct*",
    "v8::internal::Builtin_HandleApiCall*",
];

/// Whether the function is only an adapter between generated code and the called function.
pub fn is_trampoline(symbol: &str) -> bool {
    TRAMPOLINES.iter().any(|p| fits(p, bare_name(symbol)))
}

/// Functions that start a program or a thread. They are at the root of every stack, so as a call site they say nothing:
/// glibc's csu/libc-start.c and nptl/pthread_create.c, libstdc++'s src/c++11/thread.cc.
const ROOTS: &[&str] = &[
    "_start",
    "__libc_start_*",
    "start_thread",
    "clone",
    "clone3",
    "__clone*",
    "execute_native_thread_routine*",
];

pub fn is_root(symbol: &str) -> bool {
    ROOTS.iter().any(|p| fits(p, bare_name(symbol)))
}

/// Demangled C++ templates start with their return type: `void v8::internal::Visit<int>(long)`.
fn without_return_type(name: &str) -> &str {
    // The name of an operator may contain blanks and brackets; its return type is before it.
    let end = name.find("operator").unwrap_or(name.len());
    let mut depth = 0_u32;
    let mut start = 0;
    for (at, c) in name[..end].char_indices() {
        match c {
            '(' if depth == 0 && !name[at..].starts_with("(anonymous namespace)") => break,
            '(' | '<' => depth += 1,
            ')' | '>' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    match &name[start..] {
        "" => name,
        function => function,
    }
}

/// Names of HotSpot's collector threads (os::set_native_thread_name), cut to the 15 bytes that the kernel keeps. Serial collections run
/// in `VM Thread`.
pub const JVM_COLLECTOR_THREADS: &[&str] = &[
    "GC Thread#*",
    "G1 *",
    "VM Thread",
    "ParGC Thread*",
    "Gang worker#*",
    "Concurrent Mark*",
    "ConcurrentMark*",
    "CMS *",
    "ZDriver*",
    "ZDirector*",
    "ZWorker*",
    "ZUncommitter*",
    "ZUnmapper*",
    "XDriver*",
    "XDirector*",
    "XWorker*",
    "RuntimeWorker*",
    "Shenandoah*",
    "GC task thread*",
];

pub fn is_jvm_collector_thread(comm: &str) -> bool {
    JVM_COLLECTOR_THREADS.iter().any(|p| fits(p, comm))
}

/// A function's name without the compiler's suffixes for clones and without the symbol version.
pub fn bare_name(symbol: &str) -> &str {
    let mut name = symbol.split(" [clone").next().unwrap_or(symbol);
    name = name.split('@').next().filter(|n| !n.is_empty()).unwrap_or(name);
    for mark in CLONE_MARKS {
        if let Some(at) = name.find(mark).filter(|at| *at > 0) {
            let rest = &name[at + mark.len()..];
            if rest.is_empty() || rest.starts_with(|c: char| c == '.' || c.is_ascii_digit()) {
                name = &name[..at];
            }
        }
    }
    name
}

const CLONE_MARKS: &[&str] =
    &[".isra", ".constprop", ".part", ".cold", ".llvm.", ".lto_priv", ".localalias", ".warm"];

fn first_fit<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(pattern, _)| fits(pattern, name)).map(|r| r.1)
}

/// A `*` matches any characters. Without a `*`, the pattern matches only the whole name.
pub fn fits(pattern: &str, name: &str) -> bool {
    // Fast exit: most rows differ in the first byte, and tens of thousands of names are looked up.
    if pattern.as_bytes().first().is_some_and(|p| *p != b'*' && name.as_bytes().first() != Some(p)) {
        return false;
    }
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, "")) => name.starts_with(head),
        Some((head, tail)) => match name.strip_prefix(head) {
            None => false,
            Some(rest) => rest.char_indices().any(|(at, _)| fits(tail, &rest[at..])),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::syscalls::MapCall;

    #[test]
    fn every_map_call_is_known_by_its_name_in_libc_and_in_the_kernel() {
        for call in MapCall::ALL {
            assert_eq!(user_role(call.name(), Scope::Libc), Some(UserRole::MapCall), "{call:?}");
            let kernel = format!("__x64_sys_{}", call.name());
            assert_eq!(kernel_role(&kernel), Some(KernelRole::Map), "{call:?}");
        }
    }

    #[test]
    fn entry_points_that_zero_their_block_are_known() {
        for symbol in [
            "calloc",
            "__libc_calloc",
            "__calloc",
            "je_calloc",
            "mi_zalloc",
            "mi_heap_calloc",
            "tc_calloc",
            "__rust_alloc_zeroed",
            "__rustc::__rdl_alloc_zeroed",
        ] {
            assert!(allocates_zeroed(symbol), "{symbol}");
        }
        for symbol in ["malloc", "memset", "free", "__rust_alloc", "xcalloc", "my_calloc", "zcalloc_num"] {
            assert!(!allocates_zeroed(symbol), "{symbol}");
        }
    }

    #[test]
    fn clones_and_versions_are_the_function() {
        for (symbol, name) in [
            ("clear_page_erms", "clear_page_erms"),
            ("unmap_single_vma.isra.0", "unmap_single_vma"),
            ("vms_clear_ptes.part.0.constprop.0", "vms_clear_ptes"),
            ("zap_pte_range.cold", "zap_pte_range"),
            ("do_fault.llvm.8192", "do_fault"),
            ("rwsem_wake.isra.0 [clone .cold]", "rwsem_wake"),
            ("malloc@@GLIBC_2.2.5", "malloc"),
            // A part that only begins like a suffix is kept.
            ("module.particular", "module.particular"),
            ("app.coldstart", "app.coldstart"),
            ("runtime.mallocgc", "runtime.mallocgc"),
            (".isra", ".isra"),
            ("", ""),
        ] {
            assert_eq!(bare_name(symbol), name, "{symbol}");
        }
    }

    #[test]
    fn return_types_are_no_part_of_the_name() {
        for (symbol, name) in [
            ("void v8::internal::Visit<int, long>(long, int)", "v8::internal::Visit<int, long>(long, int)"),
            (
                "std::pair<int, long> app::(anonymous namespace)::f<int>(int)",
                "app::(anonymous namespace)::f<int>(int)",
            ),
            (
                "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
                "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            ),
            ("operator new(unsigned long)", "operator new(unsigned long)"),
            ("bool std::operator< <char>(char const*)", "std::operator< <char>(char const*)"),
            ("std::map<int, long>::operator[](int&&)", "std::map<int, long>::operator[](int&&)"),
            ("App::operator bool() const", "App::operator bool() const"),
            ("Cooperator::run(int, long)", "Cooperator::run(int, long)"),
            ("work(int, long)", "work(int, long)"),
            ("odd ", "odd "),
        ] {
            assert_eq!(without_return_type(symbol), name);
        }
    }

    #[test]
    fn patterns_fit_whole_names_and_any_ending() {
        for (pattern, name, expected) in [
            ("zap_*", "zap_pte_range", true),
            ("zap_*", "rezap_pte", false),
            ("clear_page", "clear_page_erms", false),
            ("*_wait_data", "tcp_wait_data", true),
            ("*_wait_data", "tcp_wait_data_late", false),
            ("std::sys::*::mutex::*", "std::sys::sync::mutex::futex::Mutex::lock", true),
            ("std::sys::*::mutex::*", "std::sys::thread::sleep", false),
            ("*a*", "é", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }

    /// A row is never reached if an earlier pattern matches its names.
    #[test]
    fn no_row_hides_behind_an_earlier_one() {
        for (i, (pattern, _)) in KERNEL.iter().enumerate() {
            let name = pattern.trim_matches('*');
            if let Some((earlier, _)) = KERNEL[..i].iter().find(|(p, _)| fits(p, name)) {
                panic!("{pattern} is never reached: {earlier} matches first");
            }
        }
        for (i, (scope, pattern, _)) in USER.iter().enumerate() {
            let name = pattern.replace('*', "");
            let taken = USER[..i].iter().find(|(s, p, _)| (*s == Scope::Any || s == scope) && fits(p, &name));
            if let Some((_, earlier, _)) = taken {
                panic!("{pattern} is never reached: {earlier} matches first");
            }
        }
    }

    #[test]
    fn functions_of_static_allocators_and_their_near_twins() {
        for function in [
            "je_arena_malloc_hard",
            "_rjem_je_tcache_bin_flush_small",
            "tcmalloc::ThreadCache::FetchFromCentralCache(unsigned int, int)",
            "tc_malloc",
            "_mi_page_malloc",
            "_mi_bin",
            "mi_heap_malloc",
            "mi_block_zero_init",
            "snmalloc::LocalAllocator::alloc",
        ] {
            assert_eq!(user_role(function, Scope::Any), Some(UserRole::Allocator), "{function}");
        }
        for function in
            ["tc_qdisc_modify", "tc_release_table", "mi_rkey", "_mi_bin_search", "_mi_new", "jemallocish"]
        {
            assert_eq!(user_role(function, Scope::Any), None, "{function}");
        }
    }

    #[test]
    fn write_faults_show_what_they_do_to_the_page() {
        let line = |stack: &str| kernel_line(stack.split(';').map(kernel_role));
        for (stack, shown) in [
            ("clear_page_erms;prep_new_page;do_wp_page;handle_mm_fault", Some(CostClass::Zeroing)),
            ("copy_mc_fragile;copy_mc_to_kernel;wp_page_copy;do_wp_page", Some(CostClass::CopyOnWrite)),
            (
                "__pi_copy_page;copy_highpage;wp_page_copy;do_wp_page;do_mem_abort",
                Some(CostClass::CopyOnWrite),
            ),
            ("_raw_spin_lock;do_wp_page;handle_mm_fault;exc_page_fault", None),
            ("flush_tlb_mm_range;ptep_clear_flush;do_wp_page;exc_page_fault", None),
        ] {
            assert_eq!(line(stack), KernelLine::WriteFault(shown), "{stack}");
        }
        // Copies elsewhere are no copies on write.
        for (stack, class) in [
            ("rep_movs_alternative;_copy_to_iter;filemap_read;vfs_read", CostClass::FileSystem),
            ("copy_mc_to_kernel;do_cow_fault;do_fault;exc_page_fault", CostClass::FileFault),
            ("ext4_mark_inode_dirty;do_wp_page;handle_mm_fault;exc_page_fault", CostClass::FileFault),
        ] {
            assert_eq!(line(stack), KernelLine::Class(class), "{stack}");
        }
        assert_eq!(line("do_fault;__handle_mm_fault;exc_page_fault"), KernelLine::SomeFault);
    }

    #[test]
    fn the_kernels_own_allocator_has_a_line_unless_memory_or_processes_are_its_cause() {
        let line = |stack: &str| kernel_line(stack.split(';').map(kernel_role));
        for (stack, class) in [
            ("kmem_cache_alloc_noprof;alloc_empty_file;path_openat;do_filp_open", CostClass::KernelSlab),
            (
                "clear_page_erms;allocate_slab;___slab_alloc;kmem_cache_alloc;sk_prot_alloc;inet_create",
                CostClass::KernelSlab,
            ),
            ("page_counter_uncharge;__memcg_slab_free_hook;kmem_cache_free;__fput", CostClass::KernelSlab),
            ("kfree;tty_ioctl;__x64_sys_ioctl", CostClass::KernelSlab),
            ("kmem_cache_alloc;ep_insert;do_epoll_ctl", CostClass::KernelSlab),
            (
                "kfree_skbmem;tcp_ack;tcp_v4_rcv;net_rx_action;handle_softirqs;do_softirq.part.0;__dev_queue_xmit;tcp_sendmsg",
                CostClass::KernelSlab,
            ),
            ("kmem_cache_free;__fput;task_work_run;asm_sysvec_apic_timer_interrupt", CostClass::KernelSlab),
            // The same callers without it, and an interrupt that comes while it runs.
            ("fd_install;path_openat;do_filp_open", CostClass::FileSystem),
            ("sk_prot_alloc;inet_create;__sock_create", CostClass::Sockets),
            ("rcu_do_batch;handle_softirqs;sysvec_apic_timer_interrupt", CostClass::OtherKernel),
            (
                "update_process_times;sysvec_apic_timer_interrupt;kmem_cache_alloc;path_openat",
                CostClass::OtherKernel,
            ),
            // Work of a socket within the end of a message.
            ("sock_wfree;skb_release_head_state;consume_skb;unix_stream_read_generic", CostClass::Sockets),
            // Queueing memory that is freed later.
            ("kvfree_call_rcu;ep_remove;do_epoll_ctl", CostClass::Scheduling),
            // Faults, map calls, reclaim and processes pay for it themselves.
            ("kmem_cache_alloc;__anon_vma_prepare;do_anonymous_page;exc_page_fault", CostClass::FaultPath),
            ("kmem_cache_alloc;mas_preallocate;do_vmi_align_munmap;__x64_sys_munmap", CostClass::MapCalls),
            (
                "kmem_cache_free;__d_free;shrink_dentry_list;prune_dcache_sb;do_shrink_slab;shrink_node",
                CostClass::Reclaim,
            ),
            ("kmem_cache_alloc_node;dup_task_struct;copy_process;kernel_clone", CostClass::ForkExit),
        ] {
            assert_eq!(line(stack), KernelLine::Class(class), "{stack}");
        }
    }

    #[test]
    fn what_an_interrupt_frees_is_not_the_work_of_the_thread_that_it_came_into() {
        let line = |stack: &str| kernel_line(stack.split(';').map(kernel_role));
        const CALL: &str = "vfs_read;ksys_read;__x64_sys_read;do_syscall_64";
        const TIMER: &str = "__irq_exit_rcu;sysvec_apic_timer_interrupt;asm_sysvec_apic_timer_interrupt";
        for (stack, class) in [
            // Callbacks of RCU, at the end of an interrupt or within a call.
            (
                format!("kmem_cache_free;i_callback;rcu_do_batch;rcu_core;handle_softirqs;{TIMER};{CALL}"),
                CostClass::OtherKernel,
            ),
            (
                format!("kfree;rcu_do_batch;rcu_core;__do_softirq;irq_exit_rcu;{TIMER}"),
                CostClass::OtherKernel,
            ),
            (
                format!("kfree;rcu_do_batch;rcu_core;handle_softirqs;do_softirq.part.0;tcp_sendmsg;{CALL}"),
                CostClass::OtherKernel,
            ),
            (
                format!("kmem_cache_free;free_task;rcu_do_batch;rcu_core_si;handle_softirqs;{TIMER}"),
                CostClass::OtherKernel,
            ),
            // Messages of the network, for any process.
            (
                format!(
                    "consume_skb;tcp_v4_rcv;net_rx_action;handle_softirqs;__irq_exit_rcu;common_interrupt;{CALL}"
                ),
                CostClass::Sockets,
            ),
            (format!("kfree;tasklet_action_common;handle_softirqs;{TIMER};{CALL}"), CostClass::OtherKernel),
            // The twins, without the interrupt.
            (format!("kmem_cache_free;i_callback;{CALL}"), CostClass::KernelSlab),
            (format!("consume_skb;tcp_v4_rcv;{CALL}"), CostClass::KernelSlab),
        ] {
            assert_eq!(line(&stack), KernelLine::Class(class), "{stack}");
            let callbacks = runs_callbacks(stack.split(';').map(kernel_role));
            assert_eq!(callbacks, stack.contains("rcu_do_batch"), "{stack}");
        }
    }

    #[test]
    fn the_caller_shows_what_the_kernels_own_allocator_works_for() {
        let object =
            |stack: &str| kernel_object(stack.split(';').map(|symbol| (kernel_role(symbol), symbol)));
        for (stack, expected) in [
            ("kfree;skb_release_data;consume_skb;unix_stream_read_generic", Some(KernelObject::Message)),
            ("kmem_cache_alloc;alloc_skb_with_frags;sock_alloc_send_pskb", Some(KernelObject::Message)),
            ("kmem_cache_alloc;skb_clone;__tcp_transmit_skb;tcp_write_xmit", Some(KernelObject::Message)),
            ("kmem_cache_alloc;sk_prot_alloc;unix_create1;__sys_socketpair", Some(KernelObject::Connection)),
            ("kmem_cache_free;iput;sock_release;sock_close;__fput", Some(KernelObject::Connection)),
            ("__d_alloc;d_alloc_parallel;link_path_walk;vfs_statx", Some(KernelObject::File)),
            ("kmem_cache_free;__fput;task_work_run", Some(KernelObject::File)),
            // What the work of an interrupt came into says nothing.
            ("kfree;handle_softirqs;do_softirq.part.0;vfs_read", None),
            ("kfree;tty_ioctl", None),
        ] {
            assert_eq!(object(stack), expected, "{stack}");
        }
    }

    #[test]
    fn only_a_fork_copies_an_address_space() {
        for (stack, step) in [
            (
                "copy_present_ptes;copy_page_range;dup_mmap;dup_mm.constprop.0;copy_process",
                Some(ProcessStep::Copy),
            ),
            ("down_write;dup_mmap;copy_process;kernel_clone;__do_sys_clone", Some(ProcessStep::Copy)),
            // A thread, vfork, or posix_spawn.
            ("dup_task_struct;copy_process;kernel_clone;__do_sys_clone3", None),
            ("dup_fd;copy_process;kernel_clone;__do_sys_vfork", None),
            ("zap_pte_range;unmap_vmas;exit_mmap;mmput;do_exit;do_group_exit", Some(ProcessStep::End)),
            ("free_task;release_task;do_exit", None),
            (
                "free_pgtables;exit_mmap;__mmput;begin_new_exec;load_elf_binary;bprm_execve",
                Some(ProcessStep::Replace),
            ),
            ("mas_store_gfp;do_mmap;elf_load;load_elf_binary;bprm_execve", Some(ProcessStep::Exec)),
            ("do_anonymous_page;handle_mm_fault;exc_page_fault", None),
        ] {
            assert_eq!(process_step(stack.split(';')), step, "{stack}");
        }
    }

    #[test]
    fn system_calls_are_known_on_every_architecture() {
        for symbol in ["__x64_sys_munmap", "__arm64_sys_munmap", "__se_sys_munmap", "__do_sys_munmap"] {
            assert_eq!(kernel_role(symbol), Some(KernelRole::Map), "{symbol}");
        }
        assert_eq!(kernel_role("__x64_sys_mount"), None);
    }

    #[test]
    fn only_the_handler_is_a_system_call() {
        assert!(is_system_call("__x64_sys_prctl") && is_system_call("__arm64_sys_prctl"));
        assert!(!is_system_call("do_syscall_64") && !is_system_call("__do_munmap"));
    }

    #[test]
    fn what_starts_a_thread_is_no_function_of_the_program() {
        for root in ["_start", "__libc_start_call_main", "execute_native_thread_routine", "clone3"] {
            assert!(is_root(root), "{root}");
        }
        for function in ["main", "start_threads", "app::clone(int)", "execute"] {
            assert!(!is_root(function), "{function}");
        }
    }

    #[test]
    fn collector_threads_are_not_any_thread_of_a_jvm() {
        assert!(is_jvm_collector_thread("GC Thread#3"));
        assert!(is_jvm_collector_thread("G1 Conc#0"));
        assert!(is_jvm_collector_thread("VM Thread"));
        assert!(!is_jvm_collector_thread("C2 CompilerThre"));
        assert!(!is_jvm_collector_thread("Finalizer"));
    }
}

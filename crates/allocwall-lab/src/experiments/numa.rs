//! Memory of another NUMA node: threads of one node follow references through memory of that node, of another one, or of both, and read
//! it from one end to the other.

use super::claims::{Bound, Claim, Quantity, Test};
use super::incidents::{JUDGED_BYTES, TABLE_BYTES, nodes, nodes_with_room};
use super::task::{Outcome, Task, fine_clock};
use super::turns::{self, Tally, Turn, Turns};
use super::{Arm, Experiment, Figure, Settings};
use allocwall_host::cycles::Cycles;
use allocwall_host::memory::{AnonymousMapping, PAGE, Pages};
use allocwall_host::proc::ProcFs;
use allocwall_host::{numa_maps, place, topology};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::placement::NodePages;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use anyhow::{Context, anyhow, bail};
use std::hint::black_box;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

// Names of arms, and the variants of the program.
const LOCAL: &str = "local";
const REMOTE: &str = "remote";
const INTERLEAVED: &str = "interleaved";

const REFERENCE: &str = "reference_ns";
const LINES: &str = "lines_per_s";
const ELSEWHERE: &str = "elsewhere";

pub const EXPERIMENT: Experiment = Experiment {
    name: "numa",
    summary: "memory of another NUMA node: references that wait for each other, and reading at full speed",
    about: "All threads run on the CPUs of one NUMA node. Their memory is a table that was first touched by a thread of the same node \
            (`local`), of another node (`remote`), or page by page in turns by a thread of each (`interleaved`); where it is \
            permitted, these threads also bind their memory to their node. Two cases take turns in a run: one thread follows \
            references to any line, each of which depends on the one before; and a thread for each CPU of the node, at most 16, \
            reads the table from one end to the other. The table has 256 MiB with --quick, else 1.25 GiB. In the run of a bill all \
            threads follow references. Needs two NUMA nodes with CPUs and memory.",
    arms: &[Arm::variant(LOCAL, LOCAL), Arm::variant(REMOTE, REMOTE), Arm::variant(INTERLEAVED, INTERLEAVED)],
    figures: &[
        Figure::lower(REFERENCE, "one thread: time of a reference", Unit::Ns),
        Figure::higher(LINES, "a thread per CPU: cache lines read, of all threads", Unit::PerSecond),
        Figure::lower(ELSEWHERE, "share of the memory that is not on the threads' node", Unit::Ratio),
    ],
    claims: &[
        Claim {
            says: "Another node costs a factor of 1.5 to 2, for loads that wait for each other.",
            tests: &[
                LOCAL_PAGES,
                REMOTE_PAGES,
                Test {
                    what: Quantity::Ratio { figure: REFERENCE, arm: REMOTE, to: LOCAL },
                    is: Bound::Within(1.5, 2.0),
                },
            ],
        },
        Claim {
            says: "Another node costs a factor of 1.5 to 2, for threads that read at full speed.",
            tests: &[
                LOCAL_PAGES,
                REMOTE_PAGES,
                Test {
                    what: Quantity::Ratio { figure: LINES, arm: REMOTE, to: LOCAL },
                    is: Bound::Within(0.5, 0.667),
                },
            ],
        },
        Claim {
            says: "A line from another node takes 190 ns, and one from the own node 78 ns.",
            // Half and twice the published ratio.
            tests: &[
                LOCAL_PAGES,
                REMOTE_PAGES,
                Test {
                    what: Quantity::Ratio { figure: REFERENCE, arm: REMOTE, to: LOCAL },
                    is: Bound::Within(1.22, 4.87),
                },
            ],
        },
        Claim {
            says: "NUMA is the wall of threads whose memory is on another node. With memory on their own node it is not.",
            tests: &[
                LOCAL_PAGES,
                REMOTE_PAGES,
                Test { what: Quantity::FirstWall { any: &[Wall::Numa], arm: REMOTE }, is: Bound::Above(0.5) },
                Test { what: Quantity::FirstWall { any: &[Wall::Numa], arm: LOCAL }, is: Bound::Below(0.5) },
            ],
        },
        Claim {
            says: "NUMA is a wall from 5 % of remote memory on, and so it is at 47 %.",
            tests: &[
                Test {
                    what: Quantity::Value { figure: ELSEWHERE, arm: INTERLEAVED },
                    is: Bound::Given(&Bound::Within(0.4, 0.6)),
                },
                Test {
                    what: Quantity::FirstWall { any: &[Wall::Numa], arm: INTERLEAVED },
                    is: Bound::Above(0.5),
                },
            ],
        },
    ],
    charts: &[],
    check: Some(check),
    run: measure,
};

// The pages are where the arm wants them. Else its other figures are not about NUMA.
const LOCAL_PAGES: Test =
    Test { what: Quantity::Value { figure: ELSEWHERE, arm: LOCAL }, is: Bound::Given(&Bound::Below(0.1)) };
const REMOTE_PAGES: Test =
    Test { what: Quantity::Value { figure: ELSEWHERE, arm: REMOTE }, is: Bound::Given(&Bound::Above(0.9)) };

/// The cases, in the order of their turns.
const FOLLOW: usize = 0;
const READ: usize = 1;
/// Fewer threads than this use all the bandwidth of a node.
const MOST_THREADS: usize = 16;
const WORDS_A_PAGE: usize = PAGE / size_of::<u64>();
/// A cache line has 64 bytes.
const WORDS_A_LINE: usize = 8;
/// References, and words that are read, between two readings of the clock.
const REFERENCES: u64 = 256;
const CHUNK: usize = 8 << 10;
/// 2^64 divided by the golden ratio: multiples of it are spread over all values (Knuth, The Art of Computer Programming, 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Time limit for the kernel's list of the pages, which takes some milliseconds.
const LISTING: Duration = Duration::from_secs(5);

fn check(_: &Arm, _: &Settings) -> Measured<()> {
    nodes_with_room().map(drop)
}

/// A NUMA node, and those of its CPUs that may be used.
struct Node {
    number: u32,
    cpus: Vec<u32>,
}

impl Node {
    fn of(number: u32) -> Measured<Node> {
        let allowed = topology::allowed_cpus()?;
        let all = topology::nodes(Path::new("/sys"))?;
        let of_node = all.iter().filter(|node| node.node == number).flat_map(|node| &node.cpus);
        let cpus = of_node.map(|cpu| u32::from(*cpu)).filter(|cpu| allowed.contains(cpu)).collect();
        Ok(Node { number, cpus })
    }

    /// The calling thread runs on this node from now on, and its new pages are there.
    fn enter(&self) -> anyhow::Result<()> {
        let named = || format!("the CPUs of NUMA node {}", self.number);
        place::set_affinity(&self.cpus).with_context(named)?;
        // A container may not permit it. Then a first touch takes a page of the own node too, as long as one is free; but the kernel
        // may move it later (NUMA balancing).
        let _ = place::bind_memory(&[self.number]);
        Ok(())
    }
}

/// A table whose pages are first touched by a thread of each of these nodes in turn.
fn table(bytes: usize, owners: &[&Node]) -> anyhow::Result<AnonymousMapping> {
    let mut memory = AnonymousMapping::new(bytes, Pages::Small).map_err(|absence| anyhow!(absence.detail))?;
    for (nth, node) in owners.iter().enumerate() {
        let words = memory.words();
        let touch = || {
            node.enter()?;
            fill(words, nth, owners.len());
            anyhow::Ok(())
        };
        let touched = thread::scope(|scope| scope.spawn(touch).join());
        touched.map_err(|_| anyhow!("a thread has failed"))??;
    }
    Ok(memory)
}

/// Writes the first word of each line, in every `step`-th page.
fn fill(words: &mut [u64], first: usize, step: usize) {
    let lines = WORDS_A_PAGE / WORDS_A_LINE;
    for (page, words) in words.chunks_exact_mut(WORDS_A_PAGE).enumerate().skip(first).step_by(step) {
        for (line, word) in words.iter_mut().step_by(WORDS_A_LINE).enumerate() {
            *word = ((page * lines + line) as u64 + 1).wrapping_mul(SPREAD);
        }
    }
}

/// The first word of the line to which a key refers.
fn place_of(key: u64, words: &[u64]) -> usize {
    let lines = (words.len() / WORDS_A_LINE) as u128;
    ((u128::from(key) * lines) >> 64) as usize * WORDS_A_LINE
}

/// Follows references. The place of each one is known when the one before has been read.
fn follow(words: &[u64], mut key: u64, references: u64) -> u64 {
    for _ in 0..references {
        key = words[place_of(key, words)] ^ key.wrapping_mul(0x2545_f491_4f6c_dd1d);
    }
    black_box(key)
}

/// What a thread of this node did in the turns of each case.
fn work(
    turns: Turns,
    clock: Cycles,
    node: &Node,
    words: &[u64],
    threads: usize,
) -> anyhow::Result<[Tally; 2]> {
    node.enter()?;
    let mut key = (turns.thread as u64 + 1).wrapping_mul(SPREAD);
    // Each thread begins elsewhere, so that none reads from the cache what another one has just read.
    let begins = words.len() / CHUNK / threads * turns.thread;
    let mut chunks = words.chunks_exact(CHUNK).cycle().skip(begins);
    let mut tallies = [Tally::default(); 2];
    for Turn { nth, began, ends } in turns {
        let (mut operations, mut now) = (0, began);
        while now < ends {
            if nth == FOLLOW {
                key = follow(words, key, REFERENCES);
                operations += REFERENCES;
            } else {
                let chunk = chunks.next().unwrap_or_default();
                black_box(chunk.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
                operations += (CHUNK / WORDS_A_LINE) as u64;
            }
            now = clock.now();
        }
        tallies[nth].add(Tally { operations, cycles: now - began });
    }
    Ok(tallies)
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let missing = |absence: Absence| anyhow!(absence.detail);
    let spec = task.spec;
    let [near, far] = nodes().map_err(missing)?;
    let (near, far) = (Node::of(near).map_err(missing)?, Node::of(far).map_err(missing)?);
    let owners = match spec.variant.as_str() {
        LOCAL => vec![&near],
        REMOTE => vec![&far],
        INTERLEAVED => vec![&near, &far],
        other => bail!("no variant {other}"),
    };
    let bytes = if spec.announce || spec.scale >= 1.0 { JUDGED_BYTES } else { TABLE_BYTES };
    let mut memory = table(bytes as usize, &owners)?;
    let words: &[u64] = memory.words();
    let all = near.cpus.len().clamp(1, MOST_THREADS);
    // The bill is that of references alone.
    let threads = if spec.announce { vec![all] } else { vec![1, all] };
    let clock = fine_clock();
    let (meter, workers) = turns::run(task, clock, &threads, |turns| work(turns, clock, &near, words, all))?;
    let mut sums = [Tally::default(); 2];
    for worker in workers {
        for (sum, tally) in sums.iter_mut().zip(worker?) {
            sum.add(tally);
        }
    }
    let counts = meter.finish(sums[FOLLOW].operations);
    // At the end, so that pages that the kernel has moved meanwhile are seen.
    let pages = numa_maps::of(&ProcFs::live(), std::process::id() as i32, Instant::now() + LISTING);
    let elsewhere = pages.and_then(|pages| elsewhere(&pages, near.number));
    let figures = [
        (REFERENCE, Ok(clock.ns(sums[FOLLOW].cycles) / sums[FOLLOW].operations.max(1) as f64)),
        (LINES, Ok(sums[READ].rate(all, clock))),
        (ELSEWHERE, elsewhere),
    ];
    Ok(Outcome::of(counts, figures))
}

/// The share of the private memory that is on other nodes. Pages of files are on any node.
fn elsewhere(pages: &[NodePages], near: u32) -> Measured<f64> {
    let private = |pages: &NodePages| pages.heap.saturating_add(pages.anonymous);
    let all: u64 = pages.iter().map(private).sum();
    let far: u64 = pages.iter().filter(|pages| pages.node != near).map(private).sum();
    match all {
        0 => Err(Absence::new(Reason::TooLittle, "no private memory is resident")),
        all => Ok(far as f64 / all as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::super::bill::Walls;
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn memory_that_is_far_is_told_from_nodes_that_are_equally_near() {
        use Judgement::{CannotTest, DoesNotHold, Holds};
        // Of the remote arm: the time of a reference, the lines read, and the share of its memory that is remote. Of all arms:
        // whether NUMA is the wall.
        let judged = |[ns, lines, share]: [f64; 3], walls: [bool; 3]| {
            let of = |ns, lines, share| vec![(REFERENCE, ns), (LINES, lines), (ELSEWHERE, share)];
            let arms = [
                (LOCAL, of(100.0, 1e8, 0.01)),
                (REMOTE, of(ns, lines, share)),
                (INTERLEAVED, of(140.0, 8e7, 0.5)),
            ];
            let mut results = results(&EXPERIMENT, 6, &arms);
            for (arm, is_wall) in [0, 2, 3].into_iter().zip(walls) {
                let found = is_wall.then(|| Wall::Numa.key().to_owned()).into_iter().collect();
                results.walls.insert(arm, Walls { found, ..Walls::default() });
            }
            judge(&results).into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        let far = [175.0, 6e7, 0.99];
        assert_eq!(judged(far, [false, true, true]), vec![Holds; 5]);
        // Two nodes of an emulated machine, whose memory is equally near.
        assert_eq!(judged([101.0, 1e8, 0.99], [false; 3]), vec![DoesNotHold; 5]);
        // The wall is named with local memory too, and not with interleaved memory.
        assert_eq!(judged(far, [true, true, false]), [Holds, Holds, Holds, DoesNotHold, DoesNotHold]);
        // The kernel has moved the pages.
        let moved = judged([175.0, 6e7, 0.3], [false, true, true]);
        let (last, others) = moved.split_last().expect("there are claims");
        assert!(others.iter().all(|judged| matches!(judged, CannotTest(_))), "{moved:?}");
        assert_eq!(*last, Holds);
    }

    #[test]
    fn private_memory_of_other_nodes_is_elsewhere_and_files_are_not_counted() {
        let of = |node, heap, anonymous, file| NodePages { node, heap, anonymous, file };
        let pages = [of(0, 10, 20, 500), of(1, 0, 60, 0), of(4, 10, 0, 900)];
        assert_eq!([0, 1, 4].map(|near| elsewhere(&pages, near)), [Ok(0.7), Ok(0.4), Ok(0.9)]);
        assert_eq!(elsewhere(&pages[..1], 0), Ok(0.0));
        assert_eq!(elsewhere(&[of(1, 0, 0, 7)], 0).unwrap_err().reason, Reason::TooLittle);
        assert!(elsewhere(&[], 0).is_err());
    }

    #[test]
    fn each_owner_touches_its_pages_and_references_lead_everywhere() {
        let here = Node { number: 0, cpus: topology::allowed_cpus().unwrap() };
        let mut memory = table(4 << 20, &[&here, &here]).unwrap();
        let words: &[u64] = memory.words();
        let lines = words.len() / WORDS_A_LINE;
        let values: BTreeSet<u64> = words.iter().step_by(WORDS_A_LINE).copied().collect();
        assert!(values.len() == lines && !values.contains(&0));
        // Of so many places at random, 86 % of the lines have one.
        let (mut key, mut seen) = (SPREAD, BTreeSet::new());
        for _ in 0..2 * lines {
            key = follow(words, key, 1);
            seen.insert(place_of(key, words));
        }
        assert!(seen.len() > lines / 4 * 3, "{} of {lines}", seen.len());
        // One of two owners leaves the pages of the other one alone.
        let mut half = vec![0; 4 * WORDS_A_PAGE];
        fill(&mut half, 1, 2);
        let touched: Vec<bool> = half.chunks_exact(WORDS_A_PAGE).map(|page| page[0] != 0).collect();
        assert_eq!(touched, [false, true, false, true]);
    }
}

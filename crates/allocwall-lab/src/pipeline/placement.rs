//! The CPUs on which the threads run.

use super::results::Placement;
use allocwall_host::topology::{Relation, Topology, parse_cpu_list};

/// The value of `--cpus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Two cores that are as close as the machine allows.
    Auto,
    /// Producer and consumer on CPUs with this relation.
    Related(Relation),
    /// All relations that the machine has, one after the other.
    All,
    /// One CPU per producer, then one per consumer, then one for the heap pressure if it has a thread.
    These(Vec<u32>),
}

/// The number of threads of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    pub producers: usize,
    pub consumers: usize,
    pub pressure: bool,
}

impl Threads {
    pub fn count(self) -> usize {
        self.producers + self.consumers + usize::from(self.pressure)
    }
}

/// The names that users type, in the order in which `auto` prefers them. `smt` is not first, because the hardware threads of a
/// core share more than the queue.
const NAMES: [(&str, Relation); 4] = [
    ("same-l3", Relation::SameL3),
    ("smt", Relation::Smt),
    ("other-l3", Relation::OtherL3),
    ("other-node", Relation::OtherNode),
];

impl Asked {
    /// # Errors
    /// One line.
    pub fn parse(text: &str) -> Result<Asked, String> {
        match text {
            "auto" => return Ok(Asked::Auto),
            "all" => return Ok(Asked::All),
            _ => {}
        }
        if let Some((_, relation)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(Asked::Related(*relation));
        }
        match text
            .split(',')
            .map(|n| n.trim().parse())
            .collect::<Result<Vec<u32>, _>>()
        {
            Ok(cpus) => Ok(Asked::These(cpus)),
            // Also accept ranges.
            Err(_) => parse_cpu_list(text)
                .filter(|cpus| !cpus.is_empty())
                .map(Asked::These)
                .ok_or_else(|| {
                    format!(
                        "{text:?} is not a placement: use auto, all, same-l3, smt, other-l3, other-node, or CPUs such as 2,3"
                    )
                }),
        }
    }
}

/// The requested placements.
///
/// # Errors
/// One line: a CPU does not exist or is not allowed, the number of CPUs is not the number of threads, or no two CPUs have the
/// relation.
pub fn places(
    topology: &Topology,
    allowed: &[u32],
    asked: &Asked,
    threads: Threads,
) -> Result<Vec<Placement>, String> {
    let has = |relation| !topology.pairs(relation, allowed).is_empty();
    match asked {
        Asked::These(cpus) => {
            if let Some(cpu) = cpus.iter().find(|cpu| !topology.cpus.iter().any(|c| c.id == **cpu)) {
                return Err(format!("no CPU {cpu}: this machine has the CPUs {}", list(topology)));
            }
            if let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
                return Err(format!(
                    "this process may not use CPU {cpu} (limited by taskset or a cpuset): allowed CPUs are {allowed:?}"
                ));
            }
            if cpus.len() != threads.count() {
                return Err(format!(
                    "{} CPUs for {} threads; give one CPU per thread: {} producers, {} consumers{}",
                    cpus.len(),
                    threads.count(),
                    threads.producers,
                    threads.consumers,
                    if threads.pressure { " and the heap pressure" } else { "" },
                ));
            }
            let name = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            Ok(vec![placement(topology, &name, cpus.clone(), threads)])
        }
        Asked::Related(relation) => {
            if has(*relation) {
                Ok(vec![related(topology, allowed, *relation, threads)])
            } else {
                Err(format!(
                    "no two of the CPUs {allowed:?} have the relation \"{}\": use --cpus auto",
                    Placement::near(Some(*relation)).unwrap_or_default()
                ))
            }
        }
        Asked::All => {
            let all: Vec<Placement> = NAMES
                .iter()
                .filter(|(_, relation)| has(*relation))
                .map(|(_, relation)| related(topology, allowed, *relation, threads))
                .collect();
            if all.is_empty() { places(topology, allowed, &Asked::Auto, threads) } else { Ok(all) }
        }
        Asked::Auto => Ok(vec![match NAMES.iter().find(|(_, relation)| has(*relation)) {
            Some((_, relation)) => related(topology, allowed, *relation, threads),
            None => {
                let cpus = vec![*allowed.first().ok_or("this process may not use any CPU")?; threads.count()];
                placement(topology, "one CPU", cpus, threads)
            }
        }]),
    }
}

/// The first producer and the first consumer on a pair with this relation, the other threads on the other CPUs in turn.
fn related(topology: &Topology, allowed: &[u32], relation: Relation, threads: Threads) -> Placement {
    let (first, second) = topology.pairs(relation, allowed)[0];
    let mut others: Vec<u32> = topology.spread(allowed);
    others.retain(|cpu| ![first, second].contains(cpu));
    // Two threads share a CPU only if no CPU is left.
    let mut rest = others.iter().chain([&second, &first]).copied().cycle();
    let mut cpus = vec![];
    for n in 0..threads.count() {
        cpus.push(match n {
            0 => first,
            n if n == threads.producers => second,
            _ => rest.next().unwrap_or(first),
        });
    }
    let name = NAMES.iter().find(|(_, r)| *r == relation).map_or("", |(name, _)| name);
    placement(topology, name, cpus, threads)
}

/// Whether two threads share a CPU. Then a waiting thread must yield to the other one.
pub fn crowded(cpus: &[u32]) -> bool {
    (1..cpus.len()).any(|n| cpus[..n].contains(&cpus[n]))
}

fn placement(topology: &Topology, name: &str, cpus: Vec<u32>, threads: Threads) -> Placement {
    let crowded = crowded(&cpus);
    let near = topology.relation(cpus[0], cpus[threads.producers]);
    Placement { name: name.to_owned(), near: Placement::near(near), cpus, crowded }
}

fn list(topology: &Topology) -> String {
    let ids: Vec<String> = topology.cpus.iter().map(|cpu| cpu.id.to_string()).collect();
    ids.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_host::topology::Cpu;

    /// Two cores of two threads under each of two L3.
    fn machine() -> Topology {
        let cpu = |id: u32| Cpu {
            id,
            siblings: Ok(vec![id & !1, id | 1]),
            l3: Ok((id / 4 * 4..id / 4 * 4 + 4).collect()),
            node: 0,
        };
        Topology { cpus: (0..8).map(cpu).collect() }
    }

    fn small() -> Topology {
        let cpu = |id: u32| Cpu { id, siblings: Ok(vec![id]), l3: Ok(vec![0, 1]), node: 0 };
        Topology { cpus: (0..2).map(cpu).collect() }
    }

    const ONE_EACH: Threads = Threads { producers: 1, consumers: 1, pressure: true };

    fn cpus(topology: &Topology, asked: &str, threads: Threads) -> Result<Vec<Vec<u32>>, String> {
        let allowed: Vec<u32> = topology.cpus.iter().map(|cpu| cpu.id).collect();
        let places = places(topology, &allowed, &Asked::parse(asked)?, threads)?;
        Ok(places.into_iter().map(|place| place.cpus).collect())
    }

    #[test]
    fn auto_takes_two_cores_under_one_cache_and_leaves_the_pressure_its_own() {
        assert_eq!(cpus(&machine(), "auto", ONE_EACH).unwrap(), [[0, 2, 4]]);
        assert_eq!(cpus(&machine(), "smt", ONE_EACH).unwrap(), [[0, 1, 2]]);
        assert_eq!(cpus(&machine(), "other-l3", ONE_EACH).unwrap(), [[0, 4, 2]]);
        assert_eq!(cpus(&machine(), "all", ONE_EACH).unwrap().len(), 3);
        assert!(cpus(&machine(), "other-node", ONE_EACH).unwrap_err().contains("auto"));
    }

    #[test]
    fn threads_beyond_the_cpus_are_crowded_and_that_is_known() {
        let place = |threads| places(&small(), &[0, 1], &Asked::Auto, threads).unwrap().remove(0);
        let three = place(ONE_EACH);
        assert_eq!((three.cpus, three.crowded), (vec![0, 1, 1], true));
        let two = place(Threads { pressure: false, ..ONE_EACH });
        assert_eq!((two.cpus, two.crowded), (vec![0, 1], false));
        let one = places(&small(), &[1], &Asked::Auto, ONE_EACH).unwrap().remove(0);
        assert_eq!((one.cpus, one.near, one.crowded), (vec![1, 1, 1], None, true));
    }

    #[test]
    fn cpus_that_do_not_fit_are_refused_in_a_line() {
        let refused = |asked| cpus(&small(), asked, ONE_EACH).unwrap_err();
        assert!(refused("0,1,9").contains("CPU 9"));
        let few = refused("0,1");
        assert!(few.contains("2 CPUs") && few.contains("3 threads"), "{few}");
        assert!(refused("fast").contains("use auto"));
        let allowed = places(&small(), &[0], &Asked::These(vec![0, 0, 1]), ONE_EACH).unwrap_err();
        assert!(allowed.contains("CPU 1"), "{allowed}");
        assert_eq!(cpus(&small(), "1,0,0", ONE_EACH).unwrap(), [[1, 0, 0]]);
    }
}

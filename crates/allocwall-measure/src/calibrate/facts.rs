//! What a price list means, in plain words.

use allocwall_model::catalogue::prices::*;
use allocwall_model::recording::PriceList;

const SMALL_PAGES_IN_HUGE: f64 = 512.0;

/// Two to five sentences; one is left out where a price that it needs is absent.
pub fn facts(list: &PriceList) -> Vec<String> {
    let get = |name: &str| list.get(name).map(|ns| ns.point);
    [
        huge_page(get),
        idle_memory(get),
        tlb(get),
        malloc(get),
        contention(get),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn huge_page(get: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let (small, huge) = (get(TOUCH_4K)?, get(TOUCH_2M)?);
    let mut text = format!(
        "A 2 MiB page costs what {:.0} touches of 4 KiB cost and replaces 512: huge pages {} of first-touch cost here",
        huge / small,
        removed(huge, small * SMALL_PAGES_IN_HUGE)
    );
    if let (Some(small), Some(huge)) = (get(TOUCH_4K_IDLE), get(TOUCH_2M_IDLE)) {
        text += &format!(
            "; {} where the memory had lain idle",
            removed(huge, small * SMALL_PAGES_IN_HUGE)
        );
    }
    Some(text + ".")
}

fn removed(with: f64, without: f64) -> String {
    let percent = 100.0 * (1.0 - with / without);
    match percent {
        p if p >= 0.5 => format!("remove {p:.0} %"),
        p if p <= -0.5 => format!("add {:.0} %", -p),
        _ => "change nothing".to_owned(),
    }
}

/// A factor below which the two prices are told apart by no reader.
const ALIKE: f64 = 1.1;

fn idle_memory(get: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let small = get(TOUCH_4K_IDLE)? / get(TOUCH_4K)?;
    let huge = get(TOUCH_2M_IDLE)
        .zip(get(TOUCH_2M))
        .map(|(idle, recycled)| idle / recycled);
    let dearest = huge.map_or(small, |huge| huge.max(small));
    if dearest < 2.0 {
        return Some(
            "Memory that lay idle for seconds cost about as much as recycled memory: no sign of a host that took it back."
                .into(),
        );
    }
    let huge = huge.map_or_else(String::new, |huge| format!(", of 2 MiB {huge:.1} times"));
    Some(format!(
        "Below this kernel, a host takes idle memory back: a first touch of 4 KiB then costs {small:.1} times what \
         recycled memory costs{huge}."
    ))
}

fn tlb(get: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let (small, huge) = (get(LOAD_4K)?, get(LOAD_2M)?);
    Some(match small / huge {
        ratio if ratio < ALIKE => {
            "Scattered loads cost the same on 4 KiB and on 2 MiB pages: TLB misses are cheap here.".into()
        }
        ratio => format!(
            "A TLB miss adds {:.0} ns to a scattered load: {ratio:.1} times its price on 2 MiB pages.",
            small - huge
        ),
    })
}

fn malloc(get: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let (cached, mapped) = (get(MALLOC_CACHED)?, get(MALLOC_MAPPED)?);
    Some(format!(
        "A malloc that crosses the mmap threshold costs {:.0} times one from the thread cache.",
        mapped / cached
    ))
}

fn contention(get: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let (threads, price) = (2..=8)
        .rev()
        .find_map(|n| Some((n, get(&format!("{FAULT_THREADS_PREFIX}{n}"))?)))?;
    let ratio = price / get(&format!("{FAULT_THREADS_PREFIX}1"))?;
    Some(match ratio < ALIKE {
        true => format!("{threads} threads that fault in one address space do not slow one another down."),
        false => format!(
            "With {threads} threads faulting in one address space each fault costs {ratio:.1} times as much."
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::recording::Price;
    use allocwall_model::units::Interval;

    fn list(prices: &[(&str, f64)]) -> PriceList {
        PriceList {
            measured_unix_s: 0,
            machine: String::new(),
            prices: prices
                .iter()
                .map(|&(name, ns)| Price {
                    name: name.into(),
                    ns: Interval::exact(ns),
                    repetitions: 99,
                })
                .collect(),
            absent: vec![],
        }
    }

    #[test]
    fn a_host_that_takes_memory_back() {
        let facts = facts(&list(&[
            (TOUCH_4K, 1600.0),
            (TOUCH_2M, 102_400.0),
            (TOUCH_4K_IDLE, 8000.0),
            (TOUCH_2M_IDLE, 4_300_000.0),
        ]));
        assert_eq!(
            facts,
            [
                "A 2 MiB page costs what 64 touches of 4 KiB cost and replaces 512: huge pages remove 88 % of \
                 first-touch cost here; add 5 % where the memory had lain idle.",
                "Below this kernel, a host takes idle memory back: a first touch of 4 KiB then costs 5.0 times what \
                 recycled memory costs, of 2 MiB 42.0 times.",
            ]
        );
    }

    #[test]
    fn a_host_that_leaves_memory_alone() {
        let facts = facts(&list(&[(TOUCH_4K, 500.0), (TOUCH_4K_IDLE, 600.0)]));
        assert_eq!(facts.len(), 1);
        assert!(facts[0].contains("no sign of a host"), "{facts:?}");
    }

    #[test]
    fn loads_and_threads_alike_or_not() {
        let dear = facts(&list(&[
            (LOAD_4K, 90.0),
            (LOAD_2M, 60.0),
            ("fault_threads_1", 1000.0),
            ("fault_threads_4", 3000.0),
        ]));
        assert!(
            dear[0].contains("adds 30 ns") && dear[0].contains("1.5 times"),
            "{dear:?}"
        );
        assert!(
            dear[1].contains("With 4 threads") && dear[1].contains("3.0 times"),
            "{dear:?}"
        );
        let cheap = facts(&list(&[
            (LOAD_4K, 61.0),
            (LOAD_2M, 60.0),
            ("fault_threads_1", 1000.0),
            ("fault_threads_2", 1050.0),
        ]));
        assert!(
            cheap[0].contains("cheap") && cheap[1].contains("do not slow"),
            "{cheap:?}"
        );
    }

    #[test]
    fn nothing_is_said_without_prices() {
        assert_eq!(
            facts(&list(&[
                (TOUCH_2M, 1.0),
                (LOAD_2M, 1.0),
                ("fault_threads_1", 1.0)
            ])),
            [""; 0]
        );
    }
}

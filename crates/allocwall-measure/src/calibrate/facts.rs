//! What a price list means, in sentences.

use allocwall_model::catalogue::prices::*;
use allocwall_model::recording::PriceList;

const SMALL_PAGES_IN_HUGE: f64 = 512.0;

/// Up to five sentences; one is left out if a price that it needs is absent.
pub fn facts(list: &PriceList) -> Vec<String> {
    let get = |name: &str| list.get(name).map(|ns| ns.point);
    [huge_page(get), idle_memory(get), tlb(get), malloc(get), contention(get)].into_iter().flatten().collect()
}

fn huge_page(get: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let (small, huge) = (get(TOUCH_4K)?, get(TOUCH_2M)?);
    let mut text = format!(
        "First touch of a 2 MiB page costs as much as {:.0} first touches of 4 KiB and replaces 512: huge pages {} of the first-touch cost here",
        huge / small,
        removed(huge, small * SMALL_PAGES_IN_HUGE)
    );
    if let (Some(small), Some(huge)) = (get(TOUCH_4K_IDLE), get(TOUCH_2M_IDLE)) {
        text += &format!(
            "; for memory that was idle before, they {}",
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

/// Below this factor, readers cannot tell two prices apart.
const ALIKE: f64 = 1.1;

fn idle_memory(get: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let small = get(TOUCH_4K_IDLE)? / get(TOUCH_4K)?;
    let huge = get(TOUCH_2M_IDLE).zip(get(TOUCH_2M)).map(|(idle, recycled)| idle / recycled);
    let dearest = huge.map_or(small, |huge| huge.max(small));
    if dearest < 2.0 {
        return Some(
            "Memory that was idle for seconds costs about as much as recently used memory: no sign that the host reclaims idle memory."
                .into(),
        );
    }
    let huge = huge.map_or_else(String::new, |huge| format!(", and of 2 MiB {huge:.1} times as much"));
    Some(format!(
        "The host reclaims idle memory of this machine: a first touch of 4 KiB of idle memory costs {small:.1} times as \
         much as of recently used memory{huge}."
    ))
}

fn tlb(get: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let (small, huge) = (get(LOAD_4K)?, get(LOAD_2M)?);
    Some(match small / huge {
        ratio if ratio < ALIKE => {
            "Scattered loads cost the same on 4 KiB and on 2 MiB pages: TLB misses are cheap here.".into()
        }
        ratio => format!(
            "A TLB miss adds {:.0} ns to a scattered load: on 4 KiB pages it costs {ratio:.1} times as much as on 2 MiB pages.",
            small - huge
        ),
    })
}

fn malloc(get: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let (cached, mapped) = (get(MALLOC_CACHED)?, get(MALLOC_MAPPED)?);
    Some(format!(
        "A malloc above the mmap threshold costs {:.0} times as much as one from the thread cache.",
        mapped / cached
    ))
}

fn contention(get: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let (threads, price) =
        (2..=8).rev().find_map(|n| Some((n, get(&format!("{FAULT_THREADS_PREFIX}{n}"))?)))?;
    let ratio = price / get(&format!("{FAULT_THREADS_PREFIX}1"))?;
    Some(match ratio < ALIKE {
        true => format!("{threads} threads that fault in one address space do not slow one another down."),
        false => format!(
            "With {threads} threads that fault in one address space, each fault costs {ratio:.1} times as much."
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
                .map(|&(name, ns)| Price { name: name.into(), ns: Interval::exact(ns), repetitions: 99 })
                .collect(),
            absent: vec![],
        }
    }

    #[test]
    fn a_host_that_reclaims_idle_memory() {
        let facts = facts(&list(&[
            (TOUCH_4K, 1600.0),
            (TOUCH_2M, 102_400.0),
            (TOUCH_4K_IDLE, 8000.0),
            (TOUCH_2M_IDLE, 4_300_000.0),
        ]));
        assert_eq!(
            facts,
            [
                "First touch of a 2 MiB page costs as much as 64 first touches of 4 KiB and replaces 512: huge pages \
                 remove 88 % of the first-touch cost here; for memory that was idle before, they add 5 %.",
                "The host reclaims idle memory of this machine: a first touch of 4 KiB of idle memory costs 5.0 times as \
                 much as of recently used memory, and of 2 MiB 42.0 times as much.",
            ]
        );
    }

    #[test]
    fn a_host_that_does_not_reclaim_idle_memory() {
        let facts = facts(&list(&[(TOUCH_4K, 500.0), (TOUCH_4K_IDLE, 600.0)]));
        assert_eq!(
            facts,
            [
                "Memory that was idle for seconds costs about as much as recently used memory: no sign that the host \
                 reclaims idle memory."
            ]
        );
    }

    #[test]
    fn loads_and_threads_with_equal_and_different_prices() {
        let dear = facts(&list(&[
            (LOAD_4K, 90.0),
            (LOAD_2M, 60.0),
            ("fault_threads_1", 1000.0),
            ("fault_threads_4", 3000.0),
        ]));
        assert_eq!(
            dear,
            [
                "A TLB miss adds 30 ns to a scattered load: on 4 KiB pages it costs 1.5 times as much as on 2 MiB pages.",
                "With 4 threads that fault in one address space, each fault costs 3.0 times as much.",
            ]
        );
        let cheap = facts(&list(&[
            (LOAD_4K, 61.0),
            (LOAD_2M, 60.0),
            ("fault_threads_1", 1000.0),
            ("fault_threads_2", 1050.0),
        ]));
        assert_eq!(
            cheap,
            [
                "Scattered loads cost the same on 4 KiB and on 2 MiB pages: TLB misses are cheap here.",
                "2 threads that fault in one address space do not slow one another down.",
            ]
        );
    }

    #[test]
    fn without_prices_there_are_no_sentences() {
        assert_eq!(facts(&list(&[(TOUCH_2M, 1.0), (LOAD_2M, 1.0), ("fault_threads_1", 1.0)])), [""; 0]);
    }
}

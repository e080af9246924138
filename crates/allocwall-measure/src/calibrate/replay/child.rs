//! The child process of a replay: reads a mix, and a trace if there is one, plans the calls, plays them, and says what they cost.

use super::plan::Plan;
use allocwall_host::libc_malloc::owner_of_malloc;
use allocwall_host::replay::{Length, Source};
use allocwall_model::replay::{Mix, Played};
use allocwall_model::trace::{CALL_BYTES, MOST_TRACED, TracedCall};
use std::io::{self, Read};

/// The longest mix that is read, without the trace.
const INPUT: u64 = 4 << 20;
/// The CPU time of a measurement, at least. With it, the clock and the start of the measurement do not matter.
const LEAST_CPU_NS: u64 = 60_000_000;

/// How a mix is played.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Of the plan.
    pub seed: u64,
    /// Bytes that blocks may take at the same time.
    pub memory: u64,
    /// Plays without an allocator, with memory that is ready: what remains is the replay's own work.
    pub ready: bool,
}

/// Why a mix was not played.
#[derive(Debug)]
pub enum Refused {
    /// It is no mix.
    Input(String),
    /// The allocator has no memory, or the system no thread.
    Failed(io::Error),
}

/// What a child reads: the mix in JSON and, after the end of its line, the calls of the trace.
pub(super) fn input(mix: &[u8], trace: &[TracedCall]) -> Vec<u8> {
    let calls = trace.iter().flat_map(|call| call.to_bytes(0));
    mix.iter().copied().chain([b'\n']).chain(calls).collect()
}

/// Plays the mix, or the trace, with the allocator of this process, which should have kept its own memory apart from it
/// ([`allocwall_host::apart`]).
///
/// # Errors
/// See [`Refused`].
pub fn play(input: impl Read, options: &Options) -> Result<Played, Refused> {
    let (mix, trace) = read(input)?;
    let plan = if trace.is_empty() {
        Plan::of(&mix, options.seed, options.memory)
    } else {
        Plan::of_trace(&trace, &mix, options.memory)
            .ok_or_else(|| Refused::Input("the trace needs too much memory, or has no call".to_owned()))?
    };
    if plan.calls == 0 {
        return Err(Refused::Input("it has no call".to_owned()));
    }
    let length = if plan.once { Length::Once } else { Length::Steady { least_cpu_ns: LEAST_CPU_NS } };
    let source = if options.ready { Source::Ready } else { Source::Allocator };
    let passes = allocwall_host::replay::play(&plan.lanes, source, length).map_err(Refused::Failed)?;
    let calls = passes.passes * plan.calls;
    let per_call = |part: u64, calls: u64| part as f64 / calls.max(1) as f64;
    Ok(Played {
        calls,
        cost_ns: per_call(passes.cpu_ns, calls),
        faults: per_call(passes.faults, calls),
        in_place: (passes.resizes > 0).then(|| per_call(passes.in_place, passes.resizes)),
        allocator: owner_of_malloc(),
    })
}

fn read(input: impl Read) -> Result<(Mix, Vec<TracedCall>), Refused> {
    let mut bytes = Vec::new();
    let most = INPUT + (MOST_TRACED * CALL_BYTES) as u64;
    input.take(most).read_to_end(&mut bytes).map_err(|error| Refused::Input(error.to_string()))?;
    let mut values = serde_json::Deserializer::from_slice(&bytes).into_iter::<Mix>();
    let mix = values.next().ok_or_else(|| Refused::Input("it is empty".to_owned()))?;
    let mix = mix.map_err(|error| Refused::Input(error.to_string()))?;
    mix.check().map_err(|why| Refused::Input(why.to_owned()))?;
    let rest = &bytes[values.byte_offset()..];
    let calls = rest.get(1..).unwrap_or_default().chunks(CALL_BYTES);
    let call = |bytes: &[u8]| TracedCall::of(bytes.try_into().ok()?).map(|(call, _)| call);
    let calls: Option<Vec<TracedCall>> = calls.map(call).collect();
    Ok((mix, calls.ok_or_else(|| Refused::Input("its trace has something that is no call".to_owned()))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::trace::{TracedKind, TracedThread};

    const MIX: &str = r#"{
        "lanes": [{"allocates": 1.0, "frees": 1.0, "main": false, "blocks_per_thread": null}],
        "sizes": [[64, 0.9], [5000, 0.1]],
        "fates": [{"band": 2, "zeroed": 0.5, "fates": [{"share": 1.0, "end": "freed", "age": [1.0, 9.0]}]}],
        "resized_from": [], "resized_to": [], "kept": [[100, 5.0]],
        "batch": {"blocks": 50.0, "order": "youngest_first", "whole": false}, "one_at_a_time": false, "grows": false, "blocks": 1000
    }"#;
    const OPTIONS: Options = Options { seed: 1, memory: 64 << 20, ready: false };

    #[test]
    fn a_trace_is_played_in_place_of_the_mix() {
        let call = |kind, address, size| TracedCall { kind, address, size, thread: TracedThread(0x8000) };
        let pair = |nth: u64| [call(TracedKind::New, nth, 100), call(TracedKind::Free, nth, 104)];
        let trace: Vec<TracedCall> = (1..500).flat_map(pair).collect();
        let played = play(&input(MIX.as_bytes(), &trace)[..], &OPTIONS).unwrap();
        // Twice 499 blocks in a pass.
        assert!(played.calls.is_multiple_of(998) && played.cost_ns > 1.0, "{played:?}");
        let refused = |bytes: &[u8]| match play(&[MIX.as_bytes(), bytes].concat()[..], &OPTIONS) {
            Err(Refused::Input(said)) => said,
            other => panic!("{other:?}"),
        };
        assert!(refused(b"\nno calls").contains("no call"));
        assert!(refused(&input(&[], &[call(TracedKind::Free, 1, 1)])).contains("no call"));
    }

    #[test]
    fn a_mix_is_played_with_this_processs_allocator() {
        let played = play(MIX.as_bytes(), &OPTIONS).unwrap();
        assert!(played.calls > 10_000 && played.cost_ns > 1.0, "{played:?}");
        assert!(played.cost_ns < 1e6 && played.faults < 100.0 && played.in_place.is_none(), "{played:?}");
        let ready = play(MIX.as_bytes(), &Options { ready: true, ..OPTIONS }).unwrap();
        assert!(ready.calls > 10_000 && ready.cost_ns > 0.5, "{ready:?}");
        let once = MIX.replace("\"grows\": false", "\"grows\": true");
        assert_eq!(play(once.as_bytes(), &OPTIONS).unwrap().calls, 1000);
    }

    #[test]
    fn what_is_no_mix_is_refused() {
        for (from, to, why) in [
            ("\"lanes\"", "\"lines\"", "lanes"),
            ("64, 0.9", "64, -0.9", "its sizes"),
            ("\"band\": 2", "\"band\": 200", "its lifetimes"),
            ("1.0, 9.0", "0.0, 9.0", "its lifetimes"),
            ("{", "", "at line"),
        ] {
            match play(MIX.replacen(from, to, 1).as_bytes(), &OPTIONS) {
                Err(Refused::Input(said)) => assert!(said.contains(why), "{said}"),
                other => panic!("{from}: {other:?}"),
            }
        }
    }
}

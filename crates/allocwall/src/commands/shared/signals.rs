//! Signals that end a command early.

use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The first signal sets the flag; the second ends allocwall.
pub fn catch_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register_conditional_default(signal, interrupted.clone())
            .and_then(|_| signal_hook::flag::register(signal, interrupted.clone()))
            .context("cannot catch signals")?;
    }
    Ok(interrupted)
}

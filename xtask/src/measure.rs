//! Nanoseconds per packet of the kernel programs, by test-run.

use anyhow::Result;

use crate::{cargo, run};

/// Runs the measurement of the packet tier with enough repeats to be quoted.
pub fn run_measurement() -> Result<()> {
    run(cargo()
        .args(["test", "--quiet", "--package", "weir-tests", "--test", "datapath"])
        .args(["figures::", "--", "--nocapture", "--test-threads", "1"])
        .env("WEIR_MEASURE_REPEAT", "1000000"))
}

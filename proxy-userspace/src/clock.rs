//! The datapath's clock: jiffies shifted to ticks of about a second (`proxy_common::config`).

use std::{io, thread, time::Duration};

use aya::{
    Ebpf, TestRunOptions,
    programs::{Program, TestRun as _},
};
use proxy_common::{
    config::{ClockRow, tick_shift, ticks},
    flow::Timeouts,
};

use crate::datapath::pins::Pins;

/// Values that CONFIG_HZ can have (kernel/Kconfig.hz; 1024 and 1200 on some architectures).
const RATES: [u32; 6] = [100, 250, 300, 1000, 1024, 1200];

/// Between the two readings; at 100 Hz ten jiffies, enough to tell the rates apart.
const INTERVAL: Duration = Duration::from_millis(100);

/// Reads both kernel clocks: the program `tc_clock` writes them to its map.
fn read(ebpf: &mut Ebpf, pins: &Pins) -> io::Result<ClockRow> {
    let Some(Program::SchedClassifier(program)) = ebpf.program_mut("tc_clock") else {
        return Err(io::Error::other("the embedded object has no program tc_clock"));
    };
    // The kernel wants a packet to run on: an Ethernet header's worth of zeros.
    let packet = [0u8; 14];
    let mut options = TestRunOptions::new();
    options.data_in = Some(&packet);
    program.test_run(options).map_err(io::Error::other)?;
    pins.clock()
}

/// The rate among [`RATES`] that two readings show.
fn rate(first: ClockRow, second: ClockRow) -> io::Result<u32> {
    let jiffies = second.jiffies.wrapping_sub(first.jiffies);
    let elapsed_ns = second.ktime_ns.saturating_sub(first.ktime_ns).max(1);
    let measured = (u128::from(jiffies) * 1_000_000_000 / u128::from(elapsed_ns)) as u32;
    RATES
        .into_iter()
        .min_by_key(|rate| rate.abs_diff(measured))
        .filter(|rate| rate.abs_diff(measured) <= rate / 4)
        .ok_or_else(|| io::Error::other(format!("the kernel's clock runs at {measured} Hz")))
}

/// How the datapath counts time on this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Jiffies per second.
    pub hz: u32,
    /// Difference between jiffies and monotonic time, in jiffies.
    offset: i128,
}

impl Clock {
    /// Measures the clock; takes a tenth of a second.
    pub fn measure(ebpf: &mut Ebpf, pins: &Pins) -> io::Result<Self> {
        let first = read(ebpf, pins)?;
        thread::sleep(INTERVAL);
        let second = read(ebpf, pins)?;
        Ok(Self::from_reading(rate(first, second)?, second))
    }

    /// From one reading, when the rate is known.
    pub fn from_reading(hz: u32, reading: ClockRow) -> Self {
        let elapsed = i128::from(reading.ktime_ns) * i128::from(hz) / 1_000_000_000;
        Self { hz, offset: i128::from(reading.jiffies) - elapsed }
    }

    /// Shift for `NodeConfig`.
    pub fn shift(&self) -> u32 {
        tick_shift(self.hz)
    }

    fn jiffies_at(&self, monotonic_ns: u64) -> u64 {
        let elapsed = i128::from(monotonic_ns) * i128::from(self.hz) / 1_000_000_000;
        (elapsed + self.offset) as u64
    }

    /// `jiffies64` of now.
    pub fn jiffies(&self) -> u64 {
        self.jiffies_at(monotonic_ns())
    }

    /// The tick at a monotonic time.
    pub fn tick(&self, monotonic_ns: u64) -> u32 {
        (self.jiffies_at(monotonic_ns) >> self.shift()) as u32
    }

    /// The tick of now.
    pub fn now(&self) -> u32 {
        self.tick(monotonic_ns())
    }

    /// Seconds in `ticks`.
    pub fn seconds(&self, ticks: u32) -> f64 {
        f64::from(ticks) * f64::from(1u32 << self.shift()) / f64::from(self.hz)
    }

    /// Timeouts of flows in ticks.
    pub fn timeouts(&self, s: &Timeouts) -> Timeouts {
        let t = |seconds| ticks(seconds, self.hz);
        Timeouts {
            tcp_new: t(s.tcp_new),
            tcp_established: t(s.tcp_established),
            tcp_closing: t(s.tcp_closing),
            tcp_closed: t(s.tcp_closed),
            udp_new: t(s.udp_new),
            udp_established: t(s.udp_established),
        }
    }
}

/// CLOCK_MONOTONIC, which `bpf_ktime_get_ns` reads.
fn monotonic_ns() -> u64 {
    crate::datapath::sys::monotonic_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(jiffies: u64, ms: u64) -> ClockRow {
        ClockRow { jiffies, ktime_ns: ms * 1_000_000 }
    }

    #[test]
    fn the_nearest_rate_is_found() {
        for (hz, jiffies) in [(100, 10), (250, 24), (300, 31), (1000, 101)] {
            assert_eq!(rate(reading(0, 0), reading(jiffies, 100)).unwrap(), hz);
        }
        assert!(rate(reading(0, 0), reading(0, 100)).is_err());
    }

    #[test]
    fn ticks_follow_jiffies() {
        let clock = Clock::from_reading(1000, reading(4_294_967_296 + 5_000, 9_000));
        assert_eq!(clock.tick(9_000_000_000), ((4_294_967_296u64 + 5_000) >> 10) as u32);
        assert_eq!(clock.tick(10_024_000_000), ((4_294_967_296u64 + 6_024) >> 10) as u32);
    }
}

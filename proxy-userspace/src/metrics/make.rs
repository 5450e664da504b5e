//! Making metrics of the shapes used here.

use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, core::Collector,
};

/// kube-proxy's buckets of `network_programming_duration_seconds`. The first, zero, is its too.
pub(super) fn programming_buckets() -> Vec<f64> {
    let steps = |first: u32, last: u32, step: usize| (first..=last).step_by(step).map(f64::from);
    [0.0, 0.25, 0.5]
        .into_iter()
        .chain(steps(1, 59, 1))
        .chain(steps(60, 115, 5))
        .chain(steps(120, 300, 30))
        .collect()
}

/// Registers as it makes.
pub struct Maker<'a>(pub &'a Registry);

impl Maker<'_> {
    /// Anything.
    pub fn add<C: Collector + Clone + 'static>(&self, collector: C) -> prometheus::Result<C> {
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    /// A counter.
    pub fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    /// A counter with labels.
    pub fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    /// A gauge.
    pub fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    /// A gauge with labels.
    pub fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// A time for each family.
    pub fn times(&self, name: &str, help: &str) -> prometheus::Result<GaugeVec> {
        self.add(GaugeVec::new(Opts::new(name, help), &["ip_family"])?)
    }

    /// kube-proxy's buckets: 0.001 s doubled fourteen times.
    pub fn syncs(&self, name: &str, help: &str) -> prometheus::Result<HistogramVec> {
        let buckets = prometheus::exponential_buckets(0.001, 2.0, 15)?;
        let options = HistogramOpts::new(name, help).buckets(buckets);
        self.add(HistogramVec::new(options, &["ip_family"])?)
    }

    /// From a change of endpoints to its being programmed, for each family.
    pub fn programming(&self, name: &str, help: &str) -> prometheus::Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(programming_buckets());
        self.add(HistogramVec::new(options, &["ip_family"])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conformance_163_buckets_of_network_programming() {
        let buckets = programming_buckets();
        assert_eq!(buckets.len(), 81);
        assert_eq!(buckets[..5], [0.0, 0.25, 0.5, 1.0, 2.0]);
        assert_eq!(buckets[61..65], [59.0, 60.0, 65.0, 70.0]);
        assert_eq!(buckets[73..], [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0][..]);
    }
}

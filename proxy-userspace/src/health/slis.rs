//! `/metrics/slis`: what the health checks answered, under the names that Kubernetes components
//! share, so that one rule watches them all.

use anyhow::Result;
use prometheus::{
    Encoder as _, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder, proto::MetricFamily,
};

/// Results of checks by name and type (`healthz`, `livez`, `readyz`).
#[derive(Clone, Debug)]
pub struct Slis {
    registry: Registry,
    last: IntGaugeVec,
    totals: IntCounterVec,
}

impl Slis {
    /// Without results.
    pub fn new() -> Result<Self> {
        let last = IntGaugeVec::new(
            Opts::new("kubernetes_healthcheck", "Last result of a health check: 1 is well."),
            &["name", "type"],
        )?;
        let totals = IntCounterVec::new(
            Opts::new("kubernetes_healthchecks_total", "Results of health checks."),
            &["name", "status", "type"],
        )?;
        let registry = Registry::new();
        registry.register(Box::new(last.clone()))?;
        registry.register(Box::new(totals.clone()))?;
        Ok(Self { registry, last, totals })
    }

    /// Takes a result.
    pub fn observe(&self, kind: &str, name: &str, ok: bool) {
        self.last.with_label_values(&[name, kind]).set(ok.into());
        let status = if ok { "success" } else { "error" };
        self.totals.with_label_values(&[name, status, kind]).inc();
    }

    /// What there is.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }

    /// Text in the Prometheus exposition format.
    pub fn render(&self) -> Result<String> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.gather(), &mut text)?;
        Ok(String::from_utf8(text)?)
    }
}

//! Who decides: a file, kube-proxy's flags, or Weir's own.

use std::net::SocketAddr;

use proxy_common::flow::Timeouts;

use super::{HEALTHZ, METRICS};
use crate::{
    cli::Run,
    health,
    kubeproxy::{self, Effective, Given, Loaded},
    settings::{Behaviour, Settings},
};

/// What Weir's own flags say about that which a file would decide, and the neutral ones of
/// kube-proxy's beside them.
fn of_own_flags(run: &Run, given: &Given) -> Result<Loaded, Vec<String>> {
    let (neutral, _) = given.clone().split(|flag| flag.beside);
    let Loaded { effective, document } = kubeproxy::of_flags(&neutral)?;
    let mut faults = Vec::new();
    let mut server = |flag: &str, text: &Option<String>, default: SocketAddr| match text.as_deref()
    {
        None => Some(default),
        Some("") => None,
        Some(text) => kubeproxy::address(text, default.port()).or_else(|| {
            faults.push(format!("--{flag}-bind-address `{text}`: want address:port"));
            None
        }),
    };
    let effective = Effective {
        kubeconfig: run.kubeconfig.clone(),
        healthz: server("healthz", &run.healthz_bind_address, HEALTHZ),
        metrics: server("metrics", &run.metrics_bind_address, METRICS),
        hard_fail: false,
        late_after: health::TIMEOUT,
        settings: Settings::default(),
        behaviour: Behaviour {
            loopback: [run.localhost_nodeports.unwrap_or(true); 2],
            ..Behaviour::default()
        },
        timeouts: Timeouts::SECONDS,
        host: None,
        warnings: Vec::new(),
        notes: effective.notes.into_iter().filter(|note| note.starts_with("logging.")).collect(),
        ..effective
    };
    if faults.is_empty() { Ok(Loaded { effective, document }) } else { Err(faults) }
}

/// kube-proxy's flags, with those that Weir's command line has under the same name.
fn given(run: &Run) -> Given {
    let mut given = run.kube_proxy.clone();
    let path = run.kubeconfig.as_ref().map(|path| path.display().to_string());
    for (flag, value) in [
        ("kubeconfig", path),
        ("healthz-bind-address", run.healthz_bind_address.clone()),
        ("metrics-bind-address", run.metrics_bind_address.clone()),
    ] {
        if let Some(value) = value {
            given.add(flag, value);
        }
    }
    given
}

/// What decides, and a name for where the kubeconfig's path is said.
pub(super) fn decided(run: &Run) -> Result<(Loaded, &'static str), Vec<String>> {
    let given = given(run);
    let (mut loaded, kubeconfig, instead) = match &run.config {
        Some(path) => {
            let fault = |error| vec![format!("--config {:#}", anyhow::Error::new(error))];
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|error| vec![format!("--config {name}: {error}")])?;
            let loaded = kubeproxy::of_file(&name, &text, given).map_err(fault)?;
            (loaded, "clientConnection.kubeconfig", "--config decides")
        }
        None if given.decides() => {
            let instead = "kube-proxy's flags decide, here --iptables-localhost-nodeports";
            (kubeproxy::of_flags(&given)?, "--kubeconfig", instead)
        }
        None => return Ok((of_own_flags(run, &given)?, "--kubeconfig")),
    };
    if run.localhost_nodeports.is_some() {
        let warning = format!("--localhost-nodeports is ignored: {instead}");
        loaded.effective.warnings.push(warning);
    }
    Ok((loaded, kubeconfig))
}

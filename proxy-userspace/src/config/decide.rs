//! Who decides: a file, kube-proxy's flags, or Weir's own.

use serde::Deserialize;

use crate::{
    cli::Run,
    kubeproxy::{self, Given, Loaded},
    weirconfig::{self, WeirConfiguration, flag_name},
};

/// What has been decided, as far as it is not wrong.
pub(super) struct Decided {
    /// What flags and file say of Weir's own.
    pub own: WeirConfiguration,
    /// What it means; for a configuration of kube-proxy's, that.
    pub loaded: Loaded,
    /// All that is wrong.
    pub faults: Vec<String>,
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

/// Whether a text calls itself a configuration of Weir's.
fn is_own(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(default)]
        kind: Option<String>,
    }
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
    };
    serde_saphyr::from_str_with_options::<Kind>(text, options)
        .is_ok_and(|kind| kind.kind.as_deref() == Some(weirconfig::KIND))
}

/// kube-proxy's configuration decides. Weir's flags for the same are of no account.
fn by_kube_proxy(run: &Run, result: Result<Loaded, Vec<String>>, instead: &str) -> Decided {
    let own = WeirConfiguration {
        kubeconfig: None,
        healthz_bind_address: None,
        metrics_bind_address: None,
        node_name: run.node_name.clone(),
        ..WeirConfiguration::of_flags(run)
    };
    let mut faults = own.faults(flag_name);
    let mut loaded = result.unwrap_or_else(|found| {
        faults.extend(found);
        kubeproxy::nothing()
    });
    if run.localhost_nodeports.is_some() {
        let warning = format!("--localhost-nodeports is ignored: {instead}");
        loaded.effective.warnings.push(warning);
    }
    if let Some(path) = &loaded.effective.kubeconfig
        && run.manifests.is_none()
        && !path.is_file()
    {
        let name =
            if run.config.is_some() { "clientConnection.kubeconfig" } else { "--kubeconfig" };
        faults.push(format!("{name}: `{}` is not a file", path.display()));
    }
    Decided { own, loaded, faults }
}

/// Weir's own flags decide, over a file.
fn by_own(run: &Run, given: Given, file: Option<(&str, &str)>) -> Decided {
    let flags = WeirConfiguration::of_flags(run);
    let mut faults = flags.faults(flag_name);
    let mut below = WeirConfiguration::default();
    if let Some((name, text)) = file {
        match weirconfig::read(text) {
            Ok((read, found)) => {
                let more = read.faults(str::to_owned);
                faults
                    .extend(found.into_iter().chain(more).map(|f| format!("--config {name}: {f}")));
                below = read;
            }
            Err(fault) => faults.push(format!("--config {name}: {fault}")),
        }
    }
    let mut own = flags.over(below);
    let (neutral, ignored) = given.split(|flag| flag.beside);
    let neutral = kubeproxy::of_flags(&neutral).unwrap_or_else(|found| {
        faults.extend(found);
        kubeproxy::nothing()
    });
    let mut effective = own.effective(neutral.effective);
    if own.log_level.is_none() {
        own.log_level = Some(effective.log_level.to_owned());
    }
    own.log_format.get_or_insert(effective.log_format);
    // Flags that both have are Weir's here.
    let own_flags = ["kubeconfig", "healthz-bind-address", "metrics-bind-address"];
    effective.warnings.extend(
        ignored
            .iter()
            .filter(|flag| !own_flags.contains(flag))
            .map(|flag| format!("--{flag} is ignored: --config decides")),
    );
    let loaded = Loaded { effective, document: own.document() };
    Decided { own, loaded, faults }
}

/// See the module.
pub(super) fn decide(run: &Run) -> Decided {
    let given = given(run);
    let Some(path) = &run.config else {
        return if given.decides() {
            let instead = "kube-proxy's flags decide, here --iptables-localhost-nodeports";
            by_kube_proxy(run, kubeproxy::of_flags(&given), instead)
        } else {
            by_own(run, given, None)
        };
    };
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Err(error) => {
            let mut decided = by_own(run, Given::default(), None);
            decided.faults.push(format!("--config {name}: {error}"));
            decided
        }
        Ok(text) if is_own(&text) => by_own(run, given, Some((&name, &text))),
        Ok(text) => {
            let result = kubeproxy::of_file(&name, &text, given)
                .map_err(|error| vec![format!("--config {:#}", anyhow::Error::new(error))]);
            by_kube_proxy(run, result, "--config decides")
        }
    }
}

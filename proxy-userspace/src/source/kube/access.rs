//! How the API server is reached.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api, Client,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::STALE;
use crate::config::{Config, SourceConfig};

/// Names of Nodes that are asked for at most.
const NAMES: u32 = 1_000;

/// How to reach the cluster.
#[derive(Clone, Debug)]
pub struct KubeConfig {
    kubeconfig: Option<PathBuf>,
    server: Option<String>,
    pub(super) node_name: String,
    /// A stream that is silent for so long is given up and opened again.
    pub idle: Duration,
    /// Ask for initial lists as part of the watch (WatchList), where the server can.
    pub stream_lists: bool,
}

impl KubeConfig {
    /// With the defaults of a real cluster.
    pub fn new(kubeconfig: Option<PathBuf>, node_name: String) -> Self {
        Self { kubeconfig, server: None, node_name, idle: STALE, stream_lists: true }
    }

    /// As configured; `None`: objects come from elsewhere.
    pub fn of(config: &Config) -> Option<Self> {
        let SourceConfig::Kubernetes { kubeconfig, server } = &config.source else { return None };
        Some(Self::new(kubeconfig.clone(), config.node_name.clone()).at(server.clone()))
    }

    /// Names of the cluster's Nodes; of a large cluster, some.
    pub async fn node_names(&self) -> Result<Vec<String>> {
        let nodes: Api<Node> = Api::all(self.client().await?.0);
        let list = nodes.list_metadata(&ListParams::default().limit(NAMES)).await;
        let list = list.context("list the Nodes")?;
        Ok(list.items.into_iter().filter_map(|node| node.metadata.name).collect())
    }

    /// All Services, once.
    pub async fn services(&self) -> Result<Vec<Service>> {
        let services: Api<Service> = Api::all(self.client().await?.0);
        let list = services.list(&ListParams::default()).await.context("list the Services")?;
        Ok(list.items)
    }

    /// With this API server instead of the kubeconfig's.
    pub fn at(self, server: Option<String>) -> Self {
        Self { server, ..self }
    }

    /// Whether the cluster's address and credentials are known, without asking it anything.
    pub async fn check(&self) -> Result<()> {
        self.client().await.map(drop)
    }

    /// A client, and the host it asks.
    pub(crate) async fn client(&self) -> Result<(Client, String)> {
        let mut config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)
                    .with_context(|| format!("read kubeconfig {}", path.display()))?;
                kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .with_context(|| format!("use kubeconfig {}", path.display()))?
            }
            None if self.server.is_some() => kube::Config::new(Default::default()),
            None => kube::Config::incluster().context(
                "find the cluster this runs in: give --kubeconfig or --manifests outside of one",
            )?,
        };
        if let Some(server) = &self.server {
            config.cluster_url =
                server.parse().with_context(|| format!("use the API server {server}"))?;
        }
        // The stream's own idle limit decides, not the client's.
        config.read_timeout = Some(self.idle + Duration::from_secs(30));
        // Failures are ours to count, to tell and to wait out.
        config.default_retry = false;
        let host = config.cluster_url.host().unwrap_or_default().to_owned();
        Ok((Client::try_from(config).context("make a client for the API server")?, host))
    }
}

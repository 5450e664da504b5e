//! The metrics server: the paths of kube-proxy's, and a plain word about those not offered.

use std::net::SocketAddr;

use anyhow::Result;
use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{any, get},
};

use super::Metrics;
use crate::{config::Config, configz, events::Reporter, health::Health, http};

const NO_PROFILES: &str =
    "profiles in Go's format are not offered: profile the process with perf(1)\n";

/// What kube-proxy offers on request and this agent does not.
const NOT_OFFERED: [(&str, &str); 6] = [
    ("/debug/pprof", NO_PROFILES),
    ("/debug/pprof/", NO_PROFILES),
    ("/debug/pprof/{*profile}", NO_PROFILES),
    (
        "/debug/flags/v",
        "the log level cannot be changed while weir runs: start it with --log-level\n",
    ),
    ("/flagz", "not offered: /configz shows what weir runs with\n"),
    ("/statusz", "not offered: /healthz, /readyz and `weir status` show the state\n"),
];

/// Serves `/metrics` and what goes with it, and what `more` answers, for ever.
pub fn serve(
    address: SocketAddr,
    config: &Config,
    events: Reporter,
    metrics: Metrics,
    health: Health,
    more: Router,
) -> impl Future<Output = Result<()>> + Send + use<> {
    let router = router(configz::answer(config), metrics, health).merge(more);
    let reason = "FailedToStartMetricServer";
    let (what, hard_fail) = ("metrics server", config.hard_fail);
    http::serve(http::Listen { what, address, hard_fail, reason, events }, router)
}

fn router(config: serde_json::Value, metrics: Metrics, health: Health) -> Router {
    let slis = health.slis().clone();
    let ping = health.slis().clone();
    let mut router = Router::new()
        .route("/metrics", get(async move || scrape(metrics.render())))
        .route("/metrics/slis", get(async move || scrape(slis.render())))
        .route("/configz", get(async move || http::json(true, &config)))
        .route(
            "/healthz",
            get(async move || {
                ping.observe("healthz", "ping", true);
                http::text("ok")
            }),
        )
        .route("/proxyMode", get(async || http::text("ebpf")));
    for (path, text) in NOT_OFFERED {
        router = router.route(path, any(async move || (StatusCode::NOT_IMPLEMENTED, text)));
    }
    router
}

fn scrape(rendered: Result<String>) -> Response {
    match rendered {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => {
            let text = format!("collect metrics: {error:#}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

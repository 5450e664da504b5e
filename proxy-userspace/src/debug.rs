//! `/debug/endpoints/NAMESPACE/NAME` on the metrics server: what the agent knows that no map holds,
//! for `weir explain`.

use axum::{
    Router,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use crate::{http, reconcile::Question, source::ObjectKey, topology::reasons::ServiceReasons};

/// Path of the answer about a Service.
pub fn path(service: &ObjectKey) -> String {
    format!("/debug/endpoints/{}/{}", service.namespace, service.name)
}

/// Answers with what the reconciler says.
pub fn router(questions: mpsc::Sender<Question>) -> Router {
    Router::new().route("/debug/endpoints/{namespace}/{name}", get(endpoints)).with_state(questions)
}

async fn endpoints(
    State(questions): State<mpsc::Sender<Question>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let service = ObjectKey { namespace, name };
    match ask(&questions, &service).await {
        Some(Some(reasons)) => http::json(true, &json!(reasons)),
        Some(None) => {
            let message = format!("Service {service} is not proxied, or there is none");
            error(StatusCode::NOT_FOUND, &message)
        }
        None => error(StatusCode::SERVICE_UNAVAILABLE, "the agent is ending"),
    }
}

async fn ask(
    questions: &mpsc::Sender<Question>,
    service: &ObjectKey,
) -> Option<Option<ServiceReasons>> {
    let (answer, answered) = oneshot::channel();
    questions.send(Question { service: service.clone(), answer }).await.ok()?;
    answered.await.ok()
}

fn error(code: StatusCode, message: &str) -> Response {
    let body = json!({"error": message}).to_string();
    (code, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

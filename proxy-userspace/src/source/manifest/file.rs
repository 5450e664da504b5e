//! One file: its documents and the objects in them.

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use serde::Deserialize;

use crate::{model::convert, source::ObjectKey};

/// An object of a kind Weir reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A Service.
    Service(Box<Service>),
    /// An EndpointSlice.
    EndpointSlice(Box<EndpointSlice>),
    /// A Node.
    Node(Box<Node>),
    /// A ServiceCIDR.
    ServiceCidr(Box<ServiceCIDR>),
}

/// Kind and name.
pub type ObjectId = (&'static str, ObjectKey);

impl Object {
    /// Its kind and name.
    pub fn id(&self) -> ObjectId {
        match self {
            Self::Service(o) => ("Service", convert::key(&o.metadata)),
            Self::EndpointSlice(o) => ("EndpointSlice", convert::key(&o.metadata)),
            Self::Node(o) => ("Node", convert::key(&o.metadata)),
            Self::ServiceCidr(o) => ("ServiceCIDR", convert::key(&o.metadata)),
        }
    }
}

/// What the kind of a document says.
#[derive(Deserialize)]
struct TypeMeta {
    #[serde(rename = "apiVersion")]
    api_version: Option<String>,
    kind: Option<String>,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct FileError {
    line: usize,
    message: String,
}

/// Lines at which the documents of a YAML stream begin, with their text.
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut documents = vec![(1, String::new())];
    for (number, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            documents.push((number + 2, String::new()));
        } else if let Some((_, document)) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents.retain(|(_, text)| {
        text.lines().any(|line| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with('#')
        })
    });
    documents
}

/// Parses one file. `note` is told of kinds that Weir does not read.
pub fn parse(text: &str, note: &mut impl FnMut(String)) -> Result<Vec<Object>, FileError> {
    let mut objects = Vec::new();
    for (start, document) in documents(text) {
        let error = |error: serde_saphyr::Error| {
            let line = error.location().map_or(0, |l| l.line() as usize);
            // The first line of the message says what is wrong; the rest is an excerpt.
            let message = error.to_string().lines().next().unwrap_or_default().to_owned();
            FileError { line: start + line.saturating_sub(1), message }
        };
        let value: serde_json::Value = serde_saphyr::from_str(&document).map_err(error)?;
        // Parsed as its own type from the text, so that errors know their line; a list's items
        // are only known as values.
        let meta: TypeMeta = serde_json::from_value(value.clone())
            .map_err(|e| FileError { line: start, message: e.to_string() })?;
        match (meta.api_version.as_deref(), meta.kind.as_deref()) {
            (Some("v1"), Some("Service")) => {
                objects.push(Object::Service(serde_saphyr::from_str(&document).map_err(error)?));
            }
            (Some("discovery.k8s.io/v1"), Some("EndpointSlice")) => objects
                .push(Object::EndpointSlice(serde_saphyr::from_str(&document).map_err(error)?)),
            (Some("v1"), Some("Node")) => {
                objects.push(Object::Node(serde_saphyr::from_str(&document).map_err(error)?));
            }
            (Some("networking.k8s.io/v1"), Some("ServiceCIDR")) => {
                objects
                    .push(Object::ServiceCidr(serde_saphyr::from_str(&document).map_err(error)?));
            }
            (Some(_), Some(kind)) if kind.ends_with("List") => {
                parse_list(value, kind, start, &mut objects, note)?;
            }
            (Some(version), Some(kind)) => note(format!("{kind} of {version}")),
            _ => {
                let message = "a document needs apiVersion and kind".to_owned();
                return Err(FileError { line: start, message });
            }
        }
    }
    for object in &mut objects {
        let metadata = match object {
            Object::Service(o) => &mut o.metadata,
            Object::EndpointSlice(o) => &mut o.metadata,
            Object::Node(_) | Object::ServiceCidr(_) => continue,
        };
        metadata.namespace.get_or_insert_with(|| "default".to_owned());
        if metadata.name.as_deref().unwrap_or_default().is_empty() {
            let message = format!("{} without metadata.name", object.id().0);
            return Err(FileError { line: 1, message });
        }
    }
    Ok(objects)
}

/// `kind: List` with typed items, and `ServiceList` and such, whose items may have no type.
fn parse_list(
    value: serde_json::Value,
    kind: &str,
    line: usize,
    objects: &mut Vec<Object>,
    note: &mut impl FnMut(String),
) -> Result<(), FileError> {
    let items = value.get("items").and_then(serde_json::Value::as_array).cloned();
    for (i, item) in items.unwrap_or_default().into_iter().enumerate() {
        let own = item.get("kind").and_then(serde_json::Value::as_str).map(str::to_owned);
        let item_kind = own.unwrap_or_else(|| kind.trim_end_matches("List").to_owned());
        let error = |e: serde_json::Error| FileError { line, message: format!("items[{i}]: {e}") };
        match item_kind.as_str() {
            "Service" => {
                objects.push(Object::Service(serde_json::from_value(item).map_err(error)?));
            }
            "EndpointSlice" => {
                objects.push(Object::EndpointSlice(serde_json::from_value(item).map_err(error)?));
            }
            "Node" => objects.push(Object::Node(serde_json::from_value(item).map_err(error)?)),
            "ServiceCIDR" => {
                objects.push(Object::ServiceCidr(serde_json::from_value(item).map_err(error)?));
            }
            other => note(format!("{other} in a {kind}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_ok(text: &str) -> Vec<String> {
        let objects = parse(text, &mut |_| {}).unwrap();
        objects.iter().map(|o| format!("{} {}", o.id().0, o.id().1)).collect()
    }

    #[test]
    fn documents_lists_and_defaults() {
        let text = "
apiVersion: v1
kind: Service
metadata: {name: a}
---
# only a comment
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: b, namespace: x}}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: c}, addressType: IPv4, endpoints: []}
--- # next
apiVersion: v1
kind: Node
metadata: {name: n1}
";
        assert_eq!(
            parse_ok(text),
            ["Service default/a", "Service x/b", "EndpointSlice default/c", "Node n1"]
        );
    }

    #[test]
    fn an_error_names_its_line() {
        let text = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Service\nspec:\n  ports: [\n";
        let error = parse(text, &mut |_| {}).unwrap_err().to_string();
        let line: usize = error["line ".len()..error.find(':').unwrap()].parse().unwrap();
        assert!((7..=9).contains(&line), "{error}");
    }

    #[test]
    fn a_wrong_type_names_its_line() {
        let text =
            "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: many\n";
        let error = parse(text, &mut |_| {}).unwrap_err().to_string();
        assert!(error.starts_with("line 6:"), "{error}");
    }
}

//! What keeps the kernel translating connections of kube-proxy's when its rules are gone: the kernel
//! stops tracking connections with the last rule that wants it, and stops translating with the last
//! chain for that. So a table of Weir's own takes their place, which does nothing else.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::tool;

/// The table, in each family that needs it.
const TABLE: &str = "weir-conntrack";

/// What makes the table in these families, as a part of a script for nft. Can be repeated.
pub fn script<'a>(families: impl IntoIterator<Item = &'a str>) -> String {
    let mut script = String::new();
    for family in families {
        let _ = write!(
            script,
            "add table {family} {TABLE}\n\
             delete table {family} {TABLE}\n\
             add table {family} {TABLE}\n\
             add chain {family} {TABLE} keep {{ type nat hook prerouting priority -100; }}\n\
             add rule {family} {TABLE} keep ct state new\n"
        );
    }
    script
}

/// Makes the table in a family.
pub fn hold(family: &str) -> Result<()> {
    // Where there is no nft, this has been said already.
    tool("nft", &["-f", "-"], &script([family])).context("keep connections tracked").map(drop)
}

/// Removes the tables. Where nftables cannot be read, there are none.
pub fn release() -> Result<()> {
    let listing = tool("nft", &["-j", "list", "tables"], "").ok().flatten().unwrap_or_default();
    let listing: Value = serde_json::from_str(&listing).unwrap_or_default();
    let tables = listing["nftables"].as_array().into_iter().flatten().map(|item| &item["table"]);
    let mut script = String::new();
    for table in tables.filter(|table| table["name"] == TABLE) {
        let family = table["family"].as_str().unwrap_or_default();
        let _ = writeln!(script, "delete table {family} {TABLE}");
    }
    if script.is_empty() {
        return Ok(());
    }
    tool("nft", &["-f", "-"], &script).context("let go of connections of kube-proxy's").map(drop)
}

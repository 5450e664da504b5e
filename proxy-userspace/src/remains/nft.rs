//! Rules in nftables: kube-proxy's own tables, and chains that it made with the iptables that
//! writes to nftables.

use std::{collections::BTreeSet, fmt::Write as _};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{hold, is_ours_to_remove, tool};

/// Table of kube-proxy's mode nftables.
const TABLE: &str = "kube-proxy";

/// Family, table and chain.
type Chain = (String, String, String);

/// Removes them in one transaction.
pub fn remove() -> Result<Vec<String>> {
    let Some(listing) = tool("nft", &["-j", "-n", "-s", "list", "ruleset"], "")? else {
        bail!("cannot look for rules in nftables: `nft` is not installed; install nftables");
    };
    let listing: Value = serde_json::from_str(&listing).context("read what nft lists")?;
    let Removal { script, tables, chains, families } = removal(&listing);
    if script.is_empty() {
        return Ok(Vec::new());
    }
    let hold = hold::script(families.iter().map(String::as_str));
    tool("nft", &["-f", "-"], &(hold + &script)).context("remove rules from nftables")?;
    Ok(vec![format!("{tables} tables and {chains} chains removed from nftables")])
}

/// What is to be done.
#[derive(Debug, Default, PartialEq)]
struct Removal {
    script: String,
    tables: usize,
    chains: usize,
    families: BTreeSet<String>,
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// Families that iptables writes to.
fn is_ip(family: &str) -> bool {
    ["ip", "ip6"].contains(&family)
}

/// Commands that remove what is kube-proxy's of a ruleset, as `nft -j` lists it: first the rules
/// that lead to its chains, then what is in them, then they themselves.
fn removal(listing: &Value) -> Removal {
    let items = || listing["nftables"].as_array().into_iter().flatten();
    let mut removal = Removal::default();
    let chains: BTreeSet<Chain> = items()
        .map(|item| &item["chain"])
        .map(|chain| (text(chain, "family"), text(chain, "table"), text(chain, "name")))
        .filter(|(family, table, name)| is_ip(family) && table != TABLE && is_ours_to_remove(name))
        .collect();
    for rule in items().map(|item| &item["rule"]).filter(|rule| rule.is_object()) {
        let (family, table) = (text(rule, "family"), text(rule, "table"));
        let of = |name: String| (family.clone(), table.clone(), name);
        let leads = rule["expr"].as_array().into_iter().flatten().any(|expression| {
            ["jump", "goto"].iter().any(|verdict| {
                let target = expression[verdict]["target"].as_str();
                target.is_some_and(|target| chains.contains(&of(target.to_owned())))
            })
        });
        let chain = text(rule, "chain");
        if leads && !chains.contains(&of(chain.clone())) {
            let handle = &rule["handle"];
            let _ =
                writeln!(removal.script, "delete rule {family} {table} {chain} handle {handle}");
        }
    }
    for verb in ["flush", "delete"] {
        for (family, table, name) in &chains {
            let _ = writeln!(removal.script, "{verb} chain {family} {table} {name}");
        }
    }
    for table in items().map(|item| &item["table"]) {
        let family = text(table, "family");
        if is_ip(&family) && text(table, "name") == TABLE {
            let _ = writeln!(removal.script, "delete table {family} {TABLE}");
            removal.tables += 1;
            removal.families.insert(family);
        }
    }
    removal.chains = chains.len();
    removal.families.extend(chains.into_iter().map(|(family, ..)| family));
    removal
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conformance_182_what_is_kube_proxy_s_goes_and_what_is_kubelet_s_stays() {
        let chain = |family, table, name| json!({"chain": {"family": family, "table": table, "name": name}});
        let rule = |table, chain, handle, expr: Value| {
            json!({"rule": {"family": "ip", "table": table, "chain": chain, "handle": handle,
                            "expr": [{"counter": {}}, expr]}})
        };
        let jump = |target| json!({"jump": {"target": target}});
        let listing = json!({"nftables": [
            {"metainfo": {}},
            {"table": {"family": "ip", "name": "nat"}},
            {"table": {"family": "ip6", "name": "kube-proxy"}},
            {"table": {"family": "inet", "name": "kube-proxy"}},
            chain("ip", "nat", "PREROUTING"),
            chain("ip", "nat", "KUBE-SERVICES"),
            chain("ip", "nat", "KUBE-SVC-A"),
            chain("ip", "nat", "KUBE-KUBELET-CANARY"),
            chain("ip", "filter", "KUBE-FIREWALL"),
            chain("ip", "filter", "KUBE-PROXY-FIREWALL"),
            chain("ip6", "kube-proxy", "KUBE-X"),
            chain("inet", "own", "KUBE-Y"),
            rule("nat", "PREROUTING", 5, jump("KUBE-SERVICES")),
            rule("nat", "PREROUTING", 6, jump("OTHER")),
            rule("nat", "KUBE-SERVICES", 7, jump("KUBE-SVC-A")),
            rule("filter", "INPUT", 8, jump("KUBE-FIREWALL")),
            rule("filter", "INPUT", 9, json!({"goto": {"target": "KUBE-PROXY-FIREWALL"}})),
            // A chain of the same name in another table is another chain.
            rule("mangle", "PREROUTING", 10, jump("KUBE-SERVICES")),
        ]});
        let Removal { script, tables, chains, families } = removal(&listing);
        assert_eq!(
            script.lines().collect::<Vec<_>>(),
            [
                "delete rule ip nat PREROUTING handle 5",
                "delete rule ip filter INPUT handle 9",
                "flush chain ip filter KUBE-PROXY-FIREWALL",
                "flush chain ip nat KUBE-SERVICES",
                "flush chain ip nat KUBE-SVC-A",
                "delete chain ip filter KUBE-PROXY-FIREWALL",
                "delete chain ip nat KUBE-SERVICES",
                "delete chain ip nat KUBE-SVC-A",
                "delete table ip6 kube-proxy",
            ]
        );
        assert_eq!((tables, chains), (1, 3));
        assert_eq!(families.iter().collect::<Vec<_>>(), ["ip", "ip6"]);
        assert_eq!(removal(&json!({"nftables": []})), Removal::default());
    }
}

//! Chains of the old iptables, which nftables does not show.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use anyhow::{Context as _, Result, bail};

use super::{hold, is_ours_to_remove, tool};

/// Removes them, table by table, each in one transaction.
pub fn remove() -> Result<Vec<String>> {
    let mut done = Vec::new();
    for (tool, names) in
        [("iptables", "/proc/net/ip_tables_names"), ("ip6tables", "/proc/net/ip6_tables_names")]
    {
        // Without the file there is no such thing in this kernel.
        let tables = fs::read_to_string(names).unwrap_or_default();
        let tables: Vec<&str> = tables.split_whitespace().collect();
        if !tables.is_empty() {
            done.extend(remove_from(tool, &tables)?);
        }
    }
    Ok(done)
}

/// How the old kind is called here: with a name of its own where there are both.
fn prefix(family: &str) -> Result<String> {
    let legacy = format!("{family}-legacy");
    if tool(&format!("{legacy}-save"), &["--version"], "")?.is_some() {
        return Ok(legacy);
    }
    match tool(&format!("{family}-save"), &["--version"], "")? {
        Some(version) if !version.contains("nf_tables") => Ok(family.to_owned()),
        _ => bail!(
            "cannot look for chains in the tables of the old {family}: neither `{legacy}-save` nor \
             a `{family}-save` of that kind is installed; install iptables"
        ),
    }
}

fn remove_from(family: &str, tables: &[&str]) -> Result<Option<String>> {
    let prefix = prefix(family)?;
    let mut count = 0;
    for table in tables {
        let saved = tool(&format!("{prefix}-save"), &["-t", table], "")?.unwrap_or_default();
        let Some((input, chains)) = removal(&saved) else { continue };
        hold::hold(if family == "iptables" { "ip" } else { "ip6" })?;
        tool(&format!("{prefix}-restore"), &["-w", "--noflush"], &input)
            .with_context(|| format!("remove chains from table {table} of {prefix}"))?;
        count += chains;
    }
    Ok((count > 0).then(|| format!("{count} chains removed from {prefix}")))
}

/// Turns a saved table into what a restore without flushing removes kube-proxy's chains by, and
/// their number: a chain that is declared is emptied.
fn removal(saved: &str) -> Option<(String, usize)> {
    let names = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    let chains: BTreeSet<&str> = names.filter(|name| is_ours_to_remove(name)).collect();
    if chains.is_empty() {
        return None;
    }
    let table = saved.lines().find(|line| line.starts_with('*'))?;
    let mut input = format!("{table}\n");
    for chain in &chains {
        let _ = writeln!(input, ":{chain} - [0:0]");
    }
    for rule in saved.lines().filter_map(|line| line.strip_prefix("-A ")) {
        let mut words = rule.split(' ');
        let of = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let leads = words
            .windows(2)
            .any(|pair| ["-j", "-g"].contains(&pair[0]) && chains.contains(pair[1]));
        if leads && !chains.contains(of) {
            let _ = writeln!(input, "-D {rule}");
        }
    }
    for chain in &chains {
        let _ = writeln!(input, "-X {chain}");
    }
    input.push_str("COMMIT\n");
    Some((input, chains.len()))
}

#[cfg(test)]
mod tests {
    use super::removal;

    #[test]
    fn conformance_182_chains_of_the_old_iptables_go_and_kubelet_s_stay() {
        let saved = "# Generated\n*nat\n:PREROUTING ACCEPT [1:60]\n:KUBE-KUBELET-CANARY - [0:0]\n\
                     :KUBE-MARK-MASQ - [0:0]\n:KUBE-SERVICES - [0:0]\n\
                     -A PREROUTING -m comment --comment \"service portals\" -j KUBE-SERVICES\n\
                     -A PREROUTING -j DOCKER\n\
                     -A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-MARK-MASQ\nCOMMIT\n";
        let (input, chains) = removal(saved).unwrap();
        assert_eq!(
            input,
            "*nat\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SERVICES - [0:0]\n\
             -D PREROUTING -m comment --comment \"service portals\" -j KUBE-SERVICES\n\
             -X KUBE-MARK-MASQ\n-X KUBE-SERVICES\nCOMMIT\n"
        );
        assert_eq!(chains, 2);
        assert_eq!(removal("*nat\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n"), None);
    }
}

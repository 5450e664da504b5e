//! The conformance table: which test shows which scenario, and what came of it.
//!
//! `tests/conformance.tsv` lists the scenarios. A test shows those whose numbers its name carries
//! (`conformance_39_98_…`); a scenario recorded from kube-proxy shows those that name it. A run of
//! all tests gives the results, and `docs/conformance.md` must say just that.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::PathBuf,
};

use anyhow::{Context as _, Result, bail};

use crate::root;

/// Test and whether it passed.
pub type Results = BTreeMap<String, bool>;

/// A scenario.
#[derive(Debug, PartialEq)]
struct Row {
    number: u16,
    tier: String,
    what: String,
    recorded: Vec<String>,
    reason: String,
}

fn document() -> PathBuf {
    root().join("docs/conformance.md")
}

/// Where a full run leaves its results for [`write()`].
fn results_file() -> PathBuf {
    root().join("target/test-results.txt")
}

fn parse(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [number, tier, what, recorded, reason] = columns[..] else {
            bail!("five columns are wanted in: {line}");
        };
        rows.push(Row {
            number: number.parse().with_context(|| format!("read {line}"))?,
            tier: tier.to_owned(),
            what: what.to_owned(),
            recorded: recorded.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect(),
            reason: reason.to_owned(),
        });
    }
    Ok(rows)
}

fn rows() -> Result<Vec<Row>> {
    parse(&fs::read_to_string(root().join("tests/conformance.tsv"))?)
}

/// The numbers in the name of a test.
fn numbers(test: &str) -> BTreeSet<u16> {
    let name = test.rsplit("::").next().unwrap_or(test);
    let Some(rest) = name.strip_prefix("conformance_") else { return BTreeSet::new() };
    let words: Vec<&str> = rest.split('_').collect();
    let mut numbers = BTreeSet::new();
    for (i, word) in words.iter().enumerate() {
        match (word.parse::<u16>(), i.checked_sub(2)) {
            (Ok(number), Some(from)) if words[i - 1] == "to" => {
                let first = words[from].parse().unwrap_or(number);
                numbers.extend(first..=number);
            }
            (Ok(number), _) => {
                numbers.insert(number);
            }
            (Err(_), _) if *word == "to" && i > 0 && words[i - 1].parse::<u16>().is_ok() => {}
            (Err(_), _) => break,
        }
    }
    numbers
}

/// Tests that show a row, with their results.
fn shown<'a>(row: &Row, results: &'a Results) -> Vec<(&'a str, bool)> {
    let by_name = |test: &str| numbers(test).contains(&row.number);
    let by_record = |test: &str| {
        test.split_once('/').is_some_and(|(scenario, _)| row.recorded.iter().any(|r| r == scenario))
    };
    results
        .iter()
        .filter(|(test, _)| by_name(test) || by_record(test))
        .map(|(test, passed)| (test.as_str(), *passed))
        .collect()
}

fn render(rows: &[Row], results: &Results) -> String {
    let mut text = String::from(
        "# Conformance\n\n\
         What kube-proxy does, as numbered scenarios, and what shows that Weir does it. Written by\n\
         `cargo xtask conformance` from the results of `cargo xtask test`, which fails if this page\n\
         says something else. Tiers: U pure function, P packets through the programs, N network\n\
         namespaces, K cluster; a scenario of tier K is shown in namespaces where that is possible.\n\
         `name/network` is a scenario recorded from kube-proxy (`tests/recorded`).\n\n",
    );
    let covered = rows.iter().filter(|row| !shown(row, results).is_empty()).count();
    let _ = writeln!(text, "{covered} of {} scenarios are shown.\n", rows.len());
    text.push_str("| no. | tier | scenario | shown by | result |\n|---|---|---|---|---|\n");
    for row in rows {
        let shown = shown(row, results);
        let (by, result) = if shown.is_empty() {
            (format!("not shown: {}", row.reason), "–")
        } else {
            let names: Vec<_> = shown.iter().map(|(test, _)| format!("`{test}`")).collect();
            let passed = shown.iter().all(|(_, passed)| *passed);
            (names.join("<br>"), if passed { "passed" } else { "FAILED" })
        };
        let _ =
            writeln!(text, "| {} | {} | {} | {by} | {result} |", row.number, row.tier, row.what);
    }
    text
}

/// What is wrong with the rows and the page after a full run.
pub fn check(results: &Results) -> Result<Vec<String>> {
    let lines: Vec<String> =
        results.iter().map(|(test, passed)| format!("{test} {passed}")).collect();
    fs::write(results_file(), lines.join("\n")).context("keep the results")?;
    let rows = rows()?;
    let mut faults: Vec<String> = rows
        .iter()
        .filter(|row| row.reason.is_empty() && shown(row, results).is_empty())
        .map(|row| format!("conformance scenario {} has neither a test nor a reason", row.number))
        .collect();
    let page = fs::read_to_string(document()).unwrap_or_default();
    if page != render(&rows, results) {
        faults.push(
            "docs/conformance.md does not say what this run has shown: run `cargo xtask conformance`"
                .to_owned(),
        );
    }
    Ok(faults)
}

/// Writes the page from the results of the last full run.
pub fn write() -> Result<()> {
    let text =
        fs::read_to_string(results_file()).context("read results: run `cargo xtask test`")?;
    let mut results = Results::new();
    for line in text.lines() {
        let (test, passed) = line.rsplit_once(' ').context("a result")?;
        results.insert(test.to_owned(), passed == "true");
    }
    fs::create_dir_all(root().join("docs"))?;
    fs::write(document(), render(&rows()?, &results)).context("write docs/conformance.md")?;
    println!("{}", document().display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_names() {
        let of = |name: &str| numbers(name).into_iter().collect::<Vec<_>>();
        assert_eq!(of("a::tests::conformance_16_18_slices_of_4_nodes"), [16, 18]);
        assert_eq!(of("conformance_46_to_49_hints"), [46, 47, 48, 49]);
        assert!(of("a::other_16_test").is_empty());
    }

    #[test]
    fn a_row_is_shown_by_names_and_records() {
        let rows = parse("# a\n7\tU\twhat\tx,y\t\n8\tK\tmore\t\tno cluster\n").unwrap();
        let results = Results::from([
            ("m::conformance_7_a".to_owned(), true),
            ("y/routed".to_owned(), false),
            ("z/routed".to_owned(), true),
        ]);
        let text = render(&rows, &results);
        assert!(text.contains("| 7 | U | what | `m::conformance_7_a`<br>`y/routed` | FAILED |"));
        assert!(text.contains("| 8 | K | more | not shown: no cluster | – |"), "{text}");
    }

    #[test]
    fn every_scenario_is_listed_once_and_every_record_is_there() {
        let rows = rows().unwrap();
        assert_eq!(
            rows.iter().map(|r| r.number).collect::<Vec<_>>(),
            (1..=192).collect::<Vec<_>>()
        );
        for name in rows.iter().flat_map(|row| &row.recorded) {
            assert!(root().join(format!("tests/recorded/{name}.yaml")).is_file(), "{name}");
        }
    }
}

//! What counts as the same outcome.
//!
//! | recorded | the same is |
//! |---|---|
//! | answers of a set of backends | answers of these only, and of each of them if by chance one is missing less than once in ten thousand; no failure |
//! | answers and failures | the same without failures is better |
//! | refused, denied with a refusal | refused: a RST and an ICMP message are equal |
//! | timeout, denied | nothing came back |
//! | backend saw the node | backend saw the node, or the client itself |
//! | backend saw the client | backend saw the client |

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::Value;

use super::scenario::{Answered, Loaded, Probed, Sequence, Want};
use crate::remote::{Said, Tally};

/// A chance so small that an outcome is a fault.
const CHANCE: f64 = 1e-4;

/// The name of the place that has an address.
pub type Who<'a> = &'a dyn Fn(IpAddr) -> String;

/// Whether an outcome is one of those wanted; else what is wrong with it, next to the first.
pub fn any<W>(wants: &[Want<W>], check: impl Fn(&W) -> Result<(), String>) -> Result<(), String> {
    let mut faults = Vec::new();
    for want in wants {
        match want {
            Want::Ignore(_) => return Ok(()),
            Want::Is(want) => match check(want) {
                Ok(()) => return Ok(()),
                Err(fault) => faults.push(fault),
            },
        }
    }
    Err(faults.join(" / "))
}

/// Failures in two classes: whether somebody said no.
fn said_no(fail: &str) -> bool {
    matches!(fail, "refused" | "reset" | "closed" | "unreachable")
}

/// What came of attempts from `client`.
pub fn probed(want: &Probed, got: &Tally, client: &str, who: Who) -> Result<(), String> {
    let answered: u64 = got.said.iter().map(|(_, n)| n).sum();
    let failed: u64 = got.fails.values().sum();
    let names: BTreeSet<&str> = got.said.iter().map(|(said, _)| said.who.as_str()).collect();
    if want.compare.as_deref() == Some("any") {
        return if (answered == 0) == want.answers.is_empty() {
            Ok(())
        } else {
            Err(format!("answered {answered}, failed {:?}", got.fails))
        };
    }
    if want.answers.is_empty() {
        if answered > 0 {
            return Err(format!("answered by {names:?}, recorded {:?}", want.fails));
        }
        // `denied` may be either.
        let refused = want.fails.iter().any(|fail| said_no(fail)) || !want.refused_by.is_empty();
        return match got.fails.keys().find(|fail| said_no(fail) != refused) {
            Some(fail) => Err(format!("{fail}, recorded {:?} {:?}", want.fails, want.refused_by)),
            None => Ok(()),
        };
    }
    if failed > 0 && want.fails.is_empty() {
        return Err(format!("failed {:?}, answered {answered}", got.fails));
    }
    backends(&want.answers, &names, answered, want.compare.as_deref() == Some("one"))?;
    sources(&want.sources, want.port.as_deref(), got, client, who)
}

fn backends(want: &[String], got: &BTreeSet<&str>, n: u64, one: bool) -> Result<(), String> {
    if one {
        return match got.len() {
            1 => Ok(()),
            _ => Err(format!("answered by {got:?} instead of one")),
        };
    }
    if let Some(stranger) = got.iter().find(|name| !want.iter().any(|w| w == *name)) {
        return Err(format!("answered by {stranger}, recorded {want:?}"));
    }
    let k = want.len() as f64;
    let missing_by_chance = k * (1.0 - 1.0 / k).powi(n.min(1_000) as i32);
    if got.len() < want.len() && missing_by_chance < CHANCE {
        return Err(format!("answered by {got:?} only, recorded {want:?}"));
    }
    Ok(())
}

fn sources(
    want: &[String],
    port: Option<&str>,
    got: &Tally,
    client: &str,
    who: Who,
) -> Result<(), String> {
    for (said, _) in &got.said {
        let saw = who(said.saw);
        let itself = saw == client && want.iter().all(|name| name.starts_with("node"));
        if !itself && !want.contains(&saw) {
            return Err(format!("{} saw {saw}, recorded {want:?}", said.who));
        }
    }
    // The gateway's own translation may need another port; and so does a flow whose reply tuple is
    // taken because the client has drawn one port for two front ends.
    let changed = |(said, n): &(Said, u64)| {
        if said.port_kept || said.who.starts_with("gw:") { 0 } else { *n }
    };
    let (changed, all) = got.said.iter().fold((0, 0), |(c, a), one| (c + changed(one), a + one.1));
    if port == Some("kept") && changed * 4 > all {
        return Err(format!("{changed} of {all} saw another port, recorded the client's"));
    }
    Ok(())
}

/// Answers on one socket. Which backend a socket drew is chance; that it stays is not.
pub fn sequence(
    want: &Sequence,
    got: &[Result<Said, String>],
    client: &str,
    who: Who,
) -> Result<(), String> {
    let told: Vec<String> = got
        .iter()
        .map(|one| match one {
            Ok(said) => format!("{} sees {}", said.who, who(said.saw)),
            Err(fail) => fail.clone(),
        })
        .collect();
    let answers = |text: &String| text.contains(" sees ");
    let same = |want: &String, got: &Result<Said, String>| match (want.split_once(" sees "), got) {
        (Some((_, whom)), Ok(said)) => {
            let saw = who(said.saw);
            saw == whom || (saw == client && whom.starts_with("node"))
        }
        // `denied` may be either.
        (None, Err(fail)) => want == "denied" || said_no(fail) == said_no(want),
        (None, Ok(_)) | (Some(_), Err(_)) => false,
    };
    let stays = |texts: &[String]| {
        let names: BTreeSet<_> =
            texts.iter().filter_map(|t| Some(t.split_once(" sees ")?.0)).collect();
        names.len() <= 1
    };
    let mut pairs = want.sequence.iter().zip(got);
    let good = match want.compare.as_deref() {
        Some("any") => want.sequence.iter().any(answers) == told.iter().any(answers),
        Some("last") => pairs.next_back().is_some_and(|(want, got)| same(want, got)),
        _ => {
            want.sequence.len() == got.len()
                && pairs.all(|(want, got)| same(want, got))
                && (stays(&told) || !stays(&want.sequence))
        }
    };
    if good { Ok(()) } else { Err(format!("{told:?}, recorded {:?}", want.sequence)) }
}

/// What came of a load.
pub fn loaded(want: &Loaded, got: &Tally, long: bool) -> Result<(), String> {
    let answered: u64 = got.said.iter().map(|(_, n)| n).sum();
    if !want.fails && !got.fails.is_empty() {
        return Err(format!("failed {:?} of {answered}", got.fails));
    }
    if answered == 0 && !want.by.is_empty() {
        return Err(format!("no answer, failed {:?}", got.fails));
    }
    if long {
        // Which one the connection drew is chance.
        let backends: BTreeSet<&str> = got.said.iter().map(|(said, _)| said.who.as_str()).collect();
        return match backends.len() {
            1 => Ok(()),
            _ => Err(format!("one socket was answered by {backends:?}")),
        };
    }
    let name = |said: &Said| said.who.split(':').next().unwrap_or_default().to_owned();
    match got.said.iter().map(|(said, _)| name(said)).find(|name| !want.by.contains(name)) {
        Some(stranger) => Err(format!("answered by {stranger}, recorded {:?}", want.by)),
        None => Ok(()),
    }
}

/// An HTTP answer: status, headers by lower-case name, body.
pub fn answered(
    want: &Answered,
    status: u16,
    headers: &[(String, String)],
    body: &str,
) -> Result<(), String> {
    if status != want.status {
        return Err(format!("status {status}, recorded {}: {body}", want.status));
    }
    if want.compare.as_deref() == Some("status") {
        return Ok(());
    }
    for (name, value) in &want.headers {
        let found = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v);
        if found != Some(value) {
            return Err(format!("header {name} is {found:?}, recorded {value:?}"));
        }
    }
    if let Some(want) = &want.body {
        let got: Value = serde_json::from_str(body).map_err(|e| format!("{e} in {body}"))?;
        if !covers(&got, want) {
            return Err(format!("{got}, recorded {want}"));
        }
    }
    match &want.text {
        Some(text) if text != body => Err(format!("{body:?}, recorded {text:?}")),
        _ => Ok(()),
    }
}

/// Whether `got` has everything that `want` has; it may have more keys.
fn covers(got: &Value, want: &Value) -> bool {
    match (got, want) {
        (Value::Object(got), Value::Object(want)) => {
            want.iter().all(|(key, want)| got.get(key).is_some_and(|got| covers(got, want)))
        }
        (Value::String(got), Value::String(want)) if want == "<time>" => {
            got.len() >= "2026-01-01T00:00:00Z".len() && got.as_bytes()[10] == b'T'
        }
        _ => got == want,
    }
}

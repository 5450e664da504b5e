//! The name that was meant.

/// The name most like `wanted`, if one is alike at all: the same up to a domain, or a few letters
/// off.
pub fn nearest<'a>(wanted: &str, names: &'a [String]) -> Option<&'a str> {
    let score = |name: &str| {
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_lowercase();
        if short(name) == short(wanted) { 0 } else { distance(name, wanted) }
    };
    let limit = (wanted.chars().count() / 3).max(2);
    let best = names.iter().map(|name| (score(name), name.as_str())).min()?;
    (best.0 <= limit).then_some(best.1)
}

/// How many letters must be put in, taken out or exchanged (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in b.iter().enumerate() {
            let exchanged = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_right_is_found() {
        let names = ["worker-1", "worker-2.example.org", "control"].map(str::to_owned);
        for (wanted, found) in [
            ("worker1", Some("worker-1")),
            ("worker-2", Some("worker-2.example.org")),
            ("worker-1.example.org", Some("worker-1")),
            ("contorl", Some("control")),
            ("ip-10-0-0-1", None),
        ] {
            assert_eq!(nearest(wanted, &names), found, "{wanted}");
        }
        assert_eq!(nearest("a", &[]), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}

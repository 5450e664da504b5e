//! Which counter a packet or connection of ours has moved, among those that others move meanwhile.

use proxy_common::counter::Counter;

/// Counters as they stood at a moment, see [`Pins::counters_of`](crate::datapath::pins::Pins).
pub type Counts = [(Counter, u64)];

/// What was counted `times` or more between two moments, on a hook and with one of these verdicts.
pub fn counted(
    before: &Counts,
    after: &Counts,
    hook: &str,
    verdicts: &[&str],
    times: u32,
) -> Vec<Counter> {
    let grown = before.iter().zip(after).filter(|((counter, old), (_, new))| {
        counter.hook() == hook
            && verdicts.contains(&counter.verdict())
            && new - old >= u64::from(times)
    });
    grown.map(|((counter, _), _)| *counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_often_enough_in_its_class_is_ours() {
        let before: Vec<_> = Counter::ALL.iter().map(|c| (*c, 7)).collect();
        let grown = |grow: &[(Counter, u64)]| -> Vec<(Counter, u64)> {
            let by = |c: Counter| grow.iter().find(|(g, _)| *g == c).map_or(0, |(_, n)| *n);
            before.iter().map(|(c, n)| (*c, n + by(*c))).collect()
        };
        let after = grown(&[
            (Counter::Forward, 9_000),
            (Counter::DropNoRoute, 3),
            (Counter::DropSourceRange, 512),
            (Counter::SocketStale, 600),
        ]);
        let counted = |verdicts: &[&str]| counted(&before, &after, "tc", verdicts, 512);
        assert_eq!(counted(&["drop"]), [Counter::DropSourceRange]);
        assert!(counted(&["pass"]).is_empty());
    }
}

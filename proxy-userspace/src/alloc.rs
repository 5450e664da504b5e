//! Ids and slot ranges: given out, taken back into quarantine, restored after a restart.
//!
//! A program that read a row just before it changed may follow the old id or range for a moment.
//! So nothing is given out again before [`QUARANTINE`] has passed since it was freed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// A program runs for microseconds; seconds leave room for a stalled virtual CPU.
pub const QUARANTINE: Duration = Duration::from_secs(5);

/// A table has no room for a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{table} is full: {wanted} more rows wanted, {free} of {capacity} free")]
pub struct Full {
    /// The map.
    pub table: &'static str,
    /// Rows asked for.
    pub wanted: u32,
    /// Rows that could be given, those in quarantine not counted.
    pub free: u32,
    /// Rows in all.
    pub capacity: u32,
}

impl Full {
    /// An error if fewer than `wanted` rows are free.
    pub fn check(table: &'static str, capacity: u32, used: u32, wanted: u32) -> Result<(), Self> {
        let free = capacity.saturating_sub(used);
        if wanted > free { Err(Self { table, wanted, free, capacity }) } else { Ok(()) }
    }
}

/// Gives out ids from 1 to `capacity - 1`, lowest first.
#[derive(Debug)]
pub struct Ids {
    table: &'static str,
    capacity: u32,
    /// Ids from here on were never used.
    next: u32,
    free: BTreeSet<u32>,
    quarantined: VecDeque<(Instant, u32)>,
}

impl Ids {
    /// For a table of `capacity` rows; row 0 stays unused.
    pub fn new(table: &'static str, capacity: u32) -> Self {
        Self { table, capacity, next: 1, free: BTreeSet::new(), quarantined: VecDeque::new() }
    }

    /// Marks an id found in the maps as used. Must come before the first [`Ids::take`].
    pub fn restore(&mut self, id: u32) {
        self.free.extend(self.next..id);
        self.free.remove(&id);
        self.next = self.next.max(id + 1);
    }

    fn release_due(&mut self, now: Instant) {
        while let Some((since, id)) = self.quarantined.front().copied() {
            if now.duration_since(since) < QUARANTINE {
                break;
            }
            self.quarantined.pop_front();
            self.free.insert(id);
        }
    }

    /// Ids that can be given out at `now`.
    fn available(&self) -> u32 {
        self.free.len() as u32 + self.capacity.saturating_sub(self.next)
    }

    /// Gives out an id.
    pub fn take(&mut self, now: Instant) -> Result<u32, Full> {
        self.release_due(now);
        if let Some(id) = self.free.pop_first() {
            return Ok(id);
        }
        if self.next < self.capacity {
            self.next += 1;
            return Ok(self.next - 1);
        }
        Err(Full { table: self.table, wanted: 1, free: self.available(), capacity: self.capacity })
    }

    /// Takes an id back that programs may have seen.
    pub fn free(&mut self, id: u32, now: Instant) {
        self.quarantined.push_back((now, id));
    }

    /// Takes an id back that was never written.
    pub fn give_back(&mut self, id: u32) {
        self.free.insert(id);
    }

    /// Ids in use or in quarantine.
    pub fn used(&self) -> u32 {
        self.capacity.saturating_sub(1).saturating_sub(self.available())
    }
}

/// A range of `SLOTS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// First slot.
    pub first: u32,
    /// Number of slots.
    pub count: u32,
}

/// Gives out ranges, lowest fit first; neighbours that are freed grow together.
#[derive(Debug)]
pub struct Ranges {
    table: &'static str,
    capacity: u32,
    /// Free ranges: first → count.
    free: BTreeMap<u32, u32>,
    quarantined: VecDeque<(Instant, Range)>,
}

impl Ranges {
    /// For a table of `capacity` rows.
    pub fn new(table: &'static str, capacity: u32) -> Self {
        Self {
            table,
            capacity,
            free: BTreeMap::from([(0, capacity)]),
            quarantined: VecDeque::new(),
        }
    }

    /// Marks a range found in the maps as used. A range outside the table, or one that overlaps
    /// another, is refused: the maps are not ours to trust then.
    pub fn restore(&mut self, range: Range) -> bool {
        if range.count == 0 {
            return true;
        }
        let Some((&first, &count)) = self.free.range(..=range.first).next_back() else {
            return false;
        };
        let (end, range_end) = (first + count, range.first.saturating_add(range.count));
        if range_end > end {
            return false;
        }
        self.free.remove(&first);
        if range.first > first {
            self.free.insert(first, range.first - first);
        }
        if end > range_end {
            self.free.insert(range_end, end - range_end);
        }
        true
    }

    /// Gives out `count` slots in a row.
    pub fn take(&mut self, count: u32, now: Instant) -> Result<Range, Full> {
        if count == 0 {
            return Ok(Range::default());
        }
        while let Some((since, range)) = self.quarantined.front().copied() {
            if now.duration_since(since) < QUARANTINE {
                break;
            }
            self.quarantined.pop_front();
            self.give_back(range);
        }
        let fit = self.free.iter().find(|(_, free)| **free >= count).map(|(f, c)| (*f, *c));
        let Some((first, free)) = fit else {
            return Err(Full {
                table: self.table,
                wanted: count,
                free: self.free.values().sum(),
                capacity: self.capacity,
            });
        };
        self.free.remove(&first);
        if free > count {
            self.free.insert(first + count, free - count);
        }
        Ok(Range { first, count })
    }

    /// Takes a range back that programs may have seen.
    pub fn free(&mut self, range: Range, now: Instant) {
        if range.count > 0 {
            self.quarantined.push_back((now, range));
        }
    }

    /// Takes a range back that was never written.
    pub fn give_back(&mut self, mut range: Range) {
        if range.count == 0 {
            return;
        }
        if let Some(after) = self.free.remove(&(range.first + range.count)) {
            range.count += after;
        }
        if let Some((&first, &count)) = self.free.range(..range.first).next_back()
            && first + count == range.first
        {
            range = Range { first, count: count + range.count };
        }
        self.free.insert(range.first, range.count);
    }

    /// Slots in use or in quarantine.
    pub fn used(&self) -> u32 {
        self.capacity - self.free.values().sum::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_rests_before_it_is_given_out_again() {
        let now = Instant::now();
        let mut ids = Ids::new("T", 3);
        assert_eq!((ids.take(now), ids.take(now)), (Ok(1), Ok(2)));
        ids.free(1, now);
        let full = ids.take(now + QUARANTINE / 2).unwrap_err();
        assert_eq!(full.to_string(), "T is full: 1 more rows wanted, 0 of 3 free");
        assert_eq!(ids.take(now + QUARANTINE), Ok(1));
    }

    #[test]
    fn restored_ids_are_not_given_out() {
        let now = Instant::now();
        let mut ids = Ids::new("T", 10);
        ids.restore(4);
        ids.restore(2);
        assert_eq!(ids.used(), 2);
        let taken: Vec<_> = (0..7).map(|_| ids.take(now).unwrap()).collect();
        assert_eq!(taken, [1, 3, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn freed_neighbours_grow_together() {
        let now = Instant::now();
        let mut ranges = Ranges::new("T", 10);
        let a = ranges.take(3, now).unwrap();
        let b = ranges.take(3, now).unwrap();
        let c = ranges.take(4, now).unwrap();
        assert!(ranges.take(1, now).is_err());
        for range in [a, c, b] {
            ranges.free(range, now);
        }
        assert!(ranges.take(1, now).is_err());
        assert_eq!(ranges.take(10, now + QUARANTINE), Ok(Range { first: 0, count: 10 }));
    }

    #[test]
    fn overlapping_ranges_are_not_restored() {
        let mut ranges = Ranges::new("T", 10);
        assert!(ranges.restore(Range { first: 2, count: 3 }));
        assert!(!ranges.restore(Range { first: 4, count: 1 }));
        assert!(!ranges.restore(Range { first: 8, count: 3 }));
        assert_eq!(ranges.used(), 3);
        assert_eq!(ranges.take(2, Instant::now()), Ok(Range { first: 0, count: 2 }));
        assert_eq!(ranges.take(2, Instant::now()), Ok(Range { first: 5, count: 2 }));
    }
}

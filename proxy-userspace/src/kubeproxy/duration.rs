//! Durations as Go writes them: `1m0s`, `15m`, `1.5h`, `0s`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};

/// A length of time, which may be negative until it is validated.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct GoDuration {
    /// In seconds.
    pub seconds: f64,
}

impl GoDuration {
    /// For use; negative ones are zero.
    pub fn to_std(self) -> Duration {
        Duration::try_from_secs_f64(self.seconds).unwrap_or_default()
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.seconds)
    }
}

/// Reads one (Go's `time.ParseDuration`): a sign, then numbers with units, or a bare `0`.
pub fn parse(text: &str) -> Option<GoDuration> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(GoDuration::default());
    }
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        seconds += number * unit;
        rest = &rest[end..];
    }
    Some(GoDuration { seconds: sign * seconds })
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text)
            .ok_or_else(|| D::Error::custom(format!("`{text}`: want a duration like 1m30s")))
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, want) in [
            ("1m0s", Some(60.0)),
            ("24h0m0s", Some(86_400.0)),
            ("1.5h", Some(5_400.0)),
            ("250ms", Some(0.25)),
            ("0s", Some(0.0)),
            ("0", Some(0.0)),
            ("-1s", Some(-1.0)),
            ("5", None),
            ("", None),
            ("1d", None),
            ("s", None),
            ("1s2", None),
        ] {
            assert_eq!(parse(text).map(|d| d.seconds), want, "{text}");
        }
    }
}

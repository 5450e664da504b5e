//! Builds, tests and demonstrates Weir.
fn main() {}

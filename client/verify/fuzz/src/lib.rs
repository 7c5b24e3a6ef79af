//! What the fuzz targets run, and what they start from.

#[path = "../../tests/support/entries.rs"]
pub mod entries;
#[path = "../../tests/support/seeds.rs"]
pub mod seeds;

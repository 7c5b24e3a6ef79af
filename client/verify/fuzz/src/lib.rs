//! What the fuzz targets run.

#[path = "../../tests/support/entries.rs"]
pub mod entries;

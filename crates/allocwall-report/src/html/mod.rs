//! Reports as one HTML file that needs no network and no other file (docs/html.md).

mod chart;
mod diagnosis;
mod page;
#[cfg(test)]
mod tests;
mod trial;

pub use diagnosis::diagnosis;
pub use trial::trial;

//! Reports as one HTML file that needs no network and no other file (docs/html.md).

pub mod chart;
mod count;
mod diagnosis;
pub mod page;
mod series;
#[cfg(test)]
mod tests;
mod trial;

pub use count::count;
pub use diagnosis::{Tried, diagnosis, verified};
pub use series::series;
pub use trial::trial;

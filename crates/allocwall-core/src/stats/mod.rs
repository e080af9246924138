//! Pure statistics; imports only `units`.

pub mod order;

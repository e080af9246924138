//! Pure statistics; imports only `units`.

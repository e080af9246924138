//! Hand objects between cores: one thread allocates, others free, and the slots come home.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

//! The variants: where the memory of an order comes from. One table.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    Malloc,
    Freelist,
    Batch,
    ByValue,
    Pool,
    PoolDrop,
    PoolHuge,
    Sharded,
    Slab,
}

pub struct Entry {
    pub variant: Variant,
    /// The name for `--variants`.
    pub key: &'static str,
    pub title: &'static str,
    /// Whether the variant runs by default.
    pub default: bool,
}

pub const TABLE: &[Entry] = &[
    Entry { variant: Variant::Malloc, key: "malloc", title: "malloc and free", default: true },
    Entry {
        variant: Variant::Freelist,
        key: "freelist",
        title: "free list with a return queue; when the list is empty, it takes 32 slots at a time from the queue; as published, but the queue cannot be full",
        default: true,
    },
    Entry {
        variant: Variant::Batch,
        key: "batch",
        title: "batch arena: four arenas in rotation; an arena is reused when all its orders are freed (allocwall-pool's Batches)",
        default: true,
    },
    Entry {
        variant: Variant::ByValue,
        key: "by-value",
        title: "the order itself is in the queue: no allocation, the lower bound",
        default: true,
    },
    Entry {
        variant: Variant::Pool,
        key: "pool",
        title: "allocwall-pool's Pool, freed through returners",
        default: true,
    },
    Entry {
        variant: Variant::PoolDrop,
        key: "pool-drop",
        title: "allocwall-pool's Pool, freed by dropping the object",
        default: false,
    },
    Entry {
        variant: Variant::PoolHuge,
        key: "pool-huge",
        title: "allocwall-pool's Pool on transparent huge pages, freed through returners",
        default: false,
    },
    Entry {
        variant: Variant::Sharded,
        key: "sharded",
        title: "allocwall-pool's shards: one pool per producer; the freeing thread finds the right one",
        default: false,
    },
    Entry {
        variant: Variant::Slab,
        key: "slab",
        title: "the crate sharded-slab; objects are found by key",
        default: true,
    },
];

impl Variant {
    pub fn entry(self) -> &'static Entry {
        TABLE.iter().find(|entry| entry.variant == self).expect("every variant is in the table")
    }

    pub fn key(self) -> &'static str {
        self.entry().key
    }

    pub fn find(key: &str) -> Option<Variant> {
        TABLE.iter().find(|entry| entry.key == key).map(|e| e.variant)
    }
}

/// The size of an order, including its first 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sizes {
    /// 64 bytes.
    Line,
    /// 256 bytes.
    Fixed,
    /// 64, 128, 256, 512 or 1024 bytes, equally often.
    Mixed,
}

impl Sizes {
    pub fn all(self) -> &'static [usize] {
        match self {
            Sizes::Line => &[64],
            Sizes::Fixed => &[256],
            Sizes::Mixed => &[64, 128, 256, 512, 1024],
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Sizes::Line => "64 B",
            Sizes::Fixed => "256 B",
            Sizes::Mixed => "64 to 1,024 B",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_unique_and_found_again() {
        let keys: BTreeSet<_> = TABLE.iter().map(|entry| entry.key).collect();
        assert_eq!(keys.len(), TABLE.len());
        for entry in TABLE {
            assert_eq!(Variant::find(entry.key), Some(entry.variant));
            assert_eq!(entry.variant.key(), entry.key);
            // The names on the command line and in files are the same.
            assert_eq!(serde_json::to_value(entry.variant).unwrap(), entry.key);
        }
        assert_eq!(Variant::find("mallocs"), None);
    }
}

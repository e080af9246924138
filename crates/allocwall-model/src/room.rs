//! What a recording may take in memory while it is read: a list is charged by element, for an empty string is one byte in
//! the file and 24 in memory.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    /// Left on this thread; without bounds but within `bounded`.
    static ROOM: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Runs `read` with room for lists of `bytes` in all.
pub fn bounded<T>(bytes: usize, read: impl FnOnce() -> T) -> T {
    ROOM.set(bytes);
    let outcome = read();
    ROOM.set(usize::MAX);
    outcome
}

/// For `#[serde(deserialize_with)]`.
pub fn charged<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct Elements<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = seq.next_element()? {
                let left = ROOM.get().checked_sub(size_of::<T>());
                ROOM.set(left.ok_or_else(|| A::Error::custom("a list beyond all measure"))?);
                list.push(element);
            }
            Ok(list)
        }
    }

    from.deserialize_seq(Elements(PhantomData))
}

//! Limits the memory that a recording uses while it is read. Each element of a list is charged: an empty string is one byte
//! in the file, but 24 bytes in memory.

use crate::units::{Absence, Measured};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    /// Bytes left on this thread; unlimited outside of `bounded`.
    static ROOM: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Runs `read`, with a limit of `bytes` for all lists together.
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
                ROOM.set(
                    left.ok_or_else(|| A::Error::custom("the lists of this recording need too much memory"))?,
                );
                list.push(element);
            }
            Ok(list)
        }
    }

    from.deserialize_seq(Elements(PhantomData))
}

/// The same for a list that may be absent.
pub fn charged_if_measured<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Measured<Vec<T>>, D::Error> {
    struct Charged<T>(Vec<T>);

    impl<'de, T: Deserialize<'de>> Deserialize<'de> for Charged<T> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            charged(from).map(Charged)
        }
    }

    let list = Result::<Charged<T>, Absence>::deserialize(from)?;
    Ok(list.map(|Charged(list)| list))
}

//! The record of `json-requests` and `patterns`, and the ways to rewrite it.
//!
//! All ways but one parse with the same code. They differ in where the strings and lists of a record are.

use allocwall_model::stats::random::Random;
use allocwall_pool::RequestArena;
use anyhow::{Context, bail};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use std::fmt;
use std::marker::PhantomData;

/// Length of a record's text in bytes.
const LENGTH: usize = 2_048;
const EDGES: usize = 6;
const TAGS: usize = 12;
/// Items of a list without a block.
const MOST: usize = 16;
/// Room for the strings and lists of a record, which are shorter than its text, and for the record itself.
const ARENA: usize = 16 << 10;

/// The edge that a request appends.
const ADDED: Edge<&str> = Edge { pop: "added", latency: 1.5 };

/// Strings of type `S`, lists of type `E` and `T`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Record<S, E, T> {
    stream_id: S,
    sequence: u64,
    duration: f64,
    bitrate: u64,
    codec: S,
    drm: Drm<S>,
    edges: E,
    tags: T,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Drm<S> {
    system: S,
    key_id: S,
    license_url: S,
    header: S,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Edge<S> {
    pop: S,
    latency: f64,
}

/// The part of a record that a request needs.
#[derive(Deserialize)]
struct Needed<E> {
    edges: E,
}

/// Each string and each list is a block of malloc.
type Owned = Record<String, Vec<Edge<String>>, Vec<String>>;
/// The same, but the blocks are reused.
type Slot = Record<String, Kept<Edge<String>>, Kept<String>>;
/// Without a block: the strings are elsewhere.
type Seen<'a> = Record<&'a str, Few<Edge<&'a str>>, Few<&'a str>>;

/// A list within the record itself.
#[derive(Clone, Copy, Debug)]
struct Few<T> {
    items: [T; MOST],
    used: usize,
}

impl<T: Copy + Default> Default for Few<T> {
    fn default() -> Few<T> {
        Few { items: [T::default(); MOST], used: 0 }
    }
}

impl<T> Few<T> {
    fn items(&self) -> &[T] {
        &self.items[..self.used]
    }

    /// None if it is full.
    fn push(&mut self, item: T) -> Option<()> {
        *self.items.get_mut(self.used)? = item;
        self.used += 1;
        Some(())
    }
}

impl<T: Serialize> Serialize for Few<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.items().serialize(to)
    }
}

impl<'de, T: Copy + Default + Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Few<T>, D::Error> {
        from.deserialize_seq(Items(PhantomData))
    }
}

struct Items<T>(PhantomData<T>);

impl<'de, T: Copy + Default + Deserialize<'de>> Visitor<'de> for Items<T> {
    type Value = Few<T>;

    fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "a list of at most {MOST} items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<T>, A::Error> {
        let mut few = Few::default();
        while let Some(item) = list.next_element()? {
            few.push(item).ok_or_else(|| A::Error::custom("too many items"))?;
        }
        Ok(few)
    }
}

/// A list whose items stay allocated when it is cleared.
#[derive(Debug, Default)]
struct Kept<T> {
    items: Vec<T>,
    used: usize,
}

impl<T: Default> Kept<T> {
    /// The next item, to be overwritten.
    fn place(&mut self) -> &mut T {
        if self.used == self.items.len() {
            self.items.push(T::default());
        }
        self.used += 1;
        &mut self.items[self.used - 1]
    }
}

impl<T: Serialize> Serialize for Kept<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.items[..self.used].serialize(to)
    }
}

fn set(room: &mut String, text: &str) {
    room.clear();
    room.push_str(text);
}

impl Slot {
    fn fill(&mut self, seen: &Seen) {
        set(&mut self.stream_id, seen.stream_id);
        (self.sequence, self.duration, self.bitrate) = (seen.sequence, seen.duration, seen.bitrate);
        set(&mut self.codec, seen.codec);
        set(&mut self.drm.system, seen.drm.system);
        set(&mut self.drm.key_id, seen.drm.key_id);
        set(&mut self.drm.license_url, seen.drm.license_url);
        set(&mut self.drm.header, seen.drm.header);
        (self.edges.used, self.tags.used) = (0, 0);
        seen.edges.items().iter().for_each(|edge| self.add(edge));
        seen.tags.items().iter().for_each(|tag| set(self.tags.place(), tag));
    }

    fn add(&mut self, edge: &Edge<&str>) {
        let place = self.edges.place();
        set(&mut place.pop, edge.pop);
        place.latency = edge.latency;
    }
}

/// The record with one more edge, in the arena. None if the arena or a list is full.
fn in_arena<'a>(arena: &'a RequestArena, seen: &Seen) -> Option<&'a Seen<'a>> {
    let text = |text: &str| -> Option<&'a str> { arena.alloc_str(text).ok().map(|copy| &*copy) };
    let edge = |edge: &Edge<&str>| Some(Edge { pop: text(edge.pop)?, latency: edge.latency });
    let (mut edges, mut tags) = (Few::default(), Few::default());
    for seen in seen.edges.items() {
        edges.push(edge(seen)?)?;
    }
    edges.push(edge(&ADDED)?)?;
    for &tag in seen.tags.items() {
        tags.push(text(tag)?)?;
    }
    let drm = Drm {
        system: text(seen.drm.system)?,
        key_id: text(seen.drm.key_id)?,
        license_url: text(seen.drm.license_url)?,
        header: text(seen.drm.header)?,
    };
    let (stream_id, codec) = (text(seen.stream_id)?, text(seen.codec)?);
    let Record { sequence, duration, bitrate, .. } = *seen;
    let record = Record { stream_id, sequence, duration, bitrate, codec, drm, edges, tags };
    arena.alloc(record).ok().map(|record| &*record)
}

/// What answers the requests of one thread.
pub struct Handler<'a> {
    /// The texts of the requests, in a ring.
    texts: &'a [Vec<u8>],
    next: usize,
    way: Way,
    /// The last answer.
    out: Vec<u8>,
}

enum Way {
    Parsed,
    Value,
    /// As many slots as there are texts.
    Pooled(Vec<Slot>),
    Arena(RequestArena),
    Less,
    Lazy,
}

impl<'a> Handler<'a> {
    pub fn new(variant: &str, texts: &'a [Vec<u8>]) -> anyhow::Result<Handler<'a>> {
        let way = match variant {
            "all" => Way::Parsed,
            "value" => Way::Value,
            "pooled" => Way::Pooled(texts.iter().map(|_| Slot::default()).collect()),
            "arena" => Way::Arena(RequestArena::new(ARENA)?),
            "less" => Way::Less,
            "lazy" => Way::Lazy,
            other => bail!("no variant {other}"),
        };
        Ok(Handler { texts, next: 0, way, out: vec![] })
    }

    /// Parses the next request, appends an edge, and writes the record out.
    pub fn answer(&mut self) -> anyhow::Result<&[u8]> {
        let text = &self.texts[self.next][..];
        match &mut self.way {
            Way::Parsed => {
                let mut record: Owned = serde_json::from_slice(text)?;
                record.edges.push(Edge { pop: ADDED.pop.to_owned(), latency: ADDED.latency });
                self.out = serde_json::to_vec(&record)?;
            }
            Way::Value => {
                let mut record: Value = serde_json::from_slice(text)?;
                let edges = record.get_mut("edges").and_then(Value::as_array_mut).context("no edges")?;
                edges.push(json!({ "pop": ADDED.pop, "latency": ADDED.latency }));
                self.out = serde_json::to_vec(&record)?;
            }
            Way::Pooled(slots) => {
                let slot = &mut slots[self.next];
                slot.fill(&serde_json::from_slice(text)?);
                slot.add(&ADDED);
                self.out.clear();
                serde_json::to_writer(&mut self.out, &*slot)?;
            }
            Way::Arena(arena) => {
                arena.reset();
                let record = in_arena(arena, &serde_json::from_slice(text)?).context("the arena is full")?;
                self.out.clear();
                serde_json::to_writer(&mut self.out, record)?;
            }
            Way::Less => {
                let mut needed: Needed<Vec<Edge<String>>> = serde_json::from_slice(text)?;
                needed.edges.push(Edge { pop: ADDED.pop.to_owned(), latency: ADDED.latency });
                let added = serde_json::to_vec(&needed.edges.last())?;
                // The list of the edges is the last but one, and no string has a bracket.
                let mut ends = (0..text.len()).rev().filter(|at| text[*at] == b']');
                let (before, after) = text.split_at(ends.nth(1).context("no end of edges")?);
                self.out = [before, &b","[..], &added[..], after].concat();
            }
            Way::Lazy => {
                let needed: Needed<Few<Edge<&str>>> = serde_json::from_slice(text)?;
                let last = needed.edges.items().last().context("no edges")?;
                // The strings are parts of the text. The list ends after the last edge.
                let from = last.pop.as_ptr() as usize - text.as_ptr() as usize;
                let end = text[from..].iter().position(|byte| *byte == b']').context("no end of edges")?;
                let (before, after) = text.split_at(from + end);
                self.out.clear();
                self.out.extend_from_slice(before);
                self.out.push(b',');
                serde_json::to_writer(&mut self.out, &ADDED)?;
                self.out.extend_from_slice(after);
            }
        }
        self.next = (self.next + 1) % self.texts.len();
        Ok(&self.out)
    }
}

/// The text of a record.
pub fn text(random: &mut Random) -> Vec<u8> {
    let mut letters = |count: usize| -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        (0..count).map(|_| char::from(LETTERS[random.below(LETTERS.len())])).collect()
    };
    let drm = Drm {
        system: "com.widevine.alpha".to_owned(),
        key_id: letters(32),
        license_url: format!("https://license.example.com/{}", letters(24)),
        header: String::new(),
    };
    let (stream_id, tags) = (letters(36), (0..TAGS).map(|_| letters(40)).collect());
    let pops: Vec<String> = (0..EDGES).map(|_| letters(8)).collect();
    let edge = |pop| Edge { pop, latency: random.below(10_000) as f64 / 100.0 };
    let edges = pops.into_iter().map(edge).collect();
    let (sequence, bitrate) = (random.below(1_000_000) as u64, random.below(20_000_000) as u64);
    let codec = "avc1.640028".to_owned();
    let mut record: Owned = Record { stream_id, sequence, duration: 6.006, bitrate, codec, drm, edges, tags };
    let json = |record: &Owned| serde_json::to_vec(record).expect("a record can be written as JSON");
    // The header takes the rest.
    let rest = LENGTH.saturating_sub(json(&record).len());
    record.drm.header = "A".repeat(rest);
    json(&record)
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::allocations;
    use super::*;

    const VARIANTS: [&str; 6] = ["all", "value", "pooled", "arena", "less", "lazy"];

    fn texts() -> Vec<Vec<u8>> {
        let mut random = Random::new(7);
        (0..5).map(|_| text(&mut random)).collect()
    }

    fn parsed(text: &[u8]) -> Value {
        serde_json::from_slice(text).unwrap()
    }

    #[test]
    fn a_record_has_two_kilobytes_and_the_published_fields() {
        let texts = texts();
        assert!(texts[0] != texts[1]);
        for text in &texts {
            assert_eq!(text.len(), LENGTH);
            let record = parsed(text);
            let lengths = ["edges", "tags"].map(|list| record[list].as_array().unwrap().len());
            assert_eq!((lengths, record.as_object().unwrap().len()), ([6, 12], 8));
            assert!(record["drm"].is_object());
        }
    }

    #[test]
    fn every_variant_appends_an_edge_and_changes_nothing_else() {
        let texts = texts();
        for variant in VARIANTS {
            let mut handler = Handler::new(variant, &texts).unwrap();
            // Twice, because slots and the arena are used again.
            for text in texts.iter().chain(&texts) {
                let mut expected = parsed(text);
                expected["edges"].as_array_mut().unwrap().push(json!({ "pop": "added", "latency": 1.5 }));
                assert_eq!(parsed(handler.answer().unwrap()), expected, "{variant}");
            }
        }
        assert!(Handler::new("snake-oil", &texts).is_err());
    }

    #[test]
    fn only_variants_with_strings_of_their_own_allocate() {
        let texts = texts();
        for variant in VARIANTS {
            let mut handler = Handler::new(variant, &texts).unwrap();
            let mut round = || {
                for _ in &texts {
                    handler.answer().unwrap();
                }
            };
            round();
            let calls = allocations(round);
            let each = calls as f64 / texts.len() as f64;
            match variant {
                "all" | "value" => assert!(each >= 20.0, "{variant}: {each}"),
                "less" => assert!((1.0..20.0).contains(&each), "{variant}: {each}"),
                _ => assert_eq!(calls, 0, "{variant}"),
            }
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let list = |length: usize| format!("[{}]", vec!["1"; length].join(","));
        let parsed = |length| serde_json::from_str::<Few<u8>>(&list(length)).map(|few| few.items().len());
        assert_eq!((parsed(0).unwrap(), parsed(16).unwrap()), (0, 16));
        assert!(parsed(17).is_err());
    }
}

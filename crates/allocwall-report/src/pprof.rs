//! Profiles in pprof's format (profile.proto of github.com/google/pprof), compressed as its tools write them.

use super::varint;
use crate::escape::terminal;
use allocwall_model::recording::{Frame, Module};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::HashMap;
use std::io::{self, Write};

/// Name and unit of a value.
pub(crate) type ValueType = (&'static str, &'static str);

pub(crate) enum Label<'a> {
    Text(&'static str, &'a str),
    Number(&'static str, u64),
}

/// A profile in the making: its samples, then its code, then its end.
pub(crate) struct Profile {
    texts: Texts,
    message: Message,
}

impl Profile {
    pub fn new(values: &[ValueType]) -> Profile {
        let mut profile = Profile { texts: Texts::default(), message: Message::default() };
        for (name, unit) in values {
            let value_type = profile.texts.value_type((name, unit));
            profile.message.message(1, value_type);
        }
        profile
    }

    /// `locations` are numbers of [`Profile::code`], leaf first.
    pub fn sample(&mut self, locations: &[u64], values: &[u64], labels: &[Label]) {
        let mut sample = Message::default();
        sample.packed(1, locations);
        // The fields are signed: 2^63 and more would be negative.
        sample.packed(2, &values.iter().map(|value| (*value).min(i64::MAX as u64)).collect::<Vec<_>>());
        for label in labels {
            let mut message = Message::default();
            match label {
                Label::Text(key, value) => {
                    message.number(1, self.texts.number(key));
                    message.number(2, self.texts.number(value));
                }
                Label::Number(key, value) => {
                    message.number(1, self.texts.number(key));
                    message.number(3, *value);
                }
            }
            sample.message(3, message);
        }
        self.message.message(2, sample);
    }

    /// The files, numbered from 1. The locations: one for each frame, numbered from 1, then one for each of `others`, which have a
    /// name alone.
    pub fn code(&mut self, modules: &[Module], frames: &[(&Frame, String)], others: &[String]) {
        let Profile { texts, message } = self;
        // pprof calls the first one the program.
        let (files, kernel): (Vec<_>, Vec<_>) =
            (1_u64..).zip(modules).partition(|(_, module)| !module.path.starts_with('['));
        for (number, module) in files.into_iter().chain(kernel) {
            let mut mapping = Message::default();
            mapping.number(1, number);
            mapping.number(5, texts.number(&module.path));
            mapping.number(6, texts.number(module.build_id.as_deref().unwrap_or_default()));
            // The names are here: pprof does not read the file.
            mapping.number(7, 1);
            message.message(3, mapping);
        }
        let mut functions: HashMap<(&str, &str), u64> = HashMap::new();
        let mut named: Vec<(u64, &str, &str)> = vec![];
        let frames = frames.iter().map(|(frame, name)| (Some(*frame), name));
        for (number, (frame, name)) in (1_u64..).zip(frames.chain(others.iter().map(|name| (None, name)))) {
            let known =
                frame.and_then(|frame| frame.module).filter(|index| (*index as usize) < modules.len());
            let path = known.map_or("", |index| modules[index as usize].path.as_str());
            let next = functions.len() as u64 + 1;
            let function = *functions.entry((name, path)).or_insert(next);
            if function == next {
                named.push((function, name, path));
            }
            let mut line = Message::default();
            line.number(1, function);
            let mut location = Message::default();
            location.number(1, number);
            if let Some(frame) = frame {
                location.number(2, known.map_or(0, |module| u64::from(module) + 1));
                location.number(3, frame.offset);
            }
            location.message(4, line);
            message.message(4, location);
        }
        for (number, name, path) in named {
            let mut function = Message::default();
            function.number(1, number);
            // Without a system name: pprof would shorten a name that is equal to it as a mangled one of C++.
            function.number(2, texts.number(name));
            function.number(4, texts.number(path));
            message.message(5, function);
        }
    }

    /// The compressed profile. `start_ns` is Unix time, 0 if unknown. `first` is the value that is shown first.
    ///
    /// # Errors
    /// Those of the compressor, which writes to memory.
    pub fn end(
        mut self,
        start_ns: u64,
        length_ns: u64,
        period: u64,
        of: ValueType,
        first: &str,
    ) -> io::Result<Vec<u8>> {
        let of = self.texts.value_type(of);
        self.message.number(9, start_ns);
        self.message.number(10, length_ns);
        self.message.message(11, of);
        self.message.number(12, period);
        self.message.number(14, self.texts.number(first));
        for text in &self.texts.list {
            self.message.bytes(6, text.as_bytes());
        }
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&self.message.0)?;
        gzip.finish()
    }
}

/// The table of texts, which are made safe. Its first one is empty.
struct Texts {
    numbers: HashMap<String, u64>,
    list: Vec<String>,
}

impl Default for Texts {
    fn default() -> Texts {
        Texts { numbers: HashMap::from([(String::new(), 0)]), list: vec![String::new()] }
    }
}

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(known) = self.numbers.get(text) {
            return *known;
        }
        let number = self.list.len() as u64;
        self.numbers.insert(text.to_owned(), number);
        self.list.push(terminal(text));
        number
    }

    fn value_type(&mut self, (name, unit): (&str, &str)) -> Message {
        let mut value_type = Message::default();
        value_type.number(1, self.number(name));
        value_type.number(2, self.number(unit));
        value_type
    }
}

/// A message in the encoding of protocol buffers: each field is its number and type, then a varint or a length and bytes.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, value: u64) {
        varint::push(&mut self.0, value);
    }

    /// 0 is the default, which is left out.
    fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint((field << 3) | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, message: Message) {
        self.bytes(field, &message.0);
    }

    fn packed(&mut self, field: u64, values: &[u64]) {
        let mut list = Message::default();
        values.iter().for_each(|value| list.varint(*value));
        self.message(field, list);
    }
}

/// Reads profiles, for tests.
#[cfg(test)]
pub(crate) mod reading {
    use flate2::read::GzDecoder;
    use std::io::Read;

    pub fn decoded(profile: &[u8]) -> Vec<u8> {
        let mut plain = vec![];
        GzDecoder::new(profile).read_to_end(&mut plain).unwrap();
        plain
    }

    /// The fields of a message: number, value, bytes.
    pub fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
        let mut fields = vec![];
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let value = varint(&mut bytes);
            let body = match key & 7 {
                0 => &[][..],
                2 => bytes.split_off(..value as usize).expect("as long as it says"),
                other => panic!("type {other}"),
            };
            fields.push((key >> 3, value, body));
        }
        fields
    }

    pub fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = *bytes.split_off_first().expect("a varint ends");
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    pub fn unpacked(mut bytes: &[u8]) -> Vec<u64> {
        let mut values = vec![];
        while !bytes.is_empty() {
            values.push(varint(&mut bytes));
        }
        values
    }

    /// The bodies of all fields with this number.
    pub fn bodies(message: &[u8], number: u64) -> Vec<&[u8]> {
        fields(message).into_iter().filter(|field| field.0 == number).map(|field| field.2).collect()
    }

    pub fn value(message: &[u8], number: u64) -> u64 {
        fields(message).iter().find(|field| field.0 == number).map_or(0, |field| field.1)
    }
}

#[cfg(test)]
mod tests {
    use super::reading::varint;
    use super::*;

    #[test]
    fn varints_are_those_of_protocol_buffers() {
        // The example of the encoding's description: 150 in field 1.
        let mut message = Message::default();
        message.number(1, 150);
        message.number(2, 0);
        assert_eq!(message.0, [0x08, 0x96, 0x01]);
        let mut message = Message::default();
        message.packed(4, &[3, 270, 86_942]);
        assert_eq!(message.0, [0x22, 0x06, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05]);
        let mut largest = Message::default();
        largest.varint(u64::MAX);
        assert_eq!((largest.0.len(), varint(&mut &largest.0[..])), (10, u64::MAX));
    }
}

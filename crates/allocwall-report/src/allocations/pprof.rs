//! A profile in pprof's format (profile.proto of github.com/google/pprof), compressed as its tools write it:
//! `go tool pprof FILE`.
//!
//! A sample is a call site of a process, with the label `pid`. Its values are estimates. The number of blocks in use is their
//! bytes divided by the site's mean size.

use super::{label, module_of};
use allocwall_model::allocations::{Counted, Site};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::HashMap;
use std::io::{self, Write};

/// Name and unit of each value of a sample. The first one is what Go's heap profiles call the same.
const VALUES: [(&str, &str); 4] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
];

/// The compressed profile.
///
/// # Errors
/// Those of the compressor, which writes to memory.
pub fn profile(counted: &Counted) -> io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&encoded(counted))?;
    gzip.finish()
}

fn encoded(counted: &Counted) -> Vec<u8> {
    let mut texts = Texts::default();
    let mut profile = Message::default();
    for (name, unit) in VALUES {
        profile.message(1, value_type(&mut texts, name, unit));
    }
    // Location and function of a site without a stack.
    let none = counted.frames.len() as u64 + 1;
    for process in &counted.processes {
        for site in process.samples.iter().flat_map(|samples| &samples.sites) {
            let known = site.stack.as_ref().ok().and_then(|stack| counted.stacks.get(*stack as usize));
            let frames = known.map(|stack| &stack.frames[..]).unwrap_or_default();
            let in_table = frames.iter().filter(|frame| (**frame as usize) < counted.frames.len());
            let mut locations: Vec<u64> = in_table.map(|frame| u64::from(*frame) + 1).collect();
            if locations.is_empty() {
                locations.push(none);
            }
            let mut label = Message::default();
            label.number(1, texts.number("pid"));
            label.number(3, u64::from(process.pid.unsigned_abs()));
            let mut sample = Message::default();
            sample.packed(1, &locations);
            sample.packed(2, &values(site));
            sample.message(3, label);
            profile.message(2, sample);
        }
    }
    mappings(counted, &mut texts, &mut profile);
    locations(counted, &mut texts, &mut profile);
    let distance = counted.processes.iter().find_map(|process| Some(process.samples.as_ref().ok()?.distance));
    profile.number(10, counted.length_ns);
    profile.message(11, value_type(&mut texts, "space", "bytes"));
    profile.number(12, distance.unwrap_or(0));
    // What is shown first.
    profile.number(14, texts.number("alloc_objects"));
    for text in &texts.list {
        profile.bytes(6, text.as_bytes());
    }
    profile.0
}

fn value_type(texts: &mut Texts, name: &str, unit: &str) -> Message {
    let mut value_type = Message::default();
    value_type.number(1, texts.number(name));
    value_type.number(2, texts.number(unit));
    value_type
}

/// In the order of [`VALUES`].
fn values(site: &Site) -> [u64; 4] {
    let (calls, bytes, live) = (site.calls.point, site.bytes.point, site.live_bytes.point);
    let live_blocks = if bytes > 0.0 { live / bytes * calls } else { 0.0 };
    // The fields are signed: 2^63 and more would be negative. A cast of a float saturates.
    [calls, bytes, live_blocks, live].map(|value| (value.round() as u64).min(i64::MAX as u64))
}

/// The files, numbered from 1.
fn mappings(counted: &Counted, texts: &mut Texts, profile: &mut Message) {
    for (number, module) in (1_u64..).zip(&counted.modules) {
        let mut mapping = Message::default();
        mapping.number(1, number);
        mapping.number(5, texts.number(&module.path));
        mapping.number(6, texts.number(module.build_id.as_deref().unwrap_or_default()));
        // The names are here: pprof does not read the file.
        mapping.number(7, 1);
        profile.message(3, mapping);
    }
}

/// A location for each frame, numbered from 1, one for sites without a stack, and their functions.
fn locations(counted: &Counted, texts: &mut Texts, profile: &mut Message) {
    let mut functions: HashMap<(String, &str), u64> = HashMap::new();
    let mut named: Vec<(u64, String, &str)> = vec![];
    let frames = counted.frames.iter().map(Some).chain([None]);
    for (number, frame) in (1_u64..).zip(frames) {
        let module = frame.and_then(|frame| module_of(counted, frame));
        let path = module.map_or("", |module| module.path.as_str());
        let name = frame.map_or("[no stack]".to_owned(), |frame| label(module, frame));
        let next = functions.len() as u64 + 1;
        let function = *functions.entry((name.clone(), path)).or_insert(next);
        if function == next {
            named.push((function, name, path));
        }
        let mut line = Message::default();
        line.number(1, function);
        let mut location = Message::default();
        location.number(1, number);
        if let Some(frame) = frame {
            let known = frame.module.filter(|_| module.is_some());
            location.number(2, known.map_or(0, |module| u64::from(module) + 1));
            location.number(3, frame.offset);
        }
        location.message(4, line);
        profile.message(4, location);
    }
    for (number, name, path) in named {
        let mut function = Message::default();
        function.number(1, number);
        function.number(2, texts.number(&name));
        function.number(3, texts.number(&name));
        function.number(4, texts.number(path));
        profile.message(5, function);
    }
}

/// The table of texts. Its first one is empty.
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
        self.list.push(text.to_owned());
        number
    }
}

/// A message in the encoding of protocol buffers: each field is its number and type, then a varint or a length and bytes.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
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

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use allocwall_model::units::{Absence, Reason};
    use flate2::read::GzDecoder;
    use std::io::Read;

    /// The fields of a message: number, value, bytes.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
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

    fn varint(bytes: &mut &[u8]) -> u64 {
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

    fn unpacked(mut bytes: &[u8]) -> Vec<u64> {
        let mut values = vec![];
        while !bytes.is_empty() {
            values.push(varint(&mut bytes));
        }
        values
    }

    fn decoded(counted: &Counted) -> Vec<u8> {
        let mut plain = vec![];
        GzDecoder::new(&profile(counted).unwrap()[..]).read_to_end(&mut plain).unwrap();
        plain
    }

    /// The bodies of all fields with this number.
    fn bodies(message: &[u8], number: u64) -> Vec<&[u8]> {
        fields(message).into_iter().filter(|field| field.0 == number).map(|field| field.2).collect()
    }

    fn value(message: &[u8], number: u64) -> u64 {
        fields(message).iter().find(|field| field.0 == number).map_or(0, |field| field.1)
    }

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

    #[test]
    fn every_reference_has_its_entry() {
        let counted = run().counted;
        let plain = decoded(&counted);
        let texts = bodies(&plain, 6);
        let text = |number: u64| std::str::from_utf8(texts[number as usize]).unwrap();
        assert_eq!(text(0), "");
        let types: Vec<(&str, &str)> =
            bodies(&plain, 1).iter().map(|t| (text(value(t, 1)), text(value(t, 2)))).collect();
        assert_eq!(types, VALUES);
        assert_eq!(text(value(&plain, 14)), "alloc_objects");
        let numbers = |field| -> Vec<u64> { bodies(&plain, field).iter().map(|m| value(m, 1)).collect() };
        let (mappings, places, functions) = (numbers(3), numbers(4), numbers(5));
        assert_eq!(mappings, [1, 2, 3]);
        for place in bodies(&plain, 4) {
            let mapping = value(place, 2);
            assert!(mapping == 0 || mappings.contains(&mapping));
            assert!(functions.contains(&value(bodies(place, 4)[0], 1)));
        }
        let samples = bodies(&plain, 2);
        let sites = counted.processes.iter().flat_map(|p| &p.samples).flat_map(|s| &s.sites);
        assert_eq!(samples.len(), sites.count());
        for sample in &samples {
            let of_sample = unpacked(bodies(sample, 1)[0]);
            assert!(!of_sample.is_empty() && of_sample.iter().all(|place| places.contains(place)));
            assert_eq!(unpacked(bodies(sample, 2)[0]).len(), VALUES.len());
            assert_eq!(text(value(bodies(sample, 3)[0], 1)), "pid");
        }
        let names: Vec<&str> = bodies(&plain, 5).iter().map(|f| text(value(f, 2))).collect();
        assert!(names.contains(&"parse_record") && names.contains(&"[no stack]"), "{names:?}");
    }

    #[test]
    fn values_are_those_of_the_site_and_hostile_ones_saturate() {
        let mut counted = run().counted;
        let samples = counted.processes[0].samples.as_mut().unwrap();
        samples.sites.truncate(1);
        let site = &mut samples.sites[0];
        (site.calls.point, site.bytes.point, site.live_bytes.point) = (1000.0, 64_000.0, 640.0);
        let first = |counted: &Counted| unpacked(bodies(bodies(&decoded(counted), 2)[0], 2)[0]);
        assert_eq!(first(&counted), [1000, 64_000, 10, 640]);
        let site = &mut counted.processes[0].samples.as_mut().unwrap().sites[0];
        (site.calls.point, site.bytes.point, site.live_bytes.point) = (f64::MAX, 0.0, f64::NAN);
        assert_eq!(first(&counted), [i64::MAX as u64, 0, 0, 0]);
    }

    #[test]
    fn a_profile_without_samples_or_with_wrong_indices_is_whole() {
        let mut counted = run().counted;
        counted.stacks.iter_mut().for_each(|stack| stack.frames = vec![9999]);
        counted.frames.iter_mut().for_each(|frame| frame.module = Some(9999));
        let plain = decoded(&counted);
        let none = counted.frames.len() as u64 + 1;
        assert!(bodies(&plain, 2).iter().all(|sample| unpacked(bodies(sample, 1)[0]) == [none]));
        assert!(bodies(&plain, 4).iter().all(|place| value(place, 2) == 0));
        for process in &mut counted.processes {
            process.samples = Err(Absence::new(Reason::Disabled, "sampling is off"));
        }
        assert!(bodies(&decoded(&counted), 2).is_empty());
    }
}

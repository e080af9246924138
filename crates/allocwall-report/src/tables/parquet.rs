//! A table as Parquet (github.com/apache/parquet-format): one row group, one page for each column, plain values, gzip. The footer's key
//! `unit.COLUMN` has the unit of a column.
//!
//! Written by hand, because the format needs little for this, and the usual crate would add more to the program than all reports.

use super::{Cells, Table};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};

const MAGIC: &[u8] = b"PAR1";
/// Numbers of the format's Thrift definition (parquet.thrift).
const FORMAT: i64 = 1;
const INT64: i64 = 2;
const DOUBLE: i64 = 5;
const BYTE_ARRAY: i64 = 6;
const OPTIONAL: i64 = 1;
const UTF8: i64 = 0;
const PLAIN: i64 = 0;
const RLE: i64 = 3;
const GZIP: i64 = 2;
const DATA_PAGE: i64 = 0;

/// # Errors
/// Those of the compressor, which writes to memory.
pub fn file(table: &Table, created_by: &str) -> io::Result<Vec<u8>> {
    let mut file = MAGIC.to_vec();
    let mut chunks = vec![];
    for column in &table.columns {
        chunks.push(page(&mut file, &column.cells, table.rows)?);
    }
    let mut footer = Struct::default();
    footer.whole(1, Kind::I32, FORMAT);
    let mut root = Struct::default();
    root.text(4, "table");
    root.whole(5, Kind::I32, table.columns.len() as i64);
    let leaves = table.columns.iter().map(|column| {
        let mut leaf = Struct::default();
        leaf.whole(1, Kind::I32, kind(&column.cells));
        leaf.whole(3, Kind::I32, OPTIONAL);
        leaf.text(4, column.name);
        if matches!(column.cells, Cells::Text(_)) {
            leaf.whole(6, Kind::I32, UTF8);
        }
        leaf
    });
    footer.structs(2, [root].into_iter().chain(leaves).collect());
    footer.whole(3, Kind::I64, table.rows as i64);
    let bytes = chunks.iter().map(|chunk| chunk.plain_bytes).sum();
    let columns = table.columns.iter().zip(&chunks).map(|(column, chunk)| {
        let mut meta = Struct::default();
        meta.whole(1, Kind::I32, kind(&column.cells));
        meta.list(2, Kind::I32, [PLAIN, RLE].map(zigzag).to_vec());
        meta.list(3, Kind::Binary, vec![binary(column.name)]);
        meta.whole(4, Kind::I32, GZIP);
        meta.whole(5, Kind::I64, table.rows as i64);
        meta.whole(6, Kind::I64, chunk.plain_bytes);
        meta.whole(7, Kind::I64, chunk.bytes);
        meta.whole(9, Kind::I64, chunk.at);
        let mut of_column = Struct::default();
        of_column.whole(2, Kind::I64, chunk.at);
        of_column.inner(3, meta);
        of_column
    });
    let mut group = Struct::default();
    group.structs(1, columns.collect());
    group.whole(2, Kind::I64, bytes);
    group.whole(3, Kind::I64, table.rows as i64);
    footer.structs(4, vec![group]);
    let units = table.columns.iter().filter(|column| !column.unit.is_empty()).map(|column| {
        let mut pair = Struct::default();
        pair.text(1, &format!("unit.{}", column.name));
        pair.text(2, column.unit);
        pair
    });
    footer.structs(5, units.collect());
    footer.text(6, created_by);
    let footer = footer.end();
    file.extend_from_slice(&footer);
    file.extend_from_slice(&(footer.len() as u32).to_le_bytes());
    file.extend_from_slice(MAGIC);
    Ok(file)
}

fn kind(cells: &Cells) -> i64 {
    match cells {
        Cells::Whole(_) => INT64,
        Cells::Real(_) => DOUBLE,
        Cells::Text(_) => BYTE_ARRAY,
    }
}

/// Where the page of a column is, and its sizes with the header.
struct Chunk {
    at: i64,
    plain_bytes: i64,
    bytes: i64,
}

fn page(file: &mut Vec<u8>, cells: &Cells, rows: usize) -> io::Result<Chunk> {
    let mut values = vec![];
    let present: Vec<bool> = match cells {
        Cells::Whole(cells) => {
            cells.iter().flatten().for_each(|value| values.extend_from_slice(&value.to_le_bytes()));
            cells.iter().map(Option::is_some).collect()
        }
        Cells::Real(cells) => {
            cells.iter().flatten().for_each(|value| values.extend_from_slice(&value.to_le_bytes()));
            cells.iter().map(Option::is_some).collect()
        }
        Cells::Text(cells) => {
            for text in cells.iter().flatten() {
                values.extend_from_slice(&(text.len() as u32).to_le_bytes());
                values.extend_from_slice(text.as_bytes());
            }
            cells.iter().map(Option::is_some).collect()
        }
    };
    let levels = levels(&present);
    let mut plain = (levels.len() as u32).to_le_bytes().to_vec();
    plain.extend_from_slice(&levels);
    plain.append(&mut values);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&plain)?;
    let packed = gzip.finish()?;
    let mut data = Struct::default();
    data.whole(1, Kind::I32, rows as i64);
    data.whole(2, Kind::I32, PLAIN);
    data.whole(3, Kind::I32, RLE);
    data.whole(4, Kind::I32, RLE);
    let mut header = Struct::default();
    header.whole(1, Kind::I32, DATA_PAGE);
    header.whole(2, Kind::I32, plain.len() as i64);
    header.whole(3, Kind::I32, packed.len() as i64);
    header.inner(5, data);
    let header = header.end();
    let at = file.len() as i64;
    file.extend_from_slice(&header);
    file.extend_from_slice(&packed);
    Ok(Chunk {
        at,
        plain_bytes: (header.len() + plain.len()) as i64,
        bytes: (header.len() + packed.len()) as i64,
    })
}

/// The definition levels: 1 for a value, 0 for none, as runs of equal ones.
fn levels(present: &[bool]) -> Vec<u8> {
    let mut runs = vec![];
    for run in present.chunk_by(|a, b| a == b) {
        runs.extend(varint((run.len() as u64) << 1));
        runs.push(run[0].into());
    }
    runs
}

/// Thrift's compact protocol: types of fields.
#[derive(Clone, Copy)]
enum Kind {
    I32 = 5,
    I64 = 6,
    Binary = 8,
    List = 9,
    Struct = 12,
}

/// A struct in Thrift's compact protocol. Fields are added in the order of their numbers.
#[derive(Default)]
struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

impl Struct {
    fn field(&mut self, number: u8, kind: Kind) {
        self.bytes.push((number - self.last) << 4 | kind as u8);
        self.last = number;
    }

    fn whole(&mut self, number: u8, kind: Kind, value: i64) {
        self.field(number, kind);
        self.bytes.extend(zigzag(value));
    }

    fn text(&mut self, number: u8, text: &str) {
        self.field(number, Kind::Binary);
        self.bytes.extend(binary(text));
    }

    fn inner(&mut self, number: u8, inner: Struct) {
        self.field(number, Kind::Struct);
        self.bytes.extend(inner.end());
    }

    /// `items` are encoded already.
    fn list(&mut self, number: u8, kind: Kind, items: Vec<Vec<u8>>) {
        /// Longer lists have their length behind the type.
        const SHORT: usize = 15;
        self.field(number, Kind::List);
        self.bytes.push((items.len().min(SHORT) as u8) << 4 | kind as u8);
        if items.len() >= SHORT {
            self.bytes.extend(varint(items.len() as u64));
        }
        items.into_iter().for_each(|item| self.bytes.extend(item));
    }

    fn structs(&mut self, number: u8, items: Vec<Struct>) {
        self.list(number, Kind::Struct, items.into_iter().map(Struct::end).collect());
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn varint(value: u64) -> Vec<u8> {
    let mut bytes = vec![];
    crate::varint::push(&mut bytes, value);
    bytes
}

fn zigzag(value: i64) -> Vec<u8> {
    varint(((value << 1) ^ (value >> 63)) as u64)
}

fn binary(text: &str) -> Vec<u8> {
    let mut bytes = varint(text.len() as u64);
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::tests::all;
    use super::*;

    #[test]
    fn numbers_are_those_of_the_protocol() {
        // The examples of Thrift's description of the compact protocol.
        assert_eq!([zigzag(0), zigzag(-1), zigzag(1), zigzag(-2)], [[0], [1], [2], [3]]);
        assert_eq!(varint(50399), [0xdf, 0x89, 0x03]);
        assert_eq!(zigzag(i64::MIN).len(), 10);
    }

    #[test]
    fn levels_are_runs() {
        assert_eq!(levels(&[true; 200]), [0x90, 0x03, 1]);
        assert_eq!(levels(&[true, false, false]), [2, 1, 4, 0]);
        assert!(levels(&[]).is_empty());
    }

    #[test]
    fn the_footer_is_where_the_end_says() {
        for (name, table) in all() {
            let file = file(&table, "test").unwrap();
            let end = file.len() - 8;
            assert!(file.starts_with(MAGIC) && file.ends_with(MAGIC), "{name}");
            let footer = u32::from_le_bytes(file[end..end + 4].try_into().unwrap()) as usize;
            // Its first field is the version: field 1, type i32, 1.
            assert_eq!(file[end - footer..end - footer + 2], [0x15, 0x02], "{name}");
            assert_eq!(file, super::file(&table, "test").unwrap(), "the same table gives the same bytes");
        }
    }
}

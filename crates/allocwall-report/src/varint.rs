//! Numbers of 7 bits a byte, the lowest first, as protocol buffers and Thrift have them.

pub fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

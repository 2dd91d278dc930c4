//! Protobuf's wire format: a reader that borrows from the input, and writers for the few forms that
//! we emit.
//!
//! Not prost: what moves has to stay byte for byte, unknown fields included, and prost drops them
//! on decoding. It would also copy each graph into owned structures, and need TensorFlow's `.proto`
//! files and `protoc` at build time (docs/decisions/0012-a-protobuf-reader-of-our-own.md).

use mx_rec_kernels::{Error, Result};

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// Its number, at least 1.
    pub number: u32,
    /// What it holds.
    pub value: Value<'a>,
    /// All bytes of the field, tag included.
    pub raw: &'a [u8],
}

/// The content of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Integers, booleans, enums.
    Varint(u64),
    /// Strings, bytes, messages, packed numbers.
    Bytes(&'a [u8]),
    /// Numbers of a fixed width: four or eight bytes, little-endian.
    Fixed(&'a [u8]),
}

impl<'a> Field<'a> {
    /// The bytes of a string or message; `None` if the field has another wire type, which protobuf
    /// readers skip.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        match self.value {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The number; `None` if the field has another type.
    pub fn varint(&self) -> Option<u64> {
        match self.value {
            Value::Varint(number) => Some(number),
            _ => None,
        }
    }

    /// The text; `None` if the field has another type.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not UTF-8.
    pub fn text(&self, message: &'static str) -> Result<Option<&'a str>> {
        match self.bytes() {
            None => Ok(None),
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(invalid(message, "a text is not UTF-8").with("field", self.number)),
            },
        }
    }
}

/// Iterates over the fields of one message in order. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    message: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Reads `bytes` as a message; `message` is its type's name, for errors.
    pub fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            message,
            rest: bytes,
        }
    }

    fn read(&mut self) -> Result<Field<'a>> {
        let start = self.rest;
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).unwrap_or(0);
        if number == 0 || number >= 1 << 29 {
            return Err(invalid(
                self.message,
                "the number of a field is out of range",
            ));
        }
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed(self.take(8)?),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed(self.take(4)?),
            kind => {
                let why = "a field is of a type that is not in use";
                return Err(invalid(self.message, why)
                    .with("field", number)
                    .with("type", kind));
            }
        };
        let used = start.len() - self.rest.len();
        let raw = start.get(..used).unwrap_or(start);
        Ok(Field { number, value, raw })
    }

    fn varint(&mut self) -> Result<u64> {
        let mut number = 0_u64;
        for (at, &byte) in self.rest.iter().take(10).enumerate() {
            if at == 9 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.rest = self.rest.get(at + 1..).unwrap_or_default();
                return Ok(number);
            }
        }
        Err(invalid(self.message, "a number does not end"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let split = usize::try_from(length)
            .ok()
            .and_then(|length| self.rest.split_at_checked(length));
        match split {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(invalid(self.message, "a field is longer than what is left")
                .with("length", length)
                .with("left", self.rest.len())),
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// The bytes of a field of a message, empty if there are none. Of several the last counts, as in
/// protobuf.
///
/// # Errors
/// `InvalidArgument` if the bytes are no such message.
pub(super) fn last_bytes<'a>(
    message: &'static str,
    bytes: &'a [u8],
    number: u32,
) -> Result<&'a [u8]> {
    let mut found: &[u8] = &[];
    for field in Fields::new(message, bytes) {
        let field = field?;
        if field.number == number {
            found = field.bytes().unwrap_or(found);
        }
    }
    Ok(found)
}

fn invalid(message: &'static str, why: &str) -> Error {
    Error::invalid(format!("the bytes are no {message}: {why}"))
}

/// Appends a varint.
pub fn put_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Appends a field that holds a number.
pub fn put_number(to: &mut Vec<u8>, field: u32, number: u64) {
    put_varint(to, u64::from(field) << 3);
    put_varint(to, number);
}

/// Appends a field that holds bytes, a text or a message.
pub fn put_bytes(to: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(to, u64::from(field) << 3 | 2);
    put_varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<(u32, Value<'_>)>> {
        Fields::new("Thing", bytes)
            .map(|field| field.map(|field| (field.number, field.value)))
            .collect()
    }

    #[test]
    fn what_is_written_is_read_again_with_its_raw_bytes() {
        let mut bytes = Vec::new();
        put_number(&mut bytes, 1, u64::MAX);
        put_bytes(&mut bytes, 2000, &[7; 300]);
        put_number(&mut bytes, 3, 0);
        bytes.extend_from_slice(&[0x25, 1, 2, 3, 4, 0x29, 1, 2, 3, 4, 5, 6, 7, 8]);
        let fields: Result<Vec<Field<'_>>> = Fields::new("Thing", &bytes).collect();
        let fields = fields.unwrap();
        let values: Vec<(u32, Value<'_>)> = fields.iter().map(|f| (f.number, f.value)).collect();
        assert_eq!(
            values,
            [
                (1, Value::Varint(u64::MAX)),
                (2000, Value::Bytes(&[7; 300])),
                (3, Value::Varint(0)),
                (4, Value::Fixed(&[1, 2, 3, 4])),
                (5, Value::Fixed(&[1, 2, 3, 4, 5, 6, 7, 8])),
            ]
        );
        let raw: Vec<u8> = fields.iter().flat_map(|field| field.raw).copied().collect();
        assert_eq!(raw, bytes);
    }

    #[test]
    fn every_fault_is_named_and_ends_the_reading() {
        for (bytes, named) in [
            (&[0x80][..], "a number does not end"),
            (&[0xff; 11][..], "a number does not end"),
            (
                &[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2][..],
                "a number does not end",
            ),
            (&[0x00, 1][..], "out of range"),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0x0f, 1][..], "out of range"),
            (
                &[0x0b, 0x0c][..],
                "type that is not in use (field=1, type=3)",
            ),
            (&[0x0c][..], "(field=1, type=4)"),
            (&[0x0e][..], "(field=1, type=6)"),
            (&[0x0f][..], "(field=1, type=7)"),
            (&[0x0a, 5, 1, 2][..], "(length=5, left=2)"),
            (
                &[0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1][..],
                "(length=18446744073709551615, left=0)",
            ),
            (&[0x0d, 1, 2, 3][..], "(length=4, left=3)"),
            (&[0x09, 1, 2, 3][..], "(length=8, left=3)"),
        ] {
            let found = read(bytes);
            assert_eq!(found.len(), 1, "{bytes:?}");
            let error = found[0].as_ref().unwrap_err().to_string();
            assert!(error.starts_with("the bytes are no Thing: "), "{error}");
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_text_must_be_utf8_and_a_field_of_another_type_is_no_text() {
        let mut bytes = Vec::new();
        put_bytes(&mut bytes, 1, b"\xff");
        put_number(&mut bytes, 1, 3);
        let fields: Vec<Field<'_>> = Fields::new("Thing", &bytes).collect::<Result<_>>().unwrap();
        assert!(fields[0].text("Thing").is_err());
        assert_eq!(fields[1].text("Thing").unwrap(), None);
        assert_eq!((fields[0].varint(), fields[1].varint()), (None, Some(3)));
    }
}

//! The bytes of a record, and its checksum.

/// Bytes before the floats.
///
/// ```text
/// 0         4            8     12    20
/// checksum  generation   row   key   floats ..      all little-endian
/// ```
/// The checksum is the CRC-32C of all that follows it, and of where the record is: a record at a
/// wrong place is not taken for the one that should be there, be it of the same row. The generation
/// is that of the segment, which changes with each use: a record that an older use left there is
/// not taken for the one that should have been written over it.
pub(super) const HEADER: usize = 20;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) directory: usize,
    /// Its first byte in the file.
    pub(super) at: u64,
}

/// The checksum of a record.
fn checksum(record: &[u8], spot: Spot) -> [u8; 4] {
    let sum = crc32c::crc32c(&record[4..]);
    let sum = crc32c::crc32c_append(sum, &(spot.directory as u64).to_le_bytes());
    crc32c::crc32c_append(sum, &spot.at.to_le_bytes()).to_le_bytes()
}

/// Bytes of a record of `width` floats.
pub(crate) fn bytes(width: usize) -> usize {
    HEADER + width * size_of::<f32>()
}

/// What a record says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(super) generation: u32,
    pub(super) row: u32,
    pub(crate) key: i64,
}

/// Writes all of a record but what [`seal`] adds.
pub(crate) fn lay_out(record: &mut [u8], row: u32, key: i64, floats: &[f32]) {
    record[8..12].copy_from_slice(&row.to_le_bytes());
    record[12..HEADER].copy_from_slice(&key.to_le_bytes());
    let words = record[HEADER..].as_chunks_mut().0;
    for (word, float) in words.iter_mut().zip(floats) {
        *word = float.to_le_bytes();
    }
}

/// Completes a record that will be at `spot`, in a use of a segment: its generation and checksum.
pub(super) fn seal(record: &mut [u8], generation: u32, spot: Spot) {
    record[4..8].copy_from_slice(&generation.to_le_bytes());
    let sum = checksum(record, spot);
    record[..4].copy_from_slice(&sum);
}

/// What a record of at least [`HEADER`] bytes says of itself, right or wrong.
pub(crate) fn header(record: &[u8]) -> Header {
    let word = |at: usize| {
        let bytes = record[at..].first_chunk();
        u32::from_le_bytes(*bytes.expect("a record has its header"))
    };
    let key = record[12..].first_chunk();
    Header {
        generation: word(4),
        row: word(8),
        key: i64::from_le_bytes(*key.expect("a record has its header")),
    }
}

/// Whether the checksum of a record that was read at `spot` is right.
pub(super) fn is_whole(record: &[u8], spot: Spot) -> bool {
    record[..4] == checksum(record, spot)
}

/// Copies the floats of a record.
pub(crate) fn floats(record: &[u8], into: &mut [f32]) {
    let words = record[HEADER..].as_chunks().0;
    for (float, &word) in into.iter_mut().zip(words) {
        *float = f32::from_le_bytes(word);
    }
}

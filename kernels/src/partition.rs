//! Which part of a table a key belongs to, where several processes hold one part each.

use crate::{Error, Result};
use std::fmt;

/// Keys are spread over so many buckets, and runs of buckets over the parts: a key keeps its bucket
/// whatever the number of parts is. Checkpoints rely on the number and on the hash.
pub const BUCKETS: u32 = 4096;

/// What stands between a table's name and the number of a part in the name of its directory. Names
/// of tables have no hyphen.
const INFIX: &str = "-part-";
const OF: &str = "-of-";

/// One part of a table that is cut into several by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    part: u32,
    parts: u32,
}

/// The bucket of a key: the 64-bit finalizer of MurmurHash3 (fmix64), modulo the number of buckets.
///
/// Not the hash of the index, which may change from version to version.
#[inline]
fn bucket(key: i64) -> u32 {
    let mut bits = key as u64;
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    ((bits ^ (bits >> 33)) % u64::from(BUCKETS)) as u32
}

/// The part of `parts` (1..=[`BUCKETS`]) that holds `key`.
#[inline]
pub(crate) fn part_of(key: i64, parts: u32) -> u32 {
    bucket(key) * parts / BUCKETS
}

/// Refuses a number of parts that keys cannot be spread over.
///
/// # Errors
/// `InvalidArgument` unless it is 1 to [`BUCKETS`].
pub fn check_parts(parts: u32) -> Result<()> {
    if (1..=BUCKETS).contains(&parts) {
        return Ok(());
    }
    Err(Error::invalid("a table has 1 to 4096 parts").with("parts", parts))
}

impl Partition {
    /// Part number `part` of `parts`.
    ///
    /// # Errors
    /// `InvalidArgument` unless `parts` is 1 to [`BUCKETS`] and `part` is below it.
    pub fn new(part: u32, parts: u32) -> Result<Partition> {
        check_parts(parts)?;
        if part >= parts {
            return Err(
                Error::invalid("the number of a part must be below that of all parts")
                    .with("part", part)
                    .with("parts", parts),
            );
        }
        Ok(Partition { part, parts })
    }

    /// Its number.
    pub fn part(&self) -> u32 {
        self.part
    }

    /// How many parts the table has.
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// Whether the part holds `key`.
    #[inline]
    pub fn holds(&self, key: i64) -> bool {
        part_of(key, self.parts) == self.part
    }

    /// How many of `whole` rows the part may have: those of its buckets, with six standard
    /// deviations and 16 rows more, since keys do not spread evenly, and `whole` at most.
    pub fn room(&self, whole: u64) -> u64 {
        let (first, end) = self.buckets();
        let share = whole as f64 * f64::from(end - first) / f64::from(BUCKETS);
        whole.min((share.ceil() + (6.0 * share.sqrt()).ceil()) as u64 + 16)
    }

    /// Whether a key can be in both parts.
    pub(crate) fn overlaps(&self, other: &Partition) -> bool {
        let (one, two) = (self.buckets(), other.buckets());
        one.0 < two.1 && two.0 < one.1
    }

    /// The first of its buckets, and the one behind its last.
    fn buckets(&self) -> (u32, u32) {
        let first = |part: u32| (part * BUCKETS).div_ceil(self.parts);
        (first(self.part), first(self.part + 1))
    }

    /// The table and the part whose directory `name` is, if it is one of a part.
    pub(crate) fn parse(name: &str) -> Option<(&str, Partition)> {
        let (table, numbers) = name.rsplit_once(INFIX)?;
        let (part, parts) = numbers.split_once(OF)?;
        let number = |digits: &str| -> Option<u32> {
            let plain = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse().ok())?
        };
        let partition = Partition::new(number(part)?, number(parts)?).ok()?;
        Some((table, partition))
    }
}

/// What follows the name of the table in the name of the part's directory.
impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{INFIX}{:05}{OF}{:05}", self.part, self.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_in_one_part_and_parts_are_of_like_size() {
        for parts in [1, 2, 3, 5, 8, 64] {
            let mut counts = vec![0_u32; parts as usize];
            for key in -20_000..20_000_i64 {
                counts[part_of(key * 4096, parts) as usize] += 1;
                let holders = (0..parts)
                    .filter(|&part| Partition { part, parts }.holds(key))
                    .count();
                assert_eq!(holders, 1);
            }
            let mean = 40_000 / parts;
            assert!(
                counts.iter().all(|count| count.abs_diff(mean) < mean / 4),
                "{parts}: {counts:?}"
            );
        }
    }

    /// Checkpoints hold parts by this function: another one would look for keys elsewhere.
    #[test]
    fn the_part_of_a_key_is_the_same_for_ever() {
        let keys = [0, 1, 2, 3, -2, 42, 1 << 40, i64::MAX, i64::MIN];
        let found: Vec<u32> = keys.iter().map(|&key| part_of(key, 4096)).collect();
        assert_eq!(
            found,
            [0, 2860, 999, 2254, 43, 2508, 758, 3562, 1171],
            "the format of checkpoints changed"
        );
    }

    #[test]
    fn as_many_keys_as_the_table_may_have_find_room_in_each_part() {
        for whole in [1, 10, 400, 5000, 100_000] {
            for parts in [1, 2, 4, 7, 64, 3000, BUCKETS] {
                let rooms: Vec<u64> = (0..parts)
                    .map(|part| Partition { part, parts }.room(whole))
                    .collect();
                for stride in [1, 977, 4096, 1 << 32] {
                    let mut counts = vec![0; parts as usize];
                    for key in 0..whole as i64 {
                        counts[part_of(key * stride, parts) as usize] += 1;
                    }
                    let mut pairs = counts.iter().zip(&rooms);
                    assert!(
                        pairs.all(|(count, room)| count <= room && *room <= whole),
                        "{whole} rows, {parts} parts, stride {stride}"
                    );
                }
            }
        }
        let rooms = (0..16).map(|part| Partition { part, parts: 16 }.room(1_000_000));
        assert_eq!(rooms.sum::<u64>(), 1_024_256);
    }

    #[test]
    fn parts_that_share_a_key_overlap() {
        for parts in 1..9 {
            for others in 1..9 {
                for part in 0..parts {
                    let one = Partition { part, parts };
                    let mut shared = vec![false; others as usize];
                    for key in (0..30_000).filter(|&key| one.holds(key)) {
                        shared[part_of(key, others) as usize] = true;
                    }
                    let overlap: Vec<bool> = (0..others)
                        .map(|part| {
                            one.overlaps(&Partition {
                                part,
                                parts: others,
                            })
                        })
                        .collect();
                    assert_eq!(shared, overlap, "{part} of {parts} among {others}");
                }
            }
        }
    }

    #[test]
    fn a_directory_s_name_tells_table_and_part() {
        let part = Partition::new(3, 12).unwrap();
        let name = format!("users_2{part}");
        assert_eq!(name, "users_2-part-00003-of-00012");
        assert_eq!(Partition::parse(&name), Some(("users_2", part)));
        for name in [
            "users_2",
            "users_2-part-3-of-12",
            "users_2-part-00012-of-00012",
            "users_2-part-00000-of-00000",
            "users_2-part-00001-of-0000x",
        ] {
            assert_eq!(Partition::parse(name), None, "{name}");
        }
    }

    #[test]
    fn numbers_that_are_no_part_are_refused_with_their_values() {
        for (part, parts, named) in [(0, 0, "parts=0"), (2, 2, "part=2"), (0, 4097, "4097")] {
            let text = Partition::new(part, parts).err().map(|one| one.to_string());
            assert!(text.unwrap_or_default().contains(named));
        }
    }
}

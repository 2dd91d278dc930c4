//! Entries of a shard survive whatever length its array gets, where it is or in another place.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// The key that [`hash`] mixes to `hashed`.
fn key_of(hashed: u64) -> i64 {
    let bits = (hashed ^ (hashed >> 32)).wrapping_mul(inverse(0xD6E8_FEB8_6659_FD93));
    let bits = (bits ^ (bits >> 29) ^ (bits >> 58)).wrapping_mul(inverse(0x9FB2_1C65_1E98_DF25));
    (bits ^ (bits >> 32)) as i64
}

/// The inverse of an odd number modulo 2^64, by Newton's iteration.
fn inverse(odd: u64) -> u64 {
    (0..6).fold(odd, |inverse, _| {
        inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)))
    })
}

fn shard(most: usize) -> Shard {
    Shard::new(0.5, most).unwrap()
}

fn filled(n: i64, most: usize) -> Shard {
    let (mut shard, mut tail) = (shard(most), Vec::new());
    for key in 0..n {
        shard.reserve(1, 0, &mut tail).unwrap();
        assert!(shard.insert(key * 977, hash(key * 977), key as u32));
    }
    shard
}

/// Panics unless the shard holds these entries and nothing else, and every bucket knows how many
/// entries went past it.
fn check(shard: &Shard, entries: &HashMap<i64, u32>) {
    let n = shard.buckets.len();
    let mut passed = vec![0; n];
    let mut found = 0;
    for (at, bucket) in shard.buckets.iter().enumerate() {
        for (&key, &row) in bucket
            .keys
            .iter()
            .zip(&bucket.rows)
            .filter(|(&key, _)| key != 0)
        {
            assert_eq!(entries.get(&!key), Some(&!row));
            found += 1;
            let mut from = scale(hash(!key), n);
            while from != at {
                passed[from] += 1;
                from = next(from, n);
            }
        }
    }
    assert_eq!((found, shard.len()), (entries.len(), entries.len()));
    let counted: Vec<u32> = shard.buckets.iter().map(|bucket| bucket.passed).collect();
    assert_eq!(counted, passed);
    for (&key, &row) in entries {
        assert_eq!(shard.row(key, hash(key)), row);
    }
}

#[test]
fn the_keys_of_hashes_are_known() {
    for hashed in [
        0,
        1,
        77,
        u64::MAX,
        u64::MAX - 5,
        1 << 63,
        0x0123_4567_89AB_CDEF,
    ] {
        assert_eq!(hash(key_of(hashed)), hashed);
    }
}

#[test]
fn entries_survive_growth() {
    for most in [0, 30_000] {
        let shard = filled(20_000, most);
        for key in 0..20_000 {
            assert_eq!(shard.row(key * 977, hash(key * 977)), key as u32);
        }
        assert_eq!(shard.row(1, hash(1)), NONE);
        let bytes = shard.bytes() as f64 - 4096.0;
        assert!(bytes / 20_000.0 <= 16.0 * GROWTH + 0.1);
    }
}

#[test]
fn a_shard_with_address_space_grows_where_it_is_over_several_huge_pages() {
    // 12.8 MB when full: six huge pages and small ones.
    let (n, mut tail) = (700_000, Vec::new());
    let (mut shard, mut moved) = (shard(n as usize), Vec::new());
    let mut entries = HashMap::new();
    for key in 0..n {
        shard.reserve(1, 0, &mut tail).unwrap();
        let start = shard.buckets.as_ptr();
        if moved.last().is_none_or(|&(last, _)| last != start) {
            moved.push((start, shard.bytes()));
        }
        assert!(shard.insert(key * 31, hash(key * 31), key as u32));
        entries.insert(key * 31, key as u32);
        if key % 240_000 == 0 {
            check(&shard, &entries);
        }
    }
    check(&shard, &entries);
    let large = moved.iter().filter(|(_, bytes)| *bytes > 64 << 10).count();
    assert!(large <= 3, "{moved:?}");
}

#[test]
fn growth_without_memory_leaves_the_shard_as_it_was() {
    for most in [0, usize::MAX] {
        let (mut shard, mut tail) = (filled(5_000, most), Vec::new());
        let before: Vec<Bucket> = shard.buckets.to_vec();
        for more in [usize::MAX, 1 << 50, 1 << 36] {
            let error = shard.reserve(more, 0, &mut tail).unwrap_err();
            assert_eq!(error.kind(), crate::Kind::ResourceExhausted);
            let same = |(one, other): (&Bucket, &Bucket)| {
                one.keys == other.keys && one.rows == other.rows && one.passed == other.passed
            };
            assert!(shard.buckets.len() == before.len());
            assert!(shard.buckets.iter().zip(&before).all(same));
        }
        shard.reserve(100_000, 0, &mut tail).unwrap();
        assert_eq!(shard.row(977, hash(977)), 1);
    }
}

#[test]
fn removal_leaves_the_others_findable_and_no_trace() {
    let mut shard = filled(5_000, 8_000);
    for key in (0..5_000).filter(|key| key % 3 != 0) {
        assert_eq!(shard.remove(key * 977, hash(key * 977)), key as u32);
        assert_eq!(shard.remove(key * 977, hash(key * 977)), NONE);
    }
    for key in 0..5_000 {
        let expected = if key % 3 == 0 { key as u32 } else { NONE };
        assert_eq!(shard.row(key * 977, hash(key * 977)), expected);
    }
    for key in (0..5_000).filter(|key| key % 3 == 0) {
        shard.remove(key * 977, hash(key * 977));
    }
    assert_eq!(shard.len(), 0);
    assert!(shard.buckets.iter().all(|bucket| bucket.passed == 0));
    shard.shrink(0).unwrap();
    assert!(shard.bytes() <= 128);
}

#[test]
fn keys_with_one_home_go_to_the_next_buckets_and_around_the_end() {
    let mut shard = Shard::new(0.0, 0).unwrap();
    shard.reserve(40, 0, &mut Vec::new()).unwrap();
    for key in 0..30 {
        assert!(shard.insert(key, u64::MAX, key as u32));
        assert!(!shard.insert(key, u64::MAX, 99));
    }
    assert!((0..30).all(|key| shard.row(key, u64::MAX) == key as u32));
    assert_eq!(shard.remove(3, u64::MAX), 3);
    assert_eq!(shard.row(29, u64::MAX), 29);
}

#[test]
fn sizes_are_spread_over_one_growth_step() {
    let sizes: Vec<usize> = (0..8).map(|at| class(1000, f64::from(at) / 8.0)).collect();
    assert!(
        sizes.iter().all(|&size| (1000..=1301).contains(&size)),
        "{sizes:?}"
    );
    assert!(
        sizes.iter().max() > Some(&1200) && sizes.iter().min() < Some(&1080),
        "{sizes:?}"
    );
}

/// Hashes that crowd: near the start, near the end, around one place, anywhere.
fn crowds() -> impl Strategy<Value = Vec<u64>> {
    let crowd = (0..4_u32, any::<u64>(), 1..120_u64).prop_map(|(kind, at, count)| {
        let place = move |nth: u64| match kind {
            0 => nth,
            1 => u64::MAX - nth,
            2 => at.wrapping_add(nth),
            _ => (at ^ nth).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        };
        (0..count).map(place).collect::<Vec<u64>>()
    });
    proptest::collection::vec(crowd, 1..8).prop_map(|crowds| {
        let mut hashes: Vec<u64> = crowds.into_iter().flatten().collect();
        hashes.sort_unstable();
        hashes.dedup();
        // In another order than that of the hashes; -1 is padding.
        hashes.sort_by_key(|&hashed| hashed.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        hashes.retain(|&hashed| key_of(hashed) != -1);
        hashes
    })
}

proptest! {
    #[test]
    fn a_longer_array_holds_the_same_entries(
        hashes in crowds(),
        more in 1..200_usize,
        small in 0..100_usize,
        removed in 1..5_usize,
    ) {
        let mut shard = shard(0);
        let mut tail = Vec::new();
        let mut entries = HashMap::new();
        for (row, &hashed) in hashes.iter().enumerate() {
            shard.reserve(1, 0, &mut tail).unwrap();
            prop_assert!(shard.insert(key_of(hashed), hashed, row as u32));
            entries.insert(key_of(hashed), row as u32);
        }
        for &hashed in hashes.iter().step_by(removed).skip(1) {
            prop_assert!(shard.remove(key_of(hashed), hashed) != NONE);
            entries.remove(&key_of(hashed));
        }
        check(&shard, &entries);
        // As if the array had become longer where it is, its last `small` buckets moved aside.
        let old = shard.buckets.len();
        let kept = old.saturating_sub(small);
        let mut longer = Pages::new(old + more).unwrap();
        longer[..kept].copy_from_slice(&shard.buckets[..kept]);
        let tail: Vec<Bucket> = shard.buckets[kept..].to_vec();
        spread(&mut longer, old, kept, &tail, 0);
        shard.buckets = longer;
        check(&shard, &entries);
        // And it goes on as any other.
        for (&key, &row) in &entries {
            prop_assert!(!shard.insert(key, hash(key), 0));
            prop_assert_eq!(shard.remove(key, hash(key)), row);
        }
        let is_empty = |bucket: &Bucket| bucket.passed == 0 && bucket.keys == [0; 5];
        prop_assert!(shard.buckets.iter().all(is_empty));
    }
}

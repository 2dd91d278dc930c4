//! The hash that spreads keys over shards and buckets.

/// Mixes a key so that its upper bits choose evenly. A bijection: two keys never share all 64 bits.
#[inline(always)]
pub(crate) fn hash(key: i64) -> u64 {
    let mut bits = key as u64;
    bits = (bits ^ (bits >> 32)).wrapping_mul(0x9FB2_1C65_1E98_DF25);
    bits = (bits ^ (bits >> 29)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    bits ^ (bits >> 32)
}

/// Scales the upper bits of a hash to `0..n`, in the order of the hashes.
#[inline(always)]
pub(crate) fn scale(hash: u64, n: usize) -> usize {
    ((u128::from(hash) * n as u128) >> 64) as usize
}

/// The upper `bits` (0..=63) of a hash.
#[inline(always)]
pub(crate) fn top(hash: u64, bits: u32) -> usize {
    ((hash >> 1) >> (63 - bits)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_and_strided_keys_fill_groups_evenly() {
        for stride in [1_i64, 2, 64, 1 << 20, 1 << 32, -7] {
            let mut groups = [0_u32; 64];
            (0..64_000_i64).for_each(|at| groups[top(hash(at.wrapping_mul(stride)), 6)] += 1);
            for (group, &count) in groups.iter().enumerate() {
                assert!(
                    (800..1200).contains(&count),
                    "stride {stride}, group {group}: {count}"
                );
            }
        }
    }

    #[test]
    fn the_scaled_hash_keeps_order_and_range() {
        assert_eq!(scale(0, 7), 0);
        assert_eq!(scale(u64::MAX, 7), 6);
        assert_eq!(scale(1 << 63, 8), 4);
        assert_eq!(top(u64::MAX, 0), 0);
        assert_eq!(top(u64::MAX, 4), 15);
    }
}

//! Internet checksum arithmetic (RFC 1071, incremental update RFC 1624).
//!
//! Sums are taken over 16-bit words *in memory order*: the one's complement sum is the same in
//! either byte order up to a swap (RFC 1071 §2(B)), so words are read and written natively and
//! never swapped.

/// Folds a 32-bit sum into 16 bits with end-around carry.
#[inline(always)]
pub const fn fold(mut sum: u32) -> u16 {
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The checksum field after the words summed in `old` were replaced by those summed in `new`:
/// HC' = ~(~HC + ~m + m') (RFC 1624, equation 3).
#[inline(always)]
pub const fn update(check: u16, old: u32, new: u32) -> u16 {
    let sum = (!check as u32) + (!fold(old) as u32) + fold(new) as u32;
    !fold(sum)
}

/// Sum of the 16-bit words of an octet array in memory order, folded; the length must be a
/// multiple of four. Adding 32-bit words and folding later gives the same sum (RFC 1071 §2(C)).
#[inline(always)]
pub fn sum_words(bytes: &[u8]) -> u32 {
    let mut sum = 0u64;
    let mut i = 0;
    while i + 3 < bytes.len() {
        let word = [bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]];
        sum += u64::from(u32::from_ne_bytes(word));
        i += 4;
    }
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    u32::from(fold(sum as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rfc_1624_example() {
        // RFC 1624 §4: HC = 0xDD2F, m = 0x5555, m' = 0x3285 gives 0x0000.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    proptest! {
        #[test]
        fn incremental_equals_full(
            mut words in proptest::array::uniform20(any::<u8>()),
            index in 0usize..10,
            value in any::<u16>(),
        ) {
            // The first word stands for the checksum field of a packet that is not all zero.
            words[18] |= 1;
            words[0] = 0;
            words[1] = 0;
            let check = !fold(sum_words(&words));
            let at = 2 + (index % 8) * 2;
            let old = u32::from(u16::from_ne_bytes([words[at], words[at + 1]]));
            words[at..at + 2].copy_from_slice(&value.to_ne_bytes());
            prop_assert_eq!(update(check, old, u32::from(value)), !fold(sum_words(&words)));
        }
    }
}

//! How many ACKs one may be made.

/// Gives how many partial ACKs one may be split into that acknowledges `bytes` new bytes of
/// segments of at most `segment` bytes; 1 where it cannot be split.
///
/// A Linux sender drops whole segments only: an ACK that completes none takes no sample and leaves
/// the timer alone (`tcp_clean_rtx_queue`, `tcp_tso_acked` in net/ipv4/tcp_input.c). Any `segment`
/// bytes in a row have the end of at least one segment among them.
pub fn pieces(bytes: u32, segment: u32) -> u32 {
    bytes.checked_div(segment).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::pieces;

    #[test]
    fn an_ack_of_less_than_two_segments_stays_whole() {
        assert_eq!(pieces(0, 1448), 1);
        assert_eq!(pieces(2895, 1448), 1);
        assert_eq!(pieces(2896, 1448), 2);
        assert_eq!(pieces(65_160, 1448), 45);
        assert_eq!(pieces(1000, 0), 1);
    }

    proptest! {
        /// Wherever the sender's segments end, each piece completes one.
        #[test]
        fn each_piece_completes_a_segment(
            lengths in prop::collection::vec(1_u32..=100, 1..40),
        ) {
            let ends: Vec<u32> = lengths
                .iter()
                .scan(0, |end, length| { *end += length; Some(*end) })
                .collect();
            let total = *ends.last().unwrap();
            let count = pieces(total, 100);
            for piece in 0..count {
                // The last one takes the rest.
                let end = if piece + 1 == count { total } else { (piece + 1) * 100 };
                prop_assert!(ends.iter().any(|it| (piece * 100 + 1..=end).contains(it)));
            }
        }
    }
}

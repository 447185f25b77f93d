//! Messages of netfilter's, as pepd-sys reads them: packets that wait for a verdict among them.

use pepd_sys::nfnetlink::{
    Family, Flags, Header, MessageType, Subsystem, attributes, message, messages, replies,
};
use pepd_sys::nfqueue;

/// Reads a datagram. What is read of it lies in it, once, and is read of messages that are written
/// of it as well.
pub fn run(bytes: &[u8]) {
    const HEADER: usize = 16;
    let most = bytes.len() / HEADER;
    assert!(messages(bytes).count() <= most);
    assert!(replies(bytes).count() <= most);
    let packets: Vec<_> = nfqueue::packets(bytes).collect();
    assert!(packets.len() <= most);
    let place = bytes.as_ptr_range();
    for payload in packets.iter().map(|packet| packet.payload) {
        let within = payload.as_ptr_range();
        assert!(payload.is_empty() || place.start <= within.start && within.end <= place.end);
    }
    for read in messages(bytes) {
        let Some(of_message) = read.attributes() else {
            continue;
        };
        let of_message: Vec<_> = of_message.collect();
        let header = Header {
            kind: MessageType::of(Subsystem::QUEUE, 0),
            flags: Flags::NONE,
            sequence: read.sequence,
            family: Family::UNSPECIFIED,
            resource: 0,
        };
        let written = message(header, |written| {
            for (kind, value) in &of_message {
                written.put(*kind, value);
            }
        });
        let again = messages(&written).next();
        let again = again.and_then(|message| message.attributes());
        let again: Vec<_> = again.into_iter().flatten().collect();
        assert_eq!(again, of_message);
        for (_, value) in of_message {
            assert!(attributes::read(value).count() <= value.len() / 4);
        }
    }
}

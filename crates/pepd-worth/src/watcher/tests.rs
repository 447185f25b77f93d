use proptest::prelude::*;

use super::*;
use pepd_packet::Segment;

const CLIENT: &str = "10.1.0.2:4000";
const SERVER: &str = "10.2.0.2:80";

/// A connection, and its clock.
struct Watched {
    watcher: Watcher,
    now: Instant,
    place: [Place; 2],
}

impl Watched {
    fn begin(arm: Arm) -> Self {
        let mut watched = Self {
            watcher: Watcher::new(10),
            now: Instant::now(),
            place: match arm {
                Arm::Unsplit => [Place::Forwarded; 2],
                Arm::Split => [Place::Received, Place::Sent],
            },
        };
        let packet = packet(CLIENT, SERVER, flag::SYN, 999, 0, 0);
        let syn = Passing::read(&packet).unwrap();
        watched.watcher.begin(arm, &syn, watched.now);
        watched
    }

    fn after(&mut self, milliseconds: u64) -> &mut Self {
        self.now += Duration::from_millis(milliseconds);
        self
    }

    /// Has another one begin.
    fn connect(&mut self, client: &str) {
        let syn = packet(client, SERVER, flag::SYN, 1, 0, 0);
        let syn = Passing::read(&syn).unwrap();
        self.watcher.begin(Arm::Split, &syn, self.now);
    }

    /// The client says nothing, and acknowledges.
    fn client(&mut self, flags: u8, acknowledgement: u32) -> Option<Ended> {
        let packet = packet(CLIENT, SERVER, flags | flag::ACK, 1000, acknowledgement, 0);
        self.take(self.place[0], &packet)
    }

    fn server(&mut self, flags: u8, sequence: u32, bytes: usize) -> Option<Ended> {
        let packet = packet(SERVER, CLIENT, flags | flag::ACK, sequence, 1000, bytes);
        self.take(self.place[1], &packet)
    }

    fn take(&mut self, place: Place, packet: &[u8]) -> Option<Ended> {
        let segment = Passing::read(packet).unwrap();
        self.watcher.segment(place, &segment, self.now)
    }
}

fn packet(from: &str, to: &str, flags: u8, sequence: u32, ack: u32, bytes: usize) -> Vec<u8> {
    let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
    let segment = Segment {
        acknowledgement: ack,
        payload: vec![7; bytes],
        ..Segment::new(flags, from, to, sequence)
    };
    segment.packet().unwrap()
}

#[test]
fn a_download_is_timed_from_its_syn_to_the_last_acknowledgement() {
    for arm in [Arm::Split, Arm::Unsplit] {
        // Its numbers begin again at 0 on the way.
        let first = u32::MAX - 500;
        let mut watched = Watched::begin(arm);
        assert_eq!(
            watched
                .after(10)
                .server(flag::SYN, first.wrapping_sub(1), 0),
            None
        );
        assert_eq!(watched.client(0, first), None);
        assert_eq!(watched.after(10).server(0, first, 1000), None);
        // Segments and acknowledgements that nobody saw are between these.
        assert_eq!(
            watched.after(30).client(0, first.wrapping_add(50_000)),
            None
        );
        // What came earlier and is seen later changes nothing.
        assert_eq!(
            watched.after(30).client(0, first.wrapping_add(40_000)),
            None
        );
        let last = first.wrapping_add(60_000);
        assert_eq!(watched.after(20).client(0, last), None);
        assert_eq!(watched.after(5000).server(flag::FIN, last, 0), None);
        let ended = watched.client(flag::FIN, last.wrapping_add(1)).unwrap();
        assert_eq!((ended.arm, ended.bytes), (arm, 60_000));
        assert_eq!(ended.first_byte, Duration::from_millis(20));
        // The time in which nothing was to be said is not counted.
        assert_eq!(ended.whole, Duration::from_millis(100));
        assert_eq!(
            (ended.client.to_string(), ended.server.to_string()),
            (CLIENT.to_owned(), SERVER.to_owned())
        );
        assert!(watched.watcher.is_empty());
    }
}

#[test]
fn what_is_on_the_other_side_of_the_box_is_not_taken_for_it() {
    let mut watched = Watched::begin(Arm::Split);
    watched.server(flag::SYN, 0, 0);
    // The server's segments as they come to the box, and what the box says to it.
    watched.place = [Place::Sent, Place::Received];
    assert_eq!(watched.server(flag::FIN, 1, 1000), None);
    assert_eq!(watched.client(0, 1002), None);
    watched.place = [Place::Forwarded; 2];
    assert_eq!(watched.server(flag::FIN, 1, 1000), None);
    assert_eq!(watched.client(0, 1002), None);
    watched.place = [Place::Received, Place::Sent];
    assert_eq!(watched.after(7).server(flag::FIN, 1, 500), None);
    assert_eq!(watched.client(0, 502).unwrap().bytes, 500);
}

#[test]
fn one_that_is_refused_or_cut_off_says_nothing() {
    for data in [0_u16, 1000] {
        let next = 1 + u32::from(data);
        let mut watched = Watched::begin(Arm::Unsplit);
        watched.server(flag::SYN, 0, 0);
        watched.server(0, 1, data.into());
        watched.client(0, next);
        assert_eq!(watched.server(flag::RST, next, 0), None);
        assert!(watched.watcher.is_empty());
    }
    // One that is reset when it has all is one that has ended.
    let mut watched = Watched::begin(Arm::Unsplit);
    watched.server(flag::SYN, 0, 0);
    watched.server(flag::FIN, 1, 1000);
    assert_eq!(watched.client(flag::RST, 1001).unwrap().bytes, 1000);
}

#[test]
fn a_syn_that_is_repeated_waits_since_the_first() {
    let mut watched = Watched::begin(Arm::Unsplit);
    watched.after(1000);
    let syn = packet(CLIENT, SERVER, flag::SYN, 999, 0, 0);
    let syn = Passing::read(&syn).unwrap();
    watched.watcher.begin(Arm::Unsplit, &syn, watched.now);
    watched.server(flag::SYN, 0, 0);
    watched.after(10).server(flag::FIN, 1, 5);
    let ended = watched.client(0, 7).unwrap();
    assert_eq!(ended.first_byte, Duration::from_millis(1010));
    // An answer to another SYN is none to this one.
    let mut watched = Watched::begin(Arm::Unsplit);
    let other = packet(SERVER, CLIENT, flag::SYN | flag::ACK, 0, 77, 0);
    watched.take(Place::Forwarded, &other);
    watched.server(flag::FIN, 1, 5);
    assert_eq!(watched.client(0, 7), None);
}

#[test]
fn what_nobody_answers_or_says_nothing_makes_room() {
    let mut watched = Watched::begin(Arm::Split);
    for port in 1..100 {
        watched.connect(&format!("10.1.0.2:{port}"));
    }
    // Half is for others.
    assert_eq!(watched.watcher.len(), 5);
    for host in 3..100 {
        watched.connect(&format!("10.1.0.{host}:1"));
    }
    assert_eq!(watched.watcher.len(), 10);
    watched.server(flag::SYN, 0, 0);
    watched.after(61_000);
    watched.watcher.expire(watched.now);
    assert_eq!(
        (watched.watcher.len(), watched.watcher.counts.len()),
        (1, 1)
    );
    watched.after(301_000);
    watched.watcher.expire(watched.now);
    assert!(watched.watcher.is_empty() && watched.watcher.counts.is_empty());
}

proptest! {
    #[test]
    fn whatever_comes_is_survived(
        segments in prop::collection::vec(
            (0usize..3, any::<bool>(), any::<u8>(), any::<u32>(), any::<u32>(), 0usize..100, 0u64..100),
            0..50,
        ),
    ) {
        let mut watched = Watched::begin(Arm::Split);
        watched.server(flag::SYN, 0, 0);
        for (place, is_client, flags, sequence, ack, bytes, wait) in segments {
            let (from, to) = if is_client { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
            let place = [Place::Forwarded, Place::Received, Place::Sent][place];
            watched.after(wait);
            if let Some(ended) = watched.take(place, &packet(from, to, flags, sequence, ack, bytes)) {
                prop_assert!(ended.bytes > 0);
                prop_assert!(watched.watcher.is_empty() && watched.watcher.counts.is_empty());
            }
        }
    }
}

//! The gate's messages against the real kernel, as `nft` then lists them.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use pepd_net::Gate;
use pepd_packet::Source;
use pepd_testbed::{require, wait_until};
use socket2::{Domain, Protocol, Socket, Type};

use super::netns::{Netns, request};
use crate::harness::LIMIT;

struct Box {
    netns: Netns,
    gate: Gate,
}

fn installed() -> Box {
    let netns = Netns::new();
    // Before the table: a gate needs none to be opened.
    let gate = netns.run(|| Gate::open().unwrap());
    let _ = netns.install(&request()).unwrap();
    Box { netns, gate }
}

impl Box {
    fn elements(&self, set: &str) -> String {
        let json = self.netns.nft(&format!("-j list set inet pepd {set}"));
        match json.split_once("\"elem\": ") {
            Some((_, elements)) => elements.to_owned(),
            None => String::new(),
        }
    }
}

const LONG: Duration = Duration::from_secs(500);

#[test]
fn it_opens_renews_and_closes() -> Result<()> {
    require!(root);
    let it = installed();
    assert_eq!(it.elements("gate"), "");
    it.gate.renew(LONG).unwrap();
    let open = it.elements("gate");
    assert!(
        open.contains("\"val\": \"tcp\", \"timeout\": 500"),
        "{open}"
    );

    // An element that is there gets its new time on every kernel.
    it.gate.renew(Duration::from_secs(900)).unwrap();
    it.gate.renew(Duration::from_secs(700)).unwrap();
    for (set, time) in [("gate", 900), ("second_gate", 700)] {
        let renewed = it.elements(set);
        assert!(
            renewed.contains(&format!("\"timeout\": {time}")),
            "{renewed}"
        );
    }

    it.gate.close().unwrap();
    assert_eq!(it.elements("gate") + &it.elements("second_gate"), "");
    it.gate.close().unwrap();
    Ok(())
}

#[test]
fn it_closes_by_itself() -> Result<()> {
    require!(root);
    let it = installed();
    // On a busy machine the time may be over before anybody has looked.
    let mut ttl = Duration::from_millis(1500);
    wait_until(LIMIT, "the gate is seen open", || {
        it.gate.renew(ttl).unwrap();
        ttl *= 2;
        !it.elements("gate").is_empty() || !it.elements("second_gate").is_empty()
    })?;
    wait_until(LIMIT, "the gate closes by itself", || {
        it.elements("gate").is_empty() && it.elements("second_gate").is_empty()
    })
}

#[test]
fn who_reads_what_is_held_is_known_whatever_the_gate_says() -> Result<()> {
    require!(root);
    let it = installed();
    it.gate.attend(LONG).unwrap();
    it.gate.renew(LONG).unwrap();
    it.gate.close().unwrap();
    it.gate.attend(Duration::from_secs(900)).unwrap();
    let readers = it.elements("readers");
    assert!(readers.contains("\"timeout\": 900"), "{readers}");
    assert_eq!(it.elements("gate") + &it.elements("second_gate"), "");
    Ok(())
}

#[test]
fn sources_are_shut_out_and_let_in() -> Result<()> {
    require!(root);
    let it = installed();
    let v4: IpAddr = "10.1.0.9".parse().unwrap();
    let mapped: IpAddr = "::ffff:10.1.0.10".parse().unwrap();
    let v6: IpAddr = "fd00:a::9".parse().unwrap();
    for source in [v4, mapped, v6].map(Source::from) {
        it.gate.shut_out(&[source], LONG).unwrap();
        it.gate.shut_out(&[source], LONG).unwrap();
    }
    let (full4, full6) = (it.elements("full4"), it.elements("full6"));
    assert!(
        full4.contains("\"10.1.0.9\"") && full4.contains("\"10.1.0.10\""),
        "{full4}"
    );
    assert!(full6.contains("\"fd00:a::9\""), "{full6}");
    for source in [v4, mapped, v6].map(Source::from) {
        it.gate.let_in(source).unwrap();
        it.gate.let_in(source).unwrap();
    }
    assert_eq!(it.elements("full4") + &it.elements("full6"), "");
    Ok(())
}

#[test]
fn without_a_table_renewing_fails_and_closing_does_not() -> Result<()> {
    require!(root);
    let it = installed();
    it.netns.nft("delete table inet pepd");
    let error = it.gate.renew(LONG).unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
    it.gate.close().unwrap();
    // The failure leaves no answer behind that a later request could take for its own.
    let _ = it.netns.install(&request()).unwrap();
    it.gate.renew(LONG).unwrap();
    assert_ne!(it.elements("gate"), "");
    Ok(())
}

#[test]
fn threads_may_share_it() -> Result<()> {
    require!(root);
    let it = installed();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let gate = &it.gate;
            scope.spawn(move || {
                for host in 0..50u8 {
                    gate.renew(LONG).unwrap();
                    let source = IpAddr::from([10, 1, thread, host]).into();
                    gate.shut_out(&[source], LONG).unwrap();
                }
            });
        }
    });
    assert_eq!(it.elements("full4").matches("\"val\"").count(), 200);
    Ok(())
}

/// Renewals take the sets in turn: on some kernels a packet may find the one that is renewed
/// without its element, and then finds it in the other.
#[test]
fn a_renewal_never_closes_it() -> Result<()> {
    const RENEWALS: usize = 2000;
    require!(root);
    let it = installed();
    it.gate.renew(LONG).unwrap();
    for line in [
        "counter inet pepd seen",
        "counter inet pepd one",
        "counter inet pepd both",
        "chain inet pepd probe { type filter hook output priority 0; }",
        "rule inet pepd probe meta l4proto != tcp accept",
        "rule inet pepd probe counter name seen",
        "rule inet pepd probe meta l4proto != @gate counter name one",
        "rule inet pepd probe meta l4proto != @gate meta l4proto != @second_gate counter name both",
    ] {
        it.netns.nft(&format!("add {line}"));
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| it.netns.run(|| send_until(&done)));
        }
        for _ in 0..RENEWALS {
            it.gate.renew(LONG).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let counter = |name| it.netns.nft(&format!("list counter inet pepd {name}"));
    println!("{}{}", counter("seen"), counter("one"));
    assert!(!counter("seen").contains("packets 0 "));
    let both = counter("both");
    assert!(both.contains("packets 0 "), "{both}");
    Ok(())
}

/// TCP segments, to nobody.
fn send_until(done: &AtomicBool) {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap();
    let nobody = SocketAddr::from(([127, 0, 0, 1], 0)).into();
    while !done.load(Ordering::Relaxed) {
        // A full queue is as good.
        let _ = socket.send_to(&[0; 20], &nobody);
    }
}

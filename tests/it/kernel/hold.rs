//! The second form of the plan: SYNs that are held.

use anyhow::Result;
use pepd_net::{Action, Handshake, Plan, QueueBackend, Request, find_queue_backend, remove};
use pepd_packet::{MarkMask, MarkValue};
use pepd_testbed::require;

use super::netns::{Netns, queues, request, rule};

pub fn holding(backend: QueueBackend) -> Request {
    let mut request = request();
    request.handshake = Handshake::EndToEnd;
    request.queues = queues(backend);
    request
}

/// With what this kernel has.
fn holding_here(netns: &Netns) -> Request {
    holding(netns.block_on(find_queue_backend).unwrap())
}

#[test]
fn the_plan_with_held_syns() {
    let mut request = holding(QueueBackend::Iptables);
    let mut early = rule(&[], &[], &[443..=443], Action::Split);
    early.handshake = Some(Handshake::Early);
    request.rules = vec![early, rule(&["10.1.9.0/24"], &[], &[], Action::Bypass)];
    insta::assert_snapshot!(Plan::new(&request));
}

#[test]
fn where_nft_has_a_queue_there_is_no_iptables() {
    let shown = Plan::new(&holding(QueueBackend::Nft)).to_string();
    assert!(shown.contains("queue num 7300-7303 bypass"), "{shown}");
    assert!(!shown.contains("iptables"), "{shown}");
    // Nothing is held, and so nothing changes, where every client is answered at once.
    assert!(!Plan::new(&request()).to_string().contains("queue"));
}

#[test]
fn one_rule_is_enough_to_hold() {
    let mut request = request();
    let mut end_to_end = rule(&[], &[], &[22..=22], Action::Split);
    end_to_end.handshake = Some(Handshake::EndToEnd);
    request.rules = vec![end_to_end];
    request.queues = queues(QueueBackend::Nft);
    let shown = Plan::new(&request).to_string();
    assert!(shown.contains("goto hold"), "{shown}");
    // The default comes last.
    assert!(shown.contains("\t\tgoto early\n"), "{shown}");
}

#[test]
fn it_is_installed_verified_and_leaves_no_trace() -> Result<()> {
    require!(root);
    let netns = Netns::new();
    netns.leaves_no_trace(&holding_here(&netns));
    Ok(())
}

#[test]
fn the_operators_rules_in_raw_are_left_alone() -> Result<()> {
    require!(root);
    let netns = Netns::new();
    if netns.block_on(find_queue_backend).unwrap() != QueueBackend::Iptables {
        eprintln!("SKIPPED: nft holds SYNs on this kernel, and pepd uses no iptables");
        return Ok(());
    }
    netns.output(
        "iptables",
        &[
            "-w",
            "-t",
            "raw",
            "-A",
            "PREROUTING",
            "-p",
            "udp",
            "-j",
            "ACCEPT",
        ],
    );
    let rules = || netns.output("iptables", &["-w", "-t", "raw", "-S"]);
    let before = rules();
    let request = holding_here(&netns);
    // A daemon that crashed, and one that adopts what it left.
    drop(netns.install(&request).unwrap());
    let installed = netns.install(&request).unwrap();
    assert_eq!(rules().matches("--comment pepd").count(), 3, "{}", rules());
    // Another number of workers: the rules for the old queues go.
    let mut other = request.clone();
    other.queues.as_mut().unwrap().count = 2;
    drop(installed);
    let installed = netns.install(&other).unwrap();
    let now = rules();
    assert_eq!(now.matches("--comment pepd").count(), 3, "{now}");
    assert_eq!(now.matches("7300:7301").count(), 3, "{now}");
    // Somebody deletes one: verification sees it.
    let line = now
        .lines()
        .find(|line| line.contains("OUTPUT") && line.contains("pepd"));
    let line = line.unwrap().replacen("-A", "-D", 1);
    let mut args = vec!["-w", "-t", "raw"];
    args.extend(line.split_whitespace());
    netns.output("iptables", &args);
    assert!(netns.block_on(|| installed.verify()).is_err());
    drop(installed);
    netns
        .block_on(|| remove(request.table, request.mark))
        .unwrap();
    assert_eq!(rules(), before);
    Ok(())
}

/// An operator who has deleted his last rule has an empty table, which is his all the same.
#[test]
fn an_empty_table_of_the_operators_stays() -> Result<()> {
    require!(root);
    let netns = Netns::new();
    if netns.block_on(find_queue_backend).unwrap() != QueueBackend::Iptables {
        eprintln!("SKIPPED: nft holds SYNs on this kernel, and pepd uses no iptables");
        return Ok(());
    }
    for operation in ["-A", "-D"] {
        let rule = ["-w", "-t", "raw", operation, "PREROUTING", "-j", "ACCEPT"];
        netns.output("iptables", &rule);
    }
    let before = netns.state();
    assert!(before.contains("table ip raw"), "{before}");
    let request = holding_here(&netns);
    let installed = netns.install(&request).unwrap();
    netns.block_on(|| installed.remove()).unwrap();
    assert_eq!(netns.state(), before);
    // What a crashed one has left.
    drop(netns.install(&request).unwrap());
    netns
        .block_on(|| remove(request.table, request.mark))
        .unwrap();
    assert_eq!(netns.state(), before);
    Ok(())
}

#[test]
fn going_back_to_early_takes_the_queues_away() -> Result<()> {
    require!(root);
    let netns = Netns::new();
    let before = netns.state();
    let early = request();
    let request = holding_here(&netns);
    let mut installed = netns.install(&early).unwrap();
    let plain = netns.state();
    netns.replace(&mut installed, &request).unwrap();
    netns.block_on(|| installed.verify()).unwrap();
    netns.replace(&mut installed, &early).unwrap();
    assert_eq!(netns.state(), plain);
    netns.block_on(|| installed.remove()).unwrap();
    assert_eq!(netns.state(), before);
    Ok(())
}

#[test]
fn a_mark_too_narrow_is_refused() -> Result<()> {
    require!(root);
    let netns = Netns::new();
    let mut request = holding_here(&netns);
    request.mark.value = MarkValue(0x3000_0000);
    request.mark.mask = MarkMask(0x3000_0000);
    let error = netns.install(&request).unwrap_err();
    assert!(error.to_string().contains("three bits"), "{error}");
    Ok(())
}

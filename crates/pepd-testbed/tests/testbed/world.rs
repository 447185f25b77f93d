//! The testbed itself, on the running kernel.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use nix::sys::socket::{getsockopt, sockopt::TcpCongestion};
use pepd_testbed::link::{Link, Rate, Shape};
use pepd_testbed::{Family, Netns, Nginx, Process, Sshd, World, require, run, wait_until};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn curl_reaches_nginx_and_the_log_names_it() -> Result<()> {
    require!(root, program("nginx"), program("curl"));
    let world = World::standard()?;
    let nginx = Nginx::start(world.server())?;
    nginx.put_file("hello", b"hello, world")?;
    for family in Family::BOTH {
        let url = nginx.url(World::server_address(family), &format!("hello?{family}"));
        let mut curl = world.client().command("curl");
        assert_eq!(
            run(curl.args(["-sSg", &url]), LIMIT)?.success()?,
            "hello, world"
        );
        let line = nginx.logged(&format!("{family}"))?;
        assert!(
            line.starts_with(&World::client_address(family).to_string()),
            "{line}"
        );
    }
    Ok(())
}

#[test]
fn a_narrow_path_really_is_narrow() -> Result<()> {
    require!(root, program("ping"), program("ethtool"));
    let world = World::narrow()?;
    for family in Family::BOTH {
        let server = World::server_address(family).to_string();
        let fits = |bytes: &str| -> Result<bool> {
            let mut ping = world.client().command("ping");
            let ping = ping.args(["-c1", "-W60", "-Mdo", "-s", bytes, &server]);
            Ok(run(ping, LIMIT)?.status.success())
        };
        assert!(fits("1200")?, "{family}");
        assert!(!fits("1400")?, "{family}");
    }
    Ok(())
}

#[test]
fn emulated_links_carry_both_families_and_say_how_much() -> Result<()> {
    require!(root);
    const BYTES: u64 = 100_000;
    let shape = |delay| Shape::new(Duration::from_millis(delay), Rate::mbit(100));
    let world = World::emulated(shape(1), shape(2))?;
    world.hosts_use("reno")?;
    for family in Family::BOTH {
        let before = carried(&world)?;
        let pair = world.pair(family)?;
        for socket in [&pair.client, &pair.server] {
            assert_eq!(getsockopt(socket, TcpCongestion)?, "reno", "{family}");
        }
        pair.exchange(BYTES)?;
        for (before, now) in before.into_iter().zip(carried(&world)?) {
            assert!(now >= before + 2 * BYTES, "{family}: {before}, then {now}");
        }
    }
    Ok(())
}

/// Returns the bytes that have come to the ends of each emulated link, both directions together.
fn carried(world: &World) -> Result<Vec<u64>> {
    let of = |link: &Link| {
        let report = link.report()?;
        Ok(report.a_to_b.delivered.bytes + report.b_to_a.delivered.bytes)
    };
    world.emulated_links().into_iter().map(of).collect()
}

#[test]
fn ssh_runs_a_command() -> Result<()> {
    require!(root, program("sshd"), program("ssh"));
    let world = World::standard()?;
    let sshd = Sshd::start(world.server())?;
    let server = World::server_address(Family::V6).to_string();
    let mut ssh = world.client().command("ssh");
    let ssh =
        ssh.args(sshd.client_options())
            .args([format!("root@{server}").as_str(), "echo", "hi"]);
    let finished = run(ssh, LIMIT)?;
    assert_eq!(
        finished.success().map_err(|e| e.context(sshd.log()))?,
        "hi\n"
    );
    Ok(())
}

#[test]
fn a_namespace_goes_with_its_value_even_in_a_panic() -> Result<()> {
    require!(root);
    let netns = Netns::new("panics")?;
    let name = netns.name().to_owned();
    let outcome = std::thread::spawn(move || {
        let _sleeper = Process::spawn(netns.command("sleep").arg("1000"));
        panic!("as a failing test does");
    })
    .join();
    assert!(outcome.is_err());
    let left = run(Command::new("ip").args(["netns", "list"]), LIMIT)?.success()?;
    assert!(!left.contains(&name), "{left}");
    Ok(())
}

#[test]
fn a_dropped_process_takes_its_children_along() -> Result<()> {
    require!(root);
    let netns = Netns::new("children")?;
    let shell = Process::spawn(netns.command("sh").args(["-c", "sleep 1000 & wait"]))?;
    let pids = || {
        run(
            Command::new("ip").args(["netns", "pids", netns.name()]),
            LIMIT,
        )
    };
    wait_until(LIMIT, "the shell's child runs", || {
        pids().is_ok_and(|finished| finished.stdout.lines().count() == 2)
    })?;
    drop(shell);
    wait_until(LIMIT, "both are gone", || {
        pids().is_ok_and(|finished| finished.stdout.is_empty())
    })
}

//! Sets that are full: they are no larger than they are said to be, and what looks at the kernel's
//! state, replaces it or removes it does not look at their elements.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use pepd_testbed::forge::{Flood, Segment, flag, random_syn, stranger};
use pepd_testbed::traffic::Rng;
use pepd_testbed::{Family, Netns, Pepd, Stage, Via, World, require, run, wait_until};
use rstest::rstest;
use tempfile::TempDir;

use crate::harness::{LIMIT, PEPD};

/// Writes the element with a number.
type Element = fn(u32) -> String;

/// The dynamic sets that others than the daemon can fill, with the number of elements that they
/// have room for and how the one with a number is written. None is the client, nor a connection of
/// its: what stays in the sets is in force.
const SETS: [(&str, u32, Element); 9] = [
    ("full4", 2048, |n| {
        format!("10.1.{}.{}", 2 + n / 250, n % 250)
    }),
    ("full6", 2048, |n| format!("fd00:a::9:{n:x}")),
    ("detour4", 8192, |n| {
        format!("10.1.{}.{} . 10.2.9.9", n / 250, n % 250)
    }),
    ("detour6", 8192, |n| format!("fd00:a::9:{n:x} . fd00:b::9")),
    ("flooded4", 2048, |n| {
        format!("10.2.{}.{}", 2 + n / 250, n % 250)
    }),
    ("flooded6", 2048, |n| format!("fd00:b::9:{n:x}")),
    ("syn_rates", 16_384, |n| format!("7 . 7 . {n}")),
    ("routed", 16_384, |n| format!("7 . 7 . {n}")),
    ("waiting", 16_384, |n| format!("7 . 7 . {n}")),
];

/// The descriptor by which that is noted.
const CALLS: u32 = 9;

/// An `nft` that notes what it is asked for and how much it says.
struct NotedNft {
    directory: TempDir,
}

/// A call of `nft`.
#[derive(Debug)]
struct Call {
    bytes: u64,
    arguments: String,
}

impl NotedNft {
    fn new() -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-nft-")?;
        let program = directory.path().join("nft");
        let script = format!(
            "#!/bin/sh\nsaid=$(PATH=/usr/sbin:/sbin:$PATH_BEFORE nft \"$@\")\ncode=$?\n\
             echo \"${{#said}} $*\" >&{CALLS}\n\
             if [ \"$said\" ]; then printf '%s\\n' \"$said\"; fi\nexit $code\n"
        );
        // The daemon is another user.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        fs::write(&program, script)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self { directory })
    }

    fn start(&self, hb: &Netns, config: &str) -> Result<Pepd> {
        let before = std::env::var("PATH").unwrap_or_default();
        let path = format!("PATH={}:{before}", self.directory.path().display());
        let file = self.file().display().to_string();
        // It may write nothing that was not open before.
        let open = format!("exec {CALLS}>> \"$0\"; exec env \"$@\"");
        let before = format!("PATH_BEFORE={before}");
        Pepd::builder(PEPD)
            .wrapper(&["sh", "-c", &open, &file, &path, &before])
            .start(hb, config)
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("calls")
    }

    /// Returns the calls since it was last asked.
    fn take(&self) -> Result<Vec<Call>> {
        let calls = fs::read_to_string(self.file())?;
        fs::write(self.file(), "")?;
        let call = |line: &str| {
            let (bytes, arguments) = line.split_once(' ').context("a call")?;
            Ok(Call {
                bytes: bytes.parse()?,
                arguments: arguments.to_owned(),
            })
        };
        calls.lines().map(call).collect()
    }
}

/// Full sets cost verification, a reload and an end nothing, and what is in them stays.
#[test]
fn whoever_fills_the_sets_neither_reload_nor_end_list_them() -> Result<()> {
    require!(root, program("nft"));
    let nft = NotedNft::new()?;
    let mut stage = Stage::open(Via::Routing, PEPD)?;
    let before = stage.world.kernel_state()?;
    let config = World::config();
    stage.pepd = Some(nft.start(stage.world.hb(), &config)?);
    stage.pepd()?.reload(&config)?;
    let empty = nft.take()?;
    let most = empty.iter().map(|call| call.bytes).max().unwrap_or(0);
    let resident = stage.pepd()?.resident_bytes()?;

    for (set, size, element) in SETS {
        fill(stage.world.hb(), set, size, element)?;
    }
    let since = Instant::now();
    wait_until(LIMIT, "the kernel state is verified", || {
        fs::read_to_string(nft.file()).is_ok_and(|calls| !calls.is_empty())
    })?;
    stage.pepd()?.reload(&config)?;
    println!("verified and reloaded in {:?}", since.elapsed());
    for (set, size, _) in SETS {
        let kept = elements(stage.world.hb(), set)?;
        // Some are short of time where the machine is slow.
        assert!(kept > u64::from(size) * 9 / 10, "{kept} left in {set}");
    }
    let log = stage.pepd()?.log();
    assert!(!log.contains("putting it back"), "{log}");
    let grown = stage.pepd()?.resident_bytes()?.saturating_sub(resident);
    for family in [Family::V4, Family::V6] {
        assert!(stage.world.probe(family)?.1, "not split any more");
    }
    let since = Instant::now();
    let (status, log) = stage.pepd.take().unwrap().stop()?;
    println!("ended in {:?}, {} KiB more", since.elapsed(), grown / 1024);
    assert!(status.success(), "{log}");
    let full = nft.take()?;
    assert!(full.len() > 3, "{full:?}");
    for call in &full {
        assert!(call.bytes <= most + 1000, "{call:?} of at most {most}");
        // The tables beside it have no sets.
        assert!(!call.arguments.contains("list table inet"), "{call:?}");
    }
    assert!(grown < 8 << 20, "{grown} bytes more");
    assert_eq!(stage.world.kernel_state()?, before);
    Ok(())
}

/// Each SYN that its sender resets says that answers take another way. The kernel is told of so
/// many pairs, and the daemon remembers no more.
#[rstest]
fn pairs_with_an_asymmetric_route_are_bounded(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(family)?;
    let before = stage.pepd()?.resident_bytes()?;
    let victim = std::net::SocketAddr::new(World::server_address(family), 7);
    stage.world.server().sh("nft add table inet silent; \
         nft add chain inet silent c '{ type filter hook input priority 0; }'; \
         nft add rule inet silent c tcp dport 7 drop")?;
    let (mut rng, mut reset) = (Rng::new(7), None);
    let flood = Flood::start(stage.world.client(), 10_000, move || {
        reset.take().unwrap_or_else(|| {
            let syn = random_syn(&mut rng, |host| stranger(host, victim.ip()), victim);
            reset = Some(Segment::new(
                flag::RST,
                syn.from,
                syn.to,
                syn.sequence.wrapping_add(1),
            ));
            syn
        })
    })?;
    wait_until(LIMIT, "more have come than there is room for", || {
        flood.sent() > 2 * 20_000
    })?;
    flood.stop()?;
    let set = match family {
        Family::V4 => "detour4",
        Family::V6 => "detour6",
    };
    let known = elements(stage.world.hb(), set)?;
    let config = World::config();
    let since = Instant::now();
    stage.pepd()?.reload(&config)?;
    let grown = stage.pepd()?.resident_bytes()?.saturating_sub(before);
    println!(
        "{family}: {known} pairs, {} KiB more, reloaded in {:?}",
        grown / 1024,
        since.elapsed()
    );
    assert!(known <= 4096, "{known} pairs");
    assert!(grown < 32 << 20, "{grown} bytes more");
    stage.world.pair(family)?;
    stage.finish()
}

/// Fills a set to its last place, which is the last.
fn fill(hb: &Netns, set: &str, size: u32, element: fn(u32) -> String) -> Result<()> {
    let directory = TempDir::with_prefix("pepd-fill-")?;
    let batch = directory.path().join("batch");
    let mut text = String::new();
    for first in (0..size).step_by(1024) {
        let some = first..(first + 1024).min(size);
        let some: Vec<String> = some
            .map(|n| format!("{} timeout 600s", element(n)))
            .collect();
        writeln!(
            text,
            "add element inet pepd {set} {{ {} }}",
            some.join(", ")
        )?;
    }
    fs::write(&batch, text)?;
    hb.sh(&format!("nft -f {}", batch.display()))?;
    let more = format!("add element inet pepd {set} {{ {} }}", element(size));
    let refused = run(hb.command("nft").arg(more), LIMIT)?;
    assert!(!refused.status.success(), "{set} has no bound");
    Ok(())
}

/// Counts the elements of a set.
fn elements(hb: &Netns, set: &str) -> Result<u64> {
    let listed = hb.sh(&format!("nft list set inet pepd {set}"))?;
    Ok(listed.matches("expires").count() as u64)
}

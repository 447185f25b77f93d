//! The command line: exit codes, messages, and that `show` tells what `run` does.

use std::fs;
use std::process::Command;

use anyhow::Result;
use pepd_testbed::{Family, Finished, Pepd, Stage, Via, World, require, run};
use rstest::rstest;
use tempfile::TempDir;

use crate::harness::{LIMIT, PEPD};

#[rstest]
#[case::a_syntax_error("[node\n", "pepd.toml:1:")]
#[case::an_unknown_key("[node]\nname = \"x\"\nwokers = 1\n", "wokers")]
#[case::no_campus("[node]\nname = \"x\"\n", "campus")]
fn a_wrong_configuration_is_exit_78_with_its_place(
    #[case] config: &str,
    #[case] says: &str,
    #[values("run", "check", "show", "down", "doctor")] subcommand: &str,
) -> Result<()> {
    let finished = pepd_with(config, subcommand)?;
    assert_eq!(finished.status.code(), Some(78), "{finished:?}");
    assert!(finished.stderr.contains(says), "{finished:?}");
    assert!(finished.stderr.contains("pepd.toml"), "{finished:?}");
    assert_eq!(finished.stdout, "");
    Ok(())
}

#[rstest]
#[case::missing("no-such-file.toml")]
#[case::a_directory(".")]
fn a_file_that_cannot_be_read_is_exit_78(
    #[case] file: &str,
    #[values("run", "check", "show", "down", "doctor")] subcommand: &str,
) -> Result<()> {
    let directory = TempDir::new()?;
    let path = directory.path().join(file);
    let finished = run(
        Command::new(PEPD).args([subcommand, "-c"]).arg(&path),
        LIMIT,
    )?;
    assert_eq!(finished.status.code(), Some(78), "{finished:?}");
    assert!(
        finished.stderr.contains(&path.display().to_string()),
        "{finished:?}"
    );
    Ok(())
}

#[test]
fn check_prints_what_the_file_means() -> Result<()> {
    let said = pepd_with(&World::config(), "check")?.success()?;
    for word in [
        "10.1.0.0/16",
        "fd00:b::/48",
        "local",
        "lan (reno)",
        "wan (cubic)",
        "end-to-end",
    ] {
        assert!(said.contains(word), "no {word} in:\n{said}");
    }
    Ok(())
}

#[test]
fn check_prints_the_rules_and_what_legs_set_and_names_what_is_unused() -> Result<()> {
    let config = World::config()
        + "[leg.spare]\ncongestion = \"nosuch\"\nrate = \"48Mbit\"\n\
           [[rule]]\nsource = [\"10.1.2.0/24\"]\ndestination_port = [\"8000-8100\"]\naction = \"bypass\"\n";
    let said = pepd_with(&config, "check")?.success()?;
    for line in [
        "10.1.2.0/24  any  8000-8100  bypass: routed, not split",
        "spare  nosuch      the kernel's  48Mbit",
        "no campus has the leg spare",
        "on this host `pepd run` would refuse leg spare: the kernel has no nosuch",
    ] {
        assert!(said.contains(line), "no {line} in:\n{said}");
    }
    Ok(())
}

#[test]
fn the_version_says_the_target() -> Result<()> {
    let said = run(Command::new(PEPD).arg("--version"), LIMIT)?.success()?;
    let version = concat!("pepd ", env!("CARGO_PKG_VERSION"), " (");
    assert!(said.starts_with(version), "{said}");
    assert!(said.contains(std::env::consts::ARCH), "{said}");
    Ok(())
}

/// Three boxes in a row, the one in the middle without a campus.
const FLEET: &str = r#"
[[campus]]
name = "a"
prefixes = ["10.1.0.0/16"]
leg = "lan"
[[campus]]
name = "b"
prefixes = ["10.2.0.0/16"]
leg = "lan"
[[box]]
name = "hb-a"
address = "192.0.2.1"
campuses = ["a"]
[[box]]
name = "hb-i"
address = "198.51.100.1"
[[box]]
name = "hb-b"
address = "203.0.113.1"
campuses = ["b"]
[[link]]
boxes = ["hb-a", "hb-i"]
leg = ["up", "down"]
[[link]]
boxes = ["hb-i", "hb-b"]
mtu = 1400
probe = "off"
[leg.lan]
congestion = "cubic"
[leg.up]
congestion = "bbr"
[leg.down]
congestion = "reno"
"#;

#[test]
fn check_all_prints_the_table_of_every_box() -> Result<()> {
    let finished = pepd_with_arguments(FLEET, "check", &["--all"])?;
    insta::assert_snapshot!(finished.success()?);
    Ok(())
}

#[test]
fn check_prints_the_table_of_the_box_that_is_named() -> Result<()> {
    let all = pepd_with_arguments(FLEET, "check", &["--all"])?.success()?;
    let one = pepd_with_arguments(FLEET, "check", &["--node", "hb-i"])?.success()?;
    assert!(one.starts_with("node hb-i"), "{one}");
    // Of one box it is said, too, what this host lacks.
    let (one, _) = one.split_once("\non this host").unwrap_or((&one, ""));
    assert!(all.contains(one), "{one}\nis not in\n{all}");
    Ok(())
}

#[rstest]
#[case::another_name(FLEET, &["--node", "hb-x"], "hb-x")]
#[case::of_a_single_box(&World::config(), &["--node", "hb-x"], "hb-x")]
#[case::no_name(FLEET, &[], "--node")]
#[case::a_campus_behind_no_box(
    &FLEET.replace("campuses = [\"b\"]", ""), &["--node", "hb-a"], "pepd.toml:7:"
)]
fn a_box_that_is_not_in_the_file_is_exit_78(
    #[case] config: &str,
    #[case] arguments: &[&str],
    #[case] says: &str,
    #[values("run", "check", "show", "down")] subcommand: &str,
) -> Result<()> {
    let finished = pepd_with_arguments(config, subcommand, arguments)?;
    assert_eq!(finished.status.code(), Some(78), "{finished:?}");
    assert!(finished.stderr.contains(says), "{finished:?}");
    assert_eq!(finished.stdout, "");
    Ok(())
}

#[test]
fn the_file_of_a_single_box_is_a_fleet_of_one() -> Result<()> {
    let all = pepd_with_arguments(&World::config(), "check", &["--all"])?.success()?;
    assert_eq!(all, pepd_with(&World::config(), "check")?.success()?);
    Ok(())
}

#[rstest]
fn without_cap_net_admin_it_is_exit_77_naming_it(
    #[values("run", "down")] subcommand: &str,
) -> Result<()> {
    require!(root, program("setpriv"));
    let directory = TempDir::new()?;
    let file = directory.path().join("pepd.toml");
    fs::write(&file, World::config())?;
    for privileges in [
        vec!["--bounding-set=-net_admin", "--inh-caps=-net_admin"],
        vec!["--reuid=65534", "--regid=65534", "--clear-groups"],
    ] {
        // The folder is root's own.
        run(
            Command::new("chmod")
                .arg("-R")
                .arg("a+rX")
                .arg(directory.path()),
            LIMIT,
        )?
        .success()?;
        let mut setpriv = Command::new("setpriv");
        setpriv
            .args(&privileges)
            .args([PEPD, subcommand, "-c"])
            .arg(&file);
        let finished = run(&mut setpriv, LIMIT)?;
        assert_eq!(
            finished.status.code(),
            Some(77),
            "{privileges:?} {finished:?}"
        );
        assert!(finished.stderr.contains("CAP_NET_ADMIN"), "{finished:?}");
    }
    Ok(())
}

#[test]
fn an_unavailable_congestion_control_is_exit_69_naming_those_there_are() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let config = World::config().replace("\"cubic\"", "\"nonesuch\"");
    let (status, said) = Pepd::builder(PEPD).fails(world.hb(), &config)?;
    assert_eq!(status.code(), Some(69), "{said}");
    assert!(said.contains("nonesuch") && said.contains("wan"), "{said}");
    let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
    // A daemon elsewhere on this machine may have brought controls of its own.
    let names = available.split_whitespace();
    for name in names.filter(|name| !name.starts_with("pepd")) {
        assert!(said.contains(name), "{name} is not named in: {said}");
    }
    assert_eq!(world.kernel_state()?, before);
    Ok(())
}

#[test]
fn without_nft_it_is_exit_69_naming_the_package() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let before = world.kernel_state()?;
    // `ip netns exec` has given it a mount namespace of its own.
    let hide = "mount -t tmpfs none /usr/sbin && mount -t tmpfs none /usr/local && exec \"$@\"";
    let hidden = Pepd::builder(PEPD).wrapper(&["sh", "-c", hide, "sh"]);
    let (status, said) = hidden.fails(world.hb(), &World::config())?;
    assert_eq!(status.code(), Some(69), "{said}");
    assert!(said.contains("nftables"), "{said}");
    assert_eq!(world.kernel_state()?, before);
    Ok(())
}

/// Where the kernel's nft has a `queue`, that is enough, and iptables is not missed.
#[test]
fn without_anything_to_hold_syns_it_is_exit_69_unless_early() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let directory = TempDir::new()?;
    let file = directory.path().join("pepd.toml");
    fs::write(&file, World::config())?;
    let mut show = world.hb().command(PEPD);
    let shown = run(show.args(["show", "-c"]).arg(&file), LIMIT)?.success()?;
    let nft_is_enough = !shown.contains("iptables -t raw");
    // `ip netns exec` has given it a mount namespace of its own.
    let hide = format!(
        "chmod 755 {0} && cp $(command -v nft) {0} && mount -t tmpfs none /usr/sbin && \
         mount -t tmpfs none /usr/local && PATH={0}:$PATH exec \"$@\"",
        directory.path().display()
    );
    let hidden = || Pepd::builder(PEPD).wrapper(&["sh", "-c", &hide, "sh"]);
    if nft_is_enough {
        hidden().start(world.hb(), &World::config())?.stop()?;
    } else {
        let (status, said) = hidden().fails(world.hb(), &World::config())?;
        assert_eq!(status.code(), Some(69), "{said}");
        for word in ["nft_queue", "package iptables", "handshake = \"early\""] {
            assert!(said.contains(word), "no {word} in: {said}");
        }
    }
    assert_eq!(world.kernel_state()?, before);
    let pepd = hidden().start(world.hb(), &World::early_config())?;
    assert!(world.probe(Family::V4)?.1);
    pepd.stop()?;
    assert_eq!(world.kernel_state()?, before);
    Ok(())
}

#[test]
fn a_port_that_is_taken_is_exit_69_and_leaves_nothing() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let _taken = pepd_testbed::traffic::listen(world.hb(), Family::V6.any(7300))?;
    let before = world.kernel_state()?;
    let (status, said) = Pepd::builder(PEPD).fails(world.hb(), &World::config())?;
    assert_eq!(status.code(), Some(69), "{said}");
    assert!(said.contains("7300"), "{said}");
    assert_eq!(world.kernel_state()?, before);
    Ok(())
}

/// `show`'s lines, run by hand in another namespace, give what `run` installs.
#[test]
fn show_is_what_run_installs() -> Result<()> {
    require!(root, program("nft"));
    let rules = "
[[rule]]
source = [\"10.1.9.0/24\", \"fd00:a:9::/64\"]
destination_port = [22, \"8000-8100\"]
action = \"bypass\"
";
    let config = World::config() + rules;
    let by_run = Stage::with_config(PEPD, &config)?;
    let by_hand = Stage::open(Via::Routing, PEPD)?;
    // Where the daemon runs: how many workers there are by default depends on what can be seen of
    // the machine from there, a control group's share of it among that.
    let daemon = by_run.pepd.as_ref().unwrap();
    let shown = daemon.subcommand(by_run.world.hb(), "show")?.success()?;
    let directory = TempDir::new()?;
    let (nft, ip) = split_script(&shown);
    fs::write(directory.path().join("nft"), nft)?;
    fs::write(directory.path().join("ip"), ip)?;
    by_hand.world.hb().sh(&format!(
        "cd {}; sh -ec '. ./ip'; nft -f nft",
        directory.path().display()
    ))?;
    assert_eq!(
        without_gate(&by_hand.world.kernel_state()?),
        without_gate(&by_run.world.kernel_state()?),
        "{shown}"
    );
    // With the table but without a daemon, everything is routed.
    assert!(!by_hand.world.probe(Family::V4)?.1);
    assert!(by_run.world.probe(Family::V4)?.1);
    by_run.finish()?;
    by_hand.finish()
}

#[test]
fn show_touches_nothing() -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::open(Via::Routing, PEPD)?;
    let before = stage.world.kernel_state()?;
    stage.pepd = Some(Pepd::start(PEPD, stage.world.hb(), &World::config())?);
    stage.pepd.take().unwrap().stop()?;
    let directory = TempDir::new()?;
    let file = directory.path().join("pepd.toml");
    fs::write(&file, World::config())?;
    for subcommand in ["show", "check"] {
        let mut command = stage.world.hb().command(PEPD);
        run(command.args([subcommand, "-c"]).arg(&file), LIMIT)?.success()?;
        assert_eq!(stage.world.kernel_state()?, before);
    }
    Ok(())
}

#[rstest]
#[case::bash("bash", "complete -F")]
#[case::zsh("zsh", "#compdef pepd")]
#[case::fish("fish", "complete -c pepd")]
fn completions_are_for_the_shell(#[case] shell: &str, #[case] mark: &str) -> Result<()> {
    let said = run(Command::new(PEPD).args(["completions", shell]), LIMIT)?.success()?;
    assert!(said.contains(mark), "{said}");
    for part in [
        "status", "flows", "flow", "top", "reload", "drain", "--sort", "--socket",
    ] {
        // fish writes long options without their dashes.
        let part = part.trim_start_matches('-');
        assert!(said.contains(part), "no {part}");
    }
    Ok(())
}

#[test]
fn the_manual_page_is_one_for_man() -> Result<()> {
    let said = run(Command::new(PEPD).arg("man"), LIMIT)?.success()?;
    assert!(said.contains(".TH pepd 1"), "{said}");
    for part in [
        "run",
        "check",
        "show",
        "down",
        "doctor",
        "completions",
        "status",
        "flows",
        "top",
        "reload",
        "drain",
        "\\-\\-sort",
        "EXIT STATUS",
        "SIGNALS",
        "PEPD_LOG",
        "/etc/pepd/pepd.toml",
    ] {
        assert!(said.contains(part), "no {part}");
    }
    // There is this page only.
    assert!(!said.contains("run(1)"), "{said}");
    Ok(())
}

#[test]
fn the_manual_page_of_the_configuration_has_its_keys() -> Result<()> {
    let said = run(Command::new(PEPD).args(["man", "pepd.toml"]), LIMIT)?.success()?;
    for part in [
        ".TH pepd.toml 5",
        ".SS [node]",
        ".SS [leg.satellite]",
        ".SS [[link]]",
        "\\fBconnections_per_source\\fR = 1000",
        "while_gone",
        "heartbeat",
        "SEE ALSO",
    ] {
        assert!(said.contains(part), "no {part}");
    }
    Ok(())
}

#[rstest]
fn groff_has_nothing_to_say_of_a_manual_page(
    #[values("pepd", "pepd.toml")] page: &str,
) -> Result<()> {
    require!(program("groff"));
    let folder = TempDir::new()?;
    let file = folder.path().join("page");
    fs::write(
        &file,
        run(Command::new(PEPD).args(["man", page]), LIMIT)?.success()?,
    )?;
    let mut groff = Command::new("groff");
    groff
        .args(["-man", "-Tutf8", "-Kutf8", "-ww", "-P-cbou"])
        .arg(&file);
    let finished = run(&mut groff, LIMIT)?;
    assert_eq!(finished.stderr, "", "{finished:?}");
    assert!(finished.success()?.contains("SEE ALSO"));
    Ok(())
}

#[rstest]
#[case::no_subcommand(&[])]
#[case::an_unknown_one(&["fly"])]
#[case::an_unknown_option(&["check", "--fast"])]
#[case::one_box_and_all(&["check", "--all", "--node", "hb-a"])]
fn a_wrong_command_line_is_exit_64(#[case] arguments: &[&str]) -> Result<()> {
    let finished = run(Command::new(PEPD).args(arguments), LIMIT)?;
    assert_eq!(finished.status.code(), Some(64), "{finished:?}");
    assert!(finished.stderr.contains("Usage"), "{finished:?}");
    Ok(())
}

pub(super) fn pepd_with(config: &str, subcommand: &str) -> Result<Finished> {
    pepd_with_arguments(config, subcommand, &[])
}

pub(super) fn pepd_with_arguments(
    config: &str,
    subcommand: &str,
    arguments: &[&str],
) -> Result<Finished> {
    let directory = TempDir::new()?;
    let file = directory.path().join("pepd.toml");
    fs::write(&file, config)?;
    let mut pepd = Command::new(PEPD);
    pepd.args([subcommand, "-c"]).arg(&file).args(arguments);
    run(&mut pepd, LIMIT)
}

/// Returns the nft part of `show` and the `ip` commands, which are lines of their own.
fn split_script(shown: &str) -> (String, String) {
    let commands = ["ip -", "iptables -", "ip6tables -"];
    let (ip, nft): (Vec<&str>, Vec<&str>) = shown.lines().partition(|line| {
        let line = line.trim_start();
        commands.iter().any(|command| line.starts_with(command))
    });
    (nft.join("\n"), ip.join("\n"))
}

/// Leaves out the gate's element, which comes and goes; it is the daemon's heartbeat, not its
/// ruleset. And the comment on iptables' tables and chains by which the daemon knows what it has made
/// itself: by hand, iptables makes them.
fn without_gate(state: &str) -> String {
    state
        .lines()
        .filter(|line| !line.contains("expires") && line.trim() != "comment \"made by pepd\"")
        .collect::<Vec<_>>()
        .join("\n")
}

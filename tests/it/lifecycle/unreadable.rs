//! Files, directories and programs that root may read or execute, and the user that the daemon becomes
//! may not.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use anyhow::Result;
use pepd_testbed::{Family, Pepd, World, install, require, run, wait_until};
use tempfile::TempDir;

use super::confinement::{check_the_end, config, config_for};
use crate::harness::{LIMIT, PEPD};

/// A file that only root reads was fine at the start. The daemon says at once what will come of it,
/// and a reload changes nothing.
#[test]
fn a_file_that_the_user_cannot_read_is_named_with_the_cure() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let mut pepd = Pepd::start(PEPD, world.hb(), &config(&world))?;
    let file = pepd.config_file();
    let before = world.steady_state()?;
    fs::set_permissions(&file, Permissions::from_mode(0o600))?;
    pepd.reload(&World::config().replace("\"reno\"", "\"cubic\""))?;
    wait_until(LIMIT, "the refusal", || {
        pepd.log().contains("reload refused")
    })?;
    let log = pepd.log();
    for said in ["mode 0600", "setfacl", "pepd.toml"] {
        assert!(log.contains(said), "no {said}: {log}");
    }
    assert_eq!(world.steady_state()?, before);
    let (pair, split) = world.probe(Family::V4)?;
    assert!(split);
    pair.exchange(10_000)?;
    let doctor = pepd.subcommand(world.hb(), "doctor")?;
    assert!(doctor.stdout.contains("cannot read"), "{}", doctor.stdout);
    fs::set_permissions(&file, Permissions::from_mode(0o644))?;
    pepd.reload(&config(&world))?;
    wait_until(LIMIT, "it is taken", || pepd.log().contains(" reloaded"))?;
    pepd.stop()?;
    Ok(())
}

/// A directory that only root passes: it is named, not the file, and what is said of it helps.
#[test]
fn a_directory_that_the_user_cannot_pass_is_named_with_the_cure() -> Result<()> {
    require!(root, program("setpriv"));
    let world = World::standard()?;
    let place = TempDir::new()?;
    fs::set_permissions(place.path(), Permissions::from_mode(0o755))?;
    let program = format!("{}/pepd", place.path().display());
    install(PEPD.as_ref(), program.as_ref())?;
    let directory = place.path().join("etc");
    fs::create_dir(&directory)?;
    let file = directory.join("pepd.toml");
    fs::write(&file, config_for(&world, "nobody"))?;
    fs::set_permissions(&file, Permissions::from_mode(0o644))?;
    fs::set_permissions(&directory, Permissions::from_mode(0o750))?;
    let doctor = || {
        run(
            world
                .hb()
                .command(&program)
                .args(["doctor", "-c"])
                .arg(&file),
            LIMIT,
        )
    };
    let check = || {
        let mut check = world.hb().command("setpriv");
        check.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        run(check.arg(&program).args(["check", "-c"]).arg(&file), LIMIT)
    };
    let cure = format!("chmod o+x {}", directory.display());
    let (refused, doubts) = (check()?, doctor()?);
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    for said in [&refused.stderr, &doubts.stdout] {
        // Text on a terminal may be broken at any blank.
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(&cure) && said.contains("0750"), "{said}");
        assert!(!said.contains(":r "), "{said}");
    }
    world.hb().sh(&cure)?;
    check()?.success()?;
    let doctor = doctor()?;
    assert!(!doctor.stdout.contains("cannot read"), "{}", doctor.stdout);
    Ok(())
}

/// A directory of root's own in PATH says of nft that it may not be executed; it is elsewhere.
#[test]
fn what_the_user_may_not_look_into_is_passed_over() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let roots_own = tempfile::tempdir()?;
    fs::set_permissions(roots_own.path(), Permissions::from_mode(0o700))?;
    let path = format!("PATH={}", roots_own.path().display());
    let pepd = Pepd::builder(PEPD)
        .wrapper(&["env", &path])
        .start(world.hb(), &config(&world))?;
    assert!(world.probe(Family::V4)?.1);
    check_the_end(&world, pepd, &before)
}

/// An nft that only root may execute, and no other.
#[test]
fn an_nft_that_the_user_may_not_execute_is_exit_77_with_the_cure() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    // `ip netns exec` has given it a mount namespace of its own.
    let hide = format!(
        "cp $(command -v nft) {0} && chmod 700 {0}/nft && mount -t tmpfs none /usr/sbin && \
         mount -t tmpfs none /usr/local && PATH={0}:$PATH exec \"$@\"",
        folder.path().display()
    );
    let (status, log) = Pepd::builder(PEPD)
        .wrapper(&["sh", "-c", &hide, "sh"])
        .fails(world.hb(), &config(&world))?;
    assert_eq!(status.code(), Some(77), "{log}");
    for said in ["nft", "Permission denied", "chmod a+rx"] {
        assert!(log.contains(said), "no {said}: {log}");
    }
    assert_eq!(world.kernel_state()?, before);
    Ok(())
}

//! What somebody who took the daemon over would have: another user than root, two capabilities, few
//! system calls, files that are read-only. And that everything works even so.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use anyhow::{Context, Result, ensure};
use pepd_testbed::traffic::accept;
use pepd_testbed::{Family, Pepd, World, install, require, run, wait_until};
use rstest::rstest;
use socket2::{Domain, Socket, Type};

use super::service::listed;
use crate::harness::{LIMIT, PEPD};

/// CAP_NET_BIND_SERVICE and CAP_NET_ADMIN (linux/capability.h).
const KEPT: u64 = 1 << 10 | 1 << 12;

const UNIT: &str = include_str!("../../../config/pepd.service");

/// Returns a configuration with the admin socket where it usually is.
pub(super) fn config(world: &World) -> String {
    format!("{}\n{}", World::config(), world.admin())
}

/// As [`config`], with a user.
pub(super) fn config_for(world: &World, user: &str) -> String {
    let named = format!("name = \"hb\"\nuser = \"{user}\"\n");
    config(world).replace("name = \"hb\"\n", &named)
}

/// A thread of the daemon, by the fields of its status (proc_pid_status(5)).
struct Thread(String);

impl Thread {
    /// Returns all threads of a process.
    fn all(pid: impl std::fmt::Display) -> Result<Vec<Self>> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status"));
        tasks.map(|task| Ok(Self(status(task?)?))).collect()
    }

    fn field(&self, name: &str) -> Result<&str> {
        let of = |line: &'_ str| line.split_once(':').is_some_and(|(key, _)| key == name);
        let line = self
            .0
            .lines()
            .find(|line| of(line))
            .context(name.to_owned())?;
        Ok(line.split_once(':').map_or("", |(_, value)| value).trim())
    }

    fn capabilities(&self, set: &str) -> Result<u64> {
        Ok(u64::from_str_radix(self.field(set)?, 16)?)
    }
}

/// Checks that every thread is this user, has no other group than its own, and no privilege that
/// it does not need.
fn check_threads(pid: impl std::fmt::Display, user: &str) -> Result<()> {
    let threads = Thread::all(pid)?;
    ensure!(threads.len() > 4, "workers, log, API and more");
    for thread in threads {
        let name = thread.field("Name")?;
        for ids in ["Uid", "Gid"] {
            let ids = thread.field(ids)?;
            ensure!(ids.split_whitespace().all(|id| id == user), "{name}: {ids}");
        }
        let groups = thread.field("Groups")?;
        ensure!(groups.is_empty(), "{name}: groups {groups}");
        check_what_it_may(&thread)?;
    }
    Ok(())
}

fn check_what_it_may(thread: &Thread) -> Result<()> {
    let name = thread.field("Name")?;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let held = thread.capabilities(set)?;
        ensure!(held == KEPT, "{name}: {set} {held:x}");
    }
    ensure!(thread.field("NoNewPrivs")? == "1", "{name}");
    // SECCOMP_MODE_FILTER.
    ensure!(thread.field("Seccomp")? == "2", "{name}");
    Ok(())
}

/// Checks that connections are split, a reload is taken and status and doctor tell of the user.
fn check_that_it_works(world: &World, pepd: &mut Pepd, user: &str) -> Result<()> {
    for family in Family::BOTH {
        let (pair, split) = world.probe(family)?;
        ensure!(split, "{family}");
        pair.exchange(100_000)?;
    }
    // A window of its own takes a route, another control another listener.
    let wider = fs::read_to_string(pepd.config_file())?.replace(
        "congestion = \"reno\"\n",
        "congestion = \"cubic\"\ninitial_window = 20\n",
    );
    pepd.reload(&wider)?;
    wait_until(LIMIT, "the log says so", || {
        pepd.log().contains(" reloaded")
    })?;
    for family in Family::BOTH {
        let (pair, split) = world.probe(family)?;
        ensure!(split, "{family} after the reload");
        pair.exchange(100_000)?;
    }
    let status = pepd.subcommand(world.hb(), "status")?.success()?;
    let said =
        format!("confined: user {user}, CAP_NET_ADMIN CAP_NET_BIND_SERVICE, system calls filtered");
    ensure!(status.contains(&said), "{status}");
    ensure!(pepd.log().contains(&said), "{}", pepd.log());
    Ok(())
}

/// Ends it, and checks that nothing is left but its locks.
pub(super) fn check_the_end(world: &World, pepd: Pepd, before: &str) -> Result<()> {
    let (status, log) = pepd.stop()?;
    ensure!(status.code() == Some(0), "{log}");
    ensure!(world.kernel_state()? == before, "{log}");
    for left in fs::read_dir(world.hb().runtime_directory())? {
        let name = left?.file_name();
        ensure!(
            name.to_string_lossy().ends_with(".lock"),
            "{name:?} is left"
        );
    }
    Ok(())
}

#[rstest]
#[case::the_usual_one(None)]
#[case::one_without_a_name(Some("54322"))]
fn root_becomes_another_user(#[case] named: Option<&str>) -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let (user, config) = match named {
        Some(user) => (user.to_owned(), config_for(&world, user)),
        None => (usual_user()?, config(&world)),
    };
    let mut pepd = Pepd::start(PEPD, world.hb(), &config)?;
    let number = if named.is_some() {
        user.clone()
    } else {
        number_of(&user)?
    };
    check_threads(pepd.daemon()?, &number)?;
    check_that_it_works(&world, &mut pepd, &user)?;
    check_threads(pepd.daemon()?, &number)?;
    check_the_end(&world, pepd, &before)?;
    // And again, over what it has left.
    Pepd::start(PEPD, world.hb(), &config)?.kill()?;
    let pepd = Pepd::start(PEPD, world.hb(), &config)?;
    check_the_end(&world, pepd, &before)
}

/// `pepd` where this host has that user, else nobody.
fn usual_user() -> Result<String> {
    let own = nix::unistd::User::from_name("pepd")?;
    Ok(own.map_or_else(|| "nobody".to_owned(), |user| user.name))
}

fn number_of(user: &str) -> Result<String> {
    let user = nix::unistd::User::from_name(user)?.context("no such user")?;
    Ok(user.uid.to_string())
}

/// A daemon that stayed root, as earlier versions did, and that was killed; then one that becomes
/// another user, one that becomes a third, one that stays root again, and `pepd down`.
#[test]
fn what_a_daemon_of_another_user_left_is_no_obstacle() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let directory = world.hb().runtime_directory();
    let inode = world
        .hb()
        .sh("stat --dereference --format %i /proc/self/ns/net")?;
    let lock = directory.join(format!("net-{}.lock", inode.trim()));
    fs::write(&lock, "4194305\n")?;
    fs::set_permissions(&lock, Permissions::from_mode(0o644))?;
    drop(UnixListener::bind(directory.join("admin.sock"))?);
    for user in ["54322", "nobody", "root", "54322"] {
        let config = config_for(&world, user);
        let pepd = Pepd::start(PEPD, world.hb(), &config)?;
        assert!(world.probe(Family::V4)?.1, "{user}");
        pepd.kill()?;
        let pepd = Pepd::start(PEPD, world.hb(), &config)?;
        check_the_end(&world, pepd, &before)?;
        let kept = fs::metadata(&lock)?;
        assert_eq!((kept.uid(), kept.mode() & 0o777), (0, 0o600), "{user}");
    }
    let pepd = Pepd::start(PEPD, world.hb(), &config(&world))?;
    let file = pepd.config_file();
    let down = || {
        run(
            world.hb().command(PEPD).args(["down", "-c"]).arg(&file),
            LIMIT,
        )
    };
    assert_eq!(down()?.status.code(), Some(75), "it runs");
    let folder = tempfile::tempdir()?;
    let kept = folder.path().join("pepd.toml");
    fs::copy(&file, &kept)?;
    pepd.kill()?;
    let mut down = world.hb().command(PEPD);
    run(down.args(["down", "-c"]).arg(&kept), LIMIT)?.success()?;
    assert_eq!(world.kernel_state()?, before);
    Ok(())
}

#[test]
fn root_by_wish_is_said_and_has_no_privilege_more() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let mut pepd = Pepd::start(PEPD, world.hb(), &config_for(&world, "root"))?;
    for thread in Thread::all(pepd.daemon()?)? {
        assert_eq!(thread.field("Uid")?, "0\t0\t0\t0");
        check_what_it_may(&thread)?;
    }
    assert!(pepd.log().contains("it stays root"), "{}", pepd.log());
    check_that_it_works(&world, &mut pepd, "root")?;
    let doctor = pepd.subcommand(world.hb(), "doctor")?;
    assert!(
        doctor.stdout.contains("`pepd run` stays root"),
        "{}",
        doctor.stdout
    );
    check_the_end(&world, pepd, &before)
}

/// As systemd starts it: never root, with the capabilities of the unit.
#[test]
fn a_service_without_root_has_no_more() -> Result<()> {
    require!(root, program("setpriv"), program("nft"));
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let directory = world.hb().runtime_directory();
    std::os::unix::fs::chown(directory, Some(65_534), Some(65_534))?;
    let names = |key| {
        let names = listed(UNIT, key)
            .into_iter()
            .map(|name| name.replace("CAP_", "+"));
        format!(
            "-all,{}",
            names.collect::<Vec<_>>().join(",").to_lowercase()
        )
    };
    let ambient = names("AmbientCapabilities");
    let bounding = names("CapabilityBoundingSet");
    let inherited = format!("--inh-caps={ambient}");
    let mut pepd = Pepd::builder(PEPD)
        .wrapper(&[
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--no-new-privs",
            &inherited,
            &format!("--ambient-caps={ambient}"),
            &format!("--bounding-set={bounding}"),
        ])
        .start(world.hb(), &config(&world))?;
    for thread in Thread::all(pepd.daemon()?)? {
        assert_eq!(thread.field("Uid")?, "65534\t65534\t65534\t65534");
        // The service manager has bounded them; what is in that set cannot be had.
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(thread.capabilities(set)?, KEPT, "{set}");
        }
        assert_eq!(thread.field("Seccomp")?, "2");
    }
    check_that_it_works(&world, &mut pepd, "nobody")?;
    check_the_end(&world, pepd, &before)
}

#[rstest]
#[case::no_such_user("no-such-user", &[], 69, "nologin no-such-user")]
#[case::not_allowed_to_change("nobody", &["setpriv", "--bounding-set=-setuid,-setgid"], 77, "user = \"root\"")]
fn what_cannot_become_the_user_does_not_start(
    #[case] user: &str,
    #[case] wrapper: &[&str],
    #[case] code: i32,
    #[case] cure: &str,
) -> Result<()> {
    require!(root, program("setpriv"));
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let (status, log) = Pepd::builder(PEPD)
        .wrapper(wrapper)
        .fails(world.hb(), &config_for(&world, user))?;
    assert_eq!(status.code(), Some(code), "{log}");
    assert!(log.contains(user) && log.contains(cure), "{log}");
    assert_eq!(world.kernel_state()?, before);
    assert!(!world.hb().runtime_directory().join("admin.sock").exists());
    Ok(())
}

/// A client that uses a port below 1024, as NFS does, is served from it: what CAP_NET_BIND_SERVICE
/// is kept for.
#[rstest]
fn a_privileged_port_stays_the_clients(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    const PORT: u16 = 700;
    require!(root, program("nft"));
    let world = World::standard()?;
    let mut pepd = Pepd::start(PEPD, world.hb(), &World::config())?;
    let listener = world.listen(family)?;
    let to = listener.local_addr()?;
    let client = world.client().run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.bind(&family.any(PORT).into())?;
        socket.connect(&to.into())?;
        Ok(socket)
    })?;
    let (_server, from) = accept(&listener)?;
    assert_eq!(from.port(), PORT, "{}", pepd.log());
    drop(client);
    assert!(pepd.runs());
    Ok(())
}

/// What the daemon starts is confined as it is, and so shows what it may: this `nft` tries what an
/// attacker would before it does its work, and fails if anything of it works.
#[test]
fn whoever_takes_it_over_writes_executes_and_changes_nothing() -> Result<()> {
    require!(root, program("nft"), program("unshare"), program("setpriv"));
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let folder = tempfile::tempdir()?;
    let directory = folder.path();
    // Not below what is in PATH, where a script may execute everything.
    let elsewhere = tempfile::tempdir()?;
    let everybodys = elsewhere.path();
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    fs::set_permissions(everybodys, Permissions::from_mode(0o777))?;
    let program = everybodys.join("true");
    install("/bin/true".as_ref(), &program)?;
    let path = std::env::var("PATH")?;
    let own = world.hb().runtime_directory().display().to_string();
    let attempts = [
        format!("touch {}", everybodys.join("made").display()),
        format!("touch {own}/made"),
        format!("rm -f {}", program.display()),
        program.display().to_string(),
        "unshare --user true".to_owned(),
        "setpriv --reuid=0 true".to_owned(),
        // What others put there stays, the lock among it.
        format!("rm -f {own}/*.lock"),
    ];
    // As many as the kernel can hold it to.
    let attempts = attempts.iter().skip(if has_landlock() { 0 } else { 4 });
    let attempts: String = attempts
        .map(|attempt| {
            format!(
                "if ({attempt}) 2> /dev/null; then echo \"it can: {attempt}\" >&2; exit 1; fi\n"
            )
        })
        .collect();
    let script = format!("#!/bin/sh\nPATH={path}\n{attempts}exec nft \"$@\"\n");
    fs::write(directory.join("script"), script)?;
    install(&directory.join("script"), &directory.join("nft"))?;
    let search = format!("PATH={}:{path}", directory.display());
    let pepd = Pepd::builder(PEPD)
        .wrapper(&["env", &search])
        .start(world.hb(), &config(&world))?;
    assert!(world.probe(Family::V4)?.1);
    assert!(!everybodys.join("made").exists());
    check_the_end(&world, pepd, &before)
}

/// Asks on a thread of its own, which is confined by the question.
fn has_landlock() -> bool {
    use landlock::{AccessFs, Ruleset, RulesetAttr, RulesetStatus};
    let ask = || {
        let ruleset = Ruleset::default().handle_access(AccessFs::Execute).ok()?;
        ruleset.create().ok()?.restrict_self().ok()
    };
    let status = std::thread::spawn(ask).join().ok().flatten();
    status.is_some_and(|status| status.ruleset != RulesetStatus::NotEnforced)
}

//! What a test needs from the machine, and how it says so when that is missing.

use std::path::Path;

/// Set in every guest.
pub(crate) const GUEST: &str = "PEPD_GUEST";
/// Set in a guest whose clock is [`Clock::Virtual`](crate::vm::Clock::Virtual).
pub(crate) const VIRTUAL_TIME: &str = "PEPD_VIRTUAL_TIME";

/// Something a test cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Effective user id 0.
    Root,
    /// A program on the path or in the system directories.
    Program(&'static str),
    /// A character device, such as `/dev/net/tun`.
    Device(&'static str),
    /// A congestion control that the kernel has, loaded or built in.
    Congestion(&'static str),
    /// The kernel's IP-over-IP tunnel devices: ipip, sit and ip6tnl.
    Tunnels,
    /// A machine that nobody else has: the guest.
    Guest,
    /// A clock that a busy machine does not disturb: a test that judges times needs one.
    VirtualTime,
}

impl Requirement {
    /// Returns whether `cargo xtask test` takes care of it, by running the tests that need it in a
    /// guest. Then a skip outside is no failure even with `CI=true`.
    fn guest_has(self) -> bool {
        match self {
            Self::Tunnels => std::env::var_os(GUEST).is_none(),
            // The guest that has a virtual clock is not the one that runs most tests.
            Self::VirtualTime | Self::Guest => true,
            Self::Root | Self::Program(_) | Self::Device(_) | Self::Congestion(_) => false,
        }
    }
}

/// Returns why `requirement` is not met, and the cure; `None` when it is.
#[must_use]
pub fn missing(requirement: Requirement) -> Option<String> {
    match requirement {
        Requirement::Root => {
            (!nix::unistd::geteuid().is_root()).then(|| "not root: run it with sudo".to_owned())
        }
        Requirement::Program(program) => (!installed(program))
            .then(|| format!("the program `{program}` is missing: `cargo xtask test` installs it")),
        Requirement::Device(path) => {
            (!Path::new(path).exists()).then(|| format!("{path} is missing in this kernel"))
        }
        Requirement::Congestion(name) => {
            let available =
                std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
                    .unwrap_or_default();
            (!available.split_whitespace().any(|known| known == name)).then(|| {
                format!("this kernel has no congestion control `{name}`: modprobe tcp_{name}")
            })
        }
        Requirement::Tunnels => lacks_tunnels().map(|said| {
            format!("this kernel has no IP-over-IP tunnels ({said}); the guest kernel has")
        }),
        Requirement::Guest => std::env::var_os(GUEST).is_none().then(|| {
            "it changes what is the whole machine's; the guest is there for that".to_owned()
        }),
        Requirement::VirtualTime => std::env::var_os(VIRTUAL_TIME).is_none().then(|| {
            "this clock runs on while the machine does something else; \
             `cargo xtask vm --virtual-time` has one that does not"
                .to_owned()
        }),
    }
}

/// Makes one of each, and returns what `ip` says when it cannot. Making them loads the kernel's
/// modules, and namespaces that are made later have their fallback devices (`tunl0`) from the
/// start.
fn lacks_tunnels() -> Option<String> {
    let netns = crate::Netns::new("tunnels").ok()?;
    let make = "for kind in ipip sit; do
        ip link add $kind-1 type $kind local 192.0.2.1 remote 192.0.2.2
    done
    ip link add ip6tnl-1 type ip6tnl local 2001:db8::1 remote 2001:db8::2";
    let error = netns.sh(make).err()?;
    Some(error.to_string().lines().last()?.to_owned())
}

/// Prints that the test at `place` does not run for want of `requirement`, and why. Tests that the
/// guest kernel is there for are left to it, which is not a skip.
///
/// # Panics
/// As [`report_skip`].
pub fn report_missing(place: &str, requirement: Requirement, why: &str) {
    if requirement.guest_has() {
        say(&format!("LEFT TO THE GUEST {place}: {why}"));
    } else {
        report_skip(place, why);
    }
}

/// Prints that the test at `place` is skipped, and why.
///
/// # Panics
/// With the environment variable `CI=true`: there, a skip is a failure.
pub fn report_skip(place: &str, why: &str) {
    let forbidden = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(
        !forbidden,
        "would be skipped, which CI=true makes a failure: {place}: {why}"
    );
    say(&format!("SKIPPED {place}: {why}"));
}

/// Prints a line past libtest, which captures what goes through `print!`: a skip must be seen all
/// the same.
fn say(line: &str) {
    let line = format!("{line}\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes());
}

/// Returns from a test, saying why, unless the machine has what the test needs.
///
/// ```no_run
/// # fn test() -> anyhow::Result<()> {
/// pepd_testbed::require!(root, program("nginx"), program("curl"));
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! require {
    ($($kind:ident $(($what:literal))?),+ $(,)?) => {
        $(
            let requirement = $crate::require!(@ $kind $(($what))?);
            if let Some(why) = $crate::missing(requirement) {
                let place = concat!(module_path!(), " (", file!(), ":", line!(), ")");
                $crate::report_missing(place, requirement, &why);
                return Ok(());
            }
        )+
    };
    (@ root) => { $crate::Requirement::Root };
    (@ program($what:literal)) => { $crate::Requirement::Program($what) };
    (@ device($what:literal)) => { $crate::Requirement::Device($what) };
    (@ virtual_time) => { $crate::Requirement::VirtualTime };
    (@ guest) => { $crate::Requirement::Guest };
    (@ tunnels) => { $crate::Requirement::Tunnels };
    (@ congestion($what:literal)) => { $crate::Requirement::Congestion($what) };
}

fn installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .any(|directory| Path::new(directory).join(program).is_file())
}

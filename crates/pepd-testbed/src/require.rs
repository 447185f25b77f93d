//! What a test needs from the machine, and how it says so when that is missing.

use std::path::Path;

/// Something a test cannot do without.
#[derive(Clone, Copy, Debug)]
pub enum Requirement {
    /// Effective user id 0.
    Root,
    /// A program on the path or in the system directories.
    Program(&'static str),
    /// A character device, such as `/dev/net/tun`.
    Device(&'static str),
    /// A congestion control that the kernel has, loaded or built in.
    Congestion(&'static str),
}

/// Why `requirement` is not met, and the cure; `None` when it is.
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
    // libtest captures what goes through `print!`; a skip must be seen all the same.
    let line = format!("SKIPPED {place}: {why}\n");
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
            if let Some(why) = $crate::missing($crate::require!(@ $kind $(($what))?)) {
                $crate::report_skip(concat!(module_path!(), " (", file!(), ":", line!(), ")"), &why);
                return Ok(());
            }
        )+
    };
    (@ root) => { $crate::Requirement::Root };
    (@ program($what:literal)) => { $crate::Requirement::Program($what) };
    (@ device($what:literal)) => { $crate::Requirement::Device($what) };
    (@ congestion($what:literal)) => { $crate::Requirement::Congestion($what) };
}

fn installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .any(|directory| Path::new(directory).join(program).is_file())
}

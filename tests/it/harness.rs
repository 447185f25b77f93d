//! What tests of every subject need, and what keeps one of them from disturbing the others.

use std::env;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::{Netns, World, raise_descriptor_limit, run};

/// The daemon, as cargo has built it for these tests.
pub const PEPD: &str = env!("CARGO_BIN_EXE_pepd");

/// The time that an event may take before a test fails. Not a measurement: machines are busy.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Set in a process that has been started for one test.
const OWN_PROCESS: &str = "PEPD_OWN_PROCESS";

/// Set in the guest by `cargo xtask vm --tests` while nothing else runs there.
const OWN_KERNEL: &str = "PEPD_OWN_KERNEL";

/// Takes the turn of the test that has thousands of descriptors open.
///
/// One at a time: both ends of its connections are this process's, and all together they are more
/// descriptors than some machines allow it.
///
/// # Errors
/// When the limit of open descriptors cannot be raised.
pub fn many_descriptors() -> Result<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    raise_descriptor_limit()?;
    Ok(turn)
}

/// Returns whether this process is `test`'s alone, named with its modules. If not, it is run in one
/// that is, and nothing is left to do here.
///
/// # Errors
/// When the test fails there; the message has what it said.
pub fn has_own_process(test: &str) -> Result<bool> {
    if env::var_os(OWN_PROCESS).is_some() {
        return Ok(true);
    }
    let mut itself = Command::new(env::current_exe()?);
    itself.args(["--exact", test]).env(OWN_PROCESS, "1");
    let said = run(&mut itself, LIMIT)?.success()?;
    ensure!(said.contains(" 1 passed"), "no test `{test}`: {said}");
    Ok(false)
}

/// Returns whether the kernel is one test's alone, which may then change it for all namespaces.
pub fn has_own_kernel() -> bool {
    env::var_os(OWN_KERNEL).is_some()
}

/// Returns how many packets a counter of the box's table has counted.
pub fn count(world: &World, counter: &str) -> Result<u64> {
    count_at(world.hb(), counter)
}

/// The same of any box.
pub fn count_at(node: &Netns, counter: &str) -> Result<u64> {
    let listed = node.sh(&format!("nft list counter inet pepd {counter}"))?;
    let mut words = listed.split_whitespace();
    words.find(|word| *word == "packets").context("packets")?;
    Ok(words.next().context("a number")?.parse()?)
}

/// Lets so much time pass. `park_timeout` alone comes back early where something before has left its thread a token, and
/// what has to take long, such as an outage, would not.
pub fn pass(time: Duration) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

/// Returns a counter of the TcpExt rows of /proc/net/netstat.
///
/// # Errors
/// When there is none of this name.
pub fn extended_counter(netns: &Netns, name: &str) -> Result<u64> {
    let text = netns.run(|| Ok(std::fs::read_to_string("/proc/thread-self/net/netstat")?))?;
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let names = rows.next().context("no names")?;
    let values = rows.next().context("no values")?;
    let mut fields = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = fields
        .find(|(field, _)| *field == name)
        .context("no such counter")?;
    Ok(value.parse()?)
}

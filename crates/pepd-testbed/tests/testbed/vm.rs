//! Boots real guests: what goes in, what comes out, how they end.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use pepd_testbed::vm::{self, Clock, Ended, Guest, Kernel, KernelPackage, Run};
use tempfile::TempDir;

/// A guest's output, and the folder that it wrote to.
struct Outcome {
    run: Run,
    stdout: String,
    stderr: String,
    results: TempDir,
}

/// Returns the kernel, or `None` where no guest can run.
fn kernel() -> Option<Kernel> {
    if env::var_os("PEPD_GUEST").is_some() {
        println!("not run: this is a guest already");
        return None;
    }
    let mut say = |text: &str| println!("{text}");
    match Kernel::prepare(&KernelPackage::default(), &mut say) {
        Ok(kernel) => Some(kernel),
        // Anything else is a failure of what is tested here.
        Err(error @ (vm::Error::Missing(_) | vm::Error::Architecture(_))) => {
            pepd_testbed::report_skip("guest kernel", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn guest() -> Guest {
    Guest::new(Path::new(env!("CARGO_MANIFEST_DIR")))
        .memory(vm::Mebibytes::new(1024).unwrap())
        .timeout(Duration::from_secs(400))
}

fn run(guest: &Guest, kernel: &Kernel, script: &str) -> Outcome {
    let results = TempDir::new().unwrap();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let command = ["sh", "-c", script].map(OsString::from);
    let run = guest
        .run(kernel, &command, results.path(), &mut stdout, &mut stderr)
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome {
        run,
        stdout: text(stdout),
        stderr: text(stderr),
        results,
    }
}

#[test]
fn status_output_environment_and_results_come_back() {
    let Some(kernel) = kernel() else { return };
    let own = env::temp_dir().join("written-by-a-guest");
    let guest = guest().env("PEPD_WORD", "it's $here").env("OWN", &own);
    let outcome = run(
        &guest,
        &kernel,
        r#"pwd; echo "$PEPD_WORD"; echo aside >&2; seq 100000 | tail -n 1
           echo 1 >"$OWN"; mkdir "$PEPD_RESULTS/sub"; seq 100000 >"$PEPD_RESULTS/sub/numbers"
           sleep 1000 & exit 7"#,
    );
    assert_eq!(outcome.run.ended, Ended::Exited(7), "{}", outcome.stderr);
    let directory = env!("CARGO_MANIFEST_DIR");
    assert_eq!(outcome.stdout, format!("{directory}\nit's $here\n100000\n"));
    assert_eq!(outcome.stderr, "aside\n");
    let numbers = fs::read_to_string(outcome.results.path().join("sub/numbers")).unwrap();
    assert_eq!(numbers.lines().count(), 100_000);
    assert!(!own.exists(), "only results may reach the host");
}

#[test]
fn the_kernel_has_what_tests_need() {
    let Some(kernel) = kernel() else { return };
    let outcome = run(
        &guest(),
        &kernel,
        "set -e
         for module in ipip sit ip6_tunnel veth sch_netem sch_fq nft_tproxy nft_socket nft_queue \
             nft_fib_inet nft_reject_inet nfnetlink_queue tcp_bbr tcp_hybla tcp_westwood \
             tcp_vegas tcp_illinois tcp_dctcp; do
             modprobe $module
         done
         grep -q bbr /proc/sys/net/ipv4/tcp_available_congestion_control
         test -c /dev/net/tun
         test \"$(cat /sys/class/net/lo/carrier)\" = 1
         grep -q ' /sys/fs/cgroup cgroup2 ' /proc/mounts
         grep -q ' /sys/fs/bpf bpf ' /proc/mounts
         test \"$(ulimit -n)\" -ge 1000000
         test -d /run/netns
         echo via >/dev/stderr",
    );
    assert_eq!(outcome.run.ended, Ended::Exited(0), "{}", outcome.stderr);
    assert_eq!(outcome.stderr, "via\n");
}

#[test]
fn a_panic_and_a_time_limit_end_the_guest() {
    let Some(kernel) = kernel() else { return };
    let panicked = run(
        &guest(),
        &kernel,
        "echo before; echo c >/proc/sysrq-trigger; sleep 1000",
    );
    assert!(
        matches!(&panicked.run.ended, Ended::Died(console) if console.contains("Kernel panic")),
        "{:?}",
        panicked.run
    );
    // All of what it said last may be lost with it.
    assert!(
        "before\n".starts_with(&panicked.stdout),
        "{}",
        panicked.stdout
    );

    // Whatever the limit falls on, boot or command, the guest is stopped.
    let brief = guest().timeout(Duration::from_secs(8));
    let stopped = run(&brief, &kernel, "sleep 100000");
    assert!(
        matches!(stopped.run.ended, Ended::TimedOut(_)),
        "{:?}",
        stopped.run
    );
}

#[test]
fn virtual_time_skips_idleness_and_reads_copies_from_memory() {
    let Some(kernel) = kernel() else { return };
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    fs::write(&data, vec![7; 1 << 20]).unwrap();
    let guest = guest()
        .clock(Clock::Virtual)
        .timeout(Duration::from_secs(1800))
        .copy(data.as_os_str())
        .copy("sh".as_ref())
        .copy("sleep".as_ref())
        .env("DATA", &data);
    // A day of the guest's is far beyond the limit on the host's clock.
    let outcome = run(
        &guest,
        &kernel,
        r#"nproc; read before rest </proc/uptime; sleep 86400; read after rest </proc/uptime
           echo $((${after%.*} - ${before%.*})); wc -c <"$DATA""#,
    );
    assert_eq!(outcome.run.ended, Ended::Exited(0), "{}", outcome.stderr);
    let numbers: Vec<u64> = outcome
        .stdout
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    let [processors, slept, size] = numbers[..] else {
        panic!("{}", outcome.stdout)
    };
    assert_eq!((processors, size), (1, 1 << 20));
    assert!((86_400..90_000).contains(&slept), "{slept}");
}

#[test]
fn what_cannot_be_copied_is_said_before_anything_starts() {
    let Some(kernel) = kernel() else { return };
    let results = TempDir::new().unwrap();
    let guest = guest().copy("no-such-thing".as_ref());
    let error = guest
        .run(
            &kernel,
            &["true".into()],
            results.path(),
            &mut Vec::new(),
            &mut Vec::new(),
        )
        .unwrap_err();
    assert!(matches!(error, vm::Error::NothingToCopy(_)), "{error}");
    assert_eq!(error.exit_code(), 66);
}

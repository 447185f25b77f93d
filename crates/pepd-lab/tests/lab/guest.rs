//! An experiment from the command to the report, in the guest kernel and in virtual time.

use std::env;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use pepd_testbed::vm::{self, Kernel, KernelPackage};
use pepd_testbed::{report_skip, run};

const LAB: &str = env!("CARGO_BIN_EXE_pepd-lab");
/// A build of the daemon, and a guest, on a busy machine.
const LIMIT: Duration = Duration::from_secs(3600);

/// Three helper boxes joined by tunnels for two seconds: links, tunnels, daemons, modules,
/// what is copied into the guest, the clock and the report all have to work together.
#[test]
fn three_boxes_in_virtual_time_from_the_command_to_the_report() -> Result<()> {
    if env::var_os("PEPD_GUEST").is_some() {
        println!("not run: this is a guest already");
        return Ok(());
    }
    match Kernel::prepare(&KernelPackage::default(), &mut |text| println!("{text}")) {
        Ok(_) => {}
        Err(error @ (vm::Error::Missing(_) | vm::Error::Architecture(_))) => {
            report_skip("guest kernel", &error.to_string());
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(LAB);
    command.args(["run", "jain-ott-fig6", "--quick", "--repeats=1", "--at=5"]);
    command.args(["--variant=pepd, bbr", "--warm-up=1s", "--window=1s"]);
    command.arg("--folder");
    command.arg(folder.path());
    let finished = run(&mut command, LIMIT)?;
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.stdout.contains("virtual time"), "{finished:?}");

    let text = fs::read_to_string(folder.path().join("results.json"))?;
    let results: serde_json::Value = serde_json::from_str(&text)?;
    let outcome = &results["experiments"]["jain-ott-fig6"];
    assert_eq!(outcome["setting"]["virtual_time"], true);
    let records = outcome["records"].as_array().unwrap();
    assert_eq!(records.len(), 1, "{records:?}");
    for record in records {
        assert!(record["value"].as_f64().unwrap() > 0.0, "{record}");
        // Otherwise the clock ran on while the guest waited for the host.
        assert_eq!(record["host_requests"], 0, "{record}");
    }
    let page = fs::read_to_string(folder.path().join("report.html"))?;
    assert!(page.contains("id=\"jain-ott-fig6\""), "{page}");
    Ok(())
}

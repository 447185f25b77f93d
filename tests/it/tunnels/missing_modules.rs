//! A kernel without the tunnels' modules.

use std::fs;
use std::process::Command;

use anyhow::Result;
use pepd_testbed::{Family, Fleet, Pepd, Requirement, missing, report_missing, require};

use crate::harness::{PEPD, has_own_kernel};

/// The file that tells modprobe(8) what not to load; in the guest, in memory.
const REFUSAL: &str = "/run/modprobe.d/pepd-test.conf";
const MODULES: [&str; 3] = ["ipip", "sit", "ip6_tunnel"];

/// In the guest, a guard: the modules are unloaded and stay so while this lives.
struct Unloaded;

impl Unloaded {
    fn new() -> Result<Self> {
        fs::create_dir_all("/run/modprobe.d")?;
        let refusal: String = MODULES
            .iter()
            .map(|module| format!("install {module} /bin/false\n"))
            .collect();
        fs::write(REFUSAL, refusal)?;
        let unloaded = Self;
        let mut modprobe = Command::new("modprobe");
        let status = modprobe.arg("-r").args(MODULES).status()?;
        assert!(status.success(), "modprobe -r: {status}");
        Ok(unloaded)
    }
}

impl Drop for Unloaded {
    fn drop(&mut self) {
        let _ = fs::remove_file(REFUSAL);
    }
}

#[test]
fn it_is_named_with_its_package_and_nothing_is_half_installed() -> Result<()> {
    require!(root);
    let mut unloaded = None;
    if missing(Requirement::Tunnels).is_none() {
        if !has_own_kernel() {
            let why = "this kernel has the tunnels, and only the guest's may be taken away, while \
                       nothing else runs there";
            report_missing("tunnels::missing_modules", Requirement::Tunnels, why);
            return Ok(());
        }
        unloaded = Some(Unloaded::new()?);
    }
    let fleet = Fleet::chain()?;
    let before = fleet.kernel_state("i")?;
    for (outer, inner, module) in [
        (Family::V4, &[Family::V4][..], "modprobe ipip"),
        (Family::V4, &Family::BOTH, "modprobe sit"),
        (Family::V6, &Family::BOTH, "modprobe ip6_tunnel"),
    ] {
        let config = fleet.config("i", outer, inner)?;
        let (status, log) = Pepd::builder(PEPD).fails(fleet.helper("i"), &config)?;
        assert_eq!(status.code(), Some(69), "{log}");
        assert!(
            log.contains(module) && log.contains("linux-image-amd64"),
            "{log}"
        );
        assert_eq!(fleet.kernel_state("i")?, before);
    }
    drop(unloaded);
    Ok(())
}

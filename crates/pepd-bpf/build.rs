//! Compiles the BPF program with clang.

use std::env;
use std::path::Path;
use std::process::Command;

const FOLDER: &str = "src/bpf";
const SOURCE: &str = "src/bpf/leg_rate.bpf.c";

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed={FOLDER}");
    println!("cargo::rerun-if-env-changed=CLANG");
    if env::var_os("CARGO_FEATURE_LOAD").is_none() {
        return Ok(());
    }
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = env::var("OUT_DIR").map_err(|error| format!("OUT_DIR: {error}"))?;
    let endian = env::var("CARGO_CFG_TARGET_ENDIAN").unwrap_or_default();
    let target = if endian == "big" { "bpfeb" } else { "bpfel" };
    let status = Command::new(&clang)
        .args([
            "-target", target, "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror",
        ])
        .args(["-c", SOURCE, "-o"])
        .arg(Path::new(&out).join("leg_rate.bpf.o"))
        .status()
        .map_err(|error| {
            format!(
                "cannot run {clang}: {error}. The feature needs \
                 clang, make, pkgconf, libelf-dev and zlib1g-dev (apt-get install clang make \
                 pkgconf libelf-dev zlib1g-dev); CLANG names another clang"
            )
        })?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{clang}` does not compile {SOURCE}: {status}"))
    }
}

//! The release build of the real binary.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Builds `pepd` as it is installed, and says where it is.
///
/// # Errors
/// When it does not build; Cargo has said why.
pub fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--release", "--package", "pepd", "--bin", "pepd"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "pepd does not build: see Cargo's message above"
    );
    executable(&String::from_utf8_lossy(&output.stdout))
        .context("cargo has not said where the binary is")
}

/// The one `executable` among Cargo's messages, one JSON object per line.
fn executable(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)))
}

#[cfg(test)]
mod tests {
    use super::executable;

    #[test]
    fn the_executable_is_found_among_other_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
            {\"reason\":\"compiler-artifact\",\"executable\":\"/t/release/pepd\"}\n\
            {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some("/t/release/pepd".into()));
        assert_eq!(executable("{\"reason\":\"build-finished\"}"), None);
    }
}

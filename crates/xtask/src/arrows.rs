//! The workspace stays as ARCHITECTURE.md draws it: which crates may use which others, and what
//! must not come into the build of one through any number of crates.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::Result;
use pepd_testbed::require;
use serde_json::Value;

/// Each crate that pepd consists of, and those of them that it may use. The relay and the kernel's
/// state do not see one another, and neither sees the configuration or what the outside is told.
const MAY_USE: &[(&str, &[&str])] = &[
    ("pepd-packet", &[]),
    ("pepd-dlep", &[]),
    ("pepd-model", &[]),
    ("pepd-telemetry", &[]),
    ("pepd-hold", &["pepd-model", "pepd-packet"]),
    ("pepd-worth", &["pepd-packet"]),
    ("pepd-move", &["pepd-packet"]),
    ("pepd-sys", &["pepd-packet"]),
    ("pepd-bpf", &["pepd-sys"]),
    ("pepd-config", &["pepd-dlep", "pepd-packet"]),
    ("pepd-net", &["pepd-packet", "pepd-sys"]),
    (
        "pepd-relay",
        &["pepd-model", "pepd-packet", "pepd-sys", "pepd-telemetry"],
    ),
    ("pepd-admin", &["pepd-model", "pepd-telemetry"]),
    (
        "pepd",
        &[
            "pepd-admin",
            "pepd-bpf",
            "pepd-config",
            "pepd-dlep",
            "pepd-hold",
            "pepd-model",
            "pepd-move",
            "pepd-net",
            "pepd-packet",
            "pepd-relay",
            "pepd-sys",
            "pepd-telemetry",
            "pepd-worth",
        ],
    ),
];

/// What serves HTTP and writes metrics, which is pepd-admin's alone.
const OUTSIDE: &[&str] = &["axum", "hyper", "hyper-util", "prometheus-client"];

/// Those that must build without [`OUTSIDE`].
const INSIDE: &[&str] = &[
    "pepd-packet",
    "pepd-dlep",
    "pepd-model",
    "pepd-hold",
    "pepd-worth",
    "pepd-move",
    "pepd-telemetry",
    "pepd-bpf",
    "pepd-sys",
    "pepd-config",
    "pepd-net",
    "pepd-relay",
];

/// Those of them that must build without a runtime: they do no I/O.
const PURE: &[&str] = &[
    "pepd-packet",
    "pepd-dlep",
    "pepd-model",
    "pepd-hold",
    "pepd-worth",
    "pepd-move",
    "pepd-telemetry",
    "pepd-config",
];

/// Runs cargo in the workspace, without the network: what this test was built from is there.
fn cargo(arguments: &[&str]) -> String {
    let output = Command::new("cargo")
        .args(arguments)
        .args(["--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns all that comes into the build of `package`, tests aside.
fn tree(package: &str) -> BTreeSet<String> {
    let lines = cargo(&[
        "tree",
        "--package",
        package,
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let names = lines.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn crates_use_only_those_below_them() -> Result<()> {
    require!(program("cargo"));
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let house: BTreeSet<_> = packages.iter().map(|it| text(&it["name"])).collect();
    for (name, allowed) in MAY_USE {
        let package = packages.iter().find(|package| package["name"] == *name);
        let dependencies = package.unwrap()["dependencies"].as_array().unwrap();
        let used = dependencies
            .iter()
            .filter(|dependency| dependency["kind"] != "dev")
            .map(|dependency| text(&dependency["name"]))
            .filter(|dependency| house.contains(dependency));
        for dependency in used {
            assert!(
                allowed.contains(&&*dependency),
                "{name} must not use {dependency}"
            );
        }
    }
    Ok(())
}

#[test]
fn the_relay_and_all_below_it_build_without_http() -> Result<()> {
    require!(program("cargo"));
    for package in INSIDE {
        let tree = tree(package);
        assert!(tree.contains(*package), "{tree:?}");
        let runtime = PURE.contains(package).then_some("tokio");
        for unwanted in OUTSIDE.iter().copied().chain(runtime) {
            assert!(!tree.contains(unwanted), "{package} builds {unwanted}");
        }
    }
    Ok(())
}

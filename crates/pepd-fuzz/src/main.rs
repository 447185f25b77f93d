//! libFuzzer over one target, which `PEPD_FUZZ_TARGET` names; `cargo xtask fuzz` starts it.

#![no_main]
#![allow(unsafe_code, reason = "libFuzzer calls a function by its name")]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use pepd_fuzz::Target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("PEPD_FUZZ_TARGET").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| panic!("PEPD_FUZZ_TARGET: no target is named `{name}`"))
});

fuzz_target!(|input: &[u8]| (TARGET.run)(input));

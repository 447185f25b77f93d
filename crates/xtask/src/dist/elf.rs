//! What a program needs to be loaded.

use anyhow::{Result, ensure};

use object::Endianness;
use object::elf::{DT_NEEDED, EM_AARCH64, EM_X86_64, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};

use crate::cross::Target;

/// Makes sure that a program is for `target`, and that the kernel alone loads it: it names no loader
/// (`PT_INTERP`) and no library (`DT_NEEDED`, elf(5)).
///
/// # Errors
/// When that is not so, or it is no program.
pub fn is_static(program: &[u8], target: Target) -> Result<()> {
    let header = FileHeader64::<Endianness>::parse(program)?;
    let endian = header.endian()?;
    let machine = match target {
        Target::Aarch64 => EM_AARCH64,
        Target::X86_64 => EM_X86_64,
    };
    let its_own = header.e_machine(endian);
    ensure!(its_own == machine, "it is for machine {its_own} of elf.h");
    for part in header.program_headers(endian, program)? {
        ensure!(part.p_type(endian) != PT_INTERP, "it names a loader");
        let entries = part.dynamic(endian, program)?.unwrap_or_default();
        let needed = entries.iter().any(|entry| entry.tag(endian) == DT_NEEDED);
        ensure!(!needed, "it needs libraries");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;

    /// This test itself has a loader, where it has not been built for musl.
    #[test]
    #[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
    fn a_program_with_a_loader_is_not_static() -> Result<()> {
        let own = fs::read(env::current_exe()?)?;
        let error = is_static(&own, Target::X86_64).unwrap_err();
        assert!(error.to_string().contains("loader"), "{error}");
        let error = is_static(&own, Target::Aarch64).unwrap_err();
        assert!(error.to_string().contains("machine 62"), "{error}");
        Ok(())
    }

    #[test]
    fn what_is_no_program_is_refused() {
        is_static(b"", Target::X86_64).unwrap_err();
        is_static(&[0; 200], Target::X86_64).unwrap_err();
    }
}

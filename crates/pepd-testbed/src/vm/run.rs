//! One guest from its start to its end.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use super::error::Result;
use super::guest::Guest;
use super::kernel::Kernel;
use super::machine::Machine;
use super::outcome::Run;
use super::script::Script;
use super::session;

impl Guest {
    /// Boots `kernel`, runs `command` in it as root and passes its output on as it comes.
    /// `results` must exist; the guest writes to it as [`RESULTS`](super::RESULTS).
    ///
    /// QEMU ends with the calling thread, however that ends.
    ///
    /// # Errors
    /// What kept the guest from being started. What goes wrong inside it is in [`Run::ended`].
    pub fn run(
        &self,
        kernel: &Kernel,
        command: &[OsString],
        results: &Path,
        stdout: &mut (dyn Write + Send),
        stderr: &mut (dyn Write + Send),
    ) -> Result<Run> {
        let script = Script::new(self, kernel, command)?;
        let started = Instant::now();
        let machine = Machine::start(self, kernel, results)?;
        session::run(machine, &script, started, self.timeout, stdout, stderr)
    }
}

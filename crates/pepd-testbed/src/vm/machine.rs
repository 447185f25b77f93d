//! QEMU: its command line, its channels, its end.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::error::{Error, Result};
use super::guest::{Clock, Guest};
use super::kernel::Kernel;
use super::programs::{command, find, name};

/// `panic=-1` restarts at once, which with `-no-reboot` ends QEMU; an oops is turned into a panic,
/// so that a test cannot pass in a damaged kernel. An emulated processor that has to wait for a
/// busy host looks stuck to the watchdogs.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable \
    random.trust_cpu=1 nowatchdog rcupdate.rcu_cpu_stall_suppress=1 cryptomgr.notests";

/// The kernel parameter that has the kernel preempted wherever it can be
/// (`CONFIG_PREEMPT_DYNAMIC`). On the only processor of a guest with a clock of its own a link's
/// thread would otherwise wait for whatever system call is under way, which at a nanosecond an
/// instruction can take a millisecond.
const PREEMPTED: &str = " preempt=full";

/// The kernel parameter that gives a guest on the host's clock a clock whose frequency is given.
/// That of the processor's counter is measured while the guest boots, and where the host has no
/// time for it just then the guest's seconds may be a tenth as long, and whatever waits in it gives
/// up early.
const STEADY: &str = " clocksource=hpet";

/// The bytes of the console that are kept.
const CONSOLE_KEPT: usize = 8192;

/// A running QEMU. It is killed when this is dropped, and when the thread that started it ends
/// in any other way.
pub(super) struct Machine {
    qemu: Child,
    channels: Channels,
    console: Arc<Mutex<VecDeque<u8>>>,
}

/// The host's ends of the guest's virtio ports.
pub(super) struct Channels {
    pub(super) control: UnixStream,
    pub(super) out: UnixStream,
    pub(super) err: UnixStream,
}

impl Machine {
    pub(super) fn start(guest: &Guest, kernel: &Kernel, results: &Path) -> Result<Self> {
        let mut arguments = fixed_arguments(guest, kernel);
        for (tag, path, options) in [
            ("root", Path::new("/"), "readonly=on"),
            ("results", results, "readonly=off"),
        ] {
            arguments.extend(share(tag, path, options));
        }
        arguments.extend(["-device", "virtio-serial-pci"].map(OsString::from));
        // QEMU inherits its ends; the copies here are closed when it has started.
        let mut inherited = Vec::new();
        let mut port = |name: &str| -> Result<UnixStream> {
            let (ours, theirs) = UnixStream::pair().map_err(Error::system("make a socket"))?;
            arguments.extend(port_arguments(name, &theirs));
            inherited.push(inheritable(theirs)?);
            Ok(ours)
        };
        let channels = Channels {
            control: port("control")?,
            out: port("out")?,
            err: port("err")?,
        };

        // The kernel kills QEMU when this process is gone, even by SIGKILL.
        let mut command = command("setpriv");
        let program = name(&command);
        let qemu = find("qemu-system-x86_64".as_ref()).unwrap_or_default();
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(qemu)
            .args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut qemu = command
            .spawn()
            .map_err(|source| Error::Spawn { program, source })?;

        let console = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stdout) = qemu.stdout.take() {
            keep_tail(stdout, Arc::clone(&console));
        }
        if let Some(stderr) = qemu.stderr.take() {
            keep_tail(stderr, Arc::clone(&console));
        }
        Ok(Self {
            qemu,
            channels,
            console,
        })
    }

    pub(super) fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Ends QEMU, if it has not ended by itself. What the guest sent before can still be read
    /// from the channels, which then are at their end.
    pub(super) fn stop(&mut self) {
        // Fails only if it has been waited for.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        for channel in [
            &self.channels.control,
            &self.channels.out,
            &self.channels.err,
        ] {
            // Another child of this process, started meanwhile, may hold the other end.
            let _ = channel.shutdown(Shutdown::Both);
        }
    }

    /// Returns the end of what the guest's kernel and QEMU wrote.
    pub(super) fn console(&self) -> String {
        let mut kept = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(kept.make_contiguous())
            .trim()
            .replace('\r', "")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

fn fixed_arguments(guest: &Guest, kernel: &Kernel) -> Vec<OsString> {
    let clock: &[&str] = match guest.clock {
        Clock::Host => &["-accel", "tcg,thread=multi"],
        Clock::Virtual => &[
            "-accel",
            "tcg,thread=single",
            "-icount",
            "shift=0,sleep=off,align=off",
            "-rtc",
            "clock=vm",
        ],
    };
    let mut arguments: Vec<OsString> = [
        "-machine",
        "q35",
        "-cpu",
        "max",
        "-display",
        "none",
        "-no-reboot",
        "-nodefaults",
        "-no-user-config",
        "-net",
        "none",
        "-chardev",
        "stdio,id=console,signal=off",
        "-serial",
        "chardev:console",
    ]
    .iter()
    .chain(clock)
    .map(OsString::from)
    .collect();
    for (option, value) in [
        ("-smp", guest.effective_processors().to_string().into()),
        ("-m", format!("{}M", guest.memory.0).into()),
        ("-kernel", kernel.image.clone().into_os_string()),
        ("-initrd", kernel.initramfs.clone().into_os_string()),
        ("-append", command_line(guest.clock).into()),
    ] {
        arguments.extend([OsString::from(option), value]);
    }
    arguments
}

fn command_line(clock: Clock) -> String {
    let of_the_clock = match clock {
        Clock::Host => STEADY,
        Clock::Virtual => PREEMPTED,
    };
    format!("{COMMAND_LINE}{of_the_clock}")
}

/// Returns a directory of the host as a 9p file system.
fn share(tag: &str, path: &Path, options: &str) -> [OsString; 4] {
    let mut backend = OsString::from(format!(
        "local,id={tag},security_model=none,multidevs=remap,{options},path="
    ));
    // QEMU's way to write a comma inside a value.
    backend.push(doubled_commas(path));
    let device = format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}");
    ["-fsdev".into(), backend, "-device".into(), device.into()]
}

fn doubled_commas(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_encoded_bytes();
    let doubled = bytes
        .iter()
        .flat_map(|&byte| std::iter::repeat_n(byte, if byte == b',' { 2 } else { 1 }));
    std::os::unix::ffi::OsStringExt::from_vec(doubled.collect())
}

fn port_arguments(name: &str, theirs: &UnixStream) -> [OsString; 4] {
    let descriptor = theirs.as_raw_fd();
    [
        "-chardev".into(),
        format!("socket,id={name},fd={descriptor}").into(),
        "-device".into(),
        format!("virtserialport,chardev={name},name={name}").into(),
    ]
}

fn inheritable(stream: UnixStream) -> Result<OwnedFd> {
    let descriptor = OwnedFd::from(stream);
    fcntl(&descriptor, FcntlArg::F_SETFD(FdFlag::empty()))
        .map_err(|errno| Error::system("pass a socket to QEMU")(errno.into()))?;
    Ok(descriptor)
}

/// Reads `source` to its end on a thread of its own and keeps the last bytes.
fn keep_tail(mut source: impl Read + Send + 'static, kept: Arc<Mutex<VecDeque<u8>>>) {
    thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(length @ 1..) = source.read(&mut buffer) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(&buffer[..length]);
            let excess = kept.len().saturating_sub(CONSOLE_KEPT);
            kept.drain(..excess);
        }
    });
}

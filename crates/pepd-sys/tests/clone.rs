//! A child that shares its parent's descriptors. A process of its own: the test harness has threads.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use pepd_sys::descriptors::Left;
use pepd_sys::pipe::Pipe;
use pepd_sys::process::{clone_sharing_descriptors, wait_for_signal};
use pepd_sys::shared::SharedWords;

fn main() {
    let shared = SharedWords::new(4).unwrap();
    let mut sender = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = listener.accept().unwrap().0;
        // It is the table's, not this process's any more.
        let receiver = receiver.into_raw_fd();
        let child = clone_sharing_descriptors(|| die(&shared, receiver)).unwrap();
        assert_eq!(wait(child), libc::SIGABRT, "it ends as it did");
        sender
    };
    std::io::Write::write_all(&mut sender, b"and what came later").unwrap();
    let child = clone_sharing_descriptors(|| go_on(&shared, &sender)).unwrap();
    assert_eq!(wait(child), 7, "what it returns");
    let child = clone_sharing_descriptors(|| panic!("it is caught, and told here")).unwrap();
    assert_eq!(wait(child), 101);
    let child = clone_sharing_descriptors(|| dive(0)).unwrap();
    assert_eq!(wait(child), libc::SIGSEGV, "at the end of its stack");
    assert_eq!(
        wait_for_signal(&[libc::SIGUSR1], Duration::ZERO).unwrap(),
        None
    );
}

/// Finds what the other one has left, and reads on where that was.
fn go_on(shared: &SharedWords, sender: &TcpStream) -> i32 {
    let words = shared.words();
    let mut left = Left::find(&[shared.as_fd(), sender.as_fd()]).unwrap();
    assert!(left.get(shared.as_fd().as_raw_fd()).is_none());
    let number = |word: usize| i32::try_from(words[word].load(Acquire)).unwrap();
    let read = left.take(number(1)).unwrap();
    let write = left.take(number(2)).unwrap();
    assert!(left.take(number(1)).is_none(), "twice");
    let pipe = Pipe::adopt(read, write).unwrap();
    assert_eq!(pipe.inode(), words[3].load(Acquire));
    assert_eq!(pipe.held().unwrap(), 5);
    let mut bytes = [0; 16];
    assert_eq!(pipe.read(&mut bytes).unwrap(), 5);
    assert_eq!(&bytes[..5], b"bytes");
    let socket = left.take(number(0)).unwrap();
    assert!(left.get(number(0)).is_none(), "taken");
    let mut socket = TcpStream::from(socket);
    let mut text = [0; 19];
    // In another thread, which the C library has to be able to make here.
    std::thread::scope(|scope| scope.spawn(|| socket.read_exact(&mut text).unwrap()).join())
        .unwrap();
    assert_eq!(&text, b"and what came later");
    drop(left);
    7
}

/// Calls itself without end.
#[expect(unconditional_recursion, reason = "the end of the stack is")]
fn dive(depth: u64) -> i32 {
    std::hint::black_box([depth; 512]);
    dive(depth + 1) + 1
}

/// Leaves a socket and a pipe with bytes in the table, and ends as a program does that has found a
/// mistake of its own: raise(3) must know which thread it is.
fn die(shared: &SharedWords, receiver: i32) -> i32 {
    let words = shared.words();
    let pipe = Pipe::new(65536).unwrap();
    let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut near, b"bytes").unwrap();
    assert_eq!(pipe.fill(far.as_fd(), 65536).unwrap(), 5);
    let (read, write) = pipe.ends();
    for (word, value) in words.iter().zip([receiver, read, write]) {
        word.store(u64::try_from(value).unwrap(), Release);
    }
    words[3].store(pipe.inode(), Release);
    std::mem::forget(pipe);
    std::process::abort()
}

/// Gives the signal that has ended a child, or its exit code.
fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the kernel writes one int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    match libc::WIFSIGNALED(status) {
        true => libc::WTERMSIG(status),
        false => libc::WEXITSTATUS(status),
    }
}

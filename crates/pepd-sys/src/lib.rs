//! The system calls pepd needs and no crate offers safely.

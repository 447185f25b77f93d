//! What the kernel gives of all the ICMP that comes from a peer's address: programs of the classic BPF
//! (Documentation/networking/filter.rst).
//!
//! Anybody may send in the peer's name as much as he likes, and a socket has room for some hundred packets.
//! Where only what nobody else can make comes into it, nothing is displaced.

use socket2::SockFilter;

use super::echo::Answer;

/// Instructions (include/uapi/linux/bpf_common.h): load a byte, half a word or a word from so many bytes
/// behind the header, and go on where it is this.
const LOAD_BYTE: u16 = 0x50;
const LOAD_HALF: u16 = 0x48;
const LOAD_WORD: u16 = 0x40;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Where the ICMP message begins: behind an IPv4 header of any length, or at once.
const BEHIND_IPV4: SockFilter = instruction(0xb1, 0, 0);
const AT_ONCE: SockFilter = instruction(0x01, 0, 0);

/// Lets through what answers.
pub fn answers(answer: Answer, is_v6: bool) -> Vec<SockFilter> {
    let [a, b, c, d, e, f, g, h] = answer.nonce;
    let wanted = [
        (LOAD_BYTE, 0, answer.kind.into()),
        (LOAD_HALF, 4, answer.identifier.into()),
        (LOAD_WORD, 8, u32::from_be_bytes([a, b, c, d])),
        (LOAD_WORD, 12, u32::from_be_bytes([e, f, g, h])),
    ];
    program(&wanted, is_v6)
}

/// Lets through messages of one type.
pub fn only(kind: u8, is_v6: bool) -> Vec<SockFilter> {
    program(&[(LOAD_BYTE, 0, kind.into())], is_v6)
}

/// Lets through what has these values at these places, and is as long as that.
fn program(wanted: &[(u16, u32, u32)], is_v6: bool) -> Vec<SockFilter> {
    let mut program = vec![if is_v6 { AT_ONCE } else { BEHIND_IPV4 }];
    for &(load, at, value) in wanted {
        program.push(instruction(load, 0, at));
        // Over the end of the program, which comes next, or to it.
        program.push(instruction(JUMP_IF_EQUAL, 1, value));
        program.push(instruction(RETURN, 0, 0));
    }
    program.push(instruction(RETURN, 0, u32::MAX));
    program
}

const fn instruction(code: u16, skipped_if_true: u8, value: u32) -> SockFilter {
    SockFilter::new(code, skipped_if_true, 0, value)
}

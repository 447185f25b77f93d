//! An instruction of BPF, as a compiler has written it and the kernel wants it (`struct bpf_insn`, linux/bpf.h).

/// What an instruction consists of: a code, two registers, an offset and an operand.
pub(crate) type Instruction = [u8; 8];

/// A call of a function that no kernel has (BPF_JMP | BPF_CALL): of that number in any byte order.
pub(crate) const UNKNOWN_CALL: Instruction = [0x85, 0, 0, 0, 0xbd, 0xbd, 0xbd, 0xbd];

/// What an instruction does, as far as something is put into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Reads or writes memory at its offset.
    Memory,
    /// Computes with its operand.
    Computes,
    /// Has a value of 64 bits in its operand and that of the next one.
    Wide,
}

/// Returns the form of an instruction; none for one that nothing is put into.
pub(crate) fn form(instruction: Instruction) -> Option<Form> {
    const OPERAND_IS_REGISTER: u8 = 8;
    let [code, ..] = instruction;
    match code & 7 {
        // BPF_LD | BPF_IMM | BPF_DW.
        0 if code == 0x18 => Some(Form::Wide),
        // BPF_LDX, BPF_ST, BPF_STX.
        1..=3 => Some(Form::Memory),
        // BPF_ALU, BPF_ALU64.
        4 | 7 if code & OPERAND_IS_REGISTER == 0 => Some(Form::Computes),
        _ => None,
    }
}

/// The codes of sizes, and these in bytes.
const SIZES: [(u8, u32); 4] = [(0x00, 4), (0x08, 2), (0x10, 1), (0x18, 8)];

/// Has an instruction read or write another number of bytes; none if there is no such instruction.
pub(crate) fn set_size(instruction: &mut Instruction, size: u32) -> Option<()> {
    let &(bits, _) = SIZES.iter().find(|(_, it)| *it == size)?;
    instruction[0] = instruction[0] & !0x18 | bits;
    Some(())
}

pub(crate) fn offset(instruction: Instruction) -> i16 {
    let [_, _, a, b, ..] = instruction;
    i16::from_ne_bytes([a, b])
}

pub(crate) fn set_offset(instruction: &mut Instruction, offset: i16) {
    [instruction[2], instruction[3]] = offset.to_ne_bytes();
}

pub(crate) fn operand(instruction: Instruction) -> u32 {
    let [.., a, b, c, d] = instruction;
    u32::from_ne_bytes([a, b, c, d])
}

pub(crate) fn set_operand(instruction: &mut Instruction, operand: u32) {
    let [.., a, b, c, d] = instruction;
    [*a, *b, *c, *d] = operand.to_ne_bytes();
}

/// Says what a wide instruction's value is (`BPF_PSEUDO_…`), in place of its source register.
pub(crate) fn set_source(instruction: &mut Instruction, source: u8) {
    let [_, registers, ..] = instruction;
    *registers = if cfg!(target_endian = "big") {
        *registers & 0xf0 | source
    } else {
        *registers & 0x0f | source << 4
    };
}

//! The attributes of bpf(2), a type for each command: those of `union bpf_attr` (linux/bpf.h), in its order,
//! up to the last one that is used.

/// What is asked for (`enum bpf_cmd`).
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    ProgramLoad = 5,
    MapGetNextId = 12,
    MapGetFdById = 14,
    ObjGetInfoByFd = 15,
    BtfLoad = 18,
    LinkCreate = 28,
}

/// Types that consist of numbers alone, without padding.
pub(super) trait Plain: Clone {}

impl Plain for MapCreate {}
impl Plain for MapElement {}
impl Plain for ProgramLoad {}
impl Plain for Id {}
impl Plain for InfoByFd {}
impl Plain for BtfLoad {}
impl Plain for LinkCreate {}

/// The length of a name, with the zero that ends it (`BPF_OBJ_NAME_LEN`).
const NAME: usize = 16;

/// Cuts a name to what fits.
pub(super) fn name(name: &str) -> [u8; NAME] {
    let mut field = [0; NAME];
    let bytes = name.bytes().take(NAME - 1);
    field
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = from);
    field
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct MapCreate {
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub inner_map: u32,
    pub numa_node: u32,
    pub map_name: [u8; NAME],
    pub map_interface: u32,
    pub btf_fd: i32,
    pub btf_key_type_id: u32,
    pub btf_value_type_id: u32,
    pub btf_vmlinux_value_type_id: u32,
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct MapElement {
    pub map: i32,
    pub padding: u32,
    pub key: u64,
    pub value: u64,
    pub flags: u64,
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct ProgramLoad {
    pub program_type: u32,
    pub instruction_count: u32,
    pub instructions: u64,
    pub license: u64,
    pub log_level: u32,
    pub log_size: u32,
    pub log: u64,
    pub kernel_version: u32,
    pub program_flags: u32,
    pub program_name: [u8; NAME],
    pub program_interface: u32,
    pub expected_attach_type: u32,
    pub btf_fd: u32,
    pub function_info_record: u32,
    pub function_info: u64,
    pub function_info_count: u32,
    pub line_info_record: u32,
    pub line_info: u64,
    pub line_info_count: u32,
    pub attach_btf_id: u32,
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct Id {
    pub start: u32,
    pub next: u32,
    pub open_flags: u32,
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct InfoByFd {
    pub descriptor: i32,
    pub length: u32,
    pub info: u64,
}

/// What the kernel tells of a map, the first of it (`struct bpf_map_info`).
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct MapInfo {
    pub map_type: u32,
    pub id: u32,
    pub key_size: u32,
    pub value_size: u32,
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct BtfLoad {
    pub types: u64,
    pub log: u64,
    pub size: u32,
    pub log_size: u32,
    pub log_level: u32,
    pub flags: u32,
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct LinkCreate {
    pub map: i32,
    pub target: u32,
    pub attach_type: u32,
    pub flags: u32,
}

//! The keys that each section of the file may have.

/// The sections of the file.
pub(crate) const ROOT: &[&str] = &[
    "node", "capture", "limits", "campus", "peer", "box", "link", "leg", "dlep", "rule", "measure",
    "move", "neighbor", "admin", "log",
];
/// `[node]`
pub(crate) const NODE: &[&str] = &["name", "workers", "user", "drain", "state"];
/// `[capture]`
pub(crate) const CAPTURE: &[&str] = &["port", "split", "handshake", "mark", "table"];
/// `[limits]`
pub(crate) const LIMITS: &[&str] = &[
    "connections",
    "connections_per_source",
    "pending",
    "memory",
    "ipv6_source_prefix",
];
/// `[[campus]]`
pub(crate) const CAMPUS: &[&str] = &["name", "prefixes", "via", "leg"];
/// `[[peer]]`
pub(crate) const PEER: &[&str] = &[
    "name",
    "local",
    "remote",
    "inside",
    "mtu",
    "ttl",
    "tos",
    "reverse_path_filter",
    "keep",
    "probe",
];
/// `[[box]]`
pub(crate) const BOX: &[&str] = &["name", "address", "campuses"];
/// `[[link]]`
pub(crate) const LINK: &[&str] = &[
    "boxes",
    "leg",
    "addresses",
    "mtu",
    "ttl",
    "tos",
    "reverse_path_filter",
    "keep",
    "probe",
];
/// `[leg.NAME]`
pub(crate) const LEG: &[&str] = &[
    "congestion",
    "buffer",
    "rate",
    "fast_open",
    "initial_window",
    "mss",
    "user_timeout",
    "rto_max",
    "keepalive",
    "dscp",
    "thin",
    "notsent_lowat",
    "connect_timeout",
    "link",
    "while_gone",
    "share",
];
/// `link` of a leg
pub(crate) const LEG_LINK: &[&str] = &["interface", "peer", "dlep"];
/// `keepalive` of a leg
pub(crate) const KEEPALIVE: &[&str] = &["idle", "interval", "count"];
/// `[[dlep]]`
pub(crate) const DLEP: &[&str] = &[
    "name",
    "interface",
    "modem",
    "port",
    "heartbeat",
    "destination",
    "ttl_security",
];
/// `[[rule]]`
pub(crate) const RULE: &[&str] = &[
    "source",
    "destination",
    "destination_port",
    "action",
    "handshake",
    "weight",
];
/// `[measure]`
pub(crate) const MEASURE: &[&str] = &["unsplit"];
/// `[move]`
pub(crate) const MOVE: &[&str] = &["listen"];
/// `[[neighbor]]`
pub(crate) const NEIGHBOR: &[&str] = &["name", "address", "via", "key"];
/// `[admin]`
pub(crate) const ADMIN: &[&str] = &["socket", "group", "metrics", "names"];

/// `[log]`
pub(crate) const LOG: &[&str] = &["format", "connections"];

/// Each kind of section, as its header is written, with its keys.
pub(crate) const ALL: &[(&str, &[&str])] = &[
    ("[node]", NODE),
    ("[capture]", CAPTURE),
    ("[limits]", LIMITS),
    ("[[campus]]", CAMPUS),
    ("[[peer]]", PEER),
    ("[[box]]", BOX),
    ("[[link]]", LINK),
    ("[leg.NAME]", LEG),
    ("[leg.NAME.link]", LEG_LINK),
    ("[leg.NAME.keepalive]", KEEPALIVE),
    ("[[dlep]]", DLEP),
    ("[[rule]]", RULE),
    ("[measure]", MEASURE),
    ("[move]", MOVE),
    ("[[neighbor]]", NEIGHBOR),
    ("[admin]", ADMIN),
    ("[log]", LOG),
];

/// Returns how a table with these keys is written in a line, as those of a leg mostly are.
pub(crate) fn in_a_line(keys: &[&str]) -> Option<&'static str> {
    if keys == LEG_LINK {
        Some("link = { interface = \"wwan0\" }")
    } else if keys == KEEPALIVE {
        Some("keepalive = { idle = \"2min\", interval = \"60s\", count = 15 }")
    } else {
        None
    }
}

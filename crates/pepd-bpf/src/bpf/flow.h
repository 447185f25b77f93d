// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// A connection of a leg.

#pragma once

#include "kernel.h"

// Who of those that have something to send has a turn when.
enum turn {
	// It has nothing to send, or its receiver takes nothing.
	NONE,
	// It has sent little: it goes ahead of others.
	AHEAD,
	// It has a share.
	SHARES,
};

// What is known of a connection, in the room that the kernel has for that in its socket
// (icsk_ca_priv, 104 bytes). What counts on without end is kept in its last 32 bits.
struct flow {
	// When the credit was worked out, in µs.
	u64 credited;
	// tcp_sock.rack.mstamp when it was last looked at.
	u64 acknowledged;
	// tcp_sock.bytes_sent and .data_segs_out when it was last looked at.
	u32 sent;
	u32 segments;
	// Bytes of IP packets sent in the current period while it was not backlogged, and bytes a
	// second in the one before.
	u32 light_bytes;
	u32 light_rate;
	// The period that these are about.
	u32 period;
	// The bytes that it may still send ahead of others.
	u32 credit;
	// The epoch that went on when it was last looked at: what is sent until the
	// next look belongs to it.
	u32 looked;
	// tcp_sock.delivered when it was last looked at.
	u32 delivered;
	// Bytes of a usual IP packet of it.
	u32 size;
	// The least round trip, in µs; 0 before the first.
	u32 least_rtt;
	// What it is counted as: see `enum turn`.
	u8 counted;
	// Whether it goes ahead of others.
	u8 is_little;
	// Whether nothing was acknowledged since its last retransmission timeout.
	u8 stalled;
	// Whether the other end has opened it.
	u8 is_accepted;
	// What user space has said of it (see sources.h), the weight in that, and the place of its
	// source, plus 1; 0 where it is on its own.
	u16 said;
	u16 weight;
	u16 place;
};

INLINE struct flow *flow_of(struct tcp_sock *tp)
{
	return (struct flow *)tp->inet_conn.icsk_ca_priv;
}

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
	u32 size : 31;
	// Whether what was under way at its last retransmission timeout is not acknowledged yet.
	u32 has_timed_out : 1;
	// The least round trip, in µs; 0 before the first.
	u32 least_rtt;
	// What is known of its own path behind the leg (see own_path.h). The most that it is to be sent at, in
	// bytes of IP packets a second; 0 where nothing speaks for one.
	u32 cap;
	// When the look began, in µs, and tcp_sock.delivered and .bytes_sent then; and by how much its least delay of a
	// round was more than the leg's, at the least since, in µs.
	u32 look_began;
	u32 look_delivered;
	u32 look_sent;
	u32 look_least;
	// By how much its round trips are longer than the least, at the least in the current round, in µs.
	u32 least_delay;
	// How long the queue was at first and at the last look, in µs.
	u32 first_queue;
	u32 last_queue;
	// What arrived while there was one, in bytes of IP packets a second.
	u32 carries;
	// What it is counted as: see `enum turn`.
	u16 counted : 2;
	// Whether it goes ahead of others.
	u16 is_little : 1;
	// Whether nothing was acknowledged since its last retransmission timeout.
	u16 stalled : 1;
	// Whether the other end has opened it.
	u16 is_accepted : 1;
	// Its weight, 1 to 16.
	u16 weight : 5;
	// The round trips of the look, as far as they are counted.
	u16 look_heard : 5;
	// Whether its least round trip is sure to be one without a queue: it was confirmed when there was none.
	u16 is_sure : 1;
	// The looks in a row without a queue of its own, while there is a cap, and with one.
	u8 well : 4;
	u8 queued : 4;
	// Whether it was looked at once.
	u8 is_known : 1;
	// The last bits of the number of the round (see epochs.h) that its last round trip was in.
	u8 round : 7;
	// What user space has said of it (see sources.h), and the place of its source, plus 1; 0 where it is on
	// its own.
	u16 said;
	u16 place;
};

_Static_assert(sizeof(struct flow) <= sizeof(((struct inet_connection_sock *)0)->icsk_ca_priv),
	       "the kernel has no more room in a socket");

INLINE struct flow *flow_of(struct tcp_sock *tp)
{
	return (struct flow *)tp->inet_conn.icsk_ca_priv;
}

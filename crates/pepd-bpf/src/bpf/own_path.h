// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Whether a connection's own path is narrower than its share: a host behind the leg that has a slow link
// itself. The same in floating point, with a link to try it on, is
// crates/pepd-model/src/find_rate/own_path.rs, which says how it works and why.

#pragma once

#include "shares.h"

// How long a queue of its own is that is worth a cap: in µs, and as a part of the least round trip. Beyond
// what an acknowledgement that was lost, or is delayed, makes of a round trip.
#define LONG 30000ULL
#define LONG_PART 4
// For how long it is looked at a connection before anything is concluded: in µs, in round trips, and in
// acknowledgements. The least of its delays in that time is what counts.
#define LOOK 500000ULL
#define LOOK_TRIPS 4
#define ACKNOWLEDGED 31
// By which part a cap is raised after a look without a queue, at first and when that went well so often.
#define RAISED 32
#define RAISED_LATER 8
#define STEADY 8
// The least part of what arrived that a cap is, while a queue is emptied.
#define LEAST_PART 2
// A cap of so many shares is none.
#define ENOUGH 2
// No cap is less than such a part of a share: what is dropped of less is hardly missed by others, and the cap
// has not far to go where it was wrong.
#define LEAST_SHARE 256
// So many looks empty any queue; what is there then is a longer path.
#define EMPTIED 8
// Who has sent less than such a part of what it was let shows nothing.
#define DRIVEN 2

// A look that is over.
struct look {
	// How long it was, in µs.
	u64 passed;
	// What arrived in it, in bytes of IP packets a second.
	u64 carries;
	// What it is sent at without a cap, in the same unit.
	u64 share;
};

INLINE void set_cap(struct flow *flow, u64 cap)
{
	if (!flow->cap != !cap)
		__sync_fetch_and_add(&capped, cap ? 1 : -1);
	flow->cap = cap < MOST ? cap : MOST;
}

INLINE void begin_look(struct tcp_sock *tp, struct flow *flow)
{
	flow->look_began = tp->tcp_mstamp;
	flow->look_delivered = tp->delivered;
	flow->look_sent = tp->bytes_sent;
	flow->look_least = MOST;
	flow->look_heard = 0;
}

INLINE void begin_own_path(struct tcp_sock *tp, struct flow *flow)
{
	flow->cap = 0;
	flow->first_queue = 0;
	flow->last_queue = 0;
	flow->carries = 0;
	flow->well = 0;
	flow->queued = 0;
	flow->is_known = 0;
	flow->least_delay = MOST;
	begin_look(tp, flow);
}

// After a look in which there was a queue of its own all the time.
INLINE void has_queue(struct flow *flow, const struct look *look, u64 queue)
{
	u32 is_again = flow->queued > 0;

	flow->well = 0;
	if (flow->queued == EMPTIED && 10 * queue > 7ULL * flow->first_queue) {
		// It does not become shorter: the path has become longer.
		flow->least_rtt += queue;
		flow->is_sure = 0;
		flow->queued = 0;
		set_cap(flow, 0);
		return;
	}
	if (!is_again || flow->queued == EMPTIED) {
		flow->first_queue = queue;
		flow->queued = 0;
	}
	flow->queued++;
	u64 last = flow->last_queue;
	flow->last_queue = queue;
	// What arrives while there is a queue is what its own link carries.
	flow->carries = look->carries < MOST ? look->carries : MOST;
	// It is being emptied.
	if (flow->cap && is_again && 20 * queue < 19 * last)
		return;
	u64 from = flow->cap ? flow->cap : flow->carries;
	u64 emptying = from * queue / (2 * look->passed);
	u64 most = from - from / RAISED;
	u64 cap = less(from, emptying);
	cap = cap < most ? cap : most;
	cap = cap > from / LEAST_PART ? cap : from / LEAST_PART;
	u64 least = look->share / LEAST_SHARE + 1;
	set_cap(flow, cap > least ? cap : least);
}

// After one in which there was none for a moment at least.
INLINE void has_none(struct flow *flow, const struct look *look)
{
	u32 was_queued = flow->queued;
	u64 cap = flow->cap;

	flow->queued = 0;
	if (!cap)
		return;
	if (was_queued) {
		// It is empty now.
		u64 least = flow->carries - flow->carries / RAISED;
		if (cap < least)
			set_cap(flow, least);
		return;
	}
	cap += cap / (flow->well < STEADY ? RAISED : RAISED_LATER) + 1;
	if (flow->well < STEADY)
		flow->well++;
	set_cap(flow, cap < ENOUGH * look->share ? cap : 0);
}

// Whether it was sent as much as it was let, more or less, in a look: who has less to send, or waits for its
// timer, does not try what its path carries.
INLINE u32 is_driven(struct tcp_sock *tp, struct flow *flow, const struct look *look)
{
	u64 sent = (u32)tp->bytes_sent - flow->look_sent;
	u64 let = flow->cap && flow->cap < look->share ? flow->cap : look->share;

	return DRIVEN * sent * SECOND >= let * look->passed;
}

// Has another round trip of the connection.
INLINE void look_at_path(struct sock *sk, struct tcp_sock *tp, struct flow *flow)
{
	u32 passed = (u32)tp->tcp_mstamp - flow->look_began;
	u64 trips = (u64)LOOK_TRIPS * flow->least_rtt;

	if (flow->look_heard < ACKNOWLEDGED)
		flow->look_heard++;
	if (flow->look_heard < ACKNOWLEDGED || passed < LOOK || passed < trips)
		return;
	u64 packets = tp->delivered - flow->look_delivered;
	struct look look = {
		.passed = passed,
		.carries = packets * flow->size * SECOND / passed,
		.share = shared(flow, leg_rate(sk, tp->tcp_mstamp)),
	};
	u64 queue = flow->look_least;
	if (queue != MOST && is_driven(tp, flow, &look)) {
		if (queue > LONG && LONG_PART * queue > flow->least_rtt)
			has_queue(flow, &look, queue);
		else
			has_none(flow, &look);
	}
	flow->is_known = 1;
	begin_look(tp, flow);
}

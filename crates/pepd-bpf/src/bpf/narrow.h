// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Connections whose own path is narrower than their share: a host behind the leg that has a slow link
// itself. What is sent beyond what that carries is lost there, and others could have had it.
//
// Loss alone does not tell: the leg may lose as much, whatever is sent. So where a connection loses
// much it is tried: for as many packets again it sends only three quarters of what arrived of it. If then hardly
// anything is lost, its path was full, and what arrived is its cap; if as large a share is lost as
// before, the cap goes, and the next trial is twice as long away. A connection with a cap that is less
// than its share counts as one that has no more to send, and the others have the rest. Its cap
// is raised little by little, and lowered when that costs packets.

#pragma once

#include "epochs.h"

enum phase {
	// It is watched for losses.
	WATCHED,
	// It is tried: what was sent before is still under way.
	BEGUN,
	// It is tried.
	TRIED,
	// It has a cap.
	CAPPED,
	// Its cap was lowered: what was sent before is still under way.
	LOWERED,
	// The last trial was in vain.
	RESTS,
};

// So many lost packets tell what share is lost, to a tenth of it; among more than so many they are
// not worth a trial.
#define LOSSES 100
#define WORTH 1600
// And for so long they are counted at least, or for a round trip, in µs.
#define SOON 200000
#define ALL 1024
// What is sent at a trial is less than what arrived by this part.
#define TRY 4
// After a trial in vain, at most so many times doubled.
#define REST (8 * SECOND)
#define RESTS_MOST 4
// A cap is looked at once in this time, or in four round trips.
#define LOOK SECOND
#define LOOK_LEAST 32
// A cap is raised by a 32nd, and, when that went well so often, by an 8th.
#define STEADY 8
// And a trial of which nothing comes ends after that.
#define TRIAL (16 * SECOND)

INLINE void observe(struct tcp_sock *tp, struct flow *flow, enum phase phase)
{
	flow->phase = phase;
	flow->since = tp->tcp_mstamp;
	flow->lost_then = tp->lost;
	flow->delivered_then = tp->delivered;
	flow->sharing = 0;
	flow->not_sharing = 0;
}

// Tells whether what was sent before is acknowledged, and what of it was lost is noticed.
INLINE u32 is_settled(struct tcp_sock *tp, struct flow *flow, u32 passed)
{
	return passed && (s32)((u32)tp->rack.mstamp - flow->since) > (s32)(tp->srtt_us >> 5);
}

// What is delivered, in bytes of IP packets a second.
INLINE u32 carried(struct flow *flow, u32 packets, u32 passed)
{
	u64 rate = (u64)packets * flow->size * SECOND / (passed ? passed : 1);

	return rate < ~0U ? rate : ~0U;
}

// Less than that by a part: what waits before the narrow place becomes less.
INLINE void limit(struct flow *flow, u32 rate, u32 part)
{
	rate -= rate / part;
	flow->cap = rate ? rate : 1;
	flow->is_little = 0;
}

// Looks at a cap again: what was lost, of how many packets, at what was carried meanwhile.
INLINE void look_again(struct flow *flow, u32 lost, u32 all, u32 rate, u64 share, u32 is_used)
{
	u32 usual = (u64)all * (ALL - flow->yield) / ALL;
	s64 excess = (s64)lost - usual - all / 32;

	// Beyond two standard deviations of what is usual, and some.
	if (excess > 0 && excess * excess > 4 * (s64)usual + 16) {
		// Twice: what is lost does not follow from what is sent, or the path has changed.
		if (!flow->times) {
			flow->cap = 0;
			return;
		}
		limit(flow, rate, 16);
		flow->times = 0;
		return;
	}
	// Less is lost than was usual; or more, which may be for its cap, so that hardly counts.
	u32 yield = (u64)(all - lost) * ALL / all;
	if (yield > flow->yield)
		flow->yield += (yield - flow->yield) / 8;
	else
		flow->yield -= (flow->yield - yield) / 64;
	// Where less arrives than was sent, and was not lost, more waits before the narrow place.
	if (!is_used || (u64)flow->cap * flow->yield / ALL > rate + rate / 32)
		return;
	u32 step = flow->cap / (flow->times < STEADY ? 32 : 8);
	flow->cap += step + 1;
	if (flow->times < STEADY)
		flow->times++;
	// It has long been more than its share.
	if (flow->cap / 2 > share)
		flow->cap = 0;
}

// Finds whether the path of the connection is narrower than its share, at each acknowledgement.
// `share` is its share, `shares` says whether it is sent at that, and `is_used` whether it has more to
// send than it is let.
INLINE void watch(struct tcp_sock *tp, struct flow *flow, u64 share, u32 shares, u32 is_used)
{
	u32 passed = (u32)tp->tcp_mstamp - flow->since;
	u32 lost = tp->lost - flow->lost_then;
	u32 delivered = tp->delivered - flow->delivered_then;
	u32 all = lost + delivered;
	u32 yield = all ? (u64)delivered * ALL / all : ALL;
	u32 round_trip = tp->srtt_us >> 3;
	// With a long queue before a narrow place a round trip takes seconds.
	u32 soon = round_trip < SOON ? round_trip : SOON;

	switch (flow->phase) {
	case WATCHED:
		// From the first loss on what waits before a narrow place is as much as there may be, and what
		// arrives is what that carries.
		if (!lost) {
			observe(tp, flow, WATCHED);
			return;
		}
		// What is lost may keep it from sending at times: its receiver waits, or it does.
		if (shares && flow->sharing < 0xffff)
			flow->sharing++;
		else if (!shares && flow->not_sharing < 0xffff)
			flow->not_sharing++;
		if (flow->not_sharing > flow->sharing) {
			if (all >= LOSSES)
				observe(tp, flow, WATCHED);
		} else if (passed > soon && lost >= LOSSES) {
			flow->yield = yield;
			limit(flow, carried(flow, delivered, passed), TRY);
			observe(tp, flow, BEGUN);
		} else if (passed > soon && all > WORTH) {
			observe(tp, flow, WATCHED);
		}
		return;
	case BEGUN:
		if (is_settled(tp, flow, passed))
			observe(tp, flow, TRIED);
		else if (passed > TRIAL)
			flow->cap = 0;
		break;
	case TRIED:
		// As many packets as when it was watched.
		if (all < (u64)LOSSES * ALL / (ALL - flow->yield)) {
			if (passed > TRIAL)
				flow->cap = 0;
			break;
		}
		if (2 * yield < ALL + flow->yield) {
			// Clearly less is lost: there was still a queue.
			if (4 * yield > ALL + 3 * (u32)flow->yield) {
				flow->yield = yield;
				limit(flow, carried(flow, delivered, passed), TRY);
				observe(tp, flow, BEGUN);
				return;
			}
			flow->cap = 0;
			break;
		}
		flow->yield = yield;
		flow->cap += flow->cap / TRY;
		flow->times = 1;
		observe(tp, flow, CAPPED);
		return;
	case CAPPED:
		if (passed > LOOK && passed > 4 * round_trip && all >= LOOK_LEAST) {
			u32 before = flow->cap;
			look_again(flow, lost, all, carried(flow, delivered, passed), share, is_used);
			observe(tp, flow, flow->cap < before ? LOWERED : CAPPED);
		}
		break;
	case LOWERED:
		if (is_settled(tp, flow, passed) || passed > TRIAL)
			observe(tp, flow, CAPPED);
		return;
	default:
		if (passed > REST << (flow->times < RESTS_MOST ? flow->times : RESTS_MOST))
			observe(tp, flow, WATCHED);
		return;
	}
	if (!flow->cap && flow->phase >= CAPPED) {
		flow->times = 0;
		observe(tp, flow, WATCHED);
	} else if (!flow->cap) {
		if (flow->times < RESTS_MOST)
			flow->times++;
		observe(tp, flow, RESTS);
	}
}

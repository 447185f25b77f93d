// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// How the connections of a leg share its rate.

#pragma once

#include "epochs.h"
#include "sources.h"

// The weights of all that have more to send than they are let, and of those that go ahead of them:
// connections and sources; and how many connections that are.
static s64 backlogged;
static s64 ahead;
static s64 sending;
// What has been sent ahead of others besides, and they have not made good yet, in bytes of IP packets;
// and when that was last worked out, in µs of the monotonic clock.
static u64 owed;
static u64 settled;
// What the others have sent in the current period, in bytes of IP packets, and what they weigh.
static u64 light_bytes;
static u64 light_weight;
// The same of the period before; bytes a second.
static u64 last_light_rate;
static u64 last_light_weight;
// The current period: its number, and when it began, in µs of the monotonic clock.
static u32 period;
static u64 period_began;

// Long against the time between two acknowledgements, short against what an operator sees; and
// on slow legs long enough for so many bytes, as what is measured would be noise.
#define PERIOD 100000ULL
#define PERIOD_BYTES 48000ULL
// What a connection may send ahead of others: most pages and their parts are smaller. It may again
// when it could have sent as much at half of its share meanwhile; on fast legs more, so that the
// pauses of some milliseconds between two bursts are none.
#define LITTLE 102400ULL
#define AGAIN 64
// What is owed is made good in this time, in µs; on slow legs in that of so many bytes. It is worked
// out anew not more often than after the last.
#define DEBT 25000ULL
#define DEBT_BYTES 6000ULL
#define SETTLED 1000ULL
// Those that go ahead leave this part of the rate to the others; or a packet of each connection in such a time, in µs, if that
// is more, up to the second part and to what is their fair part. For how long a connection waits after a packet is decided when it
// is sent: with many, each of which then had hardly anything, the link would be empty for long after who went ahead has gone.
#define LEFT 8
#define LEFT_MOST 2
#define LEFT_EACH 50000ULL
#define PACKET 1500ULL
// The kernel paces what follows so many segments of a connection (net/ipv4/tcp_output.c,
// tcp_update_skb_after_send).
#define UNPACED 10

// How long a period is, in µs.
INLINE u64 period_length(u64 rate)
{
	u64 slow = PERIOD_BYTES * SECOND / rate;

	return slow > PERIOD ? slow : PERIOD;
}

// Begins a new period when it is time. One processor does it, the others go on with the old one.
INLINE void turn(u64 now, u64 rate)
{
	u64 began = READ(period_began);
	u64 passed = now - began;

	// Another processor's clock may be read a little earlier.
	if ((s64)passed < (s64)period_length(rate))
		return;
	if (!__sync_bool_compare_and_swap(&period_began, began, now))
		return;
	u64 bytes = __sync_lock_test_and_set(&light_bytes, 0);
	u64 weight = __sync_lock_test_and_set(&light_weight, 0);
	last_light_rate = bytes * SECOND / passed;
	last_light_weight = weight;
	__sync_fetch_and_add(&period, 1);
}

// What of the rate may go ahead of those that share it.
INLINE u64 most_ahead(u64 rate)
{
	u64 left = rate / LEFT;
	s64 connections = READ(sending);
	u64 each = connections > 0 ? connections * PACKET * SECOND / LEFT_EACH : 0;

	// Many that go ahead have no less than those few that share.
	s64 sharing = READ(backlogged);
	s64 all = sharing + READ(ahead);
	u64 fair = sharing > 0 && all > sharing ? rate * sharing / all : rate;
	u64 most = fair < rate / LEFT_MOST ? fair : rate / LEFT_MOST;

	if (each > most)
		each = most;
	return rate - (left < each ? each : left);
}

// What those that go ahead are owed. A processor that was held up may have taken off what another one had already: then it is
// less than nothing for a while.
INLINE u64 is_owed(void)
{
	s64 debt = READ(owed);

	return debt > 0 ? debt : 0;
}

// How fast those that share the rate make good what they owe, in bytes a second.
INLINE u64 made_good(u64 rate)
{
	u64 slow = DEBT_BYTES * SECOND / rate;
	u64 speed = is_owed() * SECOND / (slow > DEBT ? slow : DEBT);
	u64 most = most_ahead(rate);

	return speed < most ? speed : most;
}

// Takes off what has been made good.
INLINE void settle(u64 now, u64 rate)
{
	u64 last = READ(settled);
	u64 passed = now - last;
	u64 debt = is_owed();

	// Another processor's clock may be read a little earlier.
	if ((s64)passed < (s64)SETTLED || !__sync_bool_compare_and_swap(&settled, last, now))
		return;
	// All that is left to them goes to those ahead.
	if ((s64)READ(ahead) > 0)
		return;
	u64 paid = passed < SECOND ? made_good(rate) * passed / SECOND : debt;
	__sync_fetch_and_sub(&owed, paid < debt ? paid : debt);
}

// What the connection would have at least if it had more to send than it is let: a part of what there
// is for all that have.
INLINE u64 fair_part(struct flow *flow, u64 rate)
{
	struct source *source = source_of(flow);
	s64 all = READ(backlogged) + READ(ahead);
	u64 weight = flow->weight;

	rate = rate * weight / (all > 0 ? all + weight : weight);
	if (!source)
		return rate;
	u64 own = SUM(READ(source->weights[0])) + SUM(READ(source->weights[1]));
	return rate * weight / (own + weight);
}

// Works out what the connection may send ahead of others, after so many bytes. Who sends less than
// half of a fair share always may.
INLINE void credit(struct flow *flow, u64 now, u64 rate, u64 bytes)
{
	u64 fair = fair_part(flow, rate);
	u64 full = fair / AGAIN > LITTLE ? fair / AGAIN : LITTLE;
	u64 passed = now - flow->credited;
	u64 earned = passed < 10 * SECOND ? fair / 2 * passed / SECOND : full;
	u64 credit = flow->credit + ((s64)passed > 0 ? earned : 0);

	flow->credited = now;
	if (flow->stalled)
		return;
	if (credit >= full) {
		credit = full;
		flow->is_little = 1;
	}
	flow->credit = credit > bytes ? credit - bytes : 0;
	if (!flow->credit)
		flow->is_little = 0;
}

// Counts what a connection has sent that has no more to send; `is_first` in this period.
INLINE void account_light(struct flow *flow, u64 bytes, u32 is_first)
{
	struct source *source = source_of(flow);

	flow->light_bytes += bytes;
	if (source) {
		if (is_first)
			__sync_fetch_and_add(&source->light_weight, flow->weight);
		__sync_fetch_and_add(&source->light_bytes, bytes);
		// It is at the expense of its source, which shares.
		if (READ(source->weights[0]))
			return;
		is_first = !__sync_fetch_and_add(&source->lone_bytes, bytes);
	}
	if (is_first)
		__sync_fetch_and_add(&light_weight, flow->weight);
	__sync_fetch_and_add(&light_bytes, bytes);
}

// Counts what the connection has sent since it was last looked at.
INLINE void account(struct tcp_sock *tp, struct flow *flow, u64 rate, u64 headers)
{
	u32 sent = tp->bytes_sent;
	u32 segments = tp->data_segs_out;
	u32 count = segments - flow->segments;
	u64 bytes = sent - flow->sent + (u64)count * headers;
	u32 now = READ(period);
	struct source *source = source_of(flow);

	if (flow->period != now) {
		// After a period or several without a word from it: it has sent nothing in them.
		flow->light_rate = flow->period + 1 == now ?
			flow->light_bytes * SECOND / period_length(rate) : 0;
		flow->light_bytes = 0;
		flow->period = now;
		if (source)
			turn_source(source, now, period_length(rate));
	}
	flow->sent = sent;
	flow->segments = segments;
	if (bytes && flow->is_little) {
		u32 is_paced = flow->counted == AHEAD && segments > UNPACED;
		if (!is_paced && (s64)READ(backlogged) > 0)
			__sync_fetch_and_add(&owed, bytes);
	} else if (bytes && flow->counted != SHARES) {
		account_light(flow, bytes, !flow->light_bytes);
	}
	credit(flow, tp->tcp_mstamp, rate, bytes);
	if (!READ(order.rate))
		return;
	if (count)
		flow->size = (3 * flow->size + bytes / count) / 4;
	book_sent(flow, bytes);
	counts_of(flow->looked)->flows = READ(sending);
	counts_of(flow->looked)->capped = READ(capped);
	if (bytes)
		wake_up();
}

// Adds the connection to what it counts as, or takes it off.
INLINE u32 change(struct flow *flow, enum turn as, s32 weight)
{
	struct source *source = source_of(flow);
	s64 *total = as == AHEAD ? &ahead : &backlogged;

	if (source)
		return weigh(&source->weights[as == AHEAD], total, weight, flow->weight);
	if (weight)
		__sync_fetch_and_add(total, weight);
	return 1;
}

INLINE void count(struct flow *flow, enum turn as)
{
	u32 before = flow->counted;
	s32 weight = flow->weight;

	if (before == as) {
		if (as != NONE && flow->place)
			change(flow, as, 0);
		return;
	}
	// Where another processor comes between too often it stays as it is until the next look.
	if (before != NONE) {
		if (!change(flow, before, -weight))
			return;
		flow->counted = NONE;
		__sync_fetch_and_sub(&sending, 1);
	}
	if (as != NONE && change(flow, as, weight)) {
		flow->counted = as;
		__sync_fetch_and_add(&sending, 1);
	}
}

// Takes the connection out of everything.
INLINE void end(struct flow *flow)
{
	count(flow, NONE);
	leave(flow);
}

// Heeds what user space says of it.
INLINE void heed(struct sock *sk, struct flow *flow, u32 said)
{
	u32 bits = BITS(said);

	end(flow);
	flow->said = said;
	flow->weight = WEIGHT(said);
	if (bits)
		enter(flow, client_of(sk, flow, bits));
}

// Whether only its share keeps the connection from sending more: there is something to send,
// and the receiver has room for it.
INLINE u32 is_backlogged(struct tcp_sock *tp)
{
	s32 mss = tp->mss_cache;
	s32 unsent = tp->write_seq - tp->snd_nxt;
	s32 room = tp->snd_una + tp->snd_wnd - tp->snd_nxt;

	return (unsent >= mss && room >= mss) || tp->lost_out > tp->retrans_out;
}

// A part of the rate, by weight: what is left by those that have less to send, among those that have
// more, but not less than everybody would have if all had more.
INLINE u64 part(u64 rate, u64 light, u64 light_weight, u64 weight, s64 others)
{
	u64 all = others > 0 ? others + weight : weight;
	u64 fair = rate > light ? (rate - light) * weight / all : 0;
	u64 least = rate * weight / (all + light_weight);

	return fair > least ? fair : least;
}

// What the connection may send of what is there for those that share it, or for those ahead; `light`
// is what others leave of that.
INLINE u64 part_of(struct flow *flow, enum turn as, u64 rate, u64 light, u64 light_weight)
{
	s64 all = as == AHEAD ? READ(ahead) : READ(backlogged);
	u64 weight = flow->weight;
	u64 counted = flow->counted == as ? weight : 0;
	struct source *source = source_of(flow);
	u32 is_light = as == SHARES;

	if (!source)
		return part(rate, is_light ? less(light, flow->light_rate) : 0, light_weight, weight,
			    all - counted);
	u64 weights = READ(source->weights[as == AHEAD]);
	u64 is_as = COUNTS_AS(weights);
	light = is_light ? less(light, READ(source->last_lone_rate)) : 0;
	rate = part(rate, light, light_weight, is_as > weight ? is_as : weight, all - is_as);
	light = is_light ? less(READ(source->last_light_rate), flow->light_rate) : 0;
	light_weight = is_light ? READ(source->last_light_weight) : 0;
	return part(rate, light, light_weight, weight, SUM(weights) - counted);
}

// What the connection has as one of those that share the rate, in bytes a second of whole IP packets.
INLINE u64 shared(struct flow *flow, u64 rate)
{
	s64 others = READ(ahead) - (flow->counted == AHEAD ? flow->weight : 0);
	rate -= others > 0 ? most_ahead(rate) : made_good(rate);
	return part_of(flow, SHARES, rate, READ(last_light_rate), READ(last_light_weight));
}

// What the connection may send, in the same unit.
INLINE u64 share(struct flow *flow, u64 rate)
{
	u64 counted = flow->counted == SHARES;

	if (!flow->is_little)
		return shared(flow, rate);
	u64 most = READ(backlogged) > (s64)(counted ? flow->weight : 0) ? most_ahead(rate) : rate;
	return part_of(flow, AHEAD, most, 0, 0);
}

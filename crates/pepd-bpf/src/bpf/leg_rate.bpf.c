// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// A congestion control that sends at a leg's rate, whatever is lost. See docs/fixed-rate.md and
// docs/find-rate.md.
//
// There is one copy of this program per leg, so that its global variables are the leg's. All
// connections of the leg share its rate. That is their SO_MAX_PACING_RATE, which is the same for
// all of them (fixed-rate); or what user space says, and SO_MAX_PACING_RATE the most (find-rate):
// then what becomes of the packets is counted here, by the epoch in which they were sent.
//
// - A connection that could send more than it is let (it is "backlogged") has the fair share:
//   what the others leave, by the number of backlogged ones.
// - What those others send (they have no more to send, or their receivers take no more) is
//   measured, period by period.
// - A connection that has sent little lately goes ahead of those: they leave it all but an eighth of
//   the rate for as long as it has more to send than it is let. What it sends without being let too
//   little they owe the link, and send so much less in the moments that follow. So a short transfer
//   beside bulk takes hardly longer than alone, and the link's queue does not grow by it.
//
// Shares are worked out anew before each transmission and at each acknowledgement, from
// counters. Nothing here waits, and nothing has to be in step with anything else.

#include "epochs.h"

// The connections that have more to send than they are let, and those that go ahead of them.
static s64 backlogged;
static s64 ahead;
// What has been sent ahead of others besides, and they have not made good yet, in bytes of IP packets;
// and when that was last worked out, in µs of the monotonic clock.
static u64 owed;
static u64 settled;
// What the others have sent in the current period, in bytes of IP packets, and how many they are.
static u64 light_bytes;
static u64 light_flows;
// The same of the period before; bytes a second.
static u64 last_light_rate;
static u64 last_light_flows;
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
// Those that go ahead leave this part of the rate to the others.
#define LEFT 8
// The kernel paces what follows so many segments of a connection (net/ipv4/tcp_output.c,
// tcp_update_skb_after_send).
#define UNPACED 10
// What may be under way, in products of rate and round-trip time: it takes one for the data
// itself, and what is lost is under way until that is noticed, a round trip or more.
#define WINDOW 3
// Room for what is small, and for acknowledgements that come late and together.
#define WINDOW_EXTRA 16
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
	u64 flows = __sync_lock_test_and_set(&light_flows, 0);
	last_light_rate = bytes * SECOND / passed;
	last_light_flows = flows;
	__sync_fetch_and_add(&period, 1);
}

// What of the rate may go ahead of those that share it.
INLINE u64 most_ahead(u64 rate)
{
	return rate - rate / LEFT;
}

// How fast those that share the rate make good what they owe, in bytes a second.
INLINE u64 made_good(u64 rate)
{
	u64 slow = DEBT_BYTES * SECOND / rate;
	u64 speed = READ(owed) * SECOND / (slow > DEBT ? slow : DEBT);
	u64 most = most_ahead(rate);

	return speed < most ? speed : most;
}

// Takes off what has been made good.
INLINE void settle(u64 now, u64 rate)
{
	u64 last = READ(settled);
	u64 passed = now - last;
	u64 debt = READ(owed);

	// Another processor's clock may be read a little earlier.
	if ((s64)passed < (s64)SETTLED || !__sync_bool_compare_and_swap(&settled, last, now))
		return;
	// All that is left to them goes to those ahead.
	if ((s64)READ(ahead) > 0)
		return;
	u64 paid = passed < SECOND ? made_good(rate) * passed / SECOND : debt;
	__sync_fetch_and_sub(&owed, paid < debt ? paid : debt);
}

// Works out what the connection may send ahead of others, after so many bytes. Who sends less than
// half of a fair share always may.
INLINE void credit(struct flow *flow, u64 now, u64 rate, u64 bytes)
{
	s64 sending = READ(backlogged) + READ(ahead);
	u64 fair = rate / (sending > 0 ? sending + 1 : 1);
	u64 full = fair / AGAIN > LITTLE ? fair / AGAIN : LITTLE;
	u64 passed = now - flow->credited;
	u64 earned = passed < 10 * SECOND ? fair / 2 * passed / SECOND : full;
	u64 credit = flow->credit + ((s64)passed > 0 ? earned : 0);

	flow->credited = now;
	if (credit >= full) {
		credit = full;
		flow->is_little = 1;
	}
	flow->credit = credit > bytes ? credit - bytes : 0;
	if (!flow->credit)
		flow->is_little = 0;
}

// Counts what the connection has sent since it was last looked at.
INLINE void account(struct tcp_sock *tp, struct flow *flow, u64 rate, u64 headers)
{
	u64 sent = tp->bytes_sent;
	u32 segments = tp->data_segs_out;
	u32 count = segments - flow->segments;
	u64 bytes = sent - flow->sent + count * headers;
	u32 now = READ(period);

	if (flow->period != now) {
		// After a period or several without a word from it: it has sent nothing in them.
		flow->light_rate = flow->period + 1 == now ?
			flow->light_bytes * SECOND / period_length(rate) : 0;
		flow->light_bytes = 0;
		flow->period = now;
		if (bytes && !flow->is_little && flow->counted != SHARES)
			__sync_fetch_and_add(&light_flows, 1);
	}
	flow->sent = sent;
	flow->segments = segments;
	if (bytes && flow->is_little) {
		u32 is_paced = flow->counted == AHEAD && segments > UNPACED;
		if (!is_paced && (s64)READ(backlogged) > 0)
			__sync_fetch_and_add(&owed, bytes);
	} else if (bytes && flow->counted != SHARES) {
		flow->light_bytes += bytes;
		__sync_fetch_and_add(&light_bytes, bytes);
	}
	credit(flow, tp->tcp_mstamp, rate, bytes);
	if (!READ(order.rate))
		return;
	if (count)
		flow->size = (3 * flow->size + bytes / count) / 4;
	book_sent(flow, bytes);
	counts_of(flow->looked)->flows = READ(backlogged) + READ(ahead);
	if (bytes)
		wake_up();
}

INLINE void count(struct flow *flow, enum turn as)
{
	u32 before = flow->counted;

	if (before == as)
		return;
	flow->counted = as;
	if (before != NONE)
		__sync_fetch_and_sub(before == AHEAD ? &ahead : &backlogged, 1);
	if (as != NONE)
		__sync_fetch_and_add(as == AHEAD ? &ahead : &backlogged, 1);
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

// What the connection may send, in bytes a second of whole IP packets.
INLINE u64 share(struct flow *flow, u64 rate)
{
	s64 sharing = READ(backlogged) - (flow->counted == SHARES);
	u64 sharers = sharing > 0 ? sharing + 1 : 1;

	s64 others = READ(ahead) - (flow->counted == AHEAD);
	if (flow->is_little) {
		u64 most = sharing > 0 ? most_ahead(rate) : rate;
		return most / (others > 0 ? others + 1 : 1);
	}
	rate -= others > 0 ? most_ahead(rate) : made_good(rate);
	u64 light = READ(last_light_rate);
	u64 own = flow->light_rate;
	// Nobody has less than everybody would have if all were backlogged.
	u64 least = rate / (sharers + READ(last_light_flows));

	light = light > own ? light - own : 0;
	u64 fair = rate > light ? (rate - light) / sharers : 0;
	return fair > least ? fair : least;
}

// The bytes of headers in each packet.
INLINE u64 headers_of(struct sock *sk, struct tcp_sock *tp)
{
	return tp->tcp_header_len + (sk->__sk_common.skc_family == AF_INET6 ? 40 : 20);
}

// Sets the pacing rate. The kernel's own timers count payload; fq counts packets.
INLINE u64 pace(struct sock *sk, struct tcp_sock *tp)
{
	struct flow *flow = flow_of(tp);
	u64 rate = leg_rate(sk, tp->tcp_mstamp);
	u64 mss = tp->mss_cache;
	u64 headers = headers_of(sk, tp);

	turn(tp->tcp_mstamp, rate);
	settle(tp->tcp_mstamp, rate);
	account(tp, flow, rate, headers);
	if (flow->stalled || !is_backlogged(tp))
		count(flow, NONE);
	else
		count(flow, flow->is_little ? AHEAD : SHARES);
	u64 packets = share(flow, rate);
	u64 payload = packets * mss / (mss + headers);
	u64 pacing = sk->sk_pacing_status == SK_PACING_FQ ? packets : payload;

	sk->sk_pacing_rate = pacing ? pacing : 1;
	return payload;
}

// Lets so much be under way that pacing alone decides.
INLINE void open_window(struct tcp_sock *tp, u64 payload)
{
	u64 mss = tp->mss_cache ? tp->mss_cache : 1;
	// srtt_us is in eighths of a µs (net/ipv4/tcp_input.c, tcp_rtt_estimator).
	u64 round_trip = tp->srtt_us >> 3;
	u64 window = WINDOW * (payload * round_trip / SECOND) / mss + WINDOW_EXTRA;
	u64 most = tp->snd_cwnd_clamp;

	tp->snd_cwnd = window < most ? window : most;
}

SECTION("struct_ops/init")
void leg_rate_init(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct flow *flow = flow_of(tp);

	flow->sent = tp->bytes_sent;
	flow->segments = tp->data_segs_out;
	flow->light_bytes = 0;
	flow->light_rate = 0;
	flow->period = READ(period);
	flow->counted = NONE;
	flow->credit = LITTLE;
	flow->is_little = 1;
	flow->credited = tp->tcp_mstamp;
	flow->stalled = 0;
	flow->looked = READ(order.number);
	flow->acknowledged = 0;
	flow->delivered = tp->delivered;
	flow->size = tp->mss_cache + headers_of(sk, tp);
	flow->least_rtt = 0;
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	open_window(tp, pace(sk, tp));
	book_handshake(tp, flow);
}

SECTION("struct_ops/release")
void leg_rate_release(u64 *arguments)
{
	count(flow_of((struct tcp_sock *)arguments[0]), NONE);
}

// At each acknowledgement.
SECTION("struct_ops/cong_control")
void leg_rate_cong_control(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct flow *flow = flow_of(tp);

	flow->stalled = 0;
	u64 payload = pace(sk, tp);
	book_delivered(tp, flow, sk->sk_pacing_rate);
	open_window(tp, payload);
}

// Before each transmission (net/ipv4/tcp_output.c, tcp_tso_segs).
SECTION("struct_ops/min_tso_segs")
u32 leg_rate_min_tso_segs(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];

	pace(sk, (struct tcp_sock *)sk);
	return 1;
}

SECTION("struct_ops/cwnd_event")
void leg_rate_cwnd_event(u64 *arguments)
{
	struct flow *flow = flow_of((struct tcp_sock *)arguments[0]);
	u32 event = arguments[1];

	// A retransmission timeout: until something is acknowledged again it hardly sends.
	if (event == KERNEL_VALUE(enum tcp_ca_event, CA_EVENT_LOSS)) {
		flow->stalled = 1;
		count(flow, NONE);
	}
}

SECTION("struct_ops/ssthresh")
u32 leg_rate_ssthresh(u64 *arguments)
{
	return ((struct tcp_sock *)arguments[0])->snd_ssthresh;
}

SECTION("struct_ops/undo_cwnd")
u32 leg_rate_undo_cwnd(u64 *arguments)
{
	return ((struct tcp_sock *)arguments[0])->snd_cwnd;
}

SECTION(".struct_ops.link")
struct tcp_congestion_ops leg_rate_ops = {
	.name = "pepd_leg_rate",
	.ssthresh = (void *)leg_rate_ssthresh,
	.undo_cwnd = (void *)leg_rate_undo_cwnd,
	.min_tso_segs = (void *)leg_rate_min_tso_segs,
	.init = (void *)leg_rate_init,
	.release = (void *)leg_rate_release,
	.cong_control = (void *)leg_rate_cong_control,
	.cwnd_event = (void *)leg_rate_cwnd_event,
};

// The kernel loads such a program only if it may be used under the GPL, too.
char _license[] SECTION("license") = "Dual MIT/GPL";

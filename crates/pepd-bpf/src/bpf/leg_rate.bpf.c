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
// - A connection whose own path behind the leg carries less than its share is sent at what that carries,
//   and the others share what it leaves: see own_path.h. Only where user space finds the rate.
// - Each connection has a weight, and it may be its source that has the fair share, for all its
//   connections: see sources.h.
//
// Shares are worked out anew before each transmission and at each acknowledgement, from
// counters. Nothing here waits, and nothing has to be in step with anything else.

#include "own_path.h"

// What may be under way, in products of rate and round-trip time: it takes one for the data
// itself, and what is lost is under way until that is noticed, a round trip or more.
#define WINDOW 3
// Room for what is small, and for acknowledgements that come late and together.
#define WINDOW_EXTRA 16

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
	u64 packets = share(flow, rate);
	u32 is_capped = flow->cap && flow->cap < packets;
	if (flow->stalled || is_capped || !is_backlogged(tp))
		count(flow, NONE);
	else
		count(flow, flow->is_little ? AHEAD : SHARES);
	packets = is_capped ? flow->cap : packets;
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
	flow->has_timed_out = 0;
	// Its own end is in SYN_SENT, or past that (net/ipv4/tcp_input.c, tcp_init_transfer).
	flow->is_accepted = sk->__sk_common.skc_state == TCP_SYN_RECV;
	flow->is_sure = 0;
	flow->said = 0;
	flow->weight = 1;
	flow->place = 0;
	flow->looked = READ(order.number);
	flow->acknowledged = 0;
	flow->delivered = tp->delivered;
	flow->size = tp->mss_cache + headers_of(sk, tp);
	flow->least_rtt = 0;
	begin_own_path(tp, flow);
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	open_window(tp, pace(sk, tp));
	book_handshake(tp, flow);
}

SECTION("struct_ops/release")
void leg_rate_release(u64 *arguments)
{
	struct flow *flow = flow_of((struct tcp_sock *)arguments[0]);

	set_cap(flow, 0);
	end(flow);
}

// At each acknowledgement.
SECTION("struct_ops/cong_control")
void leg_rate_cong_control(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct flow *flow = flow_of(tp);

	// What it could not send it has not saved.
	if (flow->stalled)
		flow->credited = tp->tcp_mstamp;
	flow->stalled = 0;
	u32 said = SAID(sk->sk_priority);
	if (said != flow->said)
		heed(sk, flow, said);
	u64 payload = pace(sk, tp);
	if (book_delivered(tp, flow, sk->sk_pacing_rate))
		look_at_path(sk, tp, flow);
	open_window(tp, payload);
}

// BPF_FUNC_get_prandom_u32.
static u32 (*const random)(void) = (void *)7;

// Before each transmission (net/ipv4/tcp_output.c, tcp_tso_segs).
SECTION("struct_ops/min_tso_segs")
u32 leg_rate_min_tso_segs(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];

	struct tcp_sock *tp = (struct tcp_sock *)sk;

	pace(sk, tp);
	u64 rate = sk->sk_pacing_rate;
	if (!READ(order.rate) || rate * DELAYED / SECOND >= tp->mss_cache)
		return 1;
	// It waits after that for half as long to half as long again as its share would have it: many that began together would
	// send together again and again.
	sk->sk_pacing_rate = rate * 256 / (128 + random() % 256) + 1;
	return 2;
}

SECTION("struct_ops/cwnd_event")
void leg_rate_cwnd_event(u64 *arguments)
{
	struct flow *flow = flow_of((struct tcp_sock *)arguments[0]);
	u32 event = arguments[1];

	// A retransmission timeout: until something is acknowledged again it hardly sends.
	if (event == KERNEL_VALUE(enum tcp_ca_event, CA_EVENT_LOSS)) {
		flow->stalled = 1;
		flow->has_timed_out = 1;
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

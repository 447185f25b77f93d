// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// What keeps a connection's window open after an outage of its link. See docs/outages.md.
//
// By a timeout the kernel lets one segment be under way, and doubles that in each round trip. An outage is no
// sign of congestion: what the connection was delivering, the link will carry. Only a congestion control may
// write the window; so a connection is given this one for some round trips, and then its own again. What was
// delivered is its SO_MAX_PACING_RATE meanwhile: nothing has to be told, and no burst can leave.
//
// - While it has it (cong_control) the window is what that rate brings in the least round trip and a quarter
//   more, since acknowledgements are delayed, beside what was under way when the link went. Of that the kernel
//   may hold nothing to be lost: where the first answer acknowledges what had arrived before, it takes its timeout
//   for a false alarm (F-RTO, RFC 5682), and a window without that room forbids all that is new. When it finds
//   out what is lost, a round trip later, it would begin with an empty pipe once more (RFC 6937).
// - When it is taken away (release) the window is what the rate brings, and may soon be again what its own control had made
//   of it: its part of the link may have been small while others had something to send. Where no such rate is asked for
//   any more, the kernel's own pacing, which was begun by it, ends. A control that needs pacing begins it itself.
//
// A connection that keeps it, because pepd was killed in that time, has a plain Reno (RFC 5681) afterwards.

#include "kernel.h"

#define MICROSECONDS 1000000ULL
// The rate of a socket that has none (~0), also where the kernel's numbers have 32 bits.
#define NO_RATE 0xffffffffULL
// Of a minimum without a sample.
#define NO_TIME 0xffffffffU

// The smoothed round trips after which it is over by itself: more than it is given for.
#define LONGEST 8

// What is known of a connection, in the room that the kernel has for that in its socket (icsk_ca_priv).
struct opened {
	// When it is over, in µs of tcp_sock.tcp_mstamp; 0 where it was not opened.
	u64 until;
	// What the rate brings in a round trip, and what was under way when it was opened, in segments.
	u32 window;
	u32 under_way;
	// The threshold of slow start when it was opened: what its own control has made of the window before the outage.
	u32 threshold;
	// tcp_sock.delivered when it was last looked at.
	u32 delivered;
};

INLINE struct opened *opened_of(struct tcp_sock *tp)
{
	return (struct opened *)tp->inet_conn.icsk_ca_priv;
}

INLINE int is_open(struct tcp_sock *tp)
{
	return tp->tcp_mstamp < opened_of(tp)->until;
}

// Takes over the rate that is asked for now: it becomes more when others have nothing left to send.
INLINE void take_rate(struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct opened *opened = opened_of(tp);
	u64 rate = sk->sk_max_pacing_rate;
	u64 rtt = tp->rtt_min.s[0].v;
	u64 mss = tp->mss_cache;
	u64 clamp = tp->snd_cwnd_clamp;

	if (rate >= NO_RATE || rtt == NO_TIME || !mss)
		return;
	u64 window = rate * rtt / MICROSECONDS / mss;
	window += window / 4 + 1;
	u64 most = window + opened->under_way;
	opened->window = window < clamp ? window : clamp;
	tp->snd_cwnd = most < clamp ? most : clamp;
	tp->snd_ssthresh = opened->window;
	sk->sk_pacing_rate = rate;
}

SECTION("struct_ops/init")
void resume_init(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct opened *opened = opened_of(tp);

	opened->delivered = tp->delivered;
	opened->under_way = tp->packets_out;
	opened->threshold = tp->snd_ssthresh;
	take_rate(sk);
	// The kernel's smoothed time is in eighths (tcp_rtt_estimator, net/ipv4/tcp_input.c).
	if (opened->window)
		opened->until = tp->tcp_mstamp + (u64)LONGEST * tp->srtt_us / 8;
}

SECTION("struct_ops/release")
void resume_release(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct opened *opened = opened_of(tp);

	if (opened->until && tp->snd_cwnd > opened->window)
		tp->snd_cwnd = opened->window;
	// It may have had a small part of the link, and others have nothing left to send.
	if (opened->until && opened->threshold > tp->snd_ssthresh)
		tp->snd_ssthresh = opened->threshold;
	if (sk->sk_max_pacing_rate >= NO_RATE && sk->sk_pacing_status == SK_PACING_NEEDED)
		sk->sk_pacing_status = SK_PACING_NONE;
}

SECTION("struct_ops/cong_control")
void resume_cong_control(u64 *arguments)
{
	struct tcp_sock *tp = (struct tcp_sock *)arguments[0];
	struct opened *opened = opened_of(tp);
	u32 acknowledged = tp->delivered - opened->delivered;
	u32 window = tp->snd_cwnd;

	opened->delivered = tp->delivered;
	if (is_open(tp)) {
		// A timeout has made the window small.
		take_rate((struct sock *)tp);
		return;
	}
	// It was not the window that kept it from sending more.
	if (tp->packets_out + acknowledged < window || window >= tp->snd_cwnd_clamp)
		return;
	if (window < tp->snd_ssthresh) {
		u32 room = tp->snd_ssthresh - window;

		tp->snd_cwnd = window + (acknowledged < room ? acknowledged : room);
		return;
	}
	u32 count = tp->snd_cwnd_cnt + acknowledged;
	u32 is_round = count >= window;

	tp->snd_cwnd_cnt = is_round ? count - window : count;
	tp->snd_cwnd = window + is_round;
}

SECTION("struct_ops/ssthresh")
u32 resume_ssthresh(u64 *arguments)
{
	struct tcp_sock *tp = (struct tcp_sock *)arguments[0];
	u32 half = tp->snd_cwnd / 2;

	if (is_open(tp))
		return opened_of(tp)->window;
	if (half < 2)
		half = 2;
	// Where there is a cong_control the kernel does not (tcp_cwnd_reduction).
	tp->snd_cwnd = half;
	return half;
}

SECTION("struct_ops/undo_cwnd")
u32 resume_undo_cwnd(u64 *arguments)
{
	struct tcp_sock *tp = (struct tcp_sock *)arguments[0];

	return tp->snd_cwnd > tp->prior_cwnd ? tp->snd_cwnd : tp->prior_cwnd;
}

SECTION(".struct_ops.link")
struct tcp_congestion_ops resume_ops = {
	.name = "pepd_resume",
	.ssthresh = (void *)resume_ssthresh,
	.undo_cwnd = (void *)resume_undo_cwnd,
	.init = (void *)resume_init,
	.release = (void *)resume_release,
	.cong_control = (void *)resume_cong_control,
};

// The kernel loads such a program only if it may be used under the GPL, too.
char _license[] SECTION("license") = "Dual MIT/GPL";

// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// What opens a connection's window again after an outage of its link. See docs/outages.md.
//
// By a timeout the kernel lets one segment be under way, and doubles that in each round trip. An outage is no
// sign of congestion: what the connection was delivering, the link will carry. Only a congestion control may
// write the window; so a connection is given this one for a moment, and then its own again. What was
// delivered is its SO_MAX_PACING_RATE meanwhile: nothing has to be told, and no burst can leave.
//
// - When it is given (init) the window becomes what that rate brings in the least round trip and a quarter
//   more, since acknowledgements are delayed; at most what the window was before the timeout. Without such a
//   rate nothing changes.
// - When it is taken away (release) and no such rate is asked for any more, the kernel's own pacing, which
//   was begun by it, ends. A control that needs pacing begins it itself.
//
// A connection that keeps it, because pepd was killed in that moment, has a plain Reno (RFC 5681).

#include "kernel.h"

#define MICROSECONDS 1000000ULL
// The rate of a socket that has none (~0), also where the kernel's numbers have 32 bits.
#define NO_RATE 0xffffffffULL
// Of a minimum without a sample.
#define NO_TIME 0xffffffffU

SECTION("struct_ops/init")
void resume_init(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	u64 rate = sk->sk_max_pacing_rate;
	u64 rtt = tp->rtt_min.s[0].v;
	u64 mss = tp->mss_cache;
	u64 most = tp->prior_cwnd < tp->snd_cwnd_clamp ? tp->prior_cwnd : tp->snd_cwnd_clamp;

	if (rate >= NO_RATE || rtt == NO_TIME || !mss)
		return;
	u64 window = rate * rtt / MICROSECONDS / mss;
	window += window / 4 + 1;
	if (window > most)
		window = most;
	if (window > tp->snd_cwnd)
		tp->snd_cwnd = window;
	// Where that is less than what the timeout left, slow start goes on up to it, as always.
	if (window > tp->snd_ssthresh)
		tp->snd_ssthresh = window;
	sk->sk_pacing_rate = rate;
}

SECTION("struct_ops/release")
void resume_release(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];

	if (sk->sk_max_pacing_rate >= NO_RATE && sk->sk_pacing_status == SK_PACING_NEEDED)
		sk->sk_pacing_status = SK_PACING_NONE;
}

SECTION("struct_ops/cong_avoid")
void resume_cong_avoid(u64 *arguments)
{
	struct tcp_sock *tp = (struct tcp_sock *)arguments[0];
	u32 acknowledged = arguments[2];
	u32 window = tp->snd_cwnd;

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
	u32 half = ((struct tcp_sock *)arguments[0])->snd_cwnd / 2;

	return half > 2 ? half : 2;
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
	.cong_avoid = (void *)resume_cong_avoid,
};

// The kernel loads such a program only if it may be used under the GPL, too.
char _license[] SECTION("license") = "Dual MIT/GPL";

// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// A congestion control that sends at a leg's rate, whatever is lost. See docs/fixed-rate.md.
//
// There is one copy of this program per leg, so that its global variables are the leg's. All
// connections of the leg have the same SO_MAX_PACING_RATE, which is the leg's rate, and share it:
//
// - A connection that could send more than it is let (it is "backlogged") has the fair share:
//   what the others leave, by the number of backlogged ones.
// - What those others send (they have no more to send, or their receivers take no more) is
//   measured, epoch by epoch.
//
// Shares are worked out anew before each transmission and at each acknowledgement, from
// counters. Nothing here waits, and nothing has to be in step with anything else.
//
// Only what is used of the kernel's types is declared; libbpf finds where the running kernel
// has it (BPF CO-RE). There are no calls of helpers, so there is nothing to include.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define OF_KERNEL __attribute__((preserve_access_index))
#define READ(variable) (*(volatile typeof(variable) *)&(variable))

#define AF_INET6 10
#define SK_PACING_NONE 0
#define SK_PACING_NEEDED 1
#define SK_PACING_FQ 2

// Its values have changed before: the running kernel's count (BPF_ENUMVAL_VALUE).
enum tcp_ca_event {
	CA_EVENT_LOSS = 3,
};
#define KERNEL_VALUE(type, value) __builtin_preserve_enum_value(*(type *)value, 1)

struct sock_common {
	u16 skc_family;
} OF_KERNEL;

struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	u32 sk_pacing_status;
} OF_KERNEL;

struct inet_sock {
	struct sock sk;
} OF_KERNEL;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	u64 icsk_ca_priv[13];
} OF_KERNEL;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u64 bytes_sent;
	u64 tcp_mstamp;
	u32 write_seq;
	u32 snd_nxt;
	u32 snd_una;
	u32 snd_wnd;
	u32 snd_cwnd;
	u32 snd_cwnd_clamp;
	u32 snd_ssthresh;
	u32 srtt_us;
	u32 mss_cache;
	u32 lost_out;
	u32 retrans_out;
	u32 data_segs_out;
	u16 tcp_header_len;
} OF_KERNEL;

// The members have the kernel's names, by which libbpf knows them. pepd writes the name of the
// leg's control over the first one before it loads the program.
struct tcp_congestion_ops {
	char name[16];
	u32 (*ssthresh)(struct sock *sk);
	u32 (*undo_cwnd)(struct sock *sk);
	u32 (*min_tso_segs)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	void (*cong_control)(struct sock *sk);
	void (*cwnd_event)(struct sock *sk, u32 event);
};

// What is known of a connection, in the room that the kernel has for that in its socket
// (icsk_ca_priv, 104 bytes).
struct flow {
	// tcp_sock.bytes_sent and .data_segs_out when it was last looked at.
	u64 sent;
	u32 segments;
	// Bytes of IP packets sent in the current epoch while it was not backlogged, and bytes a
	// second in the one before.
	u64 light_bytes;
	u64 light_rate;
	// The epoch that these are about.
	u32 epoch;
	// Whether it is one of `backlogged`.
	u32 counted;
	// Whether nothing was acknowledged since its last retransmission timeout.
	u32 stalled;
};

// The connections that have more to send than they are let.
static s64 backlogged;
// What the others have sent in the current epoch, in bytes of IP packets, and how many they are.
static u64 light_bytes;
static u64 light_flows;
// The same of the epoch before; bytes a second.
static u64 last_light_rate;
static u64 last_light_flows;
// The current epoch: its number, and when it began, in µs of the monotonic clock.
static u32 epoch;
static u64 epoch_began;

#define SECOND 1000000ULL
// Long against the time between two acknowledgements, short against what an operator sees; and
// on slow legs long enough for so many bytes, as what is measured would be noise.
#define EPOCH 100000ULL
#define EPOCH_BYTES 48000ULL
// What may be under way, in products of rate and round-trip time: it takes one for the data
// itself, and what is lost is under way until that is noticed, a round trip or more.
#define WINDOW 3
// Room for what is small, and for acknowledgements that come late and together.
#define WINDOW_EXTRA 16

INLINE struct flow *flow_of(struct tcp_sock *tp)
{
	return (struct flow *)tp->inet_conn.icsk_ca_priv;
}

// The leg's rate in bytes a second. At least 1, which the verifier cannot know.
INLINE u64 leg_rate(struct sock *sk)
{
	u64 rate = sk->sk_max_pacing_rate;

	return rate ? rate : 1;
}

// How long an epoch is, in µs.
INLINE u64 epoch_length(u64 rate)
{
	u64 slow = EPOCH_BYTES * SECOND / rate;

	return slow > EPOCH ? slow : EPOCH;
}

// Begins a new epoch when it is time. One processor does it, the others go on with the old one.
INLINE void turn(u64 now, u64 rate)
{
	u64 began = READ(epoch_began);
	u64 passed = now - began;

	// Another processor's clock may be read a little earlier.
	if ((s64)passed < (s64)epoch_length(rate))
		return;
	if (!__sync_bool_compare_and_swap(&epoch_began, began, now))
		return;
	u64 bytes = __sync_lock_test_and_set(&light_bytes, 0);
	u64 flows = __sync_lock_test_and_set(&light_flows, 0);
	last_light_rate = bytes * SECOND / passed;
	last_light_flows = flows;
	__sync_fetch_and_add(&epoch, 1);
}

// Counts what the connection has sent since it was last looked at.
INLINE void account(struct tcp_sock *tp, struct flow *flow, u64 rate, u64 headers)
{
	u64 sent = tp->bytes_sent;
	u32 segments = tp->data_segs_out;
	u64 bytes = sent - flow->sent + (segments - flow->segments) * headers;
	u32 now = READ(epoch);

	if (flow->epoch != now) {
		// After an epoch or several without a word from it: it has sent nothing in them.
		flow->light_rate = flow->epoch + 1 == now ?
			flow->light_bytes * SECOND / epoch_length(rate) : 0;
		flow->light_bytes = 0;
		flow->epoch = now;
		if (bytes && !flow->counted)
			__sync_fetch_and_add(&light_flows, 1);
	}
	flow->sent = sent;
	flow->segments = segments;
	if (bytes && !flow->counted) {
		flow->light_bytes += bytes;
		__sync_fetch_and_add(&light_bytes, bytes);
	}
}

INLINE void count(struct flow *flow, u32 yes)
{
	if (flow->counted == yes)
		return;
	flow->counted = yes;
	__sync_fetch_and_add(&backlogged, yes ? 1 : -1);
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
	s64 others = READ(backlogged) - flow->counted;
	u64 sharers = others > 0 ? others + 1 : 1;
	u64 light = READ(last_light_rate);
	u64 own = flow->light_rate;
	// Nobody has less than everybody would have if all were backlogged.
	u64 least = rate / (sharers + READ(last_light_flows));

	light = light > own ? light - own : 0;
	u64 fair = rate > light ? (rate - light) / sharers : 0;
	return fair > least ? fair : least;
}

// Sets the pacing rate. The kernel's own timers count payload; fq counts packets.
INLINE u64 pace(struct sock *sk, struct tcp_sock *tp)
{
	struct flow *flow = flow_of(tp);
	u64 rate = leg_rate(sk);
	u64 mss = tp->mss_cache;
	u64 headers = tp->tcp_header_len + (sk->__sk_common.skc_family == AF_INET6 ? 40 : 20);

	turn(tp->tcp_mstamp, rate);
	account(tp, flow, rate, headers);
	count(flow, !flow->stalled && is_backlogged(tp));
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
void fixed_rate_init(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct flow *flow = flow_of(tp);

	flow->sent = tp->bytes_sent;
	flow->segments = tp->data_segs_out;
	flow->light_bytes = 0;
	flow->light_rate = 0;
	flow->epoch = READ(epoch);
	flow->counted = 0;
	flow->stalled = 0;
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	open_window(tp, pace(sk, tp));
}

SECTION("struct_ops/release")
void fixed_rate_release(u64 *arguments)
{
	count(flow_of((struct tcp_sock *)arguments[0]), 0);
}

// At each acknowledgement.
SECTION("struct_ops/cong_control")
void fixed_rate_cong_control(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	struct tcp_sock *tp = (struct tcp_sock *)sk;

	flow_of(tp)->stalled = 0;
	open_window(tp, pace(sk, tp));
}

// Before each transmission (net/ipv4/tcp_output.c, tcp_tso_segs).
SECTION("struct_ops/min_tso_segs")
u32 fixed_rate_min_tso_segs(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];

	pace(sk, (struct tcp_sock *)sk);
	return 1;
}

SECTION("struct_ops/cwnd_event")
void fixed_rate_cwnd_event(u64 *arguments)
{
	struct flow *flow = flow_of((struct tcp_sock *)arguments[0]);
	u32 event = arguments[1];

	// A retransmission timeout: until something is acknowledged again it hardly sends.
	if (event == KERNEL_VALUE(enum tcp_ca_event, CA_EVENT_LOSS)) {
		flow->stalled = 1;
		count(flow, 0);
	}
}

SECTION("struct_ops/ssthresh")
u32 fixed_rate_ssthresh(u64 *arguments)
{
	return ((struct tcp_sock *)arguments[0])->snd_ssthresh;
}

SECTION("struct_ops/undo_cwnd")
u32 fixed_rate_undo_cwnd(u64 *arguments)
{
	return ((struct tcp_sock *)arguments[0])->snd_cwnd;
}

SECTION(".struct_ops.link")
struct tcp_congestion_ops fixed_rate = {
	.name = "pepd_fixed_rate",
	.ssthresh = (void *)fixed_rate_ssthresh,
	.undo_cwnd = (void *)fixed_rate_undo_cwnd,
	.min_tso_segs = (void *)fixed_rate_min_tso_segs,
	.init = (void *)fixed_rate_init,
	.release = (void *)fixed_rate_release,
	.cong_control = (void *)fixed_rate_cong_control,
	.cwnd_event = (void *)fixed_rate_cwnd_event,
};

// The kernel loads such a program only if it may be used under the GPL, too.
char _license[] SECTION("license") = "Dual MIT/GPL";

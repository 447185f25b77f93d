// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Between the program and user space, which finds the rate of a leg: what it says, and what is counted
// for it of the packets that are sent, by the epoch in which they were. One helper is called, by its
// number, so there is nothing to include.

#pragma once

#include "flow.h"

// How many epochs of what is sent may be open at once; a power of 2.
#define OPEN 64

// What user space says; its own type of it is `Order` in order.rs.
struct order {
	// Bytes a second of whole IP packets; 0 where the rate is that of the sockets.
	u64 rate;
	// The first of the last epochs in a row in which there should be no queue, and how many these are; and by how much a
	// round trip may be longer than the least then, in µs.
	u64 empty;
	u64 empties;
	u64 slack;
	// The longest least round trip of a connection that is near, in µs, and what it was before; and the number of the
	// first epoch that the former is for. Others' answers are not waited for.
	u64 near;
	u64 near_before;
	u64 near_since;
	// Not 0 while nobody listens because nothing is sent; another one each time.
	u64 nap;
	// When epochs began, in µs of the monotonic clock, by the last bits of their numbers.
	u64 began[OPEN];
	// The epoch that goes on. Behind the others: what is copied in order is there when it is read.
	u64 number;
};

// What is counted of an epoch; user space's type of it is `Counts` in order.rs. The sums go on
// from epoch to epoch, so that there is no moment at which they have to be cleared.
struct counts {
	u64 sent;
	// Those of them that connections sent which are not near. What follows is of the others.
	u64 far;
	u64 delivered;
	// The times in µs since the epoch began at which bytes were delivered, of each byte.
	u64 delays;
	// The connections that had more to send than they were let, when that was last seen.
	u64 flows;
	// Those that are kept to what their own path carries.
	u64 capped;
	// Twice the number of the epoch that what follows is of, in µs; and 1 where the queueing delays are of connections
	// that are sure. They are round trips beyond the least of the same connection.
	u64 mark;
	u64 least_queue;
	u64 first_queue;
	u64 last_queue;
	u64 longest_rtt;
	u64 least_rtt;
	// By how much a round trip was shorter than the least of its connection before, at most.
	u64 revealed;
	// The number of the epoch and the longest least round trip of who sent something in it, in µs: see `farther`.
	u64 farthest;
};

// So many classes there are of least round trips: each twice as long as the one before, from about 1 ms on.
#define CLASSES 16

// What is counted.
struct counted {
	struct counts epochs[OPEN];
	// Bytes that were sent by connections of each class. What several processors count at the same time may be lost: it is
	// asked only for who sends most.
	u64 by_class[CLASSES];
};

static struct order order SECTION(".data.order");
static struct counted counted SECTION(".data.counts");
// The last nap that was ended.
static u64 woken;

INLINE u64 less(u64 from, u64 what)
{
	return from > what ? from - what : 0;
}

// So many round trips make a round, and of so many rounds the least delay is kept; a power of 2. They are enough
// for some of a connection's own and some of others', and few enough that not each has all connections in it:
// one of many whose least round trip was not seen yet does not make the others' seem long.
#define ROUND 32
#define ROUNDS 64
// Round trips, round by round.
struct rounds {
	// How many there were.
	u64 heard;
	// By how much they were longer than the least of their connections, at the least in each round, in µs: what all
	// of them have in common, which is the leg's queue.
	u32 least[ROUNDS];
};
// Those of connections that are known. Of a connection alone it is all that its own are longer by: its link is the
// leg's narrow place then, and there is nobody who could have had more.
static struct rounds known;
// Those of all, and when the last one was, in µs.
static struct rounds all;
static u64 last_heard;
// The connections that are kept to what their own path carries.
static s64 capped;

// What wakes user space from a nap.
struct {
	int (*type)[27]; // BPF_MAP_TYPE_RINGBUF
	int (*max_entries)[65536]; // a page of the largest size
} wake SECTION(".maps");

// BPF_FUNC_ringbuf_output.
static long (*const ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;

// User space says something new once a second at least. Is it silent for longer, it hangs or is
// gone, and the rate is halved in each such time, to a 16th: the link may have become slower.
#define SILENCE (2 * SECOND)
#define SILENCES 4

// The leg's rate in bytes a second. At least 1, which the verifier cannot know.
INLINE u64 leg_rate(struct sock *sk, u64 now)
{
	u64 most = sk->sk_max_pacing_rate;
	u64 rate = READ(order.rate);

	if (!rate)
		return most ? most : 1;
	s64 silent = now - READ(order.began[READ(order.number) % OPEN]);
	if (silent > (s64)SILENCE && !READ(order.nap)) {
		u64 times = (u64)silent / SILENCE;
		rate >>= times < SILENCES ? times : SILENCES;
	}
	rate = rate < most ? rate : most;
	return rate ? rate : 1;
}

// Has user space listen again, once in each nap.
INLINE void wake_up(void)
{
	u64 nap = READ(order.nap);
	u64 last = READ(woken);
	u64 word = 0;

	if (nap && nap != last && __sync_bool_compare_and_swap(&woken, last, nap))
		ringbuf_output(&wake, &word, sizeof(word), 0);
}

// The number of the epoch in which something was sent; one that has no counts any more if that is
// too long ago.
INLINE u64 epoch_of(u64 sent)
{
	u64 number = READ(order.number);

	for (u32 back = 0; back < OPEN; back++) {
		s64 since = sent - READ(order.began[(number - back) % OPEN]);
		if (since >= 0)
			return number - back;
	}
	return number - OPEN;
}

INLINE struct counts *counts_of(u64 number)
{
	return &counted.epochs[number % OPEN];
}

// Returns the class of a least round trip in µs: the number of bits of it in units of 1024 µs.
INLINE u32 class_of(u32 rtt)
{
	u32 units = rtt >> 10;
	u32 class = 0;

	for (u32 bits = 8; bits; bits /= 2) {
		if (units >> bits) {
			units >>= bits;
			class += bits;
		}
	}
	class += !!units;
	return class < CLASSES ? class : CLASSES - 1;
}

// Returns whether what a connection sent in an epoch is one of those that are waited for.
INLINE u32 is_near(struct flow *flow, u64 number)
{
	u64 near = READ(order.near_since) <= number ? READ(order.near) : READ(order.near_before);

	return flow->least_rtt <= near;
}

// An epoch's number and a least round trip, of which the larger is that of the later epoch, or of who is farther: so it never has
// to be cleared. A round trip that is longer than 71 minutes is not told.
INLINE u64 farther(u64 number, u32 least)
{
	return number << 32 | least;
}

// Counts bytes of IP packets that were sent since the connection was last looked at.
INLINE void book_sent(struct flow *flow, u64 bytes)
{
	u64 number = READ(order.number);
	u32 back = (u32)number - flow->looked;
	u64 looked = back < OPEN ? number - back : number;

	flow->looked = number;
	if (!bytes)
		return;
	struct counts *counts = counts_of(looked);
	__sync_fetch_and_add(&counts->sent, bytes);
	// Not of who has none yet, as after a SYN that was lost: it would be the nearest.
	if (flow->least_rtt)
		counted.by_class[class_of(flow->least_rtt) % CLASSES] += bytes;
	if (!is_near(flow, looked)) {
		__sync_fetch_and_add(&counts->far, bytes);
		return;
	}
	u64 farthest = farther(looked, flow->least_rtt);
	if ((s64)(farthest - READ(counts->farthest)) > 0)
		counts->farthest = farthest;
}

// Takes by how much another round trip is longer, and returns the number of its round.
INLINE u64 hear(struct rounds *rounds, u32 delay)
{
	u64 number = __sync_fetch_and_add(&rounds->heard, 1);
	u64 round = number / ROUND;
	u32 *least = &rounds->least[round % ROUNDS];

	if (number % ROUND == 0 || delay < READ(*least))
		*least = delay;
	return round;
}

// Returns the least delay of the round before the one that goes on.
INLINE u64 last_round(struct rounds *rounds)
{
	return READ(rounds->least[(READ(rounds->heard) / ROUND - 1) % ROUNDS]);
}

// Compares a delay of the connection with those of the leg's others in the same round. Those count that are known:
// others' least round trip may be one with a queue.
INLINE void compare(struct flow *flow, u32 delay)
{
	u64 round = hear(&known, delay);
	// The round that its last one was in is over, and still kept.
	u32 passed = (round - flow->round) % (2 * ROUNDS);

	if (passed && passed < ROUNDS && flow->least_delay != MOST) {
		u32 others = READ(known.least[(round - passed) % ROUNDS]);
		u32 own = less(flow->least_delay, others);
		if (own < flow->look_least)
			flow->look_least = own;
	}
	if (passed)
		flow->least_delay = MOST;
	flow->round = round;
	if (delay < flow->least_delay)
		flow->least_delay = delay;
}

// A queue is not forgotten for so long, in µs, though nothing is heard: acknowledgements come together.
#define TOGETHER 20000ULL

// The queueing delay that there is, in µs; none where nothing was heard for as long as it takes to empty it.
INLINE u64 queue_at(u64 now)
{
	u64 queue = last_round(&all);
	u64 most = queue > TOGETHER ? queue : TOGETHER;
	s64 silent = now - READ(last_heard);

	return silent < (s64)most ? queue : 0;
}

// The least round trip of a connection that has its first one, in µs: without the queue that there is. Who had another control
// before has had others, of which the kernel knows the least (tcp_min_rtt, include/net/tcp.h).
INLINE u64 first_least(struct tcp_sock *tp, u64 rtt)
{
	u64 queue = queue_at(tp->tcp_mstamp);
	u64 least = rtt > queue ? rtt - queue : 1;
	u64 before = tp->rtt_min.s[0].v;

	return before && before < least ? before : least;
}

// Takes a round trip of a connection, and returns by how much it is longer than the least.
INLINE u64 delay_of(struct tcp_sock *tp, struct flow *flow, u64 rtt)
{
	u32 is_first = !flow->least_rtt;

	if (is_first)
		flow->least_rtt = first_least(tp, rtt);
	if (rtt < flow->least_rtt)
		flow->least_rtt = rtt ? rtt : 1;
	u64 delay = less(rtt, flow->least_rtt);
	// What was taken off its first one says nothing of the queue.
	if (!is_first)
		hear(&all, delay);
	last_heard = tp->tcp_mstamp;
	if (flow->is_known)
		compare(flow, delay);
	return delay;
}

// Returns how much of such a delay is that of the connection's own path, in µs, where it has a cap: the leg's queue is
// not longer for that.
INLINE u64 own_delay(struct flow *flow, u64 delay)
{
	if (!flow->cap)
		return 0;
	return less(delay, last_round(&known));
}

// Returns whether there should have been no queue when an epoch was.
INLINE u32 is_empty(u64 number)
{
	return number - READ(order.empty) < READ(order.empties);
}

// A round trip of a connection, in µs.
struct round_trip {
	u64 rtt;
	// By how much it was longer than the least, and the least before it was shorter than that, at most.
	u64 delay;
	u64 revealed;
	// Whether the connection is sure.
	u32 is_sure;
};

// Notes what a round trip says of the path. Where some are of connections that are sure, the queueing delays are theirs.
INLINE void book_round_trip(struct counts *counts, u64 number, const struct round_trip *trip)
{
	u64 mark = 2 * number + trip->is_sure;
	u64 last = READ(counts->mark);
	// Whoever is second finds the first one's values, or those of an epoch long ago for a moment.
	if (last < mark && __sync_bool_compare_and_swap(&counts->mark, last, mark)) {
		counts->least_queue = trip->delay;
		counts->first_queue = trip->delay;
		if (last < 2 * number) {
			counts->longest_rtt = trip->rtt;
			counts->least_rtt = trip->rtt;
			counts->revealed = 0;
		}
	}
	if (trip->rtt > READ(counts->longest_rtt))
		counts->longest_rtt = trip->rtt;
	if (trip->rtt < READ(counts->least_rtt))
		counts->least_rtt = trip->rtt;
	if (trip->revealed > READ(counts->revealed))
		counts->revealed = trip->revealed;
	if (READ(counts->mark) != mark)
		return;
	counts->last_queue = trip->delay;
	if (trip->delay < READ(counts->least_queue))
		counts->least_queue = trip->delay;
}

// Notes the round trip of the handshake: whoever finds the rate begins with it.
INLINE void book_handshake(struct tcp_sock *tp, struct flow *flow)
{
	u64 number = READ(order.number);
	// srtt_us is in eighths of a µs (net/ipv4/tcp_input.c, tcp_rtt_estimator).
	u64 rtt = tp->srtt_us >> 3;

	// After a SYN that was lost it is the time until another was sent, too.
	if (!rtt || tp->total_retrans || !READ(order.rate))
		return;
	u64 delay = delay_of(tp, flow, rtt);
	// Not who had another control before, and what was sent for it is under way.
	if (is_empty(number) && !tp->bytes_sent)
		flow->is_sure = 1;
	struct round_trip trip = {
		.rtt = rtt,
		.delay = delay,
		.is_sure = flow->is_sure,
	};
	if (is_near(flow, number))
		book_round_trip(counts_of(number), number, &trip);
	wake_up();
}

// Returns whether an acknowledgement of what a connection sent in an epoch says anything of it still.
INLINE u32 is_asked(struct flow *flow, u64 number)
{
	return READ(order.number) - number < OPEN && is_near(flow, number);
}

// Counts bytes of IP packets that were acknowledged now and sent then, and returns the epoch of that.
INLINE u64 book_arrived(struct flow *flow, u64 sent, u64 now, u64 bytes)
{
	u64 number = epoch_of(sent);

	if (!is_asked(flow, number))
		return number;
	struct counts *counts = counts_of(number);
	s64 delay = now - READ(order.began[number % OPEN]);
	__sync_fetch_and_add(&counts->delivered, bytes);
	__sync_fetch_and_add(&counts->delays, delay > 0 ? bytes * delay : 0);
	return number;
}

// A receiver waits so long for a second packet before it acknowledges one, in µs (TCP_DELACK_MIN, include/net/tcp.h). Who
// sends more slowly sends two together: else each round trip would be longer by that, and look like a queue.
#define DELAYED 40000ULL

// Returns whether it is not known which transmission an acknowledgement is of: after a retransmission timeout that was too early,
// as in a queue that has become long, it is the one before, and the time since the last one is much less than a round trip.
INLINE u32 is_ambiguous(struct tcp_sock *tp, struct flow *flow)
{
	// What was under way by then ends there (net/ipv4/tcp_input.c, tcp_enter_loss).
	if (flow->has_timed_out && (s32)(tp->snd_una - tp->high_seq) >= 0)
		flow->has_timed_out = 0;
	return flow->has_timed_out;
}

// Counts what was acknowledged since the connection was last looked at, in the epochs in which it was
// sent: of the last packet the time is known, and the others went before that, as fast as they were let,
// but not before what was acknowledged earlier. Returns whether that told a round trip.
INLINE u32 book_delivered(struct tcp_sock *tp, struct flow *flow, u64 pacing)
{
	u64 packets = tp->delivered - flow->delivered;
	u64 sent = tp->rack.mstamp;
	u64 earlier = flow->acknowledged;

	flow->delivered = tp->delivered;
	if (!packets || !READ(order.rate))
		return 0;
	u64 rtt = tp->rack.rtt_us;
	u64 least = flow->least_rtt;
	u32 is_told = sent != earlier && !is_ambiguous(tp, flow);
	u64 delay = is_told ? delay_of(tp, flow, rtt) : 0;
	u64 own = own_delay(flow, delay);
	// It would have come then without a link of its own.
	u64 now = tp->tcp_mstamp - own;
	u64 each = flow->size * SECOND / (pacing ? pacing : 1);
	// Who has a packet so seldom has sent two together.
	u64 half = each > DELAYED && packets == 2 ? 0 : packets / 2;
	if (half) {
		u64 time = half * each;
		u64 most = sent > earlier ? (sent - earlier) / 2 : 0;
		book_arrived(flow, sent - (time < most ? time : most), now, half * flow->size);
	}
	u64 number = book_arrived(flow, sent, now, (packets - half) * flow->size);
	wake_up();
	flow->acknowledged = sent;
	if (!is_told)
		return 0;
	if (!is_asked(flow, number))
		return 1;
	if (is_empty(number) && rtt <= flow->least_rtt + READ(order.slack))
		flow->is_sure = 1;
	struct round_trip trip = {
		.rtt = rtt,
		.delay = delay - own,
		.revealed = less(least, rtt),
		.is_sure = flow->is_sure,
	};
	book_round_trip(counts_of(number), number, &trip);
	return 1;
}

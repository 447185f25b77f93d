// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Who shares: connections, or sources, each with all its connections.
//
// User space says of each connection whether it is one of a source's, and its weight, by the
// socket's priority (SO_PRIORITY), of which the kernel's own use is the last four bits: above them four
// bits with the weight, less 1, and then the bits of an IPv6 address that make a source, or 0 where
// each connection is on its own. So nothing is said by what every socket has, 0. (`SHARE` in
// crates/pepd-relay/src/share.rs.)
//
// The source is the client, whoever sends: the other end where that has opened the connection, and
// else this one, as a leg towards a server has the client's address.

#pragma once

#include "flow.h"

// How many sources there may be at once, a power of 2, and at how many places one may be. A connection
// of a source that has none is on its own.
#define SOURCES 4096
#define PLACES 8
// What another processor may come between so many times is given up. Such loops are not written out: that
// makes the program larger, and nothing faster.
#define TRIES 16
#define AS_LOOP _Pragma("clang loop unroll(disable)")

// What is said of a connection by its priority; and in that, its weight and the bits that make a
// source.
#define SAID(priority) ((priority) >> 4 & 0xfff)
#define WEIGHT(said) (((said) & 15) + 1)
#define BITS(said) ((said) >> 4)

struct source {
	// Who has the place: the upper bits of a hash; and, in the last ones, how many connections of it
	// there are. Nobody has it when that is 0.
	u64 claim;
	// For those that share and for those that go ahead: the weights of its connections in the lower
	// half, and as what they count together in the upper one.
	u64 weights[2];
	// What it has sent in the current period while not backlogged, in bytes of IP packets; as `light`
	// of the leg, but for that it is here of all its connections. And what of it is in the leg's, too:
	// what it sends while it has no connection that shares.
	u64 light_bytes;
	u64 lone_bytes;
	u32 light_weight;
	// The period that these are about.
	u32 period;
	// The same of the period before; bytes a second.
	u64 last_light_rate;
	u64 last_lone_rate;
	u64 last_light_weight;
};

#define CONNECTIONS 20
#define ONE_OF(claim) ((claim) & ((1 << CONNECTIONS) - 1))

static struct source sources[SOURCES];

INLINE struct source *source_of(struct flow *flow)
{
	u32 place = flow->place;

	return place ? &sources[(place - 1) % SOURCES] : 0;
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define HOST_ORDER(word) __builtin_bswap32(word)
#else
#define HOST_ORDER(word) (word)
#endif
#define HALF(address, at) \
	((u64)HOST_ORDER((address).in6_u.u6_addr32[at]) << 32 | \
	 HOST_ORDER((address).in6_u.u6_addr32[at + 1]))

INLINE u64 mixed(u64 word)
{
	word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
	word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
	return word ^ (word >> 31);
}

// A hash of the client's address, or of so many bits of it.
INLINE u64 client_of(struct sock *sk, struct flow *flow, u32 bits)
{
	struct sock_common *common = &sk->__sk_common;

	// A kernel without IPv6 has no such addresses.
	if (common->skc_family != AF_INET6 || !KERNEL_HAS(common->skc_v6_daddr) ||
	    !KERNEL_HAS(common->skc_v6_rcv_saddr))
		return mixed(flow->is_accepted ? common->skc_daddr : common->skc_rcv_saddr);
	u64 high = flow->is_accepted ?
		HALF(common->skc_v6_daddr, 0) : HALF(common->skc_v6_rcv_saddr, 0);
	u64 low = flow->is_accepted ?
		HALF(common->skc_v6_daddr, 2) : HALF(common->skc_v6_rcv_saddr, 2);
	if (bits < 64)
		high &= ~(~0ULL >> (bits & 63));
	if (bits <= 64)
		low = 0;
	else if (bits < 128)
		low &= ~(~0ULL >> ((bits - 64) & 63));
	return mixed(mixed(high) + low);
}

// Takes part in the place if it is that of this source, or, where that is asked for, nobody's.
INLINE u32 take_part(u64 *claim, u64 hash, u32 anew)
{
	AS_LOOP
	for (u32 try = 0; try < TRIES; try++) {
		u64 old = READ(*claim);
		u64 count = ONE_OF(old);
		if (count ? (old ^ hash) >> CONNECTIONS || !ONE_OF(old + 1) : !anew)
			return 0;
		u64 wanted = (hash >> CONNECTIONS << CONNECTIONS) + count + 1;
		if (__sync_bool_compare_and_swap(claim, old, wanted))
			return 1;
	}
	return 0;
}

// Enters the connection into the source with this hash.
INLINE void enter(struct flow *flow, u64 hash)
{
	for (u32 anew = 0; anew < 2; anew++) {
		for (u32 step = 0; step < PLACES; step++) {
			u32 place = (hash + step) % SOURCES;
			if (take_part(&sources[place].claim, hash, anew)) {
				flow->place = place + 1;
				return;
			}
		}
	}
}

INLINE void leave(struct flow *flow)
{
	struct source *source = source_of(flow);

	if (source)
		__sync_fetch_and_sub(&source->claim, 1);
	flow->place = 0;
}

// What the connections of a source weigh, and as what it counts: as much as the heaviest of them.
#define SUM(weights) ((u32)(weights))
#define COUNTS_AS(weights) ((weights) >> 32)

// Changes the sum by what one of them weighs or, with 0, sees that its weight is counted; and the
// leg's total accordingly. When the heaviest goes it counts as 1, until the others are looked at.
INLINE u32 weigh(u64 *weights, s64 *total, s32 change, u32 weight)
{
	AS_LOOP
	for (u32 try = 0; try < TRIES; try++) {
		u64 old = READ(*weights);
		u32 sum = SUM(old) + change;
		u32 as = COUNTS_AS(old);
		if (change < 0 && weight >= as)
			as = 1;
		if (change >= 0 && weight > as)
			as = weight;
		if (!sum)
			as = 0;
		u64 wanted = (u64)as << 32 | sum;
		if (wanted == old)
			return 1;
		if (__sync_bool_compare_and_swap(weights, old, wanted)) {
			if (as != COUNTS_AS(old))
				__sync_fetch_and_add(total, (s64)as - (s64)COUNTS_AS(old));
			return 1;
		}
	}
	return 0;
}

// Begins a new period for the source where the leg has.
INLINE void turn_source(struct source *source, u32 now, u64 length)
{
	u32 period = READ(source->period);

	if (period == now || !__sync_bool_compare_and_swap(&source->period, period, now))
		return;
	u64 light = __sync_lock_test_and_set(&source->light_bytes, 0);
	u64 lone = __sync_lock_test_and_set(&source->lone_bytes, 0);
	u64 weight = __sync_lock_test_and_set(&source->light_weight, 0);
	u64 is_last = period + 1 == now;
	source->last_light_rate = is_last ? light * SECOND / length : 0;
	source->last_lone_rate = is_last ? lone * SECOND / length : 0;
	source->last_light_weight = is_last ? weight : 0;
}

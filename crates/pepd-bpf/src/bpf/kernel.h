// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// The kernel's types, as far as they are used: the loader (fit.rs) finds where the running kernel has what (BPF
// CO-RE).

#pragma once

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

// The most that 32 bits hold.
#define MOST 0xffffffffULL

// In µs.
#define SECOND 1000000ULL

#define AF_INET6 10
#define TCP_SYN_RECV 3
#define SK_PACING_NONE 0
#define SK_PACING_NEEDED 1
#define SK_PACING_FQ 2

// Its values have changed before: the running kernel's count (BPF_ENUMVAL_VALUE).
enum tcp_ca_event {
	CA_EVENT_LOSS = 3,
};
#define KERNEL_VALUE(type, value) __builtin_preserve_enum_value(*(type *)value, 1)

// Whether the running kernel has a member (BPF_FIELD_EXISTS).
#define KERNEL_HAS(member) __builtin_preserve_field_info(member, 2)

struct in6_addr {
	union {
		u32 u6_addr32[4];
	} in6_u;
} OF_KERNEL;

struct sock_common {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u16 skc_family;
	u8 skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} OF_KERNEL;

struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	u32 sk_pacing_status;
	u32 sk_priority;
} OF_KERNEL;

struct inet_sock {
	struct sock sk;
} OF_KERNEL;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	u64 icsk_ca_priv[13];
} OF_KERNEL;

// A minimum over a time (include/linux/win_minmax.h); the first sample is it.
struct minmax_sample {
	u32 v;
} OF_KERNEL;

struct minmax {
	struct minmax_sample s[3];
} OF_KERNEL;

// Of the segment that was sent last of all that were acknowledged (RFC 8985).
struct tcp_rack {
	u64 mstamp;
	u32 rtt_us;
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
	u32 snd_cwnd_cnt;
	u32 snd_cwnd_clamp;
	u32 snd_ssthresh;
	u32 prior_cwnd;
	u32 high_seq;
	u32 packets_out;
	u32 srtt_us;
	u32 mss_cache;
	u32 lost;
	u32 lost_out;
	u32 retrans_out;
	u32 total_retrans;
	u32 data_segs_out;
	u32 delivered;
	struct minmax rtt_min;
	struct tcp_rack rack;
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
	void (*cong_avoid)(struct sock *sk, u32 acknowledgement, u32 acknowledged);
	void (*cong_control)(struct sock *sk);
	void (*cwnd_event)(struct sock *sk, u32 event);
};

#!/bin/busybox sh
# The guest's first process, while it still stands in the initramfs: makes a root out of the
# host's `/` (read-only) and memory, and goes there. guest.sh goes on.

/bin/busybox mkdir -p /proc /sys /dev /lower /memory /root /whole
/bin/busybox --install -s /bin
export PATH=/bin

fail() {
    # The host keeps the console and shows its end when the guest ends without a status.
    echo "pepd-guest: $*" >/dev/console
    poweroff -f
}
try() { "$@" || fail "failed: $*"; }

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /modules/*.ko; do try insmod "$module"; done

# A port appears some time after its driver is loaded.
port() {
    tries=0
    while [ $tries -lt 500 ]; do
        for entry in /sys/class/virtio-ports/*; do
            if [ "$(cat "$entry/name" 2>/dev/null)" = "$1" ]; then
                device=/dev/${entry##*/}
                return
            fi
        done
        tries=$((tries + 1))
        sleep 0.01
    done
    fail "no virtio port $1"
}
port control
exec 3<>"$device"
port out
ln -s "$device" /out
port err
ln -s "$device" /err

share() { try mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$2" "$1" "$3"; }
share root ro,cache=loose /lower
try mount -t tmpfs -o mode=755,size=75% memory /memory
mkdir /memory/upper /memory/work
try mount -t overlay -o lowerdir=/lower,upperdir=/memory/upper,workdir=/memory/work overlay /root
# A second view, which stays whole when memory is mounted over parts of the first.
try mount --bind /root /whole

mount -t proc proc /root/proc
mount -t sysfs sysfs /root/sys
mount -t devtmpfs devtmpfs /root/dev
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /root/dev/pts
mount -t tmpfs -o mode=1777 tmpfs /root/dev/shm
mount -t tmpfs -o mode=1777,size=75% tmpfs /root/tmp
mount -t tmpfs -o mode=755 tmpfs /root/run
mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
mount -t bpf bpf /root/sys/fs/bpf
mount -t tracefs tracefs /root/sys/kernel/tracing

guest=/root/run/guest
mkdir -p $guest/bin /root/run/netns /root/run/lock /root/run/results
cp /bin/busybox $guest/bin/
cp /guest.sh $guest/
mv /out /err $guest/
share results rw,cache=none /root/run/results

# What to do comes from the host: a shell script, after its length in bytes. It is the only
# message, since `head` may read past its end.
read -r length <&3 || fail "the host sent nothing"
head -c "$length" <&3 >$guest/session
[ "$(stat -c %s $guest/session)" = "$length" ] || fail "the host's message was cut short"

# Called by the session: makes a path visible that lies below one of the mounts above.
keep() {
    if [ -d "/whole$1" ]; then
        mkdir -p "/root$1"
    else
        mkdir -p "/root${1%/*}"
        touch "/root$1"
    fi
    try mount --bind "/whole$1" "/root$1"
}
. $guest/session
keep_paths
mkdir -p /root/lib/modules
try mount --bind "/whole$modules" /root/lib/modules
umount /whole

exec switch_root /root /run/guest/bin/busybox sh /run/guest/guest.sh

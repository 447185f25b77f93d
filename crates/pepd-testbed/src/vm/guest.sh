# The guest's first process, once it stands in its final root: sets the machine up, runs the
# command, sends its output and status to the host, and waits to be switched off.

guest=/run/guest
system_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
$guest/bin/busybox --install -s $guest/bin
export PATH=$guest/bin:$system_path

ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
hostname pepd-guest
ip link set lo up
/sbin/modprobe tun
ulimit -n 1048576

# Called by the session: brings a file, a link, or all in a directory, into memory. Overlayfs
# copies a file up as soon as its mode is set, even to what it was, and a link with its time.
copy() {
    if ! find "$1" -type f -exec chmod u+r {} + || ! find "$1" -type l -exec touch -h {} +; then
        # The host keeps the console and shows its end when the guest ends without a status.
        echo "pepd-guest: cannot copy $1 into memory; is there enough of it?" >/dev/console
        poweroff -f
    fi
}
# Called by the session: loads modules. What a kernel has built in, or lacks, keeps none of the
# others back.
load() {
    /sbin/modprobe -a -q "$@"
}
. $guest/session
copy_paths

# Pipes, not the ports themselves: a port can be opened only once, and the command may open
# /dev/stdout again.
mkfifo $guest/stdout $guest/stderr
cat <$guest/stdout >$guest/out &
out=$!
cat <$guest/stderr >$guest/err &
err=$!

# Counts what goes over 9p.
requests=/sys/kernel/tracing/instances/pepd-guest
mkdir $requests
echo 1 >$requests/events/9p/9p_client_req/enable

echo "start $(uname -r)" >&3
# A session of its own, so that a command that kills its process group does not end the above.
# The host's shell, since busybox's runs its own applets whatever PATH says.
PATH=$system_path $guest/bin/setsid /bin/sh -c ". $guest/session; run_command" \
    </dev/null >$guest/stdout 2>$guest/stderr 3>&- &
wait $!
status=$?
cat $requests/per_cpu/cpu*/stats | {
    count=0
    while IFS=': ' read -r name value rest; do
        case $name in entries | overrun) count=$((count + value)) ;; esac
    done
    echo "requests $count" >&3
}

# What the command left running holds the pipes open.
for round in 1 2 3; do
    for process in /proc/[0-9]*; do
        process=${process#/proc/}
        case $process in
        1 | "$out" | "$err") ;;
        *) kill -KILL "$process" 2>/dev/null ;;
        esac
    done
done
wait "$out" "$err"
sync
echo "exit $status" >&3
while :; do sleep 3600; done

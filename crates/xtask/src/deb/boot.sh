# Boots systemd in a copy of this Debian, which ends with its mounts. $1 is the package.
exec unshare --mount --pid --cgroup --fork --kill-child sh -ec '
    mount -t tmpfs pepd-trial /mnt
    cd /mnt
    mkdir upper work root
    mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
    cp "$1" root/root/
    cd root
    mount --rbind /dev dev
    mount --make-rslave dev
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t tmpfs -o mode=755 cgroups sys/fs/cgroup
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs -o mode=755 run run
    mount -t tmpfs tmp tmp
    chroot . dpkg --purge pepd
    rm -rf etc/pepd etc/systemd/system/pepd.service usr/local/bin/pepd usr/local/sbin/pepd
    printf "[Unit]\nRequires=sysinit.target\nAfter=sysinit.target\n" > etc/systemd/system/only.target
    pivot_root . mnt
    exec chroot . sh -ec "umount -l /mnt; exec env -i container=pepd PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --log-target=console --unit=only.target"
' sh "$1"

# What the package manager does to the package, in a copy of this Debian that ends with its mounts. $1 is
# the package.
mount -t tmpfs pepd-trial /mnt
cd /mnt
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
mount -t proc proc root/proc
cp "$1" root/pepd.deb
exec chroot root sh -eux -c '
    export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
    dpkg --purge pepd
    rm -f /usr/local/bin/pepd /usr/local/sbin/pepd /etc/systemd/system/pepd.service
    dpkg-deb --field /pepd.deb Depends | tr "," "\n" | grep -x " *nftables"
    dpkg --install /pepd.deb
    pepd --version
    pepd check -c /etc/pepd/pepd.toml
    pepd check
    systemd-analyze verify /lib/systemd/system/pepd.service
    for page in man1/pepd.1 man5/pepd.toml.5; do gzip -t /usr/share/man/$page.gz; done
    bash -n /usr/share/bash-completion/completions/pepd
    echo "# of this network" >> /etc/pepd/pepd.toml
    dpkg --install /pepd.deb
    grep "of this network" /etc/pepd/pepd.toml
    dpkg --remove pepd
    test ! -e /usr/bin/pepd
    test -e /etc/pepd/pepd.toml
    dpkg --purge pepd
    test ! -e /etc/pepd
    ! dpkg --status pepd
'

#!/bin/sh
# Runs before the package's files go. Debian says "remove", rpm 0: how many versions are left. Networks, and what living
# containers have, stay.
set -eu
plugins=/opt/cni/bin
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
	for unit in gc.timer dhcp.socket docker.socket dhcp.service docker.service hosts.service plugins.service; do
		systemctl disable --now "patchbay-$unit" || true # the package goes all the same
	done
fi

# Without its plugins a container could not end.
living=$(patchbay ps --json) || living='"alive": true'
case $living in
*'"alive": true'*)
	echo "patchbay: containers are attached, so their plugins stay in $plugins. When they have ended: $plugins/patchbay install --remove $plugins" >&2
	;;
*)
	patchbay install --remove "$plugins"
	rmdir "$plugins" "${plugins%/bin}" 2>/dev/null || true # they may have others' files
	;;
esac

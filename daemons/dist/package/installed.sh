#!/bin/sh
# Runs when the package's files are in place. Debian says "configure" and the version before, rpm how many versions there
# are: 1 or 2.
set -eu
plugins=/opt/cni/bin
case $1 in
configure) before=${2:-} ;;
1) before= ;;
2) before=some ;;
*) exit 0 ;;
esac

# An update replaces the plugins only where an install has put them. Containers may start meanwhile.
if [ -z "$before" ] || ls "$plugins"/.patchbay-* >/dev/null 2>&1; then
	patchbay install "$plugins" || echo "patchbay: plugins in $plugins are not installed: see the line above" >&2
fi

# What runs goes on with the new program. Sockets stay open, and containers do not notice.
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	for unit in dhcp docker hosts plugins; do
		systemctl try-restart "patchbay-$unit.service" || echo "patchbay: see systemctl status patchbay-$unit" >&2
	done
fi

module github.com/patchbay-net/patchbay

go 1.26.0

// What the program is built on (docs/adr).
require (
	github.com/evanphx/json-patch/v5 v5.9.11
	github.com/godbus/dbus/v5 v5.2.4
	github.com/google/nftables v0.3.0
	github.com/jessevdk/go-flags v1.6.1
	github.com/mdlayher/netlink v1.11.2
	github.com/rogpeppe/go-internal v1.16.0
	github.com/vishvananda/netlink v1.3.1
	github.com/vishvananda/netns v0.0.5
	golang.org/x/sys v0.49.0
)

// Tests only.
require (
	github.com/google/go-cmp v0.7.0
	golang.org/x/net v0.61.0
)

// What those need.
require (
	github.com/mdlayher/socket v0.6.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/tools v0.51.0 // indirect
)

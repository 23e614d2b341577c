// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
)

// dhcpSocket is the socket at which the dhcp plugin of every set looks for its daemon.
const dhcpSocket = "/run/cni/dhcp.sock"

// dhcp measures macvlan with addresses from a DHCP server on the segment. Each set has its own
// daemon for leases: the reference's or our patchbayd.
func (l *lab) dhcp() error {
	sets := l.want(reference, debian, ours)
	if len(l.want(ours)) > 0 {
		if err := goBuild(l.path("patchbayd"), "./daemons/cmd/patchbayd"); err != nil {
			return err
		}
	}
	for _, set := range sets {
		for _, op := range []string{"segment", "dhcp"} {
			if _, err := l.ask(set, request{Op: op, Keeper: l.keeper(set)}); err != nil {
				return err
			}
		}
	}
	return l.alternate(l.pick(20, 3), []string{"dhcp"}, reference, debian, ours)
}

// keeper returns the command of a set's daemon for leases.
func (l *lab) keeper(set string) []string {
	if set == ours {
		return []string{l.path("patchbayd"), "dhcp"}
	}
	return []string{filepath.Join(l.plugins[set], "dhcp"), "daemon"}
}

// startDHCP starts a DHCP server on the segment and a set's daemon for leases. They end with the
// worker's PID namespace.
func startDHCP(keeper []string) error {
	peer, err := netlink.LinkByName(segmentPeer)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(peer, &netlink.Addr{IPNet: ipNet("10.203.0.1/16")}); err != nil {
		return fmt.Errorf("address the segment: %w", err)
	}
	server := []string{"dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--no-ping", "--bind-interfaces",
		"--interface=" + segmentPeer, "--dhcp-range=10.203.1.1,10.203.200.1,1h", "--dhcp-leasefile=/run/dnsmasq.leases", "--log-facility=/run/dnsmasq.log"}
	for _, args := range [][]string{server, keeper} {
		cmd := exec.Command(args[0], args[1:]...)
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("start %s: %w", args[0], err)
		}
	}
	return awaitSocket(dhcpSocket)
}

func awaitSocket(path string) error {
	for range 250 {
		if c, err := net.Dial("unix", path); err == nil {
			return c.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("no keeper of leases listens at " + path)
}

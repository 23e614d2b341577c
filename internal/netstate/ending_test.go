// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// kinds are links of which the kernel refuses a second one: with the same Ethernet address, the
// same IP address, or the same VLAN.
var kinds = map[string]func() netlink.Link{
	"macvlan": func() netlink.Link { return &netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE} },
	"ipvlan":  func() netlink.Link { return &netlink.IPVlan{Mode: netlink.IPVLAN_MODE_L2} },
	"vlan":    func() netlink.Link { return &netlink.Vlan{VlanId: 5} },
}

// twin returns the state of a container with a link of this kind on br0. All such containers have
// the same addresses.
func twin(kind string) State {
	child := Child{Kind: kinds[kind](), Name: "eth0", Temp: "temp0", Master: "br0", Owner: "abcdefghijklmno"}
	if kind == "macvlan" {
		child.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 9}
	}
	addr := netip.MustParsePrefix("10.9.0.5/24")
	return State{child, Addr{Where: Sandbox, Link: "eth0", Prefix: addr}, Up{Where: Sandbox, Link: "eth0"}}
}

// TestAfterEnding makes a link while the kernel still has its twin from another namespace. The ADD
// waits until the kernel has removed the twin, and fails if the twin stays.
func TestAfterEnding(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			nettest.Need(t, nettest.LinkKind(kind))
			env := newEnv(t)
			old := &Env{Host: env.Host, Sandbox: newSandbox(t, "old")}
			must(t, apply(t, env, State{Bridge{Name: "br0", MTU: 1500}, Up{Link: "br0"}}))
			must(t, apply(t, old, twin(kind)))

			err := apply(t, env, twin(kind))
			if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EEXIST) {
				t.Fatalf("beside a container that lives: %v", err)
			}
			if l, err := env.Sandbox.Link("eth0"); err == nil {
				must(t, env.Sandbox.LinkDel(l))
			}

			gone := make(chan error)
			go func() {
				time.Sleep(100 * time.Millisecond)
				gone <- deleteNamed(old.Sandbox, "eth0")
			}()
			err = apply(t, again(env), twin(kind))
			must(t, errors.Join(<-gone, err))
		})
	}
}

func deleteNamed(c *nl.Conn, name string) error {
	link, err := c.Link(name)
	if err != nil {
		return err
	}
	return DeleteLink(c, link)
}

func apply(t *testing.T, env *Env, s State) error {
	a := Applier{Env: env, Undo: func(func(context.Context) error) {}}
	return a.Apply(t.Context(), s)
}

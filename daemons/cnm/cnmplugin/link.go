// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// moveLink moves the link that the driver names into the container, and configures the link.
func (w *work) moveLink(ctx context.Context) error {
	src := w.join.InterfaceName.SrcName
	link, err := w.env.Host.Link(src)
	if nl.IsNotFound(err) {
		return spec.Errorf(remote.CodeDriver, "driver %s handed over link %q, which is not in the host's namespace: %w", w.client.Endpoint(), src, err)
	}
	if err != nil {
		return err
	}
	w.at.Link = &remote.Link{Name: src, Alias: link.Attrs().Alias}
	if err := w.step("take over " + src); err != nil {
		return err
	}
	mac, err := net.ParseMAC(w.has.MacAddress)
	if err != nil {
		mac = nil // the driver sent no MAC address
	}
	result := w.compile()
	state := netstate.State{handover{
		From: src, To: w.r.IfName, Alias: link.Attrs().Alias, MAC: mac, Owner: w.r.Owner, NetNS: w.r.NetNS,
	}}
	state = append(state, configure(w.r.IfName, result.IPs, result.Routes)...)
	return w.blame(kernel.Of(w.r).Apply(ctx, w.r, w.env, state))
}

// handover moves a link that a driver made on the host into the container.
type handover struct {
	From  string // the link's name on the host
	To    string
	Alias string           // the link's alias on the host
	MAC   net.HardwareAddr // if nil, the MAC address does not change
	Owner owner.Key
	NetNS string // used in messages
}

// String returns the ip command that does the same.
func (h handover) String() string {
	s := fmt.Sprintf("host: ip link set %s netns %s name %s alias %s", h.From, h.NetNS, h.To, h.Owner.Alias())
	if h.MAC != nil {
		s += " address " + h.MAC.String()
	}
	return s
}

// Ensure moves, renames and marks the link with one netlink message.
func (h handover) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	link, err := env.Host.Link(h.From)
	if err != nil {
		return nil, err
	}
	alias := h.Owner.Alias()
	to := nl.LinkChange{NetNS: env.Sandbox.NS.Fd(), Name: h.To, Alias: &alias}
	if h.MAC != nil && !bytes.Equal(link.Attrs().HardwareAddr, h.MAC) {
		to.MAC = h.MAC
	}
	if err := env.Host.SetLink(link.Attrs().Index, to); err != nil {
		// The kernel may have applied only a part of the message. So look where the link is now.
		return nil, errors.Join(fmt.Errorf("failed to move %q to %s as %q: %w", h.From, h.NetNS, h.To, h.explain(err)), h.back(env))
	}
	env.Forget(netstate.Host, h.From)
	return func(context.Context) error { return h.back(env) }, nil
}

func (h handover) explain(err error) error {
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w (the kernel moves no link of this kind)", err)
	}
	return err
}

func (h handover) back(env *netstate.Env) error {
	env.Forget(netstate.Sandbox, h.To)
	return giveBack(env, h.Owner, remote.Link{Name: h.From, Alias: h.Alias})
}

// giveBack moves a link from the container to the host, under the name that the driver knows.
// Until tidy removes our mark, the link keeps it.
func giveBack(env *netstate.Env, o owner.Key, to remote.Link) error {
	link, err := marked(env.Sandbox, o)
	if err != nil || link == nil {
		return err
	}
	host, err := netns.Current()
	if err != nil {
		return err
	}
	defer host.Close() //nolint:errcheck // read only
	err = env.Sandbox.SetLink(link.Attrs().Index, nl.LinkChange{Down: true, NetNS: host.Fd(), Name: to.Name})
	if errors.Is(err, unix.EEXIST) { // another program has the name now
		err = env.Sandbox.SetLink(link.Attrs().Index, nl.LinkChange{Down: true, NetNS: host.Fd(), Name: o.LinkName("cnm", 0)})
	}
	if err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("move %s back to the host as %s: %w", link.Attrs().Name, to.Name, err)
	}
	return nil
}

// marked finds the link of an owner by its mark, because the link may have another name now. If
// there is no such link, marked returns nil.
func marked(conn *nl.Conn, o owner.Key) (netlink.Link, error) {
	return conn.FindLink(func(l netlink.Link) bool { return l.Attrs().Alias == o.Alias() })
}

// tidy handles a link that is back on the host and still exists after the driver has ended the
// endpoint. If the driver keeps the device, tidy only removes our mark. If the link was made for
// the container, and the driver no longer knows the link or its present name, tidy deletes it.
func tidy(host *nl.Conn, o owner.Key, was *remote.Link, forgotten bool) error {
	link, err := marked(host, o)
	if err != nil || link == nil {
		return err
	}
	if forgotten && perContainer(link.Type()) {
		return netstate.DeleteLink(host, link)
	}
	alias := ""
	if was != nil {
		alias = was.Alias
	}
	if err := host.SetLink(link.Attrs().Index, nl.LinkChange{Alias: &alias}); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("unmark %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// perContainer reports whether a driver makes a link of this kind for each container.
func perContainer(kind string) bool {
	switch kind {
	case "veth", "macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "dummy", "tuntap", "netkit":
		return true
	}
	return false
}

// Diff returns a difference unless the link is in the container and has its MAC address.
func (h handover) Diff(_ context.Context, env *netstate.Env) (string, error) {
	link, err := env.Link(netstate.Sandbox, h.To)
	switch {
	case nl.IsNotFound(err):
		return fmt.Sprintf("Interface name %s not found", h.To), nil
	case err != nil:
		return "", err
	case h.MAC != nil && !bytes.Equal(link.Attrs().HardwareAddr, h.MAC):
		return fmt.Sprintf("Interface %s Mac %s doesn't match container Mac: %s", h.To, h.MAC, link.Attrs().HardwareAddr), nil
	}
	return "", nil
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// ifb is the device that queues what a container sends.
type ifb struct {
	name  string
	like  string // the host link whose MTU it takes
	owner owner.Key
	stale bool // an earlier ADD's device has the name
}

func (i ifb) String() string {
	return fmt.Sprintf("host: ip link add %s up mtu-of %s type ifb", i.name, i.like)
}

// Ensure makes the device and marks it.
func (i ifb) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	like, err := env.Link(netstate.Host, i.like)
	if err != nil {
		return nil, err
	}
	if i.stale {
		if err := deleteLink(env.Host, i.name); err != nil {
			return nil, err
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Flags, attrs.TxQLen = i.name, like.Attrs().MTU, unix.IFF_UP, 0
	link := &netlink.Ifb{LinkAttrs: attrs}
	if err := env.Host.LinkAdd(link); err != nil {
		return nil, fmt.Errorf("add link %s type ifb: %w", i.name, err)
	}
	undo := func(context.Context) error { return deleteLink(env.Host, i.name) }
	if err := env.Host.LinkSetAlias(link, i.owner.Alias()); err != nil {
		return nil, errors.Join(fmt.Errorf("mark link %s: %w", i.name, err), undo(context.Background()))
	}
	made, err := env.Host.Link(i.name) // its address goes into the result
	if err != nil {
		return nil, errors.Join(err, undo(context.Background()))
	}
	env.Remember(netstate.Host, made)
	return undo, nil
}

// Diff expects the device, up: a device that is down drops all that the container sends.
func (i ifb) Diff(_ context.Context, env *netstate.Env) (string, error) {
	link, err := env.Link(netstate.Host, i.name)
	switch {
	case nl.IsNotFound(err):
		return fmt.Sprintf("get ifb device: %s is gone", i.name), nil
	case err != nil:
		return "", err
	case link.Attrs().RawFlags&unix.IFF_UP == 0:
		return fmt.Sprintf("ifb device %s is down, and drops what the container sends (ip link set %s up)", i.name, i.name), nil
	}
	return "", nil
}

// candidates are the names that an attachment's ifb may have: the reference's, which does
// not contain the interface name, and one of our own for a second attachment of one
// container to one network.
func candidates(network, containerID string, o owner.Key) []string {
	return []string{kernel.ReferenceIFB(network, containerID), o.LinkName("bwp", 0), o.LinkName("bwp", 1)}
}

// freeName returns the first candidate that no other attachment has. A device of this
// attachment is stale, to be removed, when the namespace of the ADD that made it is proven
// dead.
func freeName(host *nl.Conn, names []string, o owner.Key, dead bool) (name string, stale bool, err error) {
	for _, name := range names {
		link, err := host.Link(name)
		switch {
		case nl.IsNotFound(err):
			return name, false, nil
		case err != nil:
			return "", false, err
		case link.Type() == "ifb" && link.Attrs().Alias == o.Alias():
			if dead {
				return name, true, nil
			}
			return "", false, fmt.Errorf("adding link: %s of this attachment exists already; DEL removes it: %w", name, unix.EEXIST)
		}
	}
	return "", false, fmt.Errorf("adding link: the names %v are all taken: %w", names, unix.EEXIST)
}

// owned returns the names of devices that are this attachment's: those with its mark, and
// those without a mark, which the reference plugin made.
func owned(host *nl.Conn, names []string, o owner.Key) (mine []string, err error) {
	var errs []error
	for _, name := range names {
		link, err := host.Link(name)
		if err != nil {
			if !nl.IsNotFound(err) {
				errs = append(errs, err)
			}
			continue
		}
		if alias := link.Attrs().Alias; link.Type() == "ifb" && (alias == "" || alias == o.Alias()) {
			mine = append(mine, name)
		}
	}
	return mine, errors.Join(errs...)
}

func deleteLink(host *nl.Conn, name string) error {
	link, err := host.Link(name)
	if nl.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	if err := host.LinkDel(link); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

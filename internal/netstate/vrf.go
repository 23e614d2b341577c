// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// vrfAlias marks a VRF that we made. It names no owner: attachments share the VRF.
const vrfAlias = "patchbay: vrf"

// VRF is a virtual router of the sandbox (Linux >= 4.3): a link whose members use
// a routing table of their own.
type VRF struct {
	Name  string
	Table int // 0 in Diff: any table
}

// String is the ip command.
func (v VRF) String() string {
	return fmt.Sprintf("sandbox: ip link add %s up alias %q type vrf table %d", v.Name, vrfAlias, v.Table)
}

// FindVRF looks a VRF up. It is nil when no link has the name.
func FindVRF(c *nl.Conn, name string) (*netlink.Vrf, error) {
	link, err := c.Link(name)
	if nl.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	vrf, ok := link.(*netlink.Vrf)
	if !ok {
		return nil, fmt.Errorf("Netlink %s is not a VRF", name)
	}
	return vrf, nil
}

// Ensure creates the VRF and sets it up. An existing one is used as it is.
func (v VRF) Ensure(ctx context.Context, env *Env) (Undo, error) {
	have, err := FindVRF(env.Sandbox, v.Name)
	if err != nil || have != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Flags = v.Name, net.FlagUp
	if err := env.Sandbox.LinkAdd(&netlink.Vrf{LinkAttrs: attrs, Table: uint32(v.Table)}); err != nil {
		return nil, fmt.Errorf("could not add VRF %s: %w", v.Name, v.explain(err))
	}
	undo := func(ctx context.Context) error {
		unlock, err := env.Sandbox.Lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		return DeleteEmptyVRF(env.Sandbox, v.Name, true)
	}
	if err := env.Sandbox.SetAlias(v.Name, vrfAlias, nl.PortFlags{}); err != nil {
		err = fmt.Errorf("set alias of VRF %s: %w", v.Name, err)
		return nil, errors.Join(err, DeleteEmptyVRF(env.Sandbox, v.Name, true))
	}
	return undo, nil
}

func (v VRF) explain(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: this kernel has no VRFs (CONFIG_NET_VRF, Linux 4.3)", err)
	}
	return err
}

// Diff expects the VRF, up, with its table.
func (v VRF) Diff(_ context.Context, env *Env) (string, error) {
	have, err := FindVRF(env.Sandbox, v.Name)
	switch {
	case err != nil:
		return err.Error(), nil //nolint:nilerr // another kind of link has its name: a difference
	case have == nil:
		return fmt.Sprintf("VRF %s not found", v.Name), nil
	case have.Flags&net.FlagUp == 0:
		return fmt.Sprintf("VRF %s is down", v.Name), nil
	case v.Table != 0 && have.Table != uint32(v.Table):
		return fmt.Sprintf("VRF %s has routing table %d instead of %d", v.Name, have.Table, v.Table), nil
	}
	return "", nil
}

// DeleteEmptyVRF deletes a VRF without members, if we made it or anyway is set. The caller
// holds the lock of the namespace.
func DeleteEmptyVRF(c *nl.Conn, name string, anyway bool) error {
	vrf, err := FindVRF(c, name)
	if err != nil || vrf == nil {
		return nil //nolint:nilerr // another program's link by now
	}
	if vrf.Alias != vrfAlias && !anyway {
		return nil
	}
	links, err := c.LinkList()
	if err != nil {
		return fmt.Errorf("list members of VRF %s: %w", name, err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == vrf.Index {
			return nil
		}
	}
	return DeleteLink(c, vrf)
}

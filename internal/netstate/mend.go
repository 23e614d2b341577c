// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// Mender is an object of the host that `patchbay repair` restores for a living attachment. These
// are objects that belong to a network, or that the kernel keeps without the container's help.
// What is in the container stays as the container left it.
type Mender interface {
	// Mend restores what Diff finds missing, and returns what it did in the syntax of ip(8). It
	// changes nothing that Diff does not report, and returns "" if it can do nothing.
	Mend(ctx context.Context, env *Env) (did string, err error)
}

// mend restores an object that differs, and compares it again. If it fails, text says why.
func mend(ctx context.Context, env *Env, o Object, text string) (string, error) {
	m, ok := o.(Mender)
	if !ok || env.Mended == nil {
		return text, nil
	}
	did, err := m.Mend(ctx, env)
	if err != nil {
		return fmt.Sprintf("%s, and cannot be restored: %v", text, err), nil
	}
	still, err := o.Diff(ctx, env)
	if did != "" && (still == "" || still != text) {
		env.Mended(did)
	}
	return still, err
}

// ensured does what Ensure does, for an object without an undo.
func ensured(ctx context.Context, env *Env, o Object) (did string, err error) {
	_, err = o.Ensure(ctx, env)
	return o.String(), err
}

// Mend makes the bridge with the MAC address that containers remember, or sets it up.
func (b Bridge) Mend(ctx context.Context, env *Env) (did string, err error) {
	link, err := env.Link(Host, b.Name)
	down := err == nil && link.Attrs().Flags&net.FlagUp == 0
	did, err = ensured(ctx, env, b)
	env.Forget(Host, b.Name) // it was read when it was down
	if down {
		did = fmt.Sprintf("host: ip link set %s up", b.Name)
	}
	return did, err
}

// Mend adds the address. It takes none away from the link, because an operator may have chosen it.
func (g Gateway) Mend(ctx context.Context, env *Env) (string, error) {
	g.Force = false
	return ensured(ctx, env, g)
}

// Mend adds an address of the host.
func (a Addr) Mend(ctx context.Context, env *Env) (string, error) {
	if a.Where != Host {
		return "", nil
	}
	link, err := env.Link(Host, a.Link)
	if err != nil {
		return "", err
	}
	if there, err := hasAddr(env.Host, link, a.Prefix); there || err != nil {
		return "", err
	}
	return ensured(ctx, env, a)
}

// Mend sets the host's end up and makes it a port of the bridge again. A pair that is gone stays so: its
// other end was the container's interface.
func (v Veth) Mend(ctx context.Context, env *Env) (did string, err error) {
	link, err := env.Link(Host, v.Name)
	if err != nil || link.Attrs().Alias != v.Owner.Alias() {
		return diffMissing(err)
	}
	if link.Attrs().Flags&net.FlagUp == 0 && !v.Down {
		if err := env.Host.LinkSetUp(link); err != nil {
			return "", err
		}
		env.Forget(Host, v.Name)
		did = fmt.Sprintf("host: ip link set %s up", v.Name)
	}
	if v.Bridge == "" {
		return did, nil
	}
	port := Port{Link: v.Name, Bridge: v.Bridge, PortFlags: v.Port}
	if differs, err := port.Diff(ctx, env); differs == "" || err != nil {
		return did, err
	}
	return ensured(ctx, env, port)
}

// Mend sets a link of the host up.
func (u Up) Mend(ctx context.Context, env *Env) (string, error) {
	if u.Where != Host {
		return "", nil
	}
	if _, err := env.Link(Host, u.Link); err != nil {
		return diffMissing(err)
	}
	did, err := ensured(ctx, env, u)
	env.Forget(Host, u.Link)
	return did, err
}

// Mend gives the port its VLANs.
func (p PortVLANs) Mend(ctx context.Context, env *Env) (string, error) { return ensured(ctx, env, p) }

// Mend makes the pair that is the bridge's interface in the VLAN.
func (g VLANGateway) Mend(ctx context.Context, env *Env) (string, error) {
	return ensured(ctx, env, g)
}

// Mend switches forwarding on, for the host and for the link.
func (f Forwarding) Mend(ctx context.Context, env *Env) (string, error) {
	did, err := ensured(ctx, env, f)
	if err != nil || !f.IPv4 || f.Link == "" {
		return did, err
	}
	link, err := env.Link(Host, f.Link)
	if err != nil {
		_, err = diffMissing(err)
		return did, err
	}
	if on, err := env.Host.Forwards(unix.AF_INET, link.Attrs().Index); on || err != nil {
		return did, err
	}
	own := Sysctls{Where: Host, List: []nl.Setting{{Key: "net/ipv4/conf/" + f.Link + "/forwarding", Value: "1"}}, Needed: f.Failed}
	return ensured(ctx, env, own)
}

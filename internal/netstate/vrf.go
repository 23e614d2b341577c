// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/order"
)

// vrfAlias marks a VRF that we made. vrfAlias names no owner, because attachments share the
// VRF.
const vrfAlias = "patchbay: vrf"

// VRF is a virtual router in the sandbox (Linux >= 4.3). VRF is a link whose members use a
// separate routing table.
type VRF struct {
	Name  string
	Table int // in Diff, 0 means any table
}

// String returns the ip command that makes the VRF.
func (v VRF) String() string {
	return fmt.Sprintf("sandbox: ip link add %s up alias %q type vrf table %d", v.Name, vrfAlias, v.Table)
}

// ErrNotVRF means that another kind of link has the name of a VRF.
var ErrNotVRF = errors.New("is not a VRF")

// FindVRF returns a VRF, or nil if no link has the name.
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
		return nil, fmt.Errorf("Netlink %s %w", name, ErrNotVRF)
	}
	return vrf, nil
}

// Ensure creates the VRF if it does not exist, and sets it up.
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

// Diff reports whether the VRF is missing, is down or has another table.
func (v VRF) Diff(_ context.Context, env *Env) (string, error) {
	have, err := FindVRF(env.Sandbox, v.Name)
	switch {
	case errors.Is(err, ErrNotVRF):
		return err.Error(), nil
	case err != nil:
		return "", err
	case have == nil:
		return fmt.Sprintf("VRF %s not found", v.Name), nil
	case have.Flags&net.FlagUp == 0:
		return fmt.Sprintf("VRF %s is down", v.Name), nil
	case v.Table != 0 && have.Table != uint32(v.Table):
		return fmt.Sprintf("VRF %s has routing table %d instead of %d", v.Name, have.Table, v.Table), nil
	}
	return "", nil
}

// DeleteEmptyVRF deletes a VRF without members. If anyway is false, it deletes only a VRF that
// we made. The caller must hold the lock of the namespace.
func DeleteEmptyVRF(c *nl.Conn, name string, anyway bool) error {
	vrf, err := FindVRF(c, name)
	if errors.Is(err, ErrNotVRF) {
		return nil // another program's link by now
	}
	if err != nil || vrf == nil {
		return err
	}
	if vrf.Alias != vrfAlias && !anyway {
		return nil
	}
	member, err := c.FindLink(func(l netlink.Link) bool { return l.Attrs().MasterIndex == vrf.Index })
	if err != nil || member != nil {
		return err
	}
	return DeleteLink(c, vrf)
}

// Member puts a link of the sandbox into a VRF. For this the kernel sets the link down and up
// again, and so drops routes and addresses. Ensure restores the link's routes in the VRF's table.
// It also restores the link's global IPv6 addresses, which the kernel drops unless
// keep_addr_on_down is set.
type Member struct{ Link, VRF string }

// String returns the ip command.
func (m Member) String() string {
	return fmt.Sprintf("sandbox: ip link set %s master %s, and its routes to the table of %s", m.Link, m.VRF, m.VRF)
}

// Ensure puts the link into the VRF. Its undo takes the link out and again restores routes and
// addresses.
func (m Member) Ensure(ctx context.Context, env *Env) (Undo, error) {
	c := env.Sandbox
	link, err := c.Link(m.Link)
	if err != nil {
		return nil, fmt.Errorf("could not get link by name %s: %w", m.Link, err)
	}
	vrf, err := FindVRF(c, m.VRF)
	if err == nil && vrf == nil {
		err = fmt.Errorf("VRF %s not found", m.VRF)
	}
	if err != nil {
		return nil, err
	}
	if err := m.free(c, link); err != nil {
		return nil, err
	}
	defer env.Forget(Sandbox, m.Link)
	to := move{c: c, link: link, from: unix.RT_TABLE_MAIN, to: int(vrf.Table)}
	back := move{c: c, link: link, from: int(vrf.Table), to: unix.RT_TABLE_MAIN}
	undo := func(ctx context.Context) error {
		return back.around(ctx, func() error { return ignoreNotFound(c.LinkSetNoMaster(link)) })
	}
	err = to.around(ctx, func() error {
		if err := c.LinkSetMaster(link, vrf); err != nil {
			return fmt.Errorf("could not set vrf %s as master of %s: %w", m.VRF, m.Link, err)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, undo(context.WithoutCancel(ctx)))
	}
	return undo, nil
}

func (m Member) free(c *nl.Conn, link netlink.Link) error {
	index := link.Attrs().MasterIndex
	if index == 0 {
		return nil
	}
	master, err := c.LinkAt(index)
	if err != nil {
		return fmt.Errorf("interface %s has already a master set, could not retrieve the name: %w", m.Link, err)
	}
	return fmt.Errorf("interface %s has already a master set: %s", m.Link, master.Attrs().Name)
}

// Diff reports whether the link is not a member of the VRF.
func (m Member) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Sandbox.Link(m.Link)
	if err != nil && !nl.IsNotFound(err) {
		return "", err
	}
	vrf, verr := FindVRF(env.Sandbox, m.VRF)
	if verr != nil && !errors.Is(verr, ErrNotVRF) {
		return "", verr
	}
	if err != nil || vrf == nil || link.Attrs().MasterIndex != vrf.Index {
		return fmt.Sprintf("failed to find %s associated to vrf %s", m.Link, m.VRF), nil //nolint:nilerr // then it is in none
	}
	return "", nil
}

func ignoreNotFound(err error) error {
	if nl.IsNotFound(err) {
		return nil
	}
	return err
}

// move changes the master of a link without losing addresses and routes.
type move struct {
	c        *nl.Conn
	link     netlink.Link
	from, to int // routing tables
}

// around reads addresses and routes, calls change, and restores what was lost.
func (m move) around(ctx context.Context, change func() error) error {
	routes, err := m.c.LinkRoutes(m.link.Attrs().Index, m.from)
	if err != nil {
		return fmt.Errorf("failed getting all routes for %s: %w", m.link.Attrs().Name, err)
	}
	before, err := m.addresses()
	if err != nil {
		return fmt.Errorf("failed getting global ipv6 addresses before slaving interface: %w", err)
	}
	if err := change(); err != nil {
		return err
	}
	if err := m.leave(routes); err != nil {
		return err
	}
	if err := m.restoreAddresses(ctx, before); err != nil {
		return err
	}
	return m.restoreRoutes(ctx, routes)
}

// leave removes what the kernel leaves in the former table: of an IPv6 route with next hops through several links it
// only marks those of this link as dead, until the link is up again.
func (m move) leave(routes []netlink.Route) error {
	for _, r := range routes {
		if r.Family != unix.AF_INET6 || r.Protocol == unix.RTPROT_KERNEL {
			continue
		}
		r.Table = m.from
		if err := m.c.RouteDel(&r); err != nil && !nl.IsNotFound(err) {
			return fmt.Errorf("could not remove route '%s via %s' from table %d: %w", r.Dst, r.Gw, m.from, err)
		}
	}
	return nil
}

// addresses returns the link's global IPv6 addresses. The kernel may drop them when the link joins
// a VRF, but keeps IPv4 addresses.
func (m move) addresses() (out []netlink.Addr, err error) {
	list, err := m.c.AddrList(m.link, netlink.FAMILY_V6)
	for _, a := range list {
		if a.Scope == int(netlink.SCOPE_UNIVERSE) {
			out = append(out, a)
		}
	}
	return out, err
}

func (m move) restoreAddresses(ctx context.Context, before []netlink.Addr) error {
	after, err := m.addresses()
	if err != nil {
		return fmt.Errorf("failed getting global ipv6 addresses after slaving interface: %w", err)
	}
	for _, a := range before {
		if slices.ContainsFunc(after, func(b netlink.Addr) bool { return a.Equal(b) }) {
			continue
		}
		// The kernel has already checked this address for duplicates, so it may be used at once.
		a.Flags = a.Flags&unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_NODAD
		if err := m.c.AddrAdd(m.link, &a); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("could not restore address %s to %s: %w", a.IPNet, m.link.Attrs().Name, err)
		}
	}
	return m.usable(ctx, len(before))
}

// usableTime is how long the kernel may take to look for duplicates again. It starts when the
// link has a carrier; linkUpTime is how long that may take.
const (
	usableTime = 5 * time.Second
	linkUpTime = time.Second
)

// usable waits until the addresses can be used, because their routes exist only then.
func (m move) usable(ctx context.Context, want int) error {
	if want == 0 {
		return nil
	}
	start := time.Now()
	ready, err := m.poll(ctx, usableTime, func() (bool, error) {
		ready, err := m.ready(want)
		if err != nil || ready || time.Since(start) < linkUpTime {
			return ready, err
		}
		link, err := m.c.LinkAt(m.link.Attrs().Index)
		return err == nil && link.Attrs().OperState != netlink.OperUp, err
	})
	if err == nil && !ready {
		err = fmt.Errorf("its addresses are not usable after %v", usableTime)
	}
	if err != nil {
		return fmt.Errorf("failed to settle addresses for %q: %w", m.link.Attrs().Name, err)
	}
	return nil
}

func (m move) ready(want int) (bool, error) {
	now, err := m.addresses()
	ready := 0
	for _, a := range now {
		if a.Flags&unix.IFA_F_TENTATIVE == 0 {
			ready++
		}
	}
	return ready >= want, err
}

// poll calls ask every few milliseconds until the answer is yes.
func (m move) poll(ctx context.Context, most time.Duration, ask func() (bool, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	return until(ctx, tick.C, ask)
}

// restoreRoutes adds the routes that the kernel did not restore. (The kernel restores routes
// that belong to addresses.) A route to a next hop comes before the routes through this next
// hop.
func (m move) restoreRoutes(ctx context.Context, routes []netlink.Route) error {
	order.Stable(routes, func(a, b netlink.Route) int { return len(a.Gw) - len(b.Gw) })
	for _, r := range routes {
		if r.Protocol == unix.RTPROT_KERNEL {
			continue
		}
		r.Table = m.to
		r.Flags &= int(netlink.FLAG_ONLINK)
		for _, hop := range r.MultiPath {
			hop.Flags &= int(netlink.FLAG_ONLINK)
		}
		if err := m.restore(ctx, &r); err != nil {
			return fmt.Errorf("could not add route '%s via %s': %w", r.Dst, r.Gw, err)
		}
	}
	return nil
}

// restoreTime is how long a next hop may take to become reachable after the link came up.
const restoreTime = time.Second

// restore adds a route beside other links' routes to the same destination. To replace would remove one of those.
func (m move) restore(ctx context.Context, r *netlink.Route) error {
	var last error
	_, err := m.poll(ctx, restoreTime, func() (bool, error) {
		last = m.c.RouteAddEcmp(r)
		if errors.Is(last, unix.EEXIST) {
			last = nil
		}
		if errors.Is(last, unix.ENETUNREACH) || errors.Is(last, unix.EHOSTUNREACH) || errors.Is(last, unix.ENETDOWN) {
			return false, nil
		}
		return true, last
	})
	if err == nil {
		err = last
	}
	return err
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Child is an attachment whose interface is a link on top of another link, its master. The
// plugins macvlan, ipvlan and vlan share this code.
type Child struct {
	Kind        netlink.Link // see netstate.Child
	Master      string       // "" means the interface that has the default route
	InContainer bool         // the master is in the container
	MTU         int          // bytes; 0 means the master's MTU
	AnyMTU      bool         // the MTU may be larger than the master's
	MAC         net.HardwareAddr
	DAD         bool     // look for duplicates of the link's IPv6 addresses
	NoARP       bool     // neighbours do not resolve the link's addresses
	DNS         spec.DNS // from the configuration

	Addresses *spec.Result // used instead of IPAM's answer; may be nil
}

// Attach performs the ADD.
func (c *Child) Attach(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return nil, err
	}
	if err := c.prepare(r, env); err != nil {
		return nil, err
	}
	return c.single(c.Link(r.Owner, r.IfName, r.NetNS)).Attach(ctx, r, env)
}

// prepare refuses configurations that cannot work, before it changes anything.
func (c *Child) prepare(r *plugin.Request, env *netstate.Env) error {
	if t := r.Head.IPAM.Type; t != "" {
		if err := spec.ValidatePluginType(t); err != nil {
			return err
		}
	}
	if c.Master == "" {
		name, err := defaultInterface(env.Conn(c.where()))
		if err != nil {
			return err
		}
		c.Master = name
	}
	master, err := env.Link(c.where(), c.Master)
	if err != nil {
		return noMaster(c.Master, err)
	}
	if err := isUp(master); err != nil {
		return spec.Errorf(spec.CodeTryAgain, "failed to set %q UP: %w", r.IfName, err)
	}
	return c.fits(master)
}

// isUp returns an error if a link is down. Then no link on it carries anything, although the kernel may
// set a macvlan or ipvlan up.
func isUp(master netlink.Link) error {
	if at := master.Attrs(); at.Flags&net.FlagUp == 0 {
		return fmt.Errorf("%w: master %q is down (ip link set %[2]s up)", unix.ENETDOWN, at.Name)
	}
	return nil
}

// fits returns an error if a link on this master cannot have the wanted MTU.
func (c *Child) fits(master netlink.Link) error {
	if most := master.Attrs().MTU; c.MTU < 0 || c.MTU > most && !c.AnyMTU {
		return spec.Invalid("invalid MTU %d, must be [0, master MTU(%d)]", c.MTU, most)
	}
	return ValidateMTU(c.MTU)
}

// ValidateMaster returns an error if no master can have this name.
func ValidateMaster(name string) error {
	if name == "lo" {
		return spec.Invalid("invalid master %q: no link can be on lo", name)
	}
	return nil
}

// noMaster returns the error for a missing master, with the reference's text.
func noMaster(name string, err error) error {
	if nl.IsNotFound(err) {
		return spec.Invalid("failed to lookup master %q: Link not found", name)
	}
	return spec.Invalid("failed to lookup master %q: %w", name, err)
}

func (c *Child) where() netstate.Where {
	if c.InContainer {
		return netstate.Sandbox
	}
	return netstate.Host
}

// Link returns the object that creates the link of an attachment. The link is first created
// under a name derived from the owner.
func (c *Child) Link(o owner.Key, ifName, netNS string) netstate.Child {
	return netstate.Child{
		Kind: c.Kind, Name: ifName, Temp: TempName(o), Master: c.Master, MasterIn: c.where(),
		MTU: c.MTU, MAC: c.MAC, Owner: o, NetNS: netNS,
	}
}

func (c *Child) single(link netstate.Child) *Single {
	return &Single{
		MAC: link.MAC, Link: netstate.State{link}, DNS: c.DNS, MTU: c.MTU,
		Addresses: c.Addresses, Configure: c.configure,
		Exists: fmt.Errorf("failed to rename %s to %q: %w", c.Kind.Type(), link.Name, unix.EEXIST),
	}
}

// Compile computes the desired state and the result. Compile changes nothing.
func (c *Child) Compile(link netstate.Child, ipam *spec.Result) (netstate.State, *spec.Result, error) {
	return c.single(link).Compile(link.Name, link.NetNS, ipam)
}

// configure gives the link its settings, addresses and routes, and announces the addresses to the
// other hosts on the link.
func (c *Child) configure(name string, result *spec.Result) netstate.State {
	s := c.settings(name, result.IPs)
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		s = append(s, netstate.Addr{Where: netstate.Sandbox, Link: name, Prefix: ip.Address, DAD: c.DAD})
		addrs = append(addrs, ip.Address.Addr())
	}
	s = append(s, netstate.Up{Where: netstate.Sandbox, Link: name, Notify: true})
	for _, route := range Routes(name, result) {
		s = append(s, route)
	}
	if c.DAD && HasFamily(result.IPs, false) {
		s = append(s, netstate.Settle{Link: name})
	}
	if !c.NoARP {
		s = append(s, Answering(netstate.Sandbox, name, addrs...)...)
		s = append(s, netstate.Advertise{Link: name, Addrs: addrs})
	}
	return s
}

// settings makes the kernel announce IPv6 addresses, including addresses that the link gets from
// a router. Unlike the port of a bridge, the link shares its segment with other hosts. So the
// kernel still looks for duplicates of the addresses that it chooses itself. Addresses from IPAM
// can be used at once.
func (c *Child) settings(name string, ips []spec.IPConfig) netstate.State {
	more := []netstate.LinkIPv6{{Link: name, Conf: nl.NdiscNotify, Value: 1}}
	if c.DAD {
		more = append(more,
			netstate.LinkIPv6{Link: name, Conf: nl.EnhancedDAD, Value: 1},
			netstate.LinkIPv6{Link: name, Conf: nl.AcceptDAD, Value: 1})
	}
	if HasFamily(ips, false) {
		return EnableIPv6(name, ips, more...)
	}
	return netstate.State{netstate.IPv6{Where: netstate.Sandbox, List: more}}
}

// child returns what the configuration of macvlan, ipvlan or vlan describes.
func child(r *plugin.Request) *Child {
	conf, _ := r.Conf()
	return conf.(interface{ Child() *Child }).Child()
}

// ValidateChild checks the MTU, and the configuration against the addresses that IPAM would
// give.
func ValidateChild(r *plugin.Request) error {
	mtu := child(r).MTU
	return cmp.Or(ValidateMTU(mtu), ValidateSegment(r, mtu))
}

// CheckChild performs CHECK without the IPAM plugin's part. CheckChild compares the kernel with
// the state that an ADD would make from the previous result.
func CheckChild(ctx context.Context, r *plugin.Request) error {
	c := child(r)
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	inside, err := findInside(r, env)
	if err != nil {
		return err
	}
	link := c.Link(r.Owner, r.IfName, r.NetNS)
	link.AnyMaster = c.Master == "" // the default route may now lead through another interface
	if link.MAC, err = parseMAC(inside); err != nil {
		return err
	}
	addresses := addressesOf(r.Prev(), inside)
	if len(addresses.IPs) == 0 {
		addresses = nil
	}
	state, _, err := c.Compile(link, addresses)
	if err != nil {
		return err
	}
	return kernel.Check(ctx, env, state)
}

// addressesOf returns a result with the addresses of one interface only, because a later
// plugin may have added other interfaces.
func addressesOf(result *spec.Result, inside spec.Interface) *spec.Result {
	out := *result
	out.IPs = nil
	for _, ip := range result.IPs {
		if in := result.Of(ip); in == nil || *in == inside {
			out.IPs = append(out.IPs, ip)
		}
	}
	return &out
}

// ChildStatus performs STATUS. The master is the one in the configuration, or else the link of the
// default route.
func ChildStatus(_ context.Context, r *plugin.Request) error { return child(r).Status(r, false) }

// Status reports whether an ADD could work: the kernel supports such links, the master exists,
// its MTU is large enough, and IPAM is ready. Status cannot check a master that is inside a
// container, or one that an earlier plugin of the chain chooses.
func (c *Child) Status(r *plugin.Request, mayInherit bool) error {
	if err := KernelMakes(r, c.Kind.Type()); err != nil {
		return err
	}
	if !c.InContainer && (c.Master != "" || !mayInherit) {
		if err := c.masterReady(r); err != nil {
			return spec.Errorf(spec.CodeNotAvailable, "%w", err)
		}
	}
	return Ready(r)
}

func (c *Child) masterReady(r *plugin.Request) error {
	host, err := kernel.Of(r).Host()
	if err != nil {
		return err
	}
	name := c.Master
	if name == "" {
		if name, err = defaultInterface(host); err != nil {
			return err
		}
	}
	master, err := host.Link(name)
	if err != nil {
		return noMaster(name, err)
	}
	return cmp.Or(isUp(master), c.fits(master))
}

// MasterDoubts warns about a master that is down. A master that does not exist may be another node's.
func MasterDoubts(r *plugin.Request) []string {
	c := child(r)
	if c.InContainer || c.Master == "" {
		return nil
	}
	host, err := kernel.Of(r).Host()
	if err != nil {
		return nil
	}
	master, err := host.Link(c.Master)
	if err != nil {
		return nil
	}
	if err := isUp(master); err != nil {
		return []string{fmt.Sprintf("an ADD fails now: %v", err)}
	}
	return nil
}

// KernelMakes returns an error if the kernel does not support a kind of link.
func KernelMakes(r *plugin.Request, kind string) error {
	host, err := kernel.Of(r).Host()
	if err == nil {
		err = host.CanMake(kind)
	}
	if err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err)
	}
	return nil
}

// defaultInterface returns the link of the best default route in the main table. It takes the
// IPv4 route before the IPv6 route, and the first of several next hops.
func defaultInterface(conn *nl.Conn) (string, error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		index, err := conn.DefaultLink(family, true)
		if err != nil {
			return "", fmt.Errorf("look for the default route: %w", err)
		}
		if index == 0 {
			continue
		}
		link, err := conn.LinkAt(index)
		if err != nil {
			return "", err
		}
		return link.Attrs().Name, nil
	}
	return "", spec.Invalid("no default route interface found")
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package endpoint has the common code of the plugins that make a link for a container. It
// derives names and Ethernet addresses from the owner, and turns an IPAM result into objects for
// addresses, routes and masquerade. Its DEL and GC find everything, even if the namespace, the
// previous result and the configuration are missing.
package endpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// linkPrefix begins the names of the host's ends. The reference uses the same prefix, and tools
// such as NetworkManager leave "veth*" alone.
const linkPrefix = "veth"

// candidates is how many names for its link an owner tries on the host.
const candidates = 4

// Pair names the two ends of an attachment's veth pair.
type Pair struct {
	Owner   owner.Key
	Host    string // name of the host's end
	IfName  string // name of the container's end
	NetNS   string
	HostMAC net.HardwareAddr
	MAC     net.HardwareAddr // MAC of the container's end
}

// New chooses the names of a new veth pair. If the attachment or the interface already exists,
// New returns an error. New changes nothing.
func New(ctx context.Context, r *plugin.Request, env *netstate.Env, macs Addresses) (*Pair, error) {
	p := &Pair{Owner: r.Owner, IfName: r.IfName, NetNS: r.NetNS, HostMAC: macs.Host(), MAC: macs.Container()}
	_, err := env.Sandbox.Link(r.IfName)
	if err == nil {
		return nil, netstate.ErrVethExists(r.IfName, p.Owner.LinkName(linkPrefix, 0))
	}
	if !nl.IsNotFound(err) {
		return nil, err
	}
	p.Host, err = freeName(ctx, r, env)
	return p, err
}

// freeName returns the owner's first name that is not in use.
func freeName(ctx context.Context, r *plugin.Request, env *netstate.Env) (string, error) {
	for n := range byte(candidates) {
		name := r.Owner.LinkName(linkPrefix, n)
		if free, err := isFree(ctx, r, env, name); free || err != nil {
			return name, err
		}
	}
	return "", fmt.Errorf("failed to find a unique veth name")
}

// When the last process and socket of a namespace have ended, the namespace still exists for some
// milliseconds, until the kernel has released the last socket. isFree waits that long.
const (
	endingTries = 100
	endingWait  = 5 * time.Millisecond
)

// isFree reports whether the attachment may use a name. If a link with the name has the owner's
// mark, the attachment exists already, and a second ADD is an error. But if the namespace of the
// first ADD is gone or just ending, isFree deletes the link, because the kernel has not done so
// yet.
func isFree(ctx context.Context, r *plugin.Request, env *netstate.Env, name string) (bool, error) {
	for try := 1; ; try++ {
		link, err := env.Host.Link(name)
		if nl.IsNotFound(err) {
			return true, nil
		}
		if err != nil || link.Attrs().Alias != r.Owner.Alias() {
			return false, err
		}
		before := earlier(r, env)
		switch orphan := orphaned(r, env, link, before); {
		case orphan && r.Session.Dry != nil:
			return true, nil
		case orphan:
			return true, netstate.DeleteLink(env.Host, link)
		case try == endingTries || !clock.Sleep(ctx, endingWait):
			return false, &netstate.VethExistsError{IfName: r.IfName, Host: name, In: cmp.Or(before.NetNS, "another namespace")}
		}
	}
}

// earlier returns the attachment's record of an earlier ADD. If there is none, or it cannot be read, it is empty.
func earlier(r *plugin.Request, env *netstate.Env) *record.Record {
	rec, err := env.Records.Read(r.Network, r.Owner, r.Plugin.Name)
	if err != nil || rec == nil {
		return &record.Record{}
	}
	return rec
}

// orphaned reports whether the namespace of a link's other end is gone. It is gone if nothing
// holds it, or if the namespace in the earlier record is dead. If the record has the same path as this
// request, the path may lead to a new namespace by now. Then the link's other end is not in it,
// and orphaned returns true.
func orphaned(r *plugin.Request, env *netstate.Env, link netlink.Link, before *record.Record) bool {
	if at := link.Attrs(); link.Type() == "veth" && at.NetNsID >= 0 && !env.Host.Lives(at.NetNsID) {
		return true
	}
	if before.NetNS == "" {
		return false
	}
	if before.NetNS == r.NetNS {
		peer, err := env.Sandbox.LinkAt(link.Attrs().ParentIndex)
		return nl.IsNotFound(err) || err == nil && peer.Attrs().ParentIndex != link.Attrs().Index
	}
	return kernel.Of(r).Over(before)
}

// Addresses derives locally administered Ethernet addresses from owner and boot id. A repeated
// ADD gets the same addresses. They are different on every node and after every boot. (Clones of
// a machine have nothing different but the boot id.)
type Addresses struct {
	boot  string
	owner owner.Key
}

// AddressesOf reads the boot id. If it cannot be read, the addresses are derived without it.
func AddressesOf(k *kernel.Kernel, o owner.Key) Addresses {
	return Addresses{boot: k.BootID(), owner: o}
}

// Host returns the MAC of the host's end.
func (a Addresses) Host() net.HardwareAddr { return deriveMAC(a.boot, string(a.owner), "host") }

// Container returns the MAC of the container's end.
func (a Addresses) Container() net.HardwareAddr {
	return deriveMAC(a.boot, string(a.owner), "container")
}

// Bridge returns the fixed MAC of a new bridge.
func (a Addresses) Bridge(name string) net.HardwareAddr { return deriveMAC(a.boot, "bridge", name) }

func deriveMAC(parts ...string) net.HardwareAddr {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p + "\x00"))
	}
	mac := net.HardwareAddr(h.Sum(nil)[:6])
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered
	return mac
}

// Veth returns the object that creates the pair. mtu is in bytes; 0 means the kernel's
// default.
func (p *Pair) Veth(mtu int) netstate.Veth {
	return netstate.Veth{
		Name: p.Host, Peer: p.IfName, MTU: mtu, MAC: p.HostMAC, PeerMAC: p.MAC, Owner: p.Owner, NetNS: p.NetNS,
	}
}

// Note copies what a state has in the firewall into the record.
func Note(rec *record.Record, s netstate.State) {
	for _, o := range s {
		switch o := o.(type) {
		case netstate.Element:
			rec.Elements = append(rec.Elements, o.Element)
		case netstate.HeldFact:
			rec.Shared = append(rec.Shared, o.Name)
		}
	}
}

// Comment returns the comment of the attachment's firewall elements.
func Comment(r *plugin.Request) string {
	return nft.Comment(string(r.Owner), r.Network, r.ContainerID, r.IfName)
}

// Describe copies the name, MAC and MTU of a link to a result's interface.
func Describe(env *netstate.Env, w netstate.Where, i *spec.Interface) error {
	link, err := env.Link(w, i.Name)
	if err != nil {
		return err
	}
	i.Mac, i.MTU = link.Attrs().HardwareAddr.String(), link.Attrs().MTU
	return nil
}

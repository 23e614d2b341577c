// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package endpoint is what the plugins that make a veth pair share: names and
// Ethernet addresses derived from the owner, addresses and routes of an IPAM
// result as objects, masquerade, and the way back: DEL and GC,
// which find everything without namespace, previous result or configuration.
package endpoint

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/boot"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/sleep"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// linkPrefix begins the names of host ends, as the reference's do: tools such
// as NetworkManager leave "veth*" alone.
const linkPrefix = "veth"

// candidates is how many names an owner has on the host, should others have
// taken the first.
const candidates = 4

// Pair names the two ends of an attachment.
type Pair struct {
	Owner   owner.Key
	Host    string // the host's end
	IfName  string // the container's end
	NetNS   string
	HostMAC net.HardwareAddr
	MAC     net.HardwareAddr // of the container's end
}

// New chooses the names of a new pair. It refuses, before anything is touched,
// an attachment or an interface that is there already.
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

// Lost is what is known of the pair of a DEL whose record is lost: the name that
// is the usual one, and the address of the previous result, else the derived one.
func Lost(r *plugin.Request) *Pair {
	p := &Pair{Owner: r.Owner, Host: r.Owner.LinkName(linkPrefix, 0), MAC: AddressesOf(r).Container()}
	if r.Prev() == nil {
		return p
	}
	for _, i := range r.Prev().Interfaces {
		if mac, err := parseMAC(i); err == nil && i.Name == r.IfName && len(mac) == 6 {
			p.MAC = mac
		}
	}
	return p
}

// freeName returns the first name of the owner that nobody has.
func freeName(ctx context.Context, r *plugin.Request, env *netstate.Env) (string, error) {
	for n := range byte(candidates) {
		name := r.Owner.LinkName(linkPrefix, n)
		if free, err := isFree(ctx, r, env, name); free || err != nil {
			return name, err
		}
	}
	return "", fmt.Errorf("failed to find a unique veth name")
}

// A namespace whose processes and sockets have just ended lives some milliseconds
// longer, until the kernel has let go of the last socket. That is waited for.
const (
	endingTries = 100
	endingWait  = 5 * time.Millisecond
)

// isFree says whether a name is the attachment's to use. A link of the owner itself is
// the attachment: a second ADD is an error, unless the first one's namespace is gone, or
// ends now, and the kernel has not come to its links yet.
func isFree(ctx context.Context, r *plugin.Request, env *netstate.Env, name string) (bool, error) {
	for try := 1; ; try++ {
		link, err := env.Host.Link(name)
		switch {
		case nl.IsNotFound(err):
			return true, nil
		case err != nil || link.Attrs().Alias != r.Owner.Alias():
			return false, err
		case orphaned(r, env, link) && r.Session.Dry != nil:
			return true, nil
		case orphaned(r, env, link):
			return true, netstate.DeleteLink(env.Host, link)
		case try == endingTries || !sleep.For(ctx, endingWait):
			return false, &netstate.VethExistsError{IfName: r.IfName, Host: name, In: attachedIn(r)}
		}
	}
}

// attachedIn names the namespace that our record has.
func attachedIn(r *plugin.Request) string {
	rec, err := kernel.Of(r).Records.Read(r.Network, r.Owner, r.Head.Type)
	if err != nil || rec == nil || rec.NetNS == "" {
		return "another namespace"
	}
	return rec.NetNS
}

// orphaned says whether the namespace of a link's other end is gone: nothing holds it,
// or our record has one that is dead. One of the same path as the request's is another
// one by now if the link's other end is not in it.
func orphaned(r *plugin.Request, env *netstate.Env, link netlink.Link) bool {
	if at := link.Attrs(); link.Type() == "veth" && at.NetNsID >= 0 && !env.Host.Lives(at.NetNsID) {
		return true
	}
	rec, err := kernel.Of(r).Records.Read(r.Network, r.Owner, r.Head.Type)
	if err != nil || rec == nil || rec.NetNS == "" {
		return false
	}
	if rec.NetNS == r.NetNS {
		peer, err := env.Sandbox.LinkAt(link.Attrs().ParentIndex)
		return nl.IsNotFound(err) || err == nil && peer.Attrs().ParentIndex != link.Attrs().Index
	}
	state, _ := kernel.Of(r).Life(rec)
	return state == life.Dead
}

// Addresses derives locally administered Ethernet addresses: stable when an ADD
// is tried again, different on every node and after every boot (clones of a
// machine share all but the boot id).
type Addresses struct {
	boot  string
	owner owner.Key
}

// AddressesOf reads the boot id; a procfs without one leaves it to the rest.
func AddressesOf(r *plugin.Request) Addresses {
	id, _ := boot.ID(r.Session.Paths.Proc)
	return Addresses{boot: id, owner: r.Owner}
}

// Host is the address of the host's end.
func (a Addresses) Host() net.HardwareAddr { return deriveMAC(a.boot, string(a.owner), "host") }

// Container is the address of the container's end.
func (a Addresses) Container() net.HardwareAddr {
	return deriveMAC(a.boot, string(a.owner), "container")
}

// Bridge is the fixed address of a bridge that is to be made.
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

// Veth is the object that makes the pair. mtu is in bytes, 0 for the kernel's
// default.
func (p *Pair) Veth(mtu int) netstate.Veth {
	return netstate.Veth{
		Name: p.Host, Peer: p.IfName, MTU: mtu, MAC: p.HostMAC, PeerMAC: p.MAC, Owner: p.Owner, NetNS: p.NetNS,
	}
}

// Note writes into a record what a state holds in the firewall.
func Note(rec *record.Record, s netstate.State) {
	for _, o := range s {
		switch o := o.(type) {
		case netstate.Element:
			rec.Elements = append(rec.Elements, o.Element)
		case netstate.Fact:
			rec.Shared = append(rec.Shared, o.Name)
		}
	}
}

// Comment is the comment of the attachment's elements.
func Comment(r *plugin.Request) string {
	return nft.Comment(string(r.Owner), r.Network, r.ContainerID, r.IfName)
}

// Describe fills name, address and MTU of a link into a result's interface.
func Describe(env *netstate.Env, w netstate.Where, i *spec.Interface) error {
	link, err := env.Link(w, i.Name)
	if err != nil {
		return err
	}
	i.Mac, i.MTU = link.Attrs().HardwareAddr.String(), link.Attrs().MTU
	return nil
}

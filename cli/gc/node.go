// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// found is a link of the host that may belong to an attachment.
type found struct {
	link
	owner owner.Key // empty: without our mark
	kind  string
	mac   string
}

// hostLinks lists links with our mark, and veths and ifbs without one.
func (ev *evidence) hostLinks() (list []found, err error) {
	host, err := ev.k.Host()
	if err != nil {
		return nil, err
	}
	links, err := host.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		at := l.Attrs()
		f := found{link: link{at.Name, at.Index}, kind: l.Type(), mac: at.HardwareAddr.String()}
		var marked bool
		if f.owner, marked = owner.FromAlias(at.Alias); marked || at.Alias == "" && isOurKind(l) {
			list = append(list, f)
		}
	}
	return list, nil
}

func isOurKind(l netlink.Link) bool {
	return l.Type() == "veth" || l.Type() == "ifb" && strings.HasPrefix(l.Attrs().Name, "bwp")
}

// namedIn finds the attachment whose cached result names a link without our mark: one that
// the reference plugins made. Name and address must match, since names are reused; an
// ifb's name is a hash of network and container.
func (ev *evidence) namedIn(l found) *Attachment {
	for _, a := range ev.all {
		if l.kind == "ifb" && l.name == referenceIFB(a.Network, a.ContainerID) {
			return a
		}
		if a.cached == nil || a.cached.Result == nil || l.kind == "ifb" {
			continue
		}
		for _, i := range a.cached.Result.Interfaces {
			if i.Sandbox == "" && i.Name == l.name && strings.EqualFold(i.Mac, l.mac) {
				return a
			}
		}
	}
	return nil
}

// referenceIFB is the name of the ifb that the reference's bandwidth plugin makes.
func referenceIFB(network, containerID string) string {
	sum := sha512.Sum512([]byte(network + containerID))
	return "bwp" + hex.EncodeToString(sum[:])[:12]
}

// readReference finds the rules of the reference plugins: by the names in their comments,
// and by the chain names derived from each attachment.
func (ev *evidence) readReference() {
	named, err := iptnft.Named(ev.k.NFT)
	ev.fail(err)
	for _, n := range named {
		if !ev.knows(n) {
			ev.get(n.Network, n.ContainerID, n.IfName)
		}
	}
	for _, a := range ev.all {
		if todo, err := ev.leftovers(a).Plan(ev.k.NFT); err == nil && todo != nil && a.ContainerID != "" {
			a.addObject("rules", "of the reference plugins", true)
		}
	}
}

// knows reports whether an attachment of the container is known. Comments of iptables omit
// the interface name.
func (ev *evidence) knows(n iptnft.Attachment) bool {
	for _, a := range ev.all {
		if a.Network == n.Network && a.ContainerID == n.ContainerID && (n.IfName == "" || n.IfName == a.IfName) {
			return true
		}
	}
	return false
}

func (ev *evidence) leftovers(a *Attachment) nft.Extra {
	return iptnft.Leftovers(iptnft.Attachment{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}, a.Addrs)
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/cli/netmap"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
)

// mapped is what other commands say about this node. The map shows it, and adds no judgement.
type mapped struct {
	networks []*network                    // as network ls
	attached []*localAttachment            // as ps
	checked  []*finding                    // as check --all
	node     []doctor.Finding              // as doctor, what is not about one network
	of       map[string][]doctor.Finding   // as doctor, by network
	policies map[*localAttachment][]string // as why: the policies that packets from and to outside meet
	hosts    []netmap.Host
}

// netmap reads the map of this node. What cannot be read is a warning or a finding, unless only root could read it.
func (a *app) netmap() (*netmap.Map, error) {
	r := &mapped{}
	var err error
	if r.attached, err = a.seen(""); err != nil {
		return nil, err
	}
	a.findProcesses(r.attached)
	r.networks, _ = networks(a.getenv, a.paths) // doctor reports files that cannot be read
	r.checked, _ = a.checkAll()                 // seen has reported files that cannot be read
	if err := r.examine(a); err != nil {
		return nil, err
	}
	m := r.model()
	m.Made = time.Now().Truncate(time.Second)
	m.Node, err = os.Hostname()
	return m, err
}

// examine asks doctor, the policies and the routes.
func (r *mapped) examine(a *app) (err error) {
	n, err := (&doctorCommand{app: a, Grace: time.Minute}).node()
	if err != nil {
		return err
	}
	if err := n.Open(); err != nil {
		return err
	}
	defer n.Close()
	r.node, r.of = examined(a.ctx, n)
	var perr, herr error
	r.policies, perr = policiesOf(n.Kernel.NFT, r.attached)
	r.hosts, herr = hostsBehind(n.Host)
	a.warn(errors.Join(perr, herr))
	return nil
}

// policiesOf returns the network policies that judge the packets of each attachment from and to an address outside of
// the cluster.
func policiesOf(fw *nft.Conn, list []*localAttachment) (of map[*localAttachment][]string, err error) {
	err = enforce.WithView(fw, func(v *enforce.View) error {
		of = make(map[*localAttachment][]string)
		for _, s := range list {
			if s.policed == nil || !s.Alive || !v.Enforced() {
				continue
			}
			for _, addr := range s.policed.Addrs {
				names, err := asked(v, addr)
				if err != nil {
					return err
				}
				of[s] = append(of[s], names...)
			}
			slices.Sort(of[s])
			of[s] = slices.Compact(of[s])
		}
		return nil
	})
	return of, err
}

func asked(v *enforce.View, addr netip.Addr) (names []string, err error) {
	for _, p := range [...]enforce.Packet{{From: addr}, {To: addr}} {
		list, err := v.Judge(p)
		if err != nil {
			return nil, err
		}
		for _, j := range list {
			names = append(names, j.Asked...)
		}
	}
	return names, nil
}

// hostsBehind lists the other hosts to which the agents (patchbayd hosts and node) made routes.
func hostsBehind(host *nl.Conn) (list []netmap.Host, err error) {
	for _, protocol := range [...]netlink.RouteProtocol{netstate.HostsProtocol, netstate.PodsProtocol} {
		filter := &netlink.Route{Protocol: protocol, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}
		routes, err := host.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		if err != nil {
			return list, fmt.Errorf("list routes to other hosts: %w", err)
		}
		for _, r := range routes {
			h, err := hostBehind(host, r)
			if err != nil {
				return list, err
			}
			at := slices.IndexFunc(list, func(o netmap.Host) bool { return o.Address == h.Address && o.Link == h.Link })
			if at < 0 {
				list = append(list, h)
				continue
			}
			list[at].Blocks = append(list[at].Blocks, h.Blocks...)
		}
	}
	return list, nil
}

// hostBehind returns the host to which a route leads. In a tunnel the gateway is derived from the Ethernet address of
// the other end, so the tunnel's forwarding database has the host's address.
func hostBehind(host *nl.Conn, r netlink.Route) (h netmap.Host, err error) {
	link, err := host.LinkAt(r.LinkIndex)
	if err != nil {
		return h, fmt.Errorf("route to %s: %w", r.Dst, err)
	}
	gateway := nl.AddrOf(r.Gw)
	if via, ok := r.Via.(*netlink.Via); ok {
		gateway = nl.AddrOf(via.Addr)
	}
	h = netmap.Host{Link: link.Attrs().Name, Blocks: []string{r.Dst.String()}}
	if gateway.IsValid() {
		h.Address = gateway.String()
	}
	if link.Type() != "vxlan" {
		return h, nil
	}
	entries, err := host.FDB(r.LinkIndex)
	for _, e := range entries {
		if len(e.MAC) == 6 && mesh.NextHop(e.MAC) == gateway && e.Remote.IsValid() {
			h.Address = e.Remote.String()
		}
	}
	return h, err
}

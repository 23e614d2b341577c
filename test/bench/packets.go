// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// The experiment packets has two nodes of each set on one link. Both nodes have a pod network as in
// Kubernetes. The reference's network is flannel's: the reference's bridge, and static routes or
// flannel's VXLAN device. Ours is the network that patchbayd node writes, with its routes and
// tunnel.

// These are the paths between two pods.
const (
	sameNode = "same node"
	direct   = "direct"
	vxlan    = "vxlan"
)

// kinds are the kinds of traffic that are measured, and the units of their rates.
var kinds = [...]struct{ name, unit string }{
	{"stream", "Gbit/s"},
	{"requests", "requests/s"},
	{undisturbed, "requests/s"},
	{"connections", "connections/s"},
}

// undisturbed are requests in the fastest twentieth of the time. What else runs on the machine, and on which
// processors the kernel puts the processes, changes their rate by one percent, and that of all requests by ten.
const undisturbed = "undisturbed"

// packetFloor is the part of the reference's rate that our rate must reach.
const packetFloor = 0.95

func (l *lab) packets() error {
	sets := l.want(reference, oursOne)
	for _, set := range sets {
		if err := l.connectNodes(set); err != nil {
			return err
		}
	}
	for _, way := range []string{sameNode, direct, vxlan} {
		to := map[string]string{}
		for _, set := range sets {
			var err error
			if to[set], err = l.prepareWay(set, way); err != nil {
				return fmt.Errorf("%s, %s: %w", title(set), way, err)
			}
		}
		if err := l.alternateTraffic(way, to, sets); err != nil {
			return err
		}
	}
	return nil
}

// nodeOf returns the name of a set's worker for one of its two nodes.
func nodeOf(set string, node int) string { return fmt.Sprintf("%s.%d", set, node) }

// connectNodes starts the two nodes of a set and connects them with a veth pair. On each node it
// starts a pod with a server.
func (l *lab) connectNodes(set string) error {
	for node := range 2 {
		l.plugins[nodeOf(set, node)] = l.plugins[set]
		if _, err := l.ask(nodeOf(set, node), request{Op: "version", N: 1}); err != nil {
			return err
		}
	}
	if err := l.layWire(set); err != nil {
		return fmt.Errorf("connect the nodes of %s: %w", title(set), err)
	}
	for node := range 2 {
		if _, err := l.ask(nodeOf(set, node), request{Op: "masquerade", Chain: set, N: node}); err != nil {
			return err
		}
		for _, pod := range []string{"client", "server"} {
			if _, err := l.ask(nodeOf(set, node), request{Op: "pod", Chain: set, N: node, Pod: pod}); err != nil {
				return err
			}
		}
	}
	return nil
}

// layWire makes the link between two nodes, and gives each node one end.
func (l *lab) layWire(set string) error {
	var homes [2]netns.NsHandle
	for node := range homes {
		ns, err := netns.GetFromPid(l.nodes[nodeOf(set, node)].cmd.Process.Pid)
		if err != nil {
			return err
		}
		defer ns.Close()
		homes[node] = ns
	}
	first, err := netlink.NewHandleAt(homes[0])
	if err != nil {
		return err
	}
	defer first.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = wireLink
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: wireLink, PeerNamespace: netlink.NsFd(homes[1])}
	if err := first.LinkAdd(veth); err != nil {
		return fmt.Errorf("make %s: %w", wireLink, err)
	}
	return nil
}

// prepareWay makes the routes between the nodes, and returns the server's address.
func (l *lab) prepareWay(set, way string) (addr string, err error) {
	server := 1
	if way == sameNode {
		server = 0
	}
	for node := range 2 {
		if _, err := l.ask(nodeOf(set, node), request{Op: "way", Chain: way, N: node}); err != nil {
			return "", err
		}
	}
	rep, err := l.ask(nodeOf(set, server), request{Op: "address", Pod: "server"})
	return rep.Text, err
}

// alternateTraffic measures each kind of traffic on one path. The sets take turns.
func (l *lab) alternateTraffic(way string, to map[string]string, sets []string) error {
	for round := range l.pick(16, 2) + 1 {
		for _, kind := range kinds {
			for i := range sets {
				set := sets[(i+round)%len(sets)]
				req := request{Op: "traffic", Chain: kind.name, Pod: "client", To: to[set], N: l.pick(1500, 300)}
				rep, err := l.ask(nodeOf(set, 0), req)
				if err != nil {
					return err
				}
				if round > 0 { // the first round warms up
					key := set + "/" + way + "/" + kind.name
					l.results.Packets[key] = append(l.results.Packets[key], rep.Rate)
				}
			}
		}
	}
	return nil
}

// quartiles returns the median of the rates and the bounds of their middle half.
func quartiles(rates []float64) (low, median, high float64) {
	if len(rates) == 0 {
		return 0, 0, 0
	}
	sorted := slices.Sorted(slices.Values(rates))
	at := func(part float64) float64 { return sorted[int(part*float64(len(sorted)))] }
	return at(0.25), at(0.5), at(0.75)
}

func (r *results) writePackets(w io.Writer) {
	if len(r.Packets) == 0 {
		return
	}
	fmt.Fprintf(w, "\n## Packets\n\nTraffic between two pods: medians, and quartiles in parentheses. The reference is flannel's network of bridge,\n"+
		"host-local and portmap, with flannel's iptables rules, and static routes or flannel's VXLAN device. Patchbay is the network of `patchbayd node`.\n"+
		"The ratio is the median of the rounds' ratios. The target is at least %.2f.\n\n", packetFloor)
	fmt.Fprintf(w, "| way | traffic | reference | Patchbay | ratio | |\n| --- | --- | --: | --: | --: | --- |\n")
	for _, way := range []string{sameNode, direct, vxlan} {
		for _, kind := range kinds {
			r.writePacketRow(w, way, kind.name, kind.unit)
		}
	}
}

func (r *results) writePacketRow(w io.Writer, way, kind, unit string) {
	theirs, our := r.Packets[reference+"/"+way+"/"+kind], r.Packets[oursOne+"/"+way+"/"+kind]
	low, ratio, high := quartiles(ratios(our, theirs))
	if ratio == 0 {
		return
	}
	verdict := met
	if ratio < packetFloor {
		verdict = missed
	}
	fmt.Fprintf(w, "| %s | %s, %s | %s | %s | %.2fx (%.2f-%.2f) | %s |\n", way, kind, unit, rateText(theirs), rateText(our), ratio, low, high, verdict)
}

// rateText returns the median of the rates, with the quartiles, or a dash if nothing was measured.
func rateText(rates []float64) string {
	if len(rates) == 0 {
		return "-"
	}
	low, median, high := quartiles(rates)
	digits := 0
	if median < 1000 {
		digits = 1
	}
	return fmt.Sprintf("%.*f (%.*f-%.*f)", digits, median, digits, low, digits, high)
}

// ratios returns the ratio of each round. The two rates of a round are seconds apart, so what slows
// the machine for minutes slows both.
func ratios(our, theirs []float64) (list []float64) {
	for i := range min(len(our), len(theirs)) {
		if theirs[i] > 0 {
			list = append(list, our[i]/theirs[i])
		}
	}
	return list
}

// inSandbox runs f on a new thread in a container's namespace. The thread ends with f.
func inSandbox(name string, f func() error) error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		failed <- func() error {
			ns, err := netns.GetFromName(name)
			if err != nil {
				return fmt.Errorf("open namespace %s: %w", name, err)
			}
			defer ns.Close()
			if err := netns.Set(ns); err != nil {
				return fmt.Errorf("enter namespace %s: %w", name, err)
			}
			return f()
		}()
	}()
	return <-failed
}

// podAddress returns the IPv4 address of eth0 in a container's namespace.
func podAddress(sandbox string) (addr string, err error) {
	err = inSandbox(sandbox, func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := eth0.Addrs()
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
				addr = n.IP.String()
				return nil
			}
		}
		return fmt.Errorf("%s in %s: %w", "eth0", sandbox, os.ErrNotExist)
	})
	return addr, err
}

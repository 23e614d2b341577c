// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// The experiment ports has nodes on which containers with a published port stand: one, 100 and 1,000.
// Each node also has the namespace of a host outside, a client and a server. The server publishes the
// ports of the traffic.

// portsExperiment is the name of this experiment. It has its own page.
const portsExperiment = "ports"

// These are the paths of the traffic.
const (
	inward  = "to a published port"
	outward = "out, by masquerade"
	between = "between containers"
)

// standings are the numbers of containers with a published port, beside the server. The second one
// is for a quick run.
var standings = []int{1, 20, 100, 1000}

// These are the plugins with their backend.
const (
	byIptables = reference + "-full"
	byNftables = reference + "-full-nft"
	byPatchbay = oursOne + "-full-one"
)

// portsFloor is the part of our connection rate with one container that the rate with 1,000 must reach.
const portsFloor = 0.98

// publisher is a node of this experiment.
type publisher struct {
	set, chain string // of the plugins
	standing   int
}

func (p publisher) node() string { return fmt.Sprintf("%s.%d", p.by(), p.standing) }

// by names the plugins and their backend.
func (p publisher) by() string { return p.set + "-" + p.chain }

// publishers returns the nodes. The reference has both of its backends.
func (l *lab) publishers() (list []publisher) {
	for _, standing := range standings {
		if standing > 1 && l.quick != (standing == standings[1]) {
			continue
		}
		for _, set := range l.want(reference) {
			list = append(list, publisher{set, "full", standing}, publisher{set, "full-nft", standing})
		}
		for _, set := range l.want(oursOne) {
			list = append(list, publisher{set, "full-one", standing})
		}
	}
	return list
}

// ports measures the traffic. The nodes take turns.
func (l *lab) ports() error {
	nodes := l.publishers()
	for _, p := range nodes {
		if err := l.setUp(p); err != nil {
			return err
		}
	}
	for round := range l.pick(8, 2) + 1 {
		for _, way := range []string{inward, outward, between} {
			for _, kind := range kinds {
				for i := range nodes {
					if err := l.portTraffic(nodes[(i+round)%len(nodes)], way, kind.name, round > 0); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// setUp makes the containers of a node.
func (l *lab) setUp(p publisher) error {
	l.plugins[p.node()] = l.plugins[p.set]
	for _, req := range []request{{Op: "stand", Chain: p.chain, N: p.standing}, {Op: "publish", Chain: p.chain}} {
		if _, err := l.ask(p.node(), req); err != nil {
			return err
		}
	}
	return nil
}

// portTraffic measures one path of a node. The first round only warms up.
func (l *lab) portTraffic(p publisher, way, kind string, counts bool) error {
	req := request{Op: "traffic", Chain: kind, Pod: "client", N: l.pick(1000, 200)}
	switch way {
	case inward:
		req.Pod, req.To = "outside", publishedAddr().String()
	case outward:
		req.To = outsideAddr().String()
	case between:
		rep, err := l.ask(p.node(), request{Op: "address", Pod: "server"})
		if err != nil {
			return err
		}
		req.To = rep.Text
	}
	rep, err := l.ask(p.node(), req)
	if err != nil {
		return fmt.Errorf("%s: %w", way, err)
	}
	if counts {
		key := p.node() + "/" + way + "/" + kind
		l.results.Ports[key] = append(l.results.Ports[key], rep.Rate)
	}
	return nil
}

// publishedAddr is the node's address on the link to the host outside.
func publishedAddr() netip.Addr { return netip.AddrFrom4([4]byte{172, 31, 0, 1}) }

func outsideAddr() netip.Addr { return publishedAddr().Next() }

// publish makes the host outside, the server and the client.
func (w *worker) publish(chain string) error {
	if err := makeOutside(); err != nil {
		return fmt.Errorf("make the host outside: %w", err)
	}
	if err := startServer("outside"); err != nil {
		return err
	}
	for _, name := range []string{"client", "server"} {
		if err := w.attach(chain, name); err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
	}
	if err := acquaint(); err != nil {
		return err
	}
	return startServer("server")
}

// attach attaches a container to a chain's network. The server publishes its ports.
func (w *worker) attach(chain, name string) error {
	list, err := w.list(chain, confVersion)
	if err != nil {
		return err
	}
	ns, err := quietSandbox(name)
	if err != nil {
		return err
	}
	rt := w.container(ns)
	if rt.CapabilityArgs = nil; name == "server" {
		var ports []map[string]any
		for _, port := range []int{sinkPort, echoPort, answerPort} {
			ports = append(ports, map[string]any{"hostPort": port, "containerPort": port, "protocol": "tcp"})
		}
		rt.CapabilityArgs = map[string]any{"portMappings": ports}
	}
	_, err = w.cni.AddNetworkList(context.Background(), list, rt)
	return err
}

// makeOutside makes the namespace of a host on a link to the node.
func makeOutside() error {
	if _, err := quietSandbox("outside"); err != nil {
		return err
	}
	ns, err := netns.GetFromName("outside")
	if err != nil {
		return err
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = wireLink
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: wireLink, PeerNamespace: netlink.NsFd(ns)}); err != nil {
		return err
	}
	if err := linkUp(publishedAddr()); err != nil {
		return err
	}
	return inSandbox("outside", func() error { return linkUp(outsideAddr()) })
}

func linkUp(addr netip.Addr) error {
	link, err := netlink.LinkByName(wireLink)
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: prefixNet(netip.PrefixFrom(addr, 24))}); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// writePorts writes the page of this experiment.
func (r *results) writePorts(w io.Writer) {
	fmt.Fprintf(w, `# What published ports cost a packet

Made by `+"`go run ./test/bench -only ports`"+`, which `+"`make bench`"+` runs; do not edit. %s, %s, %d cores, Linux %s.

Traffic of containers on a bridge, while other containers with a published port stand on the node: medians, and quartiles in parentheses. A host
outside connects to the node. The ratio to Patchbay on a node with as many containers, and that of Patchbay to Patchbay with one, is the
median of the rounds' ratios. The target is a connection rate to a published port of at least %.2f of that with one container.

| traffic | containers | plugins | rate | to Patchbay | to one container | |
| --- | --: | --- | --: | --: | --: | --- |
`, r.Date, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, portsFloor)
	for _, way := range []string{inward, outward, between} {
		for _, kind := range kinds {
			for _, standing := range standings {
				for _, by := range []string{byIptables, byNftables, byPatchbay} {
					r.writePortRow(w, way, kind.name, kind.unit, by, standing)
				}
			}
		}
	}
}

func (r *results) writePortRow(w io.Writer, way, kind, unit, by string, standing int) {
	rates := func(by string, standing int) []float64 {
		return r.Ports[fmt.Sprintf("%s.%d/%s/%s", by, standing, way, kind)]
	}
	own := rates(by, standing)
	if len(own) == 0 {
		return
	}
	_, beside, _ := quartiles(ratios(own, rates(byPatchbay, standing)))
	_, growth, _ := quartiles(ratios(own, rates(by, 1)))
	verdict := ""
	if by == byPatchbay && way == inward && kind == "connections" && standing == slices.Max(standings) {
		verdict = missed
		if growth >= portsFloor {
			verdict = met
		}
	}
	name := map[string]string{byIptables: "reference, iptables", byNftables: "reference, nftables", byPatchbay: "Patchbay"}[by]
	fmt.Fprintf(w, "| %s: %s, %s | %d | %s | %s | %.2fx | %.2fx | %s |\n", way, kind, unit, standing, name, rateText(own), beside, growth, verdict)
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
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

// flow is one kind of traffic on one path.
type flow struct{ way, kind string }

// promised is the traffic of the target.
var promised = flow{inward, "connections"}

// flows returns the traffic of one round. That of the target comes three times, because the median of
// 32 ratios is not exact enough for a target of 2%.
func flows() []flow {
	list := []flow{promised, promised}
	for _, way := range []string{inward, outward, between} {
		for _, kind := range kinds {
			list = append(list, flow{way, kind.name})
		}
	}
	return list
}

// ports measures the traffic. The nodes take turns. The rates of 100 ms vary no more than those of a
// second, so many short turns give a better median than few long ones.
func (l *lab) ports() error {
	nodes := l.publishers()
	if err := l.setUpAll(nodes); err != nil {
		return err
	}
	for round := range l.pick(32, 2) + 1 {
		for _, f := range flows() {
			for i := range nodes {
				if err := l.portTraffic(nodes[(i+round)%len(nodes)], f, round > 0); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// setUpAll makes the containers of the nodes, one node on each CPU at the same time: the reference
// needs minutes for 1,000 containers, because its ADDs take longer, the more containers there are.
func (l *lab) setUpAll(nodes []publisher) error {
	var g errgroup.Group
	g.SetLimit(runtime.NumCPU())
	for _, p := range nodes {
		l.plugins[p.node()] = l.plugins[p.set]
		c, err := l.client(p.node())
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		g.Go(func() error { return p.setUp(c) })
	}
	return g.Wait()
}

// setUp makes the containers of a node.
func (p publisher) setUp(c *client) error {
	start := time.Now()
	for _, req := range []request{{Op: "stand", Chain: p.chain, N: p.standing}, {Op: "publish", Chain: p.chain}} {
		if _, err := c.ask(req); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "bench: %s: %s is up after %s\n", portsExperiment, p.node(), time.Since(start).Round(time.Second))
	return nil
}

// portTraffic measures the traffic of a node. The first round only warms up.
func (l *lab) portTraffic(p publisher, f flow, counts bool) error {
	req := request{Op: "traffic", Chain: f.kind, Pod: "client", N: 100}
	switch f.way {
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
		return fmt.Errorf("%s: %w", f.way, err)
	}
	if counts {
		key := portKey(p.by(), p.standing, f)
		l.results.Ports[key] = append(l.results.Ports[key], rep.Rate)
	}
	return nil
}

// portKey is the key of a node's rates in the results.
func portKey(by string, standing int, f flow) string {
	return fmt.Sprintf("%s.%d/%s/%s", by, standing, f.way, f.kind)
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

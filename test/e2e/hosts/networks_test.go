// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// twoNetworks: a container is on a network of its host and on one of all hosts. Its default route is
// the former's, because Docker prefers the first name.
func twoNetworks(w *world) {
	a, c := w.hosts[0], w.hosts[2]
	for _, way := range []struct {
		h, far *host
		name   string
	}{{a, c, "fold"}, {c, a, "fweb"}} { // a current Docker and an old one
		way.h.docker("network", "create", "edge", "--subnet", "172.30.0.0/24")
		way.h.docker("run", "-d", "--name", "two", "--network", "edge", "bb", "sleep", "1000")
		way.h.docker("network", "connect", "flat", "two")
		if routes := way.h.docker("exec", "two", "ip", "route"); !strings.Contains(routes, "default via 172.30.0.1") {
			w.Errorf("%s: the default route is not of the other network:\n%s", way.h.name, routes)
		}
		way.h.reaches("two", way.far.address(way.name, "flat"))
		way.far.reaches(way.name, way.h.address("two", "flat"))
		way.h.docker("rm", "-f", "two")
		way.h.docker("network", "rm", "edge")
	}
}

// isolated: isolated networks do not reach each other on any host. They reach other networks.
func isolated(w *world) {
	a, b := w.hosts[0], w.hosts[1]
	a.cli("create", "red", "--subnet", "10.202.0.0/16", "--isolate", "--transport", "routes")
	a.cli("create", "blue", "--subnet", "10.203.0.0/16", "--isolate", "--transport", "routes")
	for _, h := range []*host{a, b} {
		h.network("red")
		h.network("blue")
	}
	for _, h := range []*host{a, b} { // Docker drops packets that another host has masqueraded
		h.in("iptables", "-P", "FORWARD", "ACCEPT")
		defer h.in("iptables", "-P", "FORWARD", "DROP")
	}
	a.start("red1", "red")
	b.start("red2", "red")
	a.start("blue1", "blue")
	b.start("blue2", "blue")
	a.reaches("red1", b.address("red2", "red"))
	b.reaches("blue2", a.address("blue1", "blue"))
	a.reaches("web", b.address("red2", "red")) // of a network that is not isolated
	a.reaches("web", b.address("blue2", "blue"))
	for from, to := range map[string]string{"red1": b.address("blue2", "blue"), "blue1": b.address("red2", "red")} {
		if a.pings(from, to) {
			w.Errorf("%s reaches another host's %s of an isolated network", from, to)
		}
	}
	if a.pings("red1", a.address("blue1", "blue")) {
		w.Error("red1 reaches blue1 on one host")
	}
	w.gone([]*host{a, b}, []string{"red1", "red2", "blue1", "blue2"}, "red", "blue")
}

// gone removes containers, their Docker networks and the networks.
func (w *world) gone(on []*host, containers []string, networks ...string) {
	w.Helper()
	for _, h := range on {
		for _, name := range containers {
			_, _ = try(h.env(), h.script, "docker", h.name, "rm", "-f", name) // it may be another host's
		}
		h.docker(append([]string{"network", "rm"}, networks...)...)
	}
	for _, n := range networks {
		w.until("nobody is on "+n, func() bool {
			_, err := try(on[0].env(), on[0].script, "in", on[0].name, on[0].patchbayd, "hosts", "--store", w.etcd.store(), "rm", n)
			return err == nil
		})
	}
}

// internal: an internal network is one network over its hosts, and closed.
func internal(w *world) {
	a, b := w.hosts[0], w.hosts[1]
	a.cli("create", "inner", "--subnet", "10.204.0.0/16", "--transport", "vxlan")
	for i, h := range []*host{a, b} {
		h.configured("inner")
		h.docker("network", "create", "-d", "patchbay", "--ipam-driver", "null", "--internal", "-o", "cni.network=inner", "inner")
		h.docker("run", "-d", "--name", fmt.Sprint("in", i), "--network", "inner", "bb", "sleep", "1000")
	}
	a.reaches("in0", b.address("in1", "inner"))
	b.reaches("in1", a.address("in0", "inner"))
	for _, to := range []string{a.address("web", "lan"), b.address("db", "lan"), b.addr, etcdAddr} {
		if a.pings("in0", to) {
			w.Errorf("a container of an internal network reaches %s", to)
		}
	}
	if b.pings("db", a.address("in0", "inner")) {
		w.Error("another network reaches an internal one of another host")
	}
	w.gone([]*host{a, b}, []string{"in0", "in1"}, "inner")
}

// lostBlock: while its agent was away, a host lost its block. It gives out no address of the block,
// although Docker has a copy of the configuration, and says so. When the last container with such an
// address is gone, it has another block.
func lostBlock(w *world) {
	const other = "0123456789abcdef" // a host whose agent does not run, because one that does gives a second block back
	b := w.hosts[1]
	b.start("keep", "flat")
	prefix := b.prefix("flat")
	b.killAgent()
	w.etcd.give("flat", prefix, other)
	b.startAgent()
	b.until("the configuration is gone", func() bool {
		_, err := try(b.env(), b.script, "in", b.name, "test", "!", "-e", "/etc/cni/net.d/flat.conflist")
		return err == nil
	})
	why := "block " + prefix + " of this host belongs to " + other + " now"
	if _, err := try(b.env(), b.script, "docker", b.name, "run", "-d", "--name", "twice", "--network", "flat", "bb", "sleep", "1000"); err == nil || !strings.Contains(err.Error(), why) {
		w.Errorf("a container got an address of another host's block: %v", err)
	}
	b.until("ls reports it", func() bool {
		return slices.ContainsFunc(b.ls().Wrong, func(s string) bool {
			return strings.Contains(s, "Docker network") && strings.Contains(s, why)
		})
	})
	b.docker("rm", "-f", "keep", "twice")
	b.configured("flat")
	if now := b.prefix("flat"); now == prefix {
		w.Errorf("it still has block %s", now)
	}
	b.start("keep", "flat")
	w.hosts[2].reaches("fold", b.address("keep", "flat"))
	b.docker("rm", "-f", "keep")
}

// suspended: a machine is suspended for longer than its session lasts. Its names go and come back, and
// its containers keep their addresses.
func suspended(w *world) {
	a, b := w.hosts[0], w.hosts[1]
	before, addr := b.prefix("lan"), b.address("db", "lan")
	must(w, b.agent.Process.Signal(unix.SIGSTOP))
	must(w, b.driver.Process.Signal(unix.SIGSTOP))
	a.until("its names are gone", func() bool {
		return !slices.ContainsFunc(a.ls().Endpoints, func(e struct {
			Network string
			Names   []string
		}) bool {
			return slices.Contains(e.Names, "db")
		})
	})
	time.Sleep(ttl)
	must(w, b.driver.Process.Signal(unix.SIGCONT))
	must(w, b.agent.Process.Signal(unix.SIGCONT))
	a.reaches("web", "db")
	b.start("after", "lan")
	a.reaches("web", "after")
	if b.prefix("lan") != before || b.address("db", "lan") != addr {
		w.Errorf("it had %s and %s, and has %s and %s", before, addr, b.prefix("lan"), b.address("db", "lan"))
	}
	b.docker("rm", "-f", "after")
}

// configured waits for the configuration of a CNI network.
func (h *host) configured(name string) {
	h.Helper()
	h.until(h.name+" has the configuration of "+name, func() bool {
		_, err := try(h.env(), h.script, "in", h.name, "test", "-f", "/etc/cni/net.d/"+name+".conflist")
		return err == nil
	})
}

// prefix returns the host's IPv4 block of a network.
func (h *host) prefix(network string) string {
	h.Helper()
	for _, b := range h.ls().Blocks {
		if b.Network == network && b.NodeName == h.name && strings.Contains(b.Prefix, ".") {
			return b.Prefix
		}
	}
	h.Fatalf("%s has no block of %s", h.name, network)
	return ""
}

// give writes a block of another host to the store.
func (s *server) give(network, prefix, node string) {
	s.Helper()
	block, err := json.Marshal(map[string]any{"schema": 1, "object": map[string]string{"network": network, "prefix": prefix, "node": node}})
	must(s, err)
	key := filepath.Join("/patchbay/v1/e2e/blocks", network, strings.ReplaceAll(prefix, "/", "-"))
	put, err := json.Marshal(map[string][]byte{"key": []byte(key), "value": block}) // both in base64
	must(s, err)
	run(s.T, nil, "nsenter", "-t", pid(s.home), "-n", "--", "busybox", "wget", "-q", "-O", "-", "--post-data", string(put), "http://"+etcdAddr+":2379/v3/kv/put")
}

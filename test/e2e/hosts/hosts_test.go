// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestThreeHosts(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
	w.until("etcd answers", func() bool {
		_, err := try(a.env(), a.script, "in", a.name, a.patchbayd, "hosts", "--store", w.etcd.store(), "create", "lan", "--subnet", "10.200.0.0/16", "--subnet", "fd00:200::/48", "--transport", "vxlan")
		return err == nil
	})
	a.cli("create", "flat", "--subnet", "10.201.0.0/16", "--transport", "routes")
	for _, h := range w.hosts {
		h.network("lan")
		h.network("flat")
	}
	a.start("web", "lan", "-p", "8080:80")
	b.start("db", "lan", "--network-alias", "sql")
	c.start("old", "lan")
	a.start("fweb", "flat")
	c.start("fold", "flat")
	for _, s := range []struct {
		name string
		fn   func(w *world)
	}{
		{"talk", talk}, {"two networks", twoNetworks}, {"isolated", isolated}, {"internal", internal}, {"pruned", pruned},
		{"lost block", lostBlock}, {"suspended", suspended}, {"etcd killed", etcdKilled}, {"etcd away", etcdAway}, {"host killed", hostKilled}, {"removed", removed},
	} {
		began := time.Now()
		t.Run(s.name, func(t *testing.T) {
			inner := w.within(t)
			s.fn(inner)
			w.take(inner)
			t.Logf("%v", time.Since(began).Round(time.Millisecond))
		})
		if t.Failed() {
			return
		}
	}
}

// within returns the world for a subtest.
func (w *world) within(t *testing.T) *world {
	in := *w
	in.T, in.hosts = t, nil
	etcd := *w.etcd
	in.etcd = &etcd
	in.etcd.world = &in
	for _, h := range w.hosts {
		h := *h
		h.world = &in
		in.hosts = append(in.hosts, &h)
	}
	return &in
}

// take copies the processes back that a subtest restarted in its world.
func (w *world) take(in *world) {
	w.etcd.cmd = in.etcd.cmd
	for i, h := range in.hosts {
		w.hosts[i].agent, w.hosts[i].driver, w.hosts[i].dead = h.agent, h.driver, h.dead
	}
}

// talk: containers on all hosts reach each other by address and by name, through a tunnel and
// through routes.
func talk(w *world) {
	a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
	a.reaches("web", b.address("db", "lan"))
	b.reaches("db", c.address("old", "lan"))
	c.reaches("old", a.address("web", "lan"))
	a.reaches("fweb", c.address("fold", "flat"))
	c.reaches("fold", a.address("fweb", "flat"))
	for _, name := range []string{"db", "sql", "old"} {
		a.reaches("web", name)
	}
	for _, name := range []string{"web", "old", "sql"} {
		b.reaches("db", name)
	}
	c.reaches("old", "web")
	c.reaches("fold", "fweb")
	six := func(h *host, name string) string {
		return h.docker("inspect", name, "--format", `{{(index .NetworkSettings.Networks "lan").GlobalIPv6Address}}`)
	}
	a.reaches("web", six(c, "old"))
	c.reaches("old", six(b, "db"))
	ports(w)
}

// ports: a published port answers other hosts and their containers, and a container sees
// the source container's address.
func ports(w *world) {
	a, b := w.hosts[0], w.hosts[1]
	a.docker("exec", "-d", "web", "httpd", "-f", "-p", "80")
	get := `(printf 'GET /ok HTTP/1.0\r\n\r\n'; sleep 0.3) | busybox nc -w 3 ` + a.addr + ` 8080 || true`
	b.until("the published port answers", func() bool {
		out, err := try(b.env(), b.script, "in", b.name, "sh", "-c", get)
		return err == nil && strings.HasPrefix(out, "HTTP/1")
	})
	b.until("the published port answers a container", func() bool {
		out, err := try(b.env(), b.script, "docker", b.name, "exec", "db", "sh", "-c", get)
		return err == nil && strings.HasPrefix(out, "HTTP/1")
	})
	a.docker("exec", "-d", "web", "nc", "-ll", "-p", "7000", "-e", "cat", "/proc/net/tcp6")
	peers := ""
	b.until("db talks to web", func() bool {
		out, err := try(b.env(), b.script, "docker", b.name, "exec", "db", "sh", "-c", "sleep 1 | nc -w 3 "+a.address("web", "lan")+" 7000")
		peers = out
		return err == nil && strings.Contains(out, ":1B58")
	})
	if !strings.Contains(peers, hexAddr(b.address("db", "lan"))+":") {
		w.Errorf("web does not see db's address %s:\n%s", b.address("db", "lan"), peers)
	}
}

// hexAddr is an IPv4 address as /proc/net/tcp has it.
func hexAddr(s string) string {
	a := netip.MustParseAddr(s).As4()
	return fmt.Sprintf("%02X%02X%02X%02X", a[3], a[2], a[1], a[0])
}

// etcdKilled: after etcd is killed and restarted with its data, every agent goes on.
func etcdKilled(w *world) {
	a, b := w.hosts[0], w.hosts[1]
	w.etcd.kill()
	a.reaches("web", b.address("db", "lan"))
	w.etcd.start()
	b.start("late", "lan")
	a.reaches("web", "late")
	b.docker("rm", "-f", "late")
}

// etcdAway: etcd is away for longer than any session lasts. Running containers still reach each
// other, new containers start, and an agent that starts without its store removes nothing.
func etcdAway(w *world) {
	a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
	gateway, gatewayOfB := a.gateway("lan"), b.gateway("lan")
	w.etcd.link("down")
	began := time.Now()
	a.docker("run", "-d", "--name", "alone", "--network", "lan", "--dns", gateway, "bb", "sleep", "1000")
	if took := time.Since(began); took > 10*time.Second {
		w.Errorf("a start without the store took %v", took)
	}
	b.killAgent()
	b.startAgent()
	for time.Since(began) < 3*ttl {
		for _, to := range []string{b.address("db", "lan"), c.address("old", "lan")} {
			if !a.pings("alone", to) {
				w.Fatalf("no way to %s after %v", to, time.Since(began))
			}
		}
		if !b.pings("db", a.address("web", "lan")) || !a.pings("fweb", c.address("fold", "flat")) {
			w.Fatalf("no way back after %v", time.Since(began))
		}
	}
	a.reaches("alone", "web") // this host's, and another's that was known
	a.reaches("alone", "db")
	a.until("this host's resolver knows it", func() bool {
		out, err := try(a.env(), a.script, "docker", a.name, "exec", "web", "nslookup", "alone", gateway)
		return err == nil && strings.Contains(out, a.address("alone", "lan"))
	})
	if out, err := try(b.env(), b.script, "docker", b.name, "exec", "db", "nslookup", "alone", gatewayOfB); err == nil {
		w.Errorf("another host's knows it without a store: %s", out)
	}
	w.etcd.link("up")
	b.reaches("db", "alone")
	for _, to := range []string{"web", "old"} {
		b.reaches("db", to)
	}
	a.docker("rm", "-f", "alone")
}

// hostKilled: the names of a killed host expire with its session, and the other hosts go on.
func hostKilled(w *world) {
	a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
	b.die()
	a.until("db is forgotten", func() bool {
		l := a.ls()
		for _, e := range l.Endpoints {
			if slices.Contains(e.Names, "db") {
				return false
			}
		}
		return !slices.ContainsFunc(l.Nodes, func(n struct {
			Name    string
			Present bool
		}) bool {
			return n.Name == b.name && n.Present
		})
	})
	a.until("its name is, where the store tells of it", func() bool {
		_, err := try(a.env(), a.script, "docker", a.name, "exec", "web", "nslookup", "db")
		return err != nil
	})
	a.reaches("web", "old")
	c.docker("rm", "-f", "old")
	c.docker("network", "rm", "lan")
	c.network("lan")
	c.start("old", "lan")
	a.reaches("web", "old")
	a.cli("forget", b.name)
}

// pruned: `docker network prune` removes a host's Docker network without containers, but nothing of
// the CNI network. The Docker network can be made again, with the same block. Networks of running
// containers stay.
func pruned(w *world) {
	a, b, c := w.hosts[0], w.hosts[1], w.hosts[2]
	before, gateway := b.in("cat", "/etc/cni/net.d/flat.conflist"), b.gateway("flat")
	for _, h := range w.hosts {
		h.docker("network", "prune", "-f")
	}
	if left := b.docker("network", "ls", "--filter", "driver=patchbay", "--format", "{{.Name}}"); left != "lan" {
		w.Errorf("networks left: %s", left)
	}
	a.reaches("fweb", c.address("fold", "flat"))
	a.reaches("web", b.address("db", "lan"))
	b.network("flat")
	b.start("again", "flat")
	b.reaches("again", a.address("fweb", "flat"))
	c.reaches("fold", b.address("again", "flat"))
	if after := b.in("cat", "/etc/cni/net.d/flat.conflist"); after != before || b.gateway("flat") != gateway || len(b.ls().Wrong) > 0 {
		w.Errorf("the configuration is\n%s\nbefore\n%s\nwrong: %v", after, before, b.ls().Wrong)
	}
	b.docker("rm", "-f", "again")
}

// removed: a network that is removed leaves nothing on any host.
func removed(w *world) {
	a, c := w.hosts[0], w.hosts[2]
	a.docker("rm", "-f", "web", "fweb")
	c.docker("rm", "-f", "old", "fold")
	for _, h := range []*host{a, c} {
		h.docker("network", "rm", "lan", "flat")
	}
	w.until("nobody is on lan", func() bool { return len(a.ls().Endpoints) == 0 })
	a.cli("rm", "lan")
	a.cli("rm", "flat")
	for _, h := range []*host{a, c} {
		left := ""
		w.until("nothing is left on "+h.name, func() bool {
			left = h.in("sh", "-c", `ls /etc/cni/net.d; ip -o link | grep -E 'veth|vx|pb-'; ip route | grep -E '10.20[01]'; nft list table inet patchbay | grep -E '10.20[01]\.|fd00:200:'; find /var/lib/patchbay/docker/endpoints -type f; true`)
			return left == ""
		})
	}
}

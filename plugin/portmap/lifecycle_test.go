// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// del runs a DEL with nothing but the names: no namespace, result or runtimeConfig.
func (a *attachment) del(t testing.TB) {
	t.Helper()
	bare := attachment{network: a.network, id: a.id, ifName: a.ifName}
	bare.must(t, spec.Del, `{}`)
	if s := bare.stderr.String(); s != "" {
		t.Errorf("DEL warned: %s", s)
	}
}

func nothingLeft(t *testing.T) {
	t.Helper()
	if n := elements(t); n != 0 {
		t.Errorf("%d elements are left:\n%s", n, nftTool(t, "list", "table", "inet", "patchbay"))
	}
	for _, pattern := range []string{"/run/patchbay/attachments/*/*", "/run/patchbay/shared/*"} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

func TestDelNeedsNamesOnly(t *testing.T) {
	_, web, _ := world(t)
	a := of(web)
	conf := ports(both, `"masqAll": true`, `"conditionsV6": ["ip6", "saddr", "fd00::/8"]`)
	a.must(t, spec.Add, conf)
	if elements(t) == 0 {
		t.Fatal("ADD made nothing")
	}
	a.del(t)
	nothingLeft(t)
	a.del(t)
	a.must(t, spec.Del, conf)
	nothingLeft(t)
}

// DEL and `patchbay repair` need nothing but the record.
func TestRecordIsEnough(t *testing.T) {
	n, web, _ := world(t)
	flush(t) // sets on demand that earlier tests left
	a := of(web)
	a.must(t, spec.Add, ports(both))
	before := nftTool(t, "list", "table", "inet", "patchbay")
	flush(t)
	expect(t, "flushed", n.Client, "tcp", node.Uplink4+":8080", "refused")
	if err := a.call(t, spec.Check, ports(both)); err == nil || !strings.Contains(err.Error(), "missing (run patchbay repair)") {
		t.Errorf("CHECK after a flush: %v", err)
	}
	restore(t)
	expect(t, "restored", n.Client, "tcp", node.Uplink4+":8080", "web "+node.Client4)
	expect(t, "restored hairpin", web.Space, "tcp", "10.1.0.1:8080", "web 10.1.0.1")
	if after := nftTool(t, "list", "table", "inet", "patchbay"); after != before {
		t.Errorf("restored:\n%s\nwas:\n%s", after, before)
	}
	a.must(t, spec.Check, ports(both))
	flush(t)
	a.del(t)
	nothingLeft(t)
}

// restore queues the elements of the records, as `patchbay repair` does.
func restore(t *testing.T) {
	t.Helper()
	store := record.New("/run/patchbay")
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // a test
	records, err := store.List("")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		fw.Add(r.Elements...)
	}
	_, facts, err := store.Facts()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range facts {
		fw.Add(f.Elements...)
	}
	if err := fw.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The record is lost or cannot be read. DEL finds what to remove in the firewall and the
// configuration.
func TestDelWithoutRecord(t *testing.T) {
	for _, tc := range []struct {
		name string
		harm func(path string) error
		warn string
	}{
		{"gone", os.Remove, ""},
		{"torn", func(path string) error { return os.Truncate(path, 10) }, "broken record"},
		{"empty", func(path string) error { return os.Truncate(path, 0) }, "broken record"},
		{"of a newer schema", func(path string) error {
			return os.WriteFile(path, []byte(`{"schema": 99, "owner": "abcdefghijklmno"}`), 0o600)
		}, "schema 99"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, web, other := world(t)
			a, b := of(web), of(other)
			a.must(t, spec.Add, ports(both, `"masqAll": true`, `"conditionsV4": ["ip", "saddr", "10.0.0.0/8"]`))
			b.must(t, spec.Add, ports(`{"hostPort": 81, "containerPort": 80}`))
			count := elements(t)
			paths, err := filepath.Glob("/run/patchbay/attachments/net/*.portmap")
			if err != nil || len(paths) != 2 {
				t.Fatalf("records %v, %v", paths, err)
			}
			owner := ownerKey(a)
			if err := tc.harm("/run/patchbay/attachments/net/" + owner + ".portmap"); err != nil {
				t.Fatal(err)
			}
			bare := attachment{network: a.network, id: a.id, ifName: a.ifName}
			bare.must(t, spec.Del, `{}`)
			if got := bare.stderr.String(); !strings.Contains(got, tc.warn) {
				t.Errorf("stderr %q, want %q", got, tc.warn)
			}
			if left := nftTool(t, "list", "table", "inet", "patchbay"); strings.Contains(left, owner) || strings.Contains(left, "cond_") {
				t.Errorf("left:\n%s", left)
			}
			if now := elements(t); now >= count {
				t.Errorf("%d elements, were %d", now, count)
			}
			b.must(t, spec.Check, ports(`{"hostPort": 81, "containerPort": 80}`))
			b.del(t)
			nothingLeft(t)
		})
	}
}

// Two interfaces of one container are independent.
func TestTwoAttachments(t *testing.T) {
	n := node.New(t)
	one := n.Bridge("cni0", "10.1.0.1/24").Container("c1", "10.1.0.5/24")
	two := n.Bridge("cni1", "10.2.0.1/24").Container("c2", "10.2.0.5/24")
	one.Serve("tcp", ":80")
	two.Serve("tcp", ":80")
	a, b := of(one), of(two)
	b.id, b.ifName = a.id, "net1"
	b.prev.Interfaces[2].Name = "net1"
	a.must(t, spec.Add, ports(webPort))
	b.must(t, spec.Add, ports(`{"hostPort": 81, "containerPort": 80}`))
	a.del(t)
	expect(t, "the other", n.Client, "tcp", node.Uplink4+":81", "c2 "+node.Client4)
	expect(t, "the deleted", n.Client, "tcp", node.Uplink4+":8080", "refused")
	b.del(t)
	nothingLeft(t)
}

// Two attachments ask for one host port. The second ADD fails and names the owner. If the owner
// is dead, the second ADD takes the port.
func TestSamePort(t *testing.T) {
	n, web, other := world(t)
	a, b := of(web), of(other)
	a.must(t, spec.Add, ports(both))
	records, err := filepath.Glob("/run/patchbay/attachments/net/*")
	if err != nil {
		t.Fatal(err)
	}

	err = b.call(t, spec.Add, ports(both))
	if err == nil || !strings.Contains(err.Error(), "host port 8080/tcp is taken by container web (network net, interface eth0)") || spec.ErrorCode(err) != spec.CodeInvalidConfig {
		t.Fatalf("a port of the living: %v", err)
	}
	var taken *PortInUseError
	if !errors.As(err, &taken) || taken.Port() != "8080/tcp" || taken.Holder.ContainerID != "web" {
		t.Errorf("what a program learns of it: %+v", taken)
	}
	if now, err := filepath.Glob("/run/patchbay/attachments/net/*"); err != nil || !slices.Equal(now, records) {
		t.Errorf("the refused ADD left %v, %v", now, err)
	}
	expect(t, "still the first", n.Client, "tcp", node.Uplink4+":8080", "web "+node.Client4)
	a.must(t, spec.Add, ports(both)) // a repeated ADD already has the port

	t.Run("address moved on", func(t *testing.T) { // moved to a virtual machine
		web.Delete("eth0")
		if err := b.call(t, spec.Add, ports(both)); err == nil || !strings.Contains(err.Error(), "host port 8080/tcp is taken by container web") {
			t.Fatalf("a port of the living: %v", err)
		}
		a.must(t, spec.Check, ports(both))
	})
	t.Run("namespace is not at its path", func(t *testing.T) { // ip netns del, and ip netns add, while a process is in it
		rewriteNetNS(t, a, filepath.Join(t.TempDir(), "gone"))
		if err := b.call(t, spec.Add, ports(both)); err == nil || !strings.Contains(err.Error(), "host port 8080/tcp is taken by container web") {
			t.Fatalf("a port of the living: %v", err)
		}
	})
	t.Run("namespace is the host's", func(t *testing.T) { // the kernel used the process id again
		rewriteNetNS(t, a, "/proc/self/ns/net")
		unhold(t, a)
		b.must(t, spec.Add, ports(both))
		if !strings.Contains(b.stderr.String(), "which is gone") {
			t.Errorf("nothing was said: %s", b.stderr.String())
		}
		expect(t, "taken over", n.Client, "tcp", node.Uplink4+":8080", "other "+node.Client4)
		a.del(t)
		expect(t, "after the dead one's DEL", n.Client, "tcp", node.Uplink4+":8080", "other "+node.Client4)
		b.must(t, spec.Check, ports(both))
		b.del(t)
		nothingLeft(t)
	})
	t.Run("namespace gone", func(t *testing.T) {
		ghost := *b
		ghost.id, ghost.netns = "ghost", nettest.NewNS(t, "ghost")
		ghost.must(t, spec.Add, ports(both))
		gone := filepath.Join(t.TempDir(), "gone")
		rewriteNetNS(t, &ghost, gone)
		unhold(t, &ghost)
		b.must(t, spec.Add, ports(both))
		ghost.del(t)
		expect(t, "taken over", n.Client, "tcp", node.Uplink4+":8080", "other "+node.Client4)
		b.del(t)
		nothingLeft(t)
	})
	t.Run("record gone", func(t *testing.T) {
		ghost := *b
		ghost.id = "ghost"
		ghost.must(t, spec.Add, ports(webPort))
		if err := os.Remove("/run/patchbay/attachments/net/" + ownerKey(&ghost) + ".portmap"); err != nil {
			t.Fatal(err)
		}
		b.must(t, spec.Add, ports(webPort))
		ghost.del(t)
		b.must(t, spec.Check, ports(webPort))
		b.del(t)
		nothingLeft(t)
	})
}

// rewriteNetNS makes a record name a namespace that does not exist.
func rewriteNetNS(t *testing.T, a *attachment, path string) {
	t.Helper()
	editRecords(t, a, func(r *record.Record) {
		r.NetNS = path
		if r.NetNSMark != nil {
			r.NetNSMark.Place = nil // the mark would show that the path was looked up elsewhere
		}
	})
}

// unhold makes a record name a namespace that no process has.
func unhold(t *testing.T, a *attachment) {
	t.Helper()
	editRecords(t, a, func(r *record.Record) { r.NetNSMark.Ino = 1 })
}

func editRecords(t *testing.T, a *attachment, edit func(*record.Record)) {
	t.Helper()
	store := record.New("/run/patchbay")
	defer store.Close() // a plugin waits for the lock
	records, err := store.List(a.network)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.ContainerID != a.id {
			continue
		}
		edit(r)
		if err := store.Write(r); err != nil {
			t.Fatal(err)
		}
	}
}

// An ADD that fails at any step leaves nothing.
func TestFaults(t *testing.T) {
	_, web, _ := world(t)
	conf := ports(both, `"masqAll": true`, `"conditionsV4": ["ip", "saddr", "10.0.0.0/8"]`)
	var steps []string
	a := of(web)
	a.fault = func(step string) error { steps = append(steps, step); return nil }
	a.must(t, spec.Add, conf)
	a.del(t)
	if len(steps) < 8 {
		t.Fatalf("only %v", steps)
	}
	boom := errors.New("boom")
	for i, at := range steps {
		n := 0
		a.fault = func(string) error {
			if n++; n == i+1 {
				return boom
			}
			return nil
		}
		if err := a.call(t, spec.Add, conf); err == nil {
			t.Fatalf("no failure at %s", at)
		}
		nothingLeft(t)
	}
}

func TestGC(t *testing.T) {
	_, web, other := world(t)
	a, b := of(web), of(other)
	a.must(t, spec.Add, ports(webPort))
	b.must(t, spec.Add, ports(`{"hostPort": 81, "containerPort": 80}`))
	count := elements(t)
	gc := attachment{network: "net"}
	gc.must(t, spec.GC, `{}`)
	if now := elements(t); now != count {
		t.Errorf("GC without a list removed something: %d of %d", now, count)
	}
	gc.must(t, spec.GC, `{"cni.dev/valid-attachments": [{"containerID": "other", "ifname": "eth0"}]}`)
	b.must(t, spec.Check, ports(`{"hostPort": 81, "containerPort": 80}`))
	if left := nftTool(t, "list", "table", "inet", "patchbay"); strings.Contains(left, ownerKey(a)) {
		t.Errorf("left:\n%s", left)
	}
	gc.must(t, spec.GC, `{"cni.dev/valid-attachments": []}`)
	nothingLeft(t)
}

func TestStatus(t *testing.T) {
	a := attachment{network: "net"}
	a.must(t, spec.Status, `{}`)
	if err := a.call(t, spec.Status, `{"backend": "x"}`); spec.ErrorCode(err) != spec.CodeInvalidConfig {
		t.Errorf("wrong configuration: %v", err)
	}
	flush(t)
	nftTool(t, "add table inet patchbay; add map inet patchbay schema { type inet_service : inet_service; elements = { 0 : 99 }; }")
	t.Cleanup(func() { flush(t) })
	err := a.call(t, spec.Status, `{}`)
	if spec.ErrorCode(err) != spec.CodeNotAvailable || !strings.Contains(err.Error(), "schema 99") {
		t.Errorf("newer table: %v (code %d)", err, spec.ErrorCode(err))
	}
}

// Without mappings there is nothing to do, and DEL still works.
func TestNoMappings(t *testing.T) {
	_, web, _ := world(t)
	a := of(web)
	for _, conf := range []string{`{}`, ports("")} {
		a.must(t, spec.Add, conf)
		a.must(t, spec.Check, conf)
		nothingLeft(t)
	}
	a.prev = nil
	if err := a.call(t, spec.Add, ports(webPort)); err == nil || !strings.Contains(err.Error(), "must be called as chained plugin") {
		t.Errorf("without prevResult: %v", err)
	}
	if err := a.call(t, spec.Check, ports(webPort)); err == nil || !strings.Contains(err.Error(), "Required prevResult missing") {
		t.Errorf("CHECK without prevResult: %v", err)
	}
	// Like the reference, ADD skips a mapping for a family in which the container has no address.
	v4 := of(web)
	v4.prev.IPs = v4.prev.IPs[:1]
	v4.must(t, spec.Add, ports(`{"hostPort": 80, "containerPort": 80, "hostIP": "2001:db8:1::1"}`))
	if !strings.Contains(v4.stderr.String(), "has no effect") {
		t.Errorf("nothing was said: %s", v4.stderr.String())
	}
	v4.del(t)
	nothingLeft(t)
}

// A GC removes the ports of an attachment that is not on its list, even if the record is lost. It
// keeps the ports of an attachment that was made after the list.
func TestGCOfALostRecord(t *testing.T) {
	_, web, _ := world(t)
	a := of(web)
	early := time.Now().Add(-time.Second) // the clock of files moves in steps
	a.must(t, spec.Add, ports(both))
	collect := func(conf string) {
		t.Helper()
		(&attachment{network: a.network}).must(t, spec.GC, conf)
	}
	standing := elements(t)
	collect(`{"cni.dev/valid-attachments": [], "patchbay/listed": "` + early.Format(time.RFC3339Nano) + `"}`)
	if elements(t) != standing {
		t.Errorf("%d of %d elements of an attachment that is newer than the list", elements(t), standing)
	}
	lost, err := filepath.Glob("/run/patchbay/attachments/net/*")
	if err != nil || len(lost) != 1 {
		t.Fatal(lost, err)
	}
	if err := os.Remove(lost[0]); err != nil {
		t.Fatal(err)
	}
	collect(`{"cni.dev/valid-attachments": [{"containerID": "` + a.id + `", "ifname": "eth0"}]}`)
	if elements(t) != standing {
		t.Errorf("%d of %d elements of a valid attachment", elements(t), standing)
	}
	collect(`{"cni.dev/valid-attachments": []}`)
	if n := elements(t); n != 0 {
		t.Errorf("%d elements are left:\n%s", n, nftTool(t, "list", "table", "inet", "patchbay"))
	}
}

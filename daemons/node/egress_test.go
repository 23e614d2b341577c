// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// egressLab is an agent of a node that has pods.
type egressLab struct{ *lab }

func newEgressLab(t *testing.T) *egressLab {
	l := &egressLab{newLab(t, 1, 2)}
	t.Cleanup(func() {
		fw := nft.Open("")
		defer fw.Close() //nolint:errcheck // a test
		fw.Remove(l.elements()...)
		if err := fw.Commit(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return l
}

func (l *egressLab) start() {
	l.Helper()
	l.lab.start(func(o *Options) { o.Egress = true })
}

// attach makes the record and the elements that the ADD of a masqueraded pod makes.
func (l *egressLab) attach(namespace, address4, address6 string) *record.Record {
	l.Helper()
	id := namespace + "-1"
	r := &record.Record{Plugin: "ptp", Owner: owner.Of("pods", id, "eth0"), Network: "pods", ContainerID: id, IfName: "eth0", Pod: namespace + "/a"}
	comment := nft.Comment(string(r.Owner), r.Network, id, r.IfName)
	for _, a := range []string{address4 + "/24", address6 + "/64"} {
		r.Elements = append(r.Elements, nft.Masqueraded(netip.MustParsePrefix(a), comment)...)
	}
	store, fw := record.New(l.dir), nft.Open(l.dir)
	defer store.Close()
	defer fw.Close() //nolint:errcheck // a test
	fw.Add(r.Elements...)
	for _, err := range []error{store.Write(r), fw.Commit(l.Context())} {
		if err != nil {
			l.Fatal(err)
		}
	}
	return r
}

// elements returns the egress elements in the kernel.
func (l *egressLab) elements() (all []nft.Element) {
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // a test
	for _, set := range []string{nft.SetEgress4, nft.SetEgress6, nft.SetMasqueraded4, nft.SetMasqueraded6} {
		list, err := fw.List(set)
		if err != nil {
			l.Error(err)
		}
		all = append(all, list...)
	}
	return all
}

func pairs(list []nft.Element) string {
	var out []string
	for _, e := range list {
		if to, ok := e.Egress(); ok {
			from, _ := e.Container()
			out = append(out, fmt.Sprintf("%s=%s", from, to))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// awaitEgress waits until the kernel and the pods' records have these pairs.
func (l *egressLab) awaitEgress(what, want string) {
	l.Helper()
	l.await(what+": "+want, func() bool {
		store := record.New(l.dir)
		defer store.Close()
		records, _, err := store.Scan("")
		var noted []nft.Element
		for _, r := range records {
			noted = append(noted, r.Elements...)
		}
		return err == nil && pairs(noted) == want && pairs(l.elements()) == want
	})
}

// address adds an address to the node, or removes it.
func (l *egressLab) address(change func(netlink.Link, *netlink.Addr) error, address string) {
	l.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		a := netip.MustParseAddr(address)
		err = change(lo, &netlink.Addr{IPNet: nl.IPNet(netip.PrefixFrom(a, a.BitLen()))})
	}
	if err != nil {
		l.Fatal(err)
	}
}

func (l *egressLab) noted(namespace string) string {
	data, _ := os.ReadFile(filepath.Join(record.EgressDir(paths.Paths{State: l.dir}), namespace))
	return string(data)
}

// An annotation changes the egress addresses of running pods. They follow the node's addresses, and
// end when the annotation is removed.
func TestEgress(t *testing.T) {
	l := newEgressLab(t)
	for _, a := range []string{"198.18.7.10", "198.18.7.11", "2001:db8:7::10"} {
		l.address(netlink.AddrAdd, a)
		t.Cleanup(func() {
			lo, _ := netlink.LinkByName("lo")
			netlink.AddrDel(lo, &netlink.Addr{IPNet: nl.IPNet(netip.PrefixFrom(netip.MustParseAddr(a), netip.MustParseAddr(a).BitLen()))}) //nolint:errcheck // some are gone
		})
	}
	l.attach("shop", "10.244.1.5", "fd00:244:0:1::5")
	l.attach("other", "10.244.1.6", "fd00:244:0:1::6")
	l.api.space("shop", "198.18.7.99, 198.18.7.10,2001:db8:7::10")
	l.api.space("other", "")
	l.start()
	const both = "10.244.1.5=198.18.7.10 fd00:244:0:1::5=2001:db8:7::10"
	l.awaitEgress("at the start", both)
	if want := `{"schema":1,"wanted":"198.18.7.99, 198.18.7.10,2001:db8:7::10","use":["198.18.7.10","2001:db8:7::10"]}`; l.noted("shop") != want {
		t.Error(l.noted("shop"))
	}
	l.api.space("shop", "198.18.7.11")
	l.awaitEgress("another address", "10.244.1.5=198.18.7.11")
	l.api.space("shop", "198.18.7.11, example.org")
	l.awaitProblem(egressFailed)
	l.awaitEgress("a wrong annotation changes nothing", "10.244.1.5=198.18.7.11")
	l.api.space("shop", "198.18.7.10, 2001:db8:7::10")
	l.awaitEgress("a right one", both)
	l.await("an end", func() bool { return l.trouble.mine()[egressFailed] == "" })

	l.address(netlink.AddrDel, "198.18.7.10") // moves to another node
	l.awaitEgress("without the address", "fd00:244:0:1::5=2001:db8:7::10")
	l.await("an Event", func() bool {
		return strings.Contains(l.event(egressFailed), "example.org") && strings.Contains(l.trouble.mine()[egressFailed], "this node has none of the addresses [198.18.7.10]")
	})
	l.address(netlink.AddrAdd, "198.18.7.10")
	l.awaitEgress("with the address again", both)

	fw := nft.Open("")
	fw.Remove(slices.DeleteFunc(l.elements(), func(e nft.Element) bool { _, ok := e.Egress(); return !ok })...)
	if err := fw.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	fw.Close() //nolint:errcheck // a test
	resident.Signal(l.egress.wake)
	l.awaitEgress("flushed by another program", both)

	l.api.space("other", "198.18.7.11")
	l.awaitEgress("a second namespace", "10.244.1.5=198.18.7.10 10.244.1.6=198.18.7.11 fd00:244:0:1::5=2001:db8:7::10")
	l.api.space("shop", "")
	l.awaitEgress("without annotation", "10.244.1.6=198.18.7.11")
	l.api.dropSpace("other", false)
	l.awaitEgress("a deleted namespace", "")
	if l.noted("shop")+l.noted("other") != "" {
		t.Errorf("left: %q %q", l.noted("shop"), l.noted("other"))
	}
}

// Pods keep their egress addresses while the API server is away, or if its list lacks the
// namespace.
func TestEgressKept(t *testing.T) {
	l := newEgressLab(t)
	l.address(netlink.AddrAdd, "198.18.7.20")
	t.Cleanup(func() { l.address(netlink.AddrDel, "198.18.7.20") })
	pod := l.attach("shop", "10.244.1.5", "fd00:244:0:1::5")
	l.api.space("shop", "198.18.7.20")
	l.start()
	l.awaitEgress("at the start", "10.244.1.5=198.18.7.20")
	l.stop()
	l.api.say(func(s *apiServer) { s.refuse = 403 })
	l.start()
	l.awaitProblem(namespacesFailed)
	l.awaitEgress("without the API server", "10.244.1.5=198.18.7.20")
	l.api.dropSpace("shop", true)
	l.api.say(func(s *apiServer) { s.refuse = 0 })
	l.await("an answer", func() bool { _, absent := l.egress.spaces.now(); return absent["shop"] })
	l.awaitEgress("in no list", "10.244.1.5=198.18.7.20")
	if l.noted("shop") == "" {
		t.Error("the file is gone")
	}
	store := record.New(l.dir)
	if _, err := store.ReadLocked(pod.Network, pod.Owner, pod.Plugin); err != nil {
		t.Fatal(err)
	}
	if err := store.Remove(pod.Network, pod.Owner, pod.Plugin); err != nil {
		t.Fatal(err)
	}
	store.Close()
	resident.Signal(l.egress.wake)
	l.await("the end of the namespace with its last pod", func() bool { return l.noted("shop") == "" })
}

// An agent without Options.Egress undoes the changes of an earlier run, and does not list
// Namespaces.
func TestEgressOff(t *testing.T) {
	l := newEgressLab(t)
	l.address(netlink.AddrAdd, "198.18.7.30")
	t.Cleanup(func() { l.address(netlink.AddrDel, "198.18.7.30") })
	l.attach("shop", "10.244.1.5", "fd00:244:0:1::5")
	l.api.space("shop", "198.18.7.30")
	l.start()
	l.awaitEgress("on", "10.244.1.5=198.18.7.30")
	l.stop()
	l.lab.start()
	l.awaitEgress("off", "")
	if l.noted("shop") != "" {
		t.Error(l.noted("shop"))
	}
}

// If an ADD or DEL is using a pod's record, the agent changes the pod later and reports no problem.
// An agent without Options.Egress undoes the changes, and so does ClearEgress without an agent.
func TestEgressBusy(t *testing.T) {
	l := newEgressLab(t)
	l.address(netlink.AddrAdd, "198.18.7.40")
	t.Cleanup(func() { l.address(netlink.AddrDel, "198.18.7.40") })
	pod := l.attach("shop", "10.244.1.5", "fd00:244:0:1::5")
	store := record.New(l.dir)
	if _, err := store.ReadLocked(pod.Network, pod.Owner, pod.Plugin); err != nil {
		t.Fatal(err)
	}
	where := paths.Paths{Run: l.dir, State: l.dir, Proc: "/proc"}
	e := newEgress(where, func(error) {}, t.Logf)
	e.spaces.set("shop", "198.18.7.40")
	if err := e.pass(t.Context()); err != nil || !e.busy || pairs(l.elements()) != "" {
		t.Errorf("%v, busy %v, %s", err, e.busy, pairs(l.elements()))
	}
	store.Close()
	if err := e.pass(t.Context()); err != nil || e.busy {
		t.Errorf("%v, busy %v", err, e.busy)
	}
	l.awaitEgress("once it is free", "10.244.1.5=198.18.7.40")
	for name, undo := range map[string]func() error{
		"ClearEgress": func() error { return ClearEgress(t.Context(), where) },
		"without Options.Egress": func() (err error) {
			newEgress(where, func(now error) { err = now }, t.Logf).run(t.Context(), &Agent{retry: 100 * time.Millisecond})
			return err
		},
	} {
		if err := e.pass(t.Context()); err != nil || e.busy {
			t.Errorf("%v, busy %v", err, e.busy)
		}
		if _, err := store.ReadLocked(pod.Network, pod.Owner, pod.Plugin); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(500*time.Millisecond, store.Close)
		if err := undo(); err != nil {
			t.Error(err)
		}
		if left := pairs(l.elements()); left != "" {
			t.Errorf("%s says that all is removed, and %s is left", name, left)
		}
	}
}

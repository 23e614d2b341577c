// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/servicetest"
)

// TestViewJudges compares what a View says of packets, from single elements of the real table, with the rules and an oracle.
func TestViewJudges(t *testing.T) {
	fw := nft.Open(t.TempDir())
	flush(t)
	t.Cleanup(func() {
		flush(t)
		if err := fw.Close(); err != nil {
			t.Error(err)
		}
	})
	servicetest.Compare(t, func() servicetest.Engine { return &viewEngine{engine{kernel: newKernel()}, t, New(fw, Options{})} },
		servicetest.Plan{Tables: draw.Number(t, "PATCHBAY_SERVICE_VIEWS", 12, 300)})
}

// viewEngine also loads what the engine has into the real kernel, and asks that.
type viewEngine struct {
	engine
	t   *testing.T
	enf *Enforcer
}

func (e *viewEngine) Load(c servicetest.Cluster) ([]servicetest.Flow, error) {
	flows, err := e.engine.Load(c)
	if err == nil {
		e.enf.Forget()
		err = e.enf.Load(e.t.Context(), e.program)
	}
	return flows, err
}

func (e *viewEngine) Decide(q servicetest.Packet) (servicetest.Answer, error) {
	want, err := e.engine.Decide(q)
	proto, perr := l4.Parse(q.Protocol)
	if err != nil || perr != nil {
		return want, err
	}
	k := services.Packet{From: q.From, To: q.To, Protocol: proto}
	if to, ok := e.kernel.has(nft.AffinityMap(q.From.Is6()), memoryKey(q, proto)); ok {
		k.Remembered, _ = endpointOf(to, q.From.Is6())
	}
	err = WithView(e.enf.fw, func(v *View) error {
		if v.Fault() != "" {
			return fmt.Errorf("a table as we write it has the fault %s", v.Fault())
		}
		port := services.Frontend{Addr: unspecified(q.To.Addr().Is6()), Protocol: proto, Port: q.To.Port()}
		at := services.Frontend{Addr: q.To.Addr(), Protocol: proto, Port: q.To.Port()}
		table, err := v.Around(at, port)
		if err != nil {
			return err
		}
		if got := answer(table.Judge(k, e.kernel.local).Verdict); !reflect.DeepEqual(got, want) {
			return fmt.Errorf("the view says %s, the rules %s", got, want)
		}
		return nil
	})
	return want, err
}

// What somebody else does to the table is noticed, and a table of another layout is not read.
func TestViewSeesFaults(t *testing.T) {
	w := newTown(t)
	fault := func() (text string, exists bool) {
		t.Helper()
		if err := WithView(w.fw, func(v *View) error { text, exists = v.Fault(), v.Exists(); return nil }); err != nil {
			t.Fatal(err)
		}
		return text, exists
	}
	if text, exists := fault(); exists || text != "" {
		t.Errorf("without a table: %q, %v", text, exists)
	}
	w.service(1, "a b", func(s *services.Service) { s.Affinity, s.Ports[0].NodePort = 60, 30001 })
	w.load()
	if text, exists := fault(); !exists || text != "" {
		t.Errorf("as we write it: %q, %v", text, exists)
	}
	var all services.Table
	var ports []services.Frontend
	if err := WithView(w.fw, func(v *View) (err error) {
		if all, err = v.All(); err != nil {
			return err
		}
		ports, err = v.Frontends(netip.MustParseAddr(vip(1)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(ports); got != "[10.96.0.1 . tcp . 80 10.96.0.1 . udp . 80]" {
		t.Errorf("frontends of %s: %s", vip(1), got)
	}
	if diff := w.program.From(all); len(diff.Steps) > 0 {
		t.Errorf("all elements differ from the program: %v", diff.Steps)
	}
	table := &nftables.Table{Name: nft.ServicesTable, Family: nftables.TableFamilyINet}
	change := func(do func(*nftables.Conn)) {
		t.Helper()
		c, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		if do(c); c.Flush() != nil {
			t.Fatal("cannot change the table")
		}
	}
	change(func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Name: "services4", Table: table}) })
	if text, _ := fault(); text != "it has other rules in the chains services4" {
		t.Errorf("a flushed chain: %q", text)
	}
	change(func(c *nftables.Conn) { c.DelTable(table); c.AddTable(table) })
	if text, exists := fault(); !exists || !strings.HasPrefix(text, "it has no revision") {
		t.Errorf("an empty table: %q", text)
	}
}

// BenchmarkView asks for one frontend with 80 endpoints beside 45,000 Services, and for nothing else, as why does. Then it reads all, as doctor does.
func BenchmarkView(b *testing.B) {
	s := large(45_000, false)
	fw := nft.Open(b.TempDir())
	defer fw.Close() //nolint:errcheck // a benchmark's socket
	e := New(fw, Options{})
	must(b, e.Load(b.Context(), services.Compile(s, nil)))
	f := services.Frontend{Addr: s.Services[services.Name{Namespace: "ns", Name: "s8"}].ClusterIPs[0], Protocol: l4.TCP, Port: 80}
	for b.Loop() {
		must(b, WithView(fw, func(v *View) error {
			t, err := v.Around(f)
			if shown, ok := t.Show(f); err == nil && (!ok || len(shown.Inside.Endpoints) != 80) {
				err = fmt.Errorf("%d endpoints", len(shown.Inside.Endpoints))
			}
			return err
		}))
	}
	start := time.Now()
	var faults []services.Fault
	must(b, WithView(fw, func(v *View) error {
		t, err := v.All()
		b.Logf("read all in %v", time.Since(start))
		faults = t.Faults()
		return err
	}))
	b.Logf("read and examined in %v: %d faults", time.Since(start), len(faults)) // those of 45,000 cluster IPs in no ServiceCIDR
	must(b, e.Remove(b.Context()))
}

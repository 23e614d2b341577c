// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/spec"
)

// TestDriverAway checks that a DEL succeeds while the driver is away. The next ADD or a GC then
// ends the endpoint at the driver.
func TestDriverAway(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	finish := map[string]func(){
		"an ADD": func() {
			p := l.Pod("later", both)
			endpointtest.Must(t, p.Do(spec.Add))
			endpointtest.Must(t, p.Do(spec.Del))
		},
		"a GC":  func() { endpointtest.Must(t, l.gc(l.Pod("gc", both), "")) },
		"a DEL": nil,
	}
	for _, by := range []string{"an ADD", "a GC", "a DEL"} {
		p := l.Pod("gone-before-"+strings.Fields(by)[1], both)
		endpointtest.Must(t, p.Do(spec.Add))
		back := l.srv.Away(t, by == "an ADD" || draw.All(t))
		endpointtest.Must(t, p.Do(spec.Del))
		endpointtest.Must(t, p.Do(spec.Del))
		if _, err := p.Conn().Link("eth0"); err == nil {
			t.Error("the container has its interface after DEL")
		}
		if err := p.Do(spec.Check); err == nil {
			t.Error("CHECK after DEL succeeds")
		}
		back()
		if n := l.driver.Endpoints(); n != 1 {
			t.Fatalf("%d endpoints, want the one that the DEL could not end", n)
		}
		if fn := finish[by]; fn != nil {
			fn()
		} else {
			endpointtest.Must(t, p.Do(spec.Del))
		}
		l.clean("after " + by)
		if n := l.driver.Addresses(); n != 2 {
			t.Errorf("after %s: %d addresses are out, not the gateways alone", by, n)
		}
	}
}

// The driver is away for good. With delIgnoreUnreachable, DEL forgets the attachment and its link.
func TestIgnoreUnreachable(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", `"delIgnoreUnreachable":true,`+strings.Replace(both, `"cnm-ipam",`, `"cnm-ipam","delIgnoreUnreachable":true,`, 1))
	endpointtest.Must(t, p.Do(spec.Add))
	l.srv.Stop()
	endpointtest.Must(t, p.Do(spec.Del))
	if left := l.left(); len(left) > 0 {
		t.Errorf("left behind:\n%s", left)
	}
}

func TestNobodyThere(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", both)
	endpointtest.Must(t, p.Do(spec.Status))
	l.srv.Stop()
	for verb, code := range map[spec.Verb]spec.Code{spec.Status: spec.CodeNotAvailable, spec.Add: spec.CodeTryAgain} {
		if err := p.Do(verb); spec.ErrorCode(err) != code {
			t.Errorf("%s without a driver: code %d, %v", verb, spec.ErrorCode(err), err)
		}
	}
	endpointtest.Must(t, os.WriteFile(l.srv.Path, nil, 0o600)) // a file that is no socket
	if err := p.Do(spec.Add); spec.ErrorCode(err) != spec.CodeTryAgain {
		t.Error(err)
	}
	endpointtest.Must(t, os.Remove(l.srv.Path))
	endpointtest.Must(t, p.Do(spec.Del))
	l.clean("after nothing")
	l.srv.Handler = &cnm.Handler{IPAM: l.driver}
	l.srv.Serve(t)
	l.Fails(p.Do(spec.Status), "is no NetworkDriver")
}

// TestReboot empties the driver, the links and /run, as a reboot does; our state stays. The
// network is created again. One container comes back under the same name without a DEL, and is
// attached again. A GC removes the container that does not come back.
func TestReboot(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p, lost := l.Pod("a", both), l.Pod("lost", both).Add()
	endpointtest.Must(t, p.Do(spec.Add))
	l.Fails(p.Do(spec.Add), "has interface eth0 already")
	endpointtest.Must(t, p.Conn().LinkDel(p.Link("eth0")))
	l.Fails(p.Do(spec.Add), "has interface eth0 already") // known from the record
	l.driver.Forget()
	l.removeBridges()
	l.boot()
	endpointtest.Must(t, lost.Conn().LinkDel(lost.Link("eth0")))
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, p.Do(spec.Check))
	q := l.Pod("new", both).Add()
	q.Serve("tcp", endpointtest.Join(q.IP(0), "80"))
	l.Want("container to container", p.Ask("tcp", endpointtest.Join(q.IP(0), "80")), "new "+p.IP(0))
	l.Want("networks", fmt.Sprint(len(l.driver.Networks())), "1")
	endpointtest.Must(t, l.gc(p, "", "a", "new"))
	endpointtest.Must(t, q.Do(spec.Check))
	endpointtest.Must(t, p.Do(spec.Del))
	endpointtest.Must(t, q.Do(spec.Del))
	l.clean("after DEL")
}

// TestNamespaceGone runs a DEL when neither the namespace nor its path exists.
func TestNamespaceGone(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", both)
	p.Call.NetNS = "/run/netns/another" // no other process has this namespace open
	endpointtest.Must(t, netns.Create(p.Call.NetNS))
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, netns.Delete(p.Call.NetNS))
	endpointtest.Must(t, p.Do(spec.Del))
	l.clean("after DEL")
}

// TestTornRecords makes the records unreadable. DEL and GC still find everything by ids that derive
// from names. Only the addresses from cnm-ipam are lost, because nothing but the record has them.
func TestTornRecords(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	conf := `"driver":"lab","ipam":{"type":"host-local","subnet":"10.97.0.0/24"}`
	for _, verb := range []spec.Verb{spec.Del, spec.GC} {
		for _, torn := range []string{"", `{"sch`, `{"schema":99}`} {
			p := l.Pod(fmt.Sprintf("a%s%d", verb, len(torn)), conf)
			endpointtest.Must(t, p.Do(spec.Add))
			for _, path := range l.attachments() {
				endpointtest.Must(t, os.WriteFile(path, []byte(torn), 0o600))
			}
			if verb == spec.GC {
				endpointtest.Must(t, l.gc(p, ""))
				endpointtest.Must(t, p.Do(spec.Del)) // a GC does not know in which namespace the interface is
			}
			endpointtest.Must(t, p.Do(spec.Del))
			l.clean(fmt.Sprintf("%s with %q", verb, torn))
		}
	}
	for i, file := range []string{"networks", "pools"} {
		p := l.Pod("b"+file, strings.ReplaceAll(both, "88", fmt.Sprint(80+i)))
		p.Conf = strings.Replace(p.Conf, `"net"`, `"`+file+`"`, 1)
		endpointtest.Must(t, p.Do(spec.Add))
		endpointtest.Must(t, p.Do(spec.Del))
		path := filepath.Join("/var/lib/patchbay/cnm", file, file+".json")
		endpointtest.Must(t, os.WriteFile(path, []byte("{"), 0o600))
		err := p.Do(spec.Add)
		if file == "networks" {
			endpointtest.Must(t, err)
			endpointtest.Must(t, p.Do(spec.Del))
		} else {
			l.Fails(err, "is in use") // the driver still uses it, so an operator must decide
		}
		l.clean("torn " + file)
	}
}

// TestChangedOptions changes the network's options. A network with other options counts as
// another network.
func TestChangedOptions(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	a, b := l.Pod("a", both), l.Pod("b", `"options":{"mtu":"1400"},`+both)
	c := l.Pod("c", strings.Replace(both, "10.88.0.0/24", "10.87.0.0/24", 1))
	endpointtest.Must(t, a.Do(spec.Add))
	b.Refused("was made with other options or by another driver, and 1 attachments are in it")
	c.Refused("were asked for with another configuration, and 1 attachments use them")
	endpointtest.Must(t, a.Do(spec.Del))
	endpointtest.Must(t, b.Do(spec.Add))
	l.Want("networks", fmt.Sprint(len(l.driver.Networks())), "1")
	l.Want("options", string(l.driver.Networks()[0].Options[cnm.OptionGeneric]), `{"mtu":"1400"}`)
	endpointtest.Must(t, b.Do(spec.Del))
	endpointtest.Must(t, c.Do(spec.Add))
	l.Want("address", c.IP(0), "10.87.0.2")
	endpointtest.Must(t, c.Do(spec.Del))
	l.clean("after DEL")
}

// While the driver is away, a GC gives no address back: the driver may still send its packets to the dead endpoint.
func TestGCWithoutDriver(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	conf := `"driver":"lab","timeout":3,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.85.0.0/24"}]]}`
	p := l.Pod("a", conf)
	reserved := func() int {
		files, _ := filepath.Glob("/var/lib/cni/networks/*/10.85.*")
		return len(files)
	}
	endpointtest.Must(t, p.Do(spec.Add))
	back := l.srv.Away(t, draw.All(t))
	endpointtest.Must(t, p.Do(spec.Del))
	collector := l.Pod("gc", conf)
	endpointtest.Must(t, l.gc(collector, ""))
	if reserved() != 1 {
		t.Errorf("%d addresses are reserved, and the driver has %d endpoints", reserved(), l.driver.Endpoints())
	}
	back()
	endpointtest.Must(t, l.gc(collector, ""))
	if reserved() != 0 || l.driver.Endpoints() != 0 {
		t.Errorf("%d addresses are reserved, and the driver has %d endpoints", reserved(), l.driver.Endpoints())
	}
}

// A GC leaves out an attachment on which a DEL is working. Its address stays, because the DEL may not reach the driver.
func TestGCBesideADel(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", `"driver":"lab","timeout":3,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.85.0.0/24"}]]}`)
	endpointtest.Must(t, p.Do(spec.Add))
	del := record.OfDrivers("/var/lib/patchbay")
	if rec, err := del.ReadLocked("net", owner.Of("net", "a", "eth0"), name); rec == nil || err != nil {
		t.Fatal(rec, err)
	}
	endpointtest.Must(t, l.gc(p, ""))
	del.Close()
	if files, _ := filepath.Glob("/var/lib/cni/networks/*/10.85.*"); len(files) != 1 || l.driver.Endpoints() != 1 {
		t.Errorf("%q are reserved, and the driver has %d endpoints", files, l.driver.Endpoints())
	}
	endpointtest.Must(t, l.gc(p, ""))
	l.clean("after GC")
}

// A GC keeps the attachment of another runtime, with its address, as long as its namespace may exist.
func TestGCKeepsAnothers(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", `"driver":"lab","timeout":3,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.85.0.0/24"}]]}`)
	endpointtest.Must(t, p.Do(spec.Add))
	edit := func(change func(*record.Record)) {
		t.Helper()
		d := record.OfDrivers("/var/lib/patchbay")
		defer d.Close()
		rec, err := d.Read("net", owner.Of("net", "a", "eth0"), name)
		if rec == nil || err != nil {
			t.Fatal(rec, err)
		}
		change(rec)
		endpointtest.Must(t, d.Rewrite(rec))
	}
	edit(func(rec *record.Record) { rec.Runtime = "other" })
	endpointtest.Must(t, l.gc(p, ""))
	if files, _ := filepath.Glob("/var/lib/cni/networks/*/10.85.*"); len(files) != 1 || l.driver.Endpoints() != 1 {
		t.Errorf("%q are reserved, and the driver has %d endpoints", files, l.driver.Endpoints())
	}
	endpointtest.Must(t, p.Do(spec.Check))
	edit(func(rec *record.Record) { rec.NetNSMark.Ino = 1 }) // another namespace is at its path
	endpointtest.Must(t, l.gc(p, ""))
	l.clean("after GC")
}

// TestGC checks that a GC ends dead attachments. If keepNetwork is false, it ends the network
// with its last attachment.
func TestGC(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	a, b := l.Pod("a", both), l.Pod("b", both)
	endpointtest.Must(t, a.Do(spec.Add))
	endpointtest.Must(t, b.Do(spec.Add))
	endpointtest.Must(t, l.gc(a, `,"keepNetwork":false`, "b"))
	endpointtest.Must(t, b.Do(spec.Check))
	l.Want("endpoints", fmt.Sprint(l.driver.Endpoints()), "1")
	l.Want("networks", fmt.Sprint(len(l.driver.Networks())), "1")
	endpointtest.Must(t, l.gc(a, ""))
	l.clean("after GC")
	l.Want("networks", fmt.Sprint(len(l.driver.Networks())), "1")
	endpointtest.Must(t, l.gc(a, `,"keepNetwork":false`))
	l.Want("networks and pools", fmt.Sprint(len(l.driver.Networks()), l.driver.Pools(), l.driver.Addresses()), "0 0 0")
}

// An IPAM plugin from before CNI 1.1 has no GC. A GC of the network calls its DEL for each attachment that it ends.
func TestGCReleases(t *testing.T) {
	var reserved []string
	old := plugin.Plugin{
		Name: "old", Kind: plugin.IPAM,
		Add: func(_ context.Context, r *plugin.Request) (*spec.Result, error) {
			reserved = append(reserved, r.ContainerID)
			addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 84, 0, byte(1 + len(reserved))}), 24)
			return &spec.Result{IPs: []spec.IPConfig{{Address: addr}}}, nil
		},
		Del: func(_ context.Context, r *plugin.Request) error {
			reserved = slices.DeleteFunc(reserved, func(id string) bool { return id == r.ContainerID })
			return nil
		},
	}
	l := newLab(t, &cnmtest.Driver{}, &old)
	conf := `"driver":"lab","timeout":20,"ipam":{"type":"old"}`
	a, b := l.Pod("a", conf), l.Pod("b", conf)
	endpointtest.Must(t, a.Do(spec.Add))
	endpointtest.Must(t, b.Do(spec.Add))
	endpointtest.Must(t, l.gc(a, "", "b"))
	l.Want("reserved", fmt.Sprint(reserved), "[b]")
	endpointtest.Must(t, b.Do(spec.Del))
}

func index(list []string, what string) int {
	for i, s := range list {
		if s == what {
			return i
		}
	}
	return -1
}

// TestManyAway checks that a GC of many attachments waits for a dead driver only once.
func TestManyAway(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	var last *endpointtest.Pod
	for i := range 12 {
		last = l.Pod(fmt.Sprintf("p%d", i), both)
		endpointtest.Must(t, last.Do(spec.Add))
	}
	l.srv.Stop()
	start := time.Now()
	endpointtest.Must(t, l.gc(last, ""))
	if took := time.Since(start); took > 22*time.Second { // waiting two seconds for each attachment takes longer
		t.Errorf("a GC took %v", took)
	}
	l.srv.Serve(t)
	endpointtest.Must(t, l.gc(last, ""))
	l.clean("after GC")
}

// TestExplain checks that a dry ADD calls no driver and writes nothing.
func TestExplain(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	for _, conf := range []string{both, `"driver":"lab","ipam":{"type":"host-local","subnet":"10.97.0.0/24"}`, `"driver":"lab"`} {
		p := l.Pod(fmt.Sprintf("p%d", len(conf)), conf)
		var lines []string
		b := plugin.Builtin{NewSession: func() *plugin.Session {
			s := plugin.NewSession([]*plugin.Plugin{&Plugin, &cnmipam.Plugin, &hostlocal.Plugin})
			s.Dry = func(line string) { lines = append(lines, line) }
			return s
		}}
		call := p.Call
		call.Verb, call.Config = spec.Add, []byte("{"+p.Conf+"}")
		_, err := b.Invoke(t.Context(), name, &call)
		endpointtest.Must(t, err)
		text := strings.Join(lines, "\n")
		if !strings.Contains(text, "driver: lab NetworkDriver.CreateNetwork (once a network)") || !strings.Contains(text, "name eth0") {
			t.Errorf("explained:\n%s", text)
		}
	}
	if calls := l.srv.Calls(); len(calls) > 0 {
		t.Errorf("called: %v", calls)
	}
	l.clean("after nothing")
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/spec"
)

// cmdTogether calls the plugin for both attachments at the same time. No address may be given twice.
func cmdTogether(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	r, err := parseRequest(args)
	ts.Check(err)
	var calls sync.WaitGroup
	var errs [2]error
	for i, name := range []string{"first", "second"} {
		calls.Go(func() { _, errs[i] = w.runFor(w.places[name], r) })
	}
	calls.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		ts.Fatalf("two calls of %s at the same time: %v", r.verb, err)
	}
	if twice := w.twice(); r.verb == spec.Add && !w.suite.Subject.Stateless && twice.IsValid() {
		ts.Fatalf("both attachments have the address %s", twice)
	}
}

// twice returns an address that both attachments have, of another network than the loopback's.
func (w *World) twice() netip.Addr {
	for _, a := range w.places["first"].Result.IPs {
		for _, b := range w.places["second"].Result.IPs {
			if a.Address.Addr() == b.Address.Addr() && !a.Address.Addr().IsLoopback() {
				return a.Address.Addr()
			}
		}
	}
	return netip.Addr{}
}

// kills is how often the command "killed" kills the plugin, at moments of the same distance.
const kills = 6

// cmdKilled kills the plugin while it works, and then does what a runtime does: it calls DEL, and some time GC.
func cmdKilled(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || args[0] != string(spec.Add) && args[0] != string(spec.Del) {
		ts.Fatalf("usage: killed ADD|DEL")
	}
	w, verb := theWorld(ts), spec.Verb(args[0])
	p := w.places["first"]
	add, del := &request{verb: spec.Add}, &request{verb: spec.Del}
	took := map[spec.Verb]time.Duration{}
	for _, r := range []*request{add, del} {
		_, err := w.runFor(p, r)
		ts.Check(err)
		took[r.verb] = w.diary.took
	}
	for i := range kills {
		after := took[verb] * time.Duration(i+1) / (kills + 1)
		if verb == spec.Del {
			_, err := w.runFor(p, add)
			ts.Check(err)
		}
		ts.Check(w.kill(p, &request{verb: verb}, after))
		if _, err := w.runFor(p, del); err != nil {
			ts.Fatalf("%s was killed after %v of %v; then DEL failed: %v", verb, after, took[verb], err)
		}
	}
	by := "DEL"
	if spec.AtLeast(w.version, "1.1.0") {
		_, err := w.runFor(p, &request{verb: spec.GC, opts: map[string]string{"valid": "none"}})
		ts.Check(err)
		by = "DEL and GC"
	}
	left, err := w.settle()
	ts.Check(err)
	if len(left) > 0 {
		ts.Fatalf("%s was killed %d times, at equal distances in %v; then %s left behind:\n%s", verb, kills, took[verb], by, left)
	}
}

// kill calls the plugin and kills it, with the programs that it started. A plugin that is faster succeeds.
func (w *World) kill(p *place, r *request, after time.Duration) error {
	call, err := w.call(p, r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), after)
	defer cancel()
	_, err = w.invoke(ctx, call)
	w.diary.killed(err != nil)
	return nil
}

// killed says of the last call that the suite killed it.
func (d *diary) killed(was bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps[len(d.steps)-1].Call.Killed = was
}

// cmdTear empties every file that exists since the script began, as a power failure does. What the files remembered
// is lost, so "clean" does not compare values any more.
func cmdTear(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	now, err := w.readState()
	ts.Check(err)
	for _, line := range now.objects.Beyond(w.before.objects).Of("file") {
		file := strings.TrimPrefix(line, "file ")
		w.diary.did(": >%s", file)
		ts.Check(os.Truncate(file, 0))
	}
	w.before.attributes = nil
	for _, p := range w.places {
		p.inside.attributes = nil
	}
}

// cmdOccupy makes an interface in the first attachment's namespace that has the attachment's name.
func cmdOccupy(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	p := w.places["first"]
	w.diary.did("ip -n %s link add %s type veth peer name other0", p.ContainerID, p.IfName)
	ts.Check(inside(p.NetNS, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = p.IfName
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "other0"})
	}))
	var err error
	p.inside, err = stateIn(p.NetNS)
	ts.Check(err)
	ts.Check(w.begin())
}

// cmdAdvertisements checks that no link which the plugin made on the host believes router advertisements: a container
// could make itself the host's router. What arrives at a bridge's port is the bridge's.
func cmdAdvertisements(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	now, err := leak.Take("/nonexistent") // no files
	ts.Check(err)
	bridges := now.Without(func(line string) bool { return !strings.HasPrefix(line, "link bridge ") }) // one of an earlier ADD serves again
	for _, line := range append(now.Beyond(w.before.objects).Of("link"), bridges...) {
		words := strings.Fields(line)
		ts.Check(believes(words[len(words)-1]))
	}
}

// believes returns an error if a link believes router advertisements.
func believes(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil || link.Attrs().MasterIndex != 0 || sysctl(name, "disable_ipv6") == "1" {
		return err
	}
	accept, forwards := sysctl(name, "accept_ra"), sysctl(name, "forwarding")
	if accept == "2" || accept == "1" && forwards == "0" {
		return fmt.Errorf("the host's link %s believes router advertisements: accept_ra is %s, forwarding %s", name, accept, forwards)
	}
	return nil
}

// sysctl reads a value of IPv6. Without IPv6 it is empty.
func sysctl(link, key string) string {
	data, _ := os.ReadFile(filepath.Join("/proc/sys/net/ipv6/conf", link, key))
	return strings.TrimSpace(string(data))
}

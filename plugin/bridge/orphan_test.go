// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// A container comes back under its id right after a crash. The kernel deletes the links of the old
// namespace some time later. Here it never does, because a process has the namespace open. The old
// links do not block the new container.
func TestBackAfterACrash(t *testing.T) {
	for again, conf := range map[string]string{
		"/run/netns/elsewhere": dual,
		"/run/netns/crashed":   `"bridge": "tbr0", ` + endpointtest.Static("10.9.0.5/24"), // a path in /run/netns does not show the age of its namespace, so host-local waits for DEL
	} {
		t.Run(again, func(t *testing.T) {
			w := newWorld(t)
			p := w.Pod("crash", conf+`, "ipMasq": true`)
			p.Call.NetNS = "/run/netns/crashed"
			endpointtest.Must(t, netns.Create(p.Call.NetNS))
			endpointtest.Must(t, p.Do(spec.Add))
			held, err := netns.Open(p.Call.NetNS)
			endpointtest.Must(t, err)
			t.Cleanup(func() { held.Close() }) //nolint:errcheck // read only
			endpointtest.Must(t, netns.Delete(p.Call.NetNS))

			p.Call.NetNS = again
			endpointtest.Must(t, netns.Create(again))
			t.Cleanup(func() { endpointtest.Must(t, netns.Delete(again)) })
			first := p.IP(0)
			endpointtest.Must(t, p.Do(spec.Add))
			w.Want("address", p.IP(0), first)
			endpointtest.Must(t, p.Do(spec.Check))
			w.Fails(p.Do(spec.Add), "already exists") // the first container lives
			endpointtest.Must(t, p.Do(spec.Check))
			endpointtest.Must(t, p.Do(spec.Del))
			w.Gone(p.Result.Interfaces[atHost].Name)
		})
	}
}

// A container comes back right after a crash, its record is lost, and no process has the old
// namespace open. The kernel says that the old namespace is gone while its links still exist. They
// do not block the new container.
func TestBackAfterACrashWithoutARecord(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("lost", `"bridge": "tbr0", `+endpointtest.Static("10.9.0.5/24"))
	path := p.Call.NetNS
	for range 20 { // sometimes the kernel deletes the links before the ADD
		p.Call.NetNS = "/run/netns/lost-crashed"
		endpointtest.Must(t, netns.Create(p.Call.NetNS))
		endpointtest.Must(t, p.Do(spec.Add))
		w.LoseRecords()
		id := port(w, p).Attrs().NetNsID
		endpointtest.Must(t, netns.Delete(p.Call.NetNS))
		for end := time.Now().Add(time.Minute); w.HostConn().Lives(id); time.Sleep(time.Millisecond) { // the kernel closes the sockets later
			if time.Now().After(end) {
				t.Fatal("the namespace lives")
			}
		}
		p.Call.NetNS = path
		endpointtest.Must(t, p.Do(spec.Add))
		endpointtest.Must(t, p.Do(spec.Check))
		w.Fails(p.Do(spec.Add), "already exists")
		w.LoseRecords()
		w.Fails(p.Do(spec.Add), "already exists") // the first container lives
		endpointtest.Must(t, p.Do(spec.Del))
	}
}

// ending is a context in which a namespace ends as soon as a call waits.
type ending struct {
	context.Context
	end func()
}

func (e ending) Done() <-chan struct{} {
	e.end()
	return e.Context.Done()
}

// A container comes back while its old namespace is ending: the kernel still holds that namespace
// for the last of its sockets, here for an open file. The ADD waits for the kernel and gets the
// name.
func TestBackWhileTheNamespaceEnds(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("ends", `"bridge": "tbr0", `+endpointtest.Static("10.9.0.5/24"))
	path := p.Call.NetNS
	p.Call.NetNS = "/run/netns/ends-crashed"
	endpointtest.Must(t, netns.Create(p.Call.NetNS))
	endpointtest.Must(t, p.Do(spec.Add))
	w.LoseRecords()
	held, err := netns.Open(p.Call.NetNS)
	endpointtest.Must(t, err)
	t.Cleanup(func() { held.Close() }) //nolint:errcheck // read only
	endpointtest.Must(t, netns.Delete(p.Call.NetNS))
	p.Call.NetNS = path
	w.Fails(p.Do(spec.Add), "already exists") // the open file still holds the namespace
	waited := false
	ctx := ending{t.Context(), func() { waited = true; held.Close() }} //nolint:errcheck // read only
	endpointtest.Must(t, p.DoIn(ctx, spec.Add))
	if !waited {
		t.Error("the namespace had ended before")
	}
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, p.Do(spec.Del))
}

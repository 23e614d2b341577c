// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/spec"
)

// collect runs a GC as a runtime that is the process caller. more is its part of the configuration.
func collect(w *endpointtest.World, p *endpointtest.Pod, caller int, more string) {
	w.Helper()
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin, &hostlocal.Plugin})
		s.Caller = caller
		return s
	}}
	call := &spec.Call{Verb: spec.GC, Path: p.Call.Path, Config: []byte("{" + p.Conf + "," + more + "}")}
	_, err := b.Invoke(w.Context(), "bridge", call)
	endpointtest.Must(w, err)
}

// addressFile is the reservation of a pod's first address.
func addressFile(p *endpointtest.Pod) string {
	return filepath.Join("/var/lib/cni/networks/net", p.IP(0))
}

func exists(w *endpointtest.World, path string, want bool) {
	w.Helper()
	if _, err := os.Lstat(path); (err == nil) != want {
		w.Errorf("%s: %v, want it to exist: %v", path, err, want)
	}
}

const noneValid = `"cni.dev/valid-attachments": []`

// A GC that keeps an attachment keeps its address: otherwise another container gets it too.
func TestGCKeepsTheAddressOfWhatItKeeps(t *testing.T) {
	for name, more := range map[string]string{"with elements": `, "ipMasq": true`, "without": ""} {
		t.Run("records lost, "+name, func(t *testing.T) {
			w := newWorld(t)
			p := w.Pod("kept", dual+more).Add()
			w.LoseRecords()
			collect(w, p, 0, noneValid)
			port(w, p)
			exists(w, addressFile(p), true)
		})
	}
	t.Run("record torn, facts unreadable", func(t *testing.T) {
		w := newWorld(t)
		p := w.Pod("torn", dual+`, "ipMasq": true`).Add()
		torn, err := filepath.Glob("/run/patchbay/attachments/net/*.bridge")
		if err != nil || len(torn) != 1 {
			t.Fatal(torn, err)
		}
		endpointtest.Must(t, os.Truncate(torn[0], 0))
		endpointtest.Must(t, p.Conn().LinkSetDown(p.Link("eth0"))) // the pair does not show that the container lives
		endpointtest.Must(t, os.MkdirAll("/run/patchbay/shared", 0o700))
		endpointtest.Must(t, os.Chmod("/run/patchbay/shared", 0o777))
		collect(w, p, 0, noneValid)
		port(w, p)
		exists(w, addressFile(p), true)
		endpointtest.Must(t, os.Chmod("/run/patchbay/shared", 0o700))
		collect(w, p, 0, noneValid)
		w.Gone(p.Result.Interfaces[atHost].Name)
		exists(w, addressFile(p), false)
	})
}

// The reference attached a container, and no record of ours says by which runtime. Its address stays while
// the container has it.
func TestGCOfWhatTheReferenceMade(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("theirs", dual)
	p.Call.NetNS = "/run/netns/theirs-lives"
	endpointtest.Must(t, netns.Create(p.Call.NetNS))
	call := p.Call
	call.Verb, call.Path, call.Config = spec.Add, []string{reftest.Plugins(t)}, []byte("{"+p.Conf+"}")
	out, err := (&invoke.Exec{}).Run(t.Context(), filepath.Join(call.Path[0], "bridge"), &call)
	endpointtest.Must(t, err)
	p.Result, err = spec.ParseResult(out, "1.1.0")
	endpointtest.Must(t, err)
	collect(w, p, 0, noneValid)
	exists(w, addressFile(p), true)
	endpointtest.Must(t, netns.Delete(p.Call.NetNS))
	collect(w, p, 0, noneValid)
	exists(w, addressFile(p), false)
}

// runtime starts a process with another name than this one's, whose plugins' calls come from another runtime.
func runtime(w *endpointtest.World) (pid int) {
	w.Helper()
	sleep := exec.Command("sleep", "600")
	endpointtest.Must(w, sleep.Start())
	w.Cleanup(func() {
		sleep.Process.Kill() //nolint:errcheck // it may have ended
		sleep.Wait()         //nolint:errcheck // it was killed
	})
	return sleep.Process.Pid
}

// A runtime lists only its own attachments. Its GC keeps those of other runtimes on the same network while
// their namespaces exist.
func TestGCOfAnotherRuntime(t *testing.T) {
	for _, list := range []string{`"cni.dev/valid-attachments": null`, noneValid, `"cni.dev/valid-attachments": [{"containerID": "x", "ifname": "eth0"}]`} {
		t.Run(list, func(t *testing.T) {
			w := newWorld(t)
			other := runtime(w)
			p := w.Pod("blue", dual+`, "ipMasq": true`)
			p.Call.NetNS = "/run/netns/blue-of-another"
			endpointtest.Must(t, netns.Create(p.Call.NetNS))
			endpointtest.Must(t, p.Do(spec.Add))

			collect(w, p, other, list)
			if _, ok := port(w, p).(*netlink.Veth); !ok {
				t.Error("the port is no veth")
			}
			exists(w, addressFile(p), true)
			endpointtest.Must(t, p.Do(spec.Check))

			endpointtest.Must(t, netns.Delete(p.Call.NetNS))
			collect(w, p, other, list)
			w.Gone(p.Result.Interfaces[atHost].Name)
			exists(w, addressFile(p), false)
		})
	}
}

// A GC removes a living attachment that is not listed if its own runtime made it, or if the list has
// those of every runtime.
func TestGCOfItsOwnRuntime(t *testing.T) {
	for name, gc := range map[string]func(w *endpointtest.World, p *endpointtest.Pod){
		"own": func(w *endpointtest.World, p *endpointtest.Pod) { collect(w, p, 0, noneValid) },
		"everyone's": func(w *endpointtest.World, p *endpointtest.Pod) {
			collect(w, p, runtime(w), noneValid+`, "patchbay/everyones": true`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.Pod("red", dual+`, "ipMasq": true`).Add()
			gc(w, p)
			w.Gone(p.Result.Interfaces[atHost].Name)
			exists(w, addressFile(p), false)
		})
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { nettest.Main(m) }

const dual = `"bridge": "tbr0", "isDefaultGateway": true, "ipam": {"type": "host-local",
	"ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]}`

func newWorld(t *testing.T) *endpointtest.World {
	w := endpointtest.New(t, &bridge.Plugin, &hostlocal.Plugin)
	t.Cleanup(func() { w.Host.Delete("tbr0") })
	return w
}

// reference calls the reference plugin for a pod and returns its result.
func reference(t *testing.T, p *endpointtest.Pod, verb spec.Verb) {
	t.Helper()
	dir := reftest.Plugins(t)
	call := p.Call
	call.Verb, call.Path, call.Config = verb, []string{dir}, []byte("{"+p.Conf+"}")
	out, err := (&invoke.Exec{}).Run(t.Context(), filepath.Join(dir, "bridge"), &call)
	endpointtest.Must(t, err)
	if verb == spec.Add {
		p.Result, err = spec.ParseResult(out, "1.1.0")
		endpointtest.Must(t, err)
	}
}

// state lists the directories in which attachments leave files. host-local's index is among them
// while the network has addresses.
func state() []string {
	return []string{"/run/patchbay/attachments", "/run/patchbay/shared", "/var/lib/cni", "/run/cni"}
}

// We check and detach attachments that the reference made. Nothing is left, even if the
// namespace, the previous result or both are missing.
func TestSwapIn(t *testing.T) {
	for _, backend := range []string{"iptables", "nftables"} {
		for _, lost := range []string{"nothing", "result", "namespace"} {
			t.Run(backend+" without "+lost, func(t *testing.T) {
				nettest.Need(t, nettest.Program(map[string]string{"iptables": "iptables", "nftables": "nft"}[backend]))
				w := newWorld(t)
				warm := w.Pod("warm", fmt.Sprintf(`%s, "ipMasq": true, "ipMasqBackend": %q, "macspoofchk": true`, dual, backend))
				reference(t, warm, spec.Add) // makes what exists once for the network
				before := leak.Must(t, state()...)
				p := w.Pod("a", fmt.Sprintf(`%s, "ipMasq": true, "ipMasqBackend": %q, "macspoofchk": true`, dual, backend))
				reference(t, p, spec.Add)
				endpointtest.Must(t, p.Do(spec.Check))
				switch lost {
				case "result":
					p.Result = nil
				case "namespace":
					p.Call.NetNS = ""
					endpointtest.Must(t, p.Conn().LinkDel(p.Link("eth0")))
				}
				endpointtest.Must(t, p.Do(spec.Del))
				leak.NoLeaks(t, before, state()...)
				endpointtest.Must(t, warm.Do(spec.Check))
				endpointtest.Must(t, warm.Do(spec.Del))
			})
		}
	}
}

// The masquerade of an attachment of the reference is removed. CHECK reports this.
func TestSwapInLost(t *testing.T) {
	for backend, flush := range map[string][]string{
		"nftables": {"nft", "flush", "chain", "inet", "cni_plugins_masquerade", "masq_checks"},
		"iptables": {"iptables", "-t", "nat", "-F", "POSTROUTING"},
	} {
		t.Run(backend, func(t *testing.T) {
			nettest.Need(t, nettest.Program(flush[0]))
			w := newWorld(t)
			p := w.Pod("a", fmt.Sprintf(`%s, "ipMasq": true, "ipMasqBackend": %q`, dual, backend))
			reference(t, p, spec.Add)
			endpointtest.Must(t, p.Do(spec.Check))
			if out, err := exec.CommandContext(t.Context(), flush[0], flush[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := p.Do(spec.Check); err == nil || !strings.Contains(err.Error(), "masquerade is missing (attach it again") {
				t.Errorf("CHECK: %v", err)
			}
			endpointtest.Must(t, p.Do(spec.Del))
		})
	}
}

// The reference detaches our attachments. GC removes what the reference leaves, because the
// reference does not know it.
func TestSwapOut(t *testing.T) {
	w := newWorld(t)
	before := leak.Must(t, state()...)
	p := w.Pod("a", dual+`, "ipMasq": true`)
	endpointtest.Must(t, p.Do(spec.Add))
	reference(t, p, spec.Del)
	w.Gone(p.Result.Interfaces[1].Name)
	p.Conf += `, "cni.dev/valid-attachments": []`
	endpointtest.Must(t, p.Do(spec.GC))
	leak.NoLeaks(t, before, state()...)
}

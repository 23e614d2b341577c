// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package withplugin

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin/dhcp"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// reference is the reference's program, which is plugin and daemon.
func reference(t *testing.T) string {
	t.Helper()
	return filepath.Join(reftest.Plugins(t), "dhcp")
}

// resend lets the reference's daemon ask again sooner than after 10 s if a packet is lost, as on a busy
// machine.
const resend = "-timeout=2s"

// referenceDaemon starts the reference's daemon.
func referenceDaemon(t *testing.T, socket string) *dhcptest.Log {
	t.Helper()
	log := new(dhcptest.Log)
	cmd := exec.Command(reference(t), "daemon", resend, "-socketpath", socket)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the reference's daemon said:\n%s", log)
		}
	})
	dhcptest.Eventually(t, "the daemon listens", func() bool { _, err := os.Stat(socket); return err == nil })
	return log
}

const options = `"priority":5,"provide":[{"option":"host-name","fromArg":"NAME"},{"option":"user-class","value":"x"}],"request":[{"skipDefault":true},{"option":"subnet-mask"},{"option":"routers"},{"option":"121"}]`

// TestEitherWay pairs each plugin, the reference's and ours, with each keeper. All four pairs
// give the same result.
func TestEitherWay(t *testing.T) {
	dhcptest.LAN(t, "br0", "10.77.0.1/24")
	s := dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m",
		"--dhcp-option=option:classless-static-route,10.9.0.0/16,10.77.0.9,10.8.0.0/16,0.0.0.0,0.0.0.0/0,10.77.0.1")
	ns := nettest.NewNS(t, "c1")
	dhcptest.Plug(t, "br0", ns)
	if err := os.MkdirAll("/run/cni", 0o700); err != nil {
		t.Fatal(err)
	}
	sockets := map[string]string{"the reference's": "/run/cni/theirs.sock", "our": "/run/cni/ours.sock"}
	referenceDaemon(t, sockets["the reference's"])
	dhcptest.Serve(t, sockets["our"])
	dirs := map[string]string{"the reference's": filepath.Dir(reference(t)), "our": plugintest.Install(t, &dhcp.Plugin)}
	var first map[string]any
	for plugin, dir := range dirs {
		for keeper, socket := range sockets {
			name := plugin + " plugin with " + keeper + " keeper"
			call := &spec.Call{Verb: spec.Add, ContainerID: "c1", NetNS: ns, IfName: "eth0", Path: []string{dir}, Args: "NAME=web;IgnoreUnknown=1",
				Config: []byte(`{"cniVersion":"1.0.0","name":"net","type":"x","ipam":{"type":"dhcp","daemonSocketPath":"` + socket + `",` + options + `}}`)}
			got := life(t, name, call)
			if first == nil {
				first = got
			}
			if !reflect.DeepEqual(got, first) {
				t.Errorf("%s: %v, others %v", name, got, first)
			}
		}
	}
	// The reference's daemon releases from the address 0.0.0.0, and Linux drops those packets.
	dhcptest.Eventually(t, "our keeper's two releases", func() bool { return s.Count("DHCPRELEASE") == 2 })
	if n := s.Count("client provides name: web"); n < 8 {
		t.Errorf("%d of 8 requests with the name", n)
	}
}

// life runs ADD, CHECK and two DELs by exec, and returns the result of ADD.
func life(t *testing.T, name string, c *spec.Call) (result map[string]any) {
	t.Helper()
	for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Del, spec.Del} {
		call := *c
		call.Verb = verb
		out, err := (&invoke.Exec{}).Invoke(t.Context(), "dhcp", &call)
		if err != nil {
			t.Fatalf("%s: %s: %v", name, verb, err)
		}
		if verb == spec.Add {
			if err := json.Unmarshal(out, &result); err != nil {
				t.Fatalf("%s: %v: %s", name, err, out)
			}
		}
	}
	return result
}

// The reference's daemon would ignore a key. So the plugin refuses the call.
func TestReferenceDaemonKnowsNoV6(t *testing.T) {
	referenceDaemon(t, "/run/theirs.sock")
	n := newNode(t)
	const conf = `"daemonSocketPath":"/run/theirs.sock","dhcpv6":true`
	if _, err := n.call(spec.Add, n.ns, n.conf(conf, "")); spec.ErrorCode(err) != spec.CodeUnsupportedField {
		t.Error(err)
	}
	if _, err := n.call(spec.Status, "", n.conf(conf, "")); spec.ErrorCode(err) != spec.CodeNotAvailable {
		t.Error(err)
	}
	if _, err := n.call(spec.GC, "", n.conf(conf, `,"cni.dev/valid-attachments":[]`)); err != nil {
		t.Error(err)
	}
}

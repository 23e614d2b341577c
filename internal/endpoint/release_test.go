// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/plugin/macvlan"
	"github.com/patchbay-net/patchbay/plugin/portmap"
	"github.com/patchbay-net/patchbay/spec"
)

// Each plugin of a chain runs in a process. The DEL of portmap does not wait until its elements have
// expired, because the DEL of bridge follows. The IPAM plugin, which gives the address back, still
// finds none: not if the link is gone already and bridge is fast, and not if the address goes first.
func TestAddressAfterElements(t *testing.T) {
	for _, ipam := range []string{"host-local", "giver"} {
		t.Run(ipam, func(t *testing.T) { addressAfterElements(t, ipam) })
	}
}

func addressAfterElements(t *testing.T, ipam string) {
	var left []nftables.SetElement
	giver := plugin.Plugin{
		Name: ipam, Kind: plugin.IPAM,
		Add: func(context.Context, *plugin.Request) (*spec.Result, error) {
			return &spec.Result{IPs: []spec.IPConfig{{Address: netip.MustParsePrefix("10.9.0.5/24")}}}, nil
		},
		Del: func(context.Context, *plugin.Request) (err error) {
			left, err = published()
			return err
		},
	}
	plugins := []*plugin.Plugin{&bridge.Plugin, &portmap.Plugin, &giver}
	w := endpointtest.New(t, plugins...)
	t.Cleanup(func() { w.Host.Delete("tbr0") })
	ports := plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession(plugins) }}
	p := w.Pod("a", fmt.Sprintf(`"bridge": "tbr0", "isGateway": true, "ipam": {"type": %q}`, ipam))
	for range 20 {
		endpointtest.Must(t, p.Do(spec.Add))
		call := p.Call
		call.Verb, call.Config = spec.Add, publishing(t, p.Result)
		_, err := ports.Invoke(t.Context(), "portmap", &call)
		endpointtest.Must(t, err)
		p.Delete("eth0")
		call.Verb = spec.Del
		_, err = ports.Invoke(t.Context(), "portmap", &call)
		endpointtest.Must(t, err)
		if records, err := filepath.Glob("/run/patchbay/attachments/net/*.portmap"); err != nil || len(records) > 0 {
			t.Errorf("left: %v, %v", records, err)
		}
		endpointtest.Must(t, p.Do(spec.Del))
		if len(left) > 0 {
			t.Fatalf("when the address is released, %d ports still lead to it", len(left))
		}
	}
}

// Between ADD and DEL portmap leaves the network's list. The DEL of the plugin that made the link removes the
// port first. As long as it cannot, the address stays reserved, also for GC.
func TestPortBeforeAddress(t *testing.T) {
	for _, main := range []*plugin.Plugin{&bridge.Plugin, &macvlan.Plugin} {
		for _, verb := range []spec.Verb{spec.Del, spec.GC} {
			t.Run(main.Name+" "+string(verb), func(t *testing.T) { portBeforeAddress(t, main, verb) })
		}
	}
}

func portBeforeAddress(t *testing.T, main *plugin.Plugin, verb spec.Verb) {
	left := -1
	released := func(_ context.Context, r *plugin.Request) error {
		if keep, listed := r.Valid(); listed && keep("a", "eth0") {
			return nil
		}
		elems, err := published()
		left = len(elems)
		return err
	}
	giver := plugin.Plugin{
		Name: "host-local", Kind: plugin.IPAM, Del: released, GC: released,
		Add: func(context.Context, *plugin.Request) (*spec.Result, error) {
			return &spec.Result{IPs: []spec.IPConfig{{Address: netip.MustParsePrefix("10.9.0.5/24")}}}, nil
		},
	}
	plugins := []*plugin.Plugin{main, &portmap.Plugin, &giver}
	w := endpointtest.New(t, plugins...)
	t.Cleanup(func() { w.Host.Delete("tbr0") })
	w.Master("up0")
	p := w.Pod("a", `"bridge": "tbr0", "master": "up0", "ipam": {"type": "host-local"}`)
	endpointtest.Must(t, p.Do(spec.Add))
	call := p.Call
	call.Verb, call.Config = spec.Add, publishing(t, p.Result)
	ports := plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession(plugins) }}
	_, err := ports.Invoke(t.Context(), "portmap", &call)
	endpointtest.Must(t, err)
	schema := "map inet patchbay schema; add element inet patchbay schema { 0 : %d }"
	if verb == spec.GC {
		p.Conf += `, "cni.dev/valid-attachments": []`
	}
	nftTool(t, fmt.Sprintf("flush "+schema, nft.Schema()+1)) // only a newer patchbay may remove elements
	if err := p.Do(verb); err == nil || left >= 0 {
		t.Errorf("the port stays, and the address went with %d ports: %v", left, err)
	}
	nftTool(t, fmt.Sprintf("flush "+schema, nft.Schema()))
	endpointtest.Must(t, p.Do(verb))
	if left != 0 {
		t.Errorf("when the address is released, %d ports still lead to it", left)
	}
	if records, err := filepath.Glob("/run/patchbay/attachments/net/*"); err != nil || len(records) > 0 {
		t.Errorf("left: %v, %v", records, err)
	}
}

func nftTool(t *testing.T, command string) {
	t.Helper()
	nettest.Need(t, nettest.Program("nft"))
	if out, err := exec.Command("nft", command).CombinedOutput(); err != nil {
		t.Fatalf("nft %s: %v\n%s", command, err, out)
	}
}

// published lists the published ports, also those that are about to expire.
func published() ([]nftables.SetElement, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: nft.TableName}
	set, err := conn.GetSetByName(table, nft.SetPorts4)
	if err != nil {
		return nil, err
	}
	return conn.GetSetElements(set)
}

// publishing is a configuration of portmap with one port.
func publishing(t *testing.T, prev *spec.Result) []byte {
	t.Helper()
	data, err := prev.Encode("1.1.0")
	endpointtest.Must(t, err)
	return fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "net", "type": "portmap", "prevResult": %s,
		"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}`, data)
}

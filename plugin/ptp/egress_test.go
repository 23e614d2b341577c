// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

const egress4, egress6 = "192.0.2.77", "2001:db8:1::77"

// note writes a namespace's file of egress addresses, as the agent of a Kubernetes node does.
func note(t *testing.T, namespace string, use ...string) {
	t.Helper()
	e := record.Egress{Schema: record.EgressSchema, Wanted: strings.Join(use, ", ")}
	for _, a := range use {
		e.Use = append(e.Use, netip.MustParseAddr(a))
	}
	data, err := json.Marshal(e)
	endpointtest.Must(t, err)
	noteText(t, namespace, string(data))
}

func noteText(t *testing.T, namespace, text string) {
	t.Helper()
	dir := record.EgressDir(paths.Default())
	endpointtest.Must(t, os.MkdirAll(dir, 0o700))
	path := filepath.Join(dir, namespace)
	endpointtest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	t.Cleanup(func() { os.Remove(path) })
}

// Packets of a pod that leave the node have the egress address of its namespace as their source.
// Packets to other pods, and packets of pods in other namespaces, do not.
func TestEgress(t *testing.T) {
	w := newWorld(t)
	w.Host.Address("lo", egress4+"/32", egress6+"/128") // on the uplink the kernel may prefer the newer one for everything
	w.Router.Route(egress6+"/128", node.Uplink6)
	note(t, "shop", egress4, egress6)
	note(t, "four", egress4)
	pod := func(name, namespace string) *endpointtest.Pod {
		p := w.Pod(name, dual+`, "ipMasq": true`)
		p.Call.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=" + name
		return p.Add()
	}
	shop, four, other := pod("shop", "shop"), pod("four", "four"), pod("other", "other")
	for n, outside := range []string{node.Client4, node.Client6} {
		usual, own := []string{node.Uplink4, node.Uplink6}[n], []string{egress4, egress6}[n]
		at := endpointtest.Join(outside, "80")
		for _, network := range []string{"tcp", "udp"} {
			w.Client.Serve(network, at)
			other.Serve(network, endpointtest.Join(other.IP(n), "80"))
			w.Want("the namespace with both", shop.Ask(network, at), "client "+own)
			w.Want("the namespace with one", four.Ask(network, at), "client "+[]string{egress4, usual}[n])
			w.Want("a namespace without", other.Ask(network, at), "client "+usual)
			w.Want("towards a pod", shop.Ask(network, endpointtest.Join(other.IP(n), "80")), "other "+shop.IP(n))
		}
	}
	note(t, "shop", "192.0.2.78") // the agent is about to change the pod
	endpointtest.Must(t, shop.Do(spec.Check))
	if n := len(egresses(t)); n != 3 {
		t.Errorf("%d elements", n)
	}
	removeEgress(t, shop.IP(0))
	w.Fails(shop.Do(spec.Check), "egress address is missing (run patchbay repair); egress4 { "+shop.IP(0)+" : "+egress4)
	endpointtest.Must(t, four.Do(spec.Del))
	endpointtest.Must(t, shop.Do(spec.Del))
	if left := egresses(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A DEL without a record finds the egress element, whichever address it has.
func TestEgressRecordLost(t *testing.T) {
	w := newWorld(t)
	note(t, "shop", egress4, egress6)
	p := w.Pod("a", dual+`, "ipMasq": true`)
	p.Call.Args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=a"
	p.Add()
	w.LoseRecords()
	if n := len(egresses(t)); n != 2 {
		t.Errorf("%d elements", n)
	}
	endpointtest.Must(t, p.Do(spec.Del))
	if left := egresses(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A pod starts even if its namespace's file cannot be read. Its packets then leave with the node's
// usual address.
func TestEgressTorn(t *testing.T) {
	w := newWorld(t)
	for namespace, text := range map[string]string{"torn": `{"schema": 1, "use": ["192.0`, "newer": `{"schema": 2, "use": ["192.0.2.77"]}`, "wrong": `{"schema": 1, "use": ["x"]}`} {
		noteText(t, namespace, text)
		p := w.Pod(namespace, dual+`, "ipMasq": true`)
		p.Call.Args = "K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=a"
		p.Add()
	}
	if list := egresses(t); len(list) > 0 {
		t.Errorf("%v", list)
	}
}

// egresses lists the elements of all pods.
func egresses(t *testing.T) (list []nft.Element) {
	t.Helper()
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // a test
	for _, set := range []string{nft.SetEgress4, nft.SetEgress6} {
		elems, err := fw.List(set)
		endpointtest.Must(t, err)
		list = append(list, elems...)
	}
	return list
}

// removeEgress removes an element, as another program might.
func removeEgress(t *testing.T, address string) {
	t.Helper()
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // a test
	for _, e := range egresses(t) {
		if a, ok := e.Container(); ok && a == netip.MustParseAddr(address) {
			fw.Remove(e)
		}
	}
	endpointtest.Must(t, fw.Commit(t.Context()))
}

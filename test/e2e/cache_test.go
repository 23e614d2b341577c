// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// TestCache lets libcni and our runtime library take over from each other on a live node. Each
// reads the other's cache, and checks and detaches the other's attachments. For the same call
// both write the same file.
func TestCache(t *testing.T) {
	onNode(t, func(t *testing.T) {
		for _, v := range specVersions {
			t.Run(v, func(t *testing.T) { takeOver(t, newNetwork(t, "bridge", v)) })
		}
	})
}

// takeOver attaches one pod with each library and detaches it with the other.
func takeOver(t *testing.T, n *network) {
	c := call(t, plugins())
	warm(c, n)
	noAddresses(t)
	before := leak.Must(t)
	list, err := chain.ParseList(n.list.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	rt := chain.New(chain.WithPath(plugins()), chain.WithWarn(func(err error) { t.Errorf("our runtime library warns: %v", err) }))

	p := newPod(t, "one", 18080)
	conf := p.runtimeConf()
	res, err := c.cni.AddNetworkList(context.Background(), n.list, conf)
	if err != nil {
		t.Fatal(err)
	}
	theirs := cached(t, n, p)
	oursReadsTheirs(t, rt, n, p, conf)
	if atLeast(n.version, "0.4.0") {
		if err := rt.Check(context.Background(), list, chain.Attachment{ContainerID: p.id, NetNS: nsPath(p.id), IfName: p.ifname}); err != nil {
			t.Errorf("our CHECK of what libcni attached: %v", err)
		}
	}
	if err := rt.DelCached(context.Background(), n.name, chain.Attachment{ContainerID: p.id, NetNS: nsPath(p.id), IfName: p.ifname}); err != nil {
		t.Errorf("our DEL of what libcni attached: %v", err)
	}
	leak.NoLeaks(t, before)
	noAddresses(t)

	if _, err := rt.Add(context.Background(), list, attachment(conf)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(comparableCache(t, theirs), comparableCache(t, cached(t, n, p))); d != "" {
		t.Errorf("cache file (-libcni +ours):\n%s", d)
	}
	if info, err := os.Stat(cacheFile(n, p)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("cache file: %v, %v; want mode 0600", info.Mode(), err)
	}
	theyReadOurs(t, c, n, p, conf, res.Version())
	c.check(n, p)
	c.del(n, p)
	leak.NoLeaks(t, before)
}

// noAddresses deletes the reservations, so that the next pod gets the first address.
func noAddresses(t *testing.T) {
	t.Helper()
	if err := os.RemoveAll("/var/lib/cni/networks"); err != nil {
		t.Fatal(err)
	}
}

// attachment is libcni's RuntimeConf in our library's type.
func attachment(c *libcni.RuntimeConf) chain.Attachment {
	return chain.Attachment{ContainerID: c.ContainerID, NetNS: c.NetNS, IfName: c.IfName, Args: c.Args, Capabilities: c.CapabilityArgs}
}

// oursReadsTheirs compares what our library reads from the cache with what libcni got.
func oursReadsTheirs(t *testing.T, rt *chain.Runtime, n *network, p *pod, conf *libcni.RuntimeConf) {
	t.Helper()
	all, err := rt.Attachments("")
	if err != nil || len(all) != 1 {
		t.Fatalf("our library finds %d attachments in libcni's cache: %v", len(all), err)
	}
	got := all[0]
	if got.Network != n.name || !cmp.Equal(generic(t, got.Attachment), generic(t, attachment(conf))) {
		t.Errorf("our library reads another attachment (-given +read):\n%s", cmp.Diff(generic(t, attachment(conf)), generic(t, got.Attachment)))
	}
	if got.Result == nil || len(got.Result.IPs) != 2 {
		t.Errorf("our library reads the result %+v, want two addresses", got.Result)
	}
}

// theyReadOurs compares what libcni reads from the cache with what our library got.
func theyReadOurs(t *testing.T, c *caller, n *network, p *pod, conf *libcni.RuntimeConf, version string) {
	t.Helper()
	all, err := c.cni.GetCachedAttachments("")
	if err != nil || len(all) != 1 {
		t.Fatalf("libcni finds %d attachments in our cache: %v", len(all), err)
	}
	if a := all[0]; a.Network != n.name || a.ContainerID != p.id || a.IfName != p.ifname || a.NetNS != nsPath(p.id) || !slices.Equal(a.CniArgs, conf.Args) {
		t.Errorf("libcni reads another attachment: %+v", a)
	}
	res, err := c.cni.GetNetworkListCachedResult(n.list, conf)
	if err != nil || res == nil {
		t.Fatalf("libcni reads no result from our cache: %v", err)
	}
	if r, err := types100.NewResultFromResult(res); err != nil || len(r.IPs) != 2 || res.Version() != version {
		t.Errorf("libcni reads the result %+v of version %s: %v", r, res.Version(), err)
	}
	raw, back, err := c.cni.GetNetworkListCachedConfig(n.list, conf)
	if err != nil || string(raw) != string(n.list.Bytes) {
		t.Errorf("libcni reads another configuration: %v: %s", err, raw)
	}
	if !cmp.Equal(generic(t, back.CapabilityArgs), generic(t, conf.CapabilityArgs)) {
		t.Error("libcni reads other capability arguments")
	}
}

// cacheFile is the file in which both libraries keep an attachment.
func cacheFile(n *network, p *pod) string {
	return filepath.Join("/var/lib/cni/results", n.name+"-"+p.id+"-"+p.ifname)
}

// cached reads an attachment's cache file.
func cached(t *testing.T, n *network, p *pod) []byte {
	t.Helper()
	raw, err := os.ReadFile(cacheFile(n, p))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// comparableCache is a cache file as generic JSON, with the result's random parts made
// equal.
func comparableCache(t *testing.T, raw []byte) any {
	t.Helper()
	var v object
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("cache file: %v: %s", err, raw)
	}
	result, ok := v["result"].(object)
	if !ok {
		t.Fatalf("cache file without result: %s", raw)
	}
	v["result"] = comparableResult(result)
	return v
}

// generic returns a value after a round trip through JSON, so that numbers of different Go types
// are equal.
func generic(t *testing.T, v any) any {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

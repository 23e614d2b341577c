// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/spec"
)

// libcni returns a libcni runtime that uses the same plugins and the same cache.
func (b *bench) libcni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(b.Path, b.CacheDir, nil)
}

func runtimeConf(a chain.Attachment) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Args: a.Args, CapabilityArgs: a.Capabilities}
}

// rich uses everything in a configuration that a runtime handles when it builds a request.
const rich = `{"cniVersion":"%s","name":"net","plugins":[
	{"type":"rec1","name":"own","capabilities":{"ips":true,"mac":false,"dns":true},"ipam":{"type":"x","a":[1,2.5,null]},"dns":{},"args":{"cni":{"k":"v"}}},
	{"type":"rec2","capabilities":{"portMappings":true},"x-unknown":"<&>é"},
	{"type":"rec3","runtimeConfig":{"from":"file"}}]}`

var richAttachment = chain.Attachment{
	ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0",
	Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "p"}},
	Capabilities: map[string]any{
		"ips": []string{"10.0.0.9/24"}, "mac": "02:00:00:00:00:01",
		"portMappings": []map[string]any{{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}},
	},
}

// TestSameRequestsAsLibcni runs every verb with libcni and with us. It compares environment and
// standard input of every call.
func TestSameRequestsAsLibcni(t *testing.T) {
	for _, version := range versions(t) {
		t.Run(version, func(t *testing.T) {
			data := []byte(fmt.Sprintf(rich, version))
			ours, theirs := newBench(t), newBench(t)
			theirs.Path = ours.Path
			ourVerbs(t, ours, data)
			got := normal(t, ours.callsOf(ours.log))
			libcniVerbs(t, theirs, data)
			want := normal(t, theirs.callsOf(theirs.log))
			if !reflect.DeepEqual(got, want) {
				for i := range want {
					if i < len(got) && !reflect.DeepEqual(got[i], want[i]) {
						t.Errorf("call %d:\nours   %v\nlibcni %v", i, got[i], want[i])
					}
				}
				t.Errorf("%d calls by us, %d by libcni", len(got), len(want))
			}
		})
	}
}

func (b *bench) callsOf(log string) []record {
	b.log = log
	return b.calls()
}

func ourVerbs(t *testing.T, b *bench, data []byte) {
	t.Helper()
	t.Setenv("RECORD", b.log)
	list := mustList(t, string(data))
	_, err := b.Add(t.Context(), list, richAttachment)
	check := error(nil)
	if spec.AtLeast(list.CNIVersion, "0.4.0") {
		check = b.Check(t.Context(), list, richAttachment)
	}
	keep := chain.Keep{List: list, Valid: []spec.AttachmentKey{{ContainerID: "c1", IfName: "eth0"}}}
	for _, err := range []error{err, check, b.Status(t.Context(), list), b.GC(t.Context(), keep), b.Del(t.Context(), list, richAttachment)} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func libcniVerbs(t *testing.T, b *bench, data []byte) {
	t.Helper()
	t.Setenv("RECORD", b.log)
	c, rt := b.libcni(), runtimeConf(richAttachment)
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.AddNetworkList(t.Context(), list, rt)
	check := error(nil)
	if spec.AtLeast(list.CNIVersion, "0.4.0") {
		check = c.CheckNetworkList(t.Context(), list, rt)
	}
	gc := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}
	for _, err := range []error{err, check, c.GetStatusNetworkList(t.Context(), list), c.GCNetworkList(t.Context(), list, gc), c.DelNetworkList(t.Context(), list, rt)} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// normal decodes standard input and removes "capabilities", the one intended difference in a
// usual configuration. We remove this key before the call, as the specification requires; libcni
// does not. docs/libcni.md lists the other differences.
func normal(t *testing.T, calls []record) (out []any) {
	t.Helper()
	for _, c := range calls {
		var in map[string]any
		if err := json.Unmarshal(c.Stdin, &in); err != nil {
			t.Fatal(err)
		}
		delete(in, "capabilities")
		delete(in, clock.ListedKey) // libcni does not send the time at which it made the list
		out = append(out, []any{c.Plugin, c.Verb, c.Env, in})
	}
	return out
}

// TestRemovedFromRequests lists the keys that libcni passes to plugins and that we remove.
func TestRemovedFromRequests(t *testing.T) {
	b := newBench(t)
	data := []byte(`{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1","capabilities":{"ips":true},
		"prevResult":{"cniVersion":"1.1.0"},"CNIVERSION":"0.1.0","Name":"mine","cni.dev/attachments":[],"cni.dev/other":1,"kept":true}]}`)
	if _, err := b.Add(t.Context(), mustList(t, string(data)), attachment); err != nil {
		t.Fatal(err)
	}
	if got, want := string(b.calls()[0].Stdin), `{"cniVersion":"1.1.0","kept":true,"name":"net","type":"rec1"}`; got != want {
		t.Errorf("ours   %s\nwant   %s", got, want)
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.libcni().AddNetworkList(t.Context(), list, runtimeConf(attachment)); err != nil {
		t.Fatal(err)
	}
	in := string(b.calls()[0].Stdin)
	for _, key := range []string{"capabilities", "prevResult", "CNIVERSION", "Name", "cni.dev/attachments", "cni.dev/other"} {
		if !strings.Contains(in, `"`+key+`"`) {
			t.Errorf("libcni removes %s too: take it off the list of differences", key)
		}
	}
}

// Large numbers reach the plugin unchanged; libcni turns them into floats.
func TestNumbersStay(t *testing.T) {
	b := newBench(t)
	if _, err := b.Add(t.Context(), mustList(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1","n":9007199254740993}]}`), attachment); err != nil {
		t.Fatal(err)
	}
	if in := string(b.calls()[0].Stdin); !strings.Contains(in, `"n":9007199254740993`) {
		t.Errorf("stdin is %s", in)
	}
}

// TestCacheIsLibcnis attaches with us; libcni then reads our cache and detaches.
func TestCacheIsLibcnis(t *testing.T) {
	for _, version := range versions(t) {
		b := newBench(t)
		data := []byte(fmt.Sprintf(rich, version))
		result, err := b.Add(t.Context(), mustList(t, string(data)), richAttachment)
		if err != nil {
			t.Fatal(version, err)
		}
		list, err := libcni.NetworkConfFromBytes(data)
		if err != nil {
			t.Fatal(version, err)
		}
		sameResult(t, b, list, result)
		sameAttachments(t, b, data)
		modes(t, b)
		if err := b.libcni().DelNetworkList(t.Context(), list, runtimeConf(richAttachment)); err != nil {
			t.Fatal(version, err)
		}
		if got := b.cached(); got != "" {
			t.Errorf("%s: libcni's DEL leaves %q", version, got)
		}
	}
}

func sameResult(t *testing.T, b *bench, list *libcni.NetworkConfigList, ours *spec.Result) {
	t.Helper()
	theirs, err := b.libcni().GetNetworkListCachedResult(list, runtimeConf(richAttachment))
	if err != nil || theirs == nil {
		t.Fatal(list.CNIVersion, theirs, err)
	}
	newest, err := types100.GetResult(theirs)
	if err != nil {
		t.Fatal(err)
	}
	if len(newest.IPs) != len(ours.IPs) || newest.IPs[0].Address.String() != ours.IPs[0].Address.String() {
		t.Errorf("%s: libcni reads %+v, we wrote %+v", list.CNIVersion, newest, ours)
	}
	config, rt, err := b.libcni().GetNetworkListCachedConfig(list, runtimeConf(attachment))
	if err != nil || string(config) != string(list.Bytes) || !reflect.DeepEqual(rt.Args, richAttachment.Args) {
		t.Errorf("%s: cached configuration %s, %+v, %v", list.CNIVersion, config, rt, err)
	}
}

func sameAttachments(t *testing.T, b *bench, data []byte) {
	t.Helper()
	theirs, err := b.libcni().GetCachedAttachments("c1")
	if err != nil || len(theirs) != 1 {
		t.Fatal(theirs, err)
	}
	ours, err := b.Attachments("c1")
	if err != nil || len(ours) != 1 {
		t.Fatal(ours, err)
	}
	a, o := theirs[0], ours[0]
	same := a.Network == o.Network && a.ContainerID == o.ContainerID && a.IfName == o.IfName && a.NetNS == o.NetNS &&
		reflect.DeepEqual(a.CniArgs, o.Args) && reflect.DeepEqual(a.CapabilityArgs, o.Capabilities) && string(a.Config) == string(o.Config)
	if !same || string(o.Config) != string(data) {
		t.Errorf("libcni reads %+v\nwe read %+v", a, o)
	}
}

func modes(t *testing.T, b *bench) {
	t.Helper()
	dir := filepath.Join(b.CacheDir, "results")
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "net-c1-eth0"): 0o600} {
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, fi.Mode(), err)
		}
	}
	entries, err := os.ReadDir(b.CacheDir)
	if err != nil || len(entries) != 1 {
		t.Errorf("beside results: %v, %v", entries, err)
	}
}

// TestLibcnisCacheIsOurs attaches with libcni; we then read its cache and detach.
func TestLibcnisCacheIsOurs(t *testing.T) {
	for _, version := range versions(t) {
		b := newBench(t)
		data := []byte(fmt.Sprintf(rich, version))
		list, err := libcni.NetworkConfFromBytes(data)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.libcni().AddNetworkList(t.Context(), list, runtimeConf(richAttachment)); err != nil {
			t.Fatal(err)
		}
		sameAttachments(t, b, data)
		b.calls()
		if err := b.DelCached(t.Context(), "net", chain.Attachment{ContainerID: "c1", IfName: "eth0"}); err != nil {
			t.Fatal(version, err)
		}
		if hasPrev := strings.Contains(string(b.calls()[0].Stdin), "prevResult"); hasPrev != spec.AtLeast(version, "0.4.0") {
			t.Errorf("%s: DEL with previous result: %v", version, hasPrev)
		}
		if got := b.cached(); got != "" {
			t.Errorf("%s: our DEL leaves %q", version, got)
		}
	}
}

// The test uses broken cached results as power losses and old runtimes leave them.
func TestCacheTolerance(t *testing.T) {
	tests := []struct {
		about, data string
		prev        bool // DEL still has a previous result
		broken      bool
	}{
		{"empty", "", false, true},
		{"truncated", `{"kind":"cniCacheV1","containerId":"c`, false, true},
		{"zeroes", "\x00\x00\x00\x00", false, true},
		{"another attachment's", `{"kind":"cniCacheV1","containerId":"other","ifName":"eth0","networkName":"net","result":{"cniVersion":"1.1.0"}}`, false, true},
		{"nobody's", `{"kind":"cniCacheV1"}`, false, true},
		{"a result that is none", `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","result":{"cniVersion":"9"}}`, false, true},
		{"no result", `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net"}`, false, false},
		{"the bare result of old libcni", `{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}],"dns":{}}`, true, false},
		{"the bare result of older libcni", `{"ip4":{"ip":"10.0.0.2/24"}}`, true, false},
	}
	for _, test := range tests {
		t.Run(test.about, func(t *testing.T) {
			b := newBench(t)
			writeFiles(t, b.CacheDir, map[string]string{"results/net-c1-eth0": test.data})
			list := mustList(t, three)
			check := b.Check(t.Context(), list, attachment)
			if test.broken != (check != nil) {
				t.Errorf("CHECK: %v", check)
			}
			_, err := b.Attachments("")
			if wrong := test.broken && test.about != "another attachment's" && err == nil; wrong {
				t.Error("the list does not report it")
			}
			keep := chain.Keep{List: list, Valid: []spec.AttachmentKey{{ContainerID: "c1", IfName: "eth0"}, {ContainerID: "other", IfName: "eth0"}}}
			if err := b.GC(t.Context(), keep); err != nil {
				t.Errorf("GC: %v", err)
			}
			b.calls()
			b.warned = nil
			if err := b.Del(t.Context(), list, attachment); err != nil {
				t.Errorf("DEL: %v", err)
			}
			calls := b.calls()
			if got := order(calls); got != "DEL rec3, DEL rec2, DEL rec1" {
				t.Errorf("calls: %s", got)
			}
			if got := strings.Contains(string(calls[0].Stdin), "prevResult"); got != test.prev {
				t.Errorf("DEL with previous result: %v", got)
			}
			if test.broken != (len(b.warned) > 0) {
				t.Errorf("warned: %v", b.warned)
			}
			other := test.about == "another attachment's"
			if got := b.cached(); (got != "") != other {
				t.Errorf("cached after DEL: %q", got)
			}
			if _, err := b.Add(t.Context(), list, attachment); err != nil {
				t.Errorf("ADD: %v", err)
			}
		})
	}
}

// Another user plants a symbolic link in place of a cached result. We do not follow it.
func TestCacheFollowsNoLink(t *testing.T) {
	b := newBench(t)
	secret := filepath.Join(b.CacheDir, "secret")
	writeFiles(t, b.CacheDir, map[string]string{"secret": "precious", "results/x": "{}"})
	if err := os.Symlink(secret, filepath.Join(b.CacheDir, "results", "net-c1-eth0")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Add(t.Context(), mustList(t, three), attachment); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "precious" {
		t.Errorf("the file behind the link: %q, %v", data, err)
	}
}

func FuzzCache(f *testing.F) {
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","result":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8"}]}}`))
	f.Add([]byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		rt := &chain.Runtime{CacheDir: dir, RunDir: dir}
		writeFiles(t, dir, map[string]string{"results/net-c1-eth0": string(data)})
		c, err := rt.Cached("net", attachment)
		if err == nil && (c.Network != "net" || c.ContainerID != "c1") {
			t.Fatalf("%+v", c)
		}
		if _, err := rt.Attachments(""); err == nil && len(data) == 0 {
			t.Fatal("an empty file goes unnoticed")
		}
	})
}

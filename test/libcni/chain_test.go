// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package libcni_test

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
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

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
	for _, version := range chaintest.Versions(t) {
		t.Run(version, func(t *testing.T) {
			data := []byte(fmt.Sprintf(rich, version))
			ours, theirs := newBench(t), newBench(t)
			theirs.Path = ours.Path
			ourVerbs(t, ours, data)
			got := normal(t, ours.callsOf(ours.Log))
			libcniVerbs(t, theirs, data)
			want := normal(t, theirs.callsOf(theirs.Log))
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

func (b *bench) callsOf(log string) []chaintest.Call {
	b.Log = log
	return b.Calls()
}

func ourVerbs(t *testing.T, b *bench, data []byte) {
	t.Helper()
	t.Setenv("RECORD", b.Log)
	list := chaintest.List(t, string(data))
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
	t.Setenv("RECORD", b.Log)
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
func normal(t *testing.T, calls []chaintest.Call) (out []any) {
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
	if _, err := b.Add(t.Context(), chaintest.List(t, string(data)), attachment); err != nil {
		t.Fatal(err)
	}
	if got, want := string(b.Calls()[0].Stdin), `{"cniVersion":"1.1.0","kept":true,"name":"net","type":"rec1"}`; got != want {
		t.Errorf("ours   %s\nwant   %s", got, want)
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.libcni().AddNetworkList(t.Context(), list, runtimeConf(attachment)); err != nil {
		t.Fatal(err)
	}
	in := string(b.Calls()[0].Stdin)
	for _, key := range []string{"capabilities", "prevResult", "CNIVERSION", "Name", "cni.dev/attachments", "cni.dev/other"} {
		if !strings.Contains(in, `"`+key+`"`) {
			t.Errorf("libcni removes %s too: take it off the list of differences", key)
		}
	}
}

// TestCacheIsLibcnis attaches with us; libcni then reads our cache and detaches.
func TestCacheIsLibcnis(t *testing.T) {
	for _, version := range chaintest.Versions(t) {
		b := newBench(t)
		data := []byte(fmt.Sprintf(rich, version))
		result, err := b.Add(t.Context(), chaintest.List(t, string(data)), richAttachment)
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
		if got := b.Cached(); got != "" {
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
	for _, version := range chaintest.Versions(t) {
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
		b.Calls()
		if err := b.DelCached(t.Context(), "net", chain.Attachment{ContainerID: "c1", IfName: "eth0"}); err != nil {
			t.Fatal(version, err)
		}
		if hasPrev := strings.Contains(string(b.Calls()[0].Stdin), "prevResult"); hasPrev != spec.AtLeast(version, "0.4.0") {
			t.Errorf("%s: DEL with previous result: %v", version, hasPrev)
		}
		if got := b.Cached(); got != "" {
			t.Errorf("%s: our DEL leaves %q", version, got)
		}
	}
}

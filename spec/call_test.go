// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

func environment(kv []string) func(string) string {
	return func(key string) string {
		for _, pair := range slices.Backward(kv) {
			if k, v, _ := strings.Cut(pair, "="); k == key {
				return v
			}
		}
		return ""
	}
}

// TestEnvironRoundTrip checks that ParseEnviron reads what Environ writes.
func TestEnvironRoundTrip(t *testing.T) {
	for _, c := range []spec.Call{
		{Verb: spec.Add, ContainerID: "c", NetNS: "/n", IfName: "eth0", Args: "A=1;B=2", Path: []string{"/a", "/b"}},
		{Verb: spec.Del, ContainerID: "c", IfName: "eth0", Path: []string{"/a"}, NetNSOverride: true},
		{Verb: spec.GC, Path: []string{"/a"}, TraceParent: "00-1-2-3", TraceState: "a=b", Baggage: "c=d"},
		{Verb: spec.Version},
	} {
		got, err := spec.ParseEnviron(environment(c.Environ()))
		if err != nil || !reflect.DeepEqual(*got, c) {
			t.Errorf("%+v comes back as %+v, %v", c, got, err)
		}
	}
}

// TestRefusedEnvironments checks that we refuse these environments with skel's texts and codes.
func TestRefusedEnvironments(t *testing.T) {
	tests := []struct {
		env, msg string
	}{
		{"", "required env variables [CNI_COMMAND] missing"},
		{"CNI_COMMAND=NOSUCH CNI_PATH=/a", "unknown CNI_COMMAND: NOSUCH"},
		{"CNI_COMMAND=add CNI_PATH=/a", "unknown CNI_COMMAND: add"},
		{"CNI_COMMAND=ADD", "required env variables [CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH] missing"},
		{"CNI_COMMAND=CHECK CNI_CONTAINERID=c CNI_IFNAME=e CNI_PATH=/a", "required env variables [CNI_NETNS] missing"},
		{"CNI_COMMAND=DEL CNI_CONTAINERID=c CNI_PATH=/a", "required env variables [CNI_IFNAME] missing"},
		{"CNI_COMMAND=GC", "required env variables [CNI_PATH] missing"},
		{"CNI_COMMAND=STATUS CNI_PATH=:", "required env variables [CNI_PATH] missing"},
		{"CNI_COMMAND=DEL CNI_CONTAINERID=../c CNI_IFNAME=e CNI_PATH=/a", "invalid characters in containerID"},
		{"CNI_COMMAND=DEL CNI_CONTAINERID=c CNI_IFNAME=a/b CNI_PATH=/a", "interface name contains / or : or whitespace characters"},
	}
	for _, test := range tests {
		_, err := spec.ParseEnviron(environment(strings.Fields(test.env)))
		if err == nil || spec.AsError(err).Msg != test.msg || spec.ErrorCode(err) != spec.CodeInvalidEnvironment {
			t.Errorf("%s: %v, want %s", test.env, err, test.msg)
		}
	}
	for _, env := range []string{
		"CNI_COMMAND=VERSION", "CNI_COMMAND=STATUS CNI_PATH=/a", "CNI_COMMAND=DEL CNI_CONTAINERID=c CNI_IFNAME=e CNI_PATH=/a",
	} {
		if _, err := spec.ParseEnviron(environment(strings.Fields(env))); err != nil {
			t.Errorf("%s: %v", env, err)
		}
	}
}

func TestOverride(t *testing.T) {
	for value, want := range map[string]bool{"1": true, "TRUE": true, "true": true, "": false, "0": false, "yes": false} {
		c, err := spec.ParseEnviron(environment([]string{"CNI_COMMAND=VERSION", "CNI_NETNS_OVERRIDE=" + value}))
		if err != nil || c.NetNSOverride != want {
			t.Errorf("%q: %v, %v", value, c.NetNSOverride, err)
		}
	}
}

func TestArgs(t *testing.T) {
	args, err := spec.ParseArgs("K8S_POD_NAME=p;IgnoreUnknown=1;K8S_POD_NAME=q;EMPTY=")
	if err != nil || len(args) != 4 {
		t.Fatal(args, err)
	}
	if v, ok := spec.LookupArg(args, "K8S_POD_NAME"); v != "q" || !ok {
		t.Errorf("the last one counts: %q", v)
	}
	if v, ok := spec.LookupArg(args, "EMPTY"); v != "" || !ok {
		t.Errorf("empty: %q, %v", v, ok)
	}
	if _, ok := spec.LookupArg(args, "k8s_pod_name"); ok {
		t.Error("matched in another case")
	}
	for _, bad := range []string{"A", "A=1;", ";", "A=1=2", "A=1;B"} {
		if _, err := spec.ParseArgs(bad); err == nil || !strings.HasPrefix(err.Error(), "ARGS: invalid pair") || spec.ErrorCode(err) != spec.CodeInvalidEnvironment {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestConf(t *testing.T) {
	a := spec.AttachmentKey{ContainerID: "c", IfName: "e"}
	for data, want := range map[string][]spec.AttachmentKey{
		`{"cni.dev/valid-attachments":[{"containerID":"c","ifname":"e"}]}`:                          {a},
		`{"cni.dev/attachments":[{"containerID":"c","ifname":"e"}]}`:                                {a},
		`{"cni.dev/attachments":[],"cni.dev/valid-attachments":[{"containerID":"c","ifname":"e"}]}`: {a},
		`{"cni.dev/valid-attachments":[]}`:                                                          {},
		`{}`:                                                                                        nil,
	} {
		c, err := spec.ParseConf([]byte(data))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := c.Valid(); ok != (want != nil) || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v", data, got, ok)
		}
		if c.CNIVersion != "0.1.0" {
			t.Errorf("a configuration without version is of %q", c.CNIVersion)
		}
	}
	for data, msg := range map[string]string{
		``: "failed to load netconf: unexpected end of JSON input", `[]`: "failed to load netconf: json: cannot unmarshal array",
		`{"name":1}`: "failed to load netconf: json: cannot unmarshal number", `{"ipam":"x"}`: "failed to load netconf: json: cannot unmarshal string",
	} {
		if _, err := spec.ParseConf([]byte(data)); err == nil || !strings.HasPrefix(err.Error(), msg) || spec.ErrorCode(err) != spec.CodeDecoding {
			t.Errorf("%s: %v", data, err)
		}
	}
}

func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"n","type":"t","prevResult":{"ips":[]},"ipam":{"type":"x"},"cni.dev/attachments":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := spec.ParseConf(data)
		if err != nil {
			return
		}
		if c.CNIVersion == "" {
			t.Fatal("no version")
		}
		if list, ok := c.Valid(); !ok && len(list) > 0 {
			t.Fatal("attachments out of nothing")
		}
		_ = spec.ValidateNetworkName(c.Name)
	})
}

// FuzzResult checks that Encode can write every result that ParseResult accepts, and that
// ParseResult reads an equal result back.
func FuzzResult(f *testing.F) {
	for _, data := range results(f) {
		f.Add([]byte(data))
	}
	f.Add([]byte(`{"ip4":{"ip":"10.0.0.1/8","routes":[{"dst":"0.0.0.0/0"}]}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := spec.ParseResult(data, "1.1.0")
		if err != nil {
			if spec.ErrorCode(err) == spec.CodeInternal {
				t.Fatalf("an error without a code: %v", err)
			}
			return
		}
		first, err := r.Encode("1.1.0")
		if err != nil {
			t.Fatal(err)
		}
		again, err := spec.ParseResult(first, "")
		if err != nil {
			t.Fatalf("%v\n%s", err, first)
		}
		second, err := again.Encode("1.1.0")
		if err != nil || string(first) != string(second) {
			t.Fatalf("%s\n%s\n%v", first, second, err)
		}
		c := r.Clone()
		for _, v := range spec.Versions() {
			if out, err := c.Encode(v); err == nil && !json.Valid(out) {
				t.Fatalf("%s: %s", v, out)
			}
		}
	})
}

func FuzzArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;IP=10.0.0.1;GATEWAY=")
	f.Add("=;=")
	f.Fuzz(func(t *testing.T, s string) {
		args, err := spec.ParseArgs(s)
		if err != nil {
			return
		}
		var pairs []string
		for _, a := range args {
			pairs = append(pairs, a.Key+"="+a.Value)
		}
		if got := strings.Join(pairs, ";"); got != s {
			t.Fatalf("%q comes back as %q", s, got)
		}
	})
}

// FuzzEnviron checks that no accepted name leads out of a directory.
func FuzzEnviron(f *testing.F) {
	f.Add("ADD", "c1", "/run/netns/x", "eth0", "A=1", "/opt/cni/bin:/b")
	f.Add("DEL", "../x", "", "a/b", "", ":")
	f.Fuzz(func(t *testing.T, verb, id, netns, ifname, args, path string) {
		env := map[string]string{
			"CNI_COMMAND": verb, "CNI_CONTAINERID": id, "CNI_NETNS": netns, "CNI_IFNAME": ifname, "CNI_ARGS": args, "CNI_PATH": path,
		}
		c, err := spec.ParseEnviron(func(k string) string { return env[k] })
		if err != nil {
			if e := spec.AsError(err); len(e.Error()) > 600 {
				t.Fatalf("an error of %d bytes", len(e.Error()))
			}
			return
		}
		if c.PerContainer() && strings.ContainsAny(c.ContainerID+c.IfName, "/\x00") {
			t.Fatalf("%+v", c)
		}
		back, err := spec.ParseEnviron(environment(c.Environ()))
		if err != nil || !reflect.DeepEqual(back, c) {
			t.Fatalf("%+v comes back as %+v, %v", c, back, err)
		}
	})
}

func TestPod(t *testing.T) {
	long := strings.Repeat("a", 254)
	for args, want := range map[string]string{
		"K8S_POD_NAME=web-0;IgnoreUnknown=1;K8S_POD_NAMESPACE=shop": "shop/web-0",
		"K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=a.b":            "kube-system/a.b",
		"K8S_POD_NAMESPACE=shop":                                    "",
		"K8S_POD_NAMESPACE=shop;K8S_POD_NAME=":                      "",
		"K8S_POD_NAMESPACE=shop;K8S_POD_NAME=\x1b[31mweb":           "",
		"K8S_POD_NAMESPACE=shop;K8S_POD_NAME=we\nb":                 "",
		"K8S_POD_NAMESPACE=../x;K8S_POD_NAME=web":                   "",
		"K8S_POD_NAMESPACE=shop;K8S_POD_NAME=-web":                  "",
		"K8S_POD_NAMESPACE=shop;K8S_POD_NAME=" + long:               "",
	} {
		list, err := spec.ParseArgs(args)
		if got := spec.Pod(list); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", args, got, err, want)
		}
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/spec"
)

// FuzzOptions checks the options that the driver accepts for a network. They name one network, a
// prefix with room for a number, and CNI_ARGS with only one meaning.
func FuzzOptions(f *testing.F) {
	for _, text := range []string{
		`{"cni.network":"podnet"}`, `{"cni.conf":"{}","cni.portmap":"off","cni.mode":"hold"}`, `{"cni.network":"a","cni.conf":"b"}`,
		`{"cni.network":"a","cni.gwbridge":"1","cni.ifprefix":"net","cni.args":"K=V;L="}`, `{"cni.network":"a","cni.args":"IP=1"}`,
		`{"cni.network":"a","cni.ifprefix":"longlonglong"}`, `{"cni.network":"a","cni.args":";"}`, `{"nonsense":""}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var in map[string]string
		if json.Unmarshal(text, &in) != nil {
			return
		}
		o, err := parseOptions(in)
		if err != nil {
			return
		}
		if (o.network == "") == (o.conf == "") {
			t.Errorf("%s: which network?", text)
		}
		if err := spec.ValidateIfName(o.prefix + "1234"); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		for k, v := range o.args {
			if k == "" || k == "IP" || k == "MAC" || strings.Contains(k+v, ";") || strings.Contains(k, "=") {
				t.Errorf("%s: %q=%q goes into CNI_ARGS", text, k, v)
			}
		}
	})
}

// FuzzEndpointOptions gives any options of an endpoint. The driver accepts or refuses them.
func FuzzEndpointOptions(f *testing.F) {
	f.Add([]byte(`{"com.docker.network.portmap":[{"Proto":6,"IP":"","Port":80,"HostIP":"","HostPort":8080,"HostPortEnd":8090}],"com.docker.network.endpoint.exposedports":[{"Port":80,"Proto":6}]}`))
	f.Add([]byte(`{"com.docker.network.endpoint.ifname":"web0","com.docker.network.endpoint.macaddress":"AkKqu8wB","cni.args":"K=V","my.opt":"v1"}`))
	f.Add([]byte(`{"com.docker.network.portmap":null,"cni.args":"MAC=1"}`))
	f.Add([]byte(`{"cni.nonsense":""}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var in cnm.Options
		if json.Unmarshal(text, &in) != nil {
			return
		}
		e := new(state.Endpoint)
		if err := readEndpointOptions(e, in); err != nil {
			return
		}
		for k := range e.Args {
			if k == "" || k == "IP" || k == "MAC" {
				t.Errorf("%s: %q goes into CNI_ARGS", text, k)
			}
		}
	})
}

// FuzzContainerID reads ids from any text of a cgroup file. Every result has the form of Docker's
// ids, because it becomes a part of a path.
func FuzzContainerID(f *testing.F) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, text := range []string{
		"0::/system.slice/docker-" + id + ".scope\n", "12:pids:/docker/" + id + "\n0::/\n", "0::/docker/" + id + "/init", "0::/" + id + "0", "", "0::/..",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, got := range containerIDs(text) {
			if len(got) != 64 || strings.Trim(got, "0123456789abcdef") != "" || !strings.Contains(text, got) {
				t.Errorf("%q: %q", text, got)
			}
		}
	})
}

// FuzzContainerFile reads labels from any file of a container. Plugins that parse CNI_ARGS get the
// same labels.
func FuzzContainerFile(f *testing.F) {
	f.Add([]byte(`{"Name":"/web","Config":{"Labels":{"net.a":"b","net.b":"c d"},"Hostname":"h"},"ResolvConfPath":"/x"}`), "net.")
	f.Add([]byte(`{"Name":7}`), "")
	f.Add([]byte(`{"Config":{"Labels":{"a.b":"","a-b":"","":";"}}}`), "a")
	f.Fuzz(func(t *testing.T, text []byte, prefix string) {
		var c containerFile
		if json.Unmarshal(text, &c) != nil {
			return
		}
		args, err := labels(c.Config.Labels, prefix)
		if err != nil {
			return
		}
		var pairs []string
		for k, v := range args {
			pairs = append(pairs, k+"="+v)
		}
		if len(pairs) == 0 {
			return
		}
		got, err := spec.ParseArgs(strings.Join(pairs, ";"))
		if err != nil || len(got) != len(args) {
			t.Fatalf("%q: %v, %v", pairs, got, err)
		}
		for _, kv := range got {
			if args[kv.Key] != kv.Value {
				t.Errorf("%q: %q", pairs, kv)
			}
		}
	})
}

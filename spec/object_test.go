// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/spec"
)

// Plugins ignore the case of keys, and of several spellings they read the last one. So no spelling in a
// configuration may get around a key that only the runtime sets.
func TestObjectIgnoresCase(t *testing.T) {
	listed := time.Unix(1e9, 0).UTC()
	keys := spec.RuntimeKeys{
		Name: "net", CNIVersion: "1.1.0", Prev: json.RawMessage(`{"ours":1}`), Config: map[string]json.RawMessage{"ours": json.RawMessage("1")},
		GC: &spec.GCKeys{Valid: []spec.AttachmentKey{{ContainerID: "ours", IfName: "eth0"}}, Listed: listed},
	}
	const want = `{"cni.dev/attachments":[{"containerID":"ours","ifname":"eth0"}],"cni.dev/valid-attachments":[{"containerID":"ours","ifname":"eth0"}],` +
		`"cniVersion":"1.1.0","kept":12345678901234567890,"name":"net","patchbay/listed":"2001-09-09T01:46:40Z","prevResult":{"ours":1},"runtimeConfig":{"ours":1}}`
	for _, theirs := range []string{
		`"cniversion":"0.2.0"`, `"CNIVERSION":"0.2.0"`, `"Name":"theirs"`, `"name":"theirs"`, `"prevresult":{}`, `"PREVRESULT":{}`,
		`"runtimeconfig":{"theirs":1}`, `"runtimeConfig":{}`, `"CAPABILITIES":{}`, `"cni.dev/Attachments":[]`, `"CNI.dev/valid-attachments":null`,
		`"cni.dev/other":1`, `"patchbay/LISTED":"x"`, `"Patchbay/everyones":true`, `"ſ":0,"prevreſult":{}`,
	} {
		o, err := spec.ParseObject([]byte(`{"kept":12345678901234567890,` + theirs + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Runtime(keys); err != nil {
			t.Fatal(err)
		}
		o.Delete("S") // the long s
		if got, err := o.JSON(); err != nil || string(got) != want {
			t.Errorf("with %s: %v\n%s\n%s", theirs, err, got, want)
		}
	}
}

func TestObjectWithoutValues(t *testing.T) {
	o, err := spec.ParseObject([]byte(`{"runtimeConfig":{"own":1},"prevResult":1,"capabilities":{"x":true},"patchbay/listed":1,"cni.dev/x":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Runtime(spec.RuntimeKeys{Name: "n", CNIVersion: "1.0.0"}); err != nil {
		t.Fatal(err)
	}
	if got, _ := o.JSON(); string(got) != `{"cniVersion":"1.0.0","name":"n","runtimeConfig":{"own":1}}` {
		t.Errorf("%s", got)
	}
	if err := o.Runtime(spec.RuntimeKeys{Config: map[string]json.RawMessage{}}); err != nil {
		t.Fatal(err)
	}
	if _, ok := o.Get("runtimeConfig"); ok {
		t.Error("no capability is granted, and runtimeConfig stays")
	}
}

// Get finds what a plugin would read.
func TestObjectGet(t *testing.T) {
	const text = `{"Key":1,"KEY":2,"key":3,"other":4}`
	o, err := spec.ParseObject([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	sorted, err := o.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var plugin struct{ KeY int }
	if err := json.Unmarshal(sorted, &plugin); err != nil {
		t.Fatal(err)
	}
	if got, ok := o.Get("kEY"); !ok || string(got) != "3" || plugin.KeY != 3 {
		t.Errorf("%s, a plugin reads %d", got, plugin.KeY)
	}
	if err := o.Set("KEY", "x"); err != nil {
		t.Fatal(err)
	}
	if got, _ := o.JSON(); string(got) != `{"KEY":"x","other":4}` {
		t.Errorf("%s", got)
	}
	if _, err := spec.ParseObject([]byte(`[]`)); err == nil {
		t.Error("a list is no object")
	}
	if null, err := spec.ParseObject([]byte(`null`)); err != nil || null.Set("a", 1) != nil {
		t.Error("null cannot be set")
	}
	prev := &spec.Result{IPs: []spec.IPConfig{}}
	data, err := spec.WithPrevResult([]byte(`{"cniVersion":"1.0.0","prevresult":{"theirs":1}}`), prev)
	if err != nil {
		t.Fatal(err)
	}
	if conf, err := spec.ParseConf(data); err != nil || string(conf.PrevResult) == `{"theirs":1}` {
		t.Errorf("%s %v", conf.PrevResult, err)
	}
}

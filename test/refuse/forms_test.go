// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/packed"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/spec"
)

// form is the plugins of a network's list.
type form []json.RawMessage

// forms attaches in one form of a network: all plugins in one of type patchbay, or separate. The other
// form checks this, keeps it in a GC, and detaches it, or its GC does. Nothing is left that the same form
// would not leave.
func forms(t *testing.T, ns string, object map[string]any) {
	t.Helper()
	raw, err := json.Marshal(object)
	must(t, err)
	members, err := packed.Unpack(raw)
	must(t, err)
	one, separate := form{raw}, form(members)
	before := leak.Must(t)
	for _, of := range []struct {
		name     string
		from, to form
	}{{"one process, then separate", one, separate}, {"separate, then one process", separate, one}} {
		for _, end := range []spec.Verb{spec.Del, spec.GC} {
			result := of.from.add(t, ns)
			of.to.call(t, spec.Check, ns, result)
			of.to.gc(t, `[{"containerID":"bad","ifname":"eth0"}]`)
			of.to.call(t, spec.Check, ns, result)
			if end == spec.GC {
				of.to.gc(t, `[]`)
			} else {
				of.to.call(t, end, ns, result)
			}
			if left := leak.Must(t).Beyond(before); len(left) > 0 {
				t.Errorf("%s, %s: left behind: %s", of.name, end, left)
			}
			of.from.call(t, spec.Del, ns, result)
		}
	}
}

// add passes the result of each plugin to the next, and returns the last one.
func (f form) add(t *testing.T, ns string) (result json.RawMessage) {
	t.Helper()
	for _, raw := range f {
		result = single(t, spec.Add, ns, raw, map[string]any{"prevResult": result})
	}
	return result
}

// call calls the plugins with one result, for a DEL in reverse order.
func (f form) call(t *testing.T, verb spec.Verb, ns string, result json.RawMessage) {
	t.Helper()
	f = slices.Clone(f)
	if verb == spec.Del {
		slices.Reverse(f)
	}
	for _, raw := range f {
		single(t, verb, ns, raw, map[string]any{"prevResult": result})
	}
}

func (f form) gc(t *testing.T, valid string) {
	t.Helper()
	for _, raw := range f {
		single(t, spec.GC, "", raw, map[string]any{"cni.dev/valid-attachments": json.RawMessage(valid)})
	}
}

// single calls one plugin as a runtime does.
func single(t *testing.T, verb spec.Verb, ns string, raw json.RawMessage, more map[string]any) json.RawMessage {
	t.Helper()
	conf, err := spec.ParseObject(raw)
	must(t, err)
	must(t, conf.Set("cniVersion", "1.1.0"))
	must(t, conf.Set("name", "refuse"))
	for key, value := range more {
		if r, ok := value.(json.RawMessage); !ok || len(r) > 0 {
			must(t, conf.Set(key, value))
		}
	}
	data, err := conf.JSON()
	must(t, err)
	var head struct{ Type string }
	must(t, json.Unmarshal(raw, &head))
	c := call(verb, ns, string(data))
	if verb == spec.GC {
		c.ContainerID, c.IfName = "", ""
	}
	out, stderr, err := run(head.Type, c)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", verb, head.Type, err, stderr)
	}
	return out
}

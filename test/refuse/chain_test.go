// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// TestLists checks the lists of plugins that the runtime refuses to read. If libcni refuses a
// list too, the messages are libcni's.
func TestLists(t *testing.T) {
	const listed = "error parsing configuration list: "
	for _, r := range []struct {
		list string
		code spec.Code
		msg  string
	}{
		{``, 6, listed}, {`{`, 6, listed}, {`[]`, 6, listed}, {`"x"`, 6, listed},
		{`{}`, 7, listed + "no name"},
		{`{"name":1}`, 7, listed + "invalid name type"},
		{`{"name":null}`, 7, listed + "invalid name type"},
		{`{"name":""}`, 7, "missing network name"},
		{`{"name":"../x"}`, 7, "invalid characters found in network name"},
		{`{"name":"a b"}`, 7, "invalid characters found in network name"},
		{`{"name":"n","cniVersion":1}`, 7, listed + "invalid cniVersion type"},
		{`{"name":"n","cniVersions":"1.0.0"}`, 7, listed + "invalid type"},
		{`{"name":"n","cniVersions":["one"]}`, 7, listed + "invalid cniVersions entry one at index 0"},
		{`{"name":"n","disableCheck":1}`, 7, listed + "invalid type"},
		{`{"name":"n","disableCheck":"perhaps"}`, 7, listed + `invalid value "perhaps" for disableCheck`},
		{`{"name":"n","disableGC":[]}`, 7, listed + "invalid type"},
		{`{"name":"n","loadOnlyInlinedPlugins":true}`, 7, "no 'plugins' key"},
		{`{"name":"n","plugins":null}`, 7, listed + "invalid 'plugins' type"},
		{`{"name":"n","plugins":{}}`, 7, listed + "invalid 'plugins' type"},
		{`{"name":"n","plugins":[]}`, 7, listed + "no plugins in list"},
		{`{"name":"n","plugins":[1]}`, 6, "failed to parse plugin config 0: error parsing configuration"},
		{`{"name":"n","plugins":[{"type":"a"},{}]}`, 7, "failed to parse plugin config 1: error parsing configuration: missing 'type'"},
		{`{"name":"n","plugins":[{"type":"../sh"}]}`, 7, "invalid plugin name"},
		{`{"name":"n","plugins":[{"type":"a","capabilities":7}]}`, 6, "error parsing configuration"},
	} {
		_, err := chain.ParseList([]byte(r.list))
		if err == nil || spec.ErrorCode(err) != r.code || !strings.Contains(err.Error(), r.msg) {
			t.Errorf("%s: code %d, %v; want code %d, %q", r.list, spec.ErrorCode(err), err, r.code, r.msg)
		}
	}
}

// TestRuntime checks attachments and networks that the runtime refuses, or that the plugins refuse
// before any work. Nothing is made and nothing is cached.
func TestRuntime(t *testing.T) {
	runtime.LockOSThread() // /proc/thread-self is the namespace of the test
	defer runtime.UnlockOSThread()
	ns := nettest.NewNS(t, "refuse")
	good := chain.Attachment{ContainerID: "bad", NetNS: ns, IfName: "eth0"}
	with := func(change func(*chain.Attachment)) chain.Attachment { a := good; change(&a); return a }
	bridge := `{"type":"bridge",` + valid["bridge"] + `}`
	list := func(version, plugins string) string {
		return `{"cniVersion":"` + version + `","name":"refuse","plugins":[` + plugins + `]}`
	}
	rt := chain.New(chain.WithPath("/nonexistent"), chain.WithInvoker(&plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession(all.Plugins())
		s.Stderr = io.Discard
		return s
	}}))
	before := leak.Must(t)
	for _, r := range []struct {
		about, list string
		a           chain.Attachment
		code        spec.Code
		msg         string
	}{
		{"no id", list("1.0.0", bridge), with(func(a *chain.Attachment) { a.ContainerID = "" }), 3, "missing containerID"},
		{"id", list("1.0.0", bridge), with(func(a *chain.Attachment) { a.ContainerID = "../x" }), 4, "invalid characters in containerID"},
		{"no interface", list("1.0.0", bridge), with(func(a *chain.Attachment) { a.IfName = "" }), 4, "interface name"},
		{"interface", list("1.0.0", bridge), with(func(a *chain.Attachment) { a.IfName = "a/b" }), 4, "interface name contains / or :"},
		{"names that make no file name", list("1.0.0", bridge), with(func(a *chain.Attachment) { a.ContainerID = strings.Repeat("x", 250) }), 4, "too long"},
		{"namespace", list("1.0.0", bridge), with(func(a *chain.Attachment) { a.NetNS = "/nonexistent" }), 8, "failed to open netns"},
		{"no namespace", list("1.0.0", bridge), with(func(a *chain.Attachment) { a.NetNS = "" }), 4, "required env variables [CNI_NETNS] missing"},
		{"arguments", list("1.0.0", bridge), with(func(a *chain.Attachment) { a.Args = [][2]string{{"IP", "a=b"}} }), 4, "ARGS: invalid pair"},
		{"capability", list("1.0.0", `{"type":"bridge","capabilities":{"mac":true},`+valid["bridge"]+`}`),
			with(func(a *chain.Attachment) { a.Capabilities = map[string]any{"mac": "x"} }), 7, "invalid mac"},
		{"version", list("9.9.9", bridge), good, 1, "incompatible CNI versions"},
		{"missing plugin", list("1.0.0", `{"type":"nowhere"}`), good, 999, `failed to find plugin "nowhere" in path`},
		{"chained first", list("1.0.0", `{"type":"firewall"}`), good, 7, "missing prevResult from earlier plugin"},
		{"the second one", list("1.0.0", bridge+`,{"type":"tuning","sysctl":{"kernel.x":"1"}}`), good, 7, "invalid net sysctl key"},
	} {
		l, err := chain.ParseList([]byte(r.list))
		if err != nil {
			t.Fatalf("%s: %v", r.about, err)
		}
		_, err = rt.Add(t.Context(), l, r.a)
		if err == nil || spec.ErrorCode(err) != r.code || !strings.Contains(err.Error(), r.msg) {
			t.Errorf("%s: code %d, %v; want code %d, %q", r.about, spec.ErrorCode(err), err, r.code, r.msg)
		}
		if left := leak.Must(t).Beyond(before).Without(standing); len(left) > 0 && r.about != "the second one" {
			t.Fatalf("%s: left\n%s", r.about, left)
		}
	}
	for _, verb := range []struct {
		about string
		do    func(*chain.List) error
		code  spec.Code
		msg   string
	}{
		{"CHECK of 0.3.1", func(l *chain.List) error { return rt.Check(t.Context(), l, good) }, 999, `configuration version "0.3.1" does not support the CHECK command`},
		{"DEL without a cached configuration", func(*chain.List) error { return rt.DelCached(t.Context(), "other", good) }, 999, "no cached configuration"},
		{"a version nobody speaks", func(l *chain.List) error {
			l.CNIVersion = "9.9.9"
			_, err := rt.Validate(t.Context(), l)
			return err
		}, 1, `plugin bridge does not support config version "9.9.9"`},
	} {
		l, err := chain.ParseList([]byte(list("0.3.1", bridge)))
		if err != nil {
			t.Fatal(err)
		}
		if err := verb.do(l); err == nil || spec.ErrorCode(err) != verb.code || !strings.Contains(err.Error(), verb.msg) {
			t.Errorf("%s: code %d, %v; want code %d, %q", verb.about, spec.ErrorCode(err), err, verb.code, verb.msg)
		}
	}
}

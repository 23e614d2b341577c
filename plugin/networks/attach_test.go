// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/spec"
)

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// A pod gets the interfaces that its annotation names. The result has only the default network's, so that no runtime takes
// an address of another network for the pod's. DEL removes everything.
func TestLife(t *testing.T) {
	define(t, "shop/store", store, "infra/edge", edge)
	w := newWorld(t, "store, infra/edge@edge0, store")
	before := w.warm()
	result := w.add()
	for _, name := range []string{"eth0", "net1", "edge0", "net3"} {
		if !nettest.HasLink(t, w.ns, name) {
			t.Errorf("the pod has no %s", name)
		}
	}
	if len(result.IPs) != 1 || len(result.Interfaces) != 2 {
		t.Errorf("result %+v", result)
	}
	data, err := result.Encode("1.1.0")
	must(t, err)
	if _, err := w.call(spec.Check, `,"prevResult":`+string(data)); err != nil {
		t.Error(err)
	}
	list, err := w.plan().Statuses()
	must(t, err)
	var got []string
	for _, s := range list {
		got = append(got, s.Name+" "+s.Interface)
	}
	if want := "pods eth0, shop/store net1, infra/edge edge0, shop/store net3"; strings.Join(got, ", ") != want || len(list[1].IPs) != 1 {
		t.Errorf("status %+v\nwant %s", list, want)
	}
	_, err = w.call(spec.Del, "")
	must(t, err)
	leak.NoLeaks(t, before)
	if _, err := w.call(spec.Del, ""); err != nil {
		t.Errorf("second DEL: %v", err)
	}
}

// What each plugin gets, by clauses of the standard.
func TestCalls(t *testing.T) {
	define(t, "shop/a", `{"cniVersion":"1.0.0","plugins":[{"type":"tape","capabilities":{"ips":true,"portMappings":true},"args":{"cni":{"k":1,"own":1}}},{"type":"other"}]}`)
	w := newWorld(t, `[{"name":"a","interface":"foo","ips":["10.99.0.7"],"mac":"02:00:00:00:00:07","cni-args":{"k":2}},{"name":"a"}]`)
	w.runtime = `,"portMappings":[{"hostPort":80,"containerPort":80}]`
	w.add()
	first, second := w.tape.calls["tape ADD foo"], w.tape.calls["other ADD foo"]
	for name, c := range map[string]struct{ got, want string }{
		"3.4.2, 7.1, 7.5, 4.1.2.1.3, 4.1.2.1.6": {string(first.Config), `{"args":{"cni":{"k":2,"own":1}},"cniVersion":"1.0.0","name":"a","runtimeConfig":{"ips":["10.99.0.7"]},"type":"tape"}`},
		"CNI_ARGS":                              {first.Args, podArgs + ";IP=10.99.0.7;MAC=02:00:00:00:00:07"},
		"4.1.2.1.5 interface":                   {first.IfName, "foo"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s\nwant %s", name, c.got, c.want)
		}
	}
	if strings.Contains(string(second.Config), "runtimeConfig") {
		t.Errorf("the second plugin got %s", second.Config)
	}
	define(t) // 4.2 the tuple of a DEL is that of the ADD, whatever became of the definition
	_, err := w.call(spec.Del, "")
	must(t, err)
	del := w.tape.calls["tape DEL foo"]
	if del.ContainerID != first.ContainerID || del.Args != first.Args || !strings.Contains(string(del.Config), `"name":"a"`) || !strings.Contains(string(del.Config), "prevResult") {
		t.Errorf("DEL got %+v %s", del, del.Config)
	}
	want := []string{ // 6.2, 7.3: one after the other, and back
		"tape ADD foo", "other ADD foo", "tape ADD net2", "other ADD net2", "other DEL net2", "tape DEL net2", "other DEL foo", "tape DEL foo",
	}
	if !slices.Equal(w.tape.lines, want) {
		t.Errorf("calls %q\nwant %q", w.tape.lines, want)
	}
}

// 3.4.1 A definition without spec.config has the configuration of a file; the name in the file decides.
func TestFileOfDefinition(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"a.conf":        `{"cniVersion":"1.0.0","name":"thin","type":"other"}`,
		"thin.conf":     `{"cniVersion":"1.0.0","name":"else","type":"other"}`,
		"z.conflist":    `{"cniVersion":"1.0.0","name":"thin","plugins":[{"type":"tape"}]}`,
		"broken.conf":   "{",
		"only.conf":     `{"cniVersion":"1.0.0","name":"single","type":"tape"}`,
		"y.conflist":    `{"cniVersion":"1.0.0","name":"y","plugins":[{"type":"tape"}]}`,
		"else.conflist": `{"cniVersion":"1.0.0","name":"w","plugins":[{"type":"tape"}]}`,
	} {
		must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	define(t, "shop/thin", "", "shop/single", "", "shop/none", "", "shop/own", `{"cniVersion":"1.0.0","name":"thin","type":"other"}`)
	for annotation, want := range map[string]string{"thin": "tape ADD net1", "single": "tape ADD net1", "own": "other ADD net1"} {
		w := newWorld(t, annotation)
		w.conf = `,"confDir":"` + dir + `"`
		w.add()
		if !slices.Equal(w.tape.lines, []string{want}) {
			t.Errorf("%s: %q, want %s", annotation, w.tape.lines, want)
		}
		_, err := w.call(spec.Del, "")
		must(t, err)
	}
	w := newWorld(t, "none")
	w.conf = `,"confDir":"` + dir + `"`
	_ = w.refused("network shop/none: it has no spec.config")
}

// What is refused, is refused before any plugin runs.
func TestRefused(t *testing.T) {
	define(t,
		"shop/a", `{"cniVersion":"1.0.0","type":"tape"}`, "infra/a", `{"cniVersion":"1.0.0","type":"tape"}`,
		"shop/wrong", `{"cniVersion":"1.0.0","type":"ptp","mtu":-1,"ipam":{"type":"host-local","subnet":"10.91.0.0/24"}}`,
		"shop/missing", `{"cniVersion":"1.0.0","type":"nothing"}`, "shop/old", `{"cniVersion":"9.0.0","type":"tape"}`,
		"shop/broken", `{`, "shop/itself", `{"cniVersion":"1.0.0","type":"networks"}`, "shop/empty", `{"cniVersion":"1.0.0","plugins":[]}`)
	for name, c := range map[string]struct {
		annotation, conf, want string
		code                   spec.Code
	}{
		"invalid":                   {"A", "", `annotation k8s.v1.cni.cncf.io/networks is not valid: network 1, "A"`, spec.CodeInvalidConfig},
		"7.4 isolation":             {"infra/a", `,"namespaceIsolation":true`, "pod is in namespace shop but refers to target namespace infra", spec.CodeInvalidConfig},
		"a definition is missing":   {"a,later", "", "definition shop/later: not in the node's mirror", spec.CodeTryAgain},
		"a plugin is missing":       {"a,missing", "", `network shop/missing, interface net2: failed to find plugin "nothing"`, 0},
		"a configuration is wrong":  {"a,wrong", "", "network shop/wrong, interface net2: ", spec.CodeInvalidConfig},
		"a version":                 {"a,old", "", "network shop/old, interface net2: incompatible CNI versions", spec.CodeIncompatibleVersion},
		"no JSON":                   {"a,broken", "", "network shop/broken: its configuration is no JSON object", spec.CodeInvalidConfig},
		"itself":                    {"a,itself", "", "network shop/itself: a further network cannot have the plugin networks", spec.CodeInvalidConfig},
		"no plugins":                {"a,empty", "", "network shop/empty: ", spec.CodeInvalidConfig},
		"4.1.2.1.3 no capability S": {`[{"name":"a","ips":["10.99.0.7"]}]`, `,"strict":true`, "declares the capability ips", spec.CodeInvalidConfig},
		"4.1.2.1.7 no capability":   {`[{"name":"a","portMappings":[{"hostPort":80,"containerPort":80}]}]`, "", "declares the capability portMappings", spec.CodeInvalidConfig},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.annotation)
			w.conf = c.conf
			if err := w.refused(c.want); c.code != 0 && spec.ErrorCode(err) != c.code {
				t.Errorf("code %d, want %d", spec.ErrorCode(err), c.code)
			}
			if len(w.tape.lines) > 0 {
				t.Errorf("plugins ran: %q", w.tape.lines)
			}
		})
	}
}

// 4.1.2.1.3 and 4.1.2.1.4: an address that the plugins do not give fails the pod.
func TestAddressesAreVerified(t *testing.T) {
	define(t, "shop/a", `{"cniVersion":"1.0.0","type":"tape"}`)
	w := newWorld(t, `[{"name":"a","ips":["10.99.0.8"]}]`)
	_ = w.refused("asks for the address 10.99.0.8")
	if want := []string{"tape ADD net1", "tape DEL net1"}; !slices.Equal(w.tape.lines, want) {
		t.Errorf("calls %q, want %q", w.tape.lines, want)
	}
	w = newWorld(t, `[{"name":"a","mac":"02:00:00:00:00:08"}]`)
	_ = w.refused("asks for mac 02:00:00:00:00:08")
	define(t, "shop/fixed", `{"cniVersion":"1.0.0","type":"bridge","bridge":"fixed0","ipam":{"type":"static"}}`) // takes IP of CNI_ARGS, as in Multus' own test
	w = newWorld(t, `[{"name":"fixed","ips":["10.99.0.9/24"]}]`)
	w.add()
	_, err := w.call(spec.Del, "")
	must(t, err)
}

// A pod without the annotation, and a container that is no pod, have no further networks, and nothing is written for them.
func TestNothingToDo(t *testing.T) {
	define(t, "shop/a", `{"cniVersion":"1.0.0","type":"tape"}`)
	for _, annotation := range []string{"", " "} {
		w := newWorld(t, annotation)
		w.add()
		if plan := w.plan(); plan != nil || len(w.tape.lines) > 0 {
			t.Errorf("%q: plan %+v, calls %q", annotation, plan, w.tape.lines)
		}
		_, err := w.call(spec.Del, "")
		must(t, err)
	}
}

// S: an annotation that is not valid counts as none.
func TestInvalidIsIgnored(t *testing.T) {
	w := newWorld(t, "Not_Valid")
	w.conf = `,"onInvalid":"ignore"`
	w.add()
	if !strings.Contains(w.log.String(), "pod shop/web-1 starts without further networks") || w.plan() != nil {
		t.Errorf("log %s", w.log.String())
	}
	_, err := w.call(spec.Del, "")
	must(t, err)
}

// If the runtime passes no annotations, the agent has written them.
func TestAnnotationOfTheAgent(t *testing.T) {
	a := npwg.Definition{Namespace: "shop", Name: "a", Config: `{"cniVersion":"1.0.0","type":"tape"}`}
	pod := npwg.Pod{Namespace: "shop", Name: "web-1", UID: "5f0c"}
	for name, c := range map[string]struct {
		pods []mirror.Pod
		want string // of the error
	}{
		"written":       {[]mirror.Pod{{Pod: pod, Networks: "a"}}, ""},
		"not yet":       {nil, "annotation of pod shop/web-1: not in the node's mirror"},
		"another's":     {[]mirror.Pod{{Pod: npwg.Pod{Namespace: "shop", Name: "web-2", UID: "5f0c"}, Networks: "a"}}, "has the file of pod shop/web-2"},
		"without a key": {[]mirror.Pod{{Pod: pod}}, ""},
	} {
		_, err := mirror.Write(paths.Default(), mirror.State{Definitions: []npwg.Definition{a}, Pods: c.pods})
		must(t, err)
		w := newWorld(t, "")
		w.silent = true
		_, err = w.call(spec.Add, "")
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if attachedTo := slices.Contains(w.tape.lines, "tape ADD net1"); attachedTo != (name == "written") {
			t.Errorf("%s: calls %q", name, w.tape.lines)
		}
		_, err = w.call(spec.Del, "")
		must(t, err)
	}
}

// patchbay explain says what an ADD would do, and changes nothing.
func TestExplain(t *testing.T) {
	define(t, "shop/store", store)
	w := newWorld(t, `[{"name":"store","default-route":["10.91.0.1"]}]`)
	w.warm()
	before := leak.Must(t)
	w.dry = true
	_, err := w.call(spec.Add, "")
	must(t, err)
	leak.NoLeaks(t, before)
	text := strings.Join(w.lines, "\n")
	for _, want := range []string{"# net1: network shop/store\n# ptp\n", "sandbox: ip route replace 0.0.0.0/0 via 10.91.0.1 dev net1 # and no other one"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks %q", text, want)
		}
	}
}

// A file of the mirror that is damaged fails the pod: a definition is executed as root.
func TestDamagedDefinition(t *testing.T) {
	define(t, "shop/a", `{"cniVersion":"1.0.0","type":"tape"}`)
	path := filepath.Join(paths.Default().State, "node/networks/definitions/shop/a")
	data, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, data[:len(data)-1], 0o600))
	_ = newWorld(t, "a").refused("definition shop/a: read " + path + ": the file is damaged")
	must(t, os.WriteFile(path, data, 0o600))
	must(t, os.Chmod(filepath.Dir(path), 0o777))
	defer os.Chmod(filepath.Dir(path), 0o700) //nolint:errcheck // a test's
	_ = newWorld(t, "a").refused("only root may have write access")
}

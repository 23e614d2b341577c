// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netavark_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/netavark"
	"github.com/patchbay-net/patchbay/spec"
)

var update = flag.Bool("update", false, "write what the calls give into the golden files")

// runtime answers all calls of plugins, and writes down those that change something.
type runtime struct {
	*chain.Runtime
	confDir string
	result  string // of each ADD
	log     strings.Builder
}

func newRuntime(t *testing.T, conf string) *runtime {
	t.Helper()
	rt := &runtime{confDir: t.TempDir()}
	rt.Runtime = chain.New(chain.WithConfDir(rt.confDir), chain.WithCacheDir(t.TempDir()), chain.WithRunDir(t.TempDir()), chain.WithInvoker(rt))
	if err := os.WriteFile(filepath.Join(rt.confDir, "net.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return rt
}

func (rt *runtime) Invoke(_ context.Context, plugin string, c *spec.Call) ([]byte, error) {
	switch c.Verb {
	case spec.Version:
		return []byte(`{"cniVersion":"1.1.0","supportedVersions":["0.2.0","0.4.0","1.0.0","1.1.0"]}`), nil
	case spec.Status:
		return nil, nil
	}
	var conf struct{ RuntimeConfig json.RawMessage }
	if err := json.Unmarshal(c.Config, &conf); err != nil {
		return nil, err
	}
	fmt.Fprintf(&rt.log, "%s %s %.12s %s %s %s %s\n", c.Verb, plugin, c.ContainerID, c.IfName, c.NetNS, c.Args, cmp.Or(string(conf.RuntimeConfig), "-"))
	if c.Verb == spec.Add {
		return []byte(rt.result), nil
	}
	return nil, nil
}

func (rt *runtime) driver(warn func(error)) *netavark.Driver {
	return &netavark.Driver{Warn: warn, Version: "v1", Find: func(name string) (*chain.List, *chain.Runtime, error) {
		list, err := rt.Load(name)
		return list, rt.With(chain.WithWarn(warn)), err
	}}
}

// TestGolden makes calls as podman's programs make them. A file has the call and the CNI network, then the calls of
// plugins, the warnings to the user, and the answer.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { golden(t, path) })
	}
}

func golden(t *testing.T, path string) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]string{}
	out := &txtar.Archive{Comment: a.Comment}
	for _, f := range a.Files {
		in[f.Name] = string(f.Data)
		if f.Name != "plugins" && f.Name != "answer" {
			out.Files = append(out.Files, f)
		}
	}
	rt := newRuntime(t, in["conf"])
	rt.result = in["result"]
	args := strings.Fields(in["args"])
	if !netavark.Called(args) {
		t.Fatalf("%q is no call", args)
	}
	var stdout bytes.Buffer
	status := rt.driver(func(err error) { fmt.Fprintln(&rt.log, "warning:", err) }).Serve(t.Context(), args, strings.NewReader(in["stdin"]), &stdout)
	for name, text := range map[string]string{"plugins": strings.ReplaceAll(rt.log.String(), rt.confDir, "CONF"), "answer": indented(t, stdout.Bytes())} {
		if text != in[name] && !*update {
			t.Errorf("%s:\n%s\nwant:\n%s", name, text, in[name])
		}
	}
	if failed := strings.Contains(stdout.String(), `"error"`); failed != (status != 0) {
		t.Errorf("exit status %d", status)
	}
	if *update {
		out.Files = append(out.Files, txtar.File{Name: "plugins", Data: []byte(rt.log.String())}, txtar.File{Name: "answer", Data: []byte(indented(t, stdout.Bytes()))})
		if err := os.WriteFile(path, txtar.Format(out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func indented(t *testing.T, answer []byte) string {
	t.Helper()
	var b bytes.Buffer
	if len(answer) > 0 {
		if err := json.Indent(&b, answer, "", " "); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

const pods = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni7", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}]}`

// Values that the CNI network's file decides are refused, so that nothing is configured in two places. Values that
// would be ignored are refused, too.
func TestRefused(t *testing.T) {
	for _, test := range []struct{ args, stdin, want string }{
		{"create", `{"name":"pods","subnets":[{"subnet":"10.78.0.0/24"}]}`, "(10.78.0.0/24): the file of CNI network pods decides about addresses"},
		{"create", `{"name":"pods","subnets":[{"subnet":"10.77.0.0/24","gateway":"10.77.0.9"}]}`, "decides about addresses"},
		{"create", `{"name":"pods","subnets":[{"subnet":"10.77.0.0/24","lease_range":{"start_ip":"10.77.0.9"}}]}`, "decides about addresses"},
		{"create", `{"name":"pods","routes":[{"destination":"10.99.0.0/16","gateway":"10.77.0.9"}]}`, "--route: "},
		{"create", `{"name":"pods","internal":true}`, "--internal: "},
		{"create", `{"name":"pods","ipv6_enabled":true}`, "has no range of IPv6"},
		{"create", `{"name":"pods","network_interface":"br9"}`, "--interface-name: "},
		{"create", `{"name":"pods","network_dns_servers":["9.9.9.9"]}`, "--dns: "},
		{"create", `{"name":"pods","ipam_options":{"driver":"dhcp"}}`, "--ipam-driver: "},
		{"create", `{"name":"pods","options":{"mtu":"1400"}}`, `option "mtu" is not one of this driver`},
		{"create", `{"name":"pods","options":{"cni.portmap":"on"}}`, "want auto or off"},
		{"create", `{"name":"pods","options":{"cni.network":"a/b"}}`, "option cni.network: "},
		{"create", `{"name":"other"}`, "other"},
		{"create", `{`, "read netavark's call create"},
		{"setup /run/netns/x", `[]`, "read netavark's call setup"},
		{"setup /run/netns/x", `{"network":{"name":"pods"},"network_options":{"interface_name":"eth0","options":{"foo":"bar"}}}`, `option "foo" of --network pods`},
		{"setup /run/netns/x", `{"container_id":"c","network":{"name":"pods"},"network_options":{"interface_name":"a/b"}}`, "a/b"},
		{"teardown /run/netns/x", `{"container_id":"c","network":{"name":"pods","options":{"cni.network":""}}}`, "option cni.network: "},
	} {
		rt := newRuntime(t, pods)
		var stdout bytes.Buffer
		status := rt.driver(func(error) {}).Serve(t.Context(), strings.Fields(test.args), strings.NewReader(test.stdin), &stdout)
		var answer map[string]string // podman 5 accepts no other field
		if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil || status != 1 || len(answer) != 1 || !strings.Contains(answer["error"], test.want) {
			t.Errorf("%s %s: status %d, %v: %s\nwant %q", test.args, test.stdin, status, err, stdout.Bytes(), test.want)
		}
		if rt.log.Len() > 0 {
			t.Errorf("%s: plugins were called: %s", test.stdin, &rt.log)
		}
	}
}

// The answer of create is accepted as input, because it comes with each later call and with a second create.
func TestCreateAgain(t *testing.T) {
	rt := newRuntime(t, pods)
	in := `{"name":"mine","id":"1","driver":"patchbay","options":{"cni.network":"pods"}}`
	for range 2 {
		var stdout bytes.Buffer
		if status := rt.driver(func(err error) { t.Error(err) }).Serve(t.Context(), []string{"create"}, strings.NewReader(in), &stdout); status != 0 {
			t.Fatal(stdout.String())
		}
		if again := stdout.String(); strings.Contains(in, "subnets") && again != in {
			t.Errorf("%s\n%s", in, again)
		}
		in = stdout.String()
	}
}

// If a container ended without a teardown, as in a crash or a reboot, its next setup removes it with the earlier
// configuration and namespace. A teardown uses these, too, after the network's file has changed.
func TestSetupAgain(t *testing.T) {
	rt := newRuntime(t, pods)
	rt.result = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}]}`
	d := rt.driver(func(err error) { t.Error(err) })
	for i, args := range []string{"setup /run/netns/a", "setup /run/netns/b", "teardown /run/netns/b", "teardown /run/netns/b"} {
		var stdout bytes.Buffer
		in := strings.NewReader(`{"container_id":"c1","container_name":"n","network":{"name":"pods"},"network_options":{"interface_name":"eth0"}}`)
		if status := d.Serve(t.Context(), strings.Fields(args), in, &stdout); status != 0 {
			t.Fatalf("%s: %s", args, &stdout)
		}
		if i == 1 {
			if err := os.WriteFile(filepath.Join(rt.confDir, "net.conflist"), []byte(strings.ReplaceAll(pods, `"bridge",`, `"macvlan",`)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const named = "IgnoreUnknown=1;K8S_POD_NAME=n -\n"
	const want = "ADD bridge c1 eth0 /run/netns/a " + named +
		"DEL bridge c1 eth0 /run/netns/a " + named + "ADD bridge c1 eth0 /run/netns/b " + named +
		"DEL bridge c1 eth0 /run/netns/b " + named + "DEL macvlan c1 eth0 /run/netns/b " + named
	if got := rt.log.String(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// If netavark has ended meanwhile, an attachment is undone: podman calls no teardown after a setup that failed.
func TestUnheardAnswer(t *testing.T) {
	rt := newRuntime(t, pods)
	rt.result = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}]}`
	in := strings.NewReader(`{"container_id":"c1","container_name":"n","network":{"name":"pods"},"network_options":{"interface_name":"eth0"}}`)
	warned := ""
	status := rt.driver(func(err error) { warned += err.Error() }).Serve(t.Context(), []string{"setup", "/run/netns/a"}, in, full{})
	if status != 1 || !strings.Contains(warned, "nobody listens") || !strings.Contains(rt.log.String(), "DEL bridge c1 eth0") {
		t.Errorf("status %d, %q, %s", status, warned, &rt.log)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("nobody listens") }

func TestCalled(t *testing.T) {
	for args, want := range map[string]bool{
		"create": true, "info": true, "setup /run/netns/x": true, "teardown /run/netns/x": true,
		"": false, "setup": false, "create pods": false, "del pods x": false, "network create": false, "add x": false,
	} {
		if got := netavark.Called(strings.Fields(args)); got != want {
			t.Errorf("%q: %v", args, got)
		}
	}
}

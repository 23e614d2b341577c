// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmcli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmplugin"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// TestMain lets the test binary act as the program and its plugins.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "patchbay-cnm" {
		os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr))
	}
	plugintest.Main(m, append(Plugins(), &hostlocal.Plugin)...)
}

var must = endpointtest.Must

// fresh removes the state at the end of a test.
func fresh(t *testing.T) {
	t.Cleanup(func() { must(t, os.RemoveAll("/var/lib/patchbay")) })
}

// TestExamples attaches, checks and detaches a container with every example in the pages of the
// documentation.
func TestExamples(t *testing.T) {
	fresh(t)
	n := 0
	for _, p := range Plugins() {
		text, err := os.ReadFile("../../../docs/plugins/" + p.Name + ".md")
		must(t, err)
		for _, part := range strings.Split(string(text), "```json\n")[1:] {
			n++
			example, _, _ := strings.Cut(part, "```")
			t.Run(fmt.Sprintf("%s-%d", p.Name, n), func(t *testing.T) { runExample(t, n, example) })
		}
	}
	if n < 4 {
		t.Errorf("%d examples", n)
	}
}

func runExample(t *testing.T, n int, text string) {
	cnmtest.Start(t, "lab", &cnmtest.Driver{})
	var object map[string]any
	must(t, json.Unmarshal([]byte(text), &object))
	object["cniVersion"], object["name"] = "1.1.0", fmt.Sprintf("example%d", n)
	ns := nettest.NewNS(t, "example")
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		return plugin.NewSession(append(Plugins(), &bridge.Plugin, &hostlocal.Plugin))
	}}
	for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Status, spec.Del} {
		data, err := json.Marshal(object)
		must(t, err)
		call := &spec.Call{Verb: verb, ContainerID: "c", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"}, Config: data}
		out, err := b.Invoke(t.Context(), object["type"].(string), call)
		if err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
		if verb == spec.Add {
			object["prevResult"] = json.RawMessage(out)
		}
	}
}

// command runs the program's command line.
func command(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = Main(args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestCommands(t *testing.T) {
	fresh(t)
	d := &cnmtest.Driver{}
	srv := cnmtest.Start(t, "lab", d)
	w := endpointtest.New(t, append([]*plugin.Plugin{&cnmplugin.Plugin}, Plugins()[1:]...)...)
	p := w.Pod("a", `"driver":"lab","ipam":{"type":"cnm-ipam","driver":"lab","subnet":"10.88.0.0/24"}`)
	must(t, p.Do(spec.Add))
	for _, c := range []struct {
		args   string
		status int
		out    string
	}{
		{"", 0, "patchbay-cnm install DIR"},
		{"help", 0, "patchbay-cnm install DIR"},
		{"man", 0, ".TH patchbay-cnm 1"},
		{"networks", 0, "net driver=lab id="},
		{"networks", 0, " ipam=lab pool=10.88.0.0/24 attachments=1\n"},
		{"rm net", 1, "network net is not deleted: it has 1 attachments: stop their containers first"},
		{"rm nothing", 1, "no driver was asked for a network nothing"},
		{"rm ../x", 1, "invalid characters found in network name"},
		{"rm", 2, "see patchbay-cnm help"},
		{"what", 2, "see patchbay-cnm help"},
	} {
		status, out, errs := command(strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(out+errs, c.out) {
			t.Errorf("%s: status %d, %s%s; want %d, %q", c.args, status, out, errs, c.status, c.out)
		}
	}
	must(t, p.Do(spec.Del))
	if status, out, errs := command("rm", "net"); status != 0 || out+errs != "" {
		t.Errorf("rm: %d %s %s", status, out, errs)
	}
	if n := len(d.Networks()) + d.Pools() + d.Addresses(); n > 0 {
		t.Errorf("the driver has %d things left", n)
	}
	must(t, p.Do(spec.Add))
	back := srv.Away(t, draw.All(t))
	must(t, p.Do(spec.Del))
	back()
	back = srv.Away(t, true)
	if status, _, errs := command("rm", "net"); status != 1 || !strings.Contains(errs, "driver cannot be reached") {
		t.Errorf("rm without a driver: %d %s", status, errs)
	}
	back()
	srv.Away(t, draw.All(t))
	if status, _, errs := command("rm", "--force", "net"); status != 0 {
		t.Errorf("rm --force without a driver: %d %s", status, errs)
	}
	if status, out, _ := command("networks"); status != 0 || out != "" {
		t.Errorf("networks: %d %s", status, out)
	}
}

// rm keeps what an ADD makes after rm looked for attachments.
func TestAddDuringRm(t *testing.T) {
	fresh(t)
	d := &cnmtest.Driver{}
	cnmtest.Start(t, "lab", d)
	w := endpointtest.New(t, append([]*plugin.Plugin{&cnmplugin.Plugin}, Plugins()[1:]...)...)
	a := &app{paths: paths.Default(), stderr: io.Discard}
	p := w.Pod("a", `"driver":"lab","ipam":{"type":"cnm-ipam","driver":"lab","subnet":"10.88.0.0/24"}`)
	looked := clock.Listing(t.Context())
	must(t, p.Do(spec.Add))
	before := d.Addresses()
	k, err := a.requested("net")
	must(t, err)
	must(t, a.collect(t.Context(), "net", cnmplugin.Plugin.Name, looked, at(k.network.Driver, false)))
	must(t, a.collect(t.Context(), "net", cnmipam.Plugin.Name, looked, map[string]any{"ipam": at(k.pools.Driver, false)}))
	w.Want("endpoints and addresses", fmt.Sprint(d.Endpoints(), d.Addresses()), fmt.Sprint(1, before))
	must(t, p.Do(spec.Check))
	must(t, p.Do(spec.Del))
}

// TestBrokenState checks that other networks are listed if one network's state file is broken, and
// that this network can still be deleted.
func TestBrokenState(t *testing.T) {
	fresh(t)
	d := &cnmtest.Driver{}
	cnmtest.Start(t, "lab", d)
	w := endpointtest.New(t, append([]*plugin.Plugin{&cnmplugin.Plugin}, Plugins()[1:]...)...)
	for i, name := range []string{"alpha", "beta", "gamma"} {
		p := w.Pod(name, fmt.Sprintf(`"driver":"lab","ipam":{"type":"cnm-ipam","driver":"lab","subnet":"10.%d.0.0/24"}`, 81+i))
		p.Conf = strings.Replace(p.Conf, `"name": "net"`, fmt.Sprintf(`"name": %q`, name), 1)
		must(t, p.Do(spec.Add))
		must(t, p.Do(spec.Del))
	}
	state := func(kind, name string) string { return filepath.Join("/var/lib/patchbay/cnm", kind, name+".json") }
	must(t, os.WriteFile(state("networks", "alpha"), []byte("{"), 0o600))
	must(t, os.WriteFile(state("pools", "beta"), nil, 0o600))
	status, out, errs := command("networks")
	lines := strings.Split(out, "\n")
	if status != 1 || len(lines) != 4 || !strings.Contains(errs, "networks/alpha.json: broken state") || !strings.Contains(errs, "pools/beta.json: broken state") {
		t.Fatalf("networks: %d %s%s", status, out, errs)
	}
	for i, want := range []string{"alpha ipam=lab pool=10.81.0.0/24 attachments=0 error=", "beta driver=lab id=", "gamma driver=lab id="} {
		if !strings.HasPrefix(lines[i], want) || strings.Contains(lines[i], "broken state") != (i < 2) {
			t.Errorf("networks: %s, want %s", lines[i], want)
		}
	}
	for _, name := range []string{"alpha", "beta"} {
		if status, _, errs := command("rm", name); status != 1 || !strings.Contains(errs, "see rm --force") || !strings.Contains(errs, "broken state") {
			t.Errorf("rm %s: %d %s", name, status, errs)
		}
		if status, _, errs := command("rm", "--force", name); status != 0 {
			t.Errorf("rm --force %s: %d %s", name, status, errs)
		}
	}
	if status, out, errs := command("networks"); status != 0 || strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, "gamma ") {
		t.Errorf("networks: %d %s%s", status, out, errs)
	}
	w.Want("the driver's networks and pools", fmt.Sprint(len(d.Networks()), d.Pools()), "2 2") // those of gamma, and those that were forgotten
}

// TestInstall checks that install writes the program under the plugins' names, even over older files.
func TestInstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	for range 2 {
		if status, out, errs := command("install", dir); status != 0 || errs != "" || !strings.Contains(out, "/cnm-ipam\n") {
			t.Fatal(status, out, errs)
		}
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != len(Plugins()) {
		t.Errorf("installed %v", entries)
	}
	cmd := exec.Command(filepath.Join(dir, "cnm"))
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"1.1.0"`) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestDockerAPIFirst runs docker-api as our first program on a node. Only root may then read the
// state directory.
func TestDockerAPIFirst(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a := &app{os.Stdout, os.Stderr, paths.Paths{Run: run, State: t.TempDir()}}
	must(t, a.dockerAPI(ctx, nil))
	info, err := os.Stat(run)
	must(t, err)
	if mode := info.Mode().Perm(); mode != 0o700 {
		t.Errorf("%s is %v", run, mode)
	}
}

// TestDockerAPI sends the requests of drivers through a real socket.
func TestDockerAPI(t *testing.T) {
	fresh(t)
	cnmtest.Start(t, "lab", &cnmtest.Driver{})
	w := endpointtest.New(t, append([]*plugin.Plugin{&cnmplugin.Plugin}, Plugins()[1:]...)...)
	p := w.Pod("a", `"driver":"lab","options":{"x":"y"},"labels":{"team":"red"},"ipam":{"type":"cnm-ipam","driver":"lab","subnet":"10.88.0.0/24"}`).Add()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	a := &app{os.Stdout, os.Stderr, plugin.NewSession(nil).Paths}
	go func() { done <- a.dockerAPI(ctx, nil) }()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", "/run/patchbay/docker.sock")
	}}}
	get := func(path string, v any) int {
		t.Helper()
		resp, err := client.Get("http://docker" + path)
		for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); resp, err = client.Get("http://docker" + path) {
			time.Sleep(10 * time.Millisecond)
		}
		must(t, err)
		defer resp.Body.Close() //nolint:errcheck // a test
		if v != nil && resp.StatusCode == 200 {
			must(t, json.NewDecoder(resp.Body).Decode(v))
		}
		return resp.StatusCode
	}
	var networks []struct {
		Name, ID, Driver string
		Labels, Options  map[string]string
		IPAM             struct {
			Config []struct{ Subnet, Gateway string }
		}
		Containers map[string]struct{ EndpointID, IPv4Address string }
	}
	get("/v1.43/networks", &networks)
	n := networks[0]
	w.Want("network", fmt.Sprint(n.Name, " ", n.Driver, " ", n.Labels["team"], " ", n.Options["x"], " ", n.IPAM.Config), "net lab red y [{10.88.0.0/24 10.88.0.1}]")
	w.Want("address", n.Containers["a"].IPv4Address, p.Result.IPs[0].Address.String())
	for path, status := range map[string]int{
		"/networks/net": 200, "/networks/" + n.ID: 200, "/v1.24/networks/" + n.ID[:12]: 200, "/networks/none": 404, "/_ping": 200, "/info": 200, "/version": 200,
		"/containers/json": 200, "/containers/a/json": 200, "/containers/b/json": 404, "/images/json": 404, "/": 404, "/v1.x/info": 404,
	} {
		if got := get(path, nil); got != status {
			t.Errorf("%s: status %d, want %d", path, got, status)
		}
	}
	resp, err := client.Post("http://docker/networks/create", "application/json", nil)
	must(t, err)
	w.Want("POST", resp.Status, "403 Forbidden")
	events, err := client.Get("http://docker/events")
	must(t, err)
	q := w.Pod("b", p.Conf[strings.Index(p.Conf, `"driver"`):]).Add()
	var event struct {
		Action string
		Actor  struct{ Attributes map[string]string }
	}
	must(t, json.NewDecoder(events.Body).Decode(&event))
	w.Want("event", event.Action+" "+event.Actor.Attributes["container"], "connect "+q.Call.ContainerID)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("/run/patchbay/docker.sock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket still exists: %v", err)
	}
}

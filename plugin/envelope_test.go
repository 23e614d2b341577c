// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// do calls one plugin in this process.
func do(t *testing.T, p *plugin.Plugin, verb spec.Verb, netNS string) error {
	t.Helper()
	b := plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession([]*plugin.Plugin{p}) }}
	_, err := b.Invoke(context.Background(), p.Name, &spec.Call{
		Verb: verb, ContainerID: "c1", NetNS: netNS, IfName: "eth0", Path: []string{"/nonexistent"},
		Config: []byte(`{"cniVersion":"1.0.0","name":"net"}`),
	})
	return err
}

// The kernel used a process id again, so the path leads to the host's namespace. DEL treats the
// container's namespace as gone, and does all its work.
func TestDelInTheHostsNamespace(t *testing.T) {
	netNS := "untouched"
	p := &plugin.Plugin{Name: "looker", Del: func(_ context.Context, r *plugin.Request) error {
		netNS = r.NetNS
		return nil
	}}
	if err := do(t, p, spec.Del, "/proc/self/ns/net"); err != nil || netNS != "" {
		t.Errorf("DEL: %v, with the namespace %q", err, netNS)
	}
	if err := do(t, p, spec.Add, "/proc/self/ns/net"); spec.ErrorCode(err) != spec.CodeInvalidNetNS {
		t.Errorf("ADD: %v", err)
	}
}

// An IPAM plugin accepts any path. If both the namespace and the configuration of another plugin
// are wrong, the plugin reports the configuration.
func TestNamespaceAndKind(t *testing.T) {
	broken := errors.New("the configuration is wrong")
	for _, path := range []string{"/dev/null", "/nonexistent", "/etc/passwd"} {
		seen := ""
		ipam := &plugin.Plugin{Name: "giver", Kind: plugin.IPAM, Add: func(_ context.Context, r *plugin.Request) (*spec.Result, error) {
			seen = r.NetNS
			return nil, nil
		}}
		if err := do(t, ipam, spec.Add, path); err != nil || seen != path {
			t.Errorf("IPAM plugin at %s: %v, with the namespace %q", path, err, seen)
		}
		p := &plugin.Plugin{Name: "maker"}
		if err := do(t, p, spec.Add, path); spec.ErrorCode(err) != spec.CodeInvalidNetNS {
			t.Errorf("%s: %v", path, err)
		}
		p.Validate = func(*plugin.Request) error { return broken }
		if err := do(t, p, spec.Add, path); err == nil || !strings.Contains(err.Error(), broken.Error()) {
			t.Errorf("%s, with a wrong configuration: %v", path, err)
		}
	}
}

// The MTU of an interface exists since 1.1.0. For an older version we put none into the result,
// but keep the value that another plugin put there.
func TestMTUSince(t *testing.T) {
	for version, want := range map[string]bool{"1.1.0": true, "1.0.0": false, "0.4.0": false} {
		for _, kind := range []plugin.Kind{plugin.Interface, plugin.Chained} {
			p := &plugin.Plugin{Name: "maker", Kind: kind, Add: func(context.Context, *plugin.Request) (*spec.Result, error) {
				return &spec.Result{Interfaces: []spec.Interface{{Name: "eth0", MTU: 1400}}}, nil
			}}
			b := plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession([]*plugin.Plugin{p}) }}
			out, err := b.Invoke(t.Context(), p.Name, &spec.Call{
				Verb: spec.Add, ContainerID: "c1", NetNS: nettest.NewNS(t, "since-"+version+kind.String()), IfName: "eth0",
				Path: []string{"/nonexistent"}, Config: []byte(`{"cniVersion":"` + version + `","name":"net"}`),
			})
			if err != nil {
				t.Fatal(err)
			}
			if has := strings.Contains(string(out), "1400"); has != (want || version == "1.0.0" && kind == plugin.Chained) {
				t.Errorf("%s, %s plugin: %s", version, kind, out)
			}
		}
	}
}

// If an old version cannot express the result, the ADD fails before a plugin changes anything.
func TestLayer2Since(t *testing.T) {
	for version, want := range map[string]bool{"1.1.0": true, "0.3.0": true, "0.2.0": false, "0.1.0": false} {
		called := false
		p := &plugin.Plugin{Name: "maker", Layer2: true, Add: func(context.Context, *plugin.Request) (*spec.Result, error) {
			called = true
			return nil, nil
		}}
		b := plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession([]*plugin.Plugin{p}) }}
		_, err := b.Invoke(t.Context(), p.Name, &spec.Call{
			Verb: spec.Add, ContainerID: "c1", NetNS: nettest.NewNS(t, "layer2-"+version), IfName: "eth0",
			Path: []string{"/nonexistent"}, Config: []byte(`{"cniVersion":"` + version + `","name":"net"}`),
		})
		if called != want || (err == nil) != want || !want && spec.ErrorCode(err) != spec.CodeIncompatibleVersion {
			t.Errorf("%s: called %v: %v", version, called, err)
		}
	}
}

// writer is a plugin that writes a file in ADD and removes it in DEL.
var writer = plugin.Plugin{
	Name: "writer",
	Add: func(_ context.Context, r *plugin.Request) (*spec.Result, error) {
		return nil, os.WriteFile(fileOf(r), nil, 0o600)
	},
	Del: func(_ context.Context, r *plugin.Request) error { return os.Remove(fileOf(r)) },
}

func fileOf(r *plugin.Request) string { return filepath.Join("/run", r.ContainerID) }

// If the result of an ADD cannot be written, the ADD is rolled back. The reason may be a full
// disk or a runtime that has ended.
func TestResultNotWritten(t *testing.T) {
	program := filepath.Join(plugintest.Install(t, &writer), "writer")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close() //nolint:errcheck // a test
	read, broken, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()         //nolint:errcheck // a test
	defer broken.Close() //nolint:errcheck // a test
	ns := nettest.NewNS(t, "written")
	for name, stdout := range map[string]*os.File{"full": full, "nobody-reads": broken} {
		cmd := exec.Command(program)
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + name, "CNI_NETNS=" + ns, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent"}
		cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"net"}`)
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = stdout, &stderr
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "error writing the result to stdout") {
			t.Errorf("%s: %v, %s", name, err, stderr.String())
		}
		if _, err := os.Stat(filepath.Join("/run", name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: what ADD made is still there: %v", name, err)
		}
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package examples_test runs the tests of conformance/ on the examples, and runs the examples in a
// chain with our plugins.
package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { conformance.Main(m) }

// built builds the Go examples once for all tests. /run goes with the namespaces of the tests.
var built = sync.OnceValues(func() (dir string, err error) {
	dir = "/run/examples/"
	if out, err := exec.Command("go", "build", "-o", dir, "./hosts", "./resolver", "./runtime").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
})

// program returns the path of a Go example.
func program(t *testing.T, name string) string {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// install links the plugins in Go and copies the one in shell, as an operator would.
func install(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"hosts", "resolver"} {
		if err := os.Symlink(program(t, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("sh-ipam/sh-ipam")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sh-ipam"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestConformance runs the contract for both examples, in `make test` a few of its scripts.
func TestConformance(t *testing.T) {
	subjects, err := conformance.Load(os.DirFS("subjects"))
	if err != nil {
		t.Fatal(err)
	}
	dir := install(t)
	for _, s := range subjects {
		t.Run(s.Name, func(t *testing.T) {
			suite := conformance.Suite{Subject: s, Invoker: &invoke.Exec{Stderr: t.Output()}, Path: []string{dir}}
			if !draw.All(t) {
				suite = suite.Brief()
			}
			suite.Run(t)
		})
	}
}

const network = `{"cniVersion":"1.1.0","name":"mixed","plugins":[
	{"type":"ptp","ipam":{"type":"sh-ipam","prefix":"10.44.0"}},
	{"type":"hosts","domain":"pods.example"}]}`

// TestChain: our ptp gets an address from the shell plugin, and the Go plugin writes it to
// a file.
func TestChain(t *testing.T) {
	rt := chain.New(chain.WithPath(install(t), reftest.Ours(t)), chain.WithWarn(func(err error) { t.Error(err) }))
	list, err := chain.ParseList([]byte(network))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Validate(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if err := rt.Status(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	before := leak.Must(t)
	a := chain.Attachment{ContainerID: "a", NetNS: nettest.NewNS(t, "a"), IfName: "eth0"}
	b := chain.Attachment{ContainerID: "b", NetNS: nettest.NewNS(t, "b"), IfName: "eth0"}
	attach(t, rt, list, a, "10.44.0.2")
	attach(t, rt, list, b, "10.44.0.3")
	if err := rt.GC(t.Context(), chain.Keep{List: list, Valid: []spec.AttachmentKey{{ContainerID: "b", IfName: "eth0"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/run/cni/hosts/mixed/a@eth0"); err == nil {
		t.Error("GC left the stale hosts file")
	}
	if err := rt.Check(t.Context(), list, b); err != nil {
		t.Errorf("GC damaged what is valid: %v", err)
	}
	if err := rt.Del(t.Context(), list, b); err != nil {
		t.Error(err)
	}
	leak.NoLeaks(t, before)
}

func attach(t *testing.T, rt *chain.Runtime, list *chain.List, a chain.Attachment, address string) {
	t.Helper()
	result, err := rt.Add(t.Context(), list, a)
	if err != nil {
		t.Fatal(err)
	}
	if got := result.IPs[0].Address.Addr().String(); got != address {
		t.Errorf("address is %s, want %s", got, address)
	}
	hosts, err := os.ReadFile("/run/cni/hosts/mixed/" + a.ContainerID + "@eth0")
	if err != nil || strings.TrimSpace(string(hosts)) != address+" "+a.ContainerID+".pods.example "+a.ContainerID {
		t.Errorf("hosts file is %q, %v", hosts, err)
	}
	if err := rt.Check(t.Context(), list, a); err != nil {
		t.Error(err)
	}
}

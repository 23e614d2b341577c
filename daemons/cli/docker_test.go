// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// dockerEnv puts all files that patchbayd docker uses below one directory.
func dockerEnv(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv("PATCHBAY_STATE_DIR", filepath.Join(dir, "state"))
	t.Setenv("PATCHBAY_RUN_DIR", filepath.Join(dir, "run"))
	return dir
}

func TestDockerServes(t *testing.T) {
	dir := dockerEnv(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := &dockerCommand{
		Socket: filepath.Join(dir, "patchbay.sock"), Plugins: dir, ConfDir: dir, Timeout: time.Minute, Grace: time.Minute,
		app: &app{ctx: ctx, log: &bytes.Buffer{}},
	}
	done := make(chan error)
	go func() { done <- c.Execute(nil) }()
	client, err := cnm.NewClient(cnm.DriverAddr{URL: "unix://" + c.Socket}, cnm.ClientOptions{Patience: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	m, err := client.Activate(ctx)
	if err != nil || len(m.Implements) != 2 {
		t.Fatalf("%v %v", m, err)
	}
	if got, err := client.Capabilities(ctx); err != nil || got.Scope != cnm.ScopeLocal {
		t.Errorf("%v %v", got, err)
	}
	if fi, err := os.Stat(c.Socket); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	if err := c.Execute(nil); err == nil || !strings.Contains(err.Error(), "another patchbayd docker runs") {
		t.Errorf("a second one: %v", err)
	}
	collects(t, c) // calls the running driver
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	collects(t, c) // works without a driver
}

func collects(t *testing.T, c *dockerCommand) {
	t.Helper()
	lockState := *c
	lockState.app = &app{ctx: t.Context(), log: &bytes.Buffer{}}
	var out bytes.Buffer
	if err := lockState.collect(&out); err != nil || out.String() != "nothing is left over\n" {
		t.Errorf("%v %q", err, &out)
	}
}

// Containers are gone. gc lists the driver's objects for them, and removes the objects on request.
func TestDockerGC(t *testing.T) {
	dir := dockerEnv(t)
	store, err := state.Open(paths.Default().State, "docker")
	if err != nil {
		t.Fatal(err)
	}
	id := strings.Repeat("ab", 32)
	if err := store.Pools.Save(&state.Pool{ID: "p", Network: "podnet", Config: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	if err := store.Endpoints.Save(&state.Endpoint{ID: id, Network: "gone", Boot: "before", Phase: state.Joined}); err != nil {
		t.Fatal(err)
	}
	run := func(flags ...string) (string, error) {
		var out bytes.Buffer
		c := &dockerCommand{Plugins: dir, Timeout: time.Minute, app: &app{ctx: t.Context(), log: &bytes.Buffer{}}}
		c.GC.Apply, c.JSON = slices.Contains(flags, "apply"), slices.Contains(flags, "json")
		err := c.collect(&out)
		return out.String(), err
	}
	const row = "would be removed  endpoint  abababababab  it is from before the node booted"
	if out, err := run(); err != nil || !strings.Contains(out, row) {
		t.Errorf("%v %q", err, out)
	}
	if out, err := run("json"); err != nil || !strings.HasPrefix(out, `[{"kind":"endpoint","name":"abababababab"`) {
		t.Errorf("%v %q", err, out)
	}
	// The plugin is missing, so this object cannot be detached and stays.
	conf := []byte(`{"name":"podnet","cniVersion":"1.1.0","plugins":[{"type":"nosuch"}]}`)
	if err := store.Networks.Save(&state.Network{ID: "gone", Options: map[string]string{"cni.network": "podnet"}, Config: conf}); err != nil {
		t.Fatal(err)
	}
	if out, err := run("apply"); err == nil || !strings.Contains(out, "\ndead ") {
		t.Errorf("%v %q", err, out)
	}
	del := "#!/bin/sh\n[ $CNI_COMMAND = VERSION ] && echo '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.1.0\"]}'\nexit 0\n"
	if err := os.WriteFile(filepath.Join(dir, "nosuch"), []byte(del), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if out, err := run("apply"); err != nil || !strings.Contains(out, "\nremoved  endpoint  abababababab") {
		t.Errorf("%v %q", err, out)
	}
	if out, err := run("apply", "json"); err != nil || out != "[]\n" {
		t.Errorf("%v %q", err, out)
	}
}

// On a node where no driver ever ran, gc finds nothing and creates nothing.
func TestDockerGCOfNothing(t *testing.T) {
	dir := dockerEnv(t)
	c := &dockerCommand{Plugins: dir, Timeout: time.Minute, app: &app{ctx: t.Context(), log: &bytes.Buffer{}}}
	collects(t, c)
	if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
		t.Errorf("made %v, %v", made, err)
	}
}

func TestDockerRefuses(t *testing.T) {
	dockerEnv(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"docker", "rm"}, `unknown command "rm"; use ps, gc, install, uninstall`},
		{[]string{"docker", "--timeout", "0s"}, "must be more than 0"},
		{[]string{"docker", "--docker", "/var/run/docker.sock"}, "want unix:///PATH"},
		{[]string{"docker", "--grace", "-1s", "gc"}, "grace must not be negative"},
		{[]string{"docker", "--plugins", ""}, "no directory of CNI plugins"},
		{[]string{"docker", "--socket", "/nosuch/x", "--group", "nosuchgroup"}, "nosuchgroup"},
	} {
		var log bytes.Buffer
		if got := Main(c.args, &log); got == 0 || !strings.Contains(log.String(), c.want) {
			t.Errorf("%v: %d %s", c.args, got, &log)
		}
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/cnm"
)

// dockerEnv puts everything that patchbayd docker touches below one directory.
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
	client, err := cnm.NewClient(cnm.Endpoint{URL: "unix://" + c.Socket}, cnm.ClientOptions{Patience: 10 * time.Second})
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
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDockerRefuses(t *testing.T) {
	dockerEnv(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"docker", "rm"}, "there are ps, install and uninstall"},
		{[]string{"docker", "--timeout", "0s"}, "must be more than 0"},
		{[]string{"docker", "--plugins", ""}, "no directory of CNI plugins"},
		{[]string{"docker", "--socket", "/nosuch/x", "--group", "nosuchgroup"}, "nosuchgroup"},
	} {
		var log bytes.Buffer
		if got := Main(c.args, &log); got == 0 || !strings.Contains(log.String(), c.want) {
			t.Errorf("%v: %d %s", c.args, got, &log)
		}
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/paths"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(t.Context(), path, 0); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("one that is taken: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, unlock)
	again, err := lock(t.Context(), path, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer again()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(ended, path, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("told to end: %v", err)
	}
	if _, err := lockState(t.Context(), filepath.Join(path, "nosuch"), 0); err == nil || strings.Contains(err.Error(), "another") {
		t.Errorf("no directory: %v", err)
	}
}

// slowly makes a driver's state with an endpoint to remove. The endpoint's plugin takes a minute
// in its first DEL, and creates the file started when it begins.
func slowly(t *testing.T, dir string) (started string) {
	t.Helper()
	store, err := state.Open(paths.Default().State, "docker")
	if err != nil {
		t.Fatal(err)
	}
	started = filepath.Join(dir, "started")
	plugin := fmt.Sprintf(`#!/bin/sh
[ $CNI_COMMAND = VERSION ] && echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}'
[ $CNI_COMMAND != DEL ] || [ -e %[1]s ] || { touch %[1]s; sleep 60; }
`, started)
	conf := []byte(`{"name":"podnet","cniVersion":"1.1.0","plugins":[{"type":"slow"}]}`)
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "slow"), []byte(plugin), 0o755), //nolint:gosec // a program
		store.Networks.Save(&state.Network{ID: "n", Options: map[string]string{"cni.network": "podnet"}, Config: conf}),
		store.Endpoints.Save(&state.Endpoint{ID: strings.Repeat("ab", 32), Network: "n", Boot: "before", Phase: state.Joined}),
	)
	if err != nil {
		t.Fatal(err)
	}
	return started
}

// A gc works without a driver. When a driver starts, this gc stops and calls the driver. The
// driver answers Docker.
func TestDriverWaitsForGC(t *testing.T) {
	dir := dockerEnv(t)
	started := slowly(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	command := func() *dockerCommand {
		return &dockerCommand{
			Socket: filepath.Join(dir, "patchbay.sock"), Plugins: dir, ConfDir: dir, Timeout: time.Minute, Grace: time.Minute, GC: gcFlags{Apply: true},
			app: &app{ctx: ctx, log: &bytes.Buffer{}},
		}
	}
	var out bytes.Buffer
	collected, served := make(chan error, 1), make(chan error, 1)
	go func() { collected <- command().collect(&out) }()
	for _, err := os.Stat(started); errors.Is(err, fs.ErrNotExist); _, err = os.Stat(started) {
		time.Sleep(time.Millisecond)
	}
	go func() { served <- command().Execute(nil) }()
	client, err := cnm.NewClient(cnm.DriverAddr{URL: "unix://" + filepath.Join(dir, "patchbay.sock")}, cnm.ClientOptions{Patience: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := client.Capabilities(ctx); err != nil || got.Scope != cnm.ScopeLocal {
		t.Errorf("%v %v", got, err)
	}
	if err := <-collected; err != nil {
		t.Errorf("gc: %v %s", err, &out)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmtest

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

// As converts a value from one library's type to another's by JSON, as it is sent between programs.
func As[T any](t testing.TB, v any) *T {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	out := new(T)
	if err := json.Unmarshal(data, out); err != nil {
		t.Errorf("%v: %s", err, data)
	}
	return out
}

// StartHelped serves a handler of docker/go-plugins-helpers on the socket where Docker finds it.
// It serves until the test ends.
func StartHelped(t testing.TB, name string, h interface{ Serve(net.Listener) error }) {
	t.Helper()
	path := filepath.Join(cnm.SocketDir, name+".sock")
	if err := os.MkdirAll(cnm.SocketDir, 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- h.Serve(listener) }()
	t.Cleanup(func() {
		listener.Close() //nolint:errcheck // a test
		<-done           //nolint:errcheck // a test
		os.Remove(path)
	})
}

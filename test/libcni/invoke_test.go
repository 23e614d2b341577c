// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package libcni_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cni "github.com/containernetworking/cni/pkg/invoke"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// script writes a plugin in shell and returns its directory.
func script(t *testing.T, body string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sh-plugin"), []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func callIn(dir string) *spec.Call {
	return &spec.Call{Verb: spec.Add, ContainerID: "c1", NetNS: "/n", IfName: "eth0", Args: "A=1", Path: []string{dir}, Config: []byte(`{"name":"net"}`)}
}

// TestFailures pins libcni's error texts, which runtimes search for.
func TestFailures(t *testing.T) {
	tests := []struct{ body, msg string }{
		{`exit 3`, "netplugin failed with no error message: exit status 3"},
		{`echo oops >&2; exit 1`, `netplugin failed: "oops\n": exit status 1`},
		{`echo oops; exit 1`, `netplugin failed but error parsing its diagnostic message "oops\n": `},
		{`echo '{"code":7,"msg":"bad","details":"why"}'; exit 1`, "bad; why"},
		{`echo '{"cniVersion":"1.0.0","code":11,"msg":"later"}'; exit 1`, "later"},
		{`kill -9 $$`, "netplugin failed with no error message: signal: killed"},
	}
	for _, test := range tests {
		call := callIn(script(t, test.body))
		_, err := (&invoke.Exec{}).Invoke(t.Context(), "sh-plugin", call)
		_, theirs := (&cni.RawExec{}).ExecPlugin(t.Context(), filepath.Join(call.Path[0], "sh-plugin"), call.Config, call.Environ())
		for who, err := range map[string]error{"ours": err, "libcni": theirs} {
			if err == nil || !strings.HasPrefix(err.Error(), test.msg) {
				t.Errorf("%s: %s: %v, want %s", test.body, who, err, test.msg)
			}
		}
	}
	for _, body := range []string{`exit 3`, `echo oops >&2; exit 1`, `echo oops; exit 1`, `echo '{"code":50}'; exit 1`} {
		call := callIn(script(t, body))
		_, err := (&invoke.Exec{}).Invoke(t.Context(), "sh-plugin", call)
		if err == nil || !strings.Contains(err.Error(), "("+filepath.Join(call.Path[0], "sh-plugin")+")") {
			t.Errorf("%s: %v does not name the plugin", body, err)
		}
	}
	_, err := (&invoke.Exec{}).Invoke(t.Context(), "sh-plugin", callIn(script(t, `echo '{"code":7,"msg":"bad"}'; exit 1`)))
	if spec.ErrorCode(err) != spec.CodeInvalidConfig {
		t.Errorf("code is %d", spec.ErrorCode(err))
	}
	_, err = (&invoke.Exec{}).Invoke(t.Context(), "sh-plugin", callIn(script(t, `yes | head -c 100000 >&2; exit 1`)))
	if err == nil || len(err.Error()) > 20000 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

func TestFind(t *testing.T) {
	dir := script(t, "true")
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600); err != nil { // no execute bit
		t.Fatal(err)
	}
	if err := os.Symlink("sh-plugin", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh-plugin", "plain", "link", "directory", "missing", "../x", "", ".."} {
		for _, dirs := range [][]string{{"/nonexistent", dir}, {}, {"relative", dir}} {
			got, err := invoke.Find(name, dirs)
			want, terr := cni.FindInPath(name, dirs)
			if got != want || (err == nil) != (terr == nil) {
				t.Errorf("%q in %v: %q, %v; libcni says %q, %v", name, dirs, got, err, want, terr)
			}
			if slices.Contains([]string{"missing", "directory"}, name) && (!errors.Is(err, invoke.ErrNotFound) || err.Error() != terr.Error()) {
				t.Errorf("%q in %v: %v; libcni says %v", name, dirs, err, terr)
			}
		}
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// A program gets the environment of the session, and no variable of this process.
func TestProgramsGetTheSessionsEnvironment(t *testing.T) {
	t.Setenv("PATCHBAY_OF_PROCESS", "process")
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"{\\\"cniVersion\\\":\\\"1.1.0\\\",\\\"dns\\\":{\\\"domain\\\":\\\"$PATCHBAY_OF_CALL,$PATCHBAY_OF_PROCESS,$CNI_IFNAME\\\"}}\"\n"
	if err := os.WriteFile(filepath.Join(dir, "other"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	call := &spec.Call{
		Verb: spec.Add, ContainerID: "c", NetNS: "/dev/null", IfName: "eth0", Path: []string{dir},
		Config: []byte(`{"cniVersion":"1.1.0","name":"n","type":"other"}`),
	}
	for want, env := range map[string][]string{",process,eth0": nil, "call,,eth0": {"PATCHBAY_OF_CALL=call", "CNI_IFNAME=eth9"}} {
		s := plugin.NewSession(nil)
		s.Env = env
		for _, s := range []*plugin.Session{s, s.Fork()} {
			out, err := s.Invoke(t.Context(), "other", call)
			if err != nil || !strings.Contains(string(out), `"`+want+`"`) {
				t.Errorf("%v: %s, %v, want %s", env, out, err, want)
			}
		}
	}
}

func TestCallerPID(t *testing.T) {
	s := plugin.NewSession(nil)
	if got := s.CallerPID(); got != os.Getppid() {
		t.Errorf("%d, want the parent %d", got, os.Getppid())
	}
	s.Caller = 7
	if got := s.Fork().CallerPID(); got != 7 {
		t.Errorf("%d, want 7", got)
	}
}

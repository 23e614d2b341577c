// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/dist/systemd"
)

// below runs fn with an installer that writes below a temporary directory, and returns its output.
func below(t *testing.T, f installFlags, fn func(*installer) error) string {
	t.Helper()
	var out bytes.Buffer
	in := newInstaller(f, &out)
	in.source = os.Args[0]
	if err := fn(in); err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(out.String(), f.DestDir, "")
}

func TestInstallBelow(t *testing.T) {
	f := installFlags{DestDir: t.TempDir()}
	install := func() string { return below(t, f, (*installer).install) }
	all := "write /usr/local/bin/patchbayd\nwrite /etc/systemd/system/patchbay-docker.service\nwrite /etc/systemd/system/patchbay-docker.socket\n"
	f.Print = true
	if got := install(); got != all {
		t.Errorf("--print: %s", got)
	}
	f.Print = false
	for _, want := range []string{all, ""} {
		if got := install(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	program := filepath.Join(f.DestDir, programPath)
	if fi, err := os.Stat(program); err != nil || fi.Mode() != 0o755 {
		t.Errorf("%v, %v", fi, err)
	}
	if err := os.Chmod(program, 0o600); err != nil { // killed in between
		t.Fatal(err)
	}
	if got := install(); got != "write /usr/local/bin/patchbayd\n" {
		t.Errorf("after a kill: %q", got)
	}
	uninstall := func() string { return below(t, f, func(in *installer) error { return in.uninstall(0) }) }
	if got := uninstall(); strings.Count(got, "remove ") != 3 {
		t.Errorf("%q", got)
	}
	if got := uninstall(); got != "" {
		t.Errorf("again: %q", got)
	}
}

// The keeper of DHCP leases uses the same program.
func TestUninstallKeepsTheProgramOfOthers(t *testing.T) {
	f := installFlags{DestDir: t.TempDir()}
	below(t, f, (*installer).install)
	if err := os.WriteFile(filepath.Join(f.DestDir, unitDir, "patchbay-dhcp.service"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	below(t, f, func(in *installer) error { return in.uninstall(0) })
	if _, err := os.Stat(filepath.Join(f.DestDir, programPath)); err != nil {
		t.Error(err)
	}
}

func TestInstallRefuses(t *testing.T) {
	f := installFlags{DestDir: t.TempDir()}
	units := filepath.Join(f.DestDir, unitDir)
	if err := os.MkdirAll(units, 0o755); err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(units, dockerService)
	for want, prepare := range map[string]func() error{
		"not Patchbay's: move it away": func() error { return os.WriteFile(unit, []byte("[Unit]\n"), 0o644) },
		"not a file of ours": func() error {
			_ = os.Remove(unit)
			return os.Symlink("/dev/null", unit) // systemctl mask
		},
	} {
		if err := prepare(); err != nil {
			t.Fatal(err)
		}
		if err := newInstaller(f, &bytes.Buffer{}).install(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if err := os.Remove(unit); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(f.DestDir, programPath)
	const script = "#!/bin/sh\n# patchbayd of somebody else\n"
	if err := errors.Join(os.MkdirAll(filepath.Dir(other), 0o755), os.WriteFile(other, []byte(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := newInstaller(f, &bytes.Buffer{}).install(); err == nil || !strings.Contains(err.Error(), programPath+": not Patchbay's") {
		t.Errorf("another program: %v", err)
	}
	if got := below(t, f, func(in *installer) error { return in.uninstall(0) }); !strings.HasPrefix(got, "keep "+programPath) {
		t.Errorf("uninstall beside another program: %q", got)
	}
	if text, err := os.ReadFile(other); string(text) != script {
		t.Errorf("another program: %q, %v", text, err)
	}
	if err := newInstaller(f, &bytes.Buffer{}).uninstall(2); err == nil || !strings.Contains(err.Error(), "2 of Docker's networks") {
		t.Error(err)
	}
	in := newInstaller(installFlags{}, &bytes.Buffer{})
	in.booted = "/nonexistent"
	if err := in.install(); err == nil || !strings.Contains(err.Error(), "No systemd") {
		t.Error(err)
	}
}

// The units start the program at its installed path.
func TestUnitsNameTheProgram(t *testing.T) {
	text, err := systemd.Units.ReadFile(dockerService)
	if err != nil || !strings.Contains(string(text), "ExecStart="+programPath+" docker\n") {
		t.Errorf("%s %v", text, err)
	}
}

// To stop the driver does not kill the plugins of running calls. It waits as long as a call may take.
func TestCallsOutliveAnUpdate(t *testing.T) {
	text, err := systemd.Units.ReadFile(dockerService)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\nTimeoutStopSec=")
	value, _, _ := strings.Cut(after, "\n")
	stop, err := time.ParseDuration(value + "s")
	field, _ := reflect.TypeFor[dockerCommand]().FieldByName("Timeout")
	call, _ := time.ParseDuration(field.Tag.Get("default"))
	if err != nil || call == 0 || stop <= call+time.Second || !strings.Contains(string(text), "\nKillMode=mixed\n") {
		t.Errorf("TimeoutStopSec=%s for calls of %v: %v\n%s", value, call, err, text)
	}
}

// dockerd keeps an existing /run/docker as it is, so the socket unit must not make it
// accessible.
func TestSocketKeepsOthersOut(t *testing.T) {
	text, err := systemd.Units.ReadFile(dockerSocket)
	if err != nil || !strings.Contains(string(text), "\nDirectoryMode=0700\n") || !strings.Contains(string(text), "\nSocketMode=0600\n") {
		t.Errorf("%s %v", text, err)
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// unrecorded runs a GC while the record of a dead attachment is lost. If this GC leaves a file that is named after the
// container, `patchbay gc` must find the file by Plugin.Files. It finds other files itself: an address has the names in its
// file, and a shared fact has its holders.
func (c *Case) unrecorded(t *testing.T, p *plugin.Plugin, inv invoke.Invoker) {
	w := c.suite(inv, nil).World(t)
	defer w.Close()
	before := leak.Must(t, everywhere...)
	_, err := w.Call(t.Context(), spec.Add)
	if err = errors.Join(err, w.DeleteNetNS()); err != nil {
		t.Fatal(err)
	}
	a := w.Attachment()
	withoutRecord(t, a, func() {
		if _, err := w.Call(t.Context(), spec.GC, "valid=none"); err != nil {
			t.Errorf("GC without the record: %v", err)
		}
		found := declared(a, append([]*plugin.Plugin{p}, c.Delegates...))
		for _, line := range leak.Must(t, everywhere...).Beyond(before).Of("file") {
			path := strings.TrimPrefix(line, "file ")
			if strings.Contains(path, a.ContainerID) && !slices.Contains(found, path) {
				t.Errorf("without the record no GC finds %s: plugin.Plugin.Files must name it", path)
			}
		}
	})
	if _, err := w.Call(t.Context(), spec.Del); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

// everywhere lists the directories that may have files of an attachment. Main makes them empty.
var everywhere = []string{"/run", "/var/lib"}

// declared returns the files of an attachment that Plugin.Files names.
func declared(a *conformance.Container, plugins []*plugin.Plugin) []string {
	n := traces.Node{}
	for _, p := range plugins {
		n.Patterns = append(n.Patterns, traces.Patterns(paths.Default(), p.Files)...)
	}
	return n.Files(spec.AttachmentKey{ContainerID: a.ContainerID, IfName: a.IfName})
}

// withoutRecord runs fn while the records of an attachment are elsewhere.
func withoutRecord(t *testing.T, a *conformance.Container, fn func()) {
	t.Helper()
	o, dir := owner.Of(conformance.Network, a.ContainerID, a.IfName), t.TempDir()
	for _, f := range record.New(paths.Default().Run).Files(conformance.Network, o) {
		elsewhere := filepath.Join(dir, f.Plugin)
		move(t, f.Path, elsewhere)
		defer move(t, elsewhere, f.Path)
	}
	fn()
}

// move copies a file and removes the first, because they may be on two filesystems.
func move(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, data, 0o600), os.Remove(from))
	}
	if err != nil {
		t.Fatal(err)
	}
}

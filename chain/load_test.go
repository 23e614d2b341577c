// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
)

const confs = `{"name":"%","cniVersion":"1.0.0","plugins":[{"type":"rec1"}]}`

func named(name string) string { return strings.Replace(confs, "%", name, 1) }

func TestLoad(t *testing.T) {
	b := newBench(t)
	var none *chain.NoConfigsFoundError
	if _, err := b.Load("net"); !errors.As(err, &none) || err.Error() != "no net configurations found in "+b.ConfDir {
		t.Errorf("empty: %v", err)
	}
	chaintest.Write(t, b.ConfDir, map[string]string{
		"10-broken.conflist": `{"name": "half`,
		"20-net.conflist":    named("net"),
		"30-net.conflist":    strings.Replace(named("net"), "rec1", "late", 1),
		"40-old.conf":        `{"name":"old","type":"rec1","cniVersion":"0.3.1"}`,
		"50-json.json":       `{"name":"json","type":"rec1"}`,
		"60-bad.conflist":    `{"name":"bad","plugins":[{}]}`,
		"61-bad.conflist":    named("bad"),
		"70-other.txt":       named("txt"),
	})
	list, err := b.Load("net")
	if err != nil || list.Plugins[0].Type != "rec1" || filepath.Base(list.File) != "20-net.conflist" {
		t.Fatalf("%+v, %v", list, err)
	}
	if len(b.Warned) != 2 || !strings.Contains(b.Warned[0].Error(), "10-broken.conflist") {
		t.Errorf("warned: %v", b.Warned)
	}
	for name, version := range map[string]string{"old": "0.3.1", "json": ""} {
		if l, err := b.Load(name); err != nil || l.CNIVersion != version || len(l.Plugins) != 1 {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	if _, err := b.Load("bad"); err == nil || !strings.Contains(err.Error(), "60-bad.conflist: failed to parse plugin config 0") {
		t.Errorf("bad: %v", err)
	}
	var missing *chain.NotFoundError
	_, err = b.Load("txt")
	if !errors.As(err, &missing) || !strings.HasPrefix(err.Error(), `no net configuration with name "txt" in `+b.ConfDir) {
		t.Errorf("txt: %v", err)
	}
	if !strings.Contains(err.Error(), "10-broken.conflist") {
		t.Errorf("a file that may hold it is not named: %v", err)
	}
}

// TestIrregularFiles puts a pipe without a writer, a device and an endless file into the
// directory. LoadDir reports them as broken and still reads the others.
func TestIrregularFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, link, long := filepath.Join(dir, "1.conflist"), filepath.Join(dir, "2.conf"), filepath.Join(dir, "3.conf")
	err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink("/dev/zero", link), os.WriteFile(long, nil, 0o600), os.Truncate(long, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{pipe: "want a regular file", link: "want a regular file", long: "more than 1 MiB"} {
		if _, err := chain.LoadFile(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
	if d, err := chain.LoadDir(dir); err != nil || len(d.Broken) != 3 {
		t.Errorf("%+v, %v", d, err)
	} else if _, err := d.Find("x"); err == nil {
		t.Error("x was found")
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/podnet"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// The agent reports a file that a runtime uses instead of ours, and says what to do. It removes
// only a file that containerd made from our template, and only when our file exists.
func TestHiddenNetwork(t *testing.T) {
	filled := string(podnet.Network{
		Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Node: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	}.Text())
	for name, c := range map[string]struct {
		file, text string
		says       string // "": the file is removed
	}{
		"filled":     {"10-containerd-net.conflist", filled, ""},
		"by hand":    {"10-containerd-net.conflist", strings.Replace(filled, `"snat": true`, `"snat": false`, 1), "changed by hand or by another release: remove it"},
		"of another": {"05-other.conflist", `{"name": "other"}`, "move it away, then new pods get our network"},
		"too large":  {"05-large.conf", strings.Repeat(" ", 2<<20), "cannot be read"},
		"linked":     {"10-containerd-net.conflist", "", "remove it"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1, 2)
			dir := filepath.Join(l.dir, "net.d")
			path := filepath.Join(dir, c.file)
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if name == "linked" {
				c.text, path = filled, filepath.Join(l.dir, "elsewhere")
				if err := os.Symlink(path, filepath.Join(dir, c.file)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			l.start()
			l.await("ready", func() bool { return l.Ready() == nil })
			if c.says == "" {
				l.await("the removal", func() bool { _, err := os.Lstat(path); return os.IsNotExist(err) })
				if l.conf() == "" || len(l.trouble.mine()) > 0 {
					t.Errorf("%q %v", l.conf(), l.trouble.mine())
				}
				return
			}
			l.await("an Event", func() bool { return strings.Contains(l.event(networkHidden), c.says) })
			if got, err := os.ReadFile(path); err != nil || string(got) != c.text {
				t.Errorf("the file is changed: %v", err)
			}
			if err := os.Remove(filepath.Join(dir, c.file)); err != nil {
				t.Fatal(err)
			}
			resident.Signal(l.kernel) // the agent looks once a minute
			l.await("an end", func() bool { return l.trouble.mine()[networkHidden] == "" })
		})
	}
}

// While our file cannot be written, containerd's file stays, because the node has no other network.
func TestHiddenNetworkStays(t *testing.T) {
	l := newLab(t, 1, 2)
	dir := filepath.Join(l.dir, "net.d")
	filled := podnet.Network{Node: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}.Text()
	if err := os.MkdirAll(filepath.Join(dir, podnet.File), 0o700); err != nil { // a directory in its place
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "10-containerd-net.conflist"), filled, 0o600); err != nil {
		t.Fatal(err)
	}
	l.start()
	l.awaitProblem(networkFailed)
	resident.Signal(l.kernel)
	l.stop()
	if _, err := os.Stat(filepath.Join(dir, "10-containerd-net.conflist")); err != nil {
		t.Error(err)
	}
}

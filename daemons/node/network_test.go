// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/podnet"
)

// write makes a file in the lab's directory.
func (l *lab) write(name, text string) {
	l.Helper()
	path := filepath.Join(l.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		l.Fatal(err)
	}
}

// Our network takes over the addresses of the network that the runtime uses, and keeps them when
// the old network's file is gone.
func TestTakeOver(t *testing.T) {
	const old = "net.d/10-kindnet.conflist"
	l := newLab(t, 1, 2)
	l.write(old, `{"name": "kindnet", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state"}}]}`)
	l.write("net.d/87-later.conflist", `{"name": "later"}`)
	l.start()
	l.await("ready", func() bool { return l.Ready() == nil })
	want := podnet.Pool{Name: "kindnet", DataDir: "/run/cni-ipam-state"}
	if got := podnet.PoolOf([]byte(l.conf())); got != want {
		t.Errorf("%+v, want %+v in\n%s", got, want, l.conf())
	}
	l.stop()
	if err := os.Remove(filepath.Join(l.dir, old)); err != nil {
		t.Fatal(err)
	}
	before := l.conf()
	l.start()
	l.await("ready again", func() bool { return l.Ready() == nil })
	if l.conf() != before {
		t.Errorf("the network changed to\n%s", l.conf())
	}
}

// Behind a plugin such as Multus, the pods' network has another name than the first file. The
// reservations say which.
func TestTakeOverBehindMultus(t *testing.T) {
	l := newLab(t, 1, 2)
	l.write("net.d/00-multus.conf", `{"name": "multus-cni-network", "type": "multus", "delegates": [{"name": "cbr0", "plugins": [{"type": "flannel"}]}]}`)
	l.write("networks/cbr0/10.244.1.5", "someone\r\neth0")
	l.start()
	l.await("ready", func() bool { return l.Ready() == nil })
	if got := podnet.PoolOf([]byte(l.conf())); got != (podnet.Pool{Name: "cbr0"}) {
		t.Errorf("%+v", got)
	}
}

// If the old network's file is gone already, the directory of its reservations names it.
func TestTakeOverReservations(t *testing.T) {
	l := newLab(t, 1, 2)
	l.write("networks/cbr0/10.244.1.5", "someone\r\neth0")
	l.write("networks/cbr0/lock", "")
	l.write("networks/elsewhere/10.88.0.2", "someone\r\neth0")
	l.start()
	l.await("ready", func() bool { return l.Ready() == nil })
	if got := podnet.PoolOf([]byte(l.conf())); got != (podnet.Pool{Name: "cbr0"}) {
		t.Errorf("%+v", got)
	}
}

// If two networks have addresses of this node, the agent takes over neither, because either choice
// could give out an address twice.
func TestTakeOverUnsure(t *testing.T) {
	l := newLab(t, 1, 2)
	l.write("networks/cbr0/10.244.1.5", "someone\r\neth0")
	l.write("networks/pods/10.244.1.5", "another\r\neth0")
	l.start()
	l.awaitProblem(networkFailed)
	if text := l.trouble.mine()[networkFailed]; l.Ready() == nil || l.conf() != "" || !strings.Contains(text, "cbr0, pods") {
		t.Errorf("%v, %q, %q", l.Ready(), text, l.conf())
	}
	if err := os.RemoveAll(filepath.Join(l.dir, "networks/cbr0")); err != nil {
		t.Fatal(err)
	}
	l.await("ready", func() bool { return l.Ready() == nil })
	if got := podnet.PoolOf([]byte(l.conf())); got.Name != "pods" {
		t.Errorf("%+v", got)
	}
}
